"""What a new user gives in place of a probe, and how a probe may be written."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from probes import NDims, Probe, ProbeResult, Sum, last_token, residual, run
from probes.engine.run import probes_as_list
from probes.extend import check_probe
from tasks import Batch, InputError, LabelledPrompts

BATCH = Batch(torch.arange(8).reshape(4, 2) % 5)


class Count(Probe):
    n = Sum(torch.int64)

    def __init__(this, at: Any = residual(), readout: Any = last_token(), factor: int = 2) -> None:
        this.at, this.readout, this.factor = at, readout, factor

    def update(self, activations: Any, batch: Batch) -> None:
        self.n.add("n", torch.tensor(len(batch.tokens) * self.factor))

    def compute(self) -> ProbeResult:
        return self.result({"n": self.n["n"]}, {"n": ()})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (NDims, "NDims is a probe class; expected a probe: write NDims(), with its settings"),
        ([NDims(), Count], "Count is a probe class; expected a probe: write Count(), with its settings"),
        ("NDims", "'NDims' is not a probe; expected one or several, such as CKA()"),
        ([], "no probes given; give one or several, such as CKA()"),
    ],
)
def test_what_is_no_probe_is_told_before_the_model_runs(tiny_model: Any, given: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        run(tiny_model(), BATCH, given)


def test_probes_from_a_generator() -> None:
    assert [type(probe) for probe in probes_as_list(probe() for probe in (NDims, Count))] == [NDims, Count]  # type: ignore[arg-type]


def test_the_probe_may_have_another_name_than_self_in_its_own_init(tiny_model: Any) -> None:
    probe = Count(factor=3)
    assert repr(probe) == "Count(at=residual(), readout=last_token(), factor=3)"
    assert list(probe.parameters()) == ["at", "readout", "factor"]
    assert run(tiny_model(), BATCH, probe)["n"] == 12


class Forgetful(Count):
    def __init__(self, where: Any = residual()) -> None:
        self.at, self.readout, self.factor = where, last_token(), 2


class Bare(Count):
    def compute(self) -> Any:
        return {"n": self.n["n"]}


@pytest.mark.parametrize(
    ("probe", "message"),
    [
        (
            Forgetful(),
            "Forgetful does not keep its argument 'where'; keep every argument of __init__ under its own name "
            "(self.where = where)",
        ),
        (Bare(), "compute of Bare returned a dict; return self.result(values, axes)"),
    ],
)
def test_a_probe_that_is_written_wrongly_is_told_how(tiny_model: Any, probe: Probe, message: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        run(tiny_model(), BATCH, probe)


def test_prompts_are_not_batches_yet(tiny_model: Any) -> None:
    prompts = LabelledPrompts(["a", "b"], {"task": ["x", "y"]})
    with pytest.raises(InputError, match=r"got LabelledPrompts, which prompts.batches\(tokenizer\) makes batches of$"):
        run(tiny_model(), prompts, NDims())  # type: ignore[call-overload]


def test_the_contract_is_of_probes_not_of_classes(tiny_model: Any) -> None:
    with pytest.raises(
        InputError, match=r"^NDims is a probe class; expected a probe: write NDims\(\), with its settings$"
    ):
        check_probe(NDims, tiny_model(), BATCH)  # type: ignore[arg-type]
