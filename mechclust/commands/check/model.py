"""Can numbers from this model be trusted? A self-check, before anything is measured."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mechclust.commands.check.batches import check_padding, check_repeats, check_same_alone
from mechclust.commands.check.equal import equals_hugging_face, read_only_equals
from mechclust.commands.check.fused import fused_attention_equals
from mechclust.commands.check.hooks import attention_direction, attention_rows, blocks_join, finite_values, hook_points
from mechclust.commands.check.inputs import SELECTORS, CheckedModel
from mechclust.commands.check.reference import Reference, take_reference
from mechclust.commands.check.result import Check, CheckReport, NotTried
from mechclust.commands.check.text import check_beginning_token, text
from mechclust.commands.check.traces import no_trace
from mechclust.commands.settings import Dtype
from mechclust.jobs import progress_bar
from mechclust.models import load_pretrained
from mechclust.models.adapter_fit import adapter_fit_notes
from mechclust.models.adapters import adapter_of, set_adapter
from mechclust.models.plain_model import plain_model
from mechclust.models.pretrained import AnyModel, load_pretrained_unhooked
from mechclust.models.resolved import ResolvedModel, resolve_model
from probes import attach, embedding, resolve
from probes.engine.devices import check_device
from tasks import InputError
from tasks.errors import error_line
from tasks.settings import Seed, check_settings

CheckFields = tuple[bool, str] | tuple[bool, str, bool]  # fields of ``Check`` after its name
_Attempt = Callable[[], CheckFields]
_ATTEMPTS: dict[str, Callable[[CheckedModel], CheckFields] | None] = {
    "tokenizer": text,
    "beginning of sequence": check_beginning_token,
    "finite values": finite_values,
    "same values twice": check_repeats,
    "equals Hugging Face": None,  # needs the reference too
    "attention rows": attention_rows,
    "attention direction": attention_direction,
    "blocks join": blocks_join,
    "alone as in a batch": check_same_alone,
    "padding": check_padding,
    "no trace": no_trace,
}
_ENDS_IF_FAILED = ("finite values", "same values twice")  # the later checks need such values

_Compare = Callable[[CheckedModel, Reference | str], tuple[bool, str]]
_READ_ONLY: dict[str, _Compare] = {
    "equals, read-only": read_only_equals,
    "equals, fused attention": fused_attention_equals,
}


_WAYS_OUT = {
    "device": "move it with model.to(...)",
    "dtype": "change it with model.to(...)",
    "device_map": "load it with load_pretrained(..., device_map=...)",
    "adapter": "put it in with set_adapter(model, folder)",
}


@dataclass(frozen=True)
class _Settings:
    """Settings of a check that have a range."""

    dtype: Dtype | None
    seed: Seed


def check_model(
    model: AnyModel,
    *,
    tokenizer: Any = None,
    adapter: str | Path | None = None,
    device: str | None = None,
    dtype: Dtype | None = None,
    device_map: str | Mapping[str, Any] | None = None,
    trust_remote_code: bool = False,
    seed: int = 0,
    progress: bool = False,
) -> CheckReport:
    """Check everything that probes need of a model, without changing the model or the process.

    Logits, states and attention (of a model in memory, if it is eager) are plain Hugging Face's, with and without
    padding; hook points exist, fire once and have the documented shapes; weights and activations are finite; attention
    rows sum to 1 and attend only where they may; each block reads the previous one's output; values repeat to the bit,
    and are equal alone, in a batch and with padding; measuring leaves no trace in output, hooks, flags and random
    states; and the tokenizer fits. Without values that are finite and repeat, the checks end.

    Cost: about 30 forward passes on at most 8 sequences of 8 tokens (of the model's own length if that is fixed),
    most of them on 2; seconds for a small model. Memory: one model at a time if it is given by name.

    Args:
        model: a hub name, a local directory or file as ``load_pretrained`` takes it, a Hugging Face model in memory, or
            a hooked model.
        tokenizer: the tokenizer, for a model without one.
        adapter: folder that peft saved; not for a hooked model.
        device: where to load it, ``"cpu"`` by default; not for a model that is in memory already.
        dtype: dtype of the loaded weights, ``"float32"`` by default; not for a model in memory.
        device_map: how to spread it over devices, such as ``"auto"``, in place of ``device``; not for a model in
            memory.
        trust_remote_code: run code that comes with the checkpoint.
        seed: for the random tokens.
        progress: show a progress bar.

    Returns:
        One row per check: passed, failed with what that means and the way out, or not tried with the reason.

    Raises:
        InputError: for a model that cannot be loaded or has no hooks, an unavailable device, and a seed or dtype out of
            range.

    Example:
        >>> from mechclust.models import ModelConfig, build_model
        >>> model = build_model(ModelConfig(d_vocab=20, n_ctx=8, n_layers=1, d_model=8, n_heads=2))
        >>> report = check_model(model)
        >>> report.passed, report["attention rows"].verdict
        (True, 'ok')
    """
    check_settings(_Settings(dtype, seed))
    resolved = resolve_model(model, adapter)
    placed = {"device": device, "dtype": dtype, "device_map": device_map}
    with torch.random.fork_rng(devices=[]), ExitStack() as afterwards:
        if resolved.in_memory and not _is_hugging_face(resolved.source):
            _refuse(placed if adapter is None else {**placed, "adapter": adapter})
            subject = _hooked_subject(resolved.source, tokenizer, seed)
        else:
            options = {"trust_remote_code": trust_remote_code, "tokenizer": tokenizer}
            options |= _placement(placed, in_memory=resolved.in_memory)
            subject = _loaded_subject(resolved, options, seed)
            if resolved.in_memory and adapter is not None:  # the weights are shared
                afterwards.callback(set_adapter, subject.checked.model, None)
        checks = _checks(subject)
        first, *others = progress_bar(checks, desc="checking", unit=" check") if progress else checks
    notes = [Check("adapter", True, note, note=True) for note in adapter_fit_notes([resolved])]
    rows = [first, *notes, *others]
    return CheckReport(type(resolved.source).__name__ if resolved.in_memory else resolved.source, rows)


def _placement(placed: Mapping[str, Any], *, in_memory: bool) -> dict[str, Any]:
    """Return options for loading that say where the weights go.

    Raises:
        InputError: if the model is in memory already, for a device that is not there, or for a device and a map.
    """
    if in_memory:
        _refuse(placed)
        return {}
    if placed["device"] is not None and placed["device_map"] is not None:
        raise InputError(f"device is {placed['device']!r} and device_map {placed['device_map']!r}; give one of them")
    device = "cpu" if placed["device"] is None else placed["device"]
    check_device(device)
    where = {"device": device} if placed["device_map"] is None else {"device_map": placed["device_map"]}
    return {"dtype": getattr(torch, placed["dtype"] or "float32"), **where}


class _Known(NamedTuple):
    """Values of plain Hugging Face, if they are known.

    Attributes:
        reference: the values, or why they are not known.
        note: a caveat on them.
    """

    reference: Reference | str
    note: str = ""


class _Subject(NamedTuple):
    """A model to check, and its reference.

    Attributes:
        checked: the model.
        known: values of plain Hugging Face.
        load_read_only: loads the model as ``clusters`` and ``compare`` read it; ``None`` for other models.
        forget: whether the model may be dropped before that, because two large ones need not fit together.
    """

    checked: CheckedModel
    known: _Known
    load_read_only: Callable[[], Any] | None
    forget: bool


def _loaded_subject(resolved: ResolvedModel, options: dict[str, Any], seed: int) -> _Subject:
    """Return the subject of a model of Hugging Face, given by name or in memory."""
    known = _reference(resolved, options, seed)
    checked = CheckedModel(load_pretrained(resolved, **options), options["tokenizer"], seed)
    again = resolved.without_adapter if resolved.in_memory else resolved  # in memory it is in the weights by now
    return _Subject(
        checked,
        known,
        load_read_only=partial(load_pretrained, again, attention="sdpa", **options),
        forget=not resolved.in_memory,
    )


def _hooked_subject(model: Any, tokenizer: Any, seed: int) -> _Subject:
    """Return the subject of a model with hooks, in memory."""
    _check_hooked(model)
    plain = plain_model(model)
    load_read_only = None if plain is None else partial(load_pretrained, plain, attention="sdpa")
    known = _shared_reference(model, plain, tokenizer, seed)
    return _Subject(CheckedModel(model, tokenizer, seed), known, load_read_only, forget=False)


def _is_hugging_face(model: Any) -> bool:
    """Return whether a model is a Hugging Face model in memory, without hooks; peft's too."""
    return getattr(model, "hook_dict", None) is None and hasattr(model, "config") and hasattr(model, "base_model")


def _reference(model: ResolvedModel, options: dict[str, Any], seed: int) -> _Known:
    """Compute the reference for a model that is not loaded yet: both need not fit into memory together."""
    if model.is_own_file:
        return _Known("the file is from save_model, so there is no Hugging Face model to compare with")
    plain, tokenizer = load_pretrained_unhooked(model, **options)
    reference = _take(plain, tokenizer, seed)
    del plain
    gc.collect()
    return _Known(reference)


def _shared_reference(model: Any, plain: Any, tokenizer: Any, seed: int) -> _Known:
    """Compute the reference with the Hugging Face model that shares the weights of a loaded one, if there is one."""
    if plain is None:
        return _Known(
            "it is not known what plain Hugging Face computes for a model in memory that load_pretrained did not load, "
            "since a model inside TransformerLens's bridge computes as the bridge does; give its name or directory"
        )
    tokenizer = getattr(model, "tokenizer", None) if tokenizer is None else tokenizer
    adapter = adapter_of(model)
    inside = "" if adapter is None else f" and the adapter {adapter!r} in them"
    note = (
        f"; weights are shared with it{inside}, so a fault in loading or merging would not show: "
        "give the model by name for that"
    )
    return _Known(_take(plain, tokenizer, seed), note)


def _take(plain: Any, tokenizer: Any, seed: int) -> Reference | str:
    try:
        return take_reference(plain, tokenizer, seed)
    except Exception as error:  # of the model: anything
        return f"plain Hugging Face stopped with {error_line(error)}"


def _refuse(options: Mapping[str, Any]) -> None:
    """Refuse options for loading, with a model that is in memory already."""
    for name, value in options.items():
        if value is not None:
            raise InputError(
                f"{name} is {value!r}, but the model is loaded already; {_WAYS_OUT[name]}, or give the model's name"
            )


def _check_hooked(model: Any) -> None:
    if isinstance(model, Mapping):
        raise InputError(f"check_model takes one model, but was given {len(model)}; check them one at a time")
    if getattr(model, "hook_dict", None) is None:
        resolve(model, embedding())  # says so
    with attach(model, []):  # refuses a compiled model
        pass


def _checks(subject: _Subject) -> Iterator[Check]:
    """Yield all checks in turn. One that the later ones need ends them if it fails."""
    checked = subject.checked
    yield Check("model", True, checked.facts())
    runs = _tried("forward pass", partial(_runs, checked))
    if not runs.passed:
        detail = f"{runs.detail}; nothing else can be tried: make model(tokens) work for tokens [batch pos]"
        yield Check(runs.name, False, detail)
        return
    for selector in SELECTORS:
        yield _tried(f"{selector}", partial(hook_points, checked, selector))
    for name, attempt in _attempts(subject).items():
        check = _tried(name, attempt)
        yield check
        if check.passed is False and name in _ENDS_IF_FAILED:
            return
    if subject.forget:
        checked.model = None
        gc.collect()
    yield from _read_only_checks(subject)


def _attempts(subject: _Subject) -> dict[str, _Attempt]:
    """Return the checks of the model's values, in the order in which they are made."""
    return {
        name: partial(_equals, subject) if attempt is None else partial(attempt, subject.checked)
        for name, attempt in _ATTEMPTS.items()
    }


def _runs(checked: CheckedModel) -> tuple[bool, str]:
    return True, f"{checked.length} random tokens per sequence"


def _equals(subject: _Subject) -> tuple[bool, str]:
    return equals_hugging_face(subject.checked, subject.known.reference, subject.known.note)


def _read_only_checks(subject: _Subject) -> Iterator[Check]:
    """Compare the other way in which a model of Hugging Face is read."""
    reference = subject.known.reference
    if subject.load_read_only is None or isinstance(reference, str):
        return
    load = cache(partial(_loaded_read_only, subject.load_read_only, subject.checked))
    for name, compare in _READ_ONLY.items():
        yield _tried(name, partial(_compared, compare, load, reference))


def _loaded_read_only(load: Callable[[], Any], checked: CheckedModel) -> CheckedModel:
    return CheckedModel(load(), checked.tokenizer, checked.seed)


def _compared(compare: _Compare, load: Callable[[], CheckedModel], reference: Reference) -> tuple[bool, str]:
    return compare(load(), reference)


def _tried(name: str, attempt: _Attempt) -> Check:
    """Return a check's row, whatever happens in it."""
    try:
        return Check(name, *attempt())
    except NotTried as reason:
        return Check(name, None, str(reason))
    except InputError as error:
        return Check(name, False, str(error))
    except Exception as error:  # of the model: anything
        return Check(name, False, f"stopped with {error_line(error)}")
