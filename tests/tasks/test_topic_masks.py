"""What of a topic document is masked, and what the loss makes of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tasks import Batch, TopicDocuments
from tests.tasks.topic_documents import MASK, PAD, SMALL, START, VARIED, same, whole, within

# ---- masks ----


@pytest.mark.parametrize("masking", ["static", "fresh"])
@pytest.mark.parametrize(("select", "correct", "at_random"), [(0.15, 0.1, 0.1), (0.5, 0.0, 0.6), (1.0, 0.3, 0.0)])
def test_selected_positions_show_the_word_another_or_mask(
    masking: Any, select: float, correct: float, at_random: float
) -> None:
    task = TopicDocuments(
        selected_share=select, correct_share=correct, random_share=at_random, masking=masking, n_documents=600
    )
    batch = task.train_batch(0, 600)
    shown, targets, selected = batch.tokens, batch.targets, batch.loss_mask
    assert targets is not None
    assert selected is not None
    assert torch.equal(shown[~selected], targets[~selected])
    assert bool((targets[selected] >= 4).all())
    n, words = int(selected.sum()), int((targets >= 4).sum())
    assert within(n, words, select)
    inside, right = shown[selected], shown[selected] == targets[selected]
    # a random word is the right one once in a hundred
    assert within(int((inside == MASK).sum()), n, 1 - correct - at_random)
    assert within(int(right.sum()), n, correct + at_random / 100)
    replaced = inside[(inside != MASK) & ~right]
    assert within(len(replaced), n, at_random * 0.99)
    assert not len(replaced) or int(replaced.min()) >= 4
    if len(replaced) > 1000:
        counts = torch.bincount(replaced, minlength=104)[4:]
        assert all(within(int(c), len(replaced), 1 / 100) for c in counts)
        topics = task.token_topics
        other = topics[replaced] != topics[targets[selected]][(inside != MASK) & ~right]
        assert within(int(other.sum()), len(replaced), 90 / 99)  # any word, not one of the same topic


@pytest.mark.parametrize("fields", VARIED, ids=str)
def test_every_document_has_a_selected_word_and_no_selected_special_token(fields: dict[str, Any]) -> None:
    task = TopicDocuments(**{**SMALL, **fields})
    for batch in (whole(task, "dev"), task.train_batch(3, 60)):
        assert batch.loss_mask is not None
        assert batch.targets is not None
        assert bool(batch.loss_mask.any(dim=1).all())
        assert bool((batch.targets[batch.loss_mask] >= 4).all())
        special = batch.targets < 4
        assert torch.equal(batch.tokens[special], batch.targets[special])
        assert set(batch.tokens[batch.loss_mask].tolist()) <= {MASK, *range(4, task.d_vocab)}


def test_a_lone_selected_word_is_any_of_them() -> None:
    task = TopicDocuments(selected_share=1e-6, lengths=(4, 4), n_documents=2000, boundaries=True)
    place = whole(task).loss_mask.nonzero()[:, 1]  # type: ignore[union-attr]
    assert len(place) == 2000
    assert all(within(int(n), 2000, 1 / 4) for n in torch.bincount(place)[1:])


def test_static_masks_stay_and_fresh_ones_change() -> None:
    for masking, stays in (("static", True), ("fresh", False)):
        task = TopicDocuments(**SMALL, masking=masking, selected_share=0.5)  # type: ignore[arg-type]
        by_index = []
        for epoch in (0, 1):
            batch = task.train_batch(epoch, 60)
            assert batch.loss_mask is not None
            order = batch.index.argsort()
            by_index.append((batch.loss_mask[order], batch.tokens[order], batch.targets[order]))  # type: ignore[index]
        (mask, tokens, targets), (mask2, tokens2, targets2) = by_index
        assert torch.equal(targets, targets2)
        assert torch.equal(mask, mask2) == stays
        assert torch.equal(tokens, tokens2) == stays
        still = whole(task)  # a split's own masks are drawn once in both cases
        assert same(still, whole(task))
        assert torch.equal(still.tokens, tokens) == stays


def test_exact_shares_hold_in_every_document() -> None:
    shares: dict[str, Any] = {"selected_share": 0.2, "correct_share": 0.25, "random_share": 0.5}
    task = TopicDocuments(**shares, exact_shares=True, lengths=(40, 40), n_documents=300)
    batch = whole(task)
    shown, selected = batch.tokens, batch.loss_mask
    assert selected is not None
    assert set(selected.sum(dim=1).tolist()) == {8}
    assert set(((shown == MASK) & selected).sum(dim=1).tolist()) == {2}
    right = ((shown == batch.targets) & selected).sum(dim=1)
    assert int(right.min()) == 2  # and now and then a random word is the right one
    assert within(int(right.sum()) - 600, 1200, 1 / 100)
    where = selected[:, 1:41].sum(dim=0)
    assert all(within(int(n), 300, 0.2) for n in where)  # not at the same places
    kinds = torch.stack([((shown == MASK) & selected)[:, 1:41].sum(dim=0)])
    assert all(within(int(n), 300, 0.05) for n in kinds.flatten())


@pytest.mark.parametrize("length", [3, 7, 101, 149])
def test_exact_shares_are_off_by_less_than_one_where_they_cannot_hold(length: int) -> None:
    task = TopicDocuments(**{**SMALL, "n_topics": 40, "lengths": (length, length)}, exact_shares=True)
    counts = whole(task).loss_mask.sum(dim=1)  # type: ignore[union-attr]
    assert len(set(counts.tolist())) == 1
    assert abs(int(counts[0]) - 0.15 * length) < 1


# ---- text, loss, accuracy ----


@pytest.mark.parametrize("boundaries", [True, False])
def test_text_is_the_unmasked_beginning_of_the_first_documents(boundaries: bool) -> None:
    task = TopicDocuments(**SMALL, boundaries=boundaries, selected_share=0.9)
    parts = list(task.text("dev", n=25, n_tokens=6, batch_size=10))
    assert [len(p) for p in parts] == [10, 10, 5]
    text, everything = Batch.concat(parts), whole(task, "dev")
    assert torch.equal(text.tokens, everything.targets[:25, :6])  # type: ignore[index]
    assert not torch.equal(text.tokens, everything.tokens[:25, :6])
    assert MASK not in text.tokens
    assert bool((text.tokens[:, 0] == START).all()) == boundaries
    assert torch.equal(text.attention_mask, text.tokens != PAD)  # type: ignore[arg-type]
    assert torch.equal(text.labels["topic"], everything.labels["topic"][:25, :6])
    assert text.index.tolist() == list(range(25))
    assert (text.targets, text.loss_mask) == (None, None)
    assert sum(len(b) for b in task.text("dev")) == 60  # no more than there are
    assert next(task.text("dev")).tokens.shape[1] == task.n_ctx


def one_hot_loss(task: TopicDocuments, logits: torch.Tensor, batch: Batch) -> float:
    terms = []
    for i, p in batch.loss_mask.nonzero().tolist():  # type: ignore[union-attr]
        row, target = logits[i, p].double(), torch.zeros(task.d_vocab, dtype=torch.float64)
        target[batch.targets[i, p]] = 1  # type: ignore[index]
        if task.objective == "squared":
            terms.append(float(((row - target) ** 2).mean()))
        else:
            terms.append(-float((target * (row.exp() / row.exp().sum()).log()).sum()))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("objective", ["cross-entropy", "squared"])
def test_the_loss_is_the_mean_over_selected_positions(objective: Any) -> None:
    task = TopicDocuments(**SMALL, objective=objective, selected_share=0.4)
    batch = task.train_batch(0, 9)
    logits = torch.randn(*batch.tokens.shape, task.d_vocab, generator=torch.Generator().manual_seed(0))
    assert batch.targets is not None
    assert batch.loss_mask is not None
    assert float(task.loss(logits, batch)) == pytest.approx(one_hot_loss(task, logits, batch), rel=1e-6)
    at = task.loss_at(logits[batch.loss_mask], batch.targets[batch.loss_mask])
    assert float(at) == pytest.approx(one_hot_loss(task, logits, batch), rel=1e-6)
    moved = torch.where(batch.loss_mask[..., None], logits, 9.0)  # other positions do not count
    assert torch.equal(task.loss(moved, batch), task.loss(logits, batch))


def test_accuracy_is_the_share_of_a_documents_selected_words() -> None:
    task = TopicDocuments(**SMALL, selected_share=0.6)
    batch = task.train_batch(0, 12)
    logits = torch.randn(*batch.tokens.shape, task.d_vocab, generator=torch.Generator().manual_seed(1))
    logits[:, 2, :] = 9 * torch.nn.functional.one_hot(batch.targets[:, 2], task.d_vocab)  # type: ignore[index]
    expected = []
    for i in range(12):
        places = [p for p in range(batch.tokens.shape[1]) if batch.loss_mask[i, p]]  # type: ignore[index]
        hits = [int(logits[i, p].argmax()) == int(batch.targets[i, p]) for p in places]  # type: ignore[index]
        expected.append(sum(hits) / len(hits))
    assert task.accuracy(logits, batch).tolist() == pytest.approx(expected)
    assert 0 < sum(expected) < 12
