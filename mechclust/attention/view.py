"""Attention patterns of one sequence to look at, of one model or several side by side: offline, inline, in a moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from mechclust.attention.chosen_heads import ChosenHead, HeadChoice, choose_heads, choose_heads_by_role
from mechclust.attention.page import (
    MAX_TOKENS,
    MAX_WHOLE_TOKENS,
    STEPS,
    attention_fragment,
    attention_page,
    attention_page_pattern,
    attention_page_tiles,
    least_attention_page_bytes,
)
from mechclust.attention.view_tokens import (
    Labels,
    check_view_tokens,
    decode_view_tokens,
    encode_view_tokens,
    real_view_tokens,
    view_token_labels,
    view_token_sequence,
)
from probes import HookedModel, ProbeResult, attention, record, resolve
from probes.engine.attention import Attention
from probes.engine.devices import device_of
from probes.engine.hooked_model import check_hooked_models, evaluation_mode, forward, hooked_models_by_name
from probes.store.files import write_atomic
from tasks import Batch, InputError
from tasks.text.bos_token import Bos

if TYPE_CHECKING:
    from circuitsvis.utils.render import RenderedHTML

Patterns: TypeAlias = Float[Tensor, "head query key"] | Float[np.ndarray, "head query key"]

_MAX_HEADS_LISTED = 16  # of a model, in a terminal


@dataclass(frozen=True, eq=False)
class AttentionView:
    """Attention heads to look at: in a notebook as the last value of a cell, else ``save`` it as a page.

    ``attention_view`` makes one from a model, ``attention_view_from_patterns`` from any patterns. For a terminal,
    ``print`` lists the tokens that the last token attends to most.

    Attributes:
        patterns: the weights, with an axis of models if ``models`` are compared side by side.
        str_tokens: one per position, as given.
        names: one per head, such as ``"L0H3"``.
        causal: every weight above the diagonal is 0. That part is drawn grey.
        models: their names if several are compared, else empty.
        labels: one per position (or ``None``), by which tokens are coloured. Empty without labels.
        values: one number per head, shown beside its name, such as the measure that chose it. Empty without values.
        roles: one role per head, by which heads are chosen. Empty without roles.

    Example:
        >>> view = attention_view_from_patterns(torch.eye(2)[None], ["to", " be"], ["L0H3"], causal=True)
        >>> view.names
        ('L0H3',)
    """

    patterns: Float[Tensor, "*model head query key"]
    str_tokens: tuple[str, ...]
    names: tuple[str, ...]
    causal: bool
    models: tuple[str, ...] = ()
    labels: tuple[str | None, ...] = ()
    values: tuple[float | None, ...] = ()
    roles: tuple[str, ...] = ()

    def fragment(self, *, include_js: bool = True) -> str:
        """Return HTML to put into your page.

        Args:
            include_js: with scripts and styles (36 kB). A page of several views needs them in the first or the last one
                only. Those of views of more than 512 tokens are others.
        """
        values = ["" if value is None else f"{value:.3g}" for value in self.values or [None] * len(self.names)]
        data = {
            "causal": self.causal,
            "heads": [{"name": _visible_token(n), "value": value} for n, value in zip(self.names, values, strict=True)],
            "labels": [label if label is None else _visible_token(label, space=" ") for label in self.labels],
            "models": [_visible_token(name, space=" ") for name in self.models],
            "roles": list(self.roles),
            "steps": STEPS,
            "tokens": [_visible_token(token) for token in self.str_tokens],
        }
        if len(self.str_tokens) > MAX_WHOLE_TOKENS:
            data["tiles"] = attention_page_tiles(self._each_model)
        else:
            data["weights"] = [attention_page_pattern(patterns, self.causal) for patterns in self._each_model]
        return attention_fragment(data, str(self), include_js=include_js)

    def page(self, title: str = "Attention patterns") -> str:
        """Return a self-contained HTML page that works from a file, without a network."""
        return attention_page(title, self.fragment())

    def save(self, path: str | Path, title: str = "Attention patterns") -> None:
        """Write ``page(title)`` to ``path``, atomically."""
        write_atomic(path, self.page(title).encode())

    def circuitsvis(self, model: str | None = None) -> RenderedHTML:
        """Return these heads in CircuitsVis's view, for a notebook.

        CircuitsVis loads its scripts over the network if it can, and stores them in the cell otherwise.

        Args:
            model: one of ``models``, if there are several.

        Raises:
            InputError: for an unknown model, or if none is named and there are several.

        Example:
            >>> import torch
            >>> view = attention_view_from_patterns(torch.full((2, 3, 3), 1 / 3), ["a", "b", "c"],
            ...                                     ["L0H0", "L0H1"], causal=False)
            >>> type(view.circuitsvis()).__name__
            'RenderedHTML'
        """
        from circuitsvis.attention import attention_heads

        if model is not None or self.models:
            if model not in self.models:
                raise InputError(f"no model {model!r} in this view; expected one of {', '.join(self.models) or 'none'}")
            patterns = self.patterns[self.models.index(model)]
        else:
            patterns = self.patterns
        names = [_visible_token(name) for name in self.names]
        return attention_heads(
            patterns.float().cpu(), [_visible_token(t) for t in self.str_tokens], names, mask_upper_tri=self.causal
        )

    @property
    def summary(self) -> str:
        """Return the number of heads, tokens and models, and the direction of attention."""
        heads = self.names[0] if len(self.names) == 1 else f"{self.names[0]} to {self.names[-1]}"
        parts = [f"{_count(len(self.names), 'head')} ({heads})", _count(len(self.str_tokens), "token")]
        parts.append("causal" if self.causal else "bidirectional")
        return ", ".join([*parts, *([" and ".join(self.models)] if self.models else [])])

    @property
    def _each_model(self) -> Float[Tensor, "model head query key"]:
        return self.patterns if self.models else self.patterns[None]

    def _repr_html_(self) -> str:
        return self.fragment()

    def __str__(self) -> str:
        """List the tokens that the last token attends to most, one line per head."""
        shown = [f"{_visible_token(token)} ({i})" for i, token in enumerate(self.str_tokens)]
        lines = [self.summary, f"The last token, {shown[-1]}, attends most to:"]
        for model, patterns in zip(self.models or ("",), self._each_model, strict=True):
            for name, pattern in list(zip(self.names, patterns, strict=True))[:_MAX_HEADS_LISTED]:
                keys = pattern[-1].abs().topk(min(3, len(shown))).indices.tolist()
                strongest = [f"{shown[k]} {pattern[-1, k]:.3f}" for k in keys]
                lines.append(
                    "  " + "  ".join([*filter(None, [_visible_token(model), _visible_token(name)]), *strongest])
                )
            if len(patterns) > _MAX_HEADS_LISTED:
                lines.append(f"  ... and {len(patterns) - _MAX_HEADS_LISTED} more")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f'AttentionView({self.summary}); print() lists weights, .save("view.html") draws them'


def attention_view(
    model: HookedModel | Mapping[str, HookedModel],
    tokens: Int[Tensor, "... pos"] | Sequence[int] | str,
    *,
    layers: int | Sequence[int] | None = None,
    heads: HeadChoice | None = None,
    roles: ProbeResult | None = None,
    str_tokens: Sequence[str] | None = None,
    labels: Labels | None = None,
    attention_mask: Shaped[Tensor, "... pos"] | Sequence[bool] | None = None,
    bos: Bos = "model",
    max_bytes: int = 3_000_000,
) -> AttentionView:
    """Run a model once on one sequence and show where its heads attend.

    Args:
        model: anything with TransformerLens's hook protocol. Or several by name, ``{"tuned": a, "base": b}``, to see
            identical heads side by side on identical tokens.
        tokens: token ids of one sequence, or a text if the model has a tokenizer.
        layers: blocks, from 0 as in ``probes.attention``: 0 is ``blocks.0``. Negative numbers count from the last. All
            of them when ``None``.
        heads: heads of each layer, from 0. All of them when ``None``. Or ``(layer, head)`` pairs without ``layers``,
            such as ``result.top_heads("ratio")``, whose values are then shown beside the names.
        roles: of ``HeadRoles`` on this model, in place of ``layers`` and ``heads``: shows the four strongest heads of
            each role with their excess, and buttons to choose a role, such as induction.
        str_tokens: one string per position. By default the tokenizer's, or the ids without one.
        labels: one label (or ``None``) per position, such as its topic or its part of the prompt. Tokens are coloured
            by it.
        attention_mask: true on real tokens. Padding is left out of the view.
        bos: whether a text begins with the beginning-of-sequence token, as in ``probes.run``: ``"model"`` leaves it to
            the checkpoint's tokenizer, ``"yes"`` adds it if it is missing, ``"no"`` removes it.
        max_bytes: refuse a view whose page would be larger. 12 heads over 128 tokens take 0.3 MB, or 0.5 MB if
            attention is bidirectional. Of more than 512 tokens a page has each query's strongest keys only, as many as
            1.5 MB hold, and at least 8, and the strongest weight of each block of tokens.

    Returns:
        The view. Its heads are named as TransformerLens numbers them, ``L0H3`` for head 3 of ``blocks.0``.

    Raises:
        InputError: for more than one sequence, a missing layer or head, or models that do not all have these heads.
            Also for a text without a beginning-of-sequence token to add or remove, and a view too large.

    Example:
        >>> from mechclust.models.build import build_model
        >>> from mechclust.models.config import ModelConfig
        >>> model = build_model(ModelConfig(d_vocab=9, n_ctx=4, n_layers=2, d_model=8, n_heads=2))
        >>> attention_view(model, torch.tensor([3, 1, 4]), layers=1)
        AttentionView(2 heads (L1H0 to L1H1), 3 tokens, causal); print() lists weights, .save("view.html") draws them

        Chosen heads of two models side by side, tokens coloured by label:

        >>> other = build_model(ModelConfig(d_vocab=9, n_ctx=4, n_layers=2, d_model=8, n_heads=2, seed=1))
        >>> view = attention_view({"a": model, "b": other}, [3, 1, 4], heads=[(1, 0), (0, 1)], labels=["x", "x", None])
        >>> view.names, view.models, tuple(view.patterns.shape)
        (('L1H0', 'L0H1'), ('a', 'b'), (2, 2, 3, 3))
    """
    models = hooked_models_by_name(model)
    if isinstance(model, Mapping):
        check_hooked_models(models)
    ids = view_token_sequence("tokens", encode_view_tokens(models, tokens, bos) if isinstance(tokens, str) else tokens)
    mask = real_view_tokens(attention_mask, ids)
    strings = _strings(models, ids, str_tokens)
    all_labels = view_token_labels(labels, len(ids))
    batch = Batch(ids[None], attention_mask=mask[None])
    role_of = choose_heads_by_role(roles, layers, heads)
    chosen = choose_heads(models, layers, list(role_of) or heads, partial(_n_heads, batch=batch))
    _check_least_size(len(models), len(chosen), int(mask.sum()), max_bytes)
    check_view_tokens(models, ids)

    patterns = {name: _head_patterns(each, chosen, batch, mask.cpu()) for name, each in models.items()}
    real = mask.nonzero().flatten().tolist()
    view = attention_view_from_patterns(
        patterns if isinstance(model, Mapping) else patterns[""],
        [strings[position] for position in real],
        [head.name for head in chosen],
        causal=_is_causal(models, patterns),
        labels=[all_labels[position] for position in real] if all_labels else None,
        values=[head.value for head in chosen] if any(head.value is not None for head in chosen) else None,
        max_bytes=max_bytes,
    )
    return replace(view, roles=tuple(role_of.values()))


def _strings(models: Mapping[str, HookedModel], ids: Int[Tensor, "pos"], given: Sequence[str] | None) -> Sequence[str]:
    """Return a string for each token id: the given ones, or else the tokenizer's."""
    if given is None:
        return decode_view_tokens(models, ids.tolist())
    if len(given) != len(ids):
        raise InputError(f"str_tokens has {len(given)} strings for {len(ids)} token ids; expected one per position")
    return given


