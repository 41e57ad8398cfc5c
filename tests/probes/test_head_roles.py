"""Roles of heads: against TransformerLens's head detector, sums by hand, all permutations, and planted heads."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor
from transformer_lens import head_detector

from probes import HeadRoles, ProbeResult, attention_pattern, record, residual, run
from probes.engine import attention as attention_module
from probes.engine import role_readout
from probes.engine.fused_attention import FusedAttention
from probes.extend import check_probe
from tasks import Batch, InputError, RepeatedTokens
from tests.probes.planted_roles import LENGTH, N_SYMBOLS, PLANTED, PlantedRoles
from tests.probes.test_attention import LargestTensor

SITES = [f"blocks.{layer}.attn.hook_pattern" for layer in range(2)]
REPEATED = RepeatedTokens(N_SYMBOLS, LENGTH, periods=(8, 16), n_test=16)
DETECTED = {
    "previous": head_detector.get_previous_token_head_detection_pattern,
    "duplicate": head_detector.get_duplicate_token_head_detection_pattern,
    "induction": head_detector.get_induction_head_detection_pattern,
}


def patterns_of(model: Any, tokens: Tensor) -> Tensor:
    """``[batch site head query key]``."""
    with torch.no_grad(), record(model, SITES) as seen:
        model(tokens)
    return torch.stack([seen[site][0] for site in SITES], dim=1)


def role_names(result: ProbeResult) -> list[list[str]]:
    names = result.metadata["categories"]["role"]
    return [[names[place] for place in heads] for heads in result["role"].tolist()]


@pytest.mark.parametrize("exclude_bos", [False, True])
@pytest.mark.parametrize("exclude_current_token", [False, True])
def test_shares_are_those_of_transformer_lens(tiny_model: Any, exclude_bos: bool, exclude_current_token: bool) -> None:
    model, tokens = tiny_model(n_ctx=24, init_std=0.5), torch.randint(9, (6, 24))
    probe = HeadRoles(n_permutations=0, exclude_bos=exclude_bos, exclude_current_token=exclude_current_token)
    result = run(model, tokens, probe)
    for role, detection_pattern in DETECTED.items():
        expected = np.zeros((2, 2))
        for sequence, by_site in zip(tokens, patterns_of(model, tokens), strict=True):
            for site, head in np.ndindex(2, 2):
                expected[site, head] += head_detector.compute_head_attention_similarity_score(
                    by_site[site, head],
                    detection_pattern(sequence[None]),
                    exclude_bos=exclude_bos,
                    exclude_current_token=exclude_current_token,
                    error_measure="mul",
                ) / len(tokens)
        np.testing.assert_allclose(result.sel("share", role=role), expected, rtol=0, atol=1e-6)


def keys_by_hand(tokens: list[int], query: int, role: str) -> list[int]:
    """The keys that count in a role's score, of a query behind the first token."""
    earlier = [key for key in range(query) if tokens[key] == tokens[query]]
    keys = {
        "first": [0],
        "duplicate": earlier,
        "induction": [key + 1 for key in earlier],
        **{str(offset): [query - offset] for offset in range(9)},
    }[role]
    return [key for key in keys if key > 0 or role in ("first", "duplicate") or (key == 0 and role == "0")]


def score_by_hand(pattern: Tensor, tokens: list[int], role: str) -> tuple[float, float]:
    """Mean attention of one head to a role's keys, and its mean if attention is uniform over what a query sees."""
    scores, uniform = [], []
    for query in range(1, len(tokens)):
        keys = keys_by_hand(tokens, query, role)
        if keys:
            scores.append(float(pattern[query, keys].sum()))
            uniform.append(len(keys) / (query + 1))
    return (float(np.mean(scores)), float(np.mean(uniform))) if scores else (np.nan, np.nan)


