"""Which prompts belong together: found from their templates, or given as a label."""

from __future__ import annotations

from pathlib import Path

import pytest

from mechclust.commands.units import TEMPLATE, templates_of, units_of
from tasks import InputError, LabelledPrompts

SHIPPED = Path(__file__).parents[3] / "examples" / "prompts" / "instructions.jsonl"


def prompts(n_tasks: int, n_templates: int, n_inputs: int = 4) -> LabelledPrompts:
    """Prompts with ``n_templates`` templates for each task."""
    rows = [(t, k, i) for t in range(n_tasks) for k in range(n_templates) for i in range(n_inputs)]
    return LabelledPrompts(
        [f"task {t}, wording {k}: word{i}." for t, k, i in rows],
        {"task": [str(t) for t, _, _ in rows], "input": [f"word{i}" for _, _, i in rows]},
    )


def test_templates_of_the_shipped_prompts_are_found() -> None:
    shipped = LabelledPrompts.from_jsonl(SHIPPED)
    units = units_of(shipped, "auto")
    assert units.label == TEMPLATE
    assert len(set(units.values or ())) == 260
    assert all("{input}" in template for template in units.values or ())
    assert units.added_to(shipped).labels[TEMPLATE] == units.values


def test_templates_are_used_if_they_can_be_tested() -> None:
    assert units_of(prompts(6, 2), "auto").label == TEMPLATE
    single = units_of(prompts(6, 1), "auto")
    assert single.label is None
    assert "2 templates for each could be tested" in single.sentence
    assert "too small" in single.sentence


def test_without_an_input_nothing_is_found_and_it_is_said() -> None:
    plain = LabelledPrompts(["a b", "c d"], {"task": ["x", "y"]})
    assert units_of(plain, "auto").label is None
    assert "independent" in units_of(plain, "auto").sentence
    own = LabelledPrompts(["say a", "tell b"], {"task": ["x", "y"], "input": ["a", "b"]})
    assert "no two share a template" in units_of(own, "auto").sentence


def test_a_label_or_none_overrides() -> None:
    given = prompts(3, 2)
    assert units_of(given, "none").label is None
    assert units_of(given, "input").label == "input"
    with pytest.raises(InputError, match="no label 'inpt'"):
        units_of(given, "inpt")
    with pytest.raises(InputError, match="the label that is measured"):
        units_of(given, "task")


def test_an_input_is_replaced_as_a_word() -> None:
    assert templates_of(["say it", "say a!", "say 'b c'"], ["", "a", "b c"]) == [
        "say it",
        "say {input}!",
        "say '{input}'",
    ]
