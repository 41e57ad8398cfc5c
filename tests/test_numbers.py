"""No number and no figure changes unless somebody means it to: every study's smoke preset and every command.

``python -m tests.test_numbers`` writes ``tests/data/numbers/`` anew, after a change that is meant to change numbers.
Bits depend on the processor and on the versions of what computes, so that elsewhere nothing is compared.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import platform
import re
import shutil
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from mechclust.command_table import COMMANDS
from mechclust.studies.registry import registered_studies
from tests.drawn import picture
from tests.mechclust.commands.history.walk import walked_weights
from tests.mechclust.commands.mossa.tiny import write_base, write_tasks
from tests.mechclust.conftest import WORDS, checkpoint

RECORDED = Path(__file__).parent / "data" / "numbers"
Numbers = dict[str, list[str]]  # digest to where such a number stands


def machine() -> dict[str, str]:
    """What bits depend on. Processors of one name choose other kernels by family and model."""
    cpu = " ".join(_cpu()) or platform.processor()
    packages = ("torch", "transformer-lens", "transformers", "numpy", "scipy", "scikit-learn")
    return {"cpu": f"{cpu}, {torch.backends.cpu.get_cpu_capability()}", **{name: version(name) for name in packages}}


def _cpu() -> Iterator[str]:
    """Name, family and model of the first core."""
    path = Path("/proc/cpuinfo")
    lines = (line.partition(":") for line in (path.read_text().splitlines() if path.exists() else ()))
    first = {name.strip(): value.strip() for name, _, value in reversed(list(lines))}
    yield from (first[name] for name in ("model name", "cpu family", "model") if name in first)


# ---- what a run left ----


def numbers_in(folder: Path) -> Numbers:
    """Digests of all tensors in the safetensors files below a folder, of all numbers in its tables and findings, and of
    all that its figures draw."""
    found: Numbers = {}

    def add(digest: str, where: str) -> None:
        found.setdefault(digest, []).append(where)

    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".safetensors":
            with safe_open(str(path), framework="pt") as file:
                for key in file.keys():  # noqa: SIM118 - a file, not a mapping
                    add(_tensor(file.get_tensor(key)), f"{name}: {key}")
        elif path.suffix == ".csv" and path.name != "findings.csv":  # which repeats findings.json
            for row in sorted(map(_numbers_of, _rows(path))):  # whatever the order of rows and columns
                add(_digest(row), name)
        elif path.parent.name == "figures" and path.suffix == ".png":
            for line in path.read_text().splitlines():
                add(_digest(f"{path.stem} {line}".encode()), f"{name}: {line[:60]}")
        elif path.name == "findings.json":
            for finding in json.loads(path.read_text()):
                control = finding["control"] or {"parts": []}
                kept = [[part["values"], part["interval"]] for part in [*finding["parts"], *control["parts"]]]
                add(_digest(json.dumps([kept, finding["paper"]]).encode()), f"{name}: {finding['id']}")
    return found


def _rows(path: Path) -> list[list[str]]:
    """A table's rows, without how long something took."""
    names, *rows = csv.reader(path.read_text().splitlines())
    return [[cell for name, cell in zip(names, row, strict=True) if name != "seconds"] for row in rows]


def _tensor(x: torch.Tensor) -> str:
    raw = x.contiguous().view(torch.uint8) if x.ndim else x.reshape(1).view(torch.uint8)
    return _digest(f"{x.dtype} {tuple(x.shape)}".encode() + raw.numpy().tobytes())


def _numbers_of(row: list[str]) -> bytes:
    values = []
    for cell in row:
        try:
            values.append(float(cell))
        except ValueError:
            continue
    return b"".join(struct.pack("<d", x) for x in sorted(values, key=lambda x: (math.isnan(x), x)))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


# ---- what is run ----


def study(name: str) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        from mechclust.studies import get_study, run_study

        found = get_study(name)
        run_study(found, found.preset("smoke"), folder / "run", workers=1)

    return run


