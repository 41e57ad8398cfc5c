"""Where to measure: selectors that resolve to hook names of a model."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from probes.hooks import HookPoints
from tasks import InputError


class Site(NamedTuple):
    """One place in a model.

    Attributes:
        name: the hook name, as in ``model.hook_dict``.
        layer: 0 for the embedding, ``l + 1`` for everything in ``blocks.l``, one more than the
            last block for what follows it.
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
    """Attention probabilities ``[batch head query key]`` of layers 1 to ``n_layers``."""
    return Selector("attention_pattern", _layers(layers))


def head_output(layers: int | Sequence[int] | None = None) -> Selector:
    """Head outputs ``z`` before the output projection, ``[batch pos head d_head]``, of layers 1 to ``n_layers``."""
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
        elif item in hooks:
            chosen = [Site(item, _layer_of(item, names))]
        else:
            raise InputError(_no_such(item, names, lacks))
        found.update((site.name, site) for site in chosen)
    if not found:
        raise InputError("no sites given; name a hook point or a selector such as residual()")
    return list(found.values())


def _n_blocks(names: Sequence[str]) -> int:
    return 1 + max((int(m[1]) for name in names if (m := re.match(r"blocks\.(\d+)\.", name))), default=-1)


def _layer_of(name: str, names: Sequence[str]) -> int:
    if match := re.match(r"blocks\.(\d+)\.", name):
        return int(match[1]) + 1
    return _n_blocks(names) + 1 if name.startswith(("ln_final", "unembed", "hook_unembed")) else 0


def _select(selector: Selector, names: Sequence[str], lacks: Mapping[str, str]) -> list[Site]:
    n = _n_blocks(names)
    if selector.kind == "embedding":
        return [Site(_existing("hook_embed", names, lacks), 0)]
    first = 0 if selector.kind == "residual" else 1
    layers = range(first, n + 1) if selector.layers is None else selector.layers
    sites = []
    for layer in layers:
        absolute = layer + n + 1 if layer < 0 else layer
        if not first <= absolute <= n:
            raise InputError(
                f"no layer {layer} for {selector.kind}() in this model (it has layers {first}-{n}"
                f"{', layer 0 the embedding' if first == 0 else ''})"
            )
        name = "hook_embed" if absolute == 0 else f"blocks.{absolute - 1}.{_BLOCK_HOOKS[selector.kind]}"
        sites.append(Site(_existing(name, names, lacks), absolute))
    if selector.final_norm:
        sites.append(Site(_existing("unembed.hook_in", names, lacks), n + 1))
    return sites


def _existing(name: str, names: Sequence[str], lacks: Mapping[str, str]) -> str:
    if name not in names:
        raise InputError(_no_such(name, names, lacks))
    return name


def _no_such(name: str, names: Sequence[str], lacks: Mapping[str, str]) -> str:
    if (why := next((why for end, why in lacks.items() if name.endswith(end)), None)) is not None:
        return f"no hook point {name!r} in this model: {why}"
    n = _n_blocks(names)
    has = f" (it has blocks 0-{n - 1})" if n and name.startswith("blocks.") else ""
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if match := re.match(r"blocks\.(\d+)\.(.*)", name):  # the same place in the last block comes first
        same = f"blocks.{n - 1}.{match[2]}"
        near = [same, *(k for k in near if k != same)][:3] if int(match[1]) >= n and same in names else near
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else "; see model.hook_dict for the names"
    return f"no hook point {name!r} in this model{has}{hint}"
