"""Sites to measure: selectors that resolve to hook names of a model."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from numbers import Integral
from typing import NamedTuple

import numpy as np

from probes.engine.hooked_model import HookPoints, n_hooked_blocks
from tasks import InputError


class Site(NamedTuple):
    """One place in a model.

    Attributes:
        name: the hook name, as in ``model.hook_dict``.
        layer: in the residual stream 0 for the embedding, ``l`` for the input of ``blocks.l``, ``l + 1`` for its
            output, and one more than the last layer for sites after it. Parts of a block, such as its heads, have the
            block's number, ``l`` for ``blocks.l``.

    Example:
        >>> Site("blocks.0.hook_resid_post", layer=1).layer
        1
    """

    name: str
    layer: int


def split_site(name: str) -> tuple[str, str]:
    """Return a site's model and hook, with ``""`` for the model if only one was measured.

    Hook names have no ``/``, but names of models may.

    Example:
        >>> split_site("meta-llama/Llama-3/hook_embed"), split_site("hook_embed")
        (('meta-llama/Llama-3', 'hook_embed'), ('', 'hook_embed'))
    """
    model, _, hook = name.rpartition("/")
    return model, hook


def site_called(key: object) -> str:
    """Return the hook name of a hidden state given by number or by name."""
    if isinstance(key, str):
        if "/" in key:
            raise InputError(f"the hook name {key!r} has a '/', which separates it from a model's; replace it")
        return key
    if isinstance(key, bool) or not isinstance(key, (int, np.integer)):
        raise InputError(f"rows are called {key!r}; expected a hook name or the number of a hidden state")
    if key < 0:
        raise InputError(
            f"layer {key} is negative; give the number of the hidden state: 0 for the embedding, l for the output of "
            "the l-th block"
        )
    return "hook_embed" if key == 0 else f"blocks.{key - 1}.hook_resid_post"


@dataclass(frozen=True)
class Selector:
    """A family of hook points, one per layer.

    Make one with ``residual()``, ``embedding()``, ``attention()``, ``attention_pattern()`` or ``head_output()``.

    Attributes:
        kind: name of the function that made it.
        layers: layer numbers, negative ones counted from the last. ``None`` for all.
        final_norm: whether the final norm's output belongs to it.

    Example:
        >>> residual(layers=[0, -1])
        residual(layers=[0, -1])
    """

    kind: str
    layers: tuple[int, ...] | None = None
    final_norm: bool = False

    def __repr__(self) -> str:
        arguments = []
        if self.layers is not None:
            arguments.append(f"layers={list(self.layers)}")
        if self.final_norm:
            arguments.append("final_norm=True")
        return f"{self.kind}({', '.join(arguments)})"


Sites = Selector | str | Sequence[Selector | str]
"""Where to measure: a selector, a hook's name, or several of them."""

# Hook points of a block that belong to the residual stream. TransformerLens 4 calls its ends hook_in and hook_out.
_STREAM = re.compile(r"blocks\.(\d+)\.hook_(resid_(pre|mid|post)|in|out)")
_STREAM_BEFORE_BLOCK = ("resid_pre", "in")
_BLOCK_HOOKS = {
    "residual": "hook_resid_post",
    "attention": "attn.hook_attention",
    "attention_pattern": "attn.hook_pattern",
    "head_output": "attn.hook_z",
}


def _layers(layers: int | Sequence[int] | None) -> tuple[int, ...] | None:
    """Return numbers of layers, or ``None`` for all. Refuse what is no integer."""
    if layers is None:
        return None
    listed = list(layers) if isinstance(layers, Iterable) and not isinstance(layers, str) else [layers]
    for layer in listed:
        if not isinstance(layer, Integral) or isinstance(layer, bool):
            raise InputError(f"layers has {layer!r}; expected integers, such as [0, -1]")
    return tuple(map(int, listed))


