"""Which modules of a Hugging Face model are its blocks: found by running it, so that no list of names is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from tasks import InputError


@dataclass(frozen=True)
class Blocks:
    """Where the residual stream of a model passes.

    Attributes:
        calls: for each block the module that it enters, and which call of that module it is, from 0: where blocks share
            their weights (ALBERT), one module is several.
        d_model: width of the residual stream.
        n_heads: attention heads in each block, ``None`` without patterns.
    """

    calls: tuple[tuple[nn.Module, int], ...]
    d_model: int
    n_heads: int | None

    @property
    def patterns(self) -> bool:
        """Whether the model gives an attention pattern ``[batch head query key]`` for each block."""
        return self.n_heads is not None


@dataclass
class _Call:
    module: nn.Module
    number: int
    state: Tensor
    output: Any = None


def find_blocks(body: nn.Module, forward: Callable[[], Any]) -> Blocks:
    """The blocks of a model: the outermost modules with matrices that take one of its hidden states and give another.

    It runs once, with a hook on every module. Hidden states are told by identity: the very tensor, not an equal one.

    Args:
        body: the Hugging Face model without its head.
        forward: runs it on a few tokens, with hidden states (and attentions, if it keeps any).

    Raises:
        InputError: where there are no hidden states ``[batch pos d_model]``, or blocks do not hand them on.
    """
    name = type(body).__name__
    calls, out = _record(body, forward)
    states = getattr(out, "hidden_states", None)
    if not states or len(states) < 2 or any(state is None or state.shape != states[0].shape for state in states[:-1]):
        raise _refusal(name, "does not give hidden states [batch pos d_model] of one width, one for each layer")
    entered = [[call for call in calls if call.state is state and _is_layer(call)] for state in states[:-1]]
    if not all(entered) or (len(entered) > 1 and all(first_output(c.output) is not states[-2] for c in entered[-2])):
        raise _refusal(name, "has no modules that pass its hidden states on")
    return Blocks(
        tuple((found[0].module, found[0].number) for found in entered),  # the outermost is entered first
        states[0].shape[-1],
        _heads(getattr(out, "attentions", None), len(entered), states[0].shape),
    )


def first_input(inputs: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """The hidden state that a module is called with."""
    return inputs[0] if inputs else options.get("hidden_states")


def first_output(output: Any) -> Any:
    """The hidden state that a module returns, alone or before others."""
    return output[0] if isinstance(output, (tuple, list)) and output else output


def _record(body: nn.Module, forward: Callable[[], Any]) -> tuple[list[_Call], Any]:
    """Every call of a module with a tensor, in the order of entering, and what the model returns."""
    calls: list[_Call] = []
    numbers: Counter[nn.Module] = Counter()
    running: list[_Call | None] = []

    def enter(module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        state = first_input(inputs, options)
        running.append(_Call(module, numbers[module], state) if isinstance(state, Tensor) else None)
        numbers[module] += 1
        if running[-1] is not None:
            calls.append(running[-1])

    def leave(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        call = running.pop()
        if call is not None:
            call.output = output

    with ExitStack() as stack:
        for module in body.modules():
            if module is not body and not isinstance(module, nn.ModuleList):
                stack.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(leave).remove)
        try:
            out = forward()
        except Exception as error:
            why = f"does not run on token ids alone ({type(error).__name__}: {str(error).splitlines()[0]})"
            raise _refusal(type(body).__name__, why) from error
    return calls, out


def _is_layer(call: _Call) -> bool:
    """It has weight matrices (so it is not a dropout, norm or rotary position) and gives a hidden state for one."""
    output = first_output(call.output)
    has_matrices = any(weight.ndim > 1 for weight in call.module.parameters())
    return has_matrices and getattr(output, "shape", None) == call.state.shape


def _heads(attentions: Any, n_layers: int, shape: Any) -> int | None:
    square = (shape[0], shape[1], shape[1])
    if not attentions or len(attentions) != n_layers:
        return None
    if any(a is None or a.ndim != 4 or (a.shape[0], *a.shape[2:]) != square for a in attentions):
        return None
    return int(attentions[0].shape[1])


def _refusal(name: str, why: str) -> InputError:
    return InputError(
        f"a {name} cannot be measured: it {why}; give a transformer over tokens, whose Hugging Face model has "
        "output_hidden_states"
    )
