"""ClusteringHead as an object: the contract, what it refuses, how it is shown."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from mechclust.models import build_model
from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
from probes import (
    ClusteringHead,
    all_tokens,
    attention_pattern,
    head_output,
    mean,
    residual,
    run,
    token_at,
)
from probes.extend import check_probe
from tasks import Batch, InputError, SparseModularAddition
from tests.probes.planted_heads import TASK, Z, ideal_head

BOTH = [head_output(), attention_pattern()]


@pytest.fixture(scope="module")
def sequences() -> Batch:
    return next(TASK.batches("test", 20))


# ---- the contract ----


@pytest.mark.parametrize(
    "probe",
    [
        ClusteringHead("sum", TASK.positions, 2, at=BOTH),
        ClusteringHead(("multiset", "answer"), (0, 3)),
        ClusteringHead(["sum"], [4, 2], modulus=2, max_rows=12, at=[Z, "blocks.0.attn.hook_pattern"]),
    ],
    ids=repr,
)
def test_the_contract_on_the_pooling_transformer(probe: ClusteringHead, sequences: Batch) -> None:
    check_probe(probe, build_model(PoolingTransformerConfig(seed=1)), sequences)


@pytest.mark.parametrize(
    "probe",
    [
        ClusteringHead("task", at=BOTH),
        ClusteringHead(("output", "task"), at=[head_output(1), attention_pattern(1)], query=token_at("input")),
        ClusteringHead("task", max_rows=7),
        ClusteringHead(("task", "output"), permutations=9),
    ],
    ids=repr,
)
def test_the_contract_on_padded_batches(probe: ClusteringHead, model: Any, batch: Batch) -> None:
    check_probe(probe, model, batch)


def test_two_processes_agree_with_one(forked: None, sequences: Batch) -> None:
    model = build_model(PoolingTransformerConfig(d_model=4, n_heads=2))
    check_probe(ClusteringHead("sum", TASK.positions, 2, at=BOTH), model, sequences, processes=True)


# ---- refusals ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"equivalence": None}, "equivalence is None; expected a label name, several different ones, or () for none"),
        ({"equivalence": ""}, "equivalence is ''; expected a label name, several different ones, or () for none"),
        (
            {"equivalence": ("a", "a")},
            "equivalence is ('a', 'a'); expected a label name, several different ones, or () for none",
        ),
        ({"modulus": 1, "support": (0,)}, "modulus is 1; expected at least 2"),
        (
            {"modulus": 2},
            "modulus is 2, but support is None; give the positions whose digits are added, or modulus=None",
        ),
        ({"support": 5}, "support is 5; expected different positions such as (0, 1, 2)"),
        ({"support": ()}, "support is empty; expected different positions such as (0, 1, 2)"),
        ({"support": (3, 3)}, "support has a position twice; expected different positions such as (0, 1, 2)"),
        ({"support": (-1,)}, "support has position -1; expected positions from 0 up"),
        ({"query": mean()}, "query is mean(); expected one position per example: last_token() or token_at(...)"),
        ({"query": all_tokens()}, "readout all_tokens() keeps every position; choose last_token()"),
        ({"max_rows": 1}, "max_rows is 1; expected at least 2, or None for no limit"),
        ({"permutations": -1}, "permutations is -1; expected at least 0"),
    ],
)
def test_parameters_that_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        ClusteringHead(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"support": (0, 12)}, "support has position 12; expected positions from 0 to 11, the sequence's last"),
        (
            {"equivalence": "class"},
            "no label 'class' in this batch (it has 'answer', 'sum', 'multiset', 'token', 'one')",
        ),
        ({"equivalence": ("sum", "token")}, "label 'token' is per token; give a label with one value per example"),
        ({"equivalence": "one"}, "label 'one' has one class only; clusters need examples of at least 2 classes"),
        ({"query": token_at("input")}, "no position 'input' in this batch (it has no named positions)"),
        ({"at": residual()}, "'hook_embed' is not a head output (attn.hook_z); give at=head_output()"),
        ({"at": attention_pattern()}, "'blocks.0.attn.hook_pattern' is not a head output (attn.hook_z); give"),
        ({"at": [head_output(), "blocks.0.attn.hook_v"]}, "'blocks.0.attn.hook_v' is not a head output (attn.hook_z)"),
    ],
)
def test_batches_and_sites_that_are_refused(arguments: dict[str, Any], message: str, sequences: Batch) -> None:
    more = {"token": sequences.tokens, "one": sequences.index * 0}
    batch = Batch(sequences.tokens, labels={**sequences.labels, **more})
    with pytest.raises(InputError, match=re.escape(message)):
        run(build_model(PoolingTransformerConfig()), batch, ClusteringHead(**{"equivalence": "sum", **arguments}))


def test_tokens_that_are_no_digits_are_refused() -> None:
    task = SparseModularAddition(p=3)
    message = "the batch has a token 2, but modulus is 2; expected digits 0 to 1: give the number of digits"
    with pytest.raises(InputError, match=message):
        run(build_model(PoolingTransformerConfig()), task.batches("test"), ClusteringHead("sum", task.positions, 2))


def test_a_support_needs_one_length(model: Any, batch: Batch) -> None:
    message = re.escape(
        "support was given, but the sequences have different lengths, where a position means different things; "
        "give sequences of one length without padding, or support=None"
    )
    with pytest.raises(InputError, match=message):
        run(model, batch, ClusteringHead("task", support=(0, 1)))
    long, short = (SparseModularAddition(length=n, n_support=2, n_test=20) for n in (8, 6))
    batches = [*long.batches("test"), *(replace(b, index=b.index + 20) for b in short.batches("test"))]
    with pytest.raises(InputError, match=message):
        run(model, batches, ClusteringHead("sum", support=(0, 1)))
    parts = [ClusteringHead("sum", (0, 1), 2) for _ in batches]
    for part, one in zip(parts, batches, strict=True):
        run(model, one, part)
    with pytest.raises(InputError, match=r"^cannot merge ClusteringHead states of other sizes; .* of one length$"):
        parts[0].merge(parts[1])
    without_digits = [ClusteringHead("sum", (0, 1)) for _ in batches]  # which keep no tokens
    for part, one in zip(without_digits, batches, strict=True):
        run(model, one, part)
    without_digits[0].merge(without_digits[1])
    with pytest.raises(InputError, match="merged states hold sequences of 6 and of 8 tokens, where a position"):
        without_digits[0].compute()


def test_a_model_without_head_outputs_is_refused(fake_model: Any, batch: Batch) -> None:
    message = (
        "a FakeModel has no head outputs (no hook point ends in attn.hook_z), so no clustering head can be found "
        "in it; give a model built by mechclust.build_model or TransformerLens"
    )
    with pytest.raises(InputError, match=re.escape(message)):
        run(fake_model(torch.zeros(30, 2), torch.zeros(30, 2)), batch, ClusteringHead("task"))
    with pytest.raises(InputError, match="a Linear has no hook_dict, so nothing can be measured in it"):
        run(torch.nn.Linear(1, 1), batch, ClusteringHead("task"))


def test_what_was_not_kept_is_said(sequences: Batch) -> None:
    probe = ClusteringHead("sum")
    with pytest.raises(InputError, match=r"no head outputs of 'blocks.0.attn.hook_z' were kept"):
        probe.head_outputs(Z)
    run(ideal_head(1), sequences, probe)
    with pytest.raises(
        InputError, match=r"no head outputs of 'z' were kept \(of blocks.0.attn.hook_z\); run the probe"
    ):
        probe.head_outputs("z")
    with pytest.raises(InputError, match="this ClusteringHead has no modulus, so no integer sums; give it support and"):
        probe.partition(Z, 0)


def test_sites_with_other_numbers_of_heads_need_a_probe_each(model: Any, batch: Batch) -> None:
    probe = ClusteringHead("task")
    run(model, batch, probe)
    state = probe.state_dict()
    state["tensors"]["points/blocks.1.attn.hook_z/rows"] = state["tensors"]["points/blocks.1.attn.hook_z/rows"][:, :1]
    probe.load_state_dict(state)
    with pytest.raises(
        InputError, match=r"the sites have different numbers of heads .*; measure each with its own probe"
    ):
        probe.compute()


# ---- the probe as an object ----


def test_one_label_or_several() -> None:
    assert ClusteringHead().labels == ClusteringHead(["multiset"]).labels == ["multiset"]
