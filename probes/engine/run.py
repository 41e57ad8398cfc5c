"""One forward pass per batch for all probes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeAlias, overload

import torch
from torch import Tensor, nn

from probes.engine.batches import Batches, each_batch, one_batch
from probes.engine.hooks import HookedModel, device_of, evaluation_mode, forward, record
from probes.engine.identity import ExamplesDigest, fingerprint
from probes.engine.probe import Probe, computed_of, each_probe
from probes.engine.readout import Readout, check_readout
from probes.engine.result import ProbeResult
from probes.engine.sites import split_site
from probes.engine.texts import TextTokenizer
from tasks import Batch, InputError
from tasks.text.beginning import Bos


class _Stop(BaseException):
    """Ends a forward pass once the deepest site was seen. Not an Exception: nobody may swallow it."""


HookedModels: TypeAlias = HookedModel | Mapping[str, HookedModel]
Kept: TypeAlias = dict[tuple[str, Readout], Tensor]
_SUMMED = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


class _Recorder:
    """Hooks on one model that keep what its probes need of the current batch.

    ``name`` is the model's where several are measured: what is kept of it is called ``"name/hook"``. What is kept goes
    to the device ``home``, the batch's: a model may lie on several devices, probes see one. Unless ``stops`` is false,
    a pass ends where nobody reads on.
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
        self.prefix, self._whose = ("", "") if name is None else (f"{name}/", f" of model {name!r}")
        if isinstance(model, torch._dynamo.OptimizedModule):
            raise InputError(
                f"this model{self._whose and f', {name!r},'} went through torch.compile, which silently ignores hooks "
                "added later; measure the original module (model._orig_mod)"
            )
        self.model = model
        self.home = device_of(model) if home is None else home
        self.wanted: dict[str, dict[Readout, None]] = {}
        for probe in probes:
            readout = check_readout(probe.readout)
            for full_name in probe.site_names:
                whose, hook = ("", full_name) if name is None else split_site(full_name)
                if whose != (name or ""):
                    continue
                if readout.row_per_example and hook.endswith(("hook_pattern", "hook_attn_scores")):
                    raise InputError(
                        f"readout {readout!r} picks positions, but {hook!r} is [batch head query key]; "
                        "give the probe readout=all_tokens()"
                    )
                self.wanted.setdefault(hook, {})[readout] = None
        self.batch: Batch | None = None
        self.stops, self.stop_early = stops, False
        self.most = sys.maxsize  # tokens that fit in memory at once, padding included
        self.kept: Kept = {}
        self.seen: set[str] = set()
        self._places: dict[tuple[Readout, torch.device], tuple[Tensor, Tensor]] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Hooked to the model inside the block."""
        head = _head(self.model) if self.stops else None
        handle = None if head is None else head.register_forward_pre_hook(self._at_head)
        try:
            with record(self.model, self.wanted, self._receive):
                yield
        finally:
            if handle is not None:
                handle.remove()

    def _at_head(self, *_: Any) -> None:
        """Logits are the largest tensor of a pass: not computed where no site lies behind them."""
        if self.batch is not None and len(self.seen) == len(self.wanted):
            raise _Stop

    def _receive(self, name: str, activation: Tensor) -> None:
        if self.batch is None:
            return
        if name in self.seen:
            raise InputError(
                f"hook point {name!r}{self._whose} fired twice in one forward pass (a shared layer, or generation); "
                "measure a model whose hook points fire once"
            )
        for readout in self.wanted[name]:
            self.kept[self.prefix + name, readout] = self._read(readout, activation.detach(), self.batch)
        self.seen.add(name)
        if len(self.seen) == len(self.wanted) and (self.stop_early or (self.stops and name == "unembed.hook_in")):
            raise _Stop

    def _read(self, readout: Readout, activation: Tensor, batch: Batch) -> Tensor:
        """What the readout keeps; where each example is read is found once a pass, not once per site."""
        if activation.shape[1:2] != batch.tokens.shape[1:]:
            return readout(activation, batch)
        key = readout, activation.device
        if key not in self._places:
            if (places := readout.places(batch)) is None:
                return readout(activation, batch)
            self._places[key] = torch.arange(len(batch), device=key[1]), places.to(key[1])
        return activation[self._places[key]]

    def start(self, batch: Batch) -> None:
        self.batch = batch
        self.kept, self.seen, self._places = {}, set(), {}

    def measure(self, batch: Batch) -> Kept:
        """What is kept of one forward pass; later ones stop after the deepest site.

        Where the device runs out of memory, of two passes over half the examples each.
        """
        moved = batch.to(device_of(self.model))
        length = max(1, moved.tokens.shape[1])
        size = max(1, min(self.most // length, len(moved)))
        for part in dict.fromkeys((size, (size + 1) // 2)):
            with suppress(torch.OutOfMemoryError):  # retried outside, where nothing holds on to the failed pass
                return self._in_parts(moved, part)
            self.batch, self.kept, self.most = None, {}, (size + 1) // 2 * length
            torch.cuda.empty_cache()  # does nothing where there is no CUDA
        raise out_of_memory(f"the forward pass{self._whose}", moved, part)

    def _in_parts(self, batch: Batch, size: int) -> Kept:
        found = []
        for part in [batch] if size >= len(batch) else batch.split(size):
            self.start(part)
            with suppress(_Stop):
                forward(self.model, part)
            self.stop_early = True
            found.append(self.finish())
        return found[0] if len(found) == 1 else {key: torch.cat([kept[key] for kept in found]) for key in found[0]}

    def finish(self) -> Kept:
        """What was kept of the batch, by site and readout; hooks do nothing until the next ``start``."""
        if silent := [name for name in self.wanted if name not in self.seen]:
            raise InputError(
                f"hook point {silent[0]!r}{self._whose} exists but did not fire in this forward pass; "
                "choose another hook name, or run the part of the model it belongs to"
            )
        kept = {key: rows.to(self.home) for key, rows in self.kept.items()}
        assert self.batch is not None
        self._check_finite(kept, self.batch)
        self.batch, self.kept, self._places = None, {}, {}
        return kept

    def _check_finite(self, kept: Kept, batch: Batch) -> None:
        """One look at all sites, for each look waits for the device; a second one where something is wrong."""
        sums = [rows.sum(dtype=_SUMMED.get(rows.dtype)).float() for rows in kept.values()]
        if bool(torch.stack(sums).isfinite().all()):  # NaN and infinity survive sums
            return
        for (name, readout), rows in kept.items():
            if (example := readout.check(rows, batch)) is not None:
                raise InputError(
                    f"NaN or infinity in the activations at {name.removeprefix(self.prefix)!r}{self._whose} for "
                    f"example index {example}; find its cause in the model or leave the example out"
                )


def _head(model: HookedModel) -> nn.Module | None:
    """What computes logits, or ``None``; of TransformerLens's bridge what lies between its two hook points."""
    head = getattr(model, "unembed", None)
    inner = getattr(head, "original_component", None)
    return next((module for module in (inner, head) if isinstance(module, nn.Module)), None)


