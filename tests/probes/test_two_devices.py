"""A model that lies on several devices is measured as one on the CPU, to the bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from probes import (
    CKA,
    RBFCKA,
    SVCCA,
    AttentionEntropy,
    ClusteringHead,
    DistanceMatchedTopicAttention,
    HeadRoles,
    LinearDecodability,
    NDims,
    NeighbourPurity,
    NormJacobian,
    Probe,
    ProbeResult,
    Projection,
    TaskClusterARI,
    TopicAttention,
    TopicEmbedding,
    all_tokens,
    attach,
    attention_pattern,
    causal_checks,
    collect_rows,
    last_token,
    list_probes,
    mean,
    residual,
    run,
    save_rows,
    token_at,
)
from probes.engine.fingerprint import fingerprint
from probes.engine.hooked_model import forward
from tasks import Batch, InputError
from tests.probes.two_devices import CPU, FIRST, SECOND, PlacedModel, TwoDevices, placed, same

EVERYWHERE = residual()
TOPICS = [-1, 0, 0, 0, 1, 1, 1, 2, 2, 2, -1, -1]
MAKE: dict[str, Callable[[], Probe]] = {
    "AttentionEntropy": AttentionEntropy,
    "CKA": lambda: CKA(EVERYWHERE, label="task"),
    "RBFCKA": lambda: RBFCKA(EVERYWHERE, mean(), label="task"),
    "SVCCA": lambda: SVCCA(EVERYWHERE),
    "LinearDecodability": lambda: LinearDecodability(at=EVERYWHERE, folds=3, n_shuffles=9),
    "NDims": lambda: NDims(EVERYWHERE, label="task"),
    "NeighbourPurity": lambda: NeighbourPurity(EVERYWHERE, k=3),
    "NormJacobian": lambda: NormJacobian(["hook_embed", "blocks.0.hook_resid_post", "blocks.1.hook_resid_post"]),
    "Projection": lambda: Projection(at=EVERYWHERE, method="pca"),
    "TaskClusterARI": lambda: TaskClusterARI(at=EVERYWHERE, n_init=2, n_permutations=20),
    "TopicAttention": lambda: TopicAttention(TOPICS, n_permutations=5),
    "TopicEmbedding": lambda: TopicEmbedding(TOPICS, EVERYWHERE, n_permutations=5),
    "ClusteringHead": lambda: ClusteringHead("task"),
    "DistanceMatchedTopicAttention": lambda: DistanceMatchedTopicAttention(TOPICS),
    "HeadRoles": lambda: HeadRoles(n_permutations=19),
}


def padded(n: int = 24) -> Batch:
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(12, (n, 6), generator=draw)
    lengths = torch.randint(3, 7, (n,), generator=draw)
    return Batch(
        tokens,
        torch.arange(6) < lengths[:, None],
        labels={"task": torch.arange(n) % 3},
        positions={"input": torch.arange(n) % 3},
    )


def whole(n: int = 24) -> Batch:
    tokens = torch.randint(5, (n, 6), generator=torch.Generator().manual_seed(2))
    return Batch(tokens, labels={"task": tokens[:, :2].sum(1) % 3})


@pytest.fixture
def devices() -> Iterator[None]:
    with TwoDevices():
        yield


def right(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    return logits[:, -1].argmax(-1) == batch.tokens[:, 0]


def split_model() -> PlacedModel:
    return PlacedModel([FIRST, SECOND])


def test_the_devices_are_as_strict_as_real_ones(devices: None) -> None:
    x, y = placed(torch.ones(3), FIRST), placed(torch.ones(3), SECOND)
    for wrong in (
        lambda: x + y,
        lambda: x + torch.ones(3),
        lambda: torch.where(x > 0, y, 0),
        lambda: x[y.long()],
        lambda: torch.ones(3)[x.long()],
        lambda: torch.cat([x, y]),
        lambda: x.addmm_(x, y),
    ):
        with pytest.raises(RuntimeError, match="expected all tensors to be on the same device, but found"):
            wrong()
    with pytest.raises(TypeError, match="can't convert cuda:1 device type tensor to numpy"):
        y.numpy()
    assert (x * 2 + x.to("cuda:0")).device == torch.zeros(1, device="cuda:0").device == FIRST
    assert (x + y.to(x.device)).sum().item() == 6
    assert (x[torch.tensor([0])].device, x.cpu().device, y.to(torch.float64).device) == (FIRST, CPU, SECOND)
    model = split_model()
    model(placed(torch.ones(2, 3).long(), FIRST))
    assert set(model.seen.values()) == {FIRST, SECOND}
    with pytest.raises(RuntimeError, match="same device"):
        model(placed(torch.ones(2, 3).long(), SECOND))


def test_moved_modules_and_mapped_functions_are_as_strict(devices: None) -> None:
    module = torch.nn.Linear(2, 2)
    weight = module.weight
    module.to("cuda")
    assert module.weight is weight
    assert weight.device == FIRST
    assert module.to(torch.float64).bias.device == FIRST
    x, y = placed(torch.ones(3, 2), FIRST), torch.ones(3, 2)
    assert torch.vmap(torch.add)(x, x).tolist() == [[2, 2]] * 3
    for wrong in (
        lambda: module(y),
        lambda: torch.vmap(torch.add)(x, y),
        lambda: torch.func.grad(lambda a: (a * y).sum())(x),
    ):
        with pytest.raises(RuntimeError, match="expected all tensors to be on the same device, but found"):
            wrong()


def test_every_probe_is_here() -> None:
    ours = {p.name for p in list_probes() if p.package.startswith("mechclust ")}
    assert ours - {*MAKE} == {"LogitLens"}  # it needs a final norm and unembedding, which this model has not


@pytest.fixture(scope="module")
def on_one_and_two() -> dict[str, tuple[ProbeResult, ProbeResult]]:
    """What every probe measures on the CPU and on two devices, of one run each."""
    with TwoDevices():
        runs = [
            run(model, padded(12).split(7), [make() for make in MAKE.values()])
            for model in (PlacedModel([CPU, CPU]), split_model())
        ]
    return dict(zip(MAKE, zip(*runs, strict=True), strict=True))


@pytest.mark.parametrize("name", MAKE)
def test_every_probe_measures_what_it_does_on_one_device(
    name: str, on_one_and_two: dict[str, tuple[ProbeResult, ProbeResult]]
) -> None:
    expected, found = on_one_and_two[name]
    assert same(found.values, expected.values)
    assert found.notes == expected.notes
    assert found.metadata["model"] == expected.metadata["model"]  # the device is no part of it


@pytest.mark.parametrize("home", [CPU, FIRST, SECOND])
def test_a_batch_may_lie_anywhere_its_labels_elsewhere(home: torch.device, devices: None) -> None:
    given = padded(12)
    spread = Batch(
        placed(given.tokens, home),
        placed(given.attention_mask, SECOND),  # type: ignore[arg-type]
        labels={"task": given.labels["task"]},
        positions={"input": placed(given.positions["input"], FIRST)},
        index=placed(given.index, SECOND),
    )
    probes = [MAKE[name]() for name in ("TaskClusterARI", "CKA", "TopicAttention")]
    expected = run(PlacedModel([CPU, CPU]), given, probes)
    for one, other in zip(run(split_model(), spread, probes), expected, strict=True):
        assert same(one.values, other.values)


def test_two_models_on_devices_of_their_own(devices: None) -> None:
    tuned, base = PlacedModel([CPU, CPU], d=6), PlacedModel([CPU, CPU], heads=4)
    expected = run({"tuned": tuned, "base": base}, padded().split(5), [CKA(pairs="all"), NDims()])
    tuned, base = PlacedModel([SECOND, FIRST], d=6), PlacedModel([FIRST, CPU], heads=4)
    found = run({"tuned": tuned, "base": base}, padded().split(5), [CKA(pairs="all"), NDims()])
    for one, other in zip(found, expected, strict=True):
        assert same(one.values, other.values)


@pytest.mark.parametrize("readout", [last_token(), token_at("input"), mean(), all_tokens()])
def test_readouts_follow_the_activation(readout: Any, devices: None) -> None:
    batch = padded(5)
    x = torch.randn(5, 6, 4, generator=torch.Generator().manual_seed(3))
    found = readout(placed(x, SECOND), batch.to(FIRST))
    assert found.device == SECOND
    assert torch.equal(found.cpu(), readout(x, batch))
    assert readout.check(found, batch.to(FIRST)) is None
    x[3, :3] = torch.nan  # real tokens, the last one and the one at "input" too
    x[3, 3:] = torch.nan
    assert readout.check(readout(placed(x, SECOND), batch.to(FIRST)), batch.to(FIRST)) == 3


def test_patterns_check_their_padding_on_their_own_device(devices: None) -> None:
    batch = padded(5)
    pattern = torch.zeros(5, 2, 6, 6)
    pattern[:, :, 5] = torch.nan  # a query that is padding in some examples
    expected = all_tokens().check(pattern, batch)
    assert expected is not None
    assert all_tokens().check(placed(pattern, SECOND), batch.to(FIRST)) == expected


def test_attach_collect_save_and_interventions(devices: None, tmp_path: Path) -> None:
    found: list[dict[str, torch.Tensor]] = []
    for k, model in enumerate((PlacedModel([CPU, CPU]), split_model())):
        probe = TopicAttention(TOPICS, attention_pattern(), n_permutations=2)
        with attach(model, probe) as attached:
            for batch in padded().split(10):
                with attached.on(batch), torch.no_grad():
                    forward(model, batch.to(model.devices[0]))
        values = dict(probe.compute().values)
        values |= collect_rows(model, padded(), residual(), mean())
        store = save_rows(model, padded().split(7), tmp_path / str(k), labels=["task"], shard_rows=10)
        values |= store.take(store.index, ["rows/blocks.1.hook_resid_post", "labels/task"])
        head = ClusteringHead("task", support=(0, 1))
        run(model, whole(), head)
        answers = causal_checks(
            model, whole().split(9), head, lambda x, batch: x[:, -1].argmax(-1) == batch.tokens[:, 0]
        )
        found.append({**values, **{f"causal {key}": value for key, value in answers.values.items()}})
    assert same(*found)


def test_nan_on_the_second_device_is_told(devices: None) -> None:
    model = split_model()
    model.qkv[1][0, 0] = torch.inf
    with pytest.raises(
        InputError, match=r"NaN or infinity in the activations at 'blocks.1.hook_resid_post' for example"
    ):
        run(model, padded(), NDims())


def test_the_fingerprint_does_not_depend_on_the_device(devices: None) -> None:
    assert fingerprint(split_model()) == fingerprint(PlacedModel([CPU, CPU]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", MAKE)
def test_a_real_gpu_beside_the_cpu(name: str) -> None:
    expected = run(PlacedModel([CPU, CPU]), padded().split(7), MAKE[name]())
    for first, second in (("cpu", "cuda:0"), ("cuda:0", "cpu")):
        model = PlacedModel([CPU, CPU])
        model.devices = [torch.device(first), torch.device(second)]
        model.embed.data = model.embed.to(first)
        model.unembed.data = model.unembed.to(second)
        for weight, device in zip(model.qkv, model.devices, strict=True):
            weight.data = weight.to(device)
        found = run(model, padded().split(7), MAKE[name]())
        assert found.coords == expected.coords
        for measure in set(expected.values) - {"xy", "integer_weights"}:
            torch.testing.assert_close(found[measure], expected[measure], rtol=1e-3, atol=1e-3, equal_nan=True)
