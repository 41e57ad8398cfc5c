"""Closed forms of the topic study, against exact population solves and against training (spec 3, O1 to O3)."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from mechclust.models import build_model
from mechclust.studies.topic_structure.config import TopicTransformerConfig
from mechclust.studies.topic_structure.theory import stage_one_value, theory_gap
from mechclust.training import TrainConfig, train
from probes import TopicAttention, run
from tasks import InputError, TopicDocuments

MASK, N_SPECIAL = 1, 4
DEFAULT = TopicDocuments(sampler="subset", objective="squared", boundaries=False)
OTHER = replace(
    DEFAULT, n_topics=5, words_per_topic=4, selected_share=0.3, correct_share=0.2, random_share=0.1
)  # the second set of parameters in the spec
FIXED = {"embedding": "one-hot", "attention": "uniform", "bias": False}
TASKS = [
    DEFAULT,
    OTHER,
    replace(DEFAULT, topics_per_document=1),
    replace(DEFAULT, topics_per_document=9, random_share=0.0),
    replace(OTHER, topics_per_document=4, random_share=0.5),
    replace(OTHER, n_topics=3, correct_share=0.0),
    replace(OTHER, correct_share=0.4, random_share=0.6),  # nothing shows MASK
]


def document(task, topics):
    """``(words, shown)``: the distribution of an infinitely long document's words, and of what it shows."""
    words = np.array([t in topics for t in task.token_topics.tolist()]) / (len(topics) * task.words_per_topic)
    is_word = task.token_topics.numpy() >= 0
    p_m, p_c, p_r = task.selected_share, task.correct_share, task.random_share
    shown = (1 - p_m + p_m * p_c) * words + p_m * p_r * is_word / task.n_words
    shown[MASK] = p_m * (1 - p_c - p_r)
    assert shown.sum() == pytest.approx(1)
    return words, shown


def population_value(task):
    """The minimum-norm ``W`` with ``E ||W shown - target||^2`` least over all documents of ``tau`` topics.

    A target is a word of its document, so the loss is ``||W shown - words||^2`` and a constant.
    """
    sets = combinations(range(task.n_topics), task.topics_per_document)
    words, shown = (np.stack(columns, axis=1) for columns in zip(*(document(task, s) for s in sets), strict=True))
    return words @ np.linalg.pinv(shown, rcond=1e-10)


def block_means(matrix, task):
    """``[T T]`` mean entry of each pair of topics; the diagonal counts as same-topic."""
    t, v = task.n_topics, task.words_per_topic
    return np.asarray(matrix)[N_SPECIAL:, N_SPECIAL:].reshape(t, v, t, v).mean(axis=(1, 3))


def gap(matrix, task):
    blocks = block_means(matrix, task)
    same = np.eye(len(blocks), dtype=bool)
    return blocks[same].mean() - blocks[~same].mean()


# ---- closed forms ----


@pytest.mark.parametrize(("task", "expected"), [(DEFAULT, 0.115607), (OTHER, 0.328947)])
def test_the_gap_is_that_of_the_spec(task, expected):
    """O1."""
    assert theory_gap(task) == pytest.approx(expected, abs=1e-6)
    assert gap(population_value(task), task) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("task", TASKS)
def test_the_gap_is_that_of_the_population_optimum(task):
    assert gap(population_value(task), task) == pytest.approx(theory_gap(task), abs=1e-9)


@pytest.mark.parametrize("task", TASKS)
def test_the_value_is_the_minimum_norm_population_optimum(task):
    """O2, every entry: also that special tokens add nothing and are never the answer."""
    value = stage_one_value(task)
    assert value.dtype == torch.float64
    np.testing.assert_allclose(value.numpy(), population_value(task), atol=1e-9)


@pytest.mark.parametrize(
    ("task", "x", "y", "w0"), [(DEFAULT, 0.108020, -0.007587, 0.054191), (OTHER, 0.289385, -0.039563, 0.139433)]
)
def test_the_value_has_the_numbers_of_the_spec(task, x, y, w0):
    value = stage_one_value(task)
    first, last = N_SPECIAL, task.d_vocab - 1
    assert float(value[first, first]) == float(value[first, first + 1]) == pytest.approx(x, abs=1e-6)
    assert float(value[first, last]) == float(value[last, first]) == pytest.approx(y, abs=1e-6)
    assert float(value[first, MASK]) == float(value[last, MASK]) == pytest.approx(w0, abs=1e-6)
    assert not bool(value[:N_SPECIAL].any() or value[:, [0, 2, 3]].any())


