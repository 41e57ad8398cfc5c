"""Can numbers from this model be trusted? A self-check, before anything is measured."""

from __future__ import annotations

import gc
import io
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mechclust.commands.check.batches import alone, padding, repeats
from mechclust.commands.check.chance import Build, Chance, chance_of_untrained
from mechclust.commands.check.equal import equals_hugging_face, read_only_equals
from mechclust.commands.check.hooks import attention_direction, attention_rows, blocks_join, finite, hook_points
from mechclust.commands.check.inputs import SELECTORS, CheckedModel
from mechclust.commands.check.reference import Reference, take_reference
from mechclust.commands.check.result import Check, CheckReport, NotTried
from mechclust.commands.check.text import beginning, text
from mechclust.commands.check.traces import flat_memory, no_trace
from mechclust.commands.settings import Dtype
from mechclust.jobs import progress_bar
from mechclust.models import build_model, load_pretrained
from mechclust.models.adapters import adapter_of, plain_model, set_adapter
from mechclust.models.build import config_of
from mechclust.models.pretrained import AnyModel, load_huggingface
from mechclust.models.resolved import ResolvedModel, resolve_model
from probes import attach, embedding, resolve
from probes.engine.hooks import check_device
from tasks import InputError
from tasks.errors import check_at_least, first_line

