"""Which prompts belong together: prompts of one template are not independent, and p-values must know that.

A command reads its prompts and calls ``units_of`` once. It adds the units to the prompts as a label
(``Units.added_to``), and gives ``Units.label`` to its probes as ``units=``. It prints ``Units.sentence``, and puts it
among the notes of its report.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int

from probes.functional.hsic import LEAST_DEBIASED
from probes.functional.relabelling import Relabelling
from probes.functional.units import FEWEST_ARRANGEMENTS, n_unit_pairings, units_needed
from tasks import InputError, LabelledPrompts
from tasks.errors import error_suggestion

_AUTO = "auto"
NONE = "none"
TEMPLATE = "template"
_LEAST_UNITS = 2 * LEAST_DEBIASED  # for CKA with an interval, which is from halves of the units


@dataclass(frozen=True)
class Units:
    """Which prompts belong together.

    Attributes:
        label: name of the label that probes get as ``units``, or ``None`` if prompts are taken as independent.
        values: unit of each prompt, if there is a label.
        sentence: says in reports how prompts were grouped.
        held_out: template or unit of each prompt, for a control that holds them out: the units, or templates that are
            too few for p-values. ``None`` if no two prompts are known to share one.
    """

    label: str | None
    values: Sequence[str] | None
    sentence: str
    held_out: Sequence[str] | None = None

    @property
    def codes(self) -> Int[np.ndarray, "n"] | None:
        """Units as numbers 0, 1, ..."""
        return None if self.values is None else label_codes(self.values)

    @property
    def name(self) -> str:
        """Name of a unit: its label, or a template."""
        return TEMPLATE if self.label is None else self.label

    def with_one(self, classes: Sequence[str]) -> list[str]:
        """Return the classes whose prompts share one template or unit, so that none is left if it is held out."""
        if self.held_out is None:
            return []
        of_class = _by_group(self.held_out, classes)
        return sorted(name for name, values in of_class.items() if len(set(values)) == 1)

    def of(self, places: Sequence[int]) -> Units:
        """Return the units of the prompts at these places."""
        values = None if self.values is None else [self.values[i] for i in places]
        held_out = None if self.held_out is None else [self.held_out[i] for i in places]
        return replace(self, values=values, held_out=held_out)

    def added_to(self, prompts: LabelledPrompts) -> LabelledPrompts:
        """Return the prompts with their units as a label, so that batches have it."""
        if self.label is None or self.values is None:
            return prompts
        return replace(prompts, labels={**prompts.labels, self.label: self.values})

    def testable(self, classes: Sequence[str], within: Sequence[str] | None = None) -> bool:
        """Return whether classes can be exchanged between these units, within others, often enough for a p-value."""
        if self.values is None:
            return True
        strata = None if within is None else label_codes(within)
        relabelling = Relabelling.from_classes(label_codes(classes), self.codes, strata)
        return relabelling.fixed_share < 1 and relabelling.enough(named=False)


def templates_of(prompts: Sequence[str], inputs: Sequence[str]) -> list[str]:
    """Return the template of each prompt: the prompt with a slot in place of its input, as a separate word.

    If the input does not occur as a separate word, the whole prompt is the template.

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
    compared_in: Sequence[str | None] | None = None,
) -> Units:
    """Return which prompts belong together.

    ``"auto"`` finds templates if prompts have a ``template`` or an ``input`` label, and uses them if there are enough
    for all measures. A p-value needs 20 relabellings of whole templates. CKA needs 8 templates in each group of
    prompts, with 20 ways to pair them.

    Args:
        prompts: with their labels.
        chosen: a label, ``"auto"`` or ``"none"``.
        relabelled: the label whose classes are exchanged for p-values, or ``None``.
        within: a label within whose classes they are exchanged.
        compared_in: group of each prompt, if CKA is measured, which is in each group. ``None`` for a prompt in none.

    Raises:
        InputError: for a label that the prompts do not have, that is the one measured, or that gives too few units for
            CKA.
    """
    if chosen == NONE:
        return _independent("Prompts are taken as independent (--units none).")
    if chosen != _AUTO:
        return _by_label(prompts, chosen, relabelled, compared_in)
    values = _found_templates(prompts)
    if values is None:
        return _independent('Prompts are taken as independent: templates are only found if prompts have an "input".')
    measured = _measured(values, compared_in)
    n_templates = len(set(measured))
    if n_templates == len(measured):
        return _independent("Prompts are taken as independent: no two share a template.")
    if n_templates == 1:
        return _independent("Prompts are taken as independent: all share one template.")
    too_few = _too_few(prompts, values, relabelled, within, compared_in)
    if too_few:
        sentence = (
            f"Prompts share {n_templates} templates, but are taken as independent, because {too_few}. Their p-values "
            "may be too small."
        )
        return Units(None, None, sentence, held_out=values)
    sentence = f"Prompts share {n_templates} templates, which are taken as independent units."
    return Units(TEMPLATE, values, sentence, held_out=values)


