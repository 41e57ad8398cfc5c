"""Record activations: with ``record``, and those that probes need from one model's forward passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeAlias

import torch
from jaxtyping import Shaped
from torch import Tensor

from probes.engine.attention import AttentionReadout
from probes.engine.devices import device_memory_error, device_of
from probes.engine.hooked_model import HookedModel, forward, inner_module
from probes.engine.probe import Probe
from probes.engine.readout import Readout, check_readout
from probes.engine.sites import existing_site, split_site
from probes.engine.state import AnyTensor
from tasks import Batch, InputError

AnyActivation: TypeAlias = Any  # a tensor, or an ``Attention``
Receive: TypeAlias = Callable[[str, AnyActivation], AnyTensor | None]
Kept: TypeAlias = dict[tuple[str, Readout], Shaped[Tensor, "batch ..."]]  # by site and readout
_SUMMED_IN = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


@contextmanager
def record(
    model: HookedModel, names: Iterable[str], receive: Receive | None = None
) -> Iterator[dict[str, list[AnyTensor]]]:
    """Record activations inside the block. These packages record all activations with this function.

    Args:
        model: anything with TransformerLens's hook protocol.
        names: hook points.
        receive: called with a hook point's name and activation whenever it fires. A tensor that it returns replaces
            the activation, and ``None`` leaves it unchanged. The name is always one of ``names``, while in
            TransformerLens 4 a callback's ``hook.name`` may be another. By default, activations are kept unchanged.

    Yields:
        Every activation kept, by hook point, in the order in which it fired.

    Raises:
        InputError: for a hook point that the model does not have. The bridge of TransformerLens 3.9 would ignore it.

    Example:
        >>> # with record(model, ["hook_embed"]) as seen:
        >>> #     model(tokens)
        >>> # seen["hook_embed"][0]  # [batch pos d_model]
    """
    kept: dict[str, list[AnyTensor]] = {name: [] for name in names}
    known = list(model.hook_dict)
    lacks = getattr(model, "lacks", {})
    hooks = []
    for name in kept:
        existing_site(name, known, lacks)
        hooks.append((name, partial(_hook, partial(receive, name) if receive else kept[name].append)))
    with model.hooks(fwd_hooks=hooks):
        yield kept


def _hook(
    receive: Callable[[AnyActivation], AnyTensor | None], activation: AnyActivation, hook: Any
) -> AnyTensor | None:
    return receive(activation)


class _StopForward(BaseException):
    """The end of a forward pass after the deepest site. Not an Exception, so that handlers do not swallow it."""


class _Recorder:
    """Hooks on one model that keep the current batch's activations for its probes.

    Kept activations go to one device, even if the model lies on several.

    Args:
        model: model to be hooked.
        probes: probes whose sites and readouts are recorded.
        name: the model's name if several are measured. Its sites are then called ``"name/hook"``.
        home: the device that kept tensors go to, by default the batch's.
        stops: whether a pass ends after the deepest site, and never computes logits that no site needs.
    """

    def __init__(
        self,
        model: HookedModel,
        probes: Sequence[Probe],
        name: str | None = None,
        home: torch.device | None = None,
        *,
        stops: bool = True,
    ) -> None:
        if isinstance(model, torch._dynamo.OptimizedModule):
            which = "" if name is None else f", {name!r},"
            raise InputError(
                f"this model{which} went through torch.compile, which silently ignores hooks "
                "added later; measure the original module (model._orig_mod)"
            )
        self.model = model
        self.home = device_of(model) if home is None else home
        self.prefix = "" if name is None else f"{name}/"
        self.stops = stops
        self.batch: Batch | None = None
        self.kept: Kept = {}
        self._of_model = "" if name is None else f" of model {name!r}"
        self._readouts = _readouts_by_hook(probes, name)
        self._seen: set[str] = set()
        self._stop_early = False
        self._places: dict[tuple[Readout, torch.device], tuple[Tensor, Tensor]] = {}

    # ---- hooks ----

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Hook the model inside the block."""
        head = inner_module(getattr(self.model, "unembed", None)) if self.stops else None
        handle = None if head is None else head.register_forward_pre_hook(self._at_head)
        try:
            with record(self.model, self._readouts, self._receive):
                yield
        finally:
            if handle is not None:
                handle.remove()

    def _at_head(self, *_: Any) -> None:
        """Stop before the logits, the largest tensor of a pass, if no site lies behind them."""
        if self.batch is not None and len(self._seen) == len(self._readouts):
            raise _StopForward

    def _receive(self, hook: str, activation: AnyActivation) -> None:
        if self.batch is None:
            return
        if hook in self._seen:
            raise InputError(
                f"hook point {hook!r}{self._of_model} fired twice in one forward pass (a shared layer, or generation); "
                "measure a model whose hook points fire once"
            )
        activation = activation.detach()
        for readout in self._readouts[hook]:
            self.kept[self.prefix + hook, readout] = self._read(readout, activation, self.batch)
        self._seen.add(hook)
        is_last = self._stop_early or (self.stops and hook == "unembed.hook_in")
        if is_last and len(self._seen) == len(self._readouts):
            raise _StopForward

    def _read(self, readout: Readout, activation: AnyActivation, batch: Batch) -> Shaped[Tensor, "..."]:
        """Apply a readout. The position of each example is found once a pass, not once per site."""
        if activation.shape[:2] != batch.tokens.shape:
            return readout(activation, batch)
        key = (readout, activation.device)
        if key not in self._places:
            places = readout.places(batch)
            if places is None:
                return readout(activation, batch)
            examples = torch.arange(len(batch), device=activation.device)
            self._places[key] = (examples, places.to(activation.device))
        return activation[self._places[key]]

    # ---- forward passes ----

    def measure(self, batch: Batch) -> Kept:
        """Return the activations kept from one forward pass. Later passes stop after the deepest site.

        Raises:
            InputError: if the device runs out of memory.
        """
        moved = batch.to(device_of(self.model))
        self.start(moved)
        try:
            with suppress(_StopForward):
                forward(self.model, moved)
            self._stop_early = True
            return self.finish()
        except torch.OutOfMemoryError as error:
            self.forget()
            # Without its frames, which hold activations.
            raise device_memory_error(f"the forward pass{self._of_model}", moved) from error.with_traceback(None)

    def start(self, batch: Batch) -> None:
        """Record the forward pass that comes next, of this batch."""
        self.batch = batch
        self.kept = {}
        self._seen = set()
        self._places = {}

    def finish(self) -> Kept:
        """Return the activations kept from the batch, and disable the hooks until the next ``start``.

        Raises:
            InputError: for a hook point that did not fire, and for NaN or infinity.
        """
        silent = [hook for hook in self._readouts if hook not in self._seen]
        if silent:
            raise InputError(
                f"hook point {silent[0]!r}{self._of_model} exists but did not fire in this forward pass; "
                "choose another hook name, or run the part of the model it belongs to"
            )
        assert self.batch is not None
        kept = {key: rows.to(self.home) for key, rows in self.kept.items()}
        self._check_finite(kept, self.batch)
        self.forget()
        return kept

    def forget(self) -> None:
        """Release the batch and its activations."""
        self.batch = None
        self.kept = {}
        self._places = {}

    def _check_finite(self, kept: Kept, batch: Batch) -> None:
        """Check all sites at once, because each check waits for the device. Check each one only if this fails."""
        sums = [rows.sum(dtype=_SUMMED_IN.get(rows.dtype)).float() for rows in kept.values()]
        if not sums or bool(torch.stack(sums).isfinite().all()):  # NaN and infinity survive sums
            return
        for (site, readout), rows in kept.items():
            if site.endswith("hook_attn_scores"):  # -inf at keys that a causal mask hides
                rows = torch.where(rows == -torch.inf, 0, rows)
            example = readout.check(rows, batch)
            if example is not None:
                raise InputError(
                    f"NaN or infinity in the activations at {site.removeprefix(self.prefix)!r}{self._of_model} for "
                    f"example index {example}; find its cause in the model or leave the example out"
                )


def _readouts_by_hook(probes: Sequence[Probe], model_name: str | None) -> dict[str, list[Readout]]:
    """Return the readouts that probes need at each hook point of a model, each once."""
    readouts: dict[str, list[Readout]] = {}
    for probe in probes:
        readout = check_readout(probe.readout)
        for site in probe.site_names:
            owner, hook = ("", site) if model_name is None else split_site(site)
            if owner != (model_name or ""):
                continue
            if readout.row_per_example and hook.endswith(("hook_pattern", "hook_attn_scores")):
                raise InputError(
                    f"readout {readout!r} picks positions, but {hook!r} is [batch head query key]; "
                    "give the probe readout=all_tokens()"
                )
            if hook.endswith("hook_attention") and not isinstance(readout, AttentionReadout):
                raise InputError(
                    f"readout {readout!r} takes a tensor, but {hook!r} is an Attention; give the probe a readout that "
                    "is an AttentionReadout"
                )
            at_hook = readouts.setdefault(hook, [])
            if readout not in at_hook:
                at_hook.append(readout)
    return readouts