Found = tuple[bool, str] | tuple[bool, str, bool]  # as in ``Check``
Loads = Callable[[], Any]
Attempt = Callable[[], Found]
_ATTEMPTS: dict[str, Callable[[CheckedModel], Found]] = {
    "finite values": finite,
    "same values twice": repeats,
    "equals Hugging Face": lambda checked: (True, ""),  # its place; see ``_checks``
    "attention rows": attention_rows,
    "attention direction": attention_direction,
    "blocks join": blocks_join,
    "alone as in a batch": alone,
    "padding": padding,
    "no trace": no_trace,
    "flat memory": flat_memory,
    "tokenizer": text,
    "beginning of sequence": beginning,
}
# What keeps other checks from saying anything, the reason, and which can be made all the same.
_BREAKS = {
    "finite values": ("some values are not finite (finite values says which)", {"tokenizer", "beginning of sequence"}),
    "same values twice": (
        "values differ from pass to pass (same values twice says which)",
        {
            "attention rows",
            "blocks join",
            "no trace",
            "flat memory",
            "tokenizer",
            "beginning of sequence",
            "chance: clusters",
        },
    ),
}


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

    Logits, states and attention are plain Hugging Face's, with padding on either side, with and without an adapter;
    hook points exist, fire once and have the documented shapes; weights and activations are finite;
    attention rows sum to 1 and attend only where they may; each block reads the previous one's output; values
    repeat to the bit, and are the same alone, in a batch and with padding; measuring leaves no trace in
    output, hooks, flags and random states; memory is flat; the tokenizer fits; and probes find nothing in
    random tokens with random labels, nor in the same architecture with random weights.

    Cost: about 60 forward passes on at most 8 sequences of 8 tokens (of the model's own length if that is fixed),
    half of them on 2; seconds for a small model, half a minute for 124 million weights on two CPU
    cores. Memory: one model at a time if it is given by name, else an untrained one as well.

    Args:
        model: a hub name, a local directory or file as ``load_pretrained`` takes it, a Hugging Face model in memory, or
            a hooked model.
        tokenizer: the tokenizer, for a model without one.
        adapter: folder that peft saved; not for a hooked model.
        device: where to load it, ``"cpu"`` by default; not for a model that is in memory already.
        dtype: dtype of the loaded weights, ``"float32"`` by default; not for a model in memory.
        device_map: how to spread it over devices, such as ``"auto"``; not for a model in memory.
        trust_remote_code: run code that comes with the checkpoint.
        seed: for the random tokens, labels and weights.
        progress: show a progress bar.

    Returns:
        One row per check: passed, failed with what that means and the way out, or not tried with the reason.

    Raises:
        InputError: for a model that cannot be loaded or has no hooks, an unavailable device, or a negative seed.

    Example:
        >>> from mechclust.models import ModelConfig, build_model
        >>> model = build_model(ModelConfig(d_vocab=20, n_ctx=8, n_layers=1, d_model=8, n_heads=2))
        >>> report = check_model(model)
        >>> report.passed, report["attention rows"].verdict
        (True, 'ok')
    """
    check_at_least(seed=(seed, 0))
    placed = {"device": device, "dtype": dtype, "device_map": device_map}
    build: Build | None
    resolved = resolve_model(model, adapter)
    model = resolved.source
    named = not resolved.in_memory
    with torch.random.fork_rng(devices=[]), ExitStack() as afterwards:
        if named or _is_hugging_face(model):
            options: dict[str, Any] = {"trust_remote_code": trust_remote_code, "tokenizer": tokenizer}
            if named:
                check_device(device or "cpu")
                options["dtype"] = getattr(torch, dtype or "float32")
                options |= {"device_map": device_map} if device_map is not None else {"device": device or "cpu"}
            else:
                _refuse(placed)
            known = _reference(resolved, options, seed)
            torch.manual_seed(seed)
            hooked: Any = load_pretrained(resolved, **options)
            build = partial(load_pretrained, resolved.without_adapter, untrained=True, **options)
            again = resolved if named else resolved.without_adapter  # in memory it is in the weights by now
            fast: Loads | None = partial(load_pretrained, again, attention="sdpa", **options)
            if not named and adapter is not None:  # the weights are shared
                afterwards.callback(set_adapter, hooked, None)
        else:
            _refuse(placed if adapter is None else {**placed, "adapter": adapter})
            _check_hooked(model)
            hooked, build, plain = model, _untrained(model), plain_model(model)
            fast = None if plain is None else partial(load_pretrained, plain, attention="sdpa")
            known = _shared_reference(model, tokenizer, seed)
        checked = CheckedModel(hooked, tokenizer, seed)
        del hooked  # so that it can be forgotten
        checks = _checks(checked, build, fast, known, forget=named)
        found = list(progress_bar(checks, desc="checking", unit=" check") if progress else checks)
    return CheckReport(resolved.source if named else type(model).__name__, found)


class _Known(NamedTuple):
    """What plain Hugging Face gives, or why that is not known, and what to say beside it."""

    reference: Reference | str
    note: str
    swaps: bool  # whether the adapter may be taken out and put in again


def _is_hugging_face(model: Any) -> bool:
    """Return whether a model is a Hugging Face model in memory, without hooks; peft's too."""
    return getattr(model, "hook_dict", None) is None and hasattr(model, "config") and hasattr(model, "base_model")


def _reference(model: ResolvedModel, options: dict[str, Any], seed: int) -> _Known:
    """Compute the reference for a model that is not loaded yet: both need not fit into memory together."""
    if model.is_own_file:
        return _Known("the file is from save_model, so there is no Hugging Face model to compare with", "", False)
    torch.manual_seed(seed)  # of heads that a checkpoint lacks
    plain, tokenizer = load_huggingface(model, **options)
    found = _taken(plain, tokenizer, seed)
    del plain
    gc.collect()
    return _Known(found, "", True)


def _shared_reference(model: Any, tokenizer: Any, seed: int) -> _Known:
    """Of a model that is loaded: the Hugging Face model with the same weights, which nothing wraps."""
    plain = plain_model(model)
    if plain is None:
        return _Known(
            "it is not known what plain Hugging Face computes for a model in memory that load_pretrained did not load, "
            "since a model inside TransformerLens's bridge computes as the bridge does; give its name or directory",
            "",
            False,
        )
    tokenizer = getattr(model, "tokenizer", None) if tokenizer is None else tokenizer
    inside = "" if (adapter := adapter_of(model)) is None else f" and the adapter {adapter!r} in them"
    note = (
        f"; weights are shared with it{inside}, so a fault in loading or merging would not show: "
        "give the model by name for that"
    )
    return _Known(_taken(plain, tokenizer, seed), note, False)


def _taken(plain: Any, tokenizer: Any, seed: int) -> Reference | str:
    try:
        return take_reference(plain, tokenizer, seed)
    except Exception as error:  # of the model: anything
        return f"plain Hugging Face stopped with {first_line(error)}"


def _refuse(options: Mapping[str, Any]) -> None:
    """Options for loading, with a model that is in memory already."""
    for name, value in options.items():
        if value is not None:
            raise InputError(
                f"{name} is {value!r}, but the model is loaded already; {_INSTEAD[name]}, or give the model's name"
            )


_INSTEAD = {
    "device": "move it with model.to(...)",
    "dtype": "change it with model.to(...)",
    "device_map": "load it with load_pretrained(..., device_map=...)",
    "adapter": "put it in with set_adapter(model, folder)",
}


def _check_hooked(model: Any) -> None:
    if isinstance(model, Mapping):
        raise InputError(f"check_model takes one model, but was given {len(model)}; check them one at a time")
    if getattr(model, "hook_dict", None) is None:
        resolve(model, embedding())  # says so
    with attach(model, []):  # refuses a compiled model
        pass


def _untrained(model: Any) -> Build | None:
    """Builds the same architecture with random weights, where that is known."""
    if plain_model(model) is not None:
        return partial(load_pretrained, model, untrained=True)
    try:
        config = config_of(model)
    except InputError:
        return None
    first = next(model.parameters())
    device, dtype = first.device, first.dtype

    def build(seed: int) -> Any:
        with redirect_stdout(io.StringIO()):  # TransformerLens tells that it moves a model
            return build_model(config.with_seed(config.seed + seed + 1)).to(device).to(dtype).eval()

    return build


def _checks(
    checked: CheckedModel, build: Build | None, fast: Loads | None, known: _Known, *, forget: bool
) -> Iterable[Check]:
    """All checks in turn. One that the later ones need ends them when it fails."""
    yield Check("model", True, checked.facts())
    runs = _tried("forward pass", lambda: (True, f"{checked.length} random tokens per sequence"))
    if not runs.passed:
        detail = f"{runs.detail}; nothing else can be tried: make model(tokens) work for tokens [batch pos]"
        yield Check(runs.name, False, detail)
        return
    for selector in SELECTORS:
        yield _tried(f"{selector}", partial(hook_points, checked, selector))
    chance = Chance(checked)
    attempts: dict[str, Attempt] = {name: partial(attempt, checked) for name, attempt in _ATTEMPTS.items()}
    attempts["equals Hugging Face"] = partial(_equals, checked, known)
    attempts |= {"chance: clusters": chance.clusters, "chance: topics": chance.topics, "chance: CKA": chance.cka}
    reason, possible = "", set(attempts)
    for name, attempt in attempts.items():
        check = _tried(name, attempt) if name in possible else Check(name, None, reason)
        if check.passed is False and name in _BREAKS:
            reason, possible = _BREAKS[name]
        yield check
    if forget:  # two large models need not fit together
        checked.model = None
        gc.collect()
    if fast is not None and not isinstance(known.reference, str):
        name = "equals, read-only"
        yield Check(name, None, reason) if reason else _tried(name, partial(_read_only, checked, fast, known))
    yield _tried("chance: untrained", partial(chance_of_untrained, build, checked))


def _equals(checked: CheckedModel, known: _Known) -> tuple[bool, str]:
    """The row that matters most."""
    folder = adapter_of(checked.model)

    def swap(put: bool) -> None:
        set_adapter(checked.model, folder if put else None)

    return equals_hugging_face(checked, known.reference, known.note, swap if known.swaps and folder else None)


def _read_only(checked: CheckedModel, load: Loads, known: _Known) -> tuple[bool, str]:
    """The other way in which a model of Hugging Face is read."""
    return read_only_equals(CheckedModel(load(), checked.tokenizer, checked.seed), known.reference)


def _tried(name: str, attempt: Attempt) -> Check:
    """A check's row, whatever happens in it."""
    try:
        return Check(name, *attempt())
    except NotTried as reason:
        return Check(name, None, str(reason))
    except InputError as error:
        return Check(name, False, str(error))
    except Exception as error:  # of the model: anything
        return Check(name, False, f"stopped with {first_line(error)}")
