"""Which prompts belong together: those of one template are not independent, so p-values must not take them as such.

A command reads its prompts, calls ``units_of`` once, adds the units to the prompts as a label (``Units.added_to``),
gives ``Units.label`` to its probes as ``units=``, prints ``Units.sentence``, and puts it among the notes of its report.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int

from probes.functional.units import FEWEST, Relabelling, n_pairings, units_needed
from tasks import InputError, LabelledPrompts
from tasks.errors import suggest

AUTO, NONE = "auto", "none"
TEMPLATE = "template"


@dataclass(frozen=True)
class Units:
    """Which prompts belong together.

    Attributes:
        label: name of the label that probes get as ``units``; ``None`` if prompts are taken as independent.
        values: unit of each prompt, if there is a label.
        sentence: what a reader must know.
    """

    label: str | None
    values: Sequence[str] | None
    sentence: str

    @property
    def codes(self) -> Int[np.ndarray, "n"] | None:
        """The units as numbers 0, 1, ..."""
        return None if self.values is None else _codes(self.values)

    def added_to(self, prompts: LabelledPrompts) -> LabelledPrompts:
        """Return the prompts with their units as a label, so that batches have it."""
        if self.label is None or self.values is None:
            return prompts
        return replace(prompts, labels={**prompts.labels, self.label: self.values})

    def testable(self, classes: Sequence[str], within: Sequence[str] | None = None) -> bool:
        """Return whether classes can be exchanged between these units, within others, often enough for a p-value."""
        if self.codes is None:
            return True
        relabelling = Relabelling.of(_codes(classes), self.codes, None if within is None else _codes(within))
        return relabelling.fixed_share < 1 and relabelling.n_distinct(named=False) >= FEWEST - 1e-6


def templates_of(prompts: Sequence[str], inputs: Sequence[str]) -> list[str]:
    """Return the template of each prompt: the prompt with its input replaced by a slot, where it stands as a word.

    Example:
        >>> templates_of(["Plural of cat:", "Plural of dog:"], ["cat", "dog"])
        ['Plural of {input}:', 'Plural of {input}:']
    """
    return [_template(prompt, given) for prompt, given in zip(prompts, inputs, strict=True)]


def _template(prompt: str, given: str) -> str:
    if not given:
        return prompt
    return re.sub(rf"(?<!\w){re.escape(given)}(?!\w)", "{input}", prompt)


def units_of(
    prompts: LabelledPrompts,
    chosen: str,
    *,
    relabelled: str | None = "task",
    within: str | None = None,
    paired: bool = False,
) -> Units:
    """Return which prompts belong together.

    ``"auto"`` finds templates if prompts have an ``input`` label, and uses them if a p-value is possible with them:
    with at least 20 relabellings, or pairings, of whole templates.

    Args:
        prompts: with their labels.
        chosen: a label, ``"auto"`` or ``"none"``.
        relabelled: the label whose classes are exchanged for p-values; ``None`` if none is.
        within: a label within whose classes they are exchanged.
        paired: whether prompts are also paired anew, for the p-values of CKA.

    Raises:
        InputError: for a label that the prompts do not have.
    """
    if chosen == NONE:
        return Units(None, None, "Prompts are taken as independent (--units none).")
    if chosen != AUTO:
        if chosen not in prompts.labels:
            raise InputError(f"{prompts.source} has no label {chosen!r} for --units{suggest(chosen, prompts.labels)}")
        if chosen == relabelled:
            raise InputError(f"--units is {chosen!r}, the label that is measured; give another label, or none")
        values = list(prompts.labels[chosen])
        return Units(
            chosen, values, f"Prompts of one {chosen} are taken as one unit; there are {len(set(values))} units."
        )
    if TEMPLATE in prompts.labels:
        values = list(prompts.labels[TEMPLATE])
    elif "input" in prompts.labels:
        values = templates_of(prompts.prompts, prompts.labels["input"])
    else:
        return Units(
            None, None, 'Prompts are taken as independent: templates are only found if prompts have an "input".'
        )
    n_templates = len(set(values))
    if n_templates == len(values):
        return Units(None, None, "Prompts are taken as independent: no two share a template.")
    if too_few := _too_few(prompts, values, relabelled, within, paired):
        sentence = f"Prompts share {n_templates} templates, but are taken as independent, because {too_few}."
        return Units(None, None, f"{sentence} Their p-values may be too small.")
    return Units(TEMPLATE, values, f"Prompts share {n_templates} templates, which are taken as independent units.")


def _too_few(
    prompts: LabelledPrompts, values: Sequence[str], relabelled: str | None, within: str | None, paired: bool
) -> str:
    """Return why no p-value is possible with these units; empty if one is."""
    codes = _codes(values)
    if paired and n_pairings(len(codes), torch.from_numpy(codes)) < FEWEST:
        return "templates with equally many prompts can be paired in too few ways"
    if relabelled is None:
        return ""
    strata = None if within is None else prompts.labels[within]
    if Units(TEMPLATE, values, "").testable(prompts.labels[relabelled], strata):
        return ""
    n_classes = len(prompts.classes[relabelled])
    needed = units_needed(n_classes, named=False) if n_classes > 1 else 2
    return f"{relabelled}s can be exchanged between them in too few ways; {needed} templates for each could be tested"


def _codes(values: Sequence[str]) -> Int[np.ndarray, "n"]:
    return np.unique(np.asarray(values), return_inverse=True)[1].astype(np.int64)
