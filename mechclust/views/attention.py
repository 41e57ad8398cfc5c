"""Attention patterns of one sequence as an interactive page, drawn by circuitsvis, offline."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from jaxtyping import Float
from torch import Tensor

from probes import Probe, ProbeResult, Selector, all_tokens, attention_pattern, resolve, run
from probes.result import write_atomic
from tasks import Batch, InputError

# The browser enforces what we promise: an exported page loads nothing, from anywhere.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True, eq=False)
class AttentionView:
    """Attention heads to look at: in a notebook as the last value of a cell, else ``save`` it as a page.

    ``attention_view`` makes one from a model, ``attention_view_from_patterns`` from any patterns.

    Attributes:
        patterns: ``[head query key]`` weights.
        str_tokens: one per position, as given.
        names: one per head, such as ``"L1H0"``.
        causal: the part above the diagonal is drawn grey, as no weight can stand there.
    """

    patterns: Float[Tensor, "head query key"]
    str_tokens: tuple[str, ...]
    names: tuple[str, ...]
    causal: bool

    def fragment(self, *, include_js: bool = True) -> str:
        """HTML to put into a page of your own.

        Args:
            include_js: with circuitsvis's JavaScript (1.3 MB). A page of several views needs it in one
                of them only, whichever stands first or last.
        """
        from jinja2.utils import htmlsafe_json_dumps  # json.dumps would let a token close the script element

        place = f"attention-{uuid4().hex[:12]}"
        props = {
            # Thousandths as integers: a third of the bytes of 0.123, and the same number once divided.
            "attention": (self.patterns * 1000).round().int().tolist(),
            "attentionHeadNames": self.names,
            "maskUpperTri": self.causal,
            "tokens": [_visible(token) for token in self.str_tokens],
        }
        bundle = f"<script>window.CircuitsVis ??= (() => {{{_bundle()}\nreturn CircuitsVis; }})();</script>"
        # A module runs after the whole page is read, so the order of views does not matter.
        return f"""<div id="{place}" style="margin: 15px 0">{escape(repr(self))} (drawn by JavaScript)</div>
{bundle if include_js else ""}
<script type="module">
const props = {htmlsafe_json_dumps(props, separators=(",", ":"))};
props.attention = props.attention.map(head => head.map(query => query.map(weight => weight / 1000)));
CircuitsVis.render("{place}", CircuitsVis.AttentionHeads, props);
</script>
"""

    def page(self, title: str = "Attention patterns") -> str:
        """A self-contained HTML page that works from a file, without a network."""
        return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(title)}</title>
<style>body {{ font-family: sans-serif; margin: 1em }}</style>
</head>
<body>
<h1>{escape(title)}</h1>
{self.fragment()}</body>
</html>
"""

    def save(self, path: str | Path, title: str = "Attention patterns") -> None:
        """Write ``page(title)`` to ``path``, atomically."""
        write_atomic(path, self.page(title).encode())

    def _repr_html_(self) -> str:
        return self.fragment()

    def __repr__(self) -> str:
        names = self.names[0] if len(self.names) == 1 else f"{self.names[0]} to {self.names[-1]}"
        shape = f"{_count(len(self.names), 'head')} ({names}), {_count(len(self.str_tokens), 'token')}"
        return f"AttentionView({shape}, {'causal' if self.causal else 'bidirectional'})"


