from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from probes import TopicAttention, TopicEmbedding, run
from probes.functional import topic_attention
from tasks import Batch
from tests.calibration.topic_attention import CASES, measure
from tests.probes.functional.test_topic_attention import within_loop
from tests.probes.recorded import recorded_patterns
from tests.probes.topic_documents import TASK, TOPICS

HANDED_OUT = 99


def every_word(d_vocab: int, n: int, seed: int = 0) -> Batch:
    """Every word but the four special ones once in each example, in a random order."""
    draw = torch.Generator().manual_seed(seed)
    return Batch(torch.stack([4 + torch.randperm(d_vocab - 4, generator=draw) for _ in range(n)]))


def planted(model: Any, preference: torch.Tensor) -> Any:
    """A one-hot topic transformer that attends from ``q`` to ``k`` in proportion to ``preference[q, k]``."""
    attn, d = model.blocks[0].attn, len(preference)
    with torch.no_grad():
        attn.W_Q.copy_(torch.eye(d) * d**0.5)
        attn.W_K.copy_(preference.log().T)
    return model


# ---- what is measured ----


def test_attention_is_that_of_every_layer_and_head(model: Any, batch: Batch, token_topics: torch.Tensor) -> None:
    assert batch.attention_mask is not None
    assert not bool(batch.attention_mask.all())
    probe = TopicAttention(token_topics, n_permutations=19, seed=4)
    result = run(model, batch.split(5), probe)
    words = torch.where(batch.attention_mask, batch.tokens, -1)
    patterns = recorded_patterns(model, batch)
    found = [topic_attention(patterns[site], words, token_topics) for site in result.coords["site"]]
    assert result["pairs"].tolist() == found[0].pairs.tolist()
    assert result.coords["bucket"] == ["same_word", "same_topic", "different_topic"]
    sums = torch.stack([f.sum for f in found])
    assert sums.shape == (2, 2, 3)
    torch.testing.assert_close(result["sum"], sums, rtol=1e-5, atol=1e-5)
    pooled = result["sum"] / result["pairs"]
    torch.testing.assert_close(result["mean"], pooled)
    torch.testing.assert_close(result["overall_mean"], pooled.mean(dim=(0, 1)))
    mean = torch.stack([f.within_mean for f in found])  # [site head 2]
    torch.testing.assert_close(result["same_topic_within"], mean[..., 0], rtol=1e-5, atol=0)
    torch.testing.assert_close(result["ratio"], mean[..., 0] / mean[..., 1], rtol=1e-5, atol=0)
    overall = mean.mean(dim=(0, 1))
    torch.testing.assert_close(result["overall_ratio"], overall[0] / overall[1], rtol=1e-5, atol=0)  # of means
    assert abs(float(result["overall_ratio"] - result["ratio"].mean())) > 1e-6  # not the mean of ratios
    null, best = [], []
    for groups in probe._known.permuted(19, 4):
        topics = token_topics.clone()
        topics[token_topics >= 0] = groups
        again = np.stack(
            [within_loop(p, words, topics.tolist(), counted=token_topics.tolist()) for p in patterns.values()]
        )
        null.append(again[..., 0].mean() / again[..., 1].mean())
        best.append((again[..., 0] / again[..., 1]).max(axis=1))
    largest = result["ratio"].max(dim=1).values
    torch.testing.assert_close(result["best_ratio"], largest)
    assert result.axes["best_ratio"] == ("site",)
    for end, share in (("low", 0.025), ("high", 0.975)):
        assert result[f"best_ratio_null_{end}"].numpy() == pytest.approx(np.quantile(best, share, axis=0), rel=1e-5)
    above = (np.array(best) >= largest.numpy()).sum(axis=0)
    assert result["best_p_value"].tolist() == pytest.approx(((1 + above) / 20).tolist())
    assert float(result["overall_ratio_null_low"]) == pytest.approx(np.quantile(null, 0.025), rel=1e-6)
    assert float(result["overall_ratio_null_high"]) == pytest.approx(np.quantile(null, 0.975), rel=1e-6)


def test_the_interval_is_that_of_topics_handed_out_anew(topic_model: Any) -> None:
    """Relabelled by hand: same words, same attention, the topics shuffled among the words that have one."""
    model, batch = topic_model(d_vocab=16, init_std=1.0), every_word(16, 3)
    probe = TopicAttention(TOPICS, n_permutations=39, seed=4)
    result, pattern = run(model, batch, probe), recorded_patterns(model, batch)
    null = []
    for groups in probe._known.permuted(39, 4):
        topics = TOPICS.clone()
        topics[4:] = groups
        found = topic_attention(pattern["blocks.0.attn.hook_pattern"], batch.tokens, topics)
        mean = (found.sum / found.pairs)[0]
        null.append(float(mean[1] / mean[2]))
    assert len(set(null)) > 30
    for prefix, index in (("", (0, 0)), ("overall_", ())):
        low, high = (float(result[f"{prefix}ratio_null_{end}"][index]) for end in ("low", "high"))
        assert low == pytest.approx(np.quantile(null, 0.025))
        assert high == pytest.approx(np.quantile(null, 0.975))
        above = sum(n >= float(result[f"{prefix}ratio"][index]) for n in null)
        assert 0 < above < 39
        assert float(result[f"{prefix}p_value"][index]) == pytest.approx((1 + above) / 40)


