"""Pretrained checkpoints as hooked models: TransformerLens's bridge, or read-only where it has none."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Protocol

import torch

from mechclust.models.build import build_model, config_of
from mechclust.models.checkpoint import load_model
from mechclust.models.huggingface import is_local, quiet, reading
from mechclust.models.tokenizers import tokenizer_and_config
from probes.hooks import HookedModel
from tasks import InputError


class PretrainedModel(HookedModel, Protocol):
    """A hooked model with its tokenizer.

    Attributes:
        tokenizer: Hugging Face's; ``None`` for a file that ``save_model`` wrote.
    """

    tokenizer: Any


def load_pretrained(
    name_or_path: str | Path,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype = torch.float32,
    untrained: bool = False,
    seed: int = 0,
) -> PretrainedModel:
    """A hooked model with its tokenizer (``model.tokenizer``), weights as Hugging Face has them.

    Nothing is folded or centred: activations equal Hugging Face's own. A local directory is loaded
    without any network access.

    Decoders, BERT and RoBERTa are TransformerLens's ``TransformerBridge``. ALBERT, ELECTRA, the
    encoder of BART, and RoBERTa where TransformerLens does not know it (3.9, or saved without its
    masked-LM head), come as a ``ReadOnlyEncoder``: embeddings, residual stream and attention
    patterns can be read, but hooks cannot change them, and the output is the last hidden state.

    Args:
        name_or_path: a hub name, a local directory in Hugging Face's format, or a file that
            ``save_model`` wrote (which has no tokenizer).
        device: where to put it; the CPU when ``None``.
        dtype: of the weights.
        untrained: the same architecture with its random initialisation, to compare with.
        seed: of that initialisation. The global random state is left alone.

    Raises:
        InputError: for a directory without configuration, weights or tokenizer, a checkpoint that
            is damaged, or an architecture that is none of these.
    """
    ours = Path(name_or_path).is_file()
    local = ours or is_local(name_or_path, untrained=untrained)
    with quiet():
        if ours:
            model = load_model(name_or_path)
            model = (build_model(config_of(model).with_seed(seed)) if untrained else model).to(dtype)
        else:
            model = _load(str(name_or_path), local, dtype, untrained, seed)
        model = model.to(device or "cpu")
    model.eval()
    return model


def _load(name: str, local: bool, dtype: torch.dtype, untrained: bool, seed: int) -> Any:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoModel

    from mechclust.models.hooked_encoder import ReadOnlyEncoder, is_read_only

    with reading(name, local), torch.random.fork_rng(devices=[]):
        tokenizer, config = tokenizer_and_config(name, local)
        read_only = is_read_only(config)
        auto = AutoModel if read_only else _auto_class(config)
        torch.manual_seed(seed)
        if untrained:
            model = auto.from_config(config, attn_implementation="eager").to(dtype)
        else:
            model, found = auto.from_pretrained(
                name, local_files_only=local, dtype=dtype, attn_implementation="eager", output_loading_info=True
            )
            _check_complete(model, found)
        if read_only:
            return ReadOnlyEncoder(model, tokenizer)
        return TransformerBridge.boot_transformers(name, hf_model=model, tokenizer=tokenizer, dtype=dtype, device="cpu")


def _check_complete(model: Any, found: dict[str, Any]) -> None:
    """Heads may be missing or left over; the body must be there, and of the size its config says."""
    body = "" if model.base_model is model else f"{model.base_model_prefix}."
    missing = [key for key in found["missing_keys"] if key.startswith(body) and "pooler." not in key]
    surplus = [key for key in found["unexpected_keys"] if re.search(r"\.\d+\.", key)]
    if missing or surplus:
        lacks = (
            f"lacks the weights {sorted(missing)[0]!r}" if missing else f"has weights {sorted(surplus)[0]!r} too many"
        )
        raise InputError(f"the checkpoint {lacks} for its config.json")


def _auto_class(config: Any) -> Any:
    """The Auto class for a checkpoint: the bridge wants a model with its head, also where only the
    body was saved. Encoder families have a masked-LM class; decoder families a causal one."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING

    if config.is_encoder_decoder:
        return AutoModelForSeq2SeqLM
    causal = (config.architectures or [""])[0].endswith(("ForCausalLM", "LMHeadModel"))
    if type(config) in MODEL_FOR_MASKED_LM_MAPPING and not causal:
        return AutoModelForMaskedLM
    return AutoModelForCausalLM
