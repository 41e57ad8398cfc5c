"""Can numbers from this model be trusted? A self-check, before anything is measured."""

from __future__ import annotations

import gc
import io
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mechclust.commands.check.batches import alone, padding, repeats
from mechclust.commands.check.chance import Build, Chance, chance_of_untrained
from mechclust.commands.check.hooks import attention_direction, attention_rows, blocks_join, finite, hook_points
from mechclust.commands.check.inputs import SELECTORS, CheckedModel
from mechclust.commands.check.result import Check, CheckReport, NotTried
from mechclust.commands.check.text import text
from mechclust.commands.check.traces import flat_memory, no_trace
from mechclust.commands.settings import Dtype
from mechclust.jobs import progress_bar
from mechclust.models import build_model, load_pretrained
from mechclust.models.build import config_of
from probes import HookedModel, attach, embedding, resolve
from probes.hooks import check_device
from tasks import InputError
from tasks.errors import check_at_least, first_line

Attempt = Callable[[], tuple[bool, str]]
_ATTEMPTS: dict[str, Callable[[CheckedModel], tuple[bool, str]]] = {
    "finite values": finite,
    "same values twice": repeats,
    "attention rows": attention_rows,
    "attention direction": attention_direction,
    "blocks join": blocks_join,
    "alone as in a batch": alone,
    "padding": padding,
    "no trace": no_trace,
    "flat memory": flat_memory,
    "tokenizer": text,
}
# What keeps other checks from saying anything, the reason, and which can be made all the same.
_BREAKS = {
    "finite values": ("there are values that are not finite, see above", {"tokenizer"}),
    "same values twice": (
        "values differ from pass to pass, see above",
        {"attention rows", "blocks join", "no trace", "flat memory", "tokenizer", "chance: clusters"},
    ),
}


def check_model(
    model: str | Path | HookedModel,
    *,
    tokenizer: Any = None,
    device: str | None = None,
    dtype: Dtype | None = None,
    seed: int = 0,
    progress: bool = False,
) -> CheckReport:
    """Try on a model everything that probes rely on; nothing of the model or the process is changed.

    Hook points exist, fire once and have the documented shapes; weights and activations are finite;
    attention rows sum to 1 and look where they may; each block reads what the one before gave; values
    repeat to the bit, and are the same alone, in a batch and with padding; measuring leaves no trace in
    output, hooks, flags and random states; memory is flat; the tokenizer fits; and probes find nothing in
    random tokens with random labels, nor in the same architecture with random weights.

    Cost: about 55 forward passes on at most 8 sequences of 8 tokens (of the model's own length where it reads
    no other), half of them on 2; seconds for a small model, half a minute for 124 million weights on two CPU
    cores. Memory: one model at a time where it is given by name, else an untrained one beside it.

    Args:
        model: a hub name, a local directory or file as ``load_pretrained`` takes it, or a hooked model.
        tokenizer: of a model that brings none.
        device: where to load it, ``"cpu"`` by default; not for a model that is loaded already.
        dtype: of the loaded weights, ``"float32"`` by default; likewise.
        seed: of the random tokens, labels and weights.
        progress: show a progress bar.

    Returns:
        One row per check: passed, failed with what that means and the way out, or not tried with the reason.

    Raises:
        InputError: for a model that cannot be loaded or has no hooks, a device that is not there, or a negative seed.

    Example:
        >>> from mechclust.models import ModelConfig, build_model
        >>> model = build_model(ModelConfig(d_vocab=20, n_ctx=8, n_layers=1, d_model=8, n_heads=2))
        >>> report = check_model(model)
        >>> report.passed, report["attention rows"].verdict
        (True, 'ok')
    """
    check_at_least(seed=(seed, 0))
    build: Build | None
    if named := isinstance(model, (str, Path)):
        check_device(device or "cpu")
        load = partial(load_pretrained, model, device=device or "cpu", dtype=getattr(torch, dtype or "float32"))
        checked, build = CheckedModel(load(), tokenizer, seed), partial(load, untrained=True)
    else:
        _check_loaded(model, device, dtype)
        checked, build = CheckedModel(model, tokenizer, seed), _untrained(model)
    with torch.random.fork_rng(devices=[]):
        checks = _checks(checked, build, forget=named)
        found = list(progress_bar(checks, desc="checking", unit=" check") if progress else checks)
    return CheckReport(str(model) if named else type(model).__name__, found)


def _check_loaded(model: Any, device: str | None, dtype: str | None) -> None:
    if isinstance(model, Mapping):
        raise InputError(f"check_model takes one model, and was given {len(model)}; check one after the other")
    for name, value in (("device", device), ("dtype", dtype)):
        if value is not None:
            raise InputError(
                f"{name} is {value!r}, but the model is loaded already; move it with model.to(...), or give its name"
            )
    if getattr(model, "hook_dict", None) is None:
        resolve(model, embedding())  # says so
    with attach(model, []):  # refuses a compiled model
        pass


def _untrained(model: Any) -> Build | None:
    """Builds the same architecture with random weights, where that is known."""
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


def _checks(checked: CheckedModel, build: Build | None, *, forget: bool) -> Iterable[Check]:
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
    yield _tried("chance: untrained", partial(chance_of_untrained, build, checked))


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
