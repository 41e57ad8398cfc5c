"""Do a model's hook points exist, fire once, and give what their names promise?"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechclust.commands.check.inputs import EXAMPLES, CheckedModel, Values, first_trouble
from mechclust.commands.check.result import NotTried
from mechclust.report.text import counted
from probes.engine.sites import Selector, resolve
from tasks import Batch, InputError

_SHAPES = {
    "embedding": "[batch pos d_model]",
    "residual": "[batch pos d_model]",
    "attention_pattern": "[batch head query key]",
    "head_output": "[batch pos head d_head]",
}
_NEEDED = ("embedding", "residual")


def hook_points(checked: CheckedModel, selector: Selector) -> tuple[bool, str]:
    """Check that a selector's hook points exist, fire once in a forward pass, and have the documented shape."""
    names = _resolved(checked, selector)
    troubles = {}
    for name in names:
        trouble = _trouble(checked, selector, name, checked.fired[name])
        if trouble:
            troubles[name] = trouble
    checked.sites[selector.kind] = [name for name in names if name not in troubles]
    if troubles:
        return False, first_trouble(troubles)
    n_pos = checked.standard.tokens.shape[1]
    first = checked.fired[names[0]][0]
    last = checked.fired[names[-1]][0]
    position_axis = 2 if selector.kind == "attention_pattern" else 1
    pooled = " (pooled)" if last.shape[position_axis] != n_pos else ""
    fire = "fire once each" if len(names) > 1 else "fires once"
    shape = f"{_SHAPES[selector.kind]} {'x'.join(map(str, first.shape))}"
    return True, f"{counted(len(names), 'hook point')} {fire}: {_span(names)}, {shape}{pooled}"


def _trouble(checked: CheckedModel, selector: Selector, name: str, fired: list[Values]) -> str:
    """Return the fault of a hook point, or ``""``."""
    if len(fired) != 1:
        event = f"fired {len(fired)} times" if fired else "exists but did not fire"
        return (
            f"{name!r} {event} in one forward pass, so probes there are refused; measure at other sites, such as "
            f"{selector.kind}(layers=...)"
        )
    (value,) = fired
    if tuple(value.shape) in _documented_shapes(checked, selector.kind):
        return ""
    return (
        f"{name!r} gives shape {list(value.shape)}; expected {_SHAPES[selector.kind]} for "
        f"{list(checked.standard.tokens.shape)} tokens, so probes there would read other axes; measure at other sites"
    )


