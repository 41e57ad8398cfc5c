"""The report: its files and its page."""

from __future__ import annotations

import csv
import html
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.collections import LineCollection

from mechclust.commands.clusters.figures import curves_figure, followed_figure
from probes import load_result
from tests.mechclust.commands.hook_columns import check_report
from tests.mechclust.commands.refusals import refusal


@pytest.fixture(scope="module")
def written(measured, tmp_path_factory):
    """Result and page; read only."""
    return measured[0], measured[0].write(tmp_path_factory.mktemp("clusters") / "deep" / "out")


class TestReport:
    def test_files(self, written):
        report = written[1]
        files = sorted(str(p.relative_to(report.parent)) for p in report.parent.rglob("*") if p.is_file())
        assert files == [
            ".mechclust.lock",
            "clusters.csv",
            "features.csv",
            "figures/curves_by_layer.png",
            "figures/what_clusters_follow.png",
            "mechclust.json",
            "report.html",
            *(
                f"results/{model}/{measure}.safetensors"
                for model in ("trained", "untrained-seed0", "untrained-seed1")
                for measure in ("clusters", "given", "linear")
            ),
        ]

    def test_csv_is_the_table(self, written):
        result, report = written
        with (report.parent / "clusters.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert list(rows[0]) == [
            "layer", "site", "label", "n_clusters", "ari", "ari_low", "ari_high", "null_low", "null_high", "p_value",
            "ami", "silhouette", "label_silhouette", "untrained", "untrained_high",
            "given_ari", "given_ari_low", "given_ari_high", "given_null_low", "given_null_high", "given_p",
            "untrained_given", "untrained_given_high",
            "accuracy", "accuracy_low", "accuracy_high", "linear_null_low", "linear_null_high", "linear_p",
            "untrained_accuracy", "untrained_accuracy_high", "given", "linear_p_corrected",
        ]  # fmt: skip
        assert [float(row["ari"]) for row in rows] == pytest.approx(result.to_dataframe()["ari"].tolist())
        assert [row["label"] for row in rows] == 3 * ["task"] + 3 * ["first"]
        with (report.parent / "features.csv").open() as file:
            features = list(csv.DictReader(file))
        surface = {"last word", "last token", "first word", "first token"}
        assert {row["name"] for row in features} == {"task", "first", *surface}
        assert {row["kind"] for row in features} == {"label", "feature"}

    def test_values_stand_with_their_intervals(self, written):
        """In one cell of the table, in readings, and as bars of the figure."""
        result, _ = written
        row = result.to_dataframe().iloc[2]
        assert -1 < row["ari_low"] < row["ari"] <= row["ari_high"] <= 1
        cell = f"{row['ari']:.3f} ({row['ari_low']:.3f} to {row['ari_high']:.3f})"
        assert result.shown_table["ari"].iloc[2] == cell
        by_task = next(reading for reading in result.readings if reading.what == "Clusters by task")
        judged = result.judged["task"].clusters
        assert by_task.value.endswith(f"({judged.interval[0]:.3f} to {judged.interval[1]:.3f})")
        ends = result.of_label("task")[["ari_low", "ari_high"]].to_numpy()
        bars = curves_figure(result).axes[0].collections
        segments = [bar.get_segments() for bar in bars if isinstance(bar, LineCollection)]
        assert any(np.allclose(np.array(drawn)[:, :, 1], ends) for drawn in segments)

    def test_every_layer_has_its_hook(self, written):
        result, report = written
        check_report(report, result.shown_table)

    def test_results_are_what_was_measured(self, written):
        result, report = written
        loaded = load_result(report.parent / "results/trained/clusters.safetensors")
        assert torch.equal(loaded["ari"], result.trained.raw["ari"])
        assert loaded.metadata["n"] == 27
        untrained = load_result(report.parent / "results/untrained-seed1/linear.safetensors")
        assert torch.equal(untrained["accuracy"], result.untrained[1].linear["accuracy"])

    def test_report_shows_figure_table_and_settings(self, written):
        result, report = written
        page = report.read_text()
        assert page.count("data:image/png;base64,") == 2
        assert "What the hidden states of" in page
        assert "27 prompts, hidden state at the last prompt token" in page
        assert "untrained" in page
        assert "n_permutations" in page
        assert "http" not in page.replace("http-equiv", "")
        said = html.unescape(page)
        assert all(note in said for note in result.caveats)
        for reading in result.readings:
            assert all(text in said for text in vars(reading).values())
        order = [
            result.headline,
            "<img",
            result.readings[0].verdict,
            "The prompts at each layer",
            "<details",
            "How it was made",
            result.caveats[0],
        ]
        assert [said.index(part) for part in order] == sorted(said.index(part) for part in order)
        assert result.sentences[0] == result.headline
        assert len(result.headline.split()) <= 25
        assert "-0.000" not in page

    def test_the_figure_shows_every_value(self, written):
        """Also an index below the chance interval; each curve with its own band and its random-weight twin."""
        result = written[0]
        raw = result.trained.raw
        low = replace(raw, values={**raw.values, "ari": torch.full_like(raw["ari"], -0.4)})
        figure = curves_figure(replace(result, trained=replace(result.trained, raw=low)))
        index, _, accuracy, _ = figure.axes
        assert index.get_ylim()[0] < -0.4
        table = result.to_dataframe()
        first = table[table["label"] == "task"]
        for axis, columns in (
            (index, ["untrained", "given_ari", "untrained_given"]),
            (accuracy, ["accuracy", "untrained_accuracy"]),
        ):
            drawn = [line.get_ydata().tolist() for line in axis.lines]
            assert [first[column].tolist() in drawn for column in columns] == [True] * len(columns)
            assert len(axis.collections) >= 1
        assert index.lines[0].get_ydata().tolist() == pytest.approx([-0.4] * 3)
        names = [text.get_text() for text in figure.legends[0].get_texts()]
        assert names == [
            "clusters",
            "clusters given the prompts' first word",
            "linear classifier",
            "random weights, mean to highest",
            "chance (95%)",
        ]
        assert [axis.get_legend() for axis in figure.axes] == [None] * 4

    def test_one_verdict_in_report_summary_figures_and_notebook(self, written, alone):
        """At layer 0 the last word tells the task, with random weights too."""
        result, report = written
        verdict = str(result.verdicts["task"]["clusters"])
        assert verdict == "no more than random weights"
        figures = (curves_figure(result), followed_figure(result))
        shown = [axis.get_title() for figure in figures for axis in figure.axes]
        assert sum(verdict in title for title in shown) >= 2
        assert "agree with the task" in result.headline
        for text in (result.headline, html.unescape(report.read_text()), html.unescape(result._repr_html_())):
            assert "no more than random weights do" in text
            assert "follow the task" not in text
        assert "not compared with random weights" in alone[0].headline
        assert "above chance, not compared with random weights" in curves_figure(alone[0]).axes[0].get_title()

    def test_a_band_without_width_is_a_line(self, written):
        result = written[0]
        raw = result.trained.raw
        flat = {name: torch.zeros_like(raw[name]) for name in ("null_low", "null_high")}
        thin = replace(result.trained, raw=replace(raw, values={**raw.values, **flat}))
        band = curves_figure(replace(result, trained=thin)).axes[0].collections[0]
        assert band.get_linewidth()[0] > 0
        assert curves_figure(result).axes[0].collections[0].get_linewidth()[0] == 0

    def test_what_is_followed_is_drawn_in_order(self, written):
        result = written[0]
        (axis,) = followed_figure(result).axes
        names = [line.get_label().rsplit(" (", 1)[0] for line in axis.lines if "(" in line.get_label()]
        assert names == list(result.followed.means)
        assert len({line.get_color() for line in axis.lines if "(" in line.get_label()}) == len(names)

    def test_a_folder_that_cannot_be_written(self, written, tmp_path):
        (tmp_path / "file").write_text("")
        out = tmp_path / "file" / "out"
        assert refusal(written[0].write, out) == (
            f"cannot write to {str(out)!r} (Not a directory); choose another folder with --out"
        )
