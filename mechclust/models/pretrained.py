"""Pretrained checkpoints as hooked models: TransformerLens's bridge, or read-only where it has none."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from pathlib import Path
from typing import Any, Protocol

import torch

from mechclust.models.build import build_model, config_of
from mechclust.models.checkpoint import load_model
from probes.hooks import HookedModel
from tasks import InputError

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


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
        untrained: the same architecture with its random initialisation, as a baseline.
        seed: of that initialisation. The global random state is left alone.

    Raises:
        InputError: for a directory without configuration, weights or tokenizer, a checkpoint that
            is damaged, or an architecture that is none of these.
    """
    path = Path(name_or_path)
    if path.is_file():
        with _quiet():
            config = config_of(ours := load_model(path))
            ours = build_model(config.with_seed(seed)) if untrained else ours
            return ours.to(device or "cpu").to(dtype).eval()
    local = _is_local(name_or_path, untrained)
    with warnings.catch_warnings(), _quiet():
        warnings.simplefilter("ignore")
        model = _load(str(name_or_path), local, dtype, untrained, seed).to(device or "cpu")
    model.eval()
    return model


def load_tokenizer(name_or_path: str | Path) -> tuple[Any, Any]:
    """The tokenizer and the Hugging Face configuration of a checkpoint, without its weights.

    Args:
        name_or_path: a hub name, or a local directory, which must hold a model too.

    Raises:
        InputError: as ``load_pretrained``, and for a file, which has no tokenizer.
    """
    from transformers import AutoConfig, AutoTokenizer

    name = str(name_or_path)
    if Path(name).is_file():
        raise InputError(f"{name!r} has no tokenizer to read prompts; give a Hugging Face checkpoint")
    local = _is_local(name)
    with warnings.catch_warnings(), _quiet():
        warnings.simplefilter("ignore")
        try:
            tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=local)
            return tokenizer, AutoConfig.from_pretrained(name, local_files_only=local)
        except Exception as error:  # whatever a damaged or unknown checkpoint makes the libraries raise
            raise _cannot_load(name, local, error) from error


def _is_local(name_or_path: str | Path, untrained: bool = False) -> bool:
    """Whether it is a directory, which then has everything, or else a hub name."""
    path = Path(name_or_path)
    if path.is_dir():
        _check_directory(path, untrained)
        return True
    if path.is_absolute() or str(name_or_path).startswith(("./", "../")):
        raise InputError(f"no model directory {str(path)!r}; give a local directory or a hub name such as 'gpt2'")
    return False


def _check_directory(path: Path, untrained: bool) -> None:
    if not (path / "config.json").exists():
        raise InputError(
            f"{str(path)!r} has no config.json; give a directory written by save_pretrained, with model and tokenizer"
        )
    if not untrained and not any(any(path.glob(pattern)) for pattern in _WEIGHTS):
        raise InputError(
            f"{str(path)!r} has a config.json but no weights (model.safetensors); "
            "save the model there with save_pretrained"
        )
    if not any((path / name).exists() for name in ("tokenizer.json", "tokenizer_config.json", "vocab.json")):
        raise InputError(
            f"{str(path)!r} has no tokenizer (tokenizer.json); save it there with tokenizer.save_pretrained"
        )


def _load(name: str, local: bool, dtype: torch.dtype, untrained: bool, seed: int) -> Any:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    from mechclust.models.hooked_encoder import ReadOnlyEncoder, is_read_only

    try:
        config = AutoConfig.from_pretrained(name, local_files_only=local)
        tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=local)
        read_only = is_read_only(config)
        auto = AutoModel if read_only else _auto_class(config)
        with torch.random.fork_rng(devices=[]):
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
            return TransformerBridge.boot_transformers(
                name, hf_model=model, tokenizer=tokenizer, dtype=dtype, device="cpu"
            )
    except Exception as error:  # whatever a damaged or unknown checkpoint makes the libraries raise
        raise _cannot_load(name, local, error) from error


def _cannot_load(name: str, local: bool, error: Exception) -> InputError:
    where = f"the directory {name!r}" if local else f"{name!r} from the Hugging Face hub"
    return InputError(
        f"cannot load a model from {where}: {_first_sentence(error)}; "
        "give a checkpoint of ALBERT, BART, ELECTRA, RoBERTa or a model that TransformerLens supports, "
        "with its tokenizer"
    )


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


def _first_sentence(error: BaseException) -> str:
    text = " ".join(str(error).split()).strip("'\"")
    return text.split(". ")[0][:200].rstrip(".") or type(error).__name__


@contextlib.contextmanager
def _quiet() -> Any:
    """No loading bars and no advice on standard error; the caller shows its own progress."""
    from transformers.utils import logging

    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()
