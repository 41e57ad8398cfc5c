"""Apply a model's final norm and unembedding to residual states of any layer."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from probes.engine.devices import device_of
from probes.engine.hooked_model import HookedModel, evaluation_mode, inner_module
from probes.engine.record import record
from tasks import InputError

_RELATIVE_TOLERANCE = 1e-3  # share of the largest logit
_WAY_OUT = "give a causal language model that TransformerLens knows, loaded with attention='eager'"


class FinalReadout:
    """The final norm and the unembedding of a model, run without its hook points.

    On creation, it is compared with the model: it has to return the model's logits for three tokens, given the last
    block's output.

    Args:
        model: model with ``ln_final`` and ``unembed``, as in TransformerLens.

    Raises:
        InputError: for a model without them, and if the model's logits are not their output.
    """

    def __init__(self, model: HookedModel) -> None:
        if not hasattr(model, "unembed") or not hasattr(model, "cfg") or not callable(model):
            raise InputError(
                f"a {type(model).__name__} has no unembedding (model.unembed), so it has no logit lens; {_WAY_OUT}"
            )
        self._norm = inner_module(getattr(model, "ln_final", None))
        self._unembed = inner_module(model.unembed)
        self._cap = float(getattr(model.cfg, "output_logits_soft_cap", None) or 0)
        outputs = [name for name in model.hook_dict if name.startswith("blocks.") and name.endswith(".hook_resid_post")]
        if self._unembed is None or not outputs:
            raise InputError(f"a {type(model).__name__} computes no logits, so it has no logit lens; {_WAY_OUT}")
        self._dtype = torch.float32  # until _check sets the model's
        self._check(model, max(outputs, key=_block_number))

    def __call__(
        self, states: Float[Tensor, "n d_model"], normed: Bool[Tensor, "n"] | None = None
    ) -> Float[Tensor, "n d_vocab"]:
        """Return the logits of residual states.

        Args:
            states: hidden states at any layer.
            normed: true for a state that already went through the final norm.
        """
        x = states[:, None].to(self._dtype)  # means over tokens are float32 in every model
        if self._norm is not None:
            output = self._norm(x)
            x = output if normed is None else torch.where(normed.to(x.device)[:, None, None], x, output)
        logits: Tensor = self._unembed(x)[:, 0]  # type: ignore[misc]  # checked when it was made
        return torch.tanh(logits / self._cap) * self._cap if self._cap > 0 else logits

    def _check(self, model: HookedModel, last_output: str) -> None:
        n_tokens = min(3, getattr(model.cfg, "n_ctx", None) or 3)
        tokens = torch.arange(n_tokens, device=device_of(model))[None]
        with torch.inference_mode(), evaluation_mode(model), record(model, [last_output]) as seen:
            output = model(tokens)
            states = seen[last_output][0]
            self._dtype = states.dtype
            try:
                logits: Any = self(states[0])
            except (RuntimeError, TypeError, ValueError):
                logits = None
        expected = output[0] if isinstance(output, Tensor) and output.ndim == 3 else None
        if expected is None or not isinstance(logits, Tensor) or logits.shape != expected.shape:
            raise InputError(
                f"a {type(model).__name__} does not give logits [batch pos d_vocab] from its last block; {_WAY_OUT}"
            )
        difference = float((logits.double().to(expected.device) - expected.double()).abs().max())
        if not difference <= _RELATIVE_TOLERANCE * max(1.0, float(expected.double().abs().max())):
            raise InputError(
                f"the logits of this {type(model).__name__} are not its final norm and unembedding applied to the last "
                f"block's output (they differ by {difference:.2g}), as in BERT, whose head has a layer in between; "
                f"{_WAY_OUT}"
            )


def _block_number(name: str) -> int:
    return int(name.split(".")[1])
