"""Find and read plain Hugging Face checkpoints, with one sentence for any failure.

No code of a checkpoint is ever run unless the caller says so: ``trust_remote_code`` is passed to every call.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from mechclust.models.installed import check_installed
from mechclust.models.quiet_transformers import quiet_transformers
from tasks import InputError
from tasks.errors import error_line, error_sentence

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "*.model")
ADAPTER = "adapter_config.json"
# A directory must hold one file of each part. The text is the error if it does not.
_PARTS = {
    ("config.json",): "has no config.json; give a directory written by save_pretrained, with model and tokenizer",
    _WEIGHTS: ("has a config.json but no weights (model.safetensors); save the model there with save_pretrained"),
    TOKENIZERS: "has no tokenizer (tokenizer.json); save it there with tokenizer.save_pretrained",
}

# Part of a checkpoint that is read, and the files whose contents are to blame.
CheckpointPart = Literal["config", "tokenizer", "weights"]
_FILES = {
    "config": "config.json",
    "tokenizer": "tokenizer (tokenizer.json, tokenizer_config.json)",
    "weights": "config.json",  # the error's type reveals damaged weights, otherwise the configuration is wrong
}
_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
_DAMAGED_WEIGHTS = re.compile("SafetensorError|UnpicklingError|EOFError|JSONDecodeError|PytorchStreamReader")
_UNKNOWN_FAMILY = re.compile("not recognize this arch|Unrecognized configuration class|architecture .* not supported")
_NO_MEMORY = re.compile("MemoryError|out of memory|allocate memory")


@dataclass(frozen=True)
class HuggingFaceCheckpoint:
    """A checkpoint's place: on the hub or on disk.

    Attributes:
        name: hub name or directory.
        local: whether to make no network request.
        gguf_file: of a quantised file inside the directory, its name.
        trusted: whether code that the checkpoint brings may be run.
        revision: the revision of a hub name, by default the newest.
    """

    name: str
    local: bool
    gguf_file: str | None = None
    trusted: bool = False
    revision: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Return the arguments of every ``from_pretrained``."""
        options: dict[str, Any] = {"local_files_only": self.local, "trust_remote_code": self.trusted}
        if self.revision is not None:
            options["revision"] = self.revision
        return options if self.gguf_file is None else {**options, "gguf_file": self.gguf_file}

    def __str__(self) -> str:
        if self.gguf_file is not None:
            return f"the file {str(Path(self.name) / self.gguf_file)!r}"
        if Path(self.name).is_dir():
            return f"the directory {self.name!r}"
        revision = "" if self.revision is None else f" at the revision {self.revision!r}"
        return f"{self.name!r}{revision} from the Hugging Face hub"


def find_checkpoint(
    name_or_path: str | Path, *, weights: bool = True, tokenizer: bool = True, trust_remote_code: bool = False
) -> HuggingFaceCheckpoint:
    """Find the checkpoint of a name: a directory that has everything that is needed, a GGUF file, or a hub name.

    The hub is asked once, for at most a few seconds. If it cannot be reached, files that were downloaded before are
    used.

    Args:
        name_or_path: as the user gave it. A hub name may end with a revision, ``EleutherAI/pythia-70m@step1000``.
        weights: whether weights are needed. An untrained model has none.
        tokenizer: whether a tokenizer is needed. It is not if the caller gives one.
        trust_remote_code: whether code that the checkpoint brings may be run.

    Raises:
        InputError: for a directory that is missing or lacks a part, a folder that is a model and an adapter, or a file
            that is no GGUF. Also if gguf is not installed, and for a name that the hub does not have, or that cannot be
            looked up.
    """
    path = Path(name_or_path)
    if path.is_file():
        if path.suffix != ".gguf":
            raise InputError(f"{str(path)!r} is a file; give a directory written by save_pretrained, or a .gguf file")
        check_installed("gguf", f"reading {str(path)!r}", "gguf")
        return HuggingFaceCheckpoint(str(path.parent), True, path.name, trust_remote_code)
    if path.is_dir():
        if (path / ADAPTER).exists() and any(_there(path, file) for file in ("config.json", *_WEIGHTS[1:])):
            raise InputError(
                f"{str(path)!r} holds an adapter ({ADAPTER}) and a model (config.json), so it is not clear which "
                "is meant; put them in separate folders"
            )
        for files, lacks in _PARTS.items():
            needed = (files != _WEIGHTS or weights) and ("tokenizer.json" not in files or tokenizer)
            if needed and not any(_there(path, file) for file in files):
                raise InputError(f"{str(path)!r} {lacks}")
        return HuggingFaceCheckpoint(str(path), True, trusted=trust_remote_code)
    if path.is_absolute() or str(name_or_path).startswith(("./", "../", "~")):
        raise InputError(f"no model directory {str(path)!r}; give a local directory or a hub name such as 'gpt2'")
    return _on_the_hub(str(name_or_path), trust_remote_code)


