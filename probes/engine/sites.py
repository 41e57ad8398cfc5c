"""Where to measure: selectors that resolve to hook names of a model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from probes.engine.hooks import HookPoints, existing_hook, n_blocks
from tasks import InputError


class Site(NamedTuple):
    """One place in a model.

    Attributes:
        name: the hook name, as in ``model.hook_dict``.
        layer: in the residual stream 0 for the embedding, ``l + 1`` for what ``blocks.l`` gives (``l`` for what it
            reads), one more than the last layer for what follows it; of the parts of a block, such as its heads, the
            block's own number, ``l`` for ``blocks.l``.
    """

    name: str
    layer: int


def split_site(name: str) -> tuple[str, str]:
    """A site's model and hook: ``"meta-llama/Llama-3/hook_embed"`` is that of ``"meta-llama/Llama-3"``.

    Without a model where only one was measured. Hook names have no ``/``; names of models may.

    Example:
        >>> split_site("meta-llama/Llama-3/hook_embed"), split_site("hook_embed")
        (('meta-llama/Llama-3', 'hook_embed'), ('', 'hook_embed'))
    """
    model, _, hook = name.rpartition("/")
    return model, hook


def head_name(block: int, head: int) -> str:
    """A head as TransformerLens and papers name it, both numbers from 0.

    Example:
        >>> head_name(0, 3)
        'L0H3'
    """
    return f"L{block}H{head}"


def renumbered(name: str, layer: int) -> int:
    """The number of a layer that a file says, which counted the parts of blocks from 1 before they had their block's.

    Example:
        >>> renumbered("blocks.0.attn.hook_pattern", 1), renumbered("tuned/blocks.0.hook_resid_post", 1)
        (0, 1)
    """
    hook = split_site(name)[1]
    match = None if _STREAM.fullmatch(hook) else re.match(r"blocks\.(\d+)\.", hook)
    return layer - 1 if match and layer == int(match[1]) + 1 else layer


@dataclass(frozen=True)
class Selector:
    """A family of hook points, one per layer. Make one with ``residual()`` and its like."""

    kind: str
    layers: tuple[int, ...] | None = None
    final_norm: bool = False

    def __repr__(self) -> str:
        arguments = [] if self.layers is None else [f"layers={list(self.layers)}"]
        return f"{self.kind}({', '.join(arguments + ['final_norm=True'] * self.final_norm)})"


Sites = Selector | str | Sequence[Selector | str]
"""Where to measure: a selector, a hook's name, or several of them."""

# What stands in a block and yet belongs to the residual stream; TransformerLens 4 calls its ends hook_in and hook_out.
_STREAM = re.compile(r"blocks\.(\d+)\.hook_(resid_(pre|mid|post)|in|out)")
_BLOCK_HOOKS = {
    "residual": "hook_resid_post",
    "attention_pattern": "attn.hook_pattern",
    "head_output": "attn.hook_z",
}


def _layers(layers: int | Sequence[int] | None) -> tuple[int, ...] | None:
    if layers is None:
        return None
    return (layers,) if isinstance(layers, int) else tuple(layers)


def residual(layers: int | Sequence[int] | None = None, *, final_norm: bool = False) -> Selector:
    """The residual stream: layer 0 is ``hook_embed``, layer ``l`` the output of the ``l``-th block.
    ``[batch pos d_model]``.

    ``hook_embed`` is the token embedding without position; in BERT-like encoders, whose embedding
    adds positions and normalises before anything can be hooked, the result of that. The last layer is the last
    block's output, before the final norm, where Hugging Face's last ``hidden_states`` come after it.

    Args:
        layers: which layers; negative ones count from the last. All of them when ``None``.
        final_norm: also the final norm's output, what the unembedding reads (``unembed.hook_in``).
    """
    return Selector("residual", _layers(layers), final_norm)


def embedding() -> Selector:
    """Layer 0, ``hook_embed``: the token embedding, see ``residual``. ``[batch pos d_model]``."""
    return Selector("embedding")


def attention_pattern(layers: int | Sequence[int] | None = None) -> Selector:
    """Attention probabilities ``[batch head query key]`` of blocks 0 to ``n_layers - 1``.

    Args:
        layers: which blocks, by TransformerLens's numbers: 0 is ``blocks.0``, whose heads are ``L0H0``, ``L0H1``, ...
            Block ``l`` reads layer ``l`` of the residual stream. Negative ones count from the last; all when ``None``.
    """
    return Selector("attention_pattern", _layers(layers))


def head_output(layers: int | Sequence[int] | None = None) -> Selector:
    """Head outputs ``z`` before the output projection, ``[batch pos head d_head]``, of blocks 0 to ``n_layers - 1``.

    Args:
        layers: which blocks, as in ``attention_pattern``.
    """
    return Selector("head_output", _layers(layers))


def resolve(model: HookPoints, at: Sites) -> list[Site]:
    """The hook points ``at`` stands for in ``model``, in the order given, each once.

    Args:
        model: anything with TransformerLens's ``hook_dict``.
        at: a selector, a hook name, or a list of these.

    Raises:
        InputError: for a model without hooks, a name that is not there (with the nearest names), or
            a layer out of range.
    """
    hooks = getattr(model, "hook_dict", None)
    if hooks is None:
        raise InputError(
            f"a {type(model).__name__} has no hook_dict, so nothing can be measured in it; "
            "build it with mechclust.build_model or load it with mechclust.load_pretrained"
        )
    names, lacks = list(hooks), getattr(model, "lacks", {})
    found: dict[str, Site] = {}
    for item in [at] if isinstance(at, (Selector, str)) else list(at):
        if isinstance(item, Selector):
            chosen = _select(item, names, lacks)
        else:
            chosen = [Site(existing_hook(item, names, lacks), _layer_of(item, names))]
        found.update((site.name, site) for site in chosen)
    if not found:
        raise InputError("no sites given; name a hook point or a selector such as residual()")
    return list(found.values())


def _layer_of(name: str, names: Sequence[str]) -> int:
    if match := _STREAM.fullmatch(name):
        return int(match[1]) + (match[2] not in ("resid_pre", "in"))
    if match := re.match(r"blocks\.(\d+)\.", name):
        return int(match[1])
    return n_blocks(names) + 1 if name.startswith(("ln_final", "unembed", "hook_unembed")) else 0


def _select(selector: Selector, names: Sequence[str], lacks: Mapping[str, str]) -> list[Site]:
    n = n_blocks(names)
    if selector.kind == "embedding":
        return [Site(existing_hook("hook_embed", names, lacks), 0)]
    stream = selector.kind == "residual"
    last = n if stream else n - 1
    sites = []
    for layer in range(last + 1) if selector.layers is None else selector.layers:
        absolute = layer + last + 1 if layer < 0 else layer
        if not 0 <= absolute <= last:
            raise InputError(
                f"no layer {layer} for {selector.kind}() in this model (it has layers 0-{last}, layer 0 "
                f"{'the embedding' if stream else 'is blocks.0'})"
            )
        block = absolute - 1 if stream else absolute
        name = "hook_embed" if block < 0 else f"blocks.{block}.{_BLOCK_HOOKS[selector.kind]}"
        sites.append(Site(existing_hook(name, names, lacks), absolute))
    if selector.final_norm:
        sites.append(Site(existing_hook("unembed.hook_in", names, lacks), n + 1))
    return sites
