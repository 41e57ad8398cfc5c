"""A study in a package of somebody else's, found by a real entry point."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TOY = '''
from dataclasses import dataclass, field
from matplotlib.figure import Figure
from mechclust.report import Analysis, Bound, Panel, claim
from mechclust.studies import Study

@dataclass(frozen=True)
class Training:
    """How it trains."""
    lr: float = 0.1
    fast: bool = False

@dataclass(frozen=True)
class Config:
    """Settings of the toy."""
    seeds: tuple[int, ...] = (0, 1)
    corpus: str = ""
    name: str | None = None
    plot_all: bool = True
    training: Training = field(default_factory=Training)

def run_job(config, seed, out):
    (out / "models").mkdir(exist_ok=True)
    (out / "models" / f"{seed}.txt").write_text(str(seed * config.training.lr))

def analyse(config, out):
    values = [float((out / "models" / f"{seed}.txt").read_text()) for seed in config.seeds]
    figure = Figure(figsize=(2, 1))
    figure.subplots().plot(values)
    panels = [Panel("values", figure, "all values"), Panel("again", figure, "all values again")]
    return Analysis(claims=[claim("Q1", "values are small", "ours", values, Bound("<", 1))], panels=panels)

STUDY = Study(
    name="toy",
    title="A toy",
    source="nowhere",
    presets={"smoke": Config(seeds=(0,)), "quick": Config(), "slow": Config(training=Training(lr=0.01))},
    jobs=lambda config: list(config.seeds),
    run_job=run_job,
    analyse=analyse,
    trained_models=lambda config, out: [],
)
NUMBER = 3
'''


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts a package with these entry points where Python finds it."""

    def put(source: str = TOY, package: str = "other-studies", **points: str) -> None:
        folder, module = tmp_path / package, package.replace("-", "_")
        info = folder / f"{module}-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        lines = [f"{name.replace('_', '-')} = {value}" for name, value in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[mechclust.studies]", *lines, ""]))
        (folder / f"{module}.py").write_text(source)
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, module, raising=False)

    return put
