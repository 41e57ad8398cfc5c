"""Models on disk: safetensors with everything else as JSON in its header."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jaxtyping import Shaped
from torch import Tensor

from mechclust.models.build import build_model
from mechclust.models.config import config_of, model_config_from_json, model_config_to_json
from mechclust.models.weights import get_weights, set_weights
from probes.engine.hooked_model import HookedModel
from probes.store.safetensors_files import read_safetensors, write_safetensors
from probes.store.versions import package_versions
from tasks import InputError

_FORMAT = "mechclust-model-2"


def save_model(model: HookedModel, path: str | Path, **metadata: Any) -> None:
    """Write a model that ``build_model`` built, atomically, as one safetensors file.

    The header holds the configuration, the versions, the weight processing (none: the weights are as trained, not
    folded or centred) and ``metadata``.

    Args:
        model: a model from ``build_model``.
        path: of the file.
        **metadata: kept in the header, as JSON.

    Raises:
        InputError: for a model that ``build_model`` did not build.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from mechclust import ModelConfig, build_model
        >>> model = build_model(ModelConfig(d_vocab=9, n_ctx=4, n_layers=1, d_model=8, n_heads=2))
        >>> with TemporaryDirectory() as folder:
        ...     save_model(model, f"{folder}/model.safetensors", step=100)
        ...     read_saved_model_metadata(f"{folder}/model.safetensors")["metadata"]
        {'step': 100}
    """
    header = {
        "format": _FORMAT,
        "config": json.dumps(model_config_to_json(config_of(model))),
        "versions": json.dumps(package_versions()),
        "weight_processing": "none",
        "metadata": json.dumps(metadata),
    }
    write_safetensors(path, get_weights(model), header)


def load_model(path: str | Path) -> HookedModel:
    """Load a model that ``save_model`` wrote, on the CPU, under any major version of TransformerLens.

    Raises:
        InputError: for a file that is missing, truncated, of other shapes, or not ours.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from mechclust import ModelConfig, build_model
        >>> model = build_model(ModelConfig(d_vocab=9, n_ctx=4, n_layers=1, d_model=8, n_heads=2))
        >>> with TemporaryDirectory() as folder:
        ...     save_model(model, f"{folder}/model.safetensors")
        ...     copy = load_model(f"{folder}/model.safetensors")
        >>> copy.cfg.n_layers
        1
    """
    tensors, header = _read(path)
    try:
        config = model_config_from_json(json.loads(header["config"]))
    except InputError as error:
        raise InputError(
            f"{str(path)!r} has no readable configuration ({error}); save the model again, or install the package that "
            "its model comes from"
        ) from None
    except (KeyError, TypeError, ValueError, RecursionError):
        raise InputError(f"{str(path)!r} has no readable configuration; save the model again") from None
    model = build_model(config)
    expected_shapes = {name: tuple(tensor.shape) for name, tensor in get_weights(model).items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name in {**expected_shapes, **shapes}:
        shape = shapes.get(name, "nothing")
        expected = expected_shapes.get(name, "nothing")
        if shape != expected:
            raise InputError(
                f"{str(path)!r} has {shape} for {name!r}; expected {expected} for its configuration: "
                "the file is damaged, save the model again"
            )
    set_weights(model, tensors)
    return model


def read_saved_model_metadata(path: str | Path) -> dict[str, Any]:
    """Read the configuration, versions and metadata in a model file's header.

    Raises:
        InputError: for a file that is missing, damaged, or not ours.
    """
    _, header = _read(path)
    try:
        record = {key: json.loads(header[key]) for key in ("config", "versions", "metadata")}
        return {**record, "weight_processing": header["weight_processing"]}
    except (KeyError, ValueError, RecursionError):
        raise InputError(f"{str(path)!r} has no readable header; save the model again") from None


def _read(path: str | Path) -> tuple[dict[str, Shaped[Tensor, "..."]], dict[str, str]]:
    tensors, header = read_safetensors(path)
    if header.get("format") != _FORMAT:
        raise InputError(
            f"{str(path)!r} is not a mechclust model; expected a file from save_model "
            "(for a Hugging Face checkpoint use load_pretrained)"
        )
    return tensors, header
