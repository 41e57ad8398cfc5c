"""What a model makes of its last residual stream: the final norm and the unembedding, to apply anywhere."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from probes.engine.hooks import HookedModel, device_of, evaluation_mode, record
from tasks import InputError

_SAME = 1e-3  # of the largest logit


class FinalReadout:
    """The final norm and the unembedding of a model, run without its hook points.

    Made from a model, it is first compared with that model: the last block's output has to give the model's own logits
    for three tokens.

    Args:
        model: with ``ln_final`` and ``unembed``, as TransformerLens has them.

    Raises:
        InputError: for a model without them, and one whose logits they do not give.
    """

    def __init__(self, model: HookedModel) -> None:
        whose = f"a {type(model).__name__}"
        if not hasattr(model, "unembed") or not hasattr(model, "cfg") or not callable(model):
            raise InputError(f"{whose} has no unembedding (model.unembed), so it has no logit lens; {_WAY}")
        self._norm, self._unembed = _inner(getattr(model, "ln_final", None)), _inner(model.unembed)
        self._cap = float(getattr(model.cfg, "output_logits_soft_cap", None) or 0)
        last = [name for name in model.hook_dict if name.startswith("blocks.") and name.endswith(".hook_resid_post")]
        if self._unembed is None or not last:
            raise InputError(f"{whose} computes no logits, so it has no logit lens; {_WAY}")
        self._dtype = torch.float32  # until the check has seen the model's
        self._check(model, max(last, key=lambda name: int(name.split(".")[1])), whose)

    def __call__(self, states: Tensor, normed: Tensor | None = None) -> Tensor:
        """Logits ``[n d_vocab]`` of residual states ``[n d_model]``.

        Args:
            states: at any layer.
            normed: ``[n]`` true where a state comes from behind the final norm already.
        """
        x = states[:, None].to(self._dtype)  # means over tokens are float32 in every model
        if self._norm is not None:
            through = self._norm(x)
            x = through if normed is None else torch.where(normed.to(x.device)[:, None, None], x, through)
        logits: Tensor = self._unembed(x)[:, 0]  # type: ignore[misc]  # checked when it was made
        return torch.tanh(logits / self._cap) * self._cap if self._cap > 0 else logits

    def _check(self, model: HookedModel, last: str, whose: str) -> None:
        tokens = torch.arange(min(3, getattr(model.cfg, "n_ctx", None) or 3), device=device_of(model))[None]
        with torch.inference_mode(), evaluation_mode(model), record(model, [last]) as seen:
            logits = model(tokens)
            self._dtype = seen[last][0].dtype
            try:
                ours: Any = self(seen[last][0][0])
            except (RuntimeError, TypeError, ValueError) as error:
                ours = error
        theirs = logits[0] if isinstance(logits, Tensor) and logits.ndim == 3 else None
        if theirs is None or not isinstance(ours, Tensor) or ours.shape != theirs.shape:
            raise InputError(f"{whose} does not give logits [batch pos d_vocab] from its last block; {_WAY}")
        far = float((ours.double().to(theirs.device) - theirs.double()).abs().max())
        if not far <= _SAME * max(1.0, float(theirs.double().abs().max())):
            raise InputError(
                f"the logits of this {type(model).__name__} are not its final norm and unembedding applied to the last "
                f"block's output (they differ by {far:.2g}), as in BERT, whose head has a layer in between; {_WAY}"
            )


_WAY = "give a causal language model that TransformerLens knows, loaded with attention='eager'"


def _inner(module: Any) -> nn.Module | None:
    """The module that computes: in TransformerLens's bridge what lies between two hook points."""
    inner = getattr(module, "original_component", None)
    found = inner if isinstance(inner, nn.Module) else module
    return found if isinstance(found, nn.Module) and type(found) is not nn.Module else None
