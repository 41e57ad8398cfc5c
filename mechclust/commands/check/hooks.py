"""Do a model's hook points exist, fire once, and give what their names promise?"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mechclust.commands.check.inputs import EXAMPLES, CheckedModel, counted, wrong
from mechclust.commands.check.result import NotTried
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
    """A selector's hook points exist, fire once in a forward pass, and have the documented shape."""
    names = _resolved(checked, selector)
    batch, seen = checked.standard, {name: checked.fired[name] for name in names}
    right, first = _right_shape(checked, selector.kind, batch), names[0]
    trouble = {}
    for name, values in seen.items():
        if len(values) != 1:
            did = f"fired {len(values)} times" if values else "exists but did not fire"
            trouble[name] = (
                f"{name!r} {did} in one forward pass, so probes there are refused; "
                f"measure at other sites, such as {selector.kind}(layers=...)"
            )
        elif not right(values[0]):
            trouble[name] = (
                f"{name!r} gives shape {list(values[0].shape)}; expected {_SHAPES[selector.kind]} for "
                f"{list(batch.tokens.shape)} tokens, so probes there would read other axes; measure at other sites"
            )
    checked.sites[selector.kind] = [name for name in names if name not in trouble]
    if trouble:
        return False, wrong(trouble)
    pooled = seen[names[-1]][0].shape[2 if selector.kind == "attention_pattern" else 1] != batch.tokens.shape[1]
    shape = "x".join(map(str, seen[first][0].shape))
    fire = "fire once each" if len(names) > 1 else "fires once"
    return True, (
        f"{counted(len(names), 'hook point')} {fire}: {_span(names)}, {_SHAPES[selector.kind]} {shape}"
        f"{' (pooled)' if pooled else ''}"
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


def _right_shape(checked: CheckedModel, kind: str, batch: Batch) -> Any:
    """Whether a value has a selector's documented shape; behind a pooling there is one position."""
    (n, pos), cfg = batch.tokens.shape, checked.model.cfg
    shapes = {
        "attention_pattern": [(n, cfg.n_heads, query, pos) for query in (pos, 1)],
        "head_output": [(n, place, cfg.n_heads, cfg.d_head) for place in (pos, 1)],
    }.get(kind, [(n, place, cfg.d_model) for place in (pos, 1)])
    return lambda value: tuple(value.shape) in shapes


def finite(checked: CheckedModel) -> tuple[bool, str]:
    """No NaN and no infinity among weights and activations."""
    trouble = {}
    for name, parameter in checked.model.named_parameters():
        if not parameter.is_meta and not bool(torch.isfinite(parameter).all()):
            trouble[name] = f"the weights {name!r} hold NaN or infinity; load the checkpoint again, or train again"
    values = checked.seen
    for name, value in values.items():
        if not bool(torch.isfinite(value).all()):
            trouble[name] = (
                f"the activations at {name!r} hold NaN or infinity, and probes refuse them; "
                f"measure in float32 if this is {str(value.dtype).removeprefix('torch.')}, or look for the cause there"
            )
    if trouble:
        return False, wrong(trouble)
    return True, f"all weights, and activations at {len(values)} hook points for {EXAMPLES} sequences"


def attention_rows(checked: CheckedModel) -> tuple[bool, str]:
    """Attention is never negative and sums to 1 over keys."""
    patterns = _patterns(checked)
    far, least, allowed, where = 0.0, 0.0, 0.0, ""
    for name, pattern in patterns.items():
        allowed = max(1e-5, 2 * torch.finfo(pattern.dtype).eps)
        if (off := float((pattern.double().sum(dim=-1) - 1).abs().max())) > far:
            far, where = off, name
        least = min(least, float(pattern.min()))
    if far > allowed or least < 0:
        what = (
            f"the smallest weight is {least:.2g}"
            if least < 0
            else f"rows differ from 1 by up to {far:.2g} ({where!r}; allowed {allowed:.2g})"
        )
        return False, (
            f"{what}, so what the hook gives is not a distribution over keys and means over it cannot be compared "
            "between heads; load with attn_implementation='eager', or divide by the rows' sums in a probe of your own"
        )
    rows = sum(pattern[..., 0].numel() for pattern in patterns.values())
    return True, f"{rows:,} rows: largest deviation from 1 {far:.2g} (allowed {allowed:.2g}), no negative weight"


def attention_direction(checked: CheckedModel) -> tuple[bool, str]:
    """Attention to later tokens is 0 exactly where changing the last token changes no earlier state."""
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
        says = f"the patterns put up to {ahead:.2g} on later tokens" if ahead else "the patterns show no later token"
        does = f"earlier states change by up to {moved:.2g}" if moved else "no earlier state changes"
        return False, (
            f"{says}, but with another last token {does}: the hook does not give the attention that is used; "
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
    """How far the residual stream at other places moves when one place has another token."""
    checked.working("residual")
    tokens = checked.standard.tokens.clone()
    place = np.searchsorted(checked.ids, tokens[:, changed].numpy())
    tokens[:, changed] = torch.from_numpy(checked.ids[(place + 1) % len(checked.ids)])
    rest = slice(None, -1) if changed else slice(1, None)
    after = checked.values(Batch(tokens), "residual")
    moves = [(x - checked.seen[k])[:, rest].abs().max() for k, x in after.items() if x.shape[1] == checked.length]
    return max(map(float, moves), default=0.0)


def _declared_causal(model: Any) -> bool:
    """TransformerLens 3.9 calls every bridge causal, BERT's too."""
    theirs = type(getattr(model, "original_model", None)).__name__
    return getattr(model.cfg, "attention_dir", None) == "causal" and not theirs.endswith("ForMaskedLM")


def _patterns(checked: CheckedModel) -> dict[str, Tensor]:
    return {name: checked.seen[name] for name in checked.working("attention_pattern")}


def blocks_join(checked: CheckedModel) -> tuple[bool, str]:
    """Every block starts from what the block before it gave, to the bit."""
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
