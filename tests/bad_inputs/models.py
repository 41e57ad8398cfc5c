"""Damaged checkpoints and adapters, and options that no model can be loaded with.

A case changes one part of a good checkpoint. Its outcome is OK if ``load_pretrained`` refuses it, and says the cause
and the way out of that cause.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

from mechclust.models import load_pretrained
from tasks import InputError
from tests.bad_inputs.outcome import Case, Outcome, Result, of_error

WORDS = {f"w{i}": i for i in range(20)}
SHAPE = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32}
CONFIG = "config.json"
ADAPTER = "adapter_config.json"
WEIGHTS = "model.safetensors"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"

# What a message says of each cause: what is wrong, and the way out.
SAID = {
    "weights": r"its weights are damaged or cut off \(.+\); download them, or save the model, again$",
    "shapes": r"for its config\.json; give the two that were saved together$",
    "config": r"its config\.json (cannot be used \(.+\); .+ or save it, again|has .+ saved with the weights)$",
    "family": r"give a checkpoint of a family that transformers knows",
    "tokenizer": r"its tokenizer \(.+\) cannot be used \(.+\); download it, or save it, again$",
    "adapter config": r"adapter_config.* (cannot be used \(.+\)|is not a JSON object); .*save the adapter,? again$",
    "adapter weights": r"(damaged or cut off|lacks the weights|cannot be merged:) .+; .*save (them|it) again$",
    "other base": r"does not fit this base .*give the base that it was trained for",
    "no base": r"adapter_config\.json names no base; give the base, and the adapter with --adapter$",
    "option": r"(\w+ is|no device) .+; expected ",
    "quantisation": r"quantised weights .+ do not run on the CPU .+; give weights that are not quantised, or a GPU$",
}

SIZES = {"n_embd": 24, "n_positions": 16, "vocab_size": 30, "n_inner": 40, "n_layer": 3}
CONFIGS: tuple[tuple[str, Any], ...] = (
    ("n_embd", "16"), ("n_embd", None), ("n_embd", -16), ("n_embd", 0), ("n_layer", 0), ("n_layer", -1),
    ("n_layer", "2"), ("n_layer", 2.5), ("n_head", 0), ("n_head", -2), ("n_head", 3), ("n_positions", None),
    ("vocab_size", -1), ("vocab_size", "x"), ("activation_function", "nope"), ("activation_function", 5),
    ("layer_norm_epsilon", "x"), ("architectures", 5), ("dtype", "nope"), ("quantization_config", 5),
    ("eos_token_id", "a"), ("rope_scaling", "x"), ("model_type", ["gpt2"]),
)  # fmt: skip
ADAPTERS: tuple[tuple[str, Any], ...] = (
    ("r", 0), ("r", -1), ("r", "2"), ("r", None), ("lora_alpha", None), ("lora_alpha", "x"), ("target_modules", []),
    ("target_modules", 5), ("target_modules", "("), ("peft_type", None), ("peft_type", "nope"), ("task_type", "nope"),
    ("lora_dropout", "x"), ("lora_dropout", 2), ("bias", "nope"), ("bias", 5), ("rank_pattern", 5),
    ("alpha_pattern", "x"), ("layers_to_transform", "x"), ("modules_to_save", 5), ("init_lora_weights", "nope"),
)  # fmt: skip
BASES = (5, ["a"], {}, "", None, True)
TOKENIZERS: tuple[tuple[str, Any], ...] = (
    ("added_tokens", None), ("model", None), ("model", {"type": "nope", "vocab": {}}), ("version", "9.9"),
    ("model", {"type": "WordLevel", "vocab": {}, "unk_token": "w0"}), ("pre_tokenizer", {"type": "nope"}),
    ("model", {"type": "WordLevel", "vocab": [], "unk_token": "w0"}),
)  # fmt: skip
TOKENIZER_CONFIGS: tuple[tuple[str, Any], ...] = (
    ("tokenizer_class", 5), ("pad_token", [1]), ("pad_token", 5), ("model_max_length", "x"),
    ("added_tokens_decoder", {"x": 1}),
)  # fmt: skip
OPTIONS: tuple[tuple[str, Any], ...] = (
    ("dtype", "float8"), ("dtype", "int64"), ("dtype", torch.int64), ("dtype", 5), ("device", "nope"), ("device", 5),
    ("device", []), ("device_map", "nope"), ("device_map", []), ("quantization", 5), ("quantization", {}),
    ("quantization", "3bit"), ("attention", "nope"), ("attention", 5),
)  # fmt: skip
NO_OBJECT = {
    "empty": b"",
    "list": b"[1]",
    "number": b"3",
    "null": b"null",
    "cut": b'{"a',
    "utf-16": "{}".encode("utf-16"),
}


def cases(folder: Path, rng: np.random.Generator) -> Iterator[Case]:
    """Yield all cases.

    Args:
        folder: empty, for the checkpoints.
        rng: draws where files are cut, and which weights are changed.
    """
    torch.manual_seed(0)
    write_models(folder)
    yield from _checkpoint_cases(folder, rng)
    yield from _tokenizer_cases(folder)
    yield from _adapter_cases(folder, rng)
    for name, value in OPTIONS:
        yield Case("option", f"{name}={value!r}", partial(_loaded, "option", folder / "gpt2", **{name: value}))
    yield Case("quantisation", "4bit", partial(_quantised, folder / "gpt2"))


def write_models(folder: Path) -> None:
    """Write a GPT-2, a Llama, and a LoRA adapter of the GPT-2."""
    common = {"vocab_size": len(WORDS), "bos_token_id": 0, "eos_token_id": 0}
    gpt2 = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, n_positions=32, **common)
    llama = transformers.LlamaConfig(**SHAPE, max_position_embeddings=32, **common)
    whole = Tokenizer(models.WordLevel(WORDS, unk_token="w0"))
    whole.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=whole, unk_token="w0", pad_token="w1")
    for name, model in (("gpt2", transformers.GPT2LMHeadModel(gpt2)), ("llama", transformers.LlamaForCausalLM(llama))):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    base = transformers.GPT2LMHeadModel.from_pretrained(folder / "gpt2")
    lora = peft.LoraConfig(r=2, target_modules=["c_fc"], fan_in_fan_out=True, init_lora_weights=False)
    peft.get_peft_model(base, lora).save_pretrained(folder / "adapter")


# ---- what is damaged ----


def _checkpoint_cases(folder: Path, rng: np.random.Generator) -> Iterator[Case]:
    damaged = partial(_damaged, folder, "gpt2")
    for name, value in SIZES.items():
        yield damaged("shapes", f"{CONFIG} {name}={value}", partial(_set_field, CONFIG, name, value))
    for kind, change in (("5x5", _five_by_five), ("missing", _without)):
        yield damaged("shapes", f"a weight {kind}", partial(_change_weights, WEIGHTS, change, rng))
    yield _damaged(folder, "llama", "shapes", "llama hidden_size=24", partial(_set_field, CONFIG, "hidden_size", 24))
    yield damaged("weights", f"{WEIGHTS} cut", partial(_cut, WEIGHTS, rng))
    yield damaged("weights", f"{WEIGHTS} text", partial(_write, WEIGHTS, b"version https://git-lfs.github.com/spec/v1"))
    for name, value in CONFIGS:
        yield damaged("config", f"{CONFIG} {name}={value!r}", partial(_set_field, CONFIG, name, value))
    for kind, data in NO_OBJECT.items():
        yield damaged("config", f"{CONFIG} {kind}", partial(_write, CONFIG, data))
    yield damaged("family", f"{CONFIG} model_type", partial(_set_field, CONFIG, "model_type", "nope"))


def _tokenizer_cases(folder: Path) -> Iterator[Case]:
    for file, fields in ((TOKENIZER, TOKENIZERS), (TOKENIZER_CONFIG, TOKENIZER_CONFIGS)):
        for name, value in fields:
            yield _damaged(
                folder, "gpt2", "tokenizer", f"{file} {name}={value!r}", partial(_set_field, file, name, value)
            )
        for kind, data in NO_OBJECT.items():
            yield _damaged(folder, "gpt2", "tokenizer", f"{file} {kind}", partial(_write, file, data))


def _adapter_cases(folder: Path, rng: np.random.Generator) -> Iterator[Case]:
    damaged = partial(_damaged, folder, "adapter")
    for name, value in ADAPTERS:
        yield damaged("adapter config", f"{ADAPTER} {name}={value!r}", partial(_set_field, ADAPTER, name, value))
    for kind, data in NO_OBJECT.items():
        yield damaged("adapter config", f"{ADAPTER} {kind}", partial(_write, ADAPTER, data))
    for base in BASES:
        change = partial(_set_field, ADAPTER, "base_model_name_or_path", base)
        yield damaged("no base", f"{ADAPTER} base {base!r}", change)
    for kind, change in (("missing", _without), ("NaN", _not_finite)):
        weights = partial(_change_weights, ADAPTER_WEIGHTS, change, rng)
        yield damaged("adapter weights", f"an adapter's weight {kind}", weights)
    yield damaged("adapter weights", f"{ADAPTER_WEIGHTS} cut", partial(_cut, ADAPTER_WEIGHTS, rng))
    yield damaged("other base", "5x5", partial(_change_weights, ADAPTER_WEIGHTS, _five_by_five, rng))
    yield Case("other base", "llama", partial(_loaded, "other base", folder / "llama", adapter=folder / "adapter"))


# ---- how it is damaged ----


def _damaged(folder: Path, source: str, kind: str, name: str, damage: Callable[[Path], None]) -> Case:
    """Return the case of a copy with a damage, which is made when the case runs."""
    return Case(kind, name, partial(_damaged_and_loaded, folder, source, kind, damage))


def _damaged_and_loaded(folder: Path, source: str, kind: str, damage: Callable[[Path], None]) -> Result:
    copy = folder / "damaged"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder / source, copy)
    damage(copy)
    return _loaded(kind, copy)


def _loaded(kind: str, path: Path, **options: Any) -> Result:
    """Load a model that no one should, and judge what is said."""
    try:
        model = load_pretrained(path, **options)
    except InputError as error:
        text = " ".join(str(error).split())
        return Result(Outcome.OK if re.search(SAID[kind], text) else Outcome.UNCLEAR, text)
    except Exception as error:
        return of_error(error, kind)
    return Result(Outcome.SILENT, f"a {type(model).__name__}")


def _quantised(path: Path) -> Result:
    """Load 4-bit weights. Not every processor can multiply them, which loading tries."""
    result = _loaded("quantisation", path, quantization="4bit")
    return Result(Outcome.OK, "they run on this processor") if result.outcome is Outcome.SILENT else result


def _set_field(file: str, name: str, value: Any, folder: Path) -> None:
    fields = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**fields, name: value}))


def _write(file: str, data: bytes, folder: Path) -> None:
    (folder / file).write_bytes(data)


def _cut(file: str, rng: np.random.Generator, folder: Path) -> None:
    data = (folder / file).read_bytes()
    (folder / file).write_bytes(data[: rng.integers(len(data))])


def _change_weights(
    file: str, change: Callable[[Mapping[str, Tensor], str], dict[str, Tensor]], rng: np.random.Generator, folder: Path
) -> None:
    weights = load_file(folder / file)
    matrices = sorted(name for name, weight in weights.items() if weight.ndim == 2)
    changed = change(weights, str(rng.choice(matrices)))
    save_file(changed, folder / file, metadata={"format": "pt"})


def _five_by_five(weights: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    return {**weights, name: torch.zeros(5, 5)}


def _without(weights: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    return {other: weight for other, weight in weights.items() if other != name}


def _not_finite(weights: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    return {**weights, name: torch.full_like(weights[name], torch.nan)}
