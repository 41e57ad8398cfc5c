from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from probes import TopicAttention, TopicEmbedding, residual, run
from probes.functional import topic_attention, topic_similarity
from tasks import Batch, InstructionFollowing
from tests.probes.topic_documents import TASK, TOPICS

HANDED_OUT = 99


@pytest.fixture(scope="module")
def token_topics(task: InstructionFollowing) -> torch.Tensor:
    """Three topics for the tokens of the instruction task, padding's too, and none for every fourth."""
    return (torch.arange(task.d_vocab) + 1) % 4 - 1


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


def patterns_of(model: Any, batch: Batch) -> dict[str, torch.Tensor]:
    kept: dict[str, torch.Tensor] = {}
    names = [f"blocks.{i}.attn.hook_pattern" for i in range(model.cfg.n_layers)]
    hooks = [(name, lambda x, hook, name=name: kept.update({name: x.clone()})) for name in names]
    with torch.no_grad(), model.hooks(fwd_hooks=hooks):
        model(batch.tokens, attention_mask=batch.attention_mask.long())  # type: ignore[union-attr]
    return kept


def test_attention_is_that_of_every_layer_and_head(model: Any, batch: Batch, token_topics: torch.Tensor) -> None:
    assert batch.attention_mask is not None
    assert not bool(batch.attention_mask.all())
    probe = TopicAttention(token_topics, n_permutations=19, seed=4)
    result = run(model, batch.split(5), probe)
    words = torch.where(batch.attention_mask, batch.tokens, -1)
    patterns = patterns_of(model, batch)
    found = [topic_attention(patterns[site], words, token_topics) for site in result.coords["site"]]
    assert result["pairs"].tolist() == found[0].pairs.tolist()
    assert result.coords["bucket"] == ["same_word", "same_topic", "different_topic"]
    sums = torch.stack([f.sum for f in found])
    assert sums.shape == (2, 2, 3)
    torch.testing.assert_close(result["sum"], sums, rtol=1e-5, atol=1e-5)
    mean = result["sum"] / result["pairs"]
    torch.testing.assert_close(result["mean"], mean)
    torch.testing.assert_close(result["ratio"], mean[..., 1] / mean[..., 2])
    torch.testing.assert_close(result["overall_mean"], mean.mean(dim=(0, 1)))
    torch.testing.assert_close(result["overall_ratio"], mean[..., 1].mean() / mean[..., 2].mean())  # a ratio of means
    assert abs(float(result["overall_ratio"] - result["ratio"].mean())) > 1e-6  # not the mean of ratios
    null = []
    for groups in probe._known.permuted(19, 4):
        topics = token_topics.clone()
        topics[token_topics >= 0] = groups
        again = torch.stack([f.sum / f.pairs for f in (topic_attention(p, words, topics) for p in patterns.values())])
        null.append(float(again[..., 1].mean() / again[..., 2].mean()))
    assert float(result["overall_ratio_null_low"]) == pytest.approx(np.quantile(null, 0.025), rel=1e-6)
    assert float(result["overall_ratio_null_high"]) == pytest.approx(np.quantile(null, 0.975), rel=1e-6)


def test_the_interval_is_that_of_topics_handed_out_anew(topic_model: Any) -> None:
    """Relabelled by hand: same words, same attention, the topics shuffled among the words that have one."""
    model, batch = topic_model(d_vocab=16, init_std=1.0), every_word(16, 3)
    probe = TopicAttention(TOPICS, n_permutations=39, seed=4)
    result, pattern = run(model, batch, probe), patterns_of(model, Batch(batch.tokens, batch.tokens >= 0))
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
        assert (low, high) == (pytest.approx(np.quantile(null, 0.025)), pytest.approx(np.quantile(null, 0.975)))
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


def vectors(seed: int, common: float = 1.0, topic: float = 0.0, noise: float = 0.0, n: int = 16) -> torch.Tensor:
    """``[n 1+n+n]``: a direction common to all words, one a topic, one a word, and noise."""
    blocks = [common * torch.ones(n, 1), topic * (TOPICS[:n, None] == torch.arange(n)).float(), torch.eye(n)]
    x = torch.cat(blocks, dim=1)
    return x + noise * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))


