"""Devices that a machine without accelerators does not have: real values, and errors where CUDA would raise them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

CPU, FIRST, SECOND = torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 1)
_FULL = {CPU, FIRST, SECOND}
_INDEXING = ("__getitem__", "__setitem__", "index_put_")  # CUDA takes indices from the CPU
_ACROSS = ("copy_",)
_DEVICE, _IS_CUDA = Tensor.device.__get__, Tensor.is_cuda.__get__  # type: ignore[attr-defined]
_SET_DATA, _SET_GRAD = Tensor.data.__set__, Tensor.grad.__set__  # type: ignore[attr-defined]


class Placed(Tensor):
    """Values of the CPU that are said to be on another device."""

    place: torch.device

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.place


def placed(x: Tensor, device: torch.device | str) -> Tensor:
    """``x`` on a device, without a copy."""
    device = device if device in _FULL else _full(device)
    if device == _place(x):
        return x
    if device == CPU:
        return x.as_subclass(Tensor)
    y = x.as_subclass(Placed)
    y.place = device
    return y


def _full(device: torch.device | str) -> torch.device:
    device = torch.device(device)
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else CPU


def _place(x: Tensor) -> torch.device:
    """Return where a tensor is, also within ``torch.func``, which wraps it."""
    while not hasattr(x, "place"):
        if not torch._C._functorch.is_functorch_wrapped_tensor(x):
            return CPU
        x = torch._C._functorch.get_unwrapped(x)
    return x.place  # type: ignore[no-any-return]


class TwoDevices(TorchFunctionMode):
    """Inside, ``cuda:0`` and ``cuda:1`` exist, and nothing computes with tensors of two devices."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        with torch._C.DisableTorchFunctionSubclass():
            if func in (_DEVICE, _IS_CUDA) and _place(args[0]) != CPU:
                return _place(args[0]) if func == _DEVICE else True
            if func in (_SET_DATA, _SET_GRAD):
                func(*args)
                if func == _SET_DATA:
                    args[0].place = _place(args[1])
                return None
            if name == "pin_memory":
                return args[0]
            kwargs.pop("pin_memory", None)
            if name == "_has_compatible_shallow_copy_type":  # a module may be moved in place
                return True
            if name in ("to", "cpu", "cuda") and isinstance(args[0], Tensor):
                return _moved(args[0], ("cpu",) if name == "cpu" else args[1:], kwargs)
            tensors = [*_tensors_in(args), *_tensors_in(kwargs)]
            if name in ("numpy", "__array__") and _place(tensors[0]) != CPU:
                raise TypeError(f"can't convert {_place(tensors[0])} device type tensor to numpy")
            places = {_place(x) for x in tensors if x.ndim or _place(x) != CPU}
            if name == "__setitem__" and not any(True for _ in _tensors_in(args[1])):
                places = {_place(args[0])}  # a copy
            if name in _INDEXING and len(places) > 1:
                places.discard(CPU) if _place(args[0]) != CPU else None
            if len(places) > 1 and name not in _ACROSS:
                found = " and ".join(sorted(map(str, places)))
                raise RuntimeError(f"{name}: expected all tensors to be on the same device, but found {found}")
            place = _place(args[0]) if name in _ACROSS else next(iter(places), CPU)
            if kwargs.get("device") is not None:
                place = _full(kwargs["device"])
                kwargs["device"] = kwargs["device"] if place == CPU else "cpu"  # which may also be meta
            out = func(*args, **kwargs)
            if isinstance(out, Tensor):
                return _put(out, place)
            return tree_map(partial(_put, place=place), out) if isinstance(out, (tuple, list, dict)) else out


def _tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested lists, tuples and dictionaries. Every call of torch comes here: pytree is slower."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors_in(item)


def _put(x: Any, place: torch.device) -> Any:
    """Return what a function gave, on the device of its inputs. Parameters stay where they are."""
    return placed(x, place) if type(x) in (Tensor, Placed) else x


