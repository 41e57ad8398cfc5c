"""Where in a model a sandbox looks: layers, heads, embeddings, and what is read there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from mechclust.sandbox.examples import Examples
from probes.engine.hooks import HookedModel
from probes.engine.readout import Readout, last_token
from probes.engine.sites import attention_pattern, head_name, head_output, residual, resolve
from tasks import Batch, InputError

_LAYERS, _HEADS, _TOKENS = 6, 8, 100  # most that are drawn unasked


@dataclass(frozen=True)
class Place:
    """What one panel reads.

    Attributes:
        name: of the panel.
        title: for people.
        site: the hook point.
        what: what stands there.
        head: which head.
        last: whether nothing but the unembedding follows.
        group: which panels are switched on and off together.
    """

    name: str
    title: str
    site: str
    what: Literal["stream", "output", "pattern", "tokens", "positions"] = "stream"
    head: int | None = None
    last: bool = False
    group: str = ""

    @property
    def kind(self) -> Literal["plane", "heat"]:
        """How it is drawn."""
        return "heat" if self.what == "pattern" else "plane"

    def read(self, activation: Tensor, batch: Batch, readout: Readout, examples: Examples) -> Tensor:
        """``[sequence d]``, of a pattern ``[sequence key]``, of embeddings ``[token d]`` or ``[pos d]``."""
        if self.what == "tokens":
            rows, positions = examples.first_places
            return activation[rows.to(activation.device), positions.to(activation.device)]
        if self.what == "positions":
            return activation if activation.ndim == 2 else activation[0]
        if self.what == "pattern":
            activation = activation.transpose(1, 2)
        reads = last_token() if activation.shape[1] == 1 else readout  # where a model has pooled its sequence
        found = reads(activation, batch)
        return found.flatten(1) if self.head is None else found[:, self.head]


def find_places(
    model: HookedModel, layers: Sequence[int] | None, heads: Sequence[str] | None, sites: Sequence[str], tokens: int
) -> list[Place]:
    """The places to look at, in the model's order.

    Args:
        model: with hooks.
        layers, heads, sites: as in ``SandboxRecorder``.
        tokens: how many different tokens the examples hold.

    Raises:
        InputError: for a layer, head or site that the model does not have.
    """
    stream = resolve(model, residual())
    last = stream[-1].name
    if layers is None:
        n = len(stream) - 1
        layers = range(1, n + 1) if n <= _LAYERS else sorted({1 + round(i * (n - 1) / (_LAYERS - 1)) for i in range(6)})
    found = []
    if "hook_embed" in model.hook_dict and tokens <= _TOKENS:
        found.append(Place("token_embeddings", "Token embeddings", "hook_embed", "tokens", group="embeddings"))
    if "hook_pos_embed" in model.hook_dict:
        title = "Position embeddings"
        found.append(Place("position_embeddings", title, "hook_pos_embed", "positions", group="embeddings"))
    blocks: dict[int, list[Place]] = {}
    for block, head in _heads(model, heads):
        called = head_name(block, head)
        output, pattern = (resolve(model, at(layers=block))[0].name for at in (head_output, attention_pattern))
        blocks.setdefault(block, []).extend(
            [
                Place(f"attention_{called}", f"{called}: attention", pattern, "pattern", head, group=f"block {block}"),
                Place(f"output_{called}", f"{called}: output z", output, "output", head, group=f"block {block}"),
            ]
        )
    for site in resolve(model, residual(list(layers))) if len(layers) else ():
        title, group = f"Layer {site.layer}: residual stream", f"block {site.layer - 1}" if site.layer else "embeddings"
        place = Place(f"residual_{site.layer}", title, site.name, last=site.name == last, group=group)
        blocks.setdefault(site.layer - 1, []).append(place)
    found += [place for block in sorted(blocks) for place in blocks[block]]
    found += [Place(name, name, name, group="sites") for name in sites if resolve(model, name)]
    if not found:
        raise InputError("nothing is left to draw; give layers, heads or sites")
    return found


def _heads(model: HookedModel, heads: Sequence[str] | None) -> list[tuple[int, int]]:
    n_blocks, n_heads = int(model.cfg.n_layers), int(model.cfg.n_heads)
    if heads is None:
        known = {f"blocks.{block}.attn.hook_{what}" for block in range(n_blocks) for what in ("z", "pattern")}
        few = n_blocks * n_heads <= _HEADS and known <= set(model.hook_dict)
        return [(block, head) for block in range(n_blocks) for head in range(n_heads)] if few else []
    found = []
    for name in heads:
        match = re.fullmatch(r"L(\d+)H(\d+)", name)
        if not match or int(match[1]) >= n_blocks or int(match[2]) >= n_heads:
            raise InputError(
                f"no head {name!r} in this model (it has {head_name(0, 0)} to {head_name(n_blocks - 1, n_heads - 1)})"
            )
        found.append((int(match[1]), int(match[2])))
    return found