def _span(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _resolved(checked: CheckedModel, selector: Selector) -> list[str]:
    try:
        return [site.name for site in resolve(checked.model, selector)]
    except InputError as error:
        reason = str(error).split(";")[0]
    if selector.kind in _NEEDED:
        raise InputError(
            f"{reason}, where probes measure by default; name this model's own hook points, at=[...], "
            "see model.hook_dict"
        )
    layers = []
    for layer in range(checked.model.cfg.n_layers):
        with suppress(InputError):
            resolve(checked.model, replace(selector, layers=(layer,)))
            layers.append(layer)
    if layers:
        raise InputError(f"{reason}, but layers {layers} have it; measure at {replace(selector, layers=tuple(layers))}")
    raise NotTried(f"{reason}, so probes that need {selector} cannot measure this model")


def _documented_shapes(checked: CheckedModel, kind: str) -> list[tuple[int, ...]]:
    """Return the shapes that a selector's values may have; behind a pooling there is one position."""
    cfg = checked.model.cfg
    n, n_pos = checked.standard.tokens.shape
    if kind == "attention_pattern":
        return [(n, cfg.n_heads, queries, n_pos) for queries in (n_pos, 1)]
    if kind == "head_output":
        return [(n, positions, cfg.n_heads, cfg.d_head) for positions in (n_pos, 1)]
    return [(n, positions, cfg.d_model) for positions in (n_pos, 1)]


def finite_values(checked: CheckedModel) -> tuple[bool, str]:
    """Check that there is no NaN and no infinity among weights and activations, and no NaN in the output."""
    troubles = {}
    parameters = dict(checked.model.named_parameters())
    elsewhere = sum(parameter.is_meta for parameter in parameters.values())
    for name, parameter in parameters.items():
        if not parameter.is_meta and not bool(torch.isfinite(_without_float8(parameter)).all()):
            troubles[name] = f"the weights {name!r} hold NaN or infinity; load the checkpoint again, or train again"
    values = checked.seen
    for name, value in values.items():
        if not bool(torch.isfinite(value).all()):
            troubles[name] = (
                f"the activations at {name!r} hold NaN or infinity, and probes refuse them; measure in float32 if this "
                f"is {str(value.dtype).removeprefix('torch.')}, or look for the cause there"
            )
    if troubles:
        return False, first_trouble(troubles)
    if bool(checked.standard_output.isnan().any()):
        return False, "the model's output holds NaN; look for the cause in what follows its last hook point"
    weights = "all weights"
    if elsewhere:
        weights = (
            f"weights ({elsewhere} of {len(parameters)} tensors are elsewhere until needed and were not looked at)"
        )
    return True, f"{weights}, and activations at {len(values)} hook points for {EXAMPLES} sequences"


def _without_float8(weights: Values) -> Values:
    """Return float8 weights, which PyTorch cannot test, as float32."""
    return weights.float() if weights.is_floating_point() and weights.dtype.itemsize == 1 else weights


def attention_rows(checked: CheckedModel) -> tuple[bool, str]:
    """Check that attention is never negative and sums to 1 over keys."""
    patterns = _patterns(checked)
    deviations = {name: float((rows.double().sum(dim=-1) - 1).abs().max()) for name, rows in patterns.items()}
    worst = max(deviations, key=deviations.__getitem__)
    largest = deviations[worst]
    smallest_weight = min(float(pattern.min()) for pattern in patterns.values())
    allowed = max(1e-5, 2 * torch.finfo([*patterns.values()][-1].dtype).eps)
    trouble = ""
    if smallest_weight < 0:
        trouble = f"the smallest weight is {smallest_weight:.2g}"
    elif largest > allowed:
        trouble = f"rows differ from 1 by up to {largest:.2g} ({worst!r}; allowed {allowed:.2g})"
    if trouble:
        return False, (
            f"{trouble}, so what the hook gives is not a distribution over keys and means over it cannot be compared "
            "between heads; load with attn_implementation='eager', or divide by the rows' sums in a probe of your own"
        )
    n_rows = sum(pattern[..., 0].numel() for pattern in patterns.values())
    return True, f"{n_rows:,} rows: largest deviation from 1 {largest:.2g} (allowed {allowed:.2g}), no negative weight"


def attention_direction(checked: CheckedModel) -> tuple[bool, str]:
    """Check that later tokens get attention if, and only if, the last token changes earlier states."""
    patterns = _patterns(checked)
    if next(iter(patterns.values())).shape[2] != checked.length:
        raise NotTried("one query reads the whole sequence, so there is no earlier and later")
    if checked.length < 2 or len(checked.ids) < 2:
        raise NotTried("it needs two positions and two tokens")
    ahead = max(float(pattern.double().triu(1).max()) for pattern in patterns.values())
    moved = _moved(checked, changed=-1)
    if ahead and not moved and not _moved(checked, changed=0):
        raise NotTried("no token changes another token's state, so patterns cannot be compared with their effect")
    if bool(ahead) != bool(moved):
        shown = f"the patterns put up to {ahead:.2g} on later tokens" if ahead else "the patterns show no later token"
        effect = f"earlier states change by up to {moved:.2g}" if moved else "no earlier state changes"
        return False, (
            f"{shown}, but with another last token {effect}: the hook does not give the attention that is used; "
            "do not use attention_pattern() with this model"
        )
    if moved and _declared_causal(checked.model):
        return False, (
            f"the model is declared causal, but up to {ahead:.2g} of attention goes to later tokens and with another "
            f"last token earlier states change by up to {moved:.2g}: its mask is lost; try another version of "
            "TransformerLens, or attn_implementation='eager'"
        )
    if moved:
        return True, f"both ways: up to {ahead:.2g} on later tokens"
    return True, "causal: nothing on later tokens, and with another last token no earlier state changes"


def _moved(checked: CheckedModel, changed: int) -> float:
    """Return how far the residual stream at other places moves if one place has another token."""
    checked.working("residual")
    tokens = checked.standard.tokens.clone()
    place = np.searchsorted(checked.ids, tokens[:, changed].numpy())
    tokens[:, changed] = torch.from_numpy(checked.ids[(place + 1) % len(checked.ids)])
    rest = slice(None, -1) if changed else slice(1, None)
    after = checked.values(Batch(tokens), "residual")
    moves = [
        float((stream - checked.seen[name])[:, rest].abs().max())
        for name, stream in after.items()
        if stream.shape[1] == checked.length
    ]
    return max(moves, default=0.0)


def _declared_causal(model: Any) -> bool:
    """Return whether a model is declared causal. TransformerLens 3.9 calls every bridge causal, BERT's too."""
    wrapped = type(getattr(model, "original_model", None)).__name__
    return getattr(model.cfg, "attention_dir", None) == "causal" and not wrapped.endswith("ForMaskedLM")


def _patterns(checked: CheckedModel) -> dict[str, Float[Tensor, "example head query key"]]:
    return {name: checked.seen[name] for name in checked.working("attention_pattern")}


def blocks_join(checked: CheckedModel) -> tuple[bool, str]:
    """Check that every block starts from the output of the block before it, to the bit."""
    stream = [name for name in checked.working("residual") if name.endswith("hook_resid_post")]
    pairs = [(post, after.replace("hook_resid_post", "hook_resid_pre")) for post, after in pairwise(stream)]
    pairs = [(post, pre) for post, pre in pairs if pre in checked.model.hook_dict]
    if not pairs:
        raise NotTried("there are no two blocks with hook_resid_pre and hook_resid_post")
    seen = checked.fired
    for post, pre in pairs:
        if not seen[post] or not seen[pre] or not torch.equal(seen[post][0], seen[pre][0]):
            return False, (
                f"{pre!r} is not what {post!r} gave: something stands between the two blocks, or a hook point is in "
                "the wrong place, and layers would be confused; read both before you trust residual()"
            )
    return True, f"what each of {len(pairs) + 1} blocks gives is what the next one reads, to the bit"
