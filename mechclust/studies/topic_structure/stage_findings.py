"""Two stages: which of E3's cells (initial weights x optimiser x loss x rate) show them. Findings P4, P4a and P4b."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Control, Finding, Part, mean_part
from mechclust.studies.topic_structure.arms import Cell
from mechclust.studies.topic_structure.config import LEAST_STEPS, TopicStructureConfig, not_tested_unless
from mechclust.studies.topic_structure.results import ArmRuns, exchanged_shares_of, shares_of

_HALF = Bound(">=", 0.5)
_LESS = Bound("<", 0.5)
_PAPER = "Li, Li & Risteski; rule ours"
_SHARE = "W_V has made half of its total change from the start when W_K or W_Q has made a tenth of its own"
_EXCHANGED = "the same networks with W_V and W_K, W_Q exchanged"

Shares = Float[np.ndarray, "seed cell"]


def stage_findings(config: TopicStructureConfig, runs: ArmRuns) -> list[Finding]:
    """Return P4, P4a and P4b. Bounds were written before any run on the seeds that they are judged by."""
    cells, shares = shares_of(config, runs)
    exchanged = exchanged_shares_of(config, runs)
    moved = ~np.isnan(shares).any(axis=0)
    usable = [place for place in range(len(cells)) if moved[place]]
    near = [place for place in usable if cells[place].init == "near-zero"]
    default = [place for place in usable if cells[place].init == "default"]
    sgd = [place for place in near if cells[place].optimiser == "SGD"]
    adam = [place for place in near if cells[place].optimiser == "Adam"]
    squared = [place for place in sgd if cells[place].objective == "squared"]
    left_out = _left_out(cells, moved)
    return [
        Finding(
            id="P4",
            statement=f"E3, near-zero start, SGD or Adam: {_SHARE}, in every cell in which attention moves",
            source=_PAPER,
            parts=(_lowest("SGD, lowest", shares[:, sgd]), _lowest("Adam, lowest", shares[:, adam])),
            control=Control(
                _EXCHANGED, (_lowest("SGD, lowest", exchanged[:, sgd]), _lowest("Adam, lowest", exchanged[:, adam]))
            ),
            shown="headline",
            not_tested=_reason(config, near),
            note=f"{len(sgd)} and {len(adam)} cells{left_out}",
        ),
        Finding(
            id="P4a",
            statement=f"E3, near-zero start, SGD, squared loss: {_SHARE}, at every rate at which attention moves",
            source=_PAPER,
            parts=(_lowest("lowest", shares[:, squared]),),
            control=Control(_EXCHANGED, (_lowest("lowest", exchanged[:, squared]),)),
            shown="table",
            not_tested=_reason(config, squared),
            note=f"implied by P4; {len(squared)} cells{left_out}",
        ),
        Finding(
            id="P4b",
            statement=f"E3, default start: in no cell in which attention moves {_SHARE}",
            source=_PAPER,
            parts=(_highest("highest", shares[:, default]),),
            control=Control("the near-zero start", (_highest("highest", shares[:, near]),)),
            not_tested=_reason(config, default),
            note=f"{len(default)} cells{left_out}",
        ),
    ]


def _lowest(name: str, shares: Shares) -> Part:
    return mean_part(name, shares.min(axis=1) if shares.shape[1] else [], _HALF)


def _highest(name: str, shares: Shares) -> Part:
    return mean_part(name, shares.max(axis=1) if shares.shape[1] else [], _LESS)


def _reason(config: TopicStructureConfig, places: Sequence[int]) -> str:
    if not places:
        return "attention moved in none of its cells"
    return not_tested_unless(config.test_findings and config.steps >= LEAST_STEPS)


def _left_out(cells: Sequence[Cell], moved: np.ndarray) -> str:
    """Return the end of a note that names the cells without a share."""
    still = [cell.arm.removeprefix("E3 ") for cell, moves in zip(cells, moved, strict=True) if not moves]
    what = "left out, in some seed attention hardly moved or training diverged"
    return f"; {what}: {', '.join(still)}" if still else ""
