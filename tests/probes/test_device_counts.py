"""How often measuring waits for a GPU or starts something on it: counted on a simulated one, so that it cannot grow.

``python -m tests.probes.test_device_counts`` records the counts anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from probes import collect_rows, run
from probes.engine.hooked_model import forward
from tasks import Batch
from tests.probes.test_two_devices import EVERYWHERE, MAKE, padded
from tests.probes.two_devices import CPU, FIRST, PlacedModel, simulated_cuda

RECORD = Path(__file__).parents[1] / "data" / "device_counts.json"
TO_HOST = ("item", "tolist", "cpu", "numpy", "__array__", "__bool__", "__int__", "__float__", "__index__")
SIZE = 8  # examples of a batch
CASES = ["collect_rows", *MAKE]
TEXT_BY_TEXT = ("HeadRoles", "DistanceMatchedTopicAttention", "TopicAttention")  # each text has other words


class Launches(TorchDispatchMode):
    """Counts operations that compute or copy, which a GPU would launch as kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not function.is_view
        return function(*args, **(kwargs or {}))


class Waits(TorchFunctionMode):
    """Counts values that come from the GPU to the host, which waits for them."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if first is not None and (name in TO_HOST or (name == "to" and _to_host(args[1:], kwargs))):
            self.count += first.device != CPU
        return function(*args, **kwargs)


def _to_host(args: Any, kwargs: Any) -> bool:
    given = [*args, *kwargs.values()]
    return any(isinstance(value, (str, torch.device)) and torch.device(value) == CPU for value in given)


@cache
def measure(name: str) -> dict[str, int]:
    """Return the launches and waits of a run: those of every further batch, and the rest, without the forward pass."""
    with simulated_cuda():
        model = PlacedModel([FIRST, FIRST])
        with Launches() as bare, torch.inference_mode():
            forward(model, padded(SIZE))
        with Waits() as waits, Launches() as launches:
            counted = counts_by_batch(name, model, [launches, waits], SIZE)
    found = {}
    for kind, (_, second, third, all_), forwards in zip(("launches", "waits"), counted, (bare.count, 0), strict=True):
        each = third - second
        found |= {f"{kind} of a batch": each - forwards, f"other {kind}": all_ - 3 * each}
    return found


def counts_by_batch(name: str, model: PlacedModel, modes: list[Any], size: int) -> list[tuple[int, ...]]:
    """Return what each mode has counted when a run asks for each of three batches, and at its end."""
    found = list[list[int]]()

    def batches() -> Iterator[Batch]:
        for batch in padded(3 * size).split(size):
            found.append([mode.count for mode in modes])
            yield batch

    called(name)(model, batches())
    return list(zip(*found, [mode.count for mode in modes], strict=True))


def called(name: str) -> Callable[..., Any]:
    if name == "collect_rows":
        return lambda model, batches: collect_rows(model, batches, EVERYWHERE)
    return lambda model, batches: run(model, batches, MAKE[name]())


@pytest.mark.parametrize("name", CASES)
def test_a_run_does_no_more_on_a_gpu_than_recorded(name: str) -> None:
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))[name]
    found = measure(name)
    more = {key: (value, recorded[key]) for key, value in found.items() if value > recorded[key]}
    assert not more, f"{name}: more than recorded: {more}"


@pytest.mark.parametrize("name", sorted(set(CASES) - set(TEXT_BY_TEXT)))
def test_a_larger_batch_waits_no_more_often(name: str) -> None:
    with simulated_cuda(), Waits() as waits:
        ((_, second, third, _),) = counts_by_batch(name, PlacedModel([FIRST, FIRST]), [waits], 2 * SIZE)
    assert third - second <= measure(name)["waits of a batch"]


if __name__ == "__main__":
    found = {name: measure(name) for name in CASES}
    RECORD.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
