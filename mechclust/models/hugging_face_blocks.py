"""Which modules of a Hugging Face model are its blocks: found by running it, so that no list of names is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float, Shaped
from torch import Tensor, nn

from tasks import InputError
from tasks.errors import error_line


@dataclass(frozen=True)
class Blocks:
    """The modules of a model through which its residual stream passes.

    Attributes:
        calls: for each block the module that it enters, and which call of that module it is, from 0. If blocks share
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
    """One call of a module with a hidden state or another tensor."""

    module: nn.Module
    number: int
    state: Shaped[Tensor, "..."]
    output: Any = None


class _CallRecorder:
    """Hooks that record every call of a module with a tensor, in the order of entering."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []
        self._numbers: Counter[nn.Module] = Counter()
        self._running: list[_Call | None] = []

    def enter(self, module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Record that a module is called."""
        state = hugging_face_block_input(inputs, options)
        call = _Call(module, self._numbers[module], state) if isinstance(state, Tensor) else None
        self._numbers[module] += 1
        self._running.append(call)
        if call is not None:
            self.calls.append(call)

    def leave(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        """Record the output of the module."""
        call = self._running.pop()
        if call is not None:
            call.output = output


def find_blocks(body: nn.Module, forward: Callable[[], Any]) -> Blocks:
    """Find the blocks of a model: the outermost modules with matrices that take a hidden state and give another.

    It runs once, with a hook on every module. Hidden states are recognised by identity: an equal tensor is another one.

    Args:
        body: the Hugging Face model without its head.
        forward: runs it on a few tokens, with hidden states (and attentions, if it keeps any).

    Raises:
        InputError: if there are no hidden states ``[batch pos d_model]``, or blocks do not hand them on.
    """
    name = type(body).__name__
    calls, out = _record(body, forward)
    states = getattr(out, "hidden_states", None)
    if not states or len(states) < 2 or any(state is None or state.shape != states[0].shape for state in states[:-1]):
        raise _refusal(name, "does not give hidden states [batch pos d_model] of one width, one for each layer")
    layer_calls = [[call for call in calls if call.state is state and _is_layer(call)] for state in states[:-1]]
    if not all(layer_calls) or not _is_passed_on(states[-2], layer_calls):
        raise _refusal(name, "has no modules that pass its hidden states on")
    return Blocks(
        tuple((outermost.module, outermost.number) for outermost, *_ in layer_calls),  # which is entered first
        states[0].shape[-1],
        _heads(getattr(out, "attentions", None), len(layer_calls), states[0].shape),
    )


def check_embeds_tokens(body: Any) -> None:
    """Refuse a module that does not name its configuration or its token embedding, such as BART's decoder.

    Raises:
        InputError: for such a module.
    """
    try:
        named = hasattr(body, "config") and isinstance(body.get_input_embeddings(), nn.Module)
    except (AttributeError, NotImplementedError):
        named = False
    if not named:
        raise _refusal(type(body).__name__, "does not name its token embedding, as decoders of encoder-decoders do not")


def check_attends_alike_at_every_length(body: Any) -> None:
    """Refuse sparse attention that turns into full attention for good when a text is short, as BigBird's.

    Raises:
        InputError: for such attention.
    """
    if getattr(body, "attention_type", None) == "block_sparse":
        raise InputError(
            f"the block-sparse attention of a {type(body).__name__} changes with the length of a text; load the model "
            "with attention_type='original_full', and save it, or give it in memory"
        )


def _is_passed_on(state: Float[Tensor, "batch pos d_model"], layer_calls: Sequence[Sequence[_Call]]) -> bool:
    """Return whether the last block but one returns the hidden state that the last block takes."""
    return len(layer_calls) == 1 or any(hugging_face_block_output(call.output) is state for call in layer_calls[-2])


def hugging_face_block_input(inputs: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """Return the hidden state that a module is called with."""
    return inputs[0] if inputs else options.get("hidden_states")


def hugging_face_block_output(output: Any) -> Any:
    """Return the hidden state that a module returns, alone or before others."""
    return output[0] if isinstance(output, (tuple, list)) and output else output


def _record(body: nn.Module, forward: Callable[[], Any]) -> tuple[list[_Call], Any]:
    """Return every call of a module with a tensor, in the order of entering, and the model's output."""
    recorder = _CallRecorder()
    with ExitStack() as stack:
        for module in body.modules():
            if module is not body and not isinstance(module, nn.ModuleList):
                stack.callback(module.register_forward_pre_hook(recorder.enter, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(recorder.leave).remove)
        try:
            out = forward()
        except Exception as error:
            raise _not_run(body, error) from error
    return recorder.calls, out


def _is_layer(call: _Call) -> bool:
    """Return whether a module has weight matrices, unlike dropouts and norms, and gives a hidden state for one."""
    output = hugging_face_block_output(call.output)
    has_matrices = any(weight.ndim > 1 for weight in call.module.parameters())
    return has_matrices and getattr(output, "shape", None) == call.state.shape


def _heads(attentions: Any, n_layers: int, shape: Any) -> int | None:
    square = (shape[0], shape[1], shape[1])
    if not attentions or len(attentions) != n_layers:
        return None
    if any(not isinstance(a, Tensor) or a.ndim != 4 or (a.shape[0], *a.shape[2:]) != square for a in attentions):
        return None
    return int(attentions[0].shape[1])


def _not_run(body: nn.Module, error: Exception) -> InputError:
    """Return the error that a model does not run, with the way out."""
    is_quantised = getattr(getattr(body, "config", None), "quantization_config", None) is not None
    if is_quantised and all(weight.device.type == "cpu" for weight in body.parameters()):
        return InputError(
            f"the quantised weights of this {type(body).__name__} do not run on the CPU ({error_line(error)}); give "
            "weights that are not quantised, or a GPU"
        )
    return _refusal(type(body).__name__, f"does not run on token ids alone ({error_line(error)})")


def _refusal(name: str, why: str) -> InputError:
    return InputError(
        f"a {name} cannot be measured: it {why}; give a transformer over tokens, whose Hugging Face model has "
        "output_hidden_states"
    )