def write_prompts(folder: Path) -> Path:
    """Three tasks of 12 prompts, which end with a word of the task."""
    rows = [
        {"prompt": f"w{i % 4} w{4 + i // 4} w{10 + k}", "task": task, "form": i % 3}
        for k, task in enumerate("abc")
        for i in range(12)
    ]
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_corpus(folder: Path) -> Path:
    """Documents of 24 words, most of one of three topics."""
    draw = np.random.default_rng(0)
    (folder / "corpus").mkdir()
    for i in range(30):
        first, second = (list(WORDS[2 + 6 * t : 8 + 6 * t]) for t in (i % 3, (i + 1 + i // 3 % 2) % 3))
        words = [*draw.choice(first, 17), *draw.choice(second, 5), "w18", "w19"]
        (folder / "corpus" / f"{i:02}.txt").write_text(" ".join(draw.permutation(words)))
    return folder / "corpus"


def write_series(folder: Path) -> Path:
    """Three checkpoints of a model whose weights walk at random, prompts and a corpus."""
    write_prompts(folder)
    write_corpus(folder)
    for i, weights in enumerate(walked_weights(load_file(folder / "gpt2" / "model.safetensors"), 3)):
        step = shutil.copytree(folder / "gpt2", folder / "series" / f"checkpoint-{10 * (i + 1)}")
        save_file(weights, step / "model.safetensors", {"format": "pt"})
    return folder / "series"


def write_answers(folder: Path) -> Path:
    """A model and tasks with answers."""
    write_base(folder / "base")
    return write_tasks(folder / "answers")


def write_suite(folder: Path) -> Path:
    """Two encoders, one of which stands beside a published one, and a corpus."""
    write_corpus(folder)
    checkpoint(folder / "albert", "albert", seed=7)
    path = folder / "suite.toml"
    path.write_text(
        f'[[model]]\nmodel = "{folder}/bert"\nname = "one"\npublished = "BERT"\n'
        f'[[model]]\nmodel = "{folder}/albert"\nname = "other"\ntwins = 0\n'
    )
    return path


def command(*arguments: str, inputs: Callable[[Path], Path] | None = None) -> Callable[[Path], None]:
    """A command on small random models; ``{}`` stands for the folder of its inputs."""

    def run(folder: Path) -> None:
        from mechclust.cli import main

        for name, seed in (("gpt2", 7), ("tuned", 8), ("bert", 7)):
            checkpoint(folder / name, "bert" if name == "bert" else "gpt2", seed=seed)
        if inputs is not None:
            inputs(folder)
        given = [argument.format(folder) for argument in arguments]
        assert main([*given, "--out", str(folder / "run")]) == 0

    return run


def check_rows(folder: Path) -> None:
    """What ``mechclust check`` measures stands in its text."""
    from mechclust import check_model

    checkpoint(folder / "gpt2", "gpt2", seed=7)
    details = [(c.passed, c.detail) for c in check_model(str(folder / "gpt2")).checks]
    (folder / "run").mkdir()
    torch_numbers = [[float(x) for x in _floats(detail)] + [float(passed or 0)] for passed, detail in details]
    tensors = {str(i): torch.tensor(row, dtype=torch.float64) for i, row in enumerate(torch_numbers)}
    save_file(tensors, folder / "run" / "rows.safetensors")


def _floats(text: str) -> list[str]:
    return re.findall(r"(?<![\w.])\d+\.\d+(?:e-?\d+)?|\d+e-\d+", text)


@cache
def heads_run() -> TemporaryDirectory[str]:
    """The heads' smoke run, made once for its numbers and for its sandbox. The folder is removed at exit."""
    made = TemporaryDirectory()
    study("clustering-heads")(Path(made.name))
    return made


def heads(folder: Path) -> None:
    """A copy of the heads' smoke run."""
    shutil.copytree(Path(heads_run().name) / "run", folder / "run")


def sandbox(folder: Path) -> None:
    """What the page of the heads' smoke run draws."""
    from mechclust.commands.sandbox import open_sandbox
    from mechclust.sandbox.page import _page_data

    data = _page_data(open_sandbox(Path(heads_run().name) / "run", seed=201))
    (folder / "run").mkdir()
    kept = {k: data[k] for k in ("epochs", "arrays", "lines", "reach", "curves", "map")}
    kept["curves"] = {k: kept["curves"][k] for k in ("epochs", "panels")}
    text = json.dumps(kept, sort_keys=True).encode()
    save_file({"page": torch.tensor(list(hashlib.sha256(text).digest()))}, folder / "run" / "page.safetensors")


PROMPTS = ("--prompts", "{}/prompts.jsonl")
RUNS: dict[str, Callable[[Path], None]] = {
    "task-clusters": study("task-clusters"),
    "topic-structure": study("topic-structure"),
    "clustering-heads": heads,
    "mossa": study("mossa"),
    "cluster-factors": study("cluster-factors"),
    "planted-layers": study("planted-layers"),
    "heads-in-models": study("heads-in-models"),
    "induction-heads": study("induction-heads"),
    "clusters": command("clusters", "{}/gpt2", *PROMPTS, "--also", "form", inputs=write_prompts),
    "compare": command(
        *("compare", "{}/gpt2", "{}/tuned", *PROMPTS, "--min-per-task", "8", "--n-resamples", "20"),
        inputs=write_prompts,
    ),
    "heads": command(
        *("heads", "{}/bert", "--corpus", "{}/corpus", "--split", "file", "--max-length", "16", "--length", "16"),
        *("--periods", "4", "6", "--max-offset", "2", "--n-sequences", "6", "--n-permutations", "19"),
        inputs=write_corpus,
    ),
    "history": command(
        *("history", "{}/series", *PROMPTS, "--probes", "clusters", "cka", "heads", "topics", "AttentionEntropy"),
        *("--corpus", "{}/corpus", "--n-topics", "3", "--threshold", ".2", "--max-length", "16", "--n-init", "1"),
        *("--n-permutations", "19", "--cka-permutations", "9", "--map-prompts", "12"),
        inputs=write_series,
    ),
    "mossa-command": command(
        *("mossa", "{}/base", "--tasks", "{}/answers", "--steps-per-task", "3", "--cutoff", "32", "--ceilings", "1"),
        *("--nulls", "1", "--n-answers", "4", "--n-shown", "6", "--tuning.lr", "1e-2", "--tuning.rank", "2"),
        *("--tuning.batch-size", "4", "--tuning.accumulation", "1", "--svcca"),
        inputs=write_answers,
    ),
    "topics": command(
        *("topics", "--suite", "{}/suite.toml", "--corpus", "{}/corpus", "--split", "file", "--topic-seeds", "0", "1"),
        *("--n-topics", "3", "--passes", "3", "--no-below", "1", "--no-above", "1", "--weights", "counts"),
        *("--thresholds", ".1", ".2", "--max-length", "16", "--resamples", "20"),
        inputs=write_suite,
    ),
    "check": check_rows,
    "sandbox": sandbox,
}


def test_every_study_and_command_is_run() -> None:
    ours = {found.name for found in registered_studies() if found.package.startswith("mechclust ")}
    assert ours <= RUNS.keys()
    measuring = set(COMMANDS) - {"run", "list", "report"}  # which run studies, or measure nothing
    assert {"mossa-command" if name == "mossa" else name for name in measuring} <= RUNS.keys()


def measured(name: str, folder: Path) -> Numbers:
    """What a run gives."""
    RUNS[name](folder)
    return numbers_in(folder / "run")


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each figure's file says what it draws."""
    monkeypatch.setattr("mechclust.report.panel.png_bytes", picture)


# Under 3.9, no other test runs all studies and commands.
@(pytest.mark.slow if int(version("transformer-lens").split(".")[0]) >= 4 else pytest.mark.usefixtures())
@pytest.mark.usefixtures("described")
@pytest.mark.parametrize("name", RUNS)
def test_numbers_are_the_recorded_ones(name: str, tmp_path: Path, tl_major: int) -> None:
    path = RECORDED / f"{name}-transformer-lens-{tl_major}.json"
    recorded = json.loads(path.read_text())
    compared = recorded["machine"] == machine()
    if not compared and tl_major == 4:
        pytest.skip(f"recorded on {recorded['machine']}; record before a change to compare")
    found = measured(name, tmp_path)
    assert found, f"{name} left no numbers"
    if not compared:
        pytest.skip(f"ran, but was recorded on {recorded['machine']}; record before a change to compare")
    new, known = Counter({digest: len(where) for digest, where in found.items()}), Counter(recorded["numbers"])
    others = [found[digest][0] for digest in new - known]
    assert new == known, f"{len(others)} numbers of {name} are new ({'; '.join(others[:8])}), {len(known - new)} gone"


def main() -> None:
    """Record what is measured now."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.set_num_threads(1)
    major = version("transformer-lens").split(".")[0]
    RECORDED.mkdir(exist_ok=True)
    for name in sys.argv[1:] or RUNS:
        with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            patch.setattr("mechclust.report.panel.png_bytes", picture)
            found = measured(name, Path(folder))
        record: dict[str, Any] = {"machine": machine(), "numbers": {k: len(found[k]) for k in sorted(found)}}
        path = RECORDED / f"{name}-transformer-lens-{major}.json"
        path.write_text(json.dumps(record, indent=0) + "\n")


if __name__ == "__main__":
    main()
