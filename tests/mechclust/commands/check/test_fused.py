"""Attention without patterns is compared with Hugging Face's patterns, and a planted fault fails."""

from __future__ import annotations

import pytest
import torch

from mechclust import check_model, load_pretrained
from mechclust.commands.check.fused import fused_attention_equals
from mechclust.commands.check.inputs import CheckedModel
from mechclust.commands.check.reference import take_reference
from mechclust.commands.check.result import NotTried
from mechclust.models.read_only import ReadOnlyModel
from probes.engine.fused_attention import FusedAttention
from tests.mechclust.models.families import FAMILIES

CAUGHT = ("llama", "mistral", "gemma3", "gpt2", "bert", "roberta", "t5")


def compared(family, dtype=torch.float32, attention="sdpa"):
    model = FAMILIES[family].build().to(dtype)
    reference = take_reference(model, None, 0)
    model.set_attn_implementation(attention)
    return fused_attention_equals(CheckedModel(ReadOnlyModel(model), None, 0), reference)


@pytest.mark.parametrize("family", CAUGHT)
def test_families(family):
    passed, detail = compared(family)
    assert passed, detail
    assert detail.startswith("attention of 3 blocks from queries and keys, without patterns: within ")
    assert detail.endswith("of Hugging Face's eager attention (allowed 2.4e-05 in float32)")


def test_blocks_of_which_hugging_face_gives_no_patterns_are_left_out():
    model = FAMILIES["llama"].build()
    reference = take_reference(model, None, 0)
    for case in reference.cases:
        del case.values.patterns[0]
    model.set_attn_implementation("sdpa")
    passed, detail = fused_attention_equals(CheckedModel(ReadOnlyModel(model), None, 0), reference)
    assert passed, detail
    assert detail.startswith("attention of 2 blocks ")


def test_half_precision():
    passed, detail = compared("llama", torch.bfloat16)
    assert passed, detail
    assert detail.endswith("in bfloat16)")


def test_another_scale_is_noticed(monkeypatch):
    right = FusedAttention.__init__

    def wrong(self, *arguments, scale, **options):
        right(self, *arguments, scale=1.01 * scale, **options)

    monkeypatch.setattr(FusedAttention, "__init__", wrong)
    passed, detail = compared("llama")
    assert not passed
    assert detail.startswith("attention from queries and keys differs from Hugging Face's by up to ")
    assert detail.endswith("(allowed 2.4e-05 in float32); measure with attention='eager'")


def test_what_cannot_be_caught_says_why(tmp_path):
    with pytest.raises(NotTried, match="its attention is eager, so that probes read patterns"):
        compared("llama", attention="eager")
    with pytest.raises(NotTried, match="that is not known"):
        fused_attention_equals(CheckedModel(load_pretrained(FAMILIES["gpt2"].build()), None, 0), "that is not known")
    model = FAMILIES["llama"].build()
    model.set_attn_implementation("sdpa")
    assert check_model(model)["equals, fused attention"].detail == (
        "Hugging Face gives no attention patterns to compare with; a model in memory gives them only if loaded with "
        "attn_implementation='eager'"
    )
    falcon = FAMILIES["falcon"].build()
    reference = take_reference(falcon, None, 0)
    model = load_pretrained(str(FAMILIES["falcon"].write(tmp_path)), attention="sdpa")
    with pytest.raises(NotTried, match="the queries and keys of a FalconModel cannot be caught, because"):
        fused_attention_equals(CheckedModel(model, None, 0), reference)
