"""Training an adapter with ``tune_adapter`` against the same run of peft and Hugging Face's Trainer by hand."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.ratio import alternate

Table = list[tuple[str, Callable[[], float], str]]
_STEPS, _BATCH, _ACCUMULATION = 8, 4, 2


def table() -> Table:
    """Against a script that takes the same logits, and against one that takes those of all places."""
    return [
        ("tune_adapter, 8 steps of 8 examples / the same Trainer run without us", throughput, "<= 1.05"),
        ("the same / a Trainer run with logits of all places", lambda: throughput(all_logits=True), ""),
    ]


def throughput(*, all_logits: bool = False) -> float:
    """Seconds a run, ours over theirs: a small Llama with a large vocabulary, half of the tokens in answers."""
    from mechclust.models.instruction_format import FormattedExample
    from mechclust.training.tuning import TuneConfig, tune_adapter

    model, draw = _model(), torch.Generator().manual_seed(0)
    rows = torch.randint(1, 8000, (_STEPS * _BATCH * _ACCUMULATION, 96), generator=draw).tolist()
    given = [FormattedExample(row, 48) for row in rows]
    config = TuneConfig(batch_size=_BATCH, accumulation=_ACCUMULATION, steps=_STEPS, save_every=_STEPS)
    folder = Path(tempfile.mkdtemp())

    def ours() -> None:
        tune_adapter(model, given, config, folder / "ours", base="b")
        shutil.rmtree(folder / "ours")

    def theirs() -> None:
        _plain(model, rows, folder / "theirs", all_logits)
        shutil.rmtree(folder / "theirs")

    try:
        return alternate(ours, theirs, rounds=5)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=8000, max_position_embeddings=128, **shape))


def _plain(model: Any, rows: list[list[int]], folder: Path, all_logits: bool) -> None:
    """With a checkpoint at the end and the adapter saved, as ours."""
    import peft
    from transformers import Trainer, TrainingArguments

    from mechclust.models.quiet_transformers import quiet_transformers
    from mechclust.models.weights import copy_with_shared_weights

    def collate(batch: list[list[int]]) -> dict[str, torch.Tensor]:
        tokens = torch.tensor(batch)
        labels = tokens.masked_fill(torch.arange(96) < 48, -100)
        given = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        if all_logits:
            return {**given, "labels": labels}
        return {**given, "labels": labels[:, 47:], "logits_to_keep": torch.arange(47, 96)}

    with quiet_transformers():
        lora = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"])
        wrapped = peft.get_peft_model(copy_with_shared_weights(model), lora)
        arguments = TrainingArguments(
            output_dir=str(folder), per_device_train_batch_size=_BATCH, gradient_accumulation_steps=_ACCUMULATION,
            max_steps=_STEPS, learning_rate=5e-5, lr_scheduler_type="cosine", logging_steps=1, save_steps=_STEPS,
            report_to=[], disable_tqdm=True, remove_unused_columns=False, use_cpu=True, dataloader_pin_memory=False,
        )  # fmt: skip
        Trainer(wrapped, arguments, data_collator=collate, train_dataset=rows).train()
        wrapped.save_pretrained(folder)