def attention_view_from_patterns(
    patterns: Patterns | Mapping[str, Patterns],
    str_tokens: Sequence[str],
    names: Sequence[str],
    *,
    causal: bool,
    labels: Labels | None = None,
    values: Sequence[float | None] | Float[Tensor, "head"] | Float[np.ndarray, "head"] | None = None,
    max_bytes: int = 3_000_000,
) -> AttentionView:
    """Show attention patterns from anywhere, such as a mean over examples or the difference of two models.

    Args:
        patterns: weights from -1 to 1, shown to four decimals. Or several by name, drawn side by side. Negative ones
            are drawn red.
        str_tokens: one string per position.
        names: one per head.
        causal: draw the part above the diagonal grey. Every weight there must be 0.
        labels: one label (or ``None``) per position. Tokens are coloured by it.
        values: one number per head, shown beside its name.
        max_bytes: refuse a view whose page would be larger.

    Raises:
        InputError: for shapes that do not fit each other, values that are not attention weights, or a
            view too large.

    Example:
        >>> view = attention_view_from_patterns(torch.eye(2)[None], ["to", " be"], ["copy"], causal=True)
        >>> print(view)
        1 head (copy), 2 tokens, causal
        The last token, ·be (1), attends most to:
          copy  ·be (1) 1.000  to (0) 0.000
    """
    by_model = dict(patterns) if isinstance(patterns, Mapping) else {"": patterns}
    if not by_model:
        raise InputError("no patterns given; give one tensor, or several by name")
    checked = torch.stack(
        [_checked(each, name, len(names), len(str_tokens), causal) for name, each in by_model.items()]
    )
    if values is not None and len(values) != len(names):
        raise InputError(f"values has {len(values)} numbers for {_count(len(names), 'head')}; expected one per head")
    _check_least_size(len(by_model), len(names), len(str_tokens), max_bytes)
    view = AttentionView(
        checked if isinstance(patterns, Mapping) else checked[0],
        tuple(map(str, str_tokens)),
        tuple(map(str, names)),
        causal,
        tuple(map(str, by_model)) if isinstance(patterns, Mapping) else (),
        view_token_labels(labels, len(str_tokens)),
        tuple(None if value is None else float(value) for value in (() if values is None else values)),
    )
    size = len(view.page().encode())
    if size > max_bytes:
        raise _too_large(len(by_model), len(names), len(str_tokens), max_bytes, _in_bytes(size))
    return view