def residual(layers: int | Sequence[int] | None = None, *, final_norm: bool = False) -> Selector:
    """Select the residual stream ``[batch pos d_model]``.

    Layer 0 is ``hook_embed``, and layer ``l`` the output of the ``l``-th block. ``hook_embed`` is the token embedding
    without position. In BERT-like encoders, the embedding adds positions and normalises before any hook, and
    ``hook_embed`` is the result. The last layer is the last block's output before the final norm, while Hugging Face's
    last ``hidden_states`` come after it.

    Args:
        layers: which layers, negative ones counted from the last. ``None`` for all.
        final_norm: also select the final norm's output, which the unembedding reads (``unembed.hook_in``).

    Example:
        >>> residual(), residual([0, -1], final_norm=True)
        (residual(), residual(layers=[0, -1], final_norm=True))
    """
    return Selector("residual", _layers(layers), final_norm)


def embedding() -> Selector:
    """Select layer 0 of the residual stream, the token embedding ``[batch pos d_model]``. See ``residual``.

    Example:
        >>> embedding()
        embedding()
    """
    return Selector("embedding")


def attention(layers: int | Sequence[int] | None = None) -> Selector:
    """Select the attention of blocks 0 to ``n_layers - 1`` as an ``Attention``, from which probes take sums.

    In a Hugging Face model loaded with ``attention="sdpa"`` (hook ``attn.hook_attention``) no pattern is made, so that
    texts of 32,000 tokens can be measured. Families without that kernel, with soft caps or sinks, are computed in
    blocks of queries. In other models it is read from the pattern of one layer (``attn.hook_pattern``), and only for an
    ``AttentionReadout``: other readouts get the pattern.

    Args:
        layers: which blocks, as in ``attention_pattern``.

    Example:
        >>> attention([0, -1])
        attention(layers=[0, -1])
    """
    return Selector("attention", _layers(layers))


def attention_pattern(layers: int | Sequence[int] | None = None) -> Selector:
    """Select the attention probabilities ``[batch head query key]`` of blocks 0 to ``n_layers - 1``.

    Args:
        layers: which blocks, by TransformerLens's numbers: 0 is ``blocks.0``, whose heads are ``L0H0``, ``L0H1``, ...
            Block ``l`` reads layer ``l`` of the residual stream. Negative ones count from the last. ``None`` for all.

    Example:
        >>> attention_pattern(0)
        attention_pattern(layers=[0])
    """
    return Selector("attention_pattern", _layers(layers))


def head_output(layers: int | Sequence[int] | None = None) -> Selector:
    """Select the head outputs ``z`` before the output projection, ``[batch pos head d_head]``.

    Args:
        layers: which blocks, as in ``attention_pattern``.

    Example:
        >>> head_output([-2, -1])
        head_output(layers=[-2, -1])
    """
    return Selector("head_output", _layers(layers))


def check_attention_sites(sites: list[Site]) -> list[Site]:
    """Return the sites, all of which must be attention.

    Raises:
        InputError: naming the first other site.

    Example:
        >>> check_attention_sites([Site("hook_embed", 0)])
        Traceback (most recent call last):
        tasks.errors.InputError: 'hook_embed' is not an attention pattern (attn.hook_pattern); give at=attention()
    """
    for site in sites:
        if not site.name.endswith(("hook_attention", "hook_pattern")):
            raise InputError(f"{site.name!r} is not an attention pattern (attn.hook_pattern); give at=attention()")
    return sites


def check_site_heads(by_site: Iterable[Sized]) -> None:
    """Refuse sums by head of sites that have different numbers of heads."""
    heads = sorted(set(map(len, by_site)))
    if len(heads) > 1:
        raise InputError(f"the sites have different numbers of heads {heads}; measure them with a probe each")


