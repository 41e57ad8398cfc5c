"""``check_probe`` itself: sound probes pass, and each wrong one fails at the clause it breaks."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probes import (
    Probe,
    Projection,
    Rows,
    Sum,
    TaskClusterARI,
    all_tokens,
    attention_pattern,
    last_token,
    mean,
    residual,
    token_at,
)
from probes.checks.check_probe import _CLAUSES, check_probe
from probes.engine.result import ProbeResult
from probes.store.index_set import IndexSet
from tasks import Batch, InputError

PRIVATE = random.Random(0)


class MeanNorm(Probe):
    total, count = Sum(), Sum(torch.int64)

    def __init__(self, at: Any = residual(), readout: Any = last_token()) -> None:
        self.at, self.readout = at, readout

    def update(self, activations: Any, batch: Batch) -> None:
        for site, x in activations.items():
            self.total.add(site, x.flatten(1).norm(dim=1).sum(dtype=torch.float64))
            self.count.add(site, len(x))

    def compute(self) -> ProbeResult:
        norms = [self.total[s] / self.count[s] for s in self.site_names]
        return self.result({"norm": torch.stack(norms)}, {"norm": ("site",)})


class Kept(MeanNorm):
    """Without rounding: all clauses hold exactly."""

    rows = Rows()

    def update(self, activations: Any, batch: Batch) -> None:
        for site, x in activations.items():
            self.rows.add(site, batch.index, x.flatten(1))

    def compute(self) -> ProbeResult:
        norms = [self.rows.get(s)[1].double().norm() for s in self.site_names]
        return self.result({"norm": torch.stack(norms)}, {"norm": ("site",)})


@pytest.mark.parametrize(
    "probe",
    [
        MeanNorm(),
        MeanNorm(at=[residual(final_norm=True), "hook_pos_embed"], readout=mean()),
        MeanNorm(at=attention_pattern(), readout=all_tokens()),
        Kept(at=residual(-1), readout=token_at("input")),
        TaskClusterARI(n_init=1, n_permutations=10, also=("output",), at=residual(-1)),
        TaskClusterARI(n_init=1, n_permutations=10, max_rows=6, at=residual(-1)),
        Projection(at=residual([0, -1]), method="pca"),
    ],
    ids=repr,
)
def test_sound_probes_pass(model: Any, batch: Batch, probe: Probe) -> None:
    check_probe(probe, model, batch.split(5))
    assert probe._empty  # it was only cloned


def test_two_processes_agree_with_one(forked: None, model: Any, batch: Batch) -> None:
    check_probe(TaskClusterARI(n_init=1, n_permutations=10), model, batch, processes=True)


def test_batches_may_have_different_lengths(model: Any, batch: Batch) -> None:
    short = replace(
        batch,
        tokens=batch.tokens[:, :-1],
        attention_mask=None if batch.attention_mask is None else batch.attention_mask[:, :-1],
        targets=None,
        loss_mask=None,
        positions={},
        labels={},
        index=batch.index + len(batch),
    )
    long = replace(batch, targets=None, loss_mask=None, positions={}, labels={})
    check_probe(Kept(), model, [long, short])


def test_too_few_examples_are_told(model: Any, batch: Batch) -> None:
    with pytest.raises(InputError, match="check_probe was given 3 examples; give at least 4, to split them"):
        check_probe(MeanNorm(), model, batch.select(slice(0, 3)))


# ---- one wrong probe per way to break a clause ----


class ChangesParameter(Kept):
    def __init__(self, at: Any = residual(), readout: Any = last_token(), labels: Any = ("a",)) -> None:
        super().__init__(at, readout)
        self.labels = list(labels)


class ForgetsParameter(Kept):
    def __init__(self, at: Any = residual(), readout: Any = last_token(), k: int = 2) -> None:
        super().__init__(at, readout)


class OpaqueRepr(Kept):
    def __init__(self, at: Any = residual(), readout: Any = last_token(), weigh: Any = object()) -> None:
        super().__init__(at, readout)
        self.weigh = weigh


class ShortRepr(Kept):
    def __init__(self, at: Any = residual(), readout: Any = last_token(), k: int = 2) -> None:
        super().__init__(at, readout)
        self.k = k

    def __repr__(self) -> str:
        return "ShortRepr()"


class WithoutReadout(Kept):
    def __init__(self, at: Any = residual()) -> None:
        self.at = at


class Stateless(MeanNorm):
    total = count = None  # type: ignore[assignment]


class ReturnsTensor(Kept):
    def compute(self) -> Any:
        return super().compute()["norm"]


class UpdateFails(Kept):
    def update(self, activations: Any, batch: Batch) -> None:
        batch.label("mood")


class UndeclaredState(Kept):
    def update(self, activations: Any, batch: Batch) -> None:
        super().update(activations, batch)
        self.seen = getattr(self, "seen", 0) + len(batch)


class ChangesActivations(Kept):
    def update(self, activations: Any, batch: Batch) -> None:
        super().update({k: x.mul_(2) for k, x in activations.items()}, batch)


class ChangesLabels(Kept):
    def update(self, activations: Any, batch: Batch) -> None:
        super().update(activations, batch)
        batch.labels["task"].add_(1)


class ComputeDraws(Kept):
    def compute(self) -> ProbeResult:
        result = super().compute()
        return self.result({"norm": result["norm"] + PRIVATE.random()}, result.axes)


class KeepsView(Kept):
    def update(self, activations: Any, batch: Batch) -> None:
        for site, x in activations.items():
            self.rows._values.setdefault(site, []).append((batch.index.clone(), x.flatten(1)))


class NeverForgets(Kept):
    def reset(self) -> None:
        pass


class AveragesBatches(MeanNorm):
    def update(self, activations: Any, batch: Batch) -> None:
        for site, x in activations.items():
            self.total.add(site, x.norm(dim=1).mean(dtype=torch.float64))
            self.count.add(site, 1)


class SumsInFloat32(MeanNorm):
    def update(self, activations: Any, batch: Batch) -> None:
        for site, x in activations.items():
            self.total.add(site, x.norm(dim=1).sum())
            self.count.add(site, len(x))


class DependsOnOrder(Kept):
    """Weighs each example by its place in its batch order, which ``Rows`` by batch count would not."""

    def update(self, activations: Any, batch: Batch) -> None:
        held = sum(len(i) for i, _ in self.rows._values.get(next(iter(activations)), []))
        place = torch.arange(held, held + len(batch))
        for site, x in activations.items():
            self.rows.add(site, batch.index, x.flatten(1) * place[:, None])


class MergeReplaces(MeanNorm):
    def merge(self, other: Any) -> None:
        self.load_state_dict(other.state_dict())


class CountsTwice(Kept):
    def observe(self, activations: Any, batch: Batch) -> None:
        self.update(activations, batch)


class MergesTwice(Kept):
    def merge(self, other: Probe) -> None:
        self._sites = self._sites or other._sites
        self.rows.merge(other.rows)


class MergesOnceOnly(Kept):
    merged = False

    def merge(self, other: Probe) -> None:
        if self.merged:
            raise InputError("two parts are enough")
        self.merged = True
        super().merge(other)


class LoadForgetsExamples(Kept):
    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict({**state, "examples": torch.zeros(0, 2, dtype=torch.int64)})


class FileForgetsExamples(Kept):
    def load_state(self, path: Any) -> None:
        super().load_state(path)
        self._examples = IndexSet()


class StateLosesBits(Kept):
    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        halved = {k: x.half().float() if x.is_floating_point() else x for k, x in state["tensors"].items()}
        return {**state, "tensors": halved}


class LoadLosesBits(Kept):
    def load_state_dict(self, state: Any) -> None:
        halved = {k: x.half().float() if x.is_floating_point() else x for k, x in state["tensors"].items()}
        super().load_state_dict({**state, "tensors": halved})


class StateLosesSites(Kept):
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "sites": []}


class SilentNan(Kept):
    def compute(self) -> ProbeResult:
        result = super().compute()
        enough = len(self.rows.get(self.site_names[0])[0]) > 1
        return self.result({"norm": result["norm"] if enough else result["norm"] * torch.nan}, result.axes)


class LeavesHook(Kept):
    def bind(self, model: Any) -> Any:
        model.hook_dict["hook_embed"].register_forward_hook(lambda *_: None)
        return super().bind(model)


class LeavesTraining(Kept):
    def bind(self, model: Any) -> Any:
        model.eval()
        return super().bind(model)


class SeedsGlobally(Kept):
    def update(self, activations: Any, batch: Batch) -> None:
        super().update(activations, batch)
        torch.manual_seed(0)


class ComputeInPlace(MeanNorm):
    def compute(self) -> ProbeResult:
        for site in self.site_names:
            self.total[site].mul_(2)
        return super().compute()


class TensorInMetadata(Kept):
    def compute(self) -> ProbeResult:
        result = super().compute()
        return self.result(result.values, result.axes, metadata={"norm": result["norm"]})


KEPT_ALIVE: list[Any] = []


class KeepsInItsModule(Kept):
    def update(self, activations: Any, batch: Batch) -> None:
        super().update(activations, batch)
        KEPT_ALIVE.append(activations)


class ChangesPositions(Kept):
    def update(self, activations: Any, batch: Batch) -> None:
        super().update(activations, batch)
        batch.positions["input"].zero_()


class EmptyNote(Kept):
    def compute(self) -> ProbeResult:
        result = super().compute()
        return self.result({"norm": result["norm"] * torch.nan}, result.axes, notes=[" "])


class DrawsFromNumpy(Kept):
    def update(self, activations: Any, batch: Batch) -> None:
        super().update(activations, batch)
        np.random.rand()


class ChangesWeights(Kept):
    def bind(self, model: Any) -> Any:
        with torch.no_grad():
            next(iter(model.parameters())).add_(0.1)
        return super().bind(model)


class ResultTuple(Kept):
    def compute(self) -> ProbeResult:
        result = super().compute()
        return self.result(result.values, result.axes, metadata={"pair": (1, 2)})


class UnknownSite(Kept):
    def compute(self) -> ProbeResult:
        return self.result({"norm": torch.zeros(1)}, {"norm": ("site",)}, {"site": ["nowhere"]})


class ReducesAlone(Kept):
    def all_reduce(self) -> None:
        pass


WRONG: list[tuple[Probe, str, str]] = [
    (ChangesParameter(), "parameters", "__init__ changes 'labels'; store it as given"),
    (ForgetsParameter(), "parameters", "keep every argument of __init__ under its own name (self.k = k)"),
    (OpaqueRepr(), "parameters", "give every argument a repr that builds it"),
    (ShortRepr(k=3), "parameters", "repr of ShortRepr() makes a probe with other parameters; leave __repr__ and clone"),
    (WithoutReadout(), "declarations", "there is no self.readout; set it in __init__, or call super().__init__()"),
    (Stateless(), "declarations", "no state is declared; declare Sum(), Rows() or Moments() as class attributes"),
    (ReturnsTensor(), "first result", "compute gives a Tensor; return self.result(values, axes)"),
    (UpdateFails(), "first result", "with InputError: no label 'mood' in this batch"),
    (UndeclaredState(), "state", "update changes self.seen, which is not declared; make it a Sum() or Rows()"),
    (ChangesActivations(), "inputs untouched", "update changes the activations or the batch, which other probes see"),
    (ChangesLabels(), "inputs untouched", "update changes the activations or the batch, which other probes see too"),
    (ComputeDraws(), "compute", "compute called twice has to give the same result, but 'norm' differs by up to"),
    (KeepsView(), "memory", "the state has to be a copy, not a view that keeps a whole batch alive"),
    (NeverForgets(), "reset", "reset() leaves state behind; leave it to Probe"),
    (AveragesBatches(), "split invariance", "batches of uneven size have to give what one batch gives, but 'norm'"),
    (SumsInFloat32(), "split invariance", "or sums taken in float64 (x.double() first)"),
    (DependsOnOrder(), "order invariance", "the reverse order has to give the same result"),
    (MergeReplaces(), "merge", "two merged halves have to give the result of the whole"),
    (CountsTwice(), "examples", "a batch given twice has to be refused; leave observe and examples to Probe"),
    (MergesTwice(), "examples", "a state merged twice has to be refused; let merge call super().merge(other)"),
    (MergesOnceOnly(), "examples", "two parts are enough"),
    (LoadForgetsExamples(), "examples", "a loaded state has to know its examples; let state_dict and load_state_dict"),
    (FileForgetsExamples(), "state round trip", "save_state and load_state must preserve every bit of the state"),
    (StateLosesBits(), "state round trip", "state_dict and load_state_dict have to give the same result, but"),
    (LoadLosesBits(), "state round trip", "state_dict and load_state_dict must preserve every bit of the state"),
    (StateLosesSites(), "state round trip", "has not seen a model yet"),
    (SilentNan(), "NaN notes", "'norm' is NaN for 1 examples without a note; say why in result(notes=[...])"),
    (LeavesHook(), "surroundings", "run() leaves the hooks changed; undo it"),
    (LeavesTraining(), "surroundings", "run() leaves the model's training flags changed; undo it"),
    (DrawsFromNumpy(), "surroundings", "run() leaves numpy's global random state changed"),
    (ChangesWeights(), "surroundings", "run() leaves a model with other outputs; do not touch its weights"),
    (TensorInMetadata(), "first result", "metadata is not JSON (Object of type Tensor is not JSON serializable); give"),
    (ComputeInPlace(), "compute", "compute changes the state; work on copies (nothing in place, no add)"),
    (SeedsGlobally(), "surroundings", "run() leaves torch's global random state changed; undo it, and draw from"),
    (KeepsInItsModule(), "memory", "update keeps a batch's tensors alive outside the declared state; keep copies in"),
    (ChangesPositions(), "inputs untouched", "update changes the activations or the batch, which other probes see too"),
    (EmptyNote(), "NaN notes", "is NaN for 6 examples without a note"),
    (ResultTuple(), "result", "a saved result has to come back as it was (names and JSON values only)"),
    (UnknownSite(), "first result", "with InputError: site 'nowhere' has no layer"),
]


@pytest.mark.parametrize(("probe", "clause", "message"), WRONG, ids=[type(p).__name__ for p, *_ in WRONG])
def test_a_wrong_probe_fails_at_its_clause(
    tiny_model: Any, model: Any, batch: Batch, probe: Probe, clause: str, message: str
) -> None:
    """Each probe gets the shared model, except those that change it."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with pytest.raises(AssertionError, match=re.escape(message)) as error:
            check_probe(probe, tiny_model() if clause == "surroundings" else model, batch.select(slice(0, 6)))
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
    assert str(error.value).startswith(f"{type(probe).__name__} breaks the clause '{clause}'")
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_probe_that_reduces_alone_fails_with_two_processes(
    model: Any, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))  # so that the new processes find this module
    with pytest.raises(AssertionError, match=r"breaks the clause 'two processes': after all_reduce rank \d has"):
        check_probe(ReducesAlone(), model, batch, processes=True)


def test_every_clause_has_a_wrong_probe() -> None:
    assert {clause for _, clause, _ in WRONG} | {"two processes"} == set(_CLAUSES)


def test_examples_are_checked_before_anything_is_fed(model: Any, batch: Batch) -> None:
    with pytest.raises(InputError, match="example index 12 was given twice; give every example an index of its own"):
        check_probe(Kept(), model, Batch.concat([batch, batch]))
    hidden = torch.ones_like(batch.tokens, dtype=torch.bool)
    hidden[2] = False
    message = re.escape("example index 28 has no real token (its attention mask is all 0); leave it out")
    with pytest.raises(InputError, match=message):
        check_probe(Kept(readout=all_tokens()), model, replace(batch, attention_mask=hidden))
