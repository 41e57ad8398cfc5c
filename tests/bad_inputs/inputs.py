"""Write the good inputs of the command line: tiny random models, prompts, a corpus and tasks."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = ("<pad>", "<unk>", *(f"w{i}" for i in range(20)))
MOSSA_WORDS = (
    "</s>",
    "<unk>",
    ":",
    "Answer",
    "Say",
    "Input",
    "Output",
    ".",
    *"abcdef",
    "copy",
    "swap",
    "first",
    "last",
)
SHAPE = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32}
GPT2 = {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 32, "bos_token_id": 0, "eos_token_id": 0}
LLAMA = {**SHAPE, "num_key_value_heads": 1, "max_position_embeddings": 32, "eos_token_id": 0}
BERT = {**SHAPE, "max_position_embeddings": 32, "pad_token_id": 0}
BART = {
    "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "d_model": 16, "max_position_embeddings": 32, "init_std": 0.1,
    "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 3,
}  # fmt: skip
CHAT = "{% for message in messages %}w0 {{ message['content'] }} w1{% endfor %}"
TASKS: dict[str, Callable[[list[str]], list[str]]] = {
    "copy": list,
    "swap": lambda word: word[::-1],
    "first": lambda word: word[:1],
    "last": lambda word: word[-1:],
}


def write_inputs(folder: Path) -> None:
    """Write everything below a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    random.seed(0)
    torch.manual_seed(0)
    transformers.utils.logging.disable_progress_bar()
    _write_models(folder)
    _write_derived_models(folder)
    _write_prompts(folder)
    _write_corpora(folder)
    _write_tasks(folder)


def write_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write JSON lines."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


# ---- models ----


def _tokenizer(words: tuple[str, ...], **options: Any) -> Any:
    """Return a tokenizer of whole words."""
    whole = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    whole.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=whole, unk_token="<unk>", model_input_names=["input_ids"], **options
    )
    tokenizer.chat_template = CHAT
    return tokenizer


def _checkpoint(folder: Path, model: Any, words: tuple[str, ...] = WORDS, **tokens: str) -> None:
    """Save a model with its tokenizer, as Hugging Face does."""
    model.save_pretrained(folder)
    _tokenizer(words, **(tokens or {"pad_token": "<pad>"})).save_pretrained(folder)


def _write_models(folder: Path) -> None:
    """Write one random checkpoint of each architecture."""
    common: dict[str, Any] = {"vocab_size": len(WORDS), "initializer_range": 0.2}
    made = {
        "gpt2": transformers.GPT2LMHeadModel(transformers.GPT2Config(**common, **GPT2)),
        "llama": transformers.LlamaForCausalLM(transformers.LlamaConfig(**common, **LLAMA)),
        "bert": transformers.BertForMaskedLM(transformers.BertConfig(**common, **BERT)),
        "bart": transformers.BartForConditionalGeneration(transformers.BartConfig(vocab_size=len(WORDS), **BART)),
    }
    for name, model in made.items():
        _checkpoint(folder / name, model)
    fields = {**LLAMA, "vocab_size": len(MOSSA_WORDS), "max_position_embeddings": 64, "initializer_range": 0.3}
    base = transformers.LlamaForCausalLM(transformers.LlamaConfig(**fields))
    _checkpoint(folder / "mossa-base", base, MOSSA_WORDS, eos_token="</s>")


def _changed(source: Path, folder: Path, seed: int, scale: float = 0.5, only: str = "transformer.h.1") -> None:
    """Write a copy of a checkpoint with noise in some of its weights."""
    shutil.copytree(source, folder)
    weights = load_file(source / "model.safetensors")
    draw = torch.Generator().manual_seed(seed)
    for name, weight in sorted(weights.items()):
        if name.startswith(only):
            weights[name] = weight + scale * torch.randn(weight.shape, generator=draw)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def _write_derived_models(folder: Path) -> None:
    """Write tuned models, a series of checkpoints, and adapters."""
    _changed(folder / "gpt2", folder / "tuned", 1)
    for i, step in enumerate((8, 16, 24, 32)):
        _changed(folder / "gpt2", folder / "series" / f"checkpoint-{step}", 9, 0.1 * i, "transformer.h")
    _adapter(folder / "gpt2", folder / "adapter", ["c_fc"], fan_in_fan_out=True)
    _adapter(folder / "mossa-base", folder / "mossa-tuned", ["q_proj", "v_proj"])
    for seed, task in enumerate(TASKS):
        _adapter(folder / "mossa-base", folder / "mossa-controls" / task, ["q_proj", "v_proj"], seed + 1)


def _adapter(base: Path, folder: Path, targets: list[str], seed: int = 0, **options: Any) -> None:
    """Write a LoRA adapter with random weights."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    settings = peft.LoraConfig(r=2, target_modules=targets, init_lora_weights=False, task_type="CAUSAL_LM", **options)
    peft.get_peft_model(model, settings).save_pretrained(folder)


# ---- texts ----


def _prompts() -> list[dict[str, Any]]:
    """Return 48 prompts of three tasks; the last word tells the task, the first runs through all."""
    return [
        {"prompt": f"w{first} w{middle} w{10 + k}", "task": task}
        for k, task in enumerate("abc")
        for first in range(4)
        for middle in (4, 5, 6, 7)
    ]


def _write_prompts(folder: Path) -> None:
    prompts = _prompts()
    write_lines(folder / "prompts.jsonl", prompts)
    write_lines(folder / "long-prompts.jsonl", [{**p, "prompt": f"{p['prompt']} " * 12} for p in prompts])


def _write_corpora(folder: Path) -> None:
    """Write 40 documents of three topics, and a suite of two encoders."""
    (folder / "corpus").mkdir()
    for i in range(40):
        own = [f"w{6 * (i % 3) + random.randrange(6)}" for _ in range(17)]
        other = [f"w{6 * ((i + 1) % 3) + random.randrange(6)}" for _ in range(7)]
        (folder / "corpus" / f"{i:02}.txt").write_text(" ".join(random.sample(own + other, 24)))
    tables = [f'[[model]]\nmodel = "{folder / name}"\nname = "{name}"\ntwins = 1\n' for name in ("bert", "bart")]
    (folder / "suite.toml").write_text("\n".join(tables))


def _write_tasks(folder: Path) -> None:
    """Write instruction tasks, one file for each task and split."""
    (folder / "tasks").mkdir()
    words = [[random.choice("abcdef") for _ in range(4)] for _ in range(45)]
    splits = {"train": words[:24], "validation": words[24:33], "test": words[33:]}
    for task, answer in TASKS.items():
        for split, chosen in splits.items():
            lines = [{"ask": f"{task} {' '.join(w)}", "reply": " ".join(answer(w))} for w in chosen]
            write_lines(folder / "tasks" / f"{task}_{split}.jsonl", lines)
