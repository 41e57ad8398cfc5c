"""Tiny Hugging Face checkpoints and one smoke run, shared by the tests of mechclust. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.mechclust.browser import at_start, browser, drawn, open_page, opened, trouble_of  # noqa: F401 - fixtures
from tests.mechclust.small_run import leave_figures_out, small_run
from tests.mechclust.trained import (  # noqa: F401 - fixtures
    history_prompts,
    spoilt_series,
    trained_series,
    untrained_gpt2,
)

WORDS = ("<pad>", "<unk>", *(f"w{i}" for i in range(20)))
SHAPE = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32}
BART_SHAPE = {"layers": 2, "attention_heads": 2, "ffn_dim": 32}
COMMON = {"vocab_size": len(WORDS), "initializer_range": 0.1}


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """See ``leave_figures_out``."""
    leave_figures_out(monkeypatch)


def _configuration(family: str) -> tuple[str, dict[str, Any]]:
    return {
        "gpt2": (
            "GPT2",
            {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 16, "bos_token_id": 0, "eos_token_id": 0},
        ),
        "llama": ("Llama", {**SHAPE, "num_key_value_heads": 1, "max_position_embeddings": 16, "eos_token_id": 0}),
        "bert": ("Bert", {**SHAPE, "max_position_embeddings": 16, "pad_token_id": 0}),
        "roberta": ("Roberta", {**SHAPE, "max_position_embeddings": 18, "pad_token_id": 1, "type_vocab_size": 1}),
        "albert": ("Albert", {**SHAPE, "embedding_size": 8, "max_position_embeddings": 16, "pad_token_id": 0}),
        "electra": ("Electra", {**SHAPE, "embedding_size": 8, "max_position_embeddings": 16, "pad_token_id": 0}),
        "bart": (
            "Bart",
            {
                **{f"{side}_{k}": n for side in ("encoder", "decoder") for k, n in BART_SHAPE.items()},
                **{"d_model": 16, "max_position_embeddings": 16, "init_std": 0.1, "scale_embedding": True},
                **{"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 3},
            },
        ),
    }[family]


HEADS = {
    "gpt2": "LMHeadModel",
    "llama": "ForCausalLM",
    "bert": "ForMaskedLM",
    "roberta": "ForMaskedLM",
    "albert": "ForMaskedLM",
    "electra": "ForPreTraining",
    "bart": "ForConditionalGeneration",
}


def checkpoint(
    folder: Path,
    family: str = "gpt2",
    *,
    base: bool = False,
    head: str | None = None,
    seed: int = 7,
    change: Any = None,
    **other: Any,
) -> Path:
    """Writes a new random model of a family, with a word-level tokenizer, as Hugging Face would:
    its body alone (``base``) or with a ``head``, with ``other`` fields in its configuration."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    name, fields = _configuration(family)
    config = getattr(transformers, f"{name}Config")(**{**COMMON, **fields, **other})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, name + ("Model" if base else head or HEADS[family]))(config)
    if change is not None:
        with torch.no_grad():
            change(model)
    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", pad_token="<pad>", model_input_names=["input_ids"]
    )
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def write_checkpoint() -> Callable[..., Path]:
    """See ``checkpoint``."""
    return checkpoint


@pytest.fixture(scope="session")
def encoder_checkpoint(
    write_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """``encoder_checkpoint(family, head)`` writes each once, the body alone without a head; read only."""
    written: dict[tuple[str, str | None], Path] = {}

    def get(family: str, head: str | None = None) -> Path:
        if (family, head) not in written:
            folder = tmp_path_factory.mktemp(family)
            written[family, head] = write_checkpoint(folder, family, base=head is None, head=head)
        return written[family, head]

    return get


@pytest.fixture(scope="session")
def gpt2(write_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 checkpoint; read only."""
    return write_checkpoint(tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="session")
def shallow(write_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 checkpoint of one layer, for tests that compare no layers; read only."""
    return write_checkpoint(tmp_path_factory.mktemp("shallow"), n_layer=1)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What a small run printed, and its folder; read only."""
    out = tmp_path_factory.mktemp("finished") / "run"
    return small_run(out), out


@pytest.fixture(scope="session")
def smoke_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """The smoke preset from beginning to end: its analysis and its folder. Read only."""
    from mechclust.studies import get_study, run_study

    study, out = get_study("task-clusters"), tmp_path_factory.mktemp("smoke") / "run"
    return run_study(study, study.preset("smoke"), out, workers=1), out
