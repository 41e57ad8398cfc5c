"""What an attention view is asked for, checked before a model runs: which tokens, labels and heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from probes import Head, HookedModel, attention_pattern, resolve
from probes.engine.sites import head_name
from probes.engine.texts import tokenizers_of
from tasks import InputError
from tasks.text.beginning import Bos, text_encoder

HeadChoice: TypeAlias = int | Sequence[int] | Sequence[tuple[int, int]] | Sequence[Head]
Labels: TypeAlias = Sequence[str | int | None] | Tensor


class ChosenHead(NamedTuple):
    """A head to look at: the hook point of its layer, its number, and a measure's value when it was chosen by one."""

    site: str
    layer: int
    head: int
    value: float | None

    @property
    def name(self) -> str:
        """Such as ``"L0H3"``."""
        return head_name(self.layer, self.head)


def choose_heads(
    models: Mapping[str, HookedModel],
    layers: int | Sequence[int] | None,
    heads: HeadChoice | None,
    count: Callable[[HookedModel], int],
) -> list[ChosenHead]:
    """The heads asked for, the same in every model.

    Args:
        models: by name; the name of a single one may be ``""``, and is then left out of messages.
        layers: as in ``probes.attention_pattern``.
        heads: head numbers in each of these layers, or ``(layer, head)`` pairs; all when ``None``.
        count: the number of heads that each layer of a model has.
    """
    given = None if heads is None else [heads] if isinstance(heads, int) else list(heads)
    _check(given, layers)
    found: dict[str, list[ChosenHead]] = {}
    for name, model in models.items():
        try:
            found[name] = _in_model(model, layers, given, count)
        except InputError as error:
            raise InputError(f"model {name!r}: {error}") if name else error from None
    first, *others = found
    for other in others:
        if [head.name for head in found[first]] != [head.name for head in found[other]]:
            meant, instead = _span(found[first]), _span(found[other])
            raise InputError(
                f"these are heads {meant} in model {first!r} and {instead} in model {other!r}; "
                "expected the same in both; choose heads that both have, such as heads=[(0, 0), (0, 1)]"
            )
    return found[first]


def _check(given: Sequence[Any] | None, layers: object) -> None:
    if given is None or (given and layers is None and all(map(_is_pair, given))):
        return
    if not given:
        raise InputError("heads is empty; expected at least one head, or None for all of them")
    if all(map(_is_pair, given)):
        raise InputError(
            f"layers is {layers!r}, and heads has pairs with layers of their own; leave out layers, or give "
            "heads as numbers"
        )
    if not all(isinstance(head, Integral) for head in given):
        raise InputError(
            f"heads is {repr(given)[:60]}; expected head numbers, or (layer, head) pairs such as those of "
            "result.top_heads"
        )


def _is_pair(head: object) -> bool:
    return isinstance(head, tuple) and len(head) in (2, 3) and all(isinstance(part, Integral) for part in head[:2])


def _in_model(
    model: HookedModel,
    layers: int | Sequence[int] | None,
    given: Sequence[Any] | None,
    count: Callable[[HookedModel], int],
) -> list[ChosenHead]:
    n = count(model)
    if given is None or isinstance(given[0], Integral):
        numbers = range(n) if given is None else given
        wanted = [(site, head, None) for site in resolve(model, attention_pattern(layers)) for head in numbers]
    else:
        triples = [(*head, None)[:3] for head in given]  # a pair has no value
        wanted = [(resolve(model, attention_pattern(int(layer)))[0], head, value) for layer, head, value in triples]
    for site, head, _ in wanted:
        if not -n <= head < n:
            raise InputError(f"no head {head} in layer {site.layer}, blocks.{site.layer} (it has heads 0-{n - 1})")
    return [ChosenHead(site.name, site.layer, int(head) % n, value) for site, head, value in wanted]


def _span(heads: Sequence[ChosenHead]) -> str:
    return heads[0].name if len(heads) == 1 else f"{heads[0].name} to {heads[-1].name}"


def encode_for_all(models: Mapping[str, HookedModel], text: str, bos: Bos) -> list[int]:
    """Return the token ids of a text, the same in every model that has a tokenizer."""
    ids = {name: text_encoder(tokenizer, bos)([text])[0] for name, tokenizer in tokenizers_of(models).items()}
    if not ids:
        who = " and ".join(dict.fromkeys(type(model).__name__ for model in models.values()))
        raise InputError(
            f"tokens is the text {text[:40]!r}, but this {who} has no tokenizer; "
            "give token ids, and their strings as str_tokens"
        )
    (first, tokens), *others = ids.items()
    for name, other in others:
        if tokens != other:
            raise InputError(
                f"the tokenizers of models {first!r} and {name!r} make different token ids of the text {text[:40]!r}; "
                "compare models with one tokenizer, or give token ids"
            )
    return tokens


def check_ids_of_models(models: Mapping[str, HookedModel], ids: Tensor) -> None:
    """Every model knows these token ids and has room for them."""
    for name, model in models.items():
        cfg, whose = getattr(model, "cfg", None), f"model {name!r}" if name else "the model"
        d_vocab, n_ctx = getattr(cfg, "d_vocab", None), getattr(cfg, "n_ctx", None)
        if d_vocab is not None and (wrong := ids[(ids < 0) | (ids >= d_vocab)].tolist()):
            raise InputError(f"tokens has the id {wrong[0]}, but {whose} knows ids 0 to {d_vocab - 1}; give others")
        if n_ctx is not None and len(ids) > n_ctx:
            raise InputError(f"there are {len(ids)} tokens, but {whose} reads at most {n_ctx}; give fewer")


def decode(models: Mapping[str, HookedModel], ids: Sequence[int]) -> list[str]:
    """A string for each token id, by the first tokenizer there is; without one, the ids."""
    for model in models.values():
        tokenizer: Any = getattr(model, "tokenizer", None)
        if tokenizer is not None:
            return list(tokenizer.batch_decode([[i] for i in ids], clean_up_tokenization_spaces=False))
    return [str(i) for i in ids]


def one_sequence(name: str, value: Any) -> Tensor:
    """``[pos]``, from ``[pos]`` or ``[1 pos]``."""
    try:
        row = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{name} is {repr(value)[:60]}; expected one sequence of integers; give token ids") from None
    shape = tuple(row.shape)
    row = row[0] if row.ndim == 2 and len(row) == 1 else row
    if row.ndim != 1 or not len(row) or row.is_floating_point():
        raise InputError(
            f"{name} has shape {shape} of {str(row.dtype).removeprefix('torch.')}; expected one sequence of integers, "
            f"[pos] or [1 pos]; give one row of a batch such as {name}[:1]"
        )
    return row


def checked_labels(labels: Labels | None, n: int) -> tuple[str | None, ...]:
    """Labels as strings, one for each of ``n`` positions; empty when there are none."""
    if labels is None:
        return ()
    if isinstance(labels, str):
        raise InputError(f"labels is the text {labels[:40]!r}; expected one label per position, such as batch.labels")
    given = labels.tolist() if isinstance(labels, Tensor) else list(labels)
    if not isinstance(given, list) or len(given) != n or any(isinstance(label, list) for label in given):
        shape = f"shape {tuple(labels.shape)}" if isinstance(labels, Tensor) else f"{len(given)} labels"
        raise InputError(
            f"labels has {shape} for {n} {'token' if n == 1 else 'tokens'}; "
            "expected one label per position, None where there is none"
        )
    return tuple(None if label is None else str(label) for label in given)
