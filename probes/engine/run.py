"""Measure a model on batches, with one forward pass per batch for all probes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, overload

import torch

from probes.engine.batches import Batches, each_batch
from probes.engine.devices import device_memory_error, device_of
from probes.engine.examples_digest import ExamplesDigest
from probes.engine.fingerprint import fingerprint
from probes.engine.hooked_model import (
    HookedModel,
    HookedModels,
    check_hooked_models,
    evaluation_mode,
    hooked_models_by_name,
)
from probes.engine.probe import Probe, check_no_probe_class
from probes.engine.record import Kept, _Recorder
from probes.engine.result import ProbeResult
from probes.engine.text_tokenizer import TextTokenizer
from tasks import Batch, InputError
from tasks.text.bos_token import Bos


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

    Forward passes run in inference mode, with dropout off. The model's train/eval mode, other hooks and the global
    random state are unchanged afterwards. A pass stops after the deepest site needed (the first one at the
    language-model head, which never runs unless a site lies behind it). Memory does not grow with the number of batches
    beyond the probes' declared state.

    Several models, ``{"tuned": a, "base": b}``, are run on common batches for probes that compare them, with one
    forward pass of each per batch. They may be on different devices, and one model may have two names. One model may
    also be spread over several devices: probes then get activations on the device of its embedding.

    Args:
        model: anything with TransformerLens's hook protocol, or several by name.
        batches: a ``Batch`` or an iterable of them, every example with its own index. Or token ids ``[batch pos]``, a
            list of texts, the output of a Hugging Face tokenizer, rows of a Hugging Face data set with ``input_ids`` or
            ``text``, or an iterable of these: their examples are numbered 0, 1, 2, ..., and a row's integers become
            labels under their names.
        probes: one probe or several. They are reset first.
        tokenizer: a Hugging Face tokenizer, for texts. It adds the special tokens. The default is the model's
            tokenizer, as its checkpoint has it.
        bos: whether each text begins with the beginning-of-sequence token: ``"model"`` leaves it to the tokenizer,
            ``"yes"`` adds it if it is missing, ``"no"`` removes it.
        tokens_per_batch: most tokens per forward pass, padding included. A ``Batch`` is not divided. Sequences of
            similar length go together, longest first. Results depend on it by rounding only.
        progress: show a progress bar.

    Returns:
        One result for one probe, a list for a sequence.

    Raises:
        InputError: for a name that is not in the model, a label or position missing from the batches,
            no batches, NaN in the activations, several models with vocabularies of different sizes, token ids
            outside the vocabulary, more tokens than the model's context, or too little memory.

    Example:
        >>> from transformer_lens import HookedRootModule
        >>> from transformer_lens.hook_points import HookPoint
        >>> from probes import NDims, embedding
        >>> class OneHot(HookedRootModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.embed = torch.nn.Embedding.from_pretrained(torch.eye(5))
        ...         self.hook_embed = HookPoint()
        ...         self.setup()
        ...     def forward(self, tokens):
        ...         return self.hook_embed(self.embed(tokens))
        >>> result = run(OneHot(), torch.tensor([[0, 1], [0, 2], [0, 3]]), NDims(at=embedding()))
        >>> result.sel("n_dims", site="hook_embed", label="all")
        tensor(2., dtype=torch.float64)
    """
    probe_list = probes_as_list(probes, least=1)
    models = hooked_models_by_name(model)
    reading = TextTokenizer(models, tokenizer, bos)
    source = each_batch(
        batches,
        models,
        reading=reading,
        tokens_per_batch=tokens_per_batch,
        progress="probing" if progress else None,
    )
    with run_by_steps(model, probe_list) as step:
        for batch in source:  # outside inference mode: tensors that a generator keeps must stay usable in training
            step(batch)
            del batch  # released before the next one is drawn
    results = run_results(
        probe_list,
        [step.state()],
        [{name: fingerprint(each) for name, each in models.items()}],
        tokenization=reading.tokenization,
    )
    return results[0] if isinstance(probes, Probe) else results


def run_results(
    probes: Sequence[Probe],
    states: Sequence[Mapping[str, Any]],
    fingerprints: Sequence[Mapping[str, str]],
    *,
    tokenization: Mapping[str, Any] | None = None,
) -> list[ProbeResult]:
    """Return the results of probes that hold all examples, with a description of the input in their metadata.

    Args:
        probes: probes with the state of all shards merged.
        states: each shard's ``RunStep.state()``, or one for an undivided measurement.
        fingerprints: each shard's models by name, ``""`` for a single one.
        tokenization: how texts became tokens, if no shard's state says it. ``None`` if no texts were given.

    Raises:
        InputError: for no examples, shards of different models, and too little memory to compute.
    """
    for number, models in enumerate(fingerprints):
        check_same_models(number, models, fingerprints[0])
    examples = ExamplesDigest()
    for state in states:
        examples.merge(ExamplesDigest(*state["examples"]))
    if not examples.count:
        raise InputError("there are no examples to measure; give at least one non-empty batch")
    positions = sum(state["positions"] for state in states)
    real = sum(state["real"] for state in states)
    measured = {**examples.record(fingerprints[0]), "padding": (positions - real) / positions}
    tokenizations = [tokenization, *(state.get("tokenization") for state in states)]
    first_tokenization = next(filter(None, tokenizations), None)
    if first_tokenization:
        measured["tokenization"] = dict(first_tokenization)
    results = [compute_probe(probe, examples.count) for probe in probes]
    return [replace(result, metadata={**result.metadata, **measured}) for result in results]