def out_of_memory(what: str, batch: Batch, size: int) -> InputError:
    """That parts of so many examples of a batch do not fit."""
    n, length = batch.tokens.shape
    examples = "1 example" if n == 1 else f"{n} examples"
    parts = f", nor for parts of {size}" if size < n else ""
    fewer = size // 2
    way = (
        f"batches of at most {fewer} (tokens_per_batch={fewer * length} for texts and rows)"
        if fewer
        else "shorter texts"
    )
    return InputError(
        f"device {str(batch.tokens.device)!r} has too little memory for {what} of {examples} of {length} "
        f"tokens{parts}; give {way}, or a device with more"
    )


def _observe(probes: Sequence[Probe], kept: Kept, batch: Batch) -> None:
    for probe in probes:
        probe.observe({name: kept[name, probe.readout] for name in probe.site_names}, batch)


class Attached:
    """What ``attach`` returns: give it the batch whose forward pass comes next."""

    def __init__(self, recorder: _Recorder, probes: Sequence[Probe]) -> None:
        self._recorder, self._probes = recorder, probes

    @contextmanager
    def on(self, batch: Batch | Tensor | Mapping[str, Any]) -> Iterator[None]:
        """Measure the one forward pass made inside this block; other passes are not measured.

        Args:
            batch: the batch, token ids ``[batch pos]``, or what a Hugging Face tokenizer gives. Where it brings no
                index, examples are numbered on from those that the probes hold.

        Raises:
            InputError: for an example that a probe holds already (``probe.reset()`` lets it go), and where ``run``
                raises it.
        """
        moved = one_batch(batch, self._recorder.model).to(self._recorder.home)
        if not isinstance(batch, Batch):
            moved = replace(moved, index=moved.index + max((probe.examples.end for probe in self._probes), default=0))
        self._recorder.start(moved)
        try:
            yield
            _observe(self._probes, self._recorder.finish(), moved)
        finally:
            self._recorder.batch, self._recorder.kept = None, {}