def _checked(
    patterns: Shaped[Tensor, "..."] | Shaped[np.ndarray, "..."], name: str, n_heads: int, n_tokens: int, causal: bool
) -> Float[Tensor, "head query key"]:
    """Return attention weights as float32 on the CPU.

    Raises:
        InputError: for another shape, or values that no attention pattern has.
    """
    who = f"patterns[{name!r}]" if name else "patterns"
    patterns = torch.as_tensor(patterns).detach().float().cpu()
    expected = (n_heads, n_tokens, n_tokens)
    if not patterns.numel() or patterns.shape != expected:
        raise InputError(
            f"{who} has shape {tuple(patterns.shape)}; expected [head query key] = {expected} for "
            f"{_count(n_heads, 'name')} and {_count(n_tokens, 'token')}; pass one sequence, and a name for each head"
        )
    low = float(patterns.min())
    high = float(patterns.max())
    if not (low >= -1.001 and high <= 1.001):  # also true for NaN
        raise InputError(
            f"{who} has values from {low:.4g} to {high:.4g}; expected attention weights from -1 to 1; "
            "give the probabilities (hook_pattern), not the scores"
        )
    if causal and bool(patterns.triu(1).any()):
        raise InputError(
            "causal is True, but weights above the diagonal are not all 0; expected a causal pattern, or causal=False"
        )
    return patterns