def _there(path: Path, pattern: str) -> bool:
    return any(path.glob(pattern))


def _near(path: Path) -> str:
    """Return the directory next to ``path`` that may have been meant, for a message."""
    beside = [folder.name for folder in path.parent.glob("*/")] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, beside, n=1)
    return f" (did you mean {str(path.parent / near[0])!r}?)" if near else ""


def _on_the_hub(name: str, trusted: bool) -> HuggingFaceCheckpoint:
    no_directory = f"no directory {name!r} here{_near(Path(name))}, and"
    name, _, revision = name.partition("@")
    cached = HuggingFaceCheckpoint(name, True, trusted=trusted, revision=revision or None)
    try:
        if _is_cached(cached, ADAPTER):
            raise _an_adapter(name)
        if _is_cached(cached, "config.json") and _offline():
            return cached
        files = _files_on_the_hub(cached)
    except InputError:
        raise
    except Exception as error:
        fault = _hub_fault(error, cached, no_directory)
        if fault is not None:
            raise InputError(fault) from None
        if _is_cached(cached, "config.json"):  # no network, whatever the reason
            return cached
        why = f"{type(error).__name__}: {error_sentence(error)}"
        raise InputError(
            f"{no_directory} the Hugging Face hub cannot be reached ({why}); check the path, or the network"
        ) from error
    if ADAPTER in files:
        raise _an_adapter(name)
    return replace(cached, local=False)


def _is_cached(source: HuggingFaceCheckpoint, file: str) -> bool:
    return _cached_file(source.name, source.revision, file) is not None


def _cached_file(repository: str, revision: str | None, file: str) -> Path | None:
    """Return the path of a file of a hub repository that was downloaded, else ``None``."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(repository, file, revision=revision)
    return Path(path) if isinstance(path, str) else None


def cached_commit(name: str) -> str | None:
    """Return the commit of a hub name if its configuration was downloaded, else ``None``."""
    from huggingface_hub.errors import HFValidationError

    repository, _, revision = name.partition("@")
    with contextlib.suppress(HFValidationError):
        for file in ("config.json", ADAPTER):
            path = _cached_file(repository, revision or None, file)
            if path is not None:
                return path.parent.name
    return None


def _files_on_the_hub(source: HuggingFaceCheckpoint) -> set[str]:
    from huggingface_hub import HfApi

    revision: dict[str, Any] = {} if source.revision is None else {"revision": source.revision}
    info = HfApi().model_info(source.name, timeout=5, **revision)
    return {file.rfilename for file in info.siblings or ()}


def _hub_fault(error: Exception, source: HuggingFaceCheckpoint, no_directory: str) -> str | None:
    """Return the hub's reason for refusing a model's name, or ``None`` for other errors."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    name = source.name
    if isinstance(error, RevisionNotFoundError):
        return (
            f"{name!r} on the Hugging Face hub has no revision {source.revision!r}; its page lists them under Files, "
            "in the menu of branches"
        )
    if isinstance(error, HFValidationError):
        return (
            f"{no_directory} {name!r} is not the name of a model on the Hugging Face hub (they look like 'gpt2' or "
            "'meta-llama/Llama-3.2-1B'); give the path of a directory written by save_pretrained"
        )
    if isinstance(error, GatedRepoError):  # before the class that it is derived from
        return (
            f"{name!r} is on the Hugging Face hub, but access to it is restricted; request it on the model's "
            "page and log in with 'hf auth login'"
        )
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"{no_directory} no model {name!r} on the Hugging Face hub (or a private one); check the path or the name"
        )
    return None


def _an_adapter(name: str) -> InputError:
    return InputError(
        f"{name!r} on the Hugging Face hub is an adapter; download it (hf download {name} --local-dir DIR) and give "
        "the folder"
    )


def _offline() -> bool:
    return any(
        os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )


def read_checkpoint_config(source: HuggingFaceCheckpoint) -> Any:
    """Read Hugging Face's configuration of a checkpoint.

    Raises:
        InputError: for a configuration that is damaged or of an unknown family, and for sizes below 1.
    """
    from transformers import AutoConfig

    if source.trusted:
        print(f"mechclust: code that comes with {source.name!r} may be run (--trust-remote-code)", file=sys.stderr)
    with reading_checkpoint_part(source, "config"):
        config = AutoConfig.from_pretrained(source.name, **source.options)
        _check_sizes(config)
    return config


def _check_sizes(config: Any) -> None:
    """Refuse sizes below 1, because some make a model that fails when it runs."""
    for name in _SIZES:
        size = config_value(config, name)
        if isinstance(size, int) and size < 1:
            raise InputError(
                f"its config.json has {config.attribute_map.get(name, name)} {size}; expected at least 1, so give "
                "the config.json that was saved with the weights"
            )