def test_rows_of_the_block_matrix_are_their_own():
    value = stage_one_value(OTHER)
    value[5] = 9.0
    assert torch.equal(value[6], stage_one_value(OTHER)[6])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"topics_per_document": 10},
            "topics_per_document is 10 of 10 topics; with all topics in every document nothing tells them apart: "
            "expected fewer",
        ),
        (
            {"selected_share": 1.0, "correct_share": 0.0},
            "selected_share is 1 and correct_share 0: no document shows its words, so nothing is learnt",
        ),
    ],
    ids=str,
)
def test_where_there_is_no_optimum_it_is_said(fields, message):
    for function in (theory_gap, stage_one_value):
        with pytest.raises(InputError) as refused:
            function(replace(DEFAULT, **fields))
        assert str(refused.value) == message
    assert theory_gap(replace(DEFAULT, topics_per_document=10, sampler="dirichlet")) == theory_gap(DEFAULT)


# ---- training finds them ----


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "shown"),
    [(FIXED, "E2"), ({"attention": "uniform", "value": "identity", "init_std": 0.05}, "E1")],
    ids=["E2", "E1"],
)
def test_training_finds_the_gap(fields, shown):
    """O1 within 5%, and every same-topic block above every different-topic block (finding P1)."""
    model = build_model(TopicTransformerConfig(d_vocab=DEFAULT.d_vocab, **fields))
    adam = TrainConfig(
        steps=600, batch_size=40, lr=0.01, optimizer="adam", schedule="constant", weight_decay=0, clip=None
    )
    rows = model.embed.W_E.detach()
    before = model.paper_value() if shown == "E2" else rows @ rows.T
    assert abs(gap(before, DEFAULT)) < 0.05
    train(model, DEFAULT, adam)
    rows = model.embed.W_E.detach()
    found = model.paper_value() if shown == "E2" else rows @ rows.T
    assert gap(found, DEFAULT) == pytest.approx(theory_gap(DEFAULT), rel=0.05)
    blocks, same = block_means(found, DEFAULT), np.eye(10, dtype=bool)
    assert blocks[same].min() > blocks[~same].max()


EXACT = replace(OTHER, topics_per_document=1, exact_shares=True, lengths=(400, 400), n_documents=500)


@pytest.mark.slow
def test_weight_decay_finds_the_minimum_norm():
    """O2 within 2%, from a random start (finding P2, in a small vocabulary)."""
    model = build_model(TopicTransformerConfig(d_vocab=EXACT.d_vocab, init_std=0.05, **FIXED))
    n = EXACT.d_vocab  # the loss is a mean over outputs: these are the steps of its sum at a rate of 8
    sgd = TrainConfig(steps=2000, batch_size=20, lr=8.0 * n, optimizer="sgd", weight_decay=3e-4 / n, clip=None)
    train(model, EXACT, sgd)
    found, expected = model.paper_value(), stage_one_value(EXACT)
    blocks, wanted = block_means(found, EXACT), block_means(expected, EXACT)
    for part in (np.eye(5, dtype=bool), ~np.eye(5, dtype=bool)):
        assert blocks[part].mean() == pytest.approx(wanted[part].mean(), rel=0.02)
    assert float(found[N_SPECIAL:, MASK].mean()) == pytest.approx(float(expected[N_SPECIAL, MASK]), rel=0.02)


@pytest.mark.parametrize("decay", [0.0, 1e-2])
def test_what_no_document_decides_moves_by_weight_decay_alone(decay):
    """Each document shows the same share of MASK, so one direction is free: MASK up, all words down."""
    model = build_model(TopicTransformerConfig(d_vocab=EXACT.d_vocab, init_std=0.05, **FIXED))
    masked = EXACT.selected_share * (1 - EXACT.correct_share - EXACT.random_share)
    free = torch.full((EXACT.d_vocab,), -masked / (1 - masked))
    free[[0, 2, 3]], free[MASK] = 0.0, 1.0
    before = model.paper_value() @ free
    sgd = TrainConfig(steps=60, batch_size=20, lr=4.0, optimizer="sgd", weight_decay=decay, clip=None)
    train(model, EXACT, sgd)
    left = math.prod(1 - sgd.lr_at(step) * decay for step in range(60))
    assert left == 1 if decay == 0 else 0.2 < left < 0.5
    torch.testing.assert_close(model.paper_value() @ free, left * before, atol=2e-5, rtol=0)
    assert float(before.abs().max()) > 0.05