def _head_patterns(
    model: HookedModel, heads: Sequence[ChosenHead], batch: Batch, real: Bool[Tensor, "pos"]
) -> Float[Tensor, "head query key"]:
    """Return the chosen heads' attention between real tokens."""
    by_name: dict[str, Float[Tensor, "query key"]] = {}
    for site, recorded in _attention(model, [head.site for head in heads], batch).items():
        of_site = [head for head in heads if head.site == site]
        patterns = _patterns(recorded, [head.head for head in of_site])
        by_name |= {head.name: pattern for head, pattern in zip(of_site, patterns, strict=True)}
    chosen = torch.stack([by_name[head.name] for head in heads])
    return chosen if bool(real.all()) else chosen[:, real][:, :, real]


def _is_causal(models: Mapping[str, HookedModel], patterns: Mapping[str, Float[Tensor, "head query key"]]) -> bool:
    """Return whether no model attends to a later token.

    TransformerLens 4.3 sets "bidirectional" for BERT and LLaDA only, so the weights are checked as well.
    """
    directions = {getattr(getattr(model, "cfg", None), "attention_dir", "causal") for model in models.values()}
    return directions == {"causal"} and not any(bool(each.triu(1).any()) for each in patterns.values())


def _attention(
    model: HookedModel, sites: Sequence[str], batch: Batch
) -> dict[str, Attention | Float[Tensor, "1 head query key"]]:
    """Return the attention of a batch of one sequence at each site."""
    with evaluation_mode(model), torch.inference_mode(), record(model, sites) as recorded:
        forward(model, batch.to(device_of(model)))
    for site, fired in recorded.items():
        if len(fired) != 1:
            raise InputError(
                f"hook point {site!r} fired {len(fired)} times in one forward pass; expected once; "
                "choose layers whose attention the model computes once"
            )
    return {site: activation for site, (activation,) in recorded.items()}


