"""Public objects have a repr of one line, however much they hold."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from mechclust import Check, CheckReport, ClustersResult, MossaResult, TopicsConfig, TopicsModel, TopicsResult
from mechclust.commands.clusters.measurements import ModelCurves
from mechclust.evidence import Bound, Finding, Findings, mean_part
from mechclust.mossa import TaskCurves
from mechclust.mossa.layer_groups import LayerGroups, LayerGroupsInterval
from mechclust.report import Analysis, Panel
from probes import IndexSet, ProbeResult, RowStore, rows_from, save_rows
from tasks import Batch, Corpus, CorpusStream, EncodedCorpus, LabelledPrompts, Task, TopicModel
from tasks.text.instructions import Example, InstructionTask, TaskCollection
from tests.mechclust.commands.compare.cases import found

DOORS = (
    "tasks",
    "tasks.text.instructions",
    "probes",
    "mechclust",
    "mechclust.attention",
    "mechclust.mossa",
    "mechclust.report",
)
SETTINGS = ("Config", "Ray", "Preprocess")  # and tasks, whose repr says how to make them again
RECORDS = {
    "Bound",
    "EarlierVerdict",
    "Example",
    "LayerGroups",
    "Reading",
    "RegisteredProbe",
    "Severity",
}  # a few words each
LONG = 2000
TEXT = "a statement\n" * LONG
NAMES = [f"name {i}" for i in range(LONG)]
SORT = InstructionTask("sort", None, False, [Example(TEXT, TEXT)] * LONG)
TOPICS = TopicModel(NAMES, torch.rand(9, LONG))
ENCODED = EncodedCorpus(NAMES, [np.arange(9)], [np.arange(9)], torch.arange(LONG), 1, 0, 9, 0, np.arange(1))
SITES = {f"blocks.{i}.hook_resid_post": i + 1 for i in range(LONG)}
RESULT = ProbeResult(
    "Demo",
    {name: torch.zeros(LONG, 2) for name in NAMES},
    dict.fromkeys(NAMES, ("site", "label")),
    {"site": list(SITES), "label": ["first", "second"]},
    SITES,
    notes=[TEXT],
)


def judged() -> Finding:
    part = mean_part("", [0.5] * LONG, Bound(">=", 0.1))
    return Finding(id="T1", statement=TEXT, source="ours", parts=(part,))


OBJECTS: dict[str, Callable[[], Any]] = {
    "Batch(2000 sequences of 300 tokens, labels: ['task'], positions: ['input'])": lambda: Batch(
        torch.zeros(LONG, 300, dtype=torch.long),
        labels={"task": torch.arange(LONG)},
        positions={"input": torch.arange(LONG)},
    ),
    "Corpus(2000 documents from 1 files)": lambda: Corpus(NAMES, ["a.txt"] * LONG),
    "EncodedCorpus(1 documents in 1 windows, 2000 words)": lambda: ENCODED,
    "LabelledPrompts(2000 prompts, labels: 2000 task)": lambda: LabelledPrompts(NAMES, {"task": NAMES}),
    "TopicModel(9 topics of 2000 words)": lambda: TOPICS,
    "InstructionTask('sort', 2000 train, 0 validation and 0 test examples)": lambda: SORT,
    "TaskCollection(1 tasks, 0 clusters, from 'the tasks')": lambda: TaskCollection([SORT]),
    "ForeignRows(2000 examples at 1 sites, model 'unknown')": lambda: rows_from({"hook_embed": torch.rand(LONG, 2)}),
    "IndexSet(0 examples)": IndexSet,
    "ProbeResult(Demo: name 0, name 1, name 2, name 3 and 1996 more by 2000 site, 2 label; print() shows them)": (
        lambda: RESULT
    ),
    "Check('finite values': ok)": lambda: Check("finite values", True, TEXT),
    "CheckReport(tiny: 0 passed, 2000 failed, 0 not tried; print() lists the checks)": lambda: CheckReport(
        "tiny", [Check("finite values", False, TEXT)] * LONG
    ),
    "ClustersResult(tiny, 2000 layers, labels: ['first', 'second'])": lambda: ClustersResult(
        "tiny", None, ModelCurves(RESULT), [], None
    ),
    "CompareResult(tuned against base, 2 layers, 2 tasks)": lambda: found(*np.zeros((3, 2, 2))),
    "MossaResult(tiny, 12 layers, 2000 tasks)": lambda: MossaResult(
        "tiny", None, NAMES, NAMES, [], [], {}, {}, {}, {}, {}, 12, 64, []
    ),
    "TopicsModel(Linear)": lambda: TopicsModel(torch.nn.Linear(2, 2)),
    "TopicsResult(2000 models, 3 thresholds)": lambda: TopicsResult(
        TopicsConfig((Path("corpus"),)), [], None, dict.fromkeys(NAMES), {}, {}
    ),
    "Analysis(1 findings, 1 panels, 1 notes)": lambda: Analysis([judged()], [Panel("map", Figure(), TEXT)], {}, [TEXT]),
    "Findings(2 findings: 2 'holds'; print() shows them)": lambda: Findings([judged()] * 2),
    "Findings(0 findings; print() shows them)": Findings,
    "LayerGroupsInterval(shared 1-9, no transition, refinement 10-32; 1000 draws)": lambda: LayerGroupsInterval(
        LayerGroups(range(1, 10), range(10, 10), range(10, 33)), (8, 9), None, 1.0, 1000, (TEXT,)
    ),
    "TaskCurves(2000 tasks, 2 layers)": lambda: TaskCurves(
        tuple(NAMES), ("1", "2"), *np.zeros((4, LONG, 2)), np.zeros(LONG, dtype=bool), tuple(NAMES)
    ),
}


@pytest.mark.parametrize("expected", OBJECTS)
def test_a_repr_says_what_it_is_and_how_large(expected: str) -> None:
    assert repr(OBJECTS[expected]()) == expected
    assert len(expected) < 200


def test_long_texts_are_cut() -> None:
    for each in (judged(), *judged().parts, Panel("map", Figure(), TEXT)):
        assert repr(each).startswith(type(each).__name__ + "(")
        assert "\n" not in repr(each)
        assert len(repr(each)) < 200


def test_of_files(tmp_path: Path, model: Any, batch: Batch) -> None:
    save_rows(model, batch, tmp_path / "rows")
    assert repr(RowStore(tmp_path / "rows")) == f"RowStore({str(tmp_path / 'rows')!r}, 12 examples at 3 sites)"
    (tmp_path / "a.txt").write_text("Cats chase cats.")
    assert repr(CorpusStream([tmp_path / "a.txt"])) == "CorpusStream(1 files, split='paragraph')"


def test_tables_are_printed() -> None:
    assert "measured (95%)" in str(Findings([judged()]))
    assert str(CheckReport("tiny", [Check("finite values", True, "10 weights")])).endswith("10 weights")


@pytest.mark.parametrize("door", DOORS)
def test_no_other_public_class_shows_all_that_it_holds(door: str) -> None:
    module = importlib.import_module(door)
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) and inspect.isfunction(value.__repr__):
            generated = inspect.unwrap(value.__repr__).__code__.co_filename == "<string>"  # by dataclass
            settings = name.endswith(SETTINGS) or issubclass(value, Task)
            assert not generated or settings or name in RECORDS, f"{name} has the repr of a dataclass; give it one line"