def test_scores_are_means_over_the_queries_that_have_keys(tiny_model: Any) -> None:
    model, tokens = tiny_model(init_std=0.5), torch.randint(5, (7, 9))
    result = run(model, tokens, HeadRoles(n_permutations=0, max_offset=6))
    patterns = patterns_of(model, tokens).double()
    places = {"first": result["score"][..., 1], "duplicate": result["score"][..., 4]}
    places["induction"] = result["score"][..., 5]
    places |= {str(offset): result["score_by_offset"][..., offset] for offset in range(7)}
    chance = {"first": result["chance"][..., 1]}
    chance |= {str(offset): result["chance_by_offset"][..., offset] for offset in range(7)}
    for role, measured in places.items():
        for site, head in np.ndindex(2, 2):
            of_examples = [
                score_by_hand(pattern[site, head], sequence, role)
                for pattern, sequence in zip(patterns, tokens.tolist(), strict=True)
            ]
            score, uniform = np.nanmean(of_examples, axis=0)
            assert float(measured[site, head]) == pytest.approx(score, abs=1e-6)
            if role in chance:
                assert float(chance[role][site, head]) == pytest.approx(uniform, abs=1e-6)


def test_chance_and_p_value_are_those_of_all_permutations(tiny_model: Any) -> None:
    model, tokens = tiny_model(init_std=0.8), torch.tensor([[1, 2, 1, 3, 2, 1]])
    result = run(model, tokens, HeadRoles(n_permutations=4000))
    (patterns,) = patterns_of(model, tokens).double()
    orders = [list(order) for order in permutations([1, 2, 1, 3, 2, 1])]
    for role in ("duplicate", "induction"):
        for site, head in np.ndindex(2, 2):
            drawn = np.array([score_by_hand(patterns[site, head], order, role)[0] for order in orders])
            observed = float(result.sel("score", role=role)[site, head])
            assert float(result.sel("chance", role=role)[site, head]) == pytest.approx(drawn.mean(), abs=1e-6)
            expected = (drawn >= observed - 1e-9).mean()
            assert float(result.sel("p_value", role=role)[site, head]) == pytest.approx(expected, abs=0.03)
    assert bool(result.sel("p_value", role="previous").isnan().all())
    adjusted = 8 * float(result["p_value"].nan_to_num(nan=1.0).min())
    assert float(result["p_holm"].nan_to_num(nan=1.0).min()) == pytest.approx(min(1.0, adjusted))


def test_distance_is_the_mean_over_queries_that_see_two_keys(tiny_model: Any) -> None:
    model, tokens = tiny_model(init_std=0.5), torch.randint(5, (4, 9))
    result = run(model, tokens, HeadRoles(n_permutations=0))
    apart = np.abs(np.subtract.outer(np.arange(9), np.arange(9)))
    by_query = (patterns_of(model, tokens).numpy() * apart).sum(-1)[..., 1:]
    np.testing.assert_allclose(result["distance"], by_query.mean((0, -1)), rtol=1e-5)
    np.testing.assert_allclose(result["distance_uniform"], np.full((2, 2), np.arange(1, 9).mean() / 2))
    locality = 1 - result["distance"] / result["distance_uniform"]
    np.testing.assert_allclose(result.sel("score", role="local"), locality, rtol=1e-5)


def test_padding_is_neither_query_nor_key(model: Any) -> None:
    tokens, alone = torch.randint(9, (5, 6)), HeadRoles(n_permutations=19)
    expected = run(model, tokens, alone)
    padded = Batch(torch.nn.functional.pad(tokens, (0, 2)), torch.arange(8).expand(5, -1) < 6)
    result = run(model, padded, alone)
    for measure, values in expected.values.items():
        torch.testing.assert_close(result[measure], values, rtol=1e-4, atol=1e-6, equal_nan=True)


def test_a_model_that_looks_ahead_sees_all_keys(tiny_model: Any) -> None:
    result = run(tiny_model(attention="bidirectional"), torch.randint(9, (5, 8)), HeadRoles(n_permutations=0))
    np.testing.assert_allclose(result["chance"][..., :3], np.full((2, 2, 3), 1 / 8))


def test_planted_heads_are_found() -> None:
    planted = np.array([PLANTED] * 4)
    results = [run(PlantedRoles(seed), REPEATED.batches("test"), HeadRoles(n_permutations=0)) for seed in range(4)]
    for role in ("previous", "first", "itself", "offset", "duplicate", "induction"):
        scores = torch.stack([result.sel("score", role=role) for result in results])
        assert roc_auc_score((planted == role).ravel(), scores.numpy().ravel()) >= 0.95
    for seed, result in enumerate(results):
        is_offset = planted[seed] == "offset"
        assert result["best_offset"][is_offset].tolist() == PlantedRoles(seed).offsets[is_offset].tolist()