def _patterns(
    recorded: Attention | Float[Tensor, "1 head query key"], heads: Sequence[int]
) -> Float[Tensor, "chosen query key"]:
    """Return the patterns of a layer's chosen heads only: all heads may not fit in memory."""
    if not isinstance(recorded, Attention):
        return recorded[0, heads].float().cpu()
    queries = torch.arange(recorded.shape[2], device=recorded.device)
    rows = [recorded.rows(queries[part])[0, heads].float().cpu() for part in recorded.parts()]
    return torch.cat(rows, dim=1)


def _n_heads(model: HookedModel, batch: Batch) -> int:
    """Return the number of heads in each layer. A model without a configuration is run once to count them."""
    n_heads = getattr(getattr(model, "cfg", None), "n_heads", None)
    if n_heads is not None:
        return int(n_heads)
    site = resolve(model, attention(0))[0].name
    return int(_attention(model, [site], batch)[site].shape[1])


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _check_least_size(n_models: int, n_heads: int, n_tokens: int, max_bytes: int) -> None:
    """Refuse a view that is too large before its page is made."""
    if n_tokens > MAX_TOKENS:
        raise InputError(f"there are {n_tokens} tokens; give at most {MAX_TOKENS}")
    least = least_attention_page_bytes(n_models * n_heads, n_tokens)
    if least > max_bytes:
        raise _too_large(n_models, n_heads, n_tokens, max_bytes, f"at least {_in_bytes(least)}")


def _too_large(n_models: int, n_heads: int, n_tokens: int, max_bytes: int, size: str) -> InputError:
    models = "" if n_models == 1 else f" in {n_models} models"
    return InputError(
        f"attention of {_count(n_heads, 'head')} over {_count(n_tokens, 'token')}{models} makes a page of {size}, and "
        f"max_bytes is {max_bytes:,}; choose fewer layers, heads or tokens, or raise max_bytes"
    )


def _in_bytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


def _visible_token(text: str, space: str = "·") -> str:
    r"""Return a text with visible whitespace and control characters: ``" a\n"`` becomes ``"·a\\n"``."""
    visible = [c if c.isprintable() else c.encode("unicode_escape").decode() for c in text]
    return "".join(visible).replace(" ", space)
