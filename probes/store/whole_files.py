"""Whether files that mechclust wrote are whole."""

from __future__ import annotations

from pathlib import Path

from probes.store.files import read_json
from probes.store.safetensors_files import check_safetensors
from tasks import InputError


def is_whole_file(path: str | Path) -> bool:
    """Return whether a safetensors or JSON file that mechclust wrote is there, undamaged. Cost: reading it once."""
    path = Path(path)
    try:
        if path.suffix == ".json":
            read_json(path)
            return True
        return "checksum" in check_safetensors(path)
    except InputError:
        return False
