"""Does the quick preset of a study in ``EFFECTS`` show its main effect? One seed at a time, kept as JSON.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.quick_presets mossa 300 301

Runs in ``quick_presets.json`` are not measured again. A run of clustering heads trains eight networks, as the preset
does: about one in three solves its task. Seeds are fresh: presets were chosen on seeds below 100.
Runs with ``n_eval`` had so many prompts per skill, fewer than the preset has now. Runs without seconds were paused.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from mechclust import get_study
from mechclust.studies.study import run_study

KEPT = Path(__file__).with_name("quick_presets.json")
SEEDS = range(300, 310)
# The finding of each study's main effect, and those of its parts that are meant, or all.
EFFECTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "task-clusters": ("T2", ()),
    "mossa": ("C4", ()),
    "topic-structure": ("P1b", ()),
    "clustering-heads": ("H1a", ("solved: detected",)),
}
NETWORKS = {"clustering-heads": 8}  # in a run


def kept_runs() -> list[dict[str, Any]]:
    """Return every measured run: its study and seed, the values of its main effect, and its seconds."""
    return json.loads(KEPT.read_text()) if KEPT.exists() else []


def measure(name: str, seed: int) -> dict[str, Any]:
    """Run a quick preset with one seed, and return its record. ``shown``: its main effect meets the bounds."""
    study = get_study(name)
    effect, names = EFFECTS[name]
    n = NETWORKS.get(name, 1)
    config = replace(study.presets["quick"], seeds=tuple(range(seed * n, (seed + 1) * n)))
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        findings = run_study(study, config, f"{folder}/run", workers=1).findings
        seconds = time.perf_counter() - start
    (finding,) = [finding for finding in findings if finding.id == effect]
    parts = [part for part in finding.parts if not names or part.name in names]
    values = {part.name: list(part.values) for part in parts}
    shown = all(part.bound.met(value) for part in parts for value in part.values)
    return {
        "study": name,
        "seed": seed,
        "effect": effect,
        "values": values,
        "shown": shown and all(values.values()),
        "seconds": round(seconds),
    }


def main(name: str, seeds: list[int]) -> None:
    """Measure the seeds that were not measured yet, and keep each when it ends."""
    known = {(run["study"], run["seed"]) for run in kept_runs()}
    for seed in seeds or SEEDS:
        if (name, seed) in known:
            continue
        run = measure(name, seed)
        runs = [*kept_runs(), run]  # read after measuring: another study may have been measured meanwhile
        runs.sort(key=lambda run: (run["study"], run["seed"]))
        KEPT.write_text(json.dumps(runs, indent=1) + "\n")
        print(run, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], [int(seed) for seed in sys.argv[2:]])
