"""A study in a package of somebody else's, found by a real entry point."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import fake_package

TOY = '''
from dataclasses import dataclass, field
from matplotlib.figure import Figure
from mechclust.evidence import Bound, Finding, mean_part
from mechclust.report import Analysis, Panel
from mechclust.studies import Study
from mechclust.studies.kept import require_files

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
    (out / "results").mkdir(exist_ok=True)
    (out / "results" / f"{seed}.txt").write_text(str(seed * config.training.lr))
    (out / "results" / "losses.txt").write_text("of no finding")

def load(config, out):
    require_files(out, [out / "results" / f"{seed}.txt" for seed in config.seeds])
    return [float((out / "results" / f"{seed}.txt").read_text()) for seed in config.seeds]

def findings(config, values):
    parts = (mean_part("", values, Bound("<", 1)),)
    return [Finding(id="Q1", statement="values are small", source="ours", parts=parts, note="nothing to compare with")]

def report(config, values):
    figure = Figure(figsize=(2, 1))
    figure.subplots().plot(values)
    return Analysis(panels=[Panel("values", figure, "all values"), Panel("again", figure, "all values again")])

STUDY = Study(
    name="toy",
    title="A toy",
    source="nowhere",
    presets={"smoke": Config(seeds=(0,)), "quick": Config(), "slow": Config(training=Training(lr=0.01))},
    jobs=lambda config: list(config.seeds),
    run_job=run_job,
    load=load,
    findings=findings,
    report=report,
    trained_models=lambda config, out: [],
    unrecorded=["losses.txt"],
)
NUMBER = 3
'''


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts a package with these entry points where Python finds it."""

    def put(source: str = TOY, package: str = "other-studies", **points: str) -> None:
        fake_package.install(tmp_path, monkeypatch, "mechclust.studies", source, package, points)

    return put
