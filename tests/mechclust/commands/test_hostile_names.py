"""Whole commands with hostile names, prompts and texts: measured, drawn and written, or refused in one sentence."""

from __future__ import annotations

import csv
import json
import unicodedata
from pathlib import Path

import pytest

from mechclust import cli
from mechclust.commands.clusters import ClustersConfig, measure_clusters
from probes import load_result
from tasks import InputError
from tests.faults.hostile import HOSTILE

# Those of which a full comparison is drawn, which takes its time for each.
TASKS = [
    "boxed formula", "bad formula", "29 Chinese characters", "Chinese, too long for a file", "out of the folder",
    "parent", "script", "clears the screen", "newline", "nul", "formula", "long", "temporary of ours",
    "carriage return", "eight-bit escape",
]  # fmt: skip
PATHS = ("empty", "spaces", "format", "dot", "parent", "slashes", "absolute", "home", "glob")
JSON = ("json", "prototype", "not a number", "infinity", "true", "number", "zero", "quotes and commas", "backslashes")
# On a terminal or as a path, or long.
ACTING = [name for name, text in HOSTILE.items() if not text.isprintable() or len(text) > 500 or name in PATHS]
LABELS = ["script", "bad formula", "clears the screen", "long", "formula"]


def write_prompts(path, tasks, *labels):
    rows = [
        {"prompt": f"w{i % 4} w{4 + i // 4} w{10 + k % 8}", "task": task} | dict.fromkeys(labels, f"v{i % 2}")
        for k, task in enumerate(tasks)
        for i in range(8)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def harmless(text):
    return not [c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")]


@pytest.fixture(scope="module")
def other(write_checkpoint, tmp_path_factory):
    def change(model):
        for weight in model.transformer.h[0].parameters():
            weight += 0.3

    return write_checkpoint(tmp_path_factory.mktemp("other"), change=change, n_layer=1)


class TestCompare:
    def test_everything_of_hostile_tasks_is_printed_and_written(self, shallow, other, tmp_path, capsys):
        tasks = [HOSTILE[name] for name in TASKS]
        prompts = write_prompts(tmp_path / "prompts.jsonl", tasks)
        out = tmp_path / "runs" / "out"
        before = {path for path in tmp_path.rglob("*") if out not in path.parents}
        argv = ["compare", str(shallow), str(other), "--prompts", str(prompts), "--out", str(out)]
        assert cli.main([*argv, "--min-per-task", "4", "--n-resamples", "20", "--n-permutations", "0"]) == 0
        said = capsys.readouterr().out
        assert harmless(said)
        assert "\\x1b[2J" in said
        assert all(len(line) < 2_000 for line in said.splitlines())
        page = (out / "report.html").read_bytes().decode()
        assert {path for path in tmp_path.rglob("*") if out not in path.parents} - before <= {out, out.parent}
        assert "<script>window.hacked" not in page
        assert "\x1b" not in page
        figures = {path.name for path in (out / "figures").iterdir()}
        assert {"cka_by_layer.png", "change_by_task_and_layer.png"} <= figures
        assert set(load_result(out / "results" / "cka.safetensors").coords["label"]) == {"(all)", *tasks}
        with (out / "tasks.csv").open(newline="") as file:
            cells = [row["task"] for row in csv.DictReader(file)]
        assert len(cells) == len(tasks)
        assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@"))]


class TestClusters:
    def test_hostile_labels(self, shallow, tmp_path, capsys):
        labels = [HOSTILE[name] for name in LABELS]
        tasks = [HOSTILE[name] for name in ("boxed formula", "right to left", "image with a handler")]
        prompts = write_prompts(tmp_path / "prompts.jsonl", tasks, *labels, "cluster")
        argv = ["clusters", str(shallow), "--prompts", str(prompts), "--out", str(tmp_path / "out")]
        argv += ["--also", *labels, "--n-init", "1", "--n-permutations", "5", "--n-resamples", "20", "--untrained", "0"]
        argv += ["--n-shuffles", "5"]
        assert cli.main(argv) == 0, capsys.readouterr().err
        said = capsys.readouterr().out
        assert harmless(said)
        assert max(map(len, said.splitlines())) < 2_000
        page = (tmp_path / "out" / "report.html").read_bytes().decode()
        assert "<script>window.hacked" not in page
        assert "<img src=x" not in page
        assert "cluster (label)" in page  # the map has a colouring of that name
        assert (tmp_path / "out" / "figures" / "curves_by_layer.png").stat().st_size > 10_000


class TestRefused:
    """On the command line, in one sentence that does nothing to the terminal."""

    @pytest.fixture
    def refused(self, shallow, capsys):
        def run(*argv, prompts=None):
            """Run a command line or, which takes less time, ``clusters`` on prompts, whose error it prints."""
            if prompts is None:
                assert cli.main(list(argv)) == 2
            else:
                with pytest.raises(InputError) as error:
                    measure_clusters(str(shallow), ClustersConfig(prompts))
                assert cli._bad_input(str(error.value)) == 2
            said = capsys.readouterr().err
            assert said.startswith("mechclust: ")
            assert said.count("\n") == 1
            assert harmless(said)
            assert len(said) < 2_500
            return said

        return run

    @pytest.mark.parametrize("name", [name for name in ACTING if "\x00" not in HOSTILE[name]])
    def test_a_hostile_model_file_and_command(self, name, refused, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        text = HOSTILE[name]
        refused("check", text)
        refused(prompts=Path(text))
        refused("report", text)
        refused("sandbox", text)
        if text:
            refused(text)

    @pytest.mark.parametrize("name", [*ACTING, *JSON])
    def test_prompts_that_are_no_prompts(self, name, refused, tmp_path):
        path = tmp_path / "prompts.jsonl"
        text = HOSTILE[name].encode(errors="surrogatepass")
        for line in (text, b'{"prompt": "a", "task": ' + text + b"}", b'{"prompt": "a", "task": {"' + text + b'": 1}}'):
            path.write_bytes(line + b"\n")
            assert "prompts.jsonl" in refused(prompts=path)

    def test_prompts_on_the_command_line(self, refused, tmp_path, shallow):
        path = tmp_path / HOSTILE["clears the screen"]
        path.write_text(HOSTILE["nul"])
        assert "\\x1b[2J" in refused("clusters", str(shallow), "--prompts", str(path))


@pytest.mark.slow
@pytest.mark.browser
def test_reports_of_hostile_names_in_a_browser(shallow, other, tmp_path, trouble_of, open_page):
    """With the maps of prompts and the folded tables, and no rule of the page's policy broken."""
    names = ("script", "end of a script", "image with a handler", "right to left", "jinja", "nul", "newline")
    tasks, label = [HOSTILE[name] for name in names], HOSTILE["out of an attribute"]
    prompts = write_prompts(tmp_path / "prompts.jsonl", tasks, label)
    few = ["--prompts", str(prompts), "--n-permutations", "5"]
    argv = ["clusters", str(shallow), *few, "--untrained", "0", "--n-shuffles", "5"]
    argv += ["--out", str(tmp_path / "clusters")]
    assert cli.main(argv) == 0
    argv = ["compare", str(shallow), str(other), *few, "--min-per-task", "4", "--n-resamples", "20"]
    assert cli.main([*argv, "--out", str(tmp_path / "compare")]) == 0
    for command in ("clusters", "compare"):
        assert trouble_of(tmp_path / command / "report.html") == []
    page = open_page(tmp_path / "clusters" / "report.html")
    assert page.locator("canvas.points").count() == 1
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 2
