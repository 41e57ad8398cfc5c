from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from probes import Moments, Probe, Rows, Sum, TaskClusterARI, last_token, mean, residual, run
from probes.engine.result import ProbeResult
from tasks import Batch, InputError

TOKENS = torch.tensor([[1, 2], [3, 0], [2, 2], [4, 1]])


class MeanNorm(Probe):
    total, count = Sum(), Sum(torch.int64)

    def __init__(self, at: Any = residual(), readout: Any = last_token(), power: float = 1.0) -> None:
        self.at, self.readout, self.power = at, readout, power

    def update(self, activations: Any, batch: Batch) -> None:
        for site, x in activations.items():
            self.total.add(site, (x.norm(dim=-1) ** self.power).sum(dtype=torch.float64))
            self.count.add(site, len(x))

    def compute(self) -> ProbeResult:
        norms = [self.total[s] / self.count[s] for s in self.site_names]
        return self.result({"norm": torch.stack(norms)}, {"norm": ("site",)}, metadata={"power": self.power})


class WithRows(MeanNorm):
    kept = Rows()

    def update(self, activations: Any, batch: Batch) -> None:
        super().update(activations, batch)
        for site, x in activations.items():
            self.kept.add(site, batch.index, x)


@pytest.fixture(scope="module")
def fake(fake_model: Any) -> Any:
    return fake_model(*(torch.randn(5, 4, generator=torch.Generator().manual_seed(i)) for i in range(3)))


@pytest.fixture
def measured(fake: Any) -> WithRows:
    probe = WithRows()
    run(fake, Batch(TOKENS), probe)
    return probe


def test_the_result_is_filled_in(fake: Any) -> None:
    result = run(fake, Batch(TOKENS), MeanNorm(power=2.0))
    sites = ["hook_embed", "blocks.0.hook_resid_post", "blocks.1.hook_resid_post"]
    assert result.probe == "MeanNorm"
    assert result.coords == {"site": sites}
    assert result.layers == {name: layer for layer, name in enumerate(sites)}
    assert result.metadata["parameters"] == {"at": "residual()", "readout": "last_token()", "power": 2.0}
    assert result.metadata["power"] == 2.0
    assert {"torch", "numpy"} <= set(result.metadata["versions"])
    last = fake.layers[2].weight[TOKENS[:, -1]].detach()
    assert float(result["norm"][2]) == pytest.approx(float((last**2).sum(1).mean()), rel=1e-6)


def test_states_are_inherited_and_parameters_listed() -> None:
    assert MeanNorm.states == ("total", "count")
    assert WithRows.states == ("total", "count", "kept")
    assert WithRows(power=3.0).parameters() == {"at": residual(), "readout": last_token(), "power": 3.0}
    assert eval(repr(WithRows(residual(-1), mean())), {**globals()}).parameters()["readout"] == mean()


def test_the_default_constructor_sets_at_and_readout() -> None:
    class Plain(Probe):
        rows = Rows()

        def update(self, activations: Any, batch: Batch) -> None: ...
        def compute(self) -> ProbeResult:
            return self.result({}, {})

    assert repr(Plain()) == "Plain(at=residual(), readout=last_token())"
    assert repr(Plain("hook_embed", mean())) == "Plain(at='hook_embed', readout=mean())"


def test_a_clone_has_the_parameters_and_shares_no_state(measured: WithRows, fake: Any) -> None:
    clone = measured.clone()
    assert repr(clone) == repr(measured)
    assert not clone.state_dict()["tensors"]
    with pytest.raises(InputError, match=r"this WithRows has not seen a model yet; give it to run\(\) or attach\(\)"):
        _ = clone.sites
    before = measured.compute()["norm"]
    run(fake, Batch(TOKENS[:1]), clone)
    assert torch.equal(measured.compute()["norm"], before)


def test_merge_refuses_other_parameters_and_other_sites(measured: WithRows, fake_model: Any) -> None:
    message = (
        "cannot merge WithRows(at=residual(), readout=last_token(), power=2.0) into WithRows(at=residual(), "
        "readout=last_token(), power=1.0); merge probes with the same parameters"
    )
    with pytest.raises(InputError, match=re.escape(message)):
        measured.merge(WithRows(power=2.0))
    with pytest.raises(InputError, match=r"cannot merge MeanNorm\(.*\) into WithRows"):
        measured.merge(MeanNorm())
    shallow = WithRows()
    run(fake_model(torch.ones(5, 4)), Batch(TOKENS, index=torch.arange(4, 8)), shallow)
    message = "cannot merge WithRows states from different sites; measure the same model at the same sites"
    with pytest.raises(InputError, match=message):
        measured.merge(shallow)


class Means(MeanNorm):
    sums, moments = Sum(), Moments()

    def update(self, activations: Any, batch: Batch) -> None:
        for site, x in activations.items():
            self.sums.add(site, x.sum(0, dtype=torch.float64))
        self.moments.add(dict(activations))

    def compute(self) -> ProbeResult:
        return self.result({"mean": self.sums["hook_embed"].mean()}, {"mean": ()})