def config_value(config: Any, name: str) -> Any:
    """Return a value of a Hugging Face configuration, or ``None`` if it has none, or another one for each layer."""
    try:
        return getattr(config, name, None)
    except RuntimeError:  # of transformers, for a value that differs between layers, as in Gemma 4
        return None


@contextlib.contextmanager
def reading_checkpoint_part(source: HuggingFaceCheckpoint, part: CheckpointPart) -> Iterator[None]:
    """Read a part of a checkpoint inside the block, quietly.

    Raises:
        InputError: for any error of the libraries on a damaged or unknown checkpoint.
    """
    if source.gguf_file is not None:
        _use_switchable_bar()
    try:
        with quiet_transformers():
            yield
    except InputError as error:
        raise InputError(f"cannot load a model from {source}: {error}") from error
    except Exception as error:
        raise InputError(f"cannot load a model from {source}: {_why(error, part, source)}") from error


def _use_switchable_bar() -> None:
    """Let transformers show a GGUF file's bar only when it shows its other bars. By default it uses tqdm's."""
    from transformers import modeling_gguf_pytorch_utils
    from transformers.utils import logging

    modeling_gguf_pytorch_utils.tqdm = logging.tqdm


def _why(error: Exception, part: CheckpointPart, source: HuggingFaceCheckpoint) -> str:
    """Return why reading failed, and the way out."""
    line = error_line(error)
    if "trust_remote_code" in str(error):
        return (
            "it comes with its own code (auto_map in its config), which is not run; read that code, and if you trust "
            "it give --trust-remote-code (trust_remote_code=True)"
        )
    if isinstance(error, ImportError):
        return f"{error_sentence(error)}; install what is missing"
    if _NO_MEMORY.search(line):
        return f"the device has too little memory ({line}); give a larger one, a smaller dtype or a quantization"
    if part != "tokenizer" and _UNKNOWN_FAMILY.search(line):
        return f"{error_sentence(error)}; give a checkpoint of a family that transformers knows (docs: families)"
    if part == "weights" and _DAMAGED_WEIGHTS.search(line):
        return f"its weights are damaged or cut off ({error_sentence(error)}); download them, or save the model, again"
    if part == "weights" and "file named" in line:
        why = f"it has no weights that can be read here ({error_sentence(error)})"
        if _is_offline_copy(source):
            return f"{why}; if only a part of it was downloaded, {_download(source)}"
        return f"{why}; save it with save_pretrained"
    if part == "weights" and isinstance(error, OSError):
        return (
            f"a file of it could not be read or downloaded ({error_sentence(error)}); check the network and the free "
            "space, or download it again"
        )
    files = _FILES[part] if source.gguf_file is None else source.gguf_file
    return f"its {files} cannot be used ({line}); download it, or save it, again"


def _is_offline_copy(source: HuggingFaceCheckpoint) -> bool:
    """Return whether a checkpoint of the hub is read from what was downloaded before."""
    return source.local and not Path(source.name).is_dir()


def _download(source: HuggingFaceCheckpoint) -> str:
    revision = "" if source.revision is None else f" --revision {source.revision}"
    return f"run 'hf download {source.name}{revision}' with a network"


def check_tokenizer_downloaded(source: HuggingFaceCheckpoint) -> None:
    """Refuse a checkpoint of the hub of which no tokenizer was downloaded, if the hub is not asked.

    Raises:
        InputError: for such a checkpoint.
    """
    config = _cached_file(source.name, source.revision, "config.json") if _is_offline_copy(source) else None
    if config is not None and not any(_there(config.parent, file) for file in TOKENIZERS):
        raise InputError(
            f"no tokenizer was downloaded with it; {_download(source)}, or give a checkpoint that has a tokenizer"
        )


def hugging_face_auto_class(config: Any) -> Any:
    """Return the Auto class for a checkpoint: with its head, also if only the body was saved.

    Encoder families have a masked-LM class, decoder families a causal one. A family with neither comes without a head.
    """
    from transformers import (
        AutoModel,
        AutoModelForCausalLM,
        AutoModelForMaskedLM,
        AutoModelForSeq2SeqLM,
        AutoModelForTextEncoding,
    )
    from transformers.models.auto import modeling_auto

    architecture = (config.architectures or [""])[0]
    if architecture.endswith("EncoderModel"):
        return AutoModelForTextEncoding
    if config.is_encoder_decoder:
        return AutoModelForSeq2SeqLM
    causal = architecture.endswith(("ForCausalLM", "LMHeadModel"))
    if type(config) in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING and not causal:
        return AutoModelForMaskedLM
    if type(config) in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING or hasattr(config, "auto_map"):
        return AutoModelForCausalLM
    return AutoModel
