"""What a user's editor and type checker see of the public names."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mechclust

PROMISED = ("tasks", "probes", "probes.functional", "probes.extend", "mechclust")
DOORS = (
    *PROMISED,
    "mechclust.models",
    "mechclust.training",
    "mechclust.studies",
    "mechclust.attention",
    "mechclust.evidence",
    "mechclust.mossa",
    "mechclust.report",
    "mechclust.sandbox",
    "mechclust.studies.cluster_factors",
    "mechclust.studies.clustering_heads",
    "mechclust.studies.clustering_heads.sandbox",
    "mechclust.studies.heads_in_models",
    "mechclust.studies.induction_heads",
    "mechclust.studies.mossa",
    "mechclust.studies.planted_layers",
    "mechclust.training.tuning",
    "tasks.text.instructions",
    "mechclust.studies.task_clusters",
    "mechclust.studies.topic_structure",
)
# Other people's objects (a tokenizer, keyword arguments passed on) and configurations of any study.
OPEN = {"tokenizer", "config", "cfg", "fields", "metadata", "which", "changes", "kwargs", "args", "fwd_hooks", "probe"}
RETURNS_OPEN = {"open_run", "preset", "load_tokenizer", "plot"}  # one or several axes, as plt.subplots
PUBLIC = {name for door in DOORS for name in importlib.import_module(door).__all__}


def functions(door: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Public functions, and methods and properties of public classes."""
    for name in importlib.import_module(door).__all__:
        value = getattr(importlib.import_module(door), name)
        if getattr(value, "_is_protocol", False):
            continue
        if inspect.isfunction(value):
            yield name, value
        for key, member in vars(value).items() if inspect.isclass(value) else ():
            function = getattr(member, "__func__", getattr(member, "fget", member))
            shown = not key.startswith("_") or (key in ("__init__", "__call__") and not name.endswith("Result"))
            if shown and inspect.isfunction(function) and function.__name__ != "<lambda>":
                yield f"{name}.{key}", function


def check_each(door: str, check: Callable[[Callable[..., Any]], None]) -> None:
    """Every public function of a package; what is wrong with each."""
    wrong = {}
    for name, function in functions(door):
        try:
            check(function)
        except AssertionError as error:
            wrong[name] = str(error).partition("\n")[0]
    assert wrong == {}


@pytest.mark.parametrize("door", DOORS)
def test_nothing_is_any_where_a_type_exists(door: str) -> None:
    check_each(door, typed)


def typed(function: Callable[..., Any]) -> None:
    signature = inspect.signature(function)
    for name, parameter in signature.parameters.items():
        given = str(parameter.annotation)
        assert name in ("self", "cls") or parameter.annotation is not parameter.empty, f"{name} has no type"
        assert given != "Any" or name in OPEN, f"{name} is Any"
    owner, _, name = function.__qualname__.rpartition(".")
    assert str(signature.return_annotation) != "Any" or {name, owner} & RETURNS_OPEN


@pytest.mark.parametrize("door", DOORS)
def test_types_in_public_signatures_are_public(door: str) -> None:
    check_each(door, public)


def public(function: Callable[..., Any]) -> None:
    module = sys.modules[function.__module__]
    signature = inspect.signature(function)
    annotations = [*(p.annotation for p in signature.parameters.values()), signature.return_annotation]
    for name in set(re.findall(r"(?<![\w.\"'])[A-Z]\w+", " ".join(map(str, annotations)))):
        value = getattr(module, name, None)
        ours = getattr(value, "__module__", "").split(".")[0] in ("tasks", "probes", "mechclust")
        assert not (inspect.isclass(value) and ours) or name in PUBLIC, f"{name} is not public"


@pytest.mark.parametrize("module", PROMISED)
def test_every_promised_name_has_an_example(module: str) -> None:
    without = []
    for name in importlib.import_module(module).__all__:
        value = getattr(importlib.import_module(module), name)
        documented = inspect.isclass(value) or inspect.isroutine(value)
        if documented and ">>>" not in (inspect.getdoc(value) or ""):
            without.append(name)
    assert without == []


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    command = [sys.executable, "-m", "mechclust", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"mechclust {version('mechclust')}\n"
    assert mechclust.__version__ == version("mechclust")
    citation = (Path(__file__).parents[1] / "CITATION.cff").read_text()
    assert f"\nversion: {version('mechclust')}\n" in citation