@contextmanager
def attach(model: HookedModel, probes: Probe | Sequence[Probe]) -> Iterator[Attached]:
    """Hooks ``probes`` to ``model`` for the block, for training loops and notebooks.

    The probes are not reset. The hooks are removed on the way out, also after an exception; other
    people's hooks stay.

    Example:
        >>> # with attach(model, probe) as attached:
        >>> #     with attached.on(batch):
        >>> #         loss = task.loss(model(batch.tokens), batch)
        >>> # probe.compute()
    """
    if isinstance(model, Mapping):
        raise InputError(f"attach measures one model, and was given {len(model)}; use run() for probes that compare")
    several = each_probe(probes)
    for probe in several:
        probe.bind(model)
    recorder = _Recorder(model, several, stops=False)
    with recorder.recording():
        yield Attached(recorder, several)


@overload
def run(
    model: HookedModels,
    batches: Batches,
    probes: Probe,
    *,
    tokenizer: Any = ...,
    bos: Bos = ...,
    tokens_per_batch: int = ...,
    progress: bool = ...,
) -> ProbeResult: ...
@overload
def run(
    model: HookedModels,
    batches: Batches,
    probes: Sequence[Probe],
    *,
    tokenizer: Any = ...,
    bos: Bos = ...,
    tokens_per_batch: int = ...,
    progress: bool = ...,
) -> list[ProbeResult]: ...
def run(
    model: HookedModels,
    batches: Batches,
    probes: Probe | Sequence[Probe],
    *,
    tokenizer: Any = None,
    bos: Bos = "model",
    tokens_per_batch: int = 4096,
    progress: bool = False,
) -> ProbeResult | list[ProbeResult]:
    """Measure a model on batches: one forward pass per batch, whatever the number of probes.

    In inference mode, with dropout off; the model's train/eval mode, other people's hooks and the
    global random state are unchanged afterwards. The forward pass stops after the deepest site needed (the first one at
    the language-model head, which never runs unless a site lies behind it). Memory does not grow with the number of
    batches beyond the probes' declared state. Where a device runs out of it, a batch is tried again in halves, once.

    Several models, ``{"tuned": a, "base": b}``, are run on the same batches for probes that compare them: one
    forward pass of each per batch. They may be on different devices, and one model may have two names. One model may
    also be spread over several devices: what probes see is on that of its embedding.

    Args:
        model: anything with TransformerLens's hook protocol, or several by name.
        batches: a ``Batch`` or an iterable of them, every example with an index of its own. Or token ids
            ``[batch pos]``, a list of texts, what a Hugging Face tokenizer gives, rows of a Hugging Face data set
            with ``input_ids`` or ``text``, or an iterable of these: their examples are numbered 0, 1, 2, ..., and a
            row's integers become labels under their names.
        probes: one probe or several. They are reset first.
        tokenizer: Hugging Face's, for texts; by default the model's, as its checkpoint has it. Special tokens are
            those it adds.
        bos: whether each text begins with the beginning-of-sequence token: ``"model"`` leaves it to the tokenizer,
            ``"yes"`` adds it if it is missing, ``"no"`` removes it.
        tokens_per_batch: most tokens per forward pass, padding included, unless they are given as ``Batch``.
            Sequences of similar length go together, longest first. Results depend on it by rounding only.
        progress: show a progress bar.

    Returns:
        One result for one probe, a list for a sequence.

    Raises:
        InputError: for a name that is not in the model, a label or position missing from the batches,
            no batches, NaN in the activations, several models with vocabularies of different sizes, token ids
            outside the vocabulary, more tokens than the model's context, or too little memory.
    """
    several = each_probe(probes, least=1)
    models = dict(model) if isinstance(model, Mapping) else {"": model}
    reading = TextTokenizer(models, tokenizer, bos)
    source = each_batch(
        batches,
        models,
        reading=reading,
        tokens_per_batch=tokens_per_batch,
        progress="probing" if progress else None,
    )
    with measuring(model, several) as step:
        for batch in source:  # outside inference mode: what a generator keeps must stay usable in training
            step(batch)
            del batch  # let go before the next one is drawn
    results = finished(
        several,
        [step.state()],
        [{name: fingerprint(each) for name, each in models.items()}],
        tokenization=reading.tokenization,
    )
    return results[0] if isinstance(probes, Probe) else results


