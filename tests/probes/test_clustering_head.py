"""The detector finds the ideal head, integer weights, and nothing where nothing is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from mechclust.models import build_model
from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
from probes import ClusteringHead, last_token, run, token_at
from probes.clustering_head import HEAD_VERDICTS
from probes.functional import integer_weights, nearest_centroid_accuracy, within_ratio
from tasks import Batch, InputError, SparseModularAddition
from tests.probes.planted_heads import TASK, Z, everything, ideal_head
from tests.probes.recorded import recorded, recorded_patterns

PROBE = ClusteringHead(("multiset", "sum", "answer"), support=TASK.positions, modulus=2)


def shown(value: torch.Tensor, like: str) -> str:
    """``value`` with as many digits as a published number."""
    mantissa, _, power = like.partition("e")
    digits = len(mantissa.partition(".")[2])
    if not power:
        return f"{float(value):.{digits}f}".removeprefix("0")
    return f"{float(value):.{digits}e}".replace("e-0", "e-")


@pytest.mark.parametrize(
    ("beta", "mass", "ratio", "nearest", "verdict"),
    [
        (0, ".417", ".58", None, 0),
        (1, ".746", ".076", ".88", 0),
        (2, ".924", "4.9e-3", "1.00", 2),
        (4, ".995", "1.7e-5", "1.00", 2),
        (8, "1.000", "2e-10", "1.00", 2),
    ],
)
def test_the_ideal_head_has_its_published_numbers(
    beta: float, mass: str, ratio: str, nearest: str | None, verdict: int
) -> None:
    """All sequences. At beta 0 every example lies half-way between two centroids: rounding decides (published: .34)."""
    result = run(ideal_head(beta), TASK.batches("all", 1000), PROBE)
    assert shown(result["support_mass"], mass) == mass
    for label in ("multiset", "sum"):
        assert shown(result.sel("within_ratio", equivalence=label), ratio) == ratio
        accuracy = float(result.sel("nearest_centroid", equivalence=label))
        # one of the two centroids is the own one for 70/128 of the examples, and at the two ends no tie is
        assert (
            2 / 32 * 29 / 128 < accuracy < 0.57
            if nearest is None
            else shown(torch.tensor(accuracy), nearest) == nearest
        )
    assert result.metadata["verdicts"][int(result["verdict"])] == HEAD_VERDICTS[verdict]
    assert int(result["integer_head"]) == (verdict == 2)
    assert result["clusters"].tolist() == [6, 6, 2]
    assert float(result.sel("within_ratio", equivalence="answer")) == pytest.approx(1)
    assert float(result["rank_one"]) == pytest.approx(1)
    scores = beta / 2**0.5 * torch.tensor([1.0] * 5 + [-1.0] * 7, dtype=torch.float64)
    pattern = scores.softmax(0)
    assert float(result["entropy"]) == pytest.approx(float(-(pattern * pattern.log()).sum()), rel=1e-5)
    expected = (pattern / pattern[0])[:, None]
    torch.testing.assert_close(result["integer_weights"][0, 0], expected, rtol=1e-4, atol=1e-6)
    assert int(result["integer_match"]) == (beta > 0)
    assert float(result["integer_deviation"]) == pytest.approx(
        float((expected - expected.round()).abs().max()), abs=1e-5
    )
    assert float(result["variance"]) == pytest.approx(float(pattern.square().sum()), rel=1e-4)  # digits are +-1


class Planted(torch.nn.Module):
    """Speaks the hook protocol; one head's output is ``u sum_t w_t x_t`` and noise, the other's noise."""

    def __init__(self, weights: torch.Tensor, noise: float = 0.0) -> None:
        super().__init__()
        self.weights, self.noise = weights, noise
        self.hook_dict = {Z: torch.nn.Identity()}
        self.point = self.hook_dict[Z]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        along = torch.stack([F.pad(row, (1, 0))[x] for row, x in zip(self.weights, tokens.T, strict=True)]).sum(dim=0)
        draw = torch.Generator().manual_seed(len(tokens))
        heads = torch.randn(len(tokens), 1, 2, 3, generator=draw)
        heads[:, 0, 0] = along[:, None] * torch.tensor([0.3, -0.1, 0.2]) + self.noise * heads[:, 0, 0]
        return self.point(heads)

    def hooks(self, fwd_hooks: Any) -> Any:
        from contextlib import contextmanager

        @contextmanager
        def added() -> Any:
            handles = [self.point.register_forward_hook(lambda m, _, out, f=f: f(out, hook=m)) for _, f in fwd_hooks]
            yield
            for handle in handles:
                handle.remove()

        return added()


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_an_integer_weight_head_need_not_be_textbook(noise: float) -> None:
    weights = torch.tensor([1, -1, 3, 1, -3, 2, 0, 0, -2, 0, 2, 0.0])[:, None]
    probe = ClusteringHead("multiset", support=TASK.positions, modulus=2)
    result = run(Planted(weights, noise), everything(), probe)
    assert result["verdict"].tolist() == [[1, 0]]
    assert result["integer_head"].tolist() == result["integer_match"].tolist() == [[1, 0]]
    assert result["integer_weights"][0, 0].round().tolist() == weights.tolist()
    assert float(result["integer_accuracy"][0, 0]) > 0.95 > float(result["integer_accuracy"][0, 1])
    assert float(result["within_ratio"][0, 0]) > 0.5
    assert result.notes == [
        f"{Z}: no attention pattern was measured, so support_mass and entropy are NaN",
        *([] if noise else [f"{Z} head 0: its fitted points lie on a line, so planar measures are NaN"]),
    ]
    assert int(result["planar_match"][0, 1]) == 0  # noise
    assert "planar_p_value" not in result
    index, classes = probe.partition(Z, 0)
    assert index.tolist() == list(range(4096))
    assert classes.tolist() == (everything().tokens @ weights[:, 0].long()).tolist()
    parity = torch.tensor([1 - int(c) % 2 for c in classes])
    assert torch.equal(1 - parity, everything().labels["answer"])  # the sum's parity is the answer


def test_an_odd_weight_off_the_support_is_no_head() -> None:
    weights = torch.tensor([1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0.0])[:, None]
    result = run(Planted(weights), everything(), ClusteringHead("sum", support=TASK.positions, modulus=2))
    assert result["verdict"].tolist() == [[0, 0]]
    assert float(result["integer_deviation"][0, 0]) < 1e-5
    assert float(result["integer_accuracy"][0, 0]) == 1


def test_weights_too_far_from_integers_are_no_head() -> None:
    """One weight of 0.4: it rounds to an even number and the clusters stay apart, but it is no integer."""
    weights = torch.tensor([1, 1, 1, 1, 1, 0.4, 0, 0, 0, 0, 0, 0])[:, None]
    result = run(Planted(weights), everything(), ClusteringHead("answer", support=TASK.positions, modulus=2))
    assert float(result["integer_deviation"][0, 0]) == pytest.approx(0.4, abs=1e-5)
    assert float(result["integer_accuracy"][0, 0]) == int(result["integer_match"][0, 0]) == 1
    assert result["verdict"].tolist() == result["integer_head"].tolist() == [[0, 0]]


def test_three_digits() -> None:
    task = SparseModularAddition(p=3, length=6, n_support=3)
    weights = torch.tensor([[1, 2], [1, -1], [-2, 2], [3, 0], [0, 3], [0, -3.0]])
    batches = list(task.batches("all", 1000))
    probe = ClusteringHead("answer", support=task.positions, modulus=3)
    result = run(Planted(weights), Batch.concat(batches), probe)
    assert result["verdict"].tolist() == [[1, 0]]
    assert result.coords["digit"] == ["1", "2"]
    assert result["integer_weights"][0, 0].round().tolist() == weights.tolist()
    assert torch.equal(probe.partition(Z, 0)[1] % 3, Batch.concat(batches).labels["answer"])


# ---- nothing planted ----


def test_untrained_networks_have_no_clustering_head() -> None:
    for seed in range(10):
        result = run(build_model(PoolingTransformerConfig(seed=seed)), everything(), PROBE)
        assert result["verdict"].tolist() == [[0]], seed
        assert result["integer_head"].tolist() == [[0]], seed


def test_shuffled_labels_are_near_chance() -> None:
    """In the ideal head, 6 labels of the true sizes; the ratio's mean is known, the accuracy is that of guessing."""
    batch, ratios = everything(), []
    for seed in range(10):
        order = torch.randperm(4096, generator=torch.Generator().manual_seed(seed))
        shuffled = Batch(batch.tokens, labels={"sum": batch.labels["sum"][order]})
        result = run(ideal_head(8), shuffled, ClusteringHead("sum"))
        ratios.append(float(result["within_ratio"]))
        assert float(result["nearest_centroid"]) < 0.3
        assert result["verdict"].tolist() == [[0]]
    chance = float(result["within_ratio_chance"])
    assert chance == (4096 - 6) / 4095
    assert sum(ratios) / 10 == pytest.approx(chance, abs=1e-3)


