from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from probes import TopicEmbedding, residual, run
from probes.functional import topic_similarity
from tasks import Batch, InputError
from tests.probes.recorded import recorded
from tests.probes.topic_documents import TOPICS


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


@pytest.mark.parametrize("topic", [0.0, 1.0])
def test_p_values_do_not_depend_on_the_unit_of_the_vectors(topic: float) -> None:
    """Of equal products too, which differ by rounding only."""
    x = vectors(0, topic=topic).double()
    probe = TopicEmbedding(TOPICS, at=residual())
    results = [probe.compare_vectors({"matrix": scale * x}) for scale in (1.0, 1e-6, 1e6)]
    expected = 1 / 100 if topic else 1.0
    for result in results:
        assert result["difference_p_value"].tolist() == [[expected, expected]]


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
    result = run(model, batch.split(5), probe)
    kept = recorded(model, batch, result.coords["site"])
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


# ---- given vectors ----


def test_given_vectors_give_what_measuring_them_gives(model: Any, batch: Batch, token_topics: torch.Tensor) -> None:
    probe = TopicEmbedding(token_topics, at=residual(), n_permutations=9)
    result = run(model, batch.split(5), probe)
    found, seen = probe.word_vectors()
    assert list(found) == probe.site_names
    assert int((seen & (token_topics >= 0)).sum()) == int(seen.sum()) == result.metadata["n_words"]
    assert all(bool(x[~seen].isnan().all() & x[seen].isfinite().all()) for x in found.values())
    again = TopicEmbedding(token_topics, n_permutations=9).compare_vectors(found, seen, result.layers)
    for name in result.values:
        assert torch.equal(again[name], result[name]), name
    assert (again.coords, again.layers, again.notes) == (result.coords, result.layers, result.notes)


def test_a_matrix_is_compared_whatever_was_measured(fake_model: Any, documents: Batch) -> None:
    probe = TopicEmbedding(TOPICS)
    before = run(fake_model(vectors(3, noise=1.0)), documents, probe)
    matrix = vectors(0, topic=1.0)
    result = probe.compare_vectors({"matrix": matrix, "shifted": matrix + 1})
    assert (result.coords["site"], result.layers) == (["matrix", "shifted"], {"matrix": 0, "shifted": 0})
    for i, rows in enumerate((matrix, matrix + 1)):
        torch.testing.assert_close(result["mean"][i], topic_similarity(rows, TOPICS).mean)
    some = TOPICS.new_ones(16, dtype=torch.bool)
    some[4:7] = False
    part = probe.compare_vectors({"matrix": matrix}, some)
    assert part.notes[0] == "3 of 12 words with a topic were not seen"
    left = TOPICS.masked_fill(~some, -1)
    torch.testing.assert_close(part["mean"][0], topic_similarity(matrix, left).mean)
    assert torch.equal(probe.compute()["mean"], before["mean"])


def test_vectors_that_are_refused() -> None:
    probe, odd = TopicEmbedding(TOPICS), torch.ones(16, 2)
    odd[5, 1] = torch.inf
    cases: list[tuple[Any, Any, str]] = [
        ({"W_E": torch.ones(9, 2)}, None, "'W_E' has 9 rows, but topics has 16 words; give one row per word"),
        ({"W_E": torch.ones(16, 2)}, torch.ones(3), "'seen' has 3 rows, but topics has 16 words; give one row per"),
        ({"W_E": odd}, None, "'W_E' has NaN or infinity in the vector of a word; leave that word out with seen"),
    ]
    for given, seen, message in cases:
        with pytest.raises(InputError, match=re.escape(message)):
            probe.compare_vectors(given, seen)
    assert probe.compare_vectors({"W_E": odd}, odd[:, 1].isfinite())["mean"].isfinite().all()


# ---- gaps ----


def test_a_ratio_of_nothing_to_nothing_has_a_note(topic_model: Any) -> None:
    every_word = Batch(4 + torch.arange(12)[None])
    result = run(topic_model(embedding="one-hot"), every_word, TopicEmbedding(TOPICS))
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


class Allocations(TorchDispatchMode):
    """The largest tensor made while this is on, in bytes; what is changed in place is not made."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        given = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        for x in tree_leaves(found):
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in given:
                self.largest = max(self.largest, x.untyped_storage().nbytes())
        return found


def test_a_batch_makes_nothing_of_the_size_of_the_vectors() -> None:
    """20,000 words at 3 sites; after the first batch, which makes the sums, only as much as its tokens need."""
    n_words, d, sites = 20_000, 64, ("a", "b", "c")
    probe = TopicEmbedding(torch.arange(n_words) % 100, at=list(sites))
    draw = torch.Generator().manual_seed(0)
    for i in range(3):
        batch = Batch(torch.randint(n_words, (2, 32), generator=draw), index=torch.arange(2) + 2 * i)
        states = {site: torch.randn(2, 32, d, generator=draw) for site in sites}
        with Allocations() as made:
            probe.update(states, batch)
        dense = n_words * d * 8
        assert (made.largest == dense) == (i == 0)
        if i:
            assert made.largest <= n_words * 8  # one count per word: how often it was seen
