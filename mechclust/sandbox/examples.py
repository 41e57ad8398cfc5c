"""Choose the examples that a sandbox follows, and score the model's answers to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from mechclust.sandbox.sequences import FollowedSequences
from probes.engine.readout import Readout
from tasks import Batch, InputError
from tasks.settings import check_count

_OTHER = "others"
_MAX_LETTERS = 24  # of a token or a name


class Examples:
    """Examples in the order of their clusters.

    Args:
        batches: a batch, or several.
        label, answer, readout, vocab, label_names, max_sequences: as in ``SandboxRecorder``.

    Attributes:
        batch: the examples followed.
        answers: ``[sequence]`` token ids of the right answers, or ``None`` if unknown.

    Raises:
        InputError: for no examples, a missing label or position, or a readout of several positions.
    """

    def __init__(
        self,
        batches: Batch | Iterable[Batch],
        label: str | None,
        answer: str | None,
        readout: Readout,
        vocab: Sequence[str] | Callable[[int], str] | None,
        label_names: Sequence[str] | None,
        max_sequences: int,
    ) -> None:
        check_count(max_sequences=(max_sequences, 2))
        each = [batches] if isinstance(batches, Batch) else list(batches)
        lengths = {batch.tokens.shape[1] for batch in each}
        if len(lengths) > 1:
            each = [batch.padded_to(max(lengths)) for batch in each]
        given = Batch.concat(each)
        if len(given) < 2:
            raise InputError(f"there is {len(given)} example to follow; a sandbox needs at least 2")
        right = _right_answers(given, answer, readout)
        groups = right if label is None else given.label(label, per="example")
        groups = torch.zeros_like(given.index) if groups is None else groups
        rows = _evenly(groups.numpy(force=True), max_sequences)
        self.batch = given.select(torch.from_numpy(rows)).to("cpu")
        self.answers = None if right is None else right.cpu()[rows]
        self._groups = groups.numpy(force=True)[rows]
        self._label = label
        self._vocab = vocab
        self._label_names = label_names

    @cached_property
    def answer_ids(self) -> Int[Tensor, "answer"]:
        """The token ids that are ever the right answer, ascending."""
        return torch.zeros(0, dtype=torch.int64) if self.answers is None else torch.unique(self.answers)

    @cached_property
    def answer_names(self) -> list[str]:
        """Names of the answers, with all other tokens as the last. Empty without answers."""
        names = [self._name(token) for token in self.answer_ids.tolist()]
        return [*names, _OTHER] if names else []

    @cached_property
    def token_ids(self) -> list[int]:
        """The token ids in the sequences, ascending."""
        mask = self.batch.attention_mask
        return sorted(set((self.batch.tokens if mask is None else self.batch.tokens[mask]).flatten().tolist()))

    @cached_property
    def token_names(self) -> list[str]:
        """Names of ``token_ids``."""
        return [self._name(token) for token in self.token_ids]

    @cached_property
    def first_places(self) -> tuple[Int[Tensor, "token"], Int[Tensor, "token"]]:
        """The sequence and the position at which each token comes first."""
        places = [(self._local == i).nonzero()[0] for i in range(len(self.token_ids))]
        both = torch.stack(places)
        return both[:, 0], both[:, 1]

    @cached_property
    def position_places(self) -> tuple[Int[Tensor, "pos"], Int[Tensor, "pos"]]:
        """The sequence and the column that hold each position first, whichever side is padded."""
        columns = torch.arange(self.batch.tokens.shape[1])
        mask = self.batch.attention_mask
        if mask is None:
            return torch.zeros_like(columns), columns
        position = (mask.cumsum(dim=1) - 1).masked_fill(~mask, -1)
        both = torch.stack([(position == i).nonzero()[0] for i in range(int(position.max()) + 1)])
        return both[:, 0], both[:, 1]

    @cached_property
    def _local(self) -> Int[Tensor, "sequence pos"]:
        """The tokens as indices into ``token_ids``, or -1 at padding."""
        place = {token: i for i, token in enumerate(self.token_ids)}
        local = torch.tensor([[place.get(token, -1) for token in row] for row in self.batch.tokens.tolist()])
        mask = self.batch.attention_mask
        return local if mask is None else local.masked_fill(~mask, -1)

    @cached_property
    def followed(self) -> FollowedSequences:
        """The sequences with names, answers and clusters."""
        known, clusters = np.unique(self._groups, return_inverse=True)
        answers = None if self.answers is None else torch.searchsorted(self.answer_ids, self.answers).numpy()
        if self._label is None:
            names = self.answer_names[:-1] or ["sequences"]
        else:
            called = self._label_names
            names = [
                f"{self._label} {value}" if called is None else _name_at("label_names", called, value)
                for value in known.tolist()
            ]
            names = [name[:_MAX_LETTERS] for name in names]
        of_clusters = None
        if answers is not None and all(len(set(answers[clusters == c])) == 1 for c in range(len(known))):
            of_clusters = [int(answers[clusters == c][0]) for c in range(len(known))]
        return FollowedSequences(
            tokens=self._local.numpy(),
            token_names=self.token_names,
            answers=answers,
            clusters=clusters,
            cluster_names=names,
            cluster_answers=of_clusters,
            notes=[f"example {index}" for index in self.batch.index.tolist()],
        )

    def probabilities(self, logits: Float[Tensor, "n d_vocab"]) -> Float[np.ndarray, "n answer"]:
        """Return the probability of each answer, and of all other tokens together."""
        p = logits.double().softmax(dim=-1)[:, self.answer_ids]
        return torch.cat([p, (1 - p.sum(dim=-1, keepdim=True)).clamp(min=0)], dim=-1).float().numpy()

    def scores(self, logits: Float[Tensor, "sequence d_vocab"]) -> dict[str, Shaped[np.ndarray, "..."]]:
        """Return by name what the model says: probabilities, the likeliest answer, mean loss in nats, share right.

        ``predicted`` is an index into ``answer_names``. Other tokens together may be likelier than the likeliest token.
        """
        assert self.answers is not None
        if int(self.answers.max()) >= logits.shape[-1] or int(self.answers.min()) < 0:
            raise InputError(
                f"the right answers go from {int(self.answers.min())} to {int(self.answers.max())}, but the model "
                f"gives {logits.shape[-1]} logits; give a label with the token id of each answer"
            )
        loss = torch.nn.functional.cross_entropy(logits, self.answers)
        likeliest = logits.argmax(dim=-1)
        place = torch.searchsorted(self.answer_ids, likeliest)
        is_answer = torch.isin(likeliest, self.answer_ids)
        return {
            "probabilities": self.probabilities(logits),
            "predicted": torch.where(is_answer, place, len(self.answer_ids)).numpy(),
            "loss": loss.numpy(),
            "accuracy": (likeliest == self.answers).float().mean().numpy(),
        }

    def _name(self, token: int) -> str:
        vocab = self._vocab
        if vocab is None:
            return str(token)
        return (str(vocab(token)) if callable(vocab) else _name_at("vocab", vocab, token))[:_MAX_LETTERS]


def _name_at(what: str, names: Sequence[str], value: int) -> str:
    if not 0 <= value < len(names):
        raise InputError(f"{what} has {len(names)} names, but there is a value {value}; give a name for each, from 0")
    return str(names[value])


def _right_answers(batch: Batch, answer: str | None, readout: Readout) -> Int[Tensor, "n"] | None:
    places = readout.places(batch)
    if places is None:
        raise InputError(
            f"readout {readout!r} reads no one position; choose last_token(), first_token() or token_at(...)"
        )
    if answer is not None:
        return batch.label(answer, per="example").long()
    if batch.targets is None:
        return None
    places = places[:, None]
    if batch.loss_mask is not None and not bool(batch.loss_mask.gather(1, places).all()):
        return None  # the token there was not learned
    return batch.targets.gather(1, places)[:, 0]


def _evenly(groups: Int[np.ndarray, "n"], most: int) -> Int[np.ndarray, "kept"]:
    """Return at most so many rows, ordered by group: the first of each group, then the second, and so on."""
    order = np.argsort(groups, kind="stable")
    _, start, counts = np.unique(groups[order], return_index=True, return_counts=True)
    turn = np.arange(len(groups)) - np.repeat(start, counts)
    kept = np.sort(np.lexsort((groups[order], turn))[:most])
    return np.asarray(order[kept])