def attention_view(
    model: Any,
    tokens: Tensor | Sequence[int] | str,
    *,
    layers: int | Sequence[int] | None = None,
    heads: int | Sequence[int] | None = None,
    str_tokens: Sequence[str] | None = None,
    attention_mask: Tensor | None = None,
    max_bytes: int = 3_000_000,
) -> AttentionView:
    """Run a model once on one sequence and show where its heads attend.

    Args:
        model: anything with TransformerLens's hook protocol.
        tokens: ``[pos]`` or ``[1 pos]`` token ids, or a text when the model has a tokenizer.
        layers: which layers, 1 to ``n_layers`` as in ``probes.attention_pattern``; negative ones count
            from the last. All of them when ``None``.
        heads: which heads of each layer, from 0. All of them when ``None``.
        str_tokens: one string per position. By default the tokenizer's, or the ids without one.
        attention_mask: ``[pos]`` or ``[1 pos]``, true on real tokens; padding is left out of the view.
        max_bytes: refuse a view whose page would be larger. Drawing time grows with it: circuitsvis
            took 20 seconds for 12 heads over 128 tokens (1.7 MB) on two slow cores without a GPU.

    Returns:
        The view; its heads are named ``L{layer}H{head}``.

    Raises:
        InputError: for more than one sequence, a layer or head that is not there, or a view too large.

    Example:
        >>> from mechclust.models.build import build_model
        >>> from mechclust.models.config import ModelConfig
        >>> model = build_model(ModelConfig(d_vocab=9, n_ctx=4, n_layers=2, d_model=8, n_heads=2))
        >>> attention_view(model, torch.tensor([3, 1, 4]), layers=2)
        AttentionView(2 heads (L2H0 to L2H1), 3 tokens, causal)
    """
    tokenizer = getattr(model, "tokenizer", None)
    ids = _sequence("tokens", _encode(model, tokenizer, tokens) if isinstance(tokens, str) else tokens)
    mask = torch.ones_like(ids, dtype=torch.bool)
    if attention_mask is not None:
        mask = _sequence("attention_mask", attention_mask).bool().to(ids.device)
        if mask.shape != ids.shape or not mask.any():
            raise InputError(
                f"attention_mask has length {len(mask)} and {int(mask.sum())} real tokens for {len(ids)} token ids; "
                "expected one value per token, true on the real ones"
            )
    if str_tokens is None:
        str_tokens = _decode(tokenizer, ids.tolist())
    if len(str_tokens) != len(ids):
        raise InputError(
            f"str_tokens has {len(str_tokens)} strings for {len(ids)} token ids; expected one per position"
        )
    chosen = [heads] if isinstance(heads, int) else heads if heads is None else list(heads)
    if chosen == []:
        raise InputError("heads is empty; expected at least one head, or None for all of them")

    at = attention_pattern(layers)
    cfg = getattr(model, "cfg", None)
    per_layer = int(getattr(cfg, "n_heads", 1)) if chosen is None else len(chosen)
    _check_size(len(resolve(model, at)) * per_layer, int(mask.sum()), max_bytes)

    probe = _Patterns(at)
    run(model, Batch(ids[None], attention_mask=mask[None]), probe)
    real = mask.cpu()
    patterns, names = [], []
    for site in probe.sites:
        pattern = probe.kept[site.name][:, real][:, :, real]
        for head in range(len(pattern)) if chosen is None else chosen:
            if not -len(pattern) <= head < len(pattern):
                raise InputError(f"no head {head} in layer {site.layer} (it has heads 0-{len(pattern) - 1})")
            patterns.append(pattern[head])
            names.append(f"L{site.layer}H{head % len(pattern)}")
    stacked = torch.stack(patterns)
    # TransformerLens 4.3 sets "bidirectional" for BERT and LLaDA only, so the weights have the last word.
    causal = getattr(cfg, "attention_dir", "causal") == "causal" and not bool(stacked.triu(1).any())
    shown = [token for token, keep in zip(str_tokens, real.tolist(), strict=True) if keep]
    return attention_view_from_patterns(stacked, shown, names, causal=causal, max_bytes=max_bytes)