@pytest.mark.parametrize("kind", [WithRows, Means])
def test_merging_states_of_other_widths_changes_nothing(kind: type[MeanNorm], fake: Any, fake_model: Any) -> None:
    probe = kind()
    wide = kind()
    run(fake, Batch(TOKENS), probe)
    run(fake_model(*(torch.ones(5, 6) for _ in range(3))), Batch(TOKENS, index=torch.arange(4, 8)), wide)
    before = probe.state_dict()
    message = f"^cannot merge {kind.__name__} states of other sizes; measure the same model, "
    with pytest.raises(InputError, match=message):
        probe.merge(wide)
    after = probe.state_dict()
    assert torch.equal(after["examples"], before["examples"])
    assert all(torch.equal(after["tensors"][name], x) for name, x in before["tensors"].items())


def test_merging_the_same_examples_twice_is_told(measured: WithRows) -> None:
    twice = measured.clone()
    twice.merge(measured)
    before = {name: x.clone() for name, x in twice.state_dict()["tensors"].items()}
    message = (
        "example index 0 (4 such) is in both states; merge each state once, and give every example an index of its own"
    )
    with pytest.raises(InputError, match=re.escape(message)):
        twice.merge(measured)
    assert all(torch.equal(x, before[name]) for name, x in twice.state_dict()["tensors"].items())


def test_another_model_shape_is_refused_while_state_is_held(measured: WithRows, fake_model: Any) -> None:
    shallow = fake_model(torch.ones(5, 4))
    message = "this WithRows holds state from 3 sites of a model of another shape; call reset() or use a new probe"
    with pytest.raises(InputError, match=re.escape(message)):
        measured.bind(shallow)
    measured.reset()
    assert len(measured.bind(shallow)) == 1


# ---- state on disk ----


def test_a_saved_state_is_computed_and_merged_elsewhere(fake: Any, tmp_path: Path) -> None:
    first, second, whole = WithRows(), WithRows(), WithRows()
    for probe, rows in ((first, slice(0, 3)), (second, slice(3, 4)), (whole, slice(0, 4))):
        run(fake, Batch(TOKENS).select(rows), probe)
    first.save_state(tmp_path / "deep" / "first.safetensors")
    loaded = WithRows()
    loaded.load_state(tmp_path / "deep" / "first.safetensors")
    loaded.merge(second)
    torch.testing.assert_close(loaded.compute()["norm"], whole.compute()["norm"], rtol=1e-12, atol=0)
    assert torch.equal(loaded.kept.get("hook_embed")[1], whole.kept.get("hook_embed")[1])
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["first.safetensors"]


def test_an_empty_state_can_be_saved(tmp_path: Path) -> None:
    probe, loaded = WithRows(), WithRows()
    probe.save_state(tmp_path / "empty")
    loaded.load_state(tmp_path / "empty")
    assert not loaded.state_dict()["tensors"]


def test_the_state_of_another_probe_is_refused(measured: WithRows, tmp_path: Path) -> None:
    measured.save_state(tmp_path / "state")
    message = r"state' holds the state of WithRows\(.*power=1.0\); build that probe to load it"
    for other in (MeanNorm(), WithRows(power=2.0), TaskClusterARI()):
        with pytest.raises(InputError, match=message):
            other.load_state(tmp_path / "state")
    with pytest.raises(InputError, match=r"MeanNorm has no state 'kept' \(it has total, count\)"):
        MeanNorm().load_state_dict(measured.state_dict())


def test_a_file_that_is_no_state_is_refused(measured: WithRows, tmp_path: Path) -> None:
    measured.compute().save(tmp_path / "result")
    with pytest.raises(InputError, match=r"result' is not a probe's state; expected a file from save_state"):
        WithRows().load_state(tmp_path / "result")
    with pytest.raises(InputError, match=r"no file '.*none'; give the path of a safetensors file"):
        WithRows().load_state(tmp_path / "none")
    measured.save_state(tmp_path / "state")
    (tmp_path / "half").write_bytes((tmp_path / "state").read_bytes()[:-10])
    with pytest.raises(InputError, match=r"half' is truncated or not a safetensors file"):
        WithRows().load_state(tmp_path / "half")


def test_a_failed_load_leaves_the_state_as_it_was(measured: WithRows, tmp_path: Path) -> None:
    before = measured.compute()["norm"]
    (tmp_path / "bad").write_bytes(b"nothing")
    with pytest.raises(InputError):
        measured.load_state(tmp_path / "bad")
    assert torch.equal(measured.compute()["norm"], before)


def test_all_reduce_without_a_process_group_is_told(measured: WithRows) -> None:
    message = "all_reduce needs torch.distributed; start with torchrun and call torch.distributed.init_process_group()"
    with pytest.raises(InputError, match=re.escape(message)):
        measured.all_reduce()
