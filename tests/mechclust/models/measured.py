"""What a family's model gives at its hook points, beside what plain Hugging Face gives for the same tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mechclust.models import load_pretrained
from probes import record
from tasks import InputError
from tests.mechclust.models.families import LEFT, RIGHT, TOKENS, Family, N

CLOSE = 1e-5  # float32, activations of size 1 to 10
NAMES = [f"blocks.{i}.{k}" for i in range(N) for k in ("hook_resid_pre", "hook_resid_post", "attn.hook_pattern")]


@dataclass
class Measured:
    """What was found.

    Attributes:
        model: as ``load_pretrained`` gives it.
        how: ``"bridge"`` or ``"read-only"``.
        off: largest difference by padding (``"whole"``, ``"right"``, ``"left"``) and what is read (``"residual"``,
            ``"pattern"``, ``"output"``). Left padding is compared with each example alone.
        embedding: what ``hook_embed`` gives.
        write: the difference in the output where a hook halves the residual stream; ``None`` where it is refused.
        refused: what was said to left padding, or ``None``.
        varies: the least difference between two layers' residual streams or patterns: 0 if one is read for another.
    """

    model: Any
    how: str
    embedding: str
    varies: float
    off: dict[str, dict[str, float]] = field(default_factory=dict)
    write: float | None = None
    refused: str | None = None

    def row(self) -> dict[str, Any]:
        """What the page says of it."""
        whole = self.off["whole"]
        return {
            "how": self.how,
            "embedding": self.embedding,
            "residual": whole["residual"] < CLOSE,
            "patterns": whole["pattern"] < CLOSE,
            "writes": self.write is not None and self.write < CLOSE,
            "padding": [side for side in ("right", "left") if max(self.off.get(side, {"": 1.0}).values()) < CLOSE],
        }


def measure(family: Family, folder: Path) -> Measured:
    """Load the checkpoint in that folder in both ways, and compare."""
    theirs, model = family.read(folder), load_pretrained(folder)
    how = "read-only" if type(model).__name__ == "ReadOnlyModel" else "bridge"
    output = "logits" if how == "bridge" else "last_hidden_state"
    whole, ours = expected(theirs, TOKENS), seen(model, TOKENS)
    found = Measured(model, how, _embedding(theirs, whole, ours["hook_embed"]), _varies(whole))
    found.off["whole"] = _differences(ours, whole, output)
    tokens, real = family.tokens(RIGHT), RIGHT.bool()
    found.off["right"] = _differences(seen(model, tokens, RIGHT), expected(theirs, tokens, RIGHT), output, real)
    try:
        ours = seen(model, family.tokens(LEFT), LEFT)
    except InputError as error:
        found.refused = str(error)
    else:
        alone = expected(theirs, family.tokens(LEFT)[:1, 3:])
        found.off["left"] = _differences(_cut(ours), alone, output)
    found.write = _write(theirs, model, output)
    return found


def seen(model: Any, tokens: Tensor, mask: Tensor | None = None, edit: Any = None) -> dict[str, Tensor]:
    """The output, and what passed each hook point, which fires once."""
    names, options = [*NAMES, "hook_embed"], {} if mask is None else {"attention_mask": mask}
    edits = [] if edit is None else [("blocks.0.hook_resid_post", lambda x, hook: edit(x))]
    with torch.no_grad(), model.hooks(fwd_hooks=edits), record(model, names) as kept:
        output = model(tokens, **options)
    assert all(len(values) == 1 for values in kept.values()), {k: len(v) for k, v in kept.items()}
    return {"output": output, **{name: values[0] for name, values in kept.items()}}


def body_of(theirs: Any) -> Any:
    """Without head; of an encoder-decoder the encoder."""
    return theirs.get_encoder() if theirs.config.is_encoder_decoder else theirs.base_model


def expected(
    theirs: Any, tokens: Tensor, mask: Tensor | None = None, edit: Callable[[Tensor], Tensor] | None = None
) -> dict[str, Tensor]:
    """Hugging Face's own hidden states, attentions and outputs, under the names of the hooks.

    The last block's output is caught as it leaves the block: where there is a final norm, ``hidden_states[-1]`` comes
    after it.
    """
    body, options, left, handles = body_of(theirs), {} if mask is None else {"attention_mask": mask}, [], []
    lists = (part for part in body.modules() if isinstance(part, nn.ModuleList) and len(part) == N)
    blocks = list(next(lists, []))  # ALBERT has none: its blocks share their weights, and it has no final norm
    if edit is not None:
        handles.append(blocks[0].register_forward_hook(lambda module, inputs, out: _edited(out, edit)))
    if blocks:
        handles.append(blocks[-1].register_forward_hook(lambda module, inputs, out: left.append(_first(out))))
    try:
        with torch.no_grad():
            found = body(tokens, **options, output_hidden_states=True, output_attentions=True)
            last = left[0] if left else found.hidden_states[-1]
            whole = None if theirs.config.is_encoder_decoder else theirs(tokens, **options)
    finally:
        for handle in handles:
            handle.remove()
    states = {"hook_embed": found.hidden_states[0], "last_hidden_state": found.last_hidden_state}
    if hasattr(whole, "logits"):
        states["logits"] = whole.logits
    for layer, (before, pattern) in enumerate(zip(found.hidden_states[:-1], found.attentions, strict=True)):
        states[f"blocks.{layer}.hook_resid_pre"] = before
        states[f"blocks.{layer}.attn.hook_pattern"] = pattern
        states[f"blocks.{layer}.hook_resid_post"] = last if layer == N - 1 else found.hidden_states[layer + 1]
    return states


def _first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def _edited(output: Any, edit: Callable[[Tensor], Tensor]) -> Any:
    return (edit(output[0]), *output[1:]) if isinstance(output, tuple) else edit(output)


def _differences(
    ours: dict[str, Tensor], theirs: dict[str, Tensor], output: str, real: Tensor | None = None
) -> dict[str, float]:
    """The largest by kind, at tokens that are not padding (patterns: as queries, at all keys)."""
    found = {"output": _difference(ours["output"], theirs[output], real)}
    for kind in ("residual", "pattern"):
        names = [name for name in NAMES if name.endswith("pattern") == (kind == "pattern")]
        found[kind] = max(_difference(ours[name], theirs[name], real) for name in names)
    return found


def _difference(ours: Tensor, theirs: Tensor, real: Tensor | None = None) -> float:
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    if real is not None:
        swapped = [x.transpose(1, 2) if x.ndim == 4 else x for x in (ours, theirs)]  # [batch query head key]
        ours, theirs = (x[real] for x in swapped)
    return float((ours - theirs).abs().max())


def _cut(ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """The first example of a batch padded on the left, without its padding."""
    start = int(LEFT[0].argmax())
    return {k: x[:1, :, start:, start:] if x.ndim == 4 else x[:1, start:] for k, x in ours.items()}


def _embedding(theirs: Any, whole: dict[str, Tensor], ours: Tensor) -> str:
    with torch.no_grad():
        words = body_of(theirs).get_input_embeddings()(TOKENS)
    enters = whole["hook_embed"]
    if ours.shape == enters.shape and _difference(ours, enters) < CLOSE:
        same = words.shape == enters.shape and _difference(words, enters) < CLOSE
        return "token embedding" if same else "enters the first block"
    return "before positions" if _difference(ours, words) < CLOSE else "something else"


def _varies(states: dict[str, Tensor]) -> float:
    found = []
    for kind in ("hook_resid_post", "attn.hook_pattern"):
        layers = [states[f"blocks.{i}.{kind}"] for i in range(N)]
        found += [_difference(a, b) for i, a in enumerate(layers) for b in layers[:i]]
    transposed = states["blocks.0.attn.hook_pattern"]
    return min(*found, _difference(transposed, transposed.mT))


def _write(theirs: Any, model: Any, output: str) -> float | None:
    def edit(x: Tensor) -> Tensor:
        return x * 0.5 + 1

    try:
        ours = seen(model, TOKENS, edit=edit)["output"]
    except InputError:
        return None
    wanted, plain = expected(theirs, TOKENS, edit=edit)[output], expected(theirs, TOKENS)[output]
    assert _difference(wanted, plain) > 1e-2
    return _difference(ours, wanted)