def attention_view_from_patterns(
    patterns: Tensor, str_tokens: Sequence[str], names: Sequence[str], *, causal: bool, max_bytes: int = 3_000_000
) -> AttentionView:
    """Show attention patterns from anywhere, such as a mean over examples or the difference of two models.

    Args:
        patterns: ``[head query key]`` weights from -1 to 1, shown to three decimals.
        str_tokens: one string per position.
        names: one per head.
        causal: draw the part above the diagonal grey; every weight there must be 0.
        max_bytes: refuse a view whose page would be larger. circuitsvis's JavaScript takes 1.3 MB of it.

    Raises:
        InputError: for shapes that do not fit each other, values that are no attention weights, or a
            view too large.

    Example:
        >>> attention_view_from_patterns(torch.eye(2)[None], ["to", " be"], ["copy"], causal=True)
        AttentionView(1 head (copy), 2 tokens, causal)
    """
    patterns, n = torch.as_tensor(patterns).detach().float().cpu(), len(str_tokens)
    if patterns.ndim != 3 or not patterns.numel() or patterns.shape != (len(names), n, n):
        raise InputError(
            f"patterns has shape {tuple(patterns.shape)}; expected [head query key] = {(len(names), n, n)} "
            f"for {_count(len(names), 'name')} and {_count(n, 'token')}; pass one sequence, and a name for each head"
        )
    low, high = float(patterns.min()), float(patterns.max())
    if not (low >= -1.001 and high <= 1.001):  # also true for NaN
        raise InputError(
            f"patterns has values from {low:.4g} to {high:.4g}; expected attention weights from -1 to 1; "
            "give the probabilities (hook_pattern), not the scores"
        )
    if causal and bool(patterns.triu(1).any()):
        raise InputError(
            "causal is True, but weights above the diagonal are not all 0; expected a causal pattern, or causal=False"
        )
    _check_size(len(names), n, max_bytes)
    view = AttentionView(patterns, tuple(map(str, str_tokens)), tuple(map(str, names)), causal)
    _check_size(len(names), n, max_bytes, len(view.page().encode()))
    return view


class _Patterns(Probe):
    """Keeps the patterns of the one sequence it sees, ``[head query key]`` at each site."""

    def __init__(self, at: Selector) -> None:
        self.at, self.readout = at, all_tokens()
        self.kept: dict[str, Tensor] = {}

    def update(self, activations: Mapping[str, Tensor], batch: Batch) -> None:
        self.kept = {name: pattern[0].float().cpu() for name, pattern in activations.items()}

    def compute(self) -> ProbeResult:
        return self.result({}, {})


def _encode(model: Any, tokenizer: Any, text: str) -> Any:
    if tokenizer is None:
        raise InputError(
            f"tokens is the text {text[:40]!r}, but this {type(model).__name__} has no tokenizer; "
            "give token ids, and their strings as str_tokens"
        )
    return model.to_tokens(text) if hasattr(model, "to_tokens") else tokenizer(text, return_tensors="pt")["input_ids"]


def _sequence(name: str, value: Any) -> Tensor:
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


def _decode(tokenizer: Any, ids: list[int]) -> list[str]:
    if tokenizer is None:
        return [str(i) for i in ids]
    return list(tokenizer.batch_decode([[i] for i in ids], clean_up_tokenization_spaces=False))


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _visible(token: str) -> str:
    r"""A token whose whitespace and control characters can be seen: ``" a\n"`` becomes ``"·a\\n"``."""
    return "".join("·" if c == " " else c if c.isprintable() else c.encode("unicode_escape").decode() for c in token)


def _check_size(n_heads: int, n_tokens: int, max_bytes: int, size: int | None = None) -> None:
    code = len(_bundle())
    least = code + 2 * n_heads * n_tokens**2  # a digit and a comma for each weight
    if (size or least) > max_bytes:
        raise InputError(
            f"attention of {_count(n_heads, 'head')} over {_count(n_tokens, 'token')} makes a page of "
            f"{'' if size else 'at least '}{(size or least) / 1e6:.1f} MB, {code / 1e6:.1f} MB of it JavaScript, "
            f"and max_bytes is {max_bytes:,}; choose fewer layers, heads or tokens, or raise max_bytes"
        )


@lru_cache(maxsize=1)
def _bundle() -> str:
    """The JavaScript of circuitsvis, out of an empty view of its own; it defines ``CircuitsVis``."""
    from circuitsvis.attention import attention_heads

    drawn = attention_heads([], [], []).local_src  # printing it would ask google.com, and then load from a CDN
    match = re.search(r"<script[^>]*>(.*)CircuitsVis\.render\(.*CircuitsVis\.AttentionHeads,", drawn, re.DOTALL)
    if match is None or "</script" in match[1]:
        raise RuntimeError("this version of circuitsvis is laid out in another way; install circuitsvis==1.43.3")
    return re.sub(r"//# sourceMappingURL=\S*", "", match[1]).strip()
