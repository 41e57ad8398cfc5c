"""How often measuring waits for a GPU or starts something on it: counted on a simulated one, so that it cannot grow.

``python -m tests.probes.test_device_counts`` records the counts anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from probes import collect_rows, run
from probes.engine.hooked_model import forward
from tests.probes.test_two_devices import EVERYWHERE, MAKE, padded
from tests.probes.two_devices import CPU, FIRST, PlacedModel, simulated_cuda

RECORD = Path(__file__).parents[1] / "data" / "device_counts.json"
TO_HOST = ("item", "tolist", "cpu", "numpy", "__array__", "__bool__", "__int__", "__float__", "__index__")
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
def measure(name: str, size: int = 8) -> dict[str, int]:
    """Return the launches and waits of a run: those of every further batch, and the rest, without the forward pass."""
    two = counts(name, 2, size)
    four = counts(name, 4, size)
    found = {}
    for kind in ("launches", "waits"):
        each = (four[kind] - two[kind]) // 2
        found |= {f"{kind} of a batch": each, f"other {kind}": two[kind] - 2 * each}
    return found


def counts(name: str, n_batches: int, size: int) -> dict[str, int]:
    """Count launches and waits of a run over batches of ``size`` examples."""
    with simulated_cuda():
        model = PlacedModel([FIRST, FIRST])
        batches = list(padded(size * n_batches).split(size))
        with Launches() as bare, torch.inference_mode():
            for batch in batches:
                forward(model, batch)
        with Waits() as waits, Launches() as launches:
            called(name)(model, batches)
    return {"launches": launches.count - bare.count, "waits": waits.count}


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
    assert measure(name, size=24)["waits of a batch"] <= measure(name)["waits of a batch"]


if __name__ == "__main__":
    found = {name: measure(name) for name in CASES}
    RECORD.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