def _moved(x: Tensor, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    """``x.to(...)``."""
    place, rest = _full(kwargs.pop("device", None) or _place(x)), []
    for value in args:
        if isinstance(value, (str, torch.device)):
            place = _full(value)
        elif isinstance(value, Tensor):
            place, rest = _place(value), [*rest, value.dtype]
        elif isinstance(value, torch.dtype):
            rest.append(value)
    out = Tensor.to(x, *rest, **kwargs) if rest or kwargs else x
    if place == _place(x):
        return x if out is x else placed(out, place)
    return placed(out.clone() if out is x else out, place)


@contextmanager
def simulated_cuda() -> Iterator[None]:
    """Let ``cuda`` be a device of this machine inside: values of the CPU, and the errors of a GPU.

    Torch's fake tensors have no values, which measurements and batches depend on, and a build of torch without CUDA
    refuses to move one there.
    """
    functions = {
        "is_available": lambda: True,
        "init": lambda: None,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "mem_get_info": lambda device=None: (2**34, 2**34),
        "random.get_rng_state": lambda device="cuda": torch.get_rng_state(),
    }
    with pytest.MonkeyPatch.context() as patch, TwoDevices():
        for name, function in functions.items():
            patch.setattr(f"torch.cuda.{name}", function)
        yield


class PlacedModel(nn.Module):
    """A small decoder whose blocks lie on devices of their own; speaks the hook protocol.

    Hook points: ``hook_embed``, ``blocks.{l}.attn.hook_pattern``, ``blocks.{l}.attn.hook_z`` and
    ``blocks.{l}.hook_resid_post``.
    """

    def __init__(self, devices: Sequence[torch.device], d_vocab: int = 12, d: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.devices, self.heads = devices, heads
        self.cfg = type("Config", (), {"d_vocab": d_vocab, "n_ctx": 16, "n_layers": len(devices)})()
        draw = torch.Generator().manual_seed(0)

        def weight(device: torch.device, *shape: int) -> nn.Parameter:
            return nn.Parameter(placed(torch.randn(shape, generator=draw), device), requires_grad=False)

        self.embed = weight(devices[0], d_vocab, d)
        self.qkv = nn.ParameterList([weight(device, d, 3 * d) for device in devices])
        self.unembed = weight(devices[-1], d, d_vocab)
        blocks = [f"blocks.{i}.{x}" for i in range(len(devices)) for x in ("attn.hook_pattern", "attn.hook_z")]
        blocks += [f"blocks.{i}.hook_resid_post" for i in range(len(devices))]
        self.hook_dict: dict[str, nn.Module] = {name: nn.Identity() for name in ("hook_embed", *blocks)}
        self.seen: dict[str, torch.device] = {}

    def point(self, name: str, x: Tensor) -> Tensor:
        self.seen[name] = x.device
        return self.hook_dict[name](x)  # type: ignore[no-any-return]

    def forward(self, tokens: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.point("hook_embed", self.embed[tokens])
        n, length = tokens.shape
        for i, (device, qkv) in enumerate(zip(self.devices, self.qkv, strict=True)):
            x = x.to(device)
            q, k, v = (t.reshape(n, length, self.heads, -1) for t in (x @ qkv).chunk(3, dim=-1))
            scores = torch.einsum("bqhd,bkhd->bhqk", q, k)
            hidden = torch.ones(length, length, dtype=torch.bool, device=device).triu(1)
            if attention_mask is not None:
                hidden = hidden | (attention_mask.to(device) == 0)[:, None, None, :]
            pattern = self.point(f"blocks.{i}.attn.hook_pattern", scores.masked_fill(hidden, -1e9).softmax(-1))
            z = self.point(f"blocks.{i}.attn.hook_z", torch.einsum("bhqk,bkhd->bqhd", pattern, v))
            x = self.point(f"blocks.{i}.hook_resid_post", x + z.flatten(2))
        return x @ self.unembed

    @contextmanager
    def hooks(self, fwd_hooks: Sequence[tuple[str, Callable[..., Any]]]) -> Iterator[None]:
        handles = [
            self.hook_dict[name].register_forward_hook(lambda module, _, out, f=f: f(out, hook=module))
            for name, f in fwd_hooks
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """To the bit; NaN equals NaN."""
    return one.keys() == other.keys() and all(
        x.shape == other[k].shape and bool(((x == other[k]) | ((x != x) & (other[k] != other[k]))).all())
        for k, x in one.items()
    )
