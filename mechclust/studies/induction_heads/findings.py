"""The findings O1 to O5 of the induction-head study with their controls, and the check O6."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Finding, check_part
from mechclust.evidence.compared import compared
from mechclust.studies.induction_heads.config import InductionHeadsConfig
from mechclust.studies.induction_heads.results import RunResults, by_arm, half_step
from mechclust.studies.study import Job

INDUCTION_SCORE = Bound(">=", 0.5)
LOSS = Bound("<=", 0.2)  # nats
STEP_DIFFERENCE = Bound("<=", 0.1)  # share of the step
PREVIOUS_SCORE = Bound(">=", 0.1)
NO_LATER = Bound("<=", 0)  # steps
RISE_OF_ALL = Bound(">=", 2)  # nats
RISE_OF_ONE = Bound("<=", 0.1)  # nats
UNTRAINED = Bound("<=", 0.05)
_PAPER = "Olsson et al.; bound ours"
_ONE_LAYER = "networks with one layer"

_Seeds = Float[np.ndarray, "seed"]


def findings_of(config: InductionHeadsConfig, runs: Mapping[Job, RunResults]) -> list[Finding]:
    """Return O1 to O6, of which O6 is a check. Scores are attention less chance."""
    two, one = by_arm(runs)
    return [
        compared(
            "O1",
            "a head of the last layer becomes an induction head (attention less chance)",
            {"": INDUCTION_SCORE},
            [np.array([run.top_induction[-1] for run in two])],
            _ONE_LAYER,
            [np.array([run.top_induction[-1] for run in one])],
            source=_PAPER,
            shown="headline",
        ),
        _coincidence(two, one),
        _previous_token_heads(two, one),
        compared(
            "O4",
            "repeated tokens are predicted (loss in nats)",
            {"": LOSS},
            [np.array([run.loss[-1] for run in two])],
            _ONE_LAYER,
            [np.array([run.loss[-1] for run in one])],
            source=_PAPER,
            shown="headline",
        ),
        _ablations(two),
        Finding(
            id="O6",
            kind="check",
            statement="no head of an untrained network has a higher induction score than this",
            source="set-up",
            parts=(check_part("", [run.induction[0].max() for run in two], UNTRAINED),),
        ),
    ]


def _coincidence(two: Sequence[RunResults], one: Sequence[RunResults]) -> Finding:
    drops = [half_step(run.steps, run.loss / of_one.loss) for run, of_one in zip(two, one, strict=True)]
    return compared(
        "O2",
        "induction heads form when the loss drops below one layer's: steps half way differ by this share",
        {"": STEP_DIFFERENCE},
        [_differences(two, drops)],
        "the drop of one layer's own loss",
        [_differences(two, [half_step(run.steps, run.loss) for run in one])],
        source=_PAPER,
        shown="headline",
    )


def _differences(runs: Sequence[RunResults], drops: Sequence[float]) -> _Seeds:
    """Return by which share the steps at which induction heads form differ from those at which a loss drops."""
    return np.abs(_formed(runs) / np.array(drops) - 1)


def _formed(runs: Sequence[RunResults]) -> _Seeds:
    return np.array([half_step(run.steps, run.top_induction) for run in runs])


def _previous_token_heads(two: Sequence[RunResults], one: Sequence[RunResults]) -> Finding:
    formed = _formed(two)
    return compared(
        "O3",
        "a previous-token head forms in the first layer (attention less chance), half way no later than the induction "
        "head",
        {"at the end": PREVIOUS_SCORE, "steps later": NO_LATER},
        _score_and_delay(two, formed),
        _ONE_LAYER,
        _score_and_delay(one, formed),
        source=f"expected from {_PAPER}",
    )


def _score_and_delay(runs: Sequence[RunResults], formed: _Seeds) -> list[_Seeds]:
    score = np.array([run.top_previous[-1] for run in runs])
    delay = np.array([half_step(run.steps, run.top_previous) for run in runs]) - formed
    return [score, delay]


def _ablations(two: Sequence[RunResults]) -> Finding:
    return compared(
        "O5",
        "the prediction needs the induction heads, but not the strongest one (rise of the loss in nats when ablated)",
        {"all of the last layer": RISE_OF_ALL, "the strongest": RISE_OF_ONE},
        _rises(two, [run.induction[-1] for run in two], layer=1),
        "heads of the first layer, the strongest previous-token head alone",
        _rises(two, [run.previous[-1] for run in two], layer=0),
        source="ours",
    )


def _rises(runs: Sequence[RunResults], scores: Sequence[Float[np.ndarray, "layer head"]], layer: int) -> list[_Seeds]:
    together = np.array([run.together[layer] for run in runs])
    strongest = [run.alone[layer, of_run[layer].argmax()] for run, of_run in zip(runs, scores, strict=True)]
    return [together, np.array(strongest)]
