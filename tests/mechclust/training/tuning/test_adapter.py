"""An adapter is what peft and Hugging Face's Trainer make of the same settings, and nothing else is touched."""

from __future__ import annotations

import copy
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from mechclust.models.instruction_format import FormattedExample
from mechclust.training.tuning import TuneConfig, lora, tune_adapter, tuned_adapter_at
from mechclust.training.tuning.adapter import tuned_adapter_digest
from mechclust.training.tuning.answer_trainer import AnswerTrainer, trainer_arguments, trainer_precision
from tasks import InputError
from tests.mechclust.training.tuning.small import FAMILIES, MODULES, examples, language_model, settings


def plain_script(
    model: Any, given: Sequence[FormattedExample], config: TuneConfig, folder: Path
) -> dict[str, torch.Tensor]:
    """What a user writes without us: labels of whole sequences, logits of all places."""
    import peft
    from transformers import Trainer, TrainingArguments, set_seed

    def collate(batch: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        longest = max(len(row["input_ids"]) for row in batch)
        filled = {"input_ids": 0, "attention_mask": 0, "labels": -100}
        found = {
            name: torch.tensor([[fill] * (longest - len(row[name])) + row[name] for row in batch])
            for name, fill in filled.items()
        }
        return {**found, "position_ids": (found["attention_mask"].cumsum(1) - 1).clamp(min=0)}

    rows = [
        {
            "input_ids": e.tokens,
            "attention_mask": [1] * len(e.tokens),
            "labels": [-100] * e.start + e.tokens[e.start :],
        }
        for e in given
    ]
    set_seed(config.seed)
    lora = peft.LoraConfig(
        r=config.rank, lora_alpha=config.alpha, lora_dropout=config.dropout, target_modules=list(config.modules)
    )
    wrapped = peft.get_peft_model(copy.deepcopy(model), lora)
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=config.batch_size,
        gradient_accumulation_steps=config.accumulation,
        num_train_epochs=config.epochs,
        max_steps=config.steps or -1,
        learning_rate=config.lr,
        lr_scheduler_type="cosine",
        warmup_steps=config.warmup,
        weight_decay=config.weight_decay,
        max_grad_norm=config.clip,
        seed=config.seed,
        data_seed=config.seed,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
        bf16=config.bf16,
    )
    Trainer(wrapped, arguments, train_dataset=rows, data_collator=collate).train()
    return dict(peft.get_peft_model_state_dict(wrapped))


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("llama", {"epochs": 1.5}),
        ("llama", {"steps": 4, "dropout": 0.2, "warmup": 1, "seed": 5}),
        ("llama", {"weight_decay": 0.1, "clip": 0.01, "accumulation": 3}),
        ("gpt2", {"dropout": 0.1, "epochs": 1}),
        ("gemma3", {"epochs": 1}),
    ],
)
def test_it_is_that_of_a_plain_script(family: str, fields: dict[str, Any], tmp_path: Path) -> None:
    """With the same data, order, dropout and rates: there is no training loop of ours."""
    model, given, config = language_model(family), examples(), settings(modules=MODULES[family], **fields)
    tuned = tune_adapter(model, given, config, tmp_path / "ours", base="b")
    theirs = plain_script(model, given, config, tmp_path / "theirs")
    ours = load_file(tmp_path / "ours" / "adapter_model.safetensors")
    assert ours.keys() == theirs.keys()
    assert len(ours) == 4 * len(config.modules)  # two layers
    for name, weight in ours.items():
        torch.testing.assert_close(weight, theirs[name], atol=2e-5, rtol=1e-4)
        assert "lora_B" not in name or float(weight.abs().max()) > 5e-3  # where it was 0
    assert tuned.steps == config.steps_for(len(given)) == tuned.losses[-1][0] == len(tuned.losses)