def resolve(model: HookPoints, at: Sites) -> list[Site]:
    """Return the hook points that ``at`` selects in ``model``, in the order given, each once.

    Args:
        model: anything with TransformerLens's ``hook_dict``.
        at: a selector, a hook name, or a list of these.

    Raises:
        InputError: for a model without hooks, a name that is not there (with the nearest names), or
            a layer out of range.

    Example:
        >>> from mechclust import ModelConfig, build_model
        >>> model = build_model(ModelConfig(d_vocab=9, n_ctx=4, n_layers=1, d_model=8, n_heads=2))
        >>> [site.name for site in resolve(model, residual())]
        ['hook_embed', 'blocks.0.hook_resid_post']
    """
    hooks = getattr(model, "hook_dict", None)
    if hooks is None:
        raise InputError(
            f"a {type(model).__name__} has no hook_dict, so nothing can be measured in it; "
            "build it with mechclust.build_model or load it with mechclust.load_pretrained"
        )
    names = list(hooks)
    lacks = getattr(model, "lacks", {})
    sites: dict[str, Site] = {}
    for item in at if isinstance(at, Iterable) and not isinstance(at, str) else [at]:
        if isinstance(item, Selector):
            selected = _select(item, names, lacks)
        elif not isinstance(item, str):
            raise InputError(f"no site {item!r}; name a hook point or a selector such as residual(layers=[1])")
        else:
            selected = [Site(existing_site(item, names, lacks), _layer_of(item, names))]
        sites |= {site.name: site for site in selected}
    if not sites:
        raise InputError("no sites given; name a hook point or a selector such as residual()")
    return list(sites.values())


def _layer_of(name: str, names: Sequence[str]) -> int:
    in_stream = _STREAM.fullmatch(name)
    if in_stream:
        block = int(in_stream[1])
        return block if in_stream[2] in _STREAM_BEFORE_BLOCK else block + 1
    in_block = re.search(r"(?:^|\.)(\d+)\.", name)  # also of a model of one's own, such as encoder.2.out
    if in_block:
        return int(in_block[1])
    return n_hooked_blocks(names) + 1 if name.startswith(("ln_final", "unembed", "hook_unembed")) else 0


def _select(selector: Selector, names: Sequence[str], lacks: Mapping[str, str]) -> list[Site]:
    if selector.kind == "embedding":
        return [Site(existing_site("hook_embed", names, lacks), 0)]
    is_stream = selector.kind == "residual"
    last = n_hooked_blocks(names) if is_stream else n_hooked_blocks(names) - 1
    if last < 0:
        raise InputError(f"this model has no blocks, so {selector.kind}() selects nothing; name hook points instead")
    sites = []
    for layer in range(last + 1) if selector.layers is None else selector.layers:
        number = layer + last + 1 if layer < 0 else layer
        if not 0 <= number <= last:
            raise InputError(
                f"no layer {layer} for {selector.kind}() in this model (it has layers 0-{last}, layer 0 "
                f"{'the embedding' if is_stream else 'is blocks.0'})"
            )
        block = number - 1 if is_stream else number
        name = "hook_embed" if block < 0 else f"blocks.{block}.{_BLOCK_HOOKS[selector.kind]}"
        pattern = f"blocks.{block}.{_BLOCK_HOOKS['attention_pattern']}"
        if selector.kind == "attention" and name not in names and pattern in names:
            name = pattern
        sites.append(Site(existing_site(name, names, lacks), number))
    if selector.final_norm:
        sites.append(Site(existing_site("unembed.hook_in", names, lacks), n_hooked_blocks(names) + 1))
    return sites


def existing_site(name: str, names: Sequence[str], lacks: Mapping[str, str]) -> str:
    """Return a hook point's name if the model has it.

    Args:
        name: name of the hook point.
        names: names of all hook points of the model.
        lacks: endings of names that a model of this kind lacks, with the reason.

    Raises:
        InputError: for an unknown name, with the nearest names.
    """
    if name not in names:
        for end, reason in lacks.items():
            if name.endswith(end):
                raise InputError(f"no hook point {name!r} in this model: {reason}")
        n = n_hooked_blocks(names)
        blocks = f" (it has blocks 0-{n - 1})" if n and name.startswith("blocks.") else ""
        near = _near_names(name, names)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else "; see model.hook_dict for the names"
        raise InputError(f"no hook point {name!r} in this model{blocks}{hint}")
    return name


def _near_names(name: str, names: Sequence[str]) -> list[str]:
    """Return up to three near names. For a block beyond the last, the last block's counterpart comes first."""
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    n = n_hooked_blocks(names)
    match = re.match(r"blocks\.(\d+)\.(.*)", name)
    if match and int(match[1]) >= n:
        in_last_block = f"blocks.{n - 1}.{match[2]}"
        if in_last_block in names:
            return [in_last_block, *(other for other in near if other != in_last_block)][:3]
    return near