@pytest.mark.parametrize("times", [3.0, 1.25])
def test_planted_attention_has_its_known_ratio(topic_model: Any, times: float) -> None:
    preference = torch.where(TOPICS[:, None] == TOPICS, times, 1.0) + 4 * torch.eye(16)
    model = planted(topic_model(embedding="one-hot"), preference)
    result = run(model, every_word(16, 5), TopicAttention(TOPICS))
    per_query = times + 4 + 2 * times + 9  # each word once: itself, two of its topic, nine others
    expected = torch.tensor([(times + 4), times, 1.0], dtype=torch.float64) / per_query
    torch.testing.assert_close(result["mean"][0, 0], expected, rtol=1e-6, atol=0)
    assert result["pairs"].tolist() == [60, 120, 540]
    assert float(result["ratio"]) == pytest.approx(times, rel=1e-6)
    assert float(result["p_value"]) == float(result["overall_p_value"]) == 1 / (HANDED_OUT + 1)
    assert float(result["ratio_null_low"]) < 1.05 < times
    assert float(result["ratio_null_high"]) < times
    assert result.notes == []


def test_attention_away_from_the_topic_is_seen_too(topic_model: Any) -> None:
    model = planted(topic_model(embedding="one-hot"), torch.where(TOPICS[:, None] == TOPICS, 0.5, 1.0))
    result = run(model, every_word(16, 2), TopicAttention(TOPICS))
    assert float(result["ratio"]) == pytest.approx(0.5, rel=1e-6)
    assert float(result["p_value"]) == 1
    assert float(result["ratio"]) < float(result["ratio_null_low"])


def test_uniform_attention_has_no_topics(topic_model: Any) -> None:
    result = run(topic_model(attention="uniform"), TASK.text("dev", 12, 5), TopicAttention(TOPICS))
    torch.testing.assert_close(result["mean"], torch.full((1, 1, 3), 0.2, dtype=torch.float64), rtol=1e-6, atol=0)
    assert float(result["ratio"]) == pytest.approx(1, rel=1e-6)


def test_random_attention_lies_within_chance(topic_model: Any) -> None:
    inside, p = 0, []
    for seed in range(40):
        model = topic_model(embedding="one-hot", init_std=4.0, seed=seed)
        result = run(model, every_word(16, 2, seed), TopicAttention(TOPICS))
        inside += bool(result["ratio_null_low"] <= result["ratio"] <= result["ratio_null_high"])
        p.append(float(result["p_value"]))
    assert 34 <= inside <= 40  # 95% each
    assert 0.35 < np.mean(p) < 0.65  # uniform
    assert np.std(p) > 0.2


@pytest.mark.parametrize("case", ["1 topic in 10 words, 4 in 40", "4 topics in 10 words, 1 in 40"])
def test_unequal_documents_with_random_attention_have_no_topics(case: str) -> None:
    """Short documents have more attention per pair, and documents of few topics more pairs of one topic."""
    results = [measure(CASES[case], seed) for seed in range(40)]
    ratios = torch.stack([result["overall_ratio"] for result in results])
    assert float(ratios.mean()) == pytest.approx(1, abs=0.02)
    called = sum(bool(result["overall_p_value"] <= 0.05) for result in results)
    low, high = (torch.stack([r[f"overall_ratio_null_{end}"] for r in results]) for end in ("low", "high"))
    outside = int(((ratios < low) | (ratios > high)).sum())
    assert called <= 6  # of 40 at 5%: more in 1.4% of draws
    assert outside <= 6


def test_documents_of_one_topic_count_in_the_plain_averages_alone(topic_model: Any) -> None:
    batch = Batch(torch.tensor([[4, 5, 7, 8], [4, 5, 6, 4], [4, 7, 10, 13]]))  # of words 4 to 6 in topic 0, and so on
    result = run(topic_model(init_std=0.5), batch, TopicAttention(TOPICS, n_permutations=9))
    alone = run(topic_model(init_std=0.5), Batch(batch.tokens[:1]), TopicAttention(TOPICS, n_permutations=9))
    for name in ("ratio", "ratio_null_low", "ratio_null_high", "p_value", "same_topic_within"):
        torch.testing.assert_close(result[name], alone[name])
    assert result["pairs"].tolist() != alone["pairs"].tolist()
    assert any(note.startswith("2 of 3 documents") for note in result.notes)
    none = run(topic_model(init_std=0.5), Batch(batch.tokens[1:]), TopicAttention(TOPICS, n_permutations=9))
    assert bool(none["ratio"].isnan().all())
    assert bool(none["mean"].isfinite().all())
    assert any(note.startswith("2 of 2 documents") for note in none.notes)


