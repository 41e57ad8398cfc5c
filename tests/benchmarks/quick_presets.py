"""Does each paper's quick preset show its main effect? One fresh seed at a time, measured once, kept as JSON.

    python -m tests.benchmarks.quick_presets mossa 300 301

Runs in ``quick_presets.json`` are not measured again. Seeds are fresh: presets were chosen on seeds below 100.
"""

from __future__ import annotations

import json
import os
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
# The finding that states a paper's main effect, and the settings with seeds that it depends on.
EFFECTS = {
    "task-clusters": ("T2", ("seeds",)),
    "mossa": ("C4", ("seeds",)),
    "topic-structure": ("P1b", ("seeds",)),
}


def measured() -> list[dict[str, Any]]:
    """Return every measured run: its study and seed, the values of its main effect, and its seconds."""
    return json.loads(KEPT.read_text()) if KEPT.exists() else []


def measure(name: str, seed: int) -> dict[str, Any]:
    """Run a quick preset with one seed, and return whether its main effect is within the finding's bounds."""
    study = get_study(name)
    effect, settings = EFFECTS[name]
    config = replace(study.presets["quick"], **dict.fromkeys(settings, (seed,)))
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        findings = run_study(study, config, f"{folder}/run", workers=1).findings
        seconds = time.perf_counter() - start
    (finding,) = [finding for finding in findings if finding.id == effect]
    values = {part.name: list(part.values) for part in finding.parts}
    shown = all(part.bound.met(value) for part in finding.parts for value in part.values)
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
    known = {(run["study"], run["seed"]) for run in measured()}
    for seed in seeds or SEEDS:
        if (name, seed) not in known:
            runs = sorted([*measured(), measure(name, seed)], key=lambda run: (run["study"], run["seed"]))
            KEPT.write_text(json.dumps(runs, indent=1) + "\n")
            print(runs[-1], flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(sys.argv[1], [int(seed) for seed in sys.argv[2:]])