def test_planted_heads_are_called_and_others_are_not() -> None:
    result = run(PlantedRoles(1), REPEATED.batches("test"), HeadRoles())
    assert role_names(result) == [list(heads) for heads in PLANTED]
    best = result.top_heads("score", 2, role="induction")
    assert {head.name for head in best} == {"L1H0", "L1H1"}
    by_interval = run(PlantedRoles(1), REPEATED.batches("test"), HeadRoles(n_permutations=0))
    assert role_names(by_interval) == role_names(result)


def test_small_random_weights_play_no_role(tiny_model: Any) -> None:
    result = run(tiny_model(init_std=0.02, n_ctx=LENGTH, d_vocab=N_SYMBOLS), REPEATED.batches("test"), HeadRoles())
    assert result["called"].sum() == 0
    assert role_names(result) == [["none"] * 2] * 2


def test_a_long_text_needs_no_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (attention_module, role_readout):
        monkeypatch.setattr(module, "_MAX_NUMBERS_AT_ONCE", 2**19)
    draw = torch.Generator().manual_seed(0)
    q = torch.randn(1, 8, 1024, 16, generator=draw)
    attention = FusedAttention(q, q, is_causal=True, scale=0.25)
    probe = HeadRoles(n_permutations=1)
    with LargestTensor() as largest:
        probe.readout(attention, Batch(torch.randint(500, (1, 1024), generator=draw)))
    assert largest.numbers < 8 * 1024**2 / 4


def test_notes_say_what_is_undefined(model: Any) -> None:
    tokens = torch.stack([torch.randperm(9)[:6] for _ in range(3)])
    result = run(model, tokens, HeadRoles(n_permutations=9))
    assert bool(result["score"][..., 4:6].isnan().all())
    assert bool(result["p_value"].isnan().all())
    assert any(note.startswith("no query has a key of duplicate, induction") for note in result.notes)
    one = run(model, tokens[:1], HeadRoles(n_permutations=0))
    assert one["called"].sum() == 0
    assert "there is one example, so no score has an interval and no role is called" in one.notes
    tokens[1, 4] = tokens[1, 1]  # the only text that repeats a token
    result = run(model, tokens, HeadRoles(n_permutations=9))
    assert bool(result["excess_low"][..., 4:6].isnan().all() & ~result["excess_low"][..., :4].isnan().any())
    assert "one example only has a score of duplicate, induction, so there is no interval and no call" in result.notes


def test_the_plot_is_a_map_of_roles() -> None:
    result = run(PlantedRoles(0), REPEATED.batches("test"), HeadRoles(n_permutations=0))
    axes = result.plot()
    (image,) = axes.images
    assert image.get_array().shape == (2, 8)
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    counts = Counter(name for heads in role_names(result) for name in heads)
    assert labels == [f"{name} ({counts[name]})" for name in result.metadata["categories"]["role"]]
    axes.figure.clear()


def test_the_contract(model: Any, batch: Batch) -> None:
    check_probe(HeadRoles(n_permutations=19), model, batch)
    check_probe(
        HeadRoles(attention_pattern(0), max_offset=3, exclude_bos=True, exclude_current_token=True), model, batch
    )


def test_what_it_refuses(model: Any, batch: Batch) -> None:
    with pytest.raises(InputError, match="max_offset is 1; expected at least 2"):
        HeadRoles(max_offset=1)
    with pytest.raises(InputError, match="n_permutations is -1; expected at least 0"):
        HeadRoles(n_permutations=-1)
    with pytest.raises(InputError, match=re.escape("'hook_embed' is not an attention pattern (attn.hook_pattern)")):
        run(model, batch, HeadRoles(at=residual()))
    with pytest.raises(InputError, match=r"^index is -1; expected at least 0$"):
        run(model, replace(batch, index=torch.arange(len(batch)) - 1), HeadRoles(n_permutations=9))


def test_sites_with_different_numbers_of_heads_are_refused() -> None:
    batch = Batch(torch.zeros(1, 2, dtype=torch.int64))
    probe = HeadRoles(n_permutations=0)
    columns = {str(n): probe.readout(torch.full((1, n, 2, 2), 0.5), batch) for n in (1, 3)}
    with pytest.raises(InputError, match=re.escape("different numbers of heads [1, 3]; measure them with a probe")):
        probe.update(columns, batch)
