"""``import mechclust`` loads nothing heavy, and yet all public names are there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import mechclust
from mechclust.lazy import imported_for_types

ROOT = Path(mechclust.__file__).parents[1]


def test_it_is_lighter_than_torch() -> None:
    code = (
        "import sys, json, mechclust; heavy = [n for n in ('torch', 'numpy', 'pandas', 'probes') if n in sys.modules]; "
        "names = dir(mechclust); model = mechclust.ModelConfig(d_vocab=9, n_ctx=4); "
        "print(json.dumps([heavy, names, model.d_vocab]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    heavy, names, d_vocab = json.loads(done.stdout)
    assert (heavy, d_vocab) == ([], 9)
    assert set(mechclust.__all__) <= set(names)


def test_every_public_name_has_its_place_and_no_other() -> None:
    places = imported_for_types(Path(mechclust.__file__).read_text(encoding="utf-8"))
    assert sorted(places) == sorted(mechclust.__all__)
    assert mechclust.train is vars(mechclust)["train"]  # kept after the first time


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match=r"^module 'mechclust' has no attribute 'trian'$"):
        mechclust.trian  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'trian'"):
        from mechclust import trian  # noqa: F401
