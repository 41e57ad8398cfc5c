"""Score the models' answers to test prompts, with intervals over prompts, and judge which tasks were learnt."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float, Shaped

from mechclust.evidence.intervals import Interval, mean_interval, paired_share_interval, share_interval
from probes import ProbeResult

Ends = tuple[float, float]
LearningState = Literal["learnt", "form only", "not learnt", "not measured"]
ROLES = ("base", "control", "tuned", "all-tasks")
_NO_INTERVAL = (math.nan, math.nan)
Answers: TypeAlias = tuple[Shaped[np.ndarray, "prompt"], Float[np.ndarray, "prompt"], Float[np.ndarray, "pair"]]
"""``exact``, ``loss`` and ``margin`` of one model, as ``learnt_from_answers`` takes them."""


@dataclass(frozen=True)
class Measured:
    """The mean of one measure of answers, and its gain on the base model, with 95% intervals.

    Attributes:
        value: mean over prompts, or over pairs of prompts.
        ends: its interval.
        gain: how much better it is than the base model's on the same prompts. NaN for the base itself.
        gain_ends: the gain's interval.
    """

    value: float
    ends: Ends
    gain: float = math.nan
    gain_ends: Ends = _NO_INTERVAL


@dataclass(frozen=True)
class Score:
    """Scores of one model's answers to one task's test prompts. Intervals are Student's t unless another is named.

    Attributes:
        n: number of prompts.
        pairs: number of pairs of prompts with different answers.
        apart: share of pairs with a margin above 0, plus half the share at 0. By chance .5.
        exact: share of prompts for which every token of the answer was the most probable one. Intervals by Wilson, and
            by Bonett & Price (2012) of the gain.
        loss: the answer's mean loss, in nats a token. Its gain is the base model's loss - loss.
        margin: by how many nats both right answers of a pair are together more probable than when exchanged. 0 if
            answers do not depend on their prompts.
    """

    n: int
    pairs: int
    apart: float
    exact: Measured
    loss: Measured
    margin: Measured

    @property
    def state(self) -> LearningState:
        """Verdict on whether the task was learnt.

        ``learnt``: right answers are more probable or more often exact than the base model's, and distinguished from
        other prompts' better than at random and than by the base model, by the intervals. ``form only``: they are only
        more probable or more often exact, because the model learnt which answers there are. ``not measured``: there
        are fewer than two pairs, for example because all answers are equal. Otherwise ``not learnt``. A margin alone
        says little, because it also rises with a model's confidence in wrong answers.
        """
        if self.pairs < 2:
            return "not measured"
        if not (self.loss.gain_ends[0] > 0 or self.exact.gain_ends[0] > 0):
            return "not learnt"
        is_apart = self.margin.ends[0] > 0 and self.margin.gain_ends[0] > 0  # a margin below 0 may rise to chance
        return "learnt" if is_apart else "form only"


def scores_of(results: Mapping[str, ProbeResult]) -> dict[str, Score]:
    """Return one task's scores by role, for the ``ROLES`` whose answers were measured.

    Args:
        results: by ``"ROLE.answers"``.
    """
    answers = {role: _answers(results[f"{role}.answers"]) for role in ROLES if f"{role}.answers" in results}
    scores = {}
    for role, values in answers.items():
        base = None if role == "base" else answers.get("base")
        scores[role] = learnt_from_answers(*values, base=base)
    return scores


def _answers(result: ProbeResult) -> Answers:
    exact, loss, margin = (np.asarray(result[name], dtype=float) for name in ("exact", "loss", "margin"))
    return exact, loss, margin


def learnt_from_answers(
    exact: Shaped[np.ndarray, "prompt"],
    loss: Float[np.ndarray, "prompt"],
    margin: Float[np.ndarray, "pair"],
    base: Answers | None = None,
) -> Score:
    """Score answers.

    Args:
        exact: 1 if the answer was given, else 0.
        loss: loss of the answer.
        margin: margins of pairs of prompts, see ``margins``.
        base: these three of the base model, on these prompts.

    Example:
        >>> none = np.zeros(10)  # a model that now always says "no", and as often to prompts that have another answer
        >>> base = (np.zeros(20), np.linspace(2, 3, 20), none)
        >>> tuned = learnt_from_answers(np.arange(20) % 2, np.full(20, 0.7), none, base=base)
        >>> tuned.state, tuned.exact.value, round(tuned.loss.gain, 2), [round(end, 2) for end in tuned.exact.gain_ends]
        ('form only', 0.5, 1.8, [0.21, 0.7])
    """
    exact_gain = loss_gain = margin_gain = None
    if base is not None:
        base_exact, base_loss, base_margin = base
        exact_gain = exact - base_exact
        loss_gain = base_loss - loss
        margin_gain = margin - base_margin
    return Score(
        n=len(exact),
        pairs=len(margin),
        apart=_mean((margin > 0) + 0.5 * (margin == 0)),
        exact=_measured(exact, exact_gain, share_interval, paired_share_interval),
        loss=_measured(loss, loss_gain),
        margin=_measured(margin, margin_gain),
    )


def _measured(
    values: Shaped[np.ndarray, "n"],
    gains: Shaped[np.ndarray, "n"] | None,
    interval: Callable[[Sequence[float]], Interval | None] = mean_interval,
    gain_interval: Callable[[Sequence[float]], Interval | None] = mean_interval,
) -> Measured:
    measured = Measured(_mean(values), interval(values.tolist()) or _NO_INTERVAL)
    if gains is None:
        return measured
    return replace(measured, gain=_mean(gains), gain_ends=gain_interval(gains.tolist()) or _NO_INTERVAL)


def _mean(values: Shaped[np.ndarray, "n"]) -> float:
    return float(values.mean()) if len(values) else math.nan
