"""The probe: its numbers are those of the loop, its interval that of resampled documents, and the contract holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from probes import DistanceMatchedTopicAttention, TopicAttention, run
from probes.extend import check_probe
from tasks import Batch, InputError
from tests.probes.functional.test_distance_matched_topic_attention import by_loop, matched_by_loop
from tests.probes.recorded import recorded_patterns
from tests.probes.topic_documents import TASK, TOPICS


def test_it_is_what_a_loop_over_the_models_attention_finds(model: Any, batch: Batch, token_topics: Any) -> None:
    probe = DistanceMatchedTopicAttention(token_topics, max_distance=4, n_resamples=25, seed=3)
    result = run(model, batch.split(5), probe)
    assert batch.attention_mask is not None
    words = torch.where(batch.attention_mask, batch.tokens, -1)
    patterns = recorded_patterns(model, batch).values()
    found = [by_loop(pattern, words, token_topics.tolist(), 4) for pattern in patterns]
    means = np.stack([matched_by_loop(each, 2) for each in found])  # [site head bucket]
    np.testing.assert_allclose(result["mean"], means, rtol=1e-5)
    np.testing.assert_allclose(result["ratio"], means[..., 0] / means[..., 1], rtol=1e-5)
    overall = means.mean(axis=(0, 1))
    assert float(result["overall_ratio"]) == pytest.approx(overall[0] / overall[1], rel=1e-5)
    for site, bucket, distance in np.ndindex(len(found), 2, 4):
        wanted = (bucket == 0, distance + 1)  # of one topic, so many tokens apart
        pairs = [pair for (_, *where), some in found[site].items() if tuple(where) == wanted for pair in some]
        expected = np.mean(pairs, axis=0) if pairs else np.full(2, np.nan)
        np.testing.assert_allclose(result["by_distance"][site, :, bucket, distance], expected, rtol=1e-5)

    ratios = []
    drawn = [np.random.default_rng([3, int(i)]).poisson(1.0, 25) for i in batch.index]
    for r in range(25):
        copies = [(example, copy) for example, times in enumerate(drawn) for copy in range(int(times[r]))]
        again = []
        for each in found:
            repeated = {
                (place, same, distance): parts
                for (example, same, distance), parts in each.items()
                for place in copies
                if place[0] == example
            }
            again.append(matched_by_loop(repeated, 2))
        mean = np.stack(again).mean(axis=(0, 1))
        ratios.append(mean[0] / mean[1])
    assert len({round(ratio, 9) for ratio in ratios}) > 15
    for end, share in (("low", 0.025), ("high", 0.975)):
        expected = np.nanquantile(ratios, share)
        assert float(result[f"overall_ratio_{end}"]) == pytest.approx(expected, rel=1e-5)


def test_unmatched_is_the_ratio_of_topic_attention(model: Any, batch: Batch, token_topics: torch.Tensor) -> None:
    result, known = run(
        model,
        batch,
        [DistanceMatchedTopicAttention(token_topics, n_resamples=0), TopicAttention(token_topics, n_permutations=0)],
    )
    torch.testing.assert_close(result["ratio_unmatched"], known["ratio"])
    torch.testing.assert_close(result["overall_ratio_unmatched"], known["overall_ratio"])
    assert result["pairs"].sum(dim=1).tolist() == known["pairs"][1:].tolist()
    assert result.coords["bucket"] == known.coords["bucket"][1:]
    assert bool(result["overall_ratio_low"].isnan())
    assert "n_resamples is 0, so there is no interval" in result.notes


def test_uniform_attention_has_no_topics_at_any_distance(topic_model: Any) -> None:
    result = run(topic_model(attention="uniform"), TASK.text("dev", 12, 5), DistanceMatchedTopicAttention(TOPICS))
    assert float(result["overall_ratio"]) == pytest.approx(1, rel=1e-6)
    assert float(result["overall_ratio_low"]) == pytest.approx(1, rel=1e-6)
    assert float(result["overall_ratio_high"]) == pytest.approx(1, rel=1e-6)


def test_windows_of_a_document_are_drawn_together(topic_model: Any, documents: Batch) -> None:
    """With one unit for all, each resampling weighs everything alike: the interval is a point."""
    labels = {"one": torch.zeros(len(documents), dtype=torch.int64), "each": documents.index}
    batch = Batch(documents.tokens, documents.attention_mask, labels=labels)
    model = topic_model(init_std=0.5)
    one, each, plain = (
        run(model, batch, DistanceMatchedTopicAttention(TOPICS, units=units)) for units in ("one", "each", None)
    )
    assert float(one["overall_ratio_low"]) == pytest.approx(float(one["overall_ratio"]), rel=1e-9)
    assert float(one["overall_ratio_high"]) == pytest.approx(float(one["overall_ratio"]), rel=1e-9)
    assert float(each["overall_ratio_low"]) < float(each["overall_ratio"]) < float(each["overall_ratio_high"])
    assert float(each["overall_ratio_low"]) == float(plain["overall_ratio_low"])
    drawn = each["overall_ratio_resampled"]
    assert torch.equal(drawn.nan_to_num(), plain["overall_ratio_resampled"].nan_to_num())
    undefined = int(drawn.isnan().sum())
    assert 0 < undefined < 40
    assert any(note.startswith(f"{undefined} of 199 resamplings") for note in each.notes)
    low, high = torch.nanquantile(drawn, torch.tensor([0.025, 0.975], dtype=drawn.dtype))
    assert (float(low), float(high)) == (float(each["overall_ratio_low"]), float(each["overall_ratio_high"]))


def test_what_is_left_out_is_said(topic_model: Any) -> None:
    batch = Batch(torch.tensor([[4, 5, 8, 4, 9]]))
    near = run(topic_model(), batch, DistanceMatchedTopicAttention(TOPICS, max_distance=2, n_resamples=3))
    # words 4, 5 and 8, 9 at distances 3 and 4, both ways; 4 and 4 are the same word
    assert "4 pairs stand more than 2 tokens apart and are left out" in near.notes
    alone = run(topic_model(), Batch(torch.tensor([[4, 5]])), DistanceMatchedTopicAttention(TOPICS, n_resamples=3))
    assert bool(alone["ratio"].isnan())
    assert "so ratio is NaN" in alone.notes[0]
    assert any("at 256 of 256 distances" in note for note in alone.notes)
    assert any("does not test that the ratio is 1" in note for note in alone.notes)
    assert len(alone.notes) == 3


def test_the_contract(model: Any, batch: Batch, token_topics: torch.Tensor) -> None:
    check_probe(DistanceMatchedTopicAttention(token_topics, max_distance=5, n_resamples=7), model, batch)
    check_probe(DistanceMatchedTopicAttention(token_topics, n_resamples=7), model, batch)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_distance": 0}, "max_distance is 0; expected at least 1"),
        ({"n_resamples": -1}, "n_resamples is -1; expected at least 0"),
        ({"n_resamples": 1}, "n_resamples is 1, but one resampling has no variance; give 199, or 0 for no interval"),
        ({"seed": -1}, "seed is -1; expected at least 0"),
        ({"topics": TOPICS * 0}, "topics has 1 topic; expected at least 2"),
    ],
)
def test_refusals(arguments: dict, message: str) -> None:
    with pytest.raises(InputError) as error:
        DistanceMatchedTopicAttention(**{"topics": TOPICS, **arguments})
    assert str(error.value) == message


def test_units_are_numbers_from_0_on(topic_model: Any) -> None:
    batch = Batch(torch.tensor([[4, 5, 8]]), labels={"document": torch.tensor([-1])})
    with pytest.raises(InputError, match=r"^document is -1; expected at least 0$"):
        run(topic_model(), batch, DistanceMatchedTopicAttention(TOPICS, units="document"))
