"""Whether the first checkpoint of a series has random weights or was trained before, by its distance to random ones."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from jaxtyping import Bool
from torch import Tensor

from mechclust.models.sketch import WeightSketch

MIN_CHANGED = 0.5  # share of the constants that a trained model has changed
SAME_SCALE = 0.1  # largest relative difference in size between two draws of random weights


class Origin(StrEnum):
    """State of the first checkpoint."""

    RANDOM = "random weights"
    TRAINED = "trained before"
    UNKNOWN = "could not be determined"


_MEANINGS = {  # of structure that is above chance at the first checkpoint
    Origin.RANDOM: "Structure there comes from the prompts or the architecture, and was not learnt.",
    Origin.TRAINED: "Structure there may have been learnt before, or come from the prompts or the architecture. This "
    "series cannot tell which.",
    Origin.UNKNOWN: "Structure there may have been learnt, or come from the prompts or the architecture.",
}


@dataclass(frozen=True, eq=False)
class RandomWeights:
    """A randomly initialised copy of the model.

    Attributes:
        sketch: sketch of its weights.
        constant: which values of the sketch are of weights that are initialised with a single number, as biases with 0
            and normalisation weights with 1.
    """

    sketch: WeightSketch
    constant: Bool[Tensor, "sampled"]


@dataclass(frozen=True)
class Start:
    """State of the first checkpoint, and the evidence for it.

    Attributes:
        name: name of the checkpoint.
        origin: whether it was trained.
        reason: the evidence, as a clause.
    """

    name: str
    origin: Origin
    reason: str

    @property
    def meaning(self) -> str:
        """Meaning of structure at the first checkpoint, in sentences."""
        return f"{_MEANINGS[self.origin]} Evidence: {self.reason}."


def start_of(name: str, step: int | None, weights: WeightSketch, random: RandomWeights | str) -> Start:
    """Compare the first checkpoint with random weights.

    Training changes the weights that are initialised with a single number, such as biases, from its first step on.
    Whatever the size of the initialisation, random weights have none of them changed. Without further evidence, the
    other weights must also have the size that the configuration gives them.

    Args:
        name: of the checkpoint.
        step: the number in its name.
        weights: its sketch.
        random: a randomly initialised copy, or why there is none.
    """
    if isinstance(random, str):
        return Start(name, Origin.UNKNOWN, random)
    if weights.shapes != random.sketch.shapes:
        return Start(name, Origin.UNKNOWN, "its weights have other names or shapes than those of a random model")
    constant = random.constant
    if not bool(constant.any()):
        return Start(name, Origin.UNKNOWN, "no weight of this architecture is initialised with a single number")
    changed = float((weights.values[constant] != random.sketch.values[constant]).double().mean())
    share = f"{changed:.0%} of its biases and other weights that are initialised with a single number have changed"
    if changed >= MIN_CHANGED:
        return Start(name, Origin.TRAINED, share)
    if changed > 0:
        return Start(name, Origin.UNKNOWN, f"only {share}")
    intact = "its biases and other weights that are initialised with a single number have not changed"
    size = float(weights.values[~constant].double().norm() / random.sketch.values[~constant].double().norm())
    if step == 0 or abs(size - 1) <= SAME_SCALE:
        return Start(name, Origin.RANDOM, intact)
    return Start(name, Origin.UNKNOWN, f"{intact}, but the others are {size:.2g} times as large as random ones")