# ---- attention at the optimum ----


def attention_loss(task):
    """Squared loss of ``(alpha, beta)`` with the stage-1 value matrix, for queries that show a word.

    A query attends to a key of its own word with weight ``beta``, of its topic with ``alpha``, and with
    1 to words of other topics and to MASK. It shows its document's right word, or any word.
    """
    t, tau, v = task.n_topics, task.topics_per_document, task.words_per_topic
    value, topic = stage_one_value(task).numpy(), task.token_topics.numpy()
    words, shown = document(task, set(range(tau)))
    right = task.correct_share / (task.correct_share + task.random_share)

    def loss(weights):
        alpha, beta, total = *weights, 0.0
        for query, share in ((N_SPECIAL, tau / t), (N_SPECIAL + (t - 1) * v, 1 - tau / t)):  # of the document, and not
            attention = np.where(topic == topic[query], alpha, 1.0)
            attention[query] = beta
            attention = attention * shown / (attention * shown).sum()
            out = value @ attention
            total += (1 - right) * share * (out @ out - 2 * out @ words + 1)
            if query == N_SPECIAL:
                total += right * (out @ out - 2 * out[query] + 1)
        return total

    return loss


def best(task, start=(3.0, 3.0)):
    options = {"xatol": 1e-7, "fatol": 1e-14, "maxiter": 4000, "maxfev": 4000}
    alpha, beta = minimize(attention_loss(task), start, method="Nelder-Mead", options=options).x
    v = task.words_per_topic
    return (v - 1) / v * alpha + beta / v, alpha, beta


PRINTED = {
    10: {2: 5.76, 3: 7.01, 4: 7.72, 5: 8.18, 8: 8.95},
    100: {2: 11.70, 8: 36.34},
}


def test_the_attention_ratio_is_that_of_the_spec():
    """O3: the printed numbers; ``tau < g < T``; g rises with tau and with T."""
    found = {
        t: {tau: best(replace(DEFAULT, n_topics=t, topics_per_document=tau))[0] for tau in row}
        for t, row in PRINTED.items()
    }
    for t, row in PRINTED.items():
        for tau, printed in row.items():
            assert found[t][tau] == pytest.approx(printed, abs=0.0055), (t, tau)
            assert tau < found[t][tau] < t
        assert list(found[t].values()) == sorted(found[t].values())
    assert all(found[100][tau] > found[10][tau] for tau in PRINTED[100])


def test_alpha_and_beta_alone_are_not_identified():
    ends = [best(DEFAULT, start) for start in ((3.0, 3.0), (6.2, 1.0), (5.0, 12.0))]
    assert max(g for g, *_ in ends) - min(g for g, *_ in ends) < 1e-3
    assert max(beta for *_, beta in ends) - min(beta for *_, beta in ends) > 1


def trained_g(n_topics, tau, seed):
    """``g`` of attention trained on documents, the value matrix frozen as stage 1 leaves it (E4a)."""
    task = replace(DEFAULT, n_topics=n_topics, topics_per_document=tau, words_per_topic=5, n_documents=4000, seed=seed)
    shape = {"embedding": "one-hot", "decoder": "identity", "bias": False, "value": "fixed"}
    shape["init_std"] = 0.05  # from a smaller start, the gradient begins below Adam's eps
    model = build_model(TopicTransformerConfig(d_vocab=task.d_vocab, seed=seed, **shape))
    with torch.no_grad():
        model.blocks[0].attn.W_V.copy_(stage_one_value(task).T)
    train(model, task, TrainConfig(steps=250, batch_size=40, lr=0.02, optimizer="adam", weight_decay=0.0, clip=None))
    probe = TopicAttention(task.token_topics, n_permutations=0)
    same_word, same_topic, different = run(model, task.text("dev", 200), probe)["overall_mean"].tolist()
    return (4 * same_topic + same_word) / 5 / different


@pytest.mark.slow
def test_trained_attention_rises_with_the_topics_of_a_document_and_with_their_number():
    """O3 by training; explored on seeds 200 and 201."""
    g = {(n, tau): trained_g(n, tau, seed=7) for n, tau in ((10, 2), (10, 3), (10, 5), (20, 2))}
    assert 2 < g[10, 2] < g[10, 3] < g[10, 5] < 10
    assert g[20, 2] > g[10, 2]