# ---- words, gaps, errors ----


@pytest.mark.parametrize("probe", [TopicAttention, TopicEmbedding])
def test_words_by_label_are_words_by_token(probe: Any, topic_model: Any, documents: Batch) -> None:
    model = topic_model(init_std=0.5)
    by_token = run(model, documents, probe(TOPICS))
    same = Batch(documents.tokens, documents.attention_mask, labels={"word": documents.tokens})
    by_label = run(model, same, probe(TOPICS, words="word"))
    assert all(torch.equal(by_token[k], by_label[k]) for k in by_token.values)
    # another numbering, with fewer rows than the vocabulary: 0-11, and -1 for what has no topic
    rows = (11 - (documents.tokens - 4)).masked_fill(documents.tokens < 4, -1)
    renumbered = Batch(documents.tokens, documents.attention_mask, labels={"row": rows})
    other = run(model, renumbered, probe(TOPICS[4:].flip(0), words="row"))
    for name in ("mean", "pairs", "ratio"):
        torch.testing.assert_close(other[name], by_token[name], rtol=1e-12, atol=0)


@pytest.mark.parametrize("probe", [TopicAttention, TopicEmbedding])
def test_no_token_with_a_topic_is_nan_with_a_note(probe: Any, topic_model: Any) -> None:
    result = run(topic_model(), Batch(torch.tensor([[2, 1, 3], [2, 3, 0]])), probe(TOPICS))
    assert set(result["pairs"].tolist()) == {0}
    for name in ("mean", "ratio", "ratio_null_low", "ratio_null_high", "p_value"):
        assert bool(result[name].isnan().all()), name
    assert "same_topic: no two different words of one topic met, so its mean is NaN" in result.notes
    assert "different_topic: no two words of different topics met, so its mean is NaN" in result.notes
    assert any("no token has a topic" in note for note in result.notes) == (probe is TopicAttention)


def test_relabellings_without_pairs_do_not_count_as_low(topic_model: Any) -> None:
    """Of six topics of two words only three words are seen: most relabellings leave them three topics."""
    topics = torch.cat([torch.full((4,), -1), torch.arange(12) // 2])
    result = run(topic_model(init_std=0.5), Batch(torch.tensor([[4, 5, 6]] * 3)), TopicAttention(topics))
    note = next(note for note in result.notes if "relabellings have no ratio" in note)
    left_out = int(re.match(r"(\d+) of 99 relabellings", note)[1])  # type: ignore[index]
    assert 60 < left_out < 90
    for times in (result["p_value"] * (100 - left_out)).flatten().tolist():  # of those that count
        assert times == pytest.approx(round(times), abs=1e-9)
        assert round(times) >= 1
    assert bool(result["ratio_null_low"].isfinite().all())


# ---- intervals over documents ----


def test_the_interval_is_over_documents(topic_model: Any) -> None:
    """Documents given twice, as two windows, have the interval of documents given once."""
    draw = torch.Generator().manual_seed(0)
    model = topic_model(embedding="one-hot", init_std=2.0)
    once = Batch(torch.randint(4, 16, (24, 8), generator=draw))
    twice = Batch(once.tokens.repeat(2, 1), labels={"document": torch.arange(24).repeat(2)})
    options: dict[str, Any] = {"n_permutations": 0, "n_resamples": 100}
    plain = run(model, once, TopicAttention(TOPICS, **options))
    cut = run(model, twice.split(7), TopicAttention(TOPICS, **options, units="document"))
    assert cut.metadata["n_units"] == plain.metadata["n_units"] >= 20
    for name in ("ratio_low", "ratio_high", "best_ratio_low", "overall_ratio_high", "highest_ratio_low"):
        torch.testing.assert_close(cut[name], plain[name])
    assert bool((plain["ratio_low"] < plain["ratio"]).all())
    assert bool((plain["ratio"] < plain["ratio_high"]).all())
    of_one_topic = torch.tensor([[4, 5] * 4])  # which do not count
    for last, enough in ((once.tokens[7:8], True), (of_one_topic, False)):
        few = run(model, Batch(torch.cat([once.tokens[:7], last])), TopicAttention(TOPICS, **options))
        assert bool(few["ratio_low"].isfinite().all()) == enough
        note = "documents are too few for an interval (8 are enough)"
        assert any(note in text for text in few.notes) != enough