def test_planted_vectors_have_their_known_ratio(fake_model: Any, documents: Batch) -> None:
    states = vectors(0, topic=1.0), vectors(1, common=2.0)
    result = run(fake_model(*states), documents.split(5), TopicEmbedding(TOPICS, at=residual()))
    expected = [[[2 / 3, 1 / 3], [2.0, 1.0]], [[0.8, 0.8], [4.0, 4.0]]]
    np.testing.assert_allclose(result["mean"], expected, rtol=1e-6)
    np.testing.assert_allclose(result["ratio"], [[2.0, 2.0], [1.0, 1.0]], rtol=1e-6)
    np.testing.assert_allclose(result["difference"], [[1 / 3, 1.0], [0.0, 0.0]], atol=1e-6)
    assert result["p_value"][0].tolist() == result["difference_p_value"][0].tolist() == [1 / 100] * 2
    assert result.axes["mean"] == ("site", "similarity", "bucket")
    assert result.coords["similarity"] == ["cosine", "dot"]
    assert result.coords["bucket"] == ["same_topic", "different_topic"]
    assert result["pairs"].tolist() == [24, 108]
    assert result.metadata["n_words"] == 12
    with_self = run(fake_model(states[0]), documents, TopicEmbedding(TOPICS, self_pairs=True))
    assert with_self["pairs"].tolist() == [36, 108]
    np.testing.assert_allclose(with_self["mean"][0, :, 0], [(2 * 2 / 3 + 1) / 3, (2 * 2 + 3) / 3], rtol=1e-6)


def test_random_vectors_lie_within_chance(fake_model: Any, documents: Batch) -> None:
    states = [vectors(seed, common=2.0, noise=1.0) for seed in range(40)]
    result = run(fake_model(*states), documents, TopicEmbedding(TOPICS, at=residual()))
    inside = (result["ratio_null_low"] <= result["ratio"]) & (result["ratio"] <= result["ratio_null_high"])
    assert bool(((inside.sum(dim=0) >= 34) & (result["p_value"].std(dim=0) > 0.2)).all())
    assert bool(((result["p_value"].mean(dim=0) - 0.5).abs() < 0.15).all())
    low, high = result["difference_null_low"], result["difference_null_high"]
    inside = (low <= result["difference"]) & (result["difference"] <= high)
    assert bool(((inside.sum(dim=0) >= 34) & (result["difference_p_value"].std(dim=0) > 0.2)).all())


def test_where_other_topics_point_away_the_difference_has_a_p_value_and_the_ratio_none_worth_reading(
    fake_model: Any, documents: Batch
) -> None:
    state = vectors(0, common=0.0, topic=2.0) - vectors(0, common=0.0, topic=2.0).mean(dim=0)
    result = run(fake_model(state), documents, TopicEmbedding(TOPICS))
    assert bool((result["mean"][0, :, 1] < 0).all())
    assert bool((result["ratio"] < 0).all() & (result["p_value"] > 0.9).all())
    assert result["difference_p_value"].tolist() == [[1 / 100] * 2]
    assert bool((result["difference"] > result["difference_null_high"]).all())


def test_a_words_vector_is_its_mean_activation(model: Any, batch: Batch, token_topics: torch.Tensor) -> None:
    """At a layer where context matters; at the embedding it is the row of the matrix."""
    probe = TopicEmbedding(token_topics, at=residual(), n_permutations=9)
    result, kept = run(model, batch.split(5), probe), {}
    hooks = [(name, lambda x, hook, name=name: kept.update({name: x.clone()})) for name in result.coords["site"]]
    with torch.no_grad(), model.hooks(fwd_hooks=hooks):
        model(batch.tokens, attention_mask=batch.attention_mask.long())  # type: ignore[union-attr]
    real = batch.attention_mask
    words = sorted({int(w) for w in batch.tokens[real] if token_topics[w] >= 0})  # type: ignore[index]
    assert result.metadata["n_words"] == len(words) < int((token_topics >= 0).sum())
    assert result.notes == [
        f"{int((token_topics >= 0).sum()) - len(words)} of {int((token_topics >= 0).sum())} words "
        "with a topic were not seen"
    ]
    for i, site in enumerate(result.coords["site"]):
        rows = torch.stack([kept[site].double()[real & (batch.tokens == w)].mean(dim=0) for w in words])
        expected = topic_similarity(rows, token_topics[words])
        torch.testing.assert_close(result["mean"][i], expected.mean, rtol=1e-5, atol=1e-6)
        assert result["pairs"].tolist() == expected.pairs.tolist()


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


def test_a_ratio_of_nothing_to_nothing_has_a_note(topic_model: Any) -> None:
    result = run(topic_model(embedding="one-hot"), every_word(16, 2), TopicEmbedding(TOPICS))
    assert result["mean"].abs().max() == 0
    assert bool(result["ratio"].isnan().all())
    assert "a ratio is NaN where both of its means are 0" in result.notes


def test_a_zero_vector_has_a_note(fake_model: Any, documents: Batch) -> None:
    states = vectors(0, topic=1.0)
    states[7] = 0
    result = run(fake_model(states), documents, TopicEmbedding(TOPICS))
    assert bool(result["mean"][0, 0].isnan().all())
    assert bool(result["mean"][0, 1].isfinite().all())
    assert "hook_embed: a word's vector is zero, so the mean cosine is NaN" in result.notes
