"""The report of a comparison."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

from mechclust.commands.compare import CompareResult
from probes import load_result
from tests.mechclust.commands.compare.cases import found
from tests.mechclust.commands.hook_columns import check_report


@pytest.fixture(scope="session")
def written(measured, tmp_path_factory):
    return measured, measured.write(tmp_path_factory.mktemp("report"))


class TestReport:
    def test_files(self, written):
        folder = written[1].parent
        files = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
        assert files == {
            ".mechclust.lock", "mechclust.json", "report.html", "compare.csv", "tasks.csv", "layers.csv",
            "results/without_top_pc.safetensors", "results/blocks.safetensors",
            "results/patching.safetensors",
            *(f"figures/{name}.png" for name in ("changed_and_restored", "cka_by_layer", "change_by_task_and_layer")),
            "results/cka.safetensors",
        }  # fmt: skip

    def test_csv_and_results_are_what_was_measured(self, written):
        result, report = written
        with (report.parent / "compare.csv").open() as file:
            rows = list(csv.DictReader(file))
        found = [float(row["debiased_cka"] or "nan") for row in rows]
        assert found == pytest.approx(result.to_dataframe()["debiased_cka"].tolist(), nan_ok=True)
        loaded = load_result(report.parent / "results" / "cka.safetensors")
        assert loaded.coords == result.cka.coords
        assert torch.equal(loaded["debiased_cka_low"].nan_to_num(9), result.cka["debiased_cka_low"].nan_to_num(9))

    def test_every_layer_has_its_hook(self, written):
        result, report = written
        check_report(report, result.shown_table, *result.tables.values())
        assert "Layer 0 is hook_embed, and layer l is blocks.{l - 1}.hook_resid_post." in report.read_text()

    def test_page(self, written):
        result, report = written
        page = report.read_text()
        assert page.count("data:image/png;base64,") == 3
        assert "The rule: a layer changed for a task if the 95% interval" in page
        assert "it does not see a rotation, a common scale or a shift" in page
        assert "min_per_task" in page
        assert "http" not in page.replace("http-equiv", "")
        for sentence in result.sentences:
            assert sentence.split(",")[0].split(":")[0] in page
        for reading in result.readings:
            assert reading.value in page

    def test_every_table_is_computed_once(self, measured, tmp_path, monkeypatch, undrawn):
        computed = []
        for name in ("to_dataframe", "summary", "by_layer"):
            method = getattr(CompareResult, name)
            counting = lambda self, name=name, method=method: computed.append(name) or method(self)  # noqa: E731
            monkeypatch.setattr(CompareResult, name, counting)
        result = replace(measured)
        result.write(tmp_path)
        assert result.sentences[0] in result._repr_html_()
        assert sorted(computed) == ["by_layer", "summary", "to_dataframe"]

    def test_many_tasks_and_hostile_names(self, measured, tmp_path):
        hostile = "<img src=x onerror=alert(1)>"
        tasks = [hostile, *(f"task {k}" for k in range(11))]
        places = [0, *(1 + k % 3 for k in range(12))]

        def again(found, labels, places):
            """The labels' values once more, under other names."""
            axes = found.axes
            values = {m: x[..., places] if "label" in axes[m] else x for m, x in found.values.items()}
            return replace(found, values=values, coords={**found.coords, "label": labels})

        of_all = (measured.cka, measured.blocks, measured.patching)
        cka, blocks, patching = (again(x, ["(all)", *tasks], places) for x in of_all)
        less = again(measured.without_top_pc, tasks, [k % 3 for k in range(12)])
        result = replace(
            measured,
            tasks=tasks,
            tuned=hostile,
            cka=cka,
            blocks=blocks,
            patching=patching,
            without_top_pc=less,
        )
        page = result.write(tmp_path).read_text()
        assert hostile not in page
        assert "&lt;img src=x" in page


def test_chance_is_named_if_it_was_measured():
    """``--n-permutations 0`` leaves it out."""
    some = found([[0.1, 0.2]], [[0.05, 0.1]], [[0.2, 0.3]])
    name = "debiased_cka_null_high"
    values = {**some.cka.values, name: some.cka["cka"] * 0}
    with_chance = replace(some.cka, values=values, axes={**some.cka.axes, name: ("site", "label")})
    none = replace(some, config=replace(some.config, n_permutations=0))
    for result, is_named in ((replace(some, cka=with_chance), True), (none, False)):
        assert ("chance: 97.5% of CKA" in " ".join(result.caveats)) is is_named
        (panel,) = (panel for panel in result.panels() if panel.name == "cka_by_layer")
        assert ("Hatched" in panel.caption) is is_named


def test_a_layer_without_neighbours_has_its_interval_and_chance():
    """Layer 0 has no CKA where all prompts end alike; of a model of one block, layer 1 is then all there is."""
    nan = np.nan
    some = found([[nan], [0.4]], [[nan], [0.3]], [[nan], [0.5]], together=[[nan] * 3, [0.4, 0.3, 0.5]])
    name = "debiased_cka_null_high"
    values = {**some.cka.values, name: some.cka["cka"] * 0 + 0.2}
    result = replace(some, cka=replace(some.cka, values=values, axes={**some.cka.axes, name: ("site", "label")}))
    (panel,) = (panel for panel in result.panels() if panel.name == "cka_by_layer")
    (axis,) = panel.figure.axes
    areas = [path.get_extents() for each in axis.collections for path in each.get_paths()]
    heights = [(round(area.y0, 3), round(area.y1, 3)) for area in areas if area.width > 0]
    assert heights == [(-0.03, 0.2), (0.5, 0.7)]
    (together,) = (line for line in axis.lines if line.get_label() == "all prompts together")
    assert together.get_marker() == "_"


def test_named_tasks_lie_above_the_others():
    changes = np.linspace(0.9, 0.1, 9)[None].repeat(2, axis=0)
    tasks = list("abcdefghi")
    result = found(changes, changes - 0.01, changes + 0.01, tasks=tasks)
    (panel,) = (panel for panel in result.panels() if panel.name == "cka_by_layer")
    lines = [line for line in panel.figure.axes[0].lines if line.get_marker() == "o"]
    others = [line.get_zorder() for line in lines if line.get_color() == "#bbbbbb"]
    assert len(others) == 2
    assert max(others) < min(line.get_zorder() for line in lines if line.get_color() != "#bbbbbb")


def test_a_cross_shows_in_the_darkest_cell():
    result = found([[0.5, 0.5]], [[0.0, 0.4]], [[0.9, 0.6]])
    (panel,) = (panel for panel in result.panels() if panel.name == "change_by_task_and_layer")
    canvas = FigureCanvasAgg(panel.figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3].astype(int)
    axis = panel.figure.axes[0]
    lightest = {}
    for row, cell in enumerate(axis.get_yticklabels()):
        x, y = axis.transData.transform((0, row)).astype(int)
        lightest[cell.get_text()] = pixels[::-1][y - 5 : y + 6, x - 5 : x + 6].sum(axis=-1).max()
    assert lightest["a"] > 600 > 300 > lightest["b"]