def _independent(sentence: str) -> Units:
    return Units(None, None, sentence)


def _by_label(
    prompts: LabelledPrompts, label: str, relabelled: str | None, compared_in: Sequence[str | None] | None
) -> Units:
    if label not in prompts.labels:
        raise InputError(
            f"{prompts.source} has no label {label!r} for --units{error_suggestion(label, prompts.labels)}"
        )
    if label == relabelled:
        raise InputError(f"--units is {label!r}, the label that is measured; give another label, or none")
    values = list(prompts.labels[label])
    few = "" if compared_in is None else few_units(values, compared_in)
    n_units = len(set(_measured(values, compared_in)))
    if n_units == 1:
        few = "it has one value only"
    if few:
        raise InputError(f"--units is {label!r}, but {few}; give another label, or none")
    sentence = f"Prompts of one {label} are taken as one unit; there are {n_units} units."
    return Units(label, values, sentence, held_out=values)


def _measured(values: Sequence[str], compared_in: Sequence[str | None] | None) -> Sequence[str]:
    """Return the values of prompts that are in a group, or all without groups."""
    if compared_in is None:
        return values
    return [value for value, group in zip(values, compared_in, strict=True) if group is not None]


def _found_templates(prompts: LabelledPrompts) -> list[str] | None:
    """Return the template of each prompt, if the prompts say: as a label, or by their input."""
    if TEMPLATE in prompts.labels:
        return list(prompts.labels[TEMPLATE])
    if "input" in prompts.labels:
        return templates_of(prompts.prompts, prompts.labels["input"])
    return None


def label_codes(values: Sequence[str]) -> Int[np.ndarray, "n"]:
    """Return each value's place among the sorted values. One long value takes no memory for the others.

    Example:
        >>> label_codes(["sort", "copy", "sort"]).tolist()
        [1, 0, 1]
    """
    places = {value: place for place, value in enumerate(sorted(set(values)))}
    return np.array([places[value] for value in values], dtype=np.int64)


def few_units(units: Sequence[str], groups: Sequence[str | None], least: int = _LEAST_UNITS) -> str:
    """Return which group has fewer units than CKA needs, or ``""`` if none has.

    Example:
        >>> few_units(["a", "a", "b", "b"], ["x", "x", "x", "x"])
        "'x' has 2 of them, and CKA needs 8"
    """
    for group, of_group in _by_group(units, groups).items():
        if len(set(of_group)) < least:
            return f"{group!r} has {len(set(of_group))} of them, and CKA needs {least}"
    return ""


def repeated_prompt_notes(prompts: LabelledPrompts, units: Units) -> list[str]:
    """Note that some prompts repeat one of another unit, although units are taken as independent."""
    unit = range(len(prompts)) if units.values is None else units.values
    repeated = len(set(zip(prompts.prompts, unit, strict=True))) - len(set(prompts.prompts))
    if not repeated:
        return []
    repeats = "prompts repeat" if repeated > 1 else "prompt repeats"
    return [
        f"{repeated} {repeats} an earlier one word for word, and intervals and chance take them to be "
        "independent: give each once."
    ]


def _by_group(units: Sequence[str], groups: Sequence[str | None]) -> dict[str, list[str]]:
    by_group: dict[str, list[str]] = {}
    for unit, group in zip(units, groups, strict=True):
        if group is not None:
            by_group.setdefault(group, []).append(unit)
    return by_group


def _too_few(
    prompts: LabelledPrompts,
    values: Sequence[str],
    relabelled: str | None,
    within: str | None,
    compared_in: Sequence[str | None] | None,
) -> str:
    """Return why these units cannot be used, or ``""`` if they can."""
    if compared_in is not None:
        few = few_units(values, compared_in)
        if few:
            return few
        for group, units in _by_group(values, compared_in).items():
            if n_unit_pairings(len(units), torch.from_numpy(label_codes(units))) < FEWEST_ARRANGEMENTS:
                return f"those of {group!r} with equally many prompts can be paired in too few ways"
    if relabelled is None:
        return ""
    strata = None if within is None else prompts.labels[within]
    if Units(TEMPLATE, values, "").testable(prompts.labels[relabelled], strata):
        return ""
    n_classes = len(prompts.classes[relabelled])
    more = ""
    if n_classes > 1 and within is None:
        more = f" ({units_needed(n_classes, named=False)} for each {relabelled} would do)"
    return f"label {relabelled!r} has fewer than {FEWEST_ARRANGEMENTS} relabellings that keep them together{more}"
