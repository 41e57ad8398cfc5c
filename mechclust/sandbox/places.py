"""Choose the hook points that a sandbox draws: layers, heads, embeddings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from mechclust.sandbox.examples import Examples
from probes.engine.head_names import head_name
from probes.engine.hooked_model import HookedModel
from probes.engine.readout import Readout, last_token
from probes.engine.sites import attention_pattern, head_output, residual, resolve
from tasks import Batch, InputError

# Drawn by default, at most:
_MAX_LAYERS = 6
_MAX_HEADS = 8
_MAX_TOKENS = 100


@dataclass(frozen=True)
class Place:
    """A hook point that one panel draws.

    Attributes:
        name: of the panel.
        title: of the drawn panel.
        site: the hook point.
        what: the kind of activation there.
        head: number of the head, or ``None``.
        group: the panels that are switched on and off together.
        needed: whether a model in which the hook point never fires is refused, instead of shown without it.
    """

    name: str
    title: str
    site: str
    what: Literal["stream", "output", "pattern", "tokens", "positions"] = "stream"
    head: int | None = None
    group: str = ""
    needed: bool = True

    @property
    def kind(self) -> Literal["plane", "heat"]:
        """The kind of its panel."""
        return "heat" if self.what == "pattern" else "plane"

    def read(
        self, activation: Float[Tensor, "..."], batch: Batch, readout: Readout, examples: Examples
    ) -> Float[Tensor, "row d"]:
        """Return a row for each sequence (of keys for a pattern), for each token, or for each position."""
        if self.what == "tokens":
            sequences, positions = examples.first_places
            return activation[sequences.to(activation.device), positions.to(activation.device)]
        if self.what == "positions":
            if activation.ndim == 2 or len(activation) == 1:  # the same for every sequence
                return activation.flatten(0, -2)
            sequences, columns = examples.position_places
            return activation[sequences.to(activation.device), columns.to(activation.device)]
        if self.what == "pattern":
            activation = activation.transpose(1, 2)
        is_pooled = activation.shape[1] == 1
        rows = (last_token() if is_pooled else readout)(activation, batch)
        rows = rows.flatten(1) if self.head is None else rows[:, self.head]
        is_line = self.kind == "plane" and rows.shape[1] == 1  # drawn along the first axis
        return pad(rows, (0, 1)) if is_line else rows


def find_places(
    model: HookedModel, layers: Sequence[int] | None, heads: Sequence[str] | None, sites: Sequence[str], tokens: int
) -> list[Place]:
    """Return the places to draw, in the model's order.

    Args:
        model: with hooks.
        layers, heads, sites: as in ``SandboxRecorder``.
        tokens: number of different tokens in the examples.

    Raises:
        InputError: for a layer, head or site that the model does not have.
    """
    stream = resolve(model, residual())
    if layers is None:
        layers = _spread_layers(len(stream) - 1)
    places = []
    if "hook_embed" in model.hook_dict and tokens <= _MAX_TOKENS:
        places.append(Place("token_embeddings", "Token embeddings", "hook_embed", "tokens", group="embeddings"))
    if "hook_pos_embed" in model.hook_dict:
        title = "Position embeddings"
        place = Place("position_embeddings", title, "hook_pos_embed", "positions", group="embeddings", needed=False)
        places.append(place)  # models with rotary positions list it too
    blocks: dict[int, list[Place]] = {}
    for block, head in _heads(model, heads):
        blocks.setdefault(block, []).extend(_places_of_head(model, block, head))
    for site in resolve(model, residual(list(layers))) if len(layers) else ():
        title = f"Layer {site.layer}: residual stream"
        group = f"block {site.layer - 1}" if site.layer else "embeddings"
        place = Place(f"residual_{site.layer}", title, site.name, group=group)
        blocks.setdefault(site.layer - 1, []).append(place)
    for block in sorted(blocks):
        places += blocks[block]
    places += [Place(name, name, name, group="sites") for name in sites if resolve(model, name)]
    if not places:
        raise InputError("nothing is left to draw; give layers, heads or sites")
    return places


def _spread_layers(n: int) -> Sequence[int]:
    """Return the layers after the embedding, or evenly spaced ones if there are many."""
    if n <= _MAX_LAYERS:
        return range(1, n + 1)
    return sorted({1 + round(i * (n - 1) / (_MAX_LAYERS - 1)) for i in range(_MAX_LAYERS)})


def _places_of_head(model: HookedModel, block: int, head: int) -> list[Place]:
    name = head_name(block, head)
    group = f"block {block}"
    pattern = resolve(model, attention_pattern(layers=block))[0].name
    output = resolve(model, head_output(layers=block))[0].name
    return [
        Place(f"attention_{name}", f"{name}: attention", pattern, "pattern", head, group=group),
        Place(f"output_{name}", f"{name}: output z", output, "output", head, group=group),
    ]


def _heads(model: HookedModel, heads: Sequence[str] | None) -> list[tuple[int, int]]:
    n_blocks = int(model.cfg.n_layers)
    n_heads = int(model.cfg.n_heads)
    if heads is None:
        hooks = {f"blocks.{block}.attn.hook_{what}" for block, what in product(range(n_blocks), ("z", "pattern"))}
        if n_blocks * n_heads > _MAX_HEADS or not hooks <= set(model.hook_dict):
            return []
        return list(product(range(n_blocks), range(n_heads)))
    chosen = []
    for name in heads:
        match = re.fullmatch(r"L(\d+)H(\d+)", name)
        if not match or int(match[1]) >= n_blocks or int(match[2]) >= n_heads:
            raise InputError(
                f"no head {name!r} in this model (it has {head_name(0, 0)} to {head_name(n_blocks - 1, n_heads - 1)})"
            )
        chosen.append((int(match[1]), int(match[2])))
    return chosen