def test_bfloat16_products(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They change the numbers a little, and no weight's format. Rounding frozen weights before changes nothing more."""
    model, given = language_model("llama"), examples()
    config = settings(modules=MODULES["llama"], steps=2)
    exact = tune_adapter(model, given, config, tmp_path / "exact", base="b")
    formats = set()
    step = AnswerTrainer.training_step

    def look(self: AnswerTrainer, wrapped: Any, *args: Any) -> Any:
        formats.update(module.weight.dtype for module in wrapped.modules() if type(module) is torch.nn.Linear)
        return step(self, wrapped, *args)

    monkeypatch.setattr(AnswerTrainer, "training_step", look)
    coarse = tune_adapter(model, given, replace(config, bf16=True), tmp_path / "coarse", base="b")
    assert formats == {torch.bfloat16, torch.float32}  # the adapter's are float32
    assert exact.losses != coarse.losses
    for (_, one), (_, other) in zip(exact.losses, coarse.losses, strict=True):
        assert other == pytest.approx(one, rel=0.02)
    theirs = plain_script(model, given, replace(config, bf16=True), tmp_path / "theirs")
    ours = load_file(tmp_path / "coarse" / "adapter_model.safetensors")
    for name, weight in ours.items():
        assert weight.dtype == torch.float32
        torch.testing.assert_close(weight, theirs[name], atol=2e-3, rtol=0)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    monkeypatch.setattr(lora, "_round_frozen_layers", lambda model: None)
    unrounded = tune_adapter(model, given, replace(config, bf16=True), tmp_path / "unrounded", base="b")
    assert unrounded.losses == coarse.losses
    assert tuned_adapter_digest(unrounded.folder) == tuned_adapter_digest(coarse.folder)


@pytest.mark.parametrize(
    ("dtype", "device", "bf16", "expected"),
    [
        (torch.float16, "cuda:0", False, {"bf16": False, "fp16": True}),
        (torch.float16, "cuda:0", True, {"bf16": True, "fp16": False}),
        (torch.bfloat16, "cuda:0", False, {"bf16": False, "fp16": False}),
        (torch.float32, "cuda:0", False, {"bf16": False, "fp16": False}),
        (torch.float16, "cpu", False, {"bf16": False, "fp16": False}),
    ],
)
def test_float16_on_a_gpu_has_its_loss_scaled(dtype, device, bf16, expected) -> None:
    assert trainer_precision(settings(bf16=bf16), torch.device(device), dtype) == expected


def test_the_format_of_the_weights_is_what_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And an adapter beside float16 weights is float32, without which no gradient could be scaled back."""
    asked = []

    def noted(config: Any, device: torch.device, dtype: torch.dtype) -> dict[str, bool]:
        asked.append((device.type, dtype))
        return trainer_precision(config, device, dtype)

    monkeypatch.setattr("mechclust.training.tuning.answer_trainer.trainer_precision", noted)
    config = settings(modules=MODULES["llama"], steps=1)
    tune_adapter(language_model("llama").half(), examples(), config, tmp_path / "a", base="b")
    assert asked == [("cpu", torch.float16)]
    kept = load_file(tmp_path / "a" / "adapter_model.safetensors").values()
    assert {weight.dtype for weight in kept} == {torch.float32}


def test_a_gpu_that_has_no_bfloat16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    monkeypatch.setattr("mechclust.training.tuning.lora.device_of", lambda model: torch.device("cuda:0"))
    with pytest.raises(InputError, match=r"^Tesla T4 cannot multiply in bfloat16; leave out --tuning\.bf16$"):
        tune_adapter(language_model(), examples(), settings(bf16=True), tmp_path / "a", base="b")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_is_that_of_the_answers_tokens_alone(family: str, tmp_path: Path) -> None:
    """At the first step the adapter changes nothing yet; one step takes all examples, in batches of unlike length."""
    own = ("resid_pdrop", "embd_pdrop", "attn_pdrop") if family == "gpt2" else ()
    model, given = language_model(family, **dict.fromkeys(own, 0.0)), examples()
    config = settings(modules=MODULES[family], batch_size=3, accumulation=5, steps=1)
    ((step, loss),) = tune_adapter(model, given, config, tmp_path, base="b").losses
    total, count = 0.0, 0
    for example in given:
        with torch.no_grad():
            logits = model(torch.tensor([example.tokens])).logits[0].double().log_softmax(-1)
        for place in range(example.start, len(example.tokens)):
            total, count = total - float(logits[place - 1, example.tokens[place]]), count + 1
    assert (step, loss) == (1, pytest.approx(total / count, abs=2e-6))


def test_model_and_random_state_stay_as_they_are(tmp_path: Path) -> None:
    model = language_model()
    model.model.embed_tokens.weight.requires_grad_(False)
    model.model.layers[1].eval()
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    needed = {name: weight.requires_grad for name, weight in model.named_parameters()}
    modules = [(name, type(module), module.training) for name, module in model.named_modules()]
    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    tune_adapter(model, examples(), settings(dropout=0.3, steps=2), tmp_path / "a", base="b")
    assert states[0] == random.getstate()
    assert np.array_equal(states[1], np.random.get_state()[1])
    assert torch.equal(states[2], torch.get_rng_state())
    assert needed == {name: weight.requires_grad for name, weight in model.named_parameters()}
    assert {True, False} == set(needed.values())
    assert modules == [(name, type(module), module.training) for name, module in model.named_modules()]
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())

    torch.manual_seed(123)  # and what is drawn does not depend on it
    tune_adapter(model, examples(), settings(dropout=0.3, steps=2), tmp_path / "b", base="b")
    assert tuned_adapter_digest(tmp_path / "a") == tuned_adapter_digest(tmp_path / "b")
    tune_adapter(model, examples(), settings(dropout=0.3, steps=2, seed=1), tmp_path / "c", base="b")
    assert tuned_adapter_digest(tmp_path / "a") != tuned_adapter_digest(tmp_path / "c")


def test_a_model_comes_back_also_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    def fails(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(transformers.Trainer, "training_step", fails)
    model, state = language_model(), random.getstate()
    with pytest.raises(KeyboardInterrupt):
        tune_adapter(model, examples(), settings(), tmp_path, base="b")
    assert all(weight.requires_grad for weight in model.parameters())
    assert random.getstate() == state


def test_what_a_folder_holds(tmp_path: Path) -> None:
    tuned = tune_adapter(language_model(), examples(), settings(steps=1), tmp_path, base="b", source="some/base")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "subject.json",
        "tuning.json",
    ]
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "some/base"
    assert config["target_modules"] == ["q_proj", "v_proj"]
    assert tuned_adapter_at(tmp_path) == tuned
    assert (tuned.folder, tuned.examples) == (tmp_path, 13)
    assert tuned.seconds > 0


def test_peft_runs_it(tmp_path: Path) -> None:
    """And it has learnt something."""
    from mechclust.models.adapters import with_adapter
    from mechclust.training.tuning import score_answers

    model, given = language_model(), examples()
    before = score_answers(model, given).loss.mean()
    config = settings(rank=8, steps=20, lr=2e-2, modules=("q_proj", "v_proj", "o_proj", "down_proj"))
    tuned = tune_adapter(model, given, config, tmp_path, base="b")
    assert tuned.losses[-1][1] < tuned.losses[0][1] - 0.5
    torch.testing.assert_close(score_answers(model, given).loss.mean(), before)
    assert score_answers(with_adapter(model, tmp_path), given).loss.mean() < before - 0.5


def test_a_digest_is_of_names_and_weights(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    weights = {"b": torch.ones(2), "a": torch.zeros(3)}
    found = []
    for i, given in enumerate(
        (weights, dict(reversed(weights.items())), {**weights, "a": torch.ones(3)}, {"b": weights["b"]})
    ):
        (tmp_path / str(i)).mkdir()
        save_file(given, tmp_path / str(i) / "adapter_model.safetensors")
        found.append(tuned_adapter_digest(tmp_path / str(i)))
    assert found[0] == found[1]
    assert len(set(found)) == 3


@pytest.mark.parametrize(("steps", "save_every"), [(1, 1), (80, 7), (300, 50), (4000, 7), (20_000, 50)])
def test_an_interruption_loses_no_more_steps_than_is_said(steps: int, save_every: int, tmp_path: Any) -> None:
    found = trainer_arguments(settings(steps=steps, save_every=save_every), 13, tmp_path, torch.device("cpu"))
    assert 1 <= found.save_steps <= save_every
    assert found.save_steps % found.logging_steps == 0  # a mean loss is not cut


def test_one_gpu_per_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are several, the Trainer would cut batches between them."""
    from transformers import TrainingArguments

    monkeypatch.setattr(TrainingArguments, "n_gpu", property(lambda self: self.__dict__.get("_n_gpu", 0) or 4))
    found = trainer_arguments(settings(), 13, tmp_path, torch.device("cpu"))
    assert found.n_gpu == 1
    assert found.train_batch_size == 2
    assert TrainingArguments(str(tmp_path), use_cpu=True, per_device_train_batch_size=2).train_batch_size == 8


def test_a_resident_base_is_tuned_between_swaps(gpt2: Path, tmp_path: Path) -> None:
    """As a run does: the Hugging Face model below one with hooks, before and after adapters were in it."""
    from mechclust.models import load_pretrained, set_adapter
    from mechclust.models.plain_model import plain_model
    from tasks import InputError

    config = settings(modules=("c_attn",), steps=2)
    given = [
        FormattedExample([1 + token % 21 for token in e.tokens][:12], min(e.start, 5)) for e in examples(longest=7)
    ]
    hooked = load_pretrained(gpt2, attention="sdpa")
    first = tune_adapter(plain_model(hooked), given, config, tmp_path / "a", base="b")
    set_adapter(hooked, first.folder)
    with pytest.raises(InputError) as refused:
        tune_adapter(plain_model(hooked), given, config, tmp_path / "b", base="b", name="control-x")
    assert str(refused.value) == (
        f"the base of control-x has the adapter {str(first.folder)!r} in it; take it out with set_adapter first"
    )
    set_adapter(hooked, None)
    tune_adapter(plain_model(hooked), given, config, tmp_path / "b", base="b")
    assert tuned_adapter_digest(tmp_path / "a") == tuned_adapter_digest(tmp_path / "b")


SCRIPT = """
import sys
from mechclust.training.tuning import tune_adapter
heavy = {"peft", "transformers", "accelerate", "bitsandbytes"} & set(sys.modules)
assert not heavy, heavy
from tests.mechclust.training.tuning.small import examples, language_model, settings
tune_adapter(language_model(), examples(), settings(), sys.argv[1], base="b")
"""


@pytest.mark.slow
def test_nothing_is_printed_and_nothing_heavy_imported_before(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