def test_examples_alone_in_their_class_are_no_evidence() -> None:
    batch = everything().select(torch.arange(0, 4096, 100))
    alone = Batch(batch.tokens, labels={"own": torch.arange(41)})
    result = run(Planted(2.0 ** torch.arange(12)[:, None]), alone, ClusteringHead("own"))
    assert result["within_ratio"].tolist() == [[[0], [0]]]
    assert result["nearest_centroid"].tolist() == [[[1], [1]]]
    assert float(result["within_ratio_chance"]) == 0
    assert result["verdict"].tolist() == [[0, 0]]
    assert "'own': most examples are alone in their class" in " ".join(result.notes)


def test_a_constant_output_is_nan_with_a_note() -> None:
    model = ideal_head(2)
    with torch.no_grad():
        model.blocks[0].attn.W_V.zero_()
    result = run(model, everything(), PROBE)
    for name in ("within_ratio", "nearest_centroid", "integer_deviation", "rank_one", "integer_accuracy"):
        assert bool(result[name].isnan().all()), name
    assert float(result["variance"]) == 0
    assert result["verdict"].tolist() == [[0]]
    assert result.notes == [f"{Z} head 0: all examples give one output, so its measures are NaN"]


def test_too_few_examples_for_the_weights_are_nan_with_a_note() -> None:
    probe = ClusteringHead("sum", TASK.positions, 2)
    result = run(ideal_head(2), everything().select(torch.arange(0, 4096, 512)), probe)
    assert bool(result["integer_weights"].isnan().all())
    assert result.notes[-1].startswith(f"{Z} head 0: no integer weights, as the examples do not determine all of them")
    with pytest.raises(InputError, match=f"the integer weights of head 0 at '{Z}' are undefined"):
        probe.partition(Z, 0)