def check_same_models(number: int, models: Mapping[str, str], first: Mapping[str, str]) -> None:
    """Refuse a shard that was measured on other models than the first.

    Args:
        number: of the shard.
        models: fingerprints of its models by name.
        first: those of shard 0.

    Raises:
        InputError: naming the shard and the model.
    """
    for name in {**first, **models}:
        if models.get(name) != first.get(name):
            which = f" {name!r}" if name else ""
            raise InputError(
                f"shard {number} was measured on a different model{which} from shard 0 (their weights or "
                "configurations differ); give every worker the same model and measure again"
            )


class RunStep:
    """Function that runs a forward pass for a batch, and updates the probes. See ``run_by_steps``.

    Attributes:
        examples: digest of the examples measured so far.
    """

    def __init__(self, recorders: Sequence[_Recorder], probes: Sequence[Probe]) -> None:
        self.examples = ExamplesDigest()
        self._recorders = recorders
        self._probes = probes
        self._positions = 0
        self._real = 0

    def __call__(self, batch: Batch) -> None:
        home = self._recorders[0].home
        kept: Kept = {}
        with torch.inference_mode():
            for recorder in self._recorders:
                kept |= recorder.measure(batch)
            try:
                update_probes(self._probes, kept, batch.to(home))
            except torch.OutOfMemoryError as error:
                raise device_memory_error("what the probes keep", batch.to(home)) from error.with_traceback(None)
        self.examples.add(batch)
        self._positions += batch.tokens.numel()
        self._real += batch.tokens.numel() if batch.attention_mask is None else int(batch.attention_mask.sum())

    def state(self) -> dict[str, Any]:
        """Return the input of ``run_results`` as JSON: the examples, and the number of real tokens."""
        return {"examples": self.examples.state(), "positions": self._positions, "real": self._real}


@contextmanager
def run_by_steps(model: HookedModels, probes: Sequence[Probe]) -> Iterator[RunStep]:
    """Hook probes to models, and yield a function that measures one batch. Like ``run``, batch by batch.

    The probes are reset on entry, and may be reset between batches. Dropout is off inside, and afterwards the model is
    as it was.

    Args:
        model: as ``run`` takes it.
        probes: probes that see every batch.

    Example:
        >>> # with run_by_steps(model, [probe]) as step:
        >>> #     for batch in each_batch(texts, {"": model}):
        >>> #         step(batch)
        >>> # probe.compute()
    """
    models: list[tuple[str | None, HookedModel]]
    if isinstance(model, Mapping):
        _check_compares(probes, model)
        check_hooked_models(model)
        models = [*model.items()]
    else:
        models = [(None, model)]
    for probe in probes:
        probe.reset()
        probe.bind(model)
    home = device_of(models[0][1])
    recorders = [_Recorder(each, probes, name, home) for name, each in models]
    with ExitStack() as stack:
        for recorder in recorders:
            stack.enter_context(evaluation_mode(recorder.model))
            stack.enter_context(recorder.recording())
        yield RunStep(recorders, probes)


def _check_compares(probes: Sequence[Probe], models: Mapping[str, HookedModel]) -> None:
    """Refuse several models for a probe that measures one."""
    for probe in probes:
        if not probe.compares:
            raise InputError(
                f"{type(probe).__name__} measures one model at a time, but was given {len(models)} "
                f"({', '.join(map(str, models))}); run it on each, or give these models to a probe that compares"
            )


def update_probes(probes: Sequence[Probe], kept: Kept, batch: Batch) -> None:
    """Give each probe the activations kept at its sites."""
    for probe in probes:
        probe.observe({site: kept[site, probe.readout] for site in probe.site_names}, batch)


def compute_probe(probe: Probe, n: int) -> ProbeResult:
    """Return the probe's result, of ``n`` examples.

    Raises:
        InputError: if a device has too little memory for it, or ``compute`` returns something else.
    """
    try:
        result = probe.compute()
    except torch.OutOfMemoryError as error:
        raise _compute_out_of_memory(probe, n) from error.with_traceback(None)
    if not isinstance(result, ProbeResult):
        raise InputError(
            f"compute of {type(probe).__name__} returned a {type(result).__name__}; return self.result(values, axes)"
        )
    return result


def _compute_out_of_memory(probe: Probe, n: int) -> InputError:
    max_rows: int | None = getattr(probe, "max_rows", None)
    if max_rows is not None:
        n = min(n, max_rows)
    way = "set max_rows lower" if hasattr(probe, "max_rows") else "give fewer examples"
    if getattr(probe, "device", None) is not None:
        way += ", or leave device unset"
    elif hasattr(probe, "device"):
        way += ", or give device='cpu'"
    return InputError(f"device memory is too small for what {type(probe).__name__} computes from {n} examples; {way}")


def probes_as_list(probes: Probe | Sequence[Probe], *, least: int = 0) -> list[Probe]:
    """Return one probe or several as a list.

    Args:
        probes: one or several.
        least: the smallest number allowed.

    Raises:
        InputError: for too few, for anything that is not a probe (a class, for example), for a probe that does not
            keep its arguments, and for a probe given twice.
    """
    is_single = isinstance(probes, (Probe, type, str)) or not isinstance(probes, Iterable)
    as_list: list[Any] = [probes] if is_single else list(probes)  # type: ignore[arg-type]
    if len(as_list) < least:
        raise InputError("no probes given; give one or several, such as CKA()")
    for probe in as_list:
        check_no_probe_class(probe)
        if not isinstance(probe, Probe):
            raise InputError(f"{repr(probe)[:60]} is not a probe; expected one or several, such as CKA()")
        probe.parameters()  # refuses a probe that does not keep them
    if len({id(probe) for probe in as_list}) < len(as_list):
        raise InputError("a probe is given twice; give each once")
    return as_list
