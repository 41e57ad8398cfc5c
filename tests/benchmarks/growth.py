"""How time, memory and pages of commands grow with prompts, layers, classes and tokens. Measured once, kept as JSON.

    python -m tests.benchmarks.growth

Each run is a separate process on one thread. Runs in ``growth.json`` are not measured again.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.commands import random_texts, run_command, word_model, write_prompts
from tests.benchmarks.kept import measure_missing

KEPT = Path(__file__).with_name("growth.json")
BASE = {"prompts": 300, "layers": 2, "classes": 10, "tokens": 16}
SIZES = {
    "prompts": (200, 1_000, 10_000, 100_000),
    "layers": (1, 5, 20, 80),
    "classes": (2, 10, 50, 200),
    "tokens": (8, 64, 512, 4_096),
}
COMMANDS = ("clusters", "compare", "history")
WIDTH = 64


def _arguments(command: str, sizes: dict[str, int], folder: Path) -> list[str]:
    """Return the command line, after its models and prompts are written."""
    context = max(64, sizes["tokens"])
    models = [word_model(sizes["layers"], WIDTH, context, seed) for seed in range(3 if command == "history" else 2)]
    n_prompts = max(sizes["prompts"], 20 * sizes["classes"])
    texts = random_texts(n_prompts, sizes["tokens"] - 1, sizes["tokens"] - 1)
    given = ["--prompts", str(write_prompts(folder, texts, sizes["classes"]))]
    if command == "clusters":
        return [command, str(models[0]), *given]
    if command == "compare":
        return [command, str(models[0]), str(models[1]), *given]
    series = folder / "series"
    series.mkdir()
    for i, model in enumerate(models):
        (series / f"checkpoint-{i}").symlink_to(model)
    return [command, str(series), *given, "--checkpoints", *map(str, sorted(series.iterdir()))]


def measure(command: str, grows: str, size: int) -> dict[str, Any]:
    """Run a command once, and return its seconds of the processor, its peak memory in MiB and its page in MB.

    Args:
        command: name of the command.
        grows: which of ``SIZES``.
        size: its value.
    """
    sizes = {**BASE, grows: size}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        used = run_command(*_arguments(command, sizes, folder), "--out", f"{folder}/run")
        page = (folder / "run" / "report.html").stat().st_size / 1e6
    return {"seconds": round(used.seconds, 2), "mib": round(used.mib), "page_mb": round(page, 3)}


if __name__ == "__main__":
    runs = [
        {"command": command, "grows": grows, "size": size}
        for grows, sizes in SIZES.items()
        for command in COMMANDS
        for size in sizes
    ]
    measure_missing(KEPT, runs, measure)
