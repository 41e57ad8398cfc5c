"""Rows that are saved, read back, and taken from other engines; and measurements over several processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.parity.library_probes import instructions, model_of
from tests.parity.names import Library

LAYERS = [0, 1, 2]


def _probes(lib: Library, sites: list[str]) -> list[Any]:
    """Return probes of one model's rows."""
    probes = lib.probes
    last = probes.last_token()
    return [
        probes.TaskClusterARI("task", sites, last, n_init=2, n_permutations=20),
        probes.LinearDecodability("task", sites, last, n_shuffles=5, folds=3),
        probes.NDims(sites, last),
        probes.NeighbourPurity(sites, last, k=3),
        probes.CKA(sites, last, pairs="all"),
        probes.Projection("task", sites, last, method="pca"),
    ]


def saved_rows(lib: Library, inputs: Path) -> Any:
    """Save rows of two models, and measure them from their folders."""
    task, probes = instructions(lib), lib.probes
    batches = list(task.batches("train_subset", 16))
    last = probes.last_token()
    stores = {}
    for seed, name in enumerate(("tuned", "base")):
        model = model_of(lib, task, seed=seed).double()
        probes.save_rows(model, batches, name, readout=last, labels=["task"], shard_rows=16)
        stores[name] = probes.RowStore(name)
    tuned = stores["tuned"]
    alone = probes.run_stores(tuned, _probes(lib, tuned.sites))
    both = probes.run_stores(stores, [probes.CKA(label="task"), probes.RBFCKA(), probes.SVCCA()])
    return {
        "precision": "float64",
        "about": [len(tuned), tuned.sites, tuned.labels],
        "taken": tuned.take(tuned.index[:5], ["rows/hook_embed", "labels/task"]),
        "alone": {result.probe: result for result in alone},
        "both": {result.probe: result for result in both},
        "files": sorted(path.name for path in Path("tuned").iterdir() if not path.name.endswith(".lock")),
    }


def _labels() -> dict[str, Any]:
    return {"task": ["abc"[i % 3] for i in range(36)]}


def _measured(lib: Library, rows: Any) -> dict[str, Any]:
    """Return what probes give for rows of another engine."""
    results = lib.probes.run_stores(rows, _probes(lib, rows.sites))
    about = {"kind": isinstance(rows, lib.probes.ForeignRows), "sites": rows.sites, "classes": rows.classes}
    return {**about, "found": {result.probe: result for result in results}}


def rows_from_tensors(lib: Library, inputs: Path) -> Any:
    """Measure hidden states given as tensors: rows, and all positions with a readout."""
    states = load_file(inputs / "rows.safetensors")
    whole = {i: states[f"layer.{i}"] for i in LAYERS}
    tokens = states["tokens"]
    rows = lib.probes.rows_from(
        {f"blocks.{i}.hook_resid_post": x[:, -1] for i, x in whole.items()}, labels=_labels(), tokens=tokens
    )
    positions = lib.probes.rows_from(whole, labels=_labels(), tokens=tokens, readout=lib.probes.mean())
    both = lib.probes.run_stores({"a": rows.select(rows.index), "b": rows}, lib.probes.CKA(rows.sites))
    found = {"rows": _measured(lib, rows), "sites": positions.sites, "both": both}
    found["means"] = positions.take(positions.index[:4], ["rows/hook_embed"])
    return {"precision": "float64", **found}


def rows_from_nnsight(lib: Library, inputs: Path) -> Any:
    """Measure hidden states as nnsight saves them: a list with ``[1 tokens d]`` for each prompt."""
    states = load_file(inputs / "rows.safetensors")
    saved = {i: [x[None] for x in states[f"layer.{i}"].float().numpy()] for i in LAYERS}
    return _measured(lib, lib.probes.rows_from(saved, labels=_labels(), model="nnsight"))


def rows_from_vllm(lib: Library, inputs: Path) -> Any:
    """Measure hidden states in vLLM's files: a folder, and paths in the order of the prompts."""
    folder = inputs / "vllm"
    paths = [folder / f"cmpl-{i}.safetensors" for i in range(36)]
    of_folder = lib.probes.rows_from(folder, layers=LAYERS, labels=_labels())
    of_paths = lib.probes.rows_from(paths, layers=LAYERS, labels=_labels())
    return {"folder": _measured(lib, of_folder), "paths": _measured(lib, of_paths)}


def refused_rows(lib: Library, inputs: Path) -> Any:
    """Give rows that cannot be used."""
    states = load_file(inputs / "rows.safetensors")
    x = states["layer.0"]
    given: dict[str, Callable[[], Any]] = {
        "array": lambda: lib.probes.rows_from(x),
        "nan": lambda: lib.probes.rows_from({0: x[:, 0] * float("nan")}),
        "integers": lambda: lib.probes.rows_from({0: torch.ones(4, 3, dtype=torch.int64)}),
        "unequal": lambda: lib.probes.rows_from({0: x[:, 0], 1: x[:5, 0]}),
        "index twice": lambda: lib.probes.rows_from({0: x[:3, 0]}, index=[0, 1, 1]),
        "labels": lambda: lib.probes.rows_from({0: x[:3, 0]}, labels={"task": [1, 2]}),
        "negative layer": lambda: lib.probes.rows_from({-1: x[:3, 0]}),
        "no layers": lambda: lib.probes.rows_from(inputs / "vllm"),
        "no folder": lambda: lib.probes.RowStore("nowhere"),
        "not rows": lambda: lib.probes.RowStore(inputs / "gpt2"),
        "result": lambda: lib.probes.load_result(inputs / "rows.safetensors"),
    }
    return {name: outcome(function) for name, function in given.items()}


def outcome(function: Callable[[], Any]) -> Any:
    """Return what a function gives, or the class of its error."""
    try:
        return {"value": function()}
    except Exception as error:
        return {"error": type(error).__name__}


def jobs(lib: Library, inputs: Path) -> Any:
    """Measure and save rows in worker processes, and map a function over jobs."""
    mechclust, probes = lib.mechclust, lib.probes
    config = mechclust.ModelConfig(d_vocab=20, n_ctx=8, n_layers=2, d_model=16, n_heads=2, init_std=0.2)
    tokens = torch.randint(0, 20, (40, 8), generator=torch.Generator().manual_seed(0))
    batch = lib.tasks.Batch(tokens, labels={"task": tokens[:, 0] % 3})
    load = partial(mechclust.build_model, config)
    found = mechclust.run_sharded(load, batch, [probes.NDims(), probes.CKA(pairs="all")], workers=2, shard_examples=16)
    mechclust.save_rows_sharded(load, batch, "rows", labels=["task"], workers=2)
    return {
        "found": {result.probe: result for result in found},
        "rows": probes.RowStore("rows").take(torch.arange(5), ["rows/hook_embed"]),
        "mapped": mechclust.map_jobs(abs, [3, -4, 5], workers=2),
        "ray": repr(mechclust.Ray(address="auto")),
    }


CALLS: dict[str, Callable[[Library, Path], Any]] = {
    "saved-rows": saved_rows,
    "rows-from-tensors": rows_from_tensors,
    "rows-from-nnsight": rows_from_nnsight,
    "rows-from-vllm": rows_from_vllm,
    "refused-rows": refused_rows,
    "jobs": jobs,
}