def finished(
    probes: Sequence[Probe],
    states: Sequence[Mapping[str, Any]],
    fingerprints: Sequence[Mapping[str, str]],
    *,
    tokenization: Mapping[str, Any] | None = None,
) -> list[ProbeResult]:
    """The results of probes that hold all examples, with what was measured in their metadata.

    Args:
        probes: with the state of all shards merged.
        states: each shard's ``Measuring.state()``; one for an undivided measurement.
        fingerprints: each shard's models by name, ``""`` for a single one.
        tokenization: how texts became tokens, if no shard's state says it; ``None`` if no texts were given.

    Raises:
        InputError: for no examples, shards of different models, and too little memory to compute.
    """
    for number, models in enumerate(fingerprints):
        first = fingerprints[0]
        if other := [name for name in {**first, **models} if models.get(name) != first.get(name)]:
            whose = f" {other[0]!r}" if other[0] else ""
            raise InputError(
                f"shard {number} was measured on a different model{whose} from shard 0 (their weights or "
                "configurations differ); give every worker the same model and measure again"
            )
    examples, positions, real = ExamplesDigest(), 0, 0
    for state in states:
        examples.merge(ExamplesDigest.of(state["examples"]))
        positions, real = positions + state["positions"], real + state["real"]
    if not examples.count:
        raise InputError("there are no examples to measure; give at least one non-empty batch")
    what = {**examples.record(fingerprints[0]), "padding": (positions - real) / positions}
    said = [state["tokenization"] for state in states if state.get("tokenization")]
    if how := tokenization or next(iter(said), None):
        what["tokenization"] = dict(how)
    computed = (computed_of(probe, examples.count) for probe in probes)
    return [replace(found, metadata={**found.metadata, **what}) for found in computed]


class Measuring:
    """What ``measuring`` gives: called with a batch, it runs one forward pass and updates the probes.

    Attributes:
        examples: those measured so far.
    """

    def __init__(self, recorders: Sequence[_Recorder], probes: Sequence[Probe]) -> None:
        self.examples = ExamplesDigest()
        self._recorders, self._probes = recorders, probes
        self._positions = self._real = 0

    def __call__(self, batch: Batch) -> None:
        home = self._recorders[0].home
        kept: Kept = {}
        with torch.inference_mode():
            for recorder in self._recorders:
                kept |= recorder.measure(batch)
            try:
                _observe(self._probes, kept, batch.to(home))
            except torch.OutOfMemoryError:  # some states may hold the batch by now: not to be tried again
                raise out_of_memory("what the probes keep", batch.to(home), len(batch)) from None
        self.examples.add(batch)
        self._positions += batch.tokens.numel()
        self._real += batch.tokens.numel() if batch.attention_mask is None else int(batch.attention_mask.sum())

    def state(self) -> dict[str, Any]:
        """What ``finished`` needs to know of it, as JSON: the examples, and how many positions were real tokens."""
        return {"examples": self.examples.state(), "positions": self._positions, "real": self._real}


@contextmanager
def measuring(model: HookedModels, probes: Sequence[Probe]) -> Iterator[Measuring]:
    """``run`` for those who have batches one at a time: hooks once, and a forward pass for each batch they give.

    The probes are reset on entry, and may be reset between batches. Dropout is off inside, and the model as it was
    afterwards.

    Args:
        model: as ``run`` takes it.
        probes: that see every batch.

    Example:
        >>> # with measuring(model, [probe]) as step:
        >>> #     for batch in each_batch(texts, {"": model}):
        >>> #         step(batch)
        >>> # probe.compute()
    """
    if isinstance(model, Mapping):
        _check_compares(probes, model)
        check_models(model)
    models: list[tuple[str | None, HookedModel]] = [*model.items()] if isinstance(model, Mapping) else [(None, model)]
    for probe in probes:
        probe.reset()
        probe.bind(model)
    home = device_of(models[0][1])
    recorders = [_Recorder(each, probes, name, home) for name, each in models]
    with ExitStack() as stack:
        for recorder in recorders:
            stack.enter_context(evaluation_mode(recorder.model))
            stack.enter_context(recorder.recording())
        yield Measuring(recorders, probes)


def _check_compares(probes: Sequence[Probe], models: Mapping[str, HookedModel]) -> None:
    for probe in probes:
        if not probe.compares:
            raise InputError(
                f"{type(probe).__name__} measures one model at a time, but was given {len(models)} "
                f"({', '.join(map(str, models))}); run it on each, or give these models to a probe that compares"
            )


def check_models(models: Mapping[str, HookedModel]) -> None:
    """Refuse several models whose names cannot be told apart, or that read tokens of different vocabularies.

    Raises:
        InputError: naming the model, or two.
    """
    if not models:
        raise InputError("no models given; give one, or several by name")
    for name in models:
        if not isinstance(name, str) or not name:
            raise InputError(f"a model is called {name!r}; expected a name, such as 'tuned'")
    sizes = {name: getattr(getattr(model, "cfg", None), "d_vocab", None) for name, model in models.items()}
    if len(known := {name: size for name, size in sizes.items() if size is not None}) > 1:
        (first, size), *others = known.items()
        for name, other in others:
            if other != size:
                raise InputError(
                    f"model {first!r} has a vocabulary of {size} tokens and {name!r} one of {other}, so the same "
                    "tokens are not the same text; compare models with one tokenizer"
                )