# ---- any model ----


@pytest.mark.parametrize(("query", "position"), [(last_token(), None), (token_at("input"), "input")])
def test_a_transformer_with_padding_is_measured_at_the_query(
    model: Any, batch: Batch, query: Any, position: str | None
) -> None:
    names = [f"blocks.{layer}.attn.hook_{what}" for layer in range(2) for what in ("z", "pattern")]
    kept = recorded(model, batch, names)
    result = run(model, batch.split(5), ClusteringHead(("task", "output"), query=query))
    where = batch.last_positions() if position is None else batch.position(position)
    assert result.coords["site"] == names[::2]
    assert list(result.layers.items()) == [(names[0], 0), (names[2], 1)]
    assert result["within_ratio"].shape == (2, 2, 2)
    for layer in range(2):
        for head in range(2):
            z = torch.stack([row[where[i], head] for i, row in enumerate(kept[names[2 * layer]])])
            pattern = [row[head, where[i]].double() for i, row in enumerate(kept[names[2 * layer + 1]])]
            entropy = sum(float(-(p * p.log())[p > 0].sum()) for p in pattern) / len(pattern)
            assert float(result["entropy"][layer, head]) == pytest.approx(entropy, rel=1e-5)
            for k, label in enumerate(("task", "output")):
                ratio, nearest = (f(z, batch.labels[label]) for f in (within_ratio, nearest_centroid_accuracy))
                assert float(result["within_ratio"][layer, head, k]) == pytest.approx(float(ratio), rel=1e-5)
                assert float(result["nearest_centroid"][layer, head, k]) == float(nearest)
    assert result["support_mass"].isnan().all()
    assert result["integer_weights"].shape == (2, 2, 0, 0)
    assert int(result["integer_match"].sum()) == int(result["planar_match"].sum()) == 0


def test_digits_in_a_multi_head_transformer(tiny_model: Any) -> None:
    """Support mass and integer weights at the last token of a causal model, against the pure function."""
    model, task = tiny_model(), SparseModularAddition(length=6, n_support=2, n_test=300)
    batch, probe = Batch.concat(list(task.batches("test"))), ClusteringHead("sum", (0, 3), 2)
    result = run(model, batch.split(128), probe)
    pattern = recorded_patterns(model, batch)["blocks.1.attn.hook_pattern"]
    mass = pattern[:, :, -1][..., [0, 3]].sum(-1).double().mean(0)
    torch.testing.assert_close(result["support_mass"][1], mass, rtol=1e-5, atol=0)
    index, points = probe.head_outputs("blocks.1.attn.hook_z")
    assert index.tolist() == list(range(300))
    fit = integer_weights(points[:, 1], batch.tokens, (0, 3), 2)
    assert torch.equal(result["integer_weights"][1, 1], fit.weights)
    assert torch.equal(probe.integer_fit("blocks.1.attn.hook_z", 1).classes, fit.classes)


def test_max_rows_keeps_the_same_examples_everywhere() -> None:
    probe = ClusteringHead("sum", TASK.positions, 2, max_rows=500)
    result = run(ideal_head(8), TASK.batches("all", 256), probe)
    assert result.metadata["n"] == 500
    assert result["verdict"].tolist() == [[2]]
    index, classes = probe.partition(Z, 0)
    assert torch.equal(classes, everything().labels["sum"][index])
