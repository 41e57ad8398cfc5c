"""Does the quick preset of a study in ``EFFECTS`` show its main effect? One seed at a time, kept as JSON.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.quick_presets mossa 300 301

Runs in ``quick_presets.json`` are not measured again. Seeds are fresh: presets were chosen on seeds below 100. Runs
with ``n_eval`` had so many prompts per skill, fewer than the preset has now. Runs without seconds were paused.

A run of clustering heads trains as many networks as the preset, of which about one in three solves its task. Runs 300
to 309 had eight, and their effect was H1a. In 304 none was solved, and in 301 one of four was not detected. As this
happens to one solved network in ten, H1a needs more than a quick run has: runs from 310 on have twelve, and H1e.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from mechclust import get_study
from mechclust.studies.study import run_study

KEPT = Path(__file__).with_name("quick_presets.json")
SEEDS = range(300, 310)
EFFECTS = {"task-clusters": "T2", "mossa": "C4", "topic-structure": "P1b", "clustering-heads": "H1e"}
NETWORKS = {"clustering-heads": 12}  # in a run


def kept_runs() -> list[dict[str, Any]]:
    """Return every measured run: its study and seed, the values of its main effect, and its seconds."""
    return json.loads(KEPT.read_text()) if KEPT.exists() else []


def measure(name: str, seed: int) -> dict[str, Any]:
    """Run a quick preset with one seed, and return its record. ``shown``: the means of its effect meet their bounds."""
    study = get_study(name)
    n = NETWORKS.get(name, 1)
    config = replace(study.presets["quick"], seeds=tuple(range(seed * n, (seed + 1) * n)))
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        findings = run_study(study, config, f"{folder}/run", workers=1).findings
        seconds = time.perf_counter() - start
    (finding,) = [finding for finding in findings if finding.id == EFFECTS[name]]
    parts = [part for part in finding.parts if part.values]
    return {
        "study": name,
        "seed": seed,
        "effect": finding.id,
        "values": {part.name: list(part.values) for part in parts},
        "shown": bool(parts) and all(part.bound.met(fmean(part.values)) for part in parts),
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
