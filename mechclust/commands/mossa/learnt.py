"""What the models of a run learnt: their answers to test prompts, each with an interval over prompts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mechclust.evidence.intervals import paired_share_interval, share_interval
from probes import ProbeResult

Ends = tuple[float, float]
LearningState = Literal["learnt", "form only", "not learnt", "not measured"]
ROLES = ("base", "control", "tuned", "all-tasks")
_NONE = (math.nan, math.nan)
_LEVEL = 0.975


@dataclass(frozen=True)
class Score:
    """Answers of one model to one task's test prompts; every pair of numbers is a 95% interval over prompts.

    Attributes:
        n: prompts.
        exact: share of prompts of which every token of the answer was the most probable one.
        exact_ends: Wilson's.
        loss: mean over prompts of the answer's mean loss, in nats a token.
        loss_ends: Student's t.
        exact_gain: above the base model's share, on the same prompts.
        exact_gain_ends: Bonett & Price's (2012), for shares of the same prompts.
        loss_gain: by which the loss is below the base model's.
        loss_gain_ends: Student's t over prompts.
        pairs: of prompts with different answers.
        margin: by how many nats both right answers of a pair together are more probable than the same two exchanged,
            mean over pairs; 0 where answers do not depend on their prompts.
        margin_ends: Student's t over pairs.
        apart: share of pairs with a margin above 0, half of those at 0 counted in; by chance .5.
        margin_gain: above the base model's.
        margin_gain_ends: Student's t over pairs.
    """

    n: int
    exact: float
    exact_ends: Ends
    loss: float
    loss_ends: Ends
    exact_gain: float = math.nan
    exact_gain_ends: Ends = _NONE
    loss_gain: float = math.nan
    loss_gain_ends: Ends = _NONE
    pairs: int = 0
    margin: float = math.nan
    margin_ends: Ends = _NONE
    apart: float = math.nan
    margin_gain: float = math.nan
    margin_gain_ends: Ends = _NONE

    @property
    def state(self) -> LearningState:
        """``learnt``: right answers are told apart from other prompts' better than at random and than by the base
        model, by the intervals; ``form only``: they are more probable or more often exact, as they are where a model
        learnt which answers there are; ``not measured``: with fewer than two pairs, as where all answers are the same;
        else ``not learnt``."""
        if self.pairs < 2:
            return "not measured"
        if self.margin_ends[0] > 0 and self.margin_gain_ends[0] > 0:  # a margin below 0 may rise to chance
            return "learnt"
        return "form only" if max(self.loss_gain_ends[0], self.exact_gain_ends[0]) > 0 else "not learnt"


def scores_of(of_task: Mapping[str, Mapping[str, ProbeResult]]) -> dict[str, dict[str, Score]]:
    """By task and by role, of ``ROLES`` as far as there are answers.

    Args:
        of_task: by task and ``"ROLE.answers"``.
    """
    found: dict[str, dict[str, Score]] = {}
    for task, results in of_task.items():
        answers = {role: results.get(f"{role}.answers") for role in ROLES}
        of = {
            role: (_numbers(x["exact"]), _numbers(x["loss"]), _numbers(x["margin"]))
            for role, x in answers.items()
            if x is not None
        }
        found[task] = {
            role: score(*values, base=of.get("base") if role != "base" else None) for role, values in of.items()
        }
    return found


def states_of(scores: Mapping[str, Mapping[str, Score]], role: str = "control") -> dict[str, LearningState]:
    """By task, whether a role's model learnt it."""
    return {task: of[role].state if role in of and "base" in of else "not measured" for task, of in scores.items()}


def _numbers(values: Any) -> np.ndarray:
    return np.asarray(values, dtype=float)


def score(
    exact: np.ndarray,
    loss: np.ndarray,
    margin: np.ndarray,
    base: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
) -> Score:
    """Of ``[prompt]`` 0 or 1, ``[prompt]`` losses and ``[pair]`` margins.

    Args:
        exact: whether the answer was given.
        loss: of the answer.
        margin: of pairs of prompts, see ``margins``.
        base: the same three of the base model on the same prompts.

    Example:
        >>> none = np.zeros(10)  # a model that now always says "no", and as often to prompts that have another answer
        >>> found = score(np.arange(20) % 2, np.full(20, 0.7), none, base=(np.zeros(20), np.linspace(2, 3, 20), none))
        >>> found.state, found.exact, round(found.loss_gain, 2), [round(end, 2) for end in found.exact_gain_ends]
        ('form only', 0.5, 1.8, [0.21, 0.7])
    """
    own = Score(
        n=len(exact),
        exact=float(exact.mean()),
        exact_ends=share_interval(exact.tolist()) or _NONE,
        loss=float(loss.mean()),
        loss_ends=_mean_ends(loss),
        pairs=len(margin),
        margin=float(margin.mean()) if len(margin) else math.nan,
        margin_ends=_mean_ends(margin),
        apart=float(((margin > 0) + 0.5 * (margin == 0)).mean()) if len(margin) else math.nan,
    )
    if base is None:
        return own
    gained, lower, clearer = exact - base[0], base[1] - loss, margin - base[2]
    return Score(
        **vars(own)
        | {
            "exact_gain": float(gained.mean()),
            "exact_gain_ends": paired_share_interval(gained.tolist()) or _NONE,
            "loss_gain": float(lower.mean()),
            "loss_gain_ends": _mean_ends(lower),
            "margin_gain": float(clearer.mean()) if len(clearer) else math.nan,
            "margin_gain_ends": _mean_ends(clearer),
        }
    )


def _mean_ends(values: np.ndarray) -> Ends:
    from scipy.stats import t

    if len(values) < 2:
        return _NONE
    half = float(t.ppf(_LEVEL, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))
    return float(values.mean()) - half, float(values.mean()) + half
