"""Score the models' answers to test prompts, with intervals over prompts, and judge which tasks were learnt."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float, Shaped

from mechclust.evidence.intervals import paired_share_interval, share_interval
from probes import ProbeResult

Ends = tuple[float, float]
LearningState = Literal["learnt", "form only", "not learnt", "not measured"]
ROLES = ("base", "control", "tuned", "all-tasks")
_NO_INTERVAL = (math.nan, math.nan)
_UPPER_QUANTILE = 0.975  # of a two-sided interval of 95%
Answers: TypeAlias = tuple[Shaped[np.ndarray, "prompt"], Float[np.ndarray, "prompt"], Float[np.ndarray, "pair"]]
"""``exact``, ``loss`` and ``margin`` of one model, as ``learnt_from_answers`` takes them."""


@dataclass(frozen=True)
class Score:
    """Scores of one model's answers to one task's test prompts. Pairs of numbers are 95% intervals over prompts.

    Attributes:
        n: number of prompts.
        exact: share of prompts for which every token of the answer was the most probable one.
        exact_ends: interval by Wilson.
        loss: mean over prompts of the answer's mean loss, in nats a token.
        loss_ends: interval by Student's t.
        exact_gain: exact - the base model's, on these prompts.
        exact_gain_ends: interval by Bonett & Price (2012), for paired shares.
        loss_gain: the base model's loss - loss.
        loss_gain_ends: interval by Student's t over prompts.
        pairs: number of pairs of prompts with different answers.
        margin: by how many nats both right answers of a pair are together more probable than when exchanged, mean over
            pairs. 0 if answers do not depend on their prompts.
        margin_ends: interval by Student's t over pairs.
        apart: share of pairs with a margin above 0, plus half the share at 0. By chance .5.
        margin_gain: margin - the base model's.
        margin_gain_ends: interval by Student's t over pairs.
    """

    n: int
    exact: float
    exact_ends: Ends
    loss: float
    loss_ends: Ends
    exact_gain: float = math.nan
    exact_gain_ends: Ends = _NO_INTERVAL
    loss_gain: float = math.nan
    loss_gain_ends: Ends = _NO_INTERVAL
    pairs: int = 0
    margin: float = math.nan
    margin_ends: Ends = _NO_INTERVAL
    apart: float = math.nan
    margin_gain: float = math.nan
    margin_gain_ends: Ends = _NO_INTERVAL

    @property
    def state(self) -> LearningState:
        """Verdict on whether the task was learnt.

        ``learnt``: right answers are distinguished from other prompts' better than at random and than by the base
        model, by the intervals. ``form only``: they are only more probable or more often exact, because the model
        learnt which answers there are. ``not measured``: there are fewer than two pairs, for example because all
        answers are equal. Otherwise ``not learnt``.
        """
        if self.pairs < 2:
            return "not measured"
        if self.margin_ends[0] > 0 and self.margin_gain_ends[0] > 0:  # a margin below 0 may rise to chance
            return "learnt"
        return "form only" if max(self.loss_gain_ends[0], self.exact_gain_ends[0]) > 0 else "not learnt"


def scores_of(of_task: Mapping[str, Mapping[str, ProbeResult]]) -> dict[str, dict[str, Score]]:
    """Return scores by task and by role, for the ``ROLES`` whose answers were measured.

    Args:
        of_task: results by task and ``"ROLE.answers"``.
    """
    return {task: _scores_of_task(results) for task, results in of_task.items()}


def _scores_of_task(results: Mapping[str, ProbeResult]) -> dict[str, Score]:
    answers = {role: _answers(results[f"{role}.answers"]) for role in ROLES if f"{role}.answers" in results}
    base = answers.get("base")
    return {
        role: learnt_from_answers(*values, base=None if role == "base" else base) for role, values in answers.items()
    }


def _answers(result: ProbeResult) -> Answers:
    exact, loss, margin = (np.asarray(result[name], dtype=float) for name in ("exact", "loss", "margin"))
    return exact, loss, margin


def states_of(scores: Mapping[str, Mapping[str, Score]], role: str = "control") -> dict[str, LearningState]:
    """Return by task whether a role's model learnt it."""
    states: dict[str, LearningState] = {}
    for task, by_role in scores.items():
        states[task] = by_role[role].state if role in by_role and "base" in by_role else "not measured"
    return states


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
        >>> tuned.state, tuned.exact, round(tuned.loss_gain, 2), [round(end, 2) for end in tuned.exact_gain_ends]
        ('form only', 0.5, 1.8, [0.21, 0.7])
    """
    scores = Score(
        n=len(exact),
        exact=float(exact.mean()),
        exact_ends=share_interval(exact.tolist()) or _NO_INTERVAL,
        loss=float(loss.mean()),
        loss_ends=_mean_ends(loss),
        pairs=len(margin),
        margin=_mean(margin),
        margin_ends=_mean_ends(margin),
        apart=_mean((margin > 0) + 0.5 * (margin == 0)),
    )
    if base is None:
        return scores
    base_exact, base_loss, base_margin = base
    exact_gain = exact - base_exact
    loss_gain = base_loss - loss
    margin_gain = margin - base_margin
    return replace(
        scores,
        exact_gain=float(exact_gain.mean()),
        exact_gain_ends=paired_share_interval(exact_gain.tolist()) or _NO_INTERVAL,
        loss_gain=float(loss_gain.mean()),
        loss_gain_ends=_mean_ends(loss_gain),
        margin_gain=_mean(margin_gain),
        margin_gain_ends=_mean_ends(margin_gain),
    )


def _mean(values: Float[np.ndarray, "n"]) -> float:
    return float(values.mean()) if len(values) else math.nan


def _mean_ends(values: Float[np.ndarray, "n"]) -> Ends:
    """Return the interval of a mean by Student's t."""
    from scipy.stats import t

    if len(values) < 2:
        return _NO_INTERVAL
    half = float(t.ppf(_UPPER_QUANTILE, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))
    return float(values.mean()) - half, float(values.mean()) + half
