"""Compute results once, and again if they are missing, damaged, or of another model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from probes import ProbeResult, load_result
from probes.store.files import is_whole
from tasks import InputError


def once(path: Path, measure: Callable[[], ProbeResult], model: str | Mapping[str, str]) -> ProbeResult:
    """Return the result at ``path``; measure and save it there if it is missing, damaged, or of another model.

    Args:
        path: file of the result.
        measure: computes it.
        model: ``fingerprint`` of the model measured, or of several by name; kept in its metadata.

    Example:
        >>> import tempfile, torch
        >>> def measure():
        ...     print("measuring")
        ...     return ProbeResult("Demo", {"ari": torch.tensor(0.5)}, {"ari": ()}, {})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "ari.safetensors"
        ...     print(float(once(path, measure, "3fa")["ari"]), float(once(path, measure, "3fa")["ari"]))
        measuring
        0.5 0.5
    """
    earlier = kept(path, model)
    if earlier is not None:
        return earlier
    measured = measure()
    result = replace(measured, metadata={**measured.metadata, "model": model})
    result.save(path)
    return result


def kept(path: Path, model: str | Mapping[str, str]) -> ProbeResult | None:
    """Return the result at ``path``; ``None`` if it is missing or damaged, or (with a warning) of another model."""
    if not is_whole(path):
        return None
    result = load_result(path)
    if result.metadata.get("model") == model:
        return result
    warnings.warn(
        f"{str(path)!r} was measured on another model than the present one; it is measured again", stacklevel=2
    )
    return None


def check_there(out: Path, paths: Iterable[Path]) -> None:
    """Refuse a run with a missing file.

    Raises:
        InputError: naming the first file that is missing.
    """
    for path in paths:
        if not path.exists():
            raise InputError(f"{str(out)!r} lacks {path.relative_to(out)}; start the study again with the same --out")
