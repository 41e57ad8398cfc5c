"""Every example runs as a user would run it: in a process and an empty folder of its own, from installed packages."""

import base64
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import matplotlib.image
import nbclient
import nbformat
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SETTINGS = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

# What each script must print; where the pattern names them, the number "low" lies below the number "high".
PRINTS = {
    "clustering_heads.py": r"^L1H\d +(?P<low>[\d.]+) \((?P<high>[\d.]+)\)",  # trained (untrained)
    "compare_models.py": r"^classify-0 +(?P<low>[\d.]+) > (?P<high>[\d.]+) ",  # accuracy before > after
    "head_roles.py": r"^L1H\d attends .*: (?P<low>[\d.]+) before training, (?P<high>[\d.]+) after$",
    "many_gpus.py": r"(?s)(the same as from one process: True.*){2}",
    "merge_jobs.py": r"with different examples: .*to the whole: True\n.*with different layers: .*to the whole: True$",
    "new_probe.py": r"^Anisotropy satisfies the contract(.|\n)*^ +3 blocks.2.hook_resid_post +[\d.]+ +[\d.]+$",
    "submitit_seeds.py": r"^findings of each seed: \[[1-9]\d*, [1-9]\d*\]$",
    "task_clusters.py": r"^ +4 +(?P<low>[\d.-]+) +(?P<high>[\d.]+) +-[\d.]+ to [\d.]+ ",  # untrained, trained
    "topic_structure.py": r"across topics: (?P<high>[\d.]+) \(by chance up to (?P<low>[\d.]+)\)$",
    "watch_training.py": r"^150 +(?P<low>[\d.]+) .* (?P<high>[\d.]+)$",  # layer 0, layer 3
}


class Shows(NamedTuple):
    """What a notebook must show: at least so many tables and images, words in its attention view, a printed line."""

    tables: int
    images: int
    in_view: tuple[str, ...]
    prints: str


SHOWS = {
    "clustering_heads": Shows(3, 3, ("support",), r"^accuracy [\d.]+$"),
    "head_roles": Shows(1, 1, ("induction",), r"^L1H\d: induction [\d.]+ before training, [\d.]+ after$"),
    "mossa": Shows(3, 2, ("base", "tuned", "answer"), r"^(no shared|shared 1(-\d)?,).*refinement"),
    "quick_start": Shows(1, 2, ("opposite", "hot"), r"^median rank .*, 1.0\]$(.|\n)*^\[\[0, 3\], .*\[3, 4\]\]$"),
    "task_clusters": Shows(3, 2, ("instruction", "input", "output"), r"^task 0: .* x\d y0\.\d$"),
    "topic_structure": Shows(3, 2, ("before", "after", "topic 2"), r"^after +[\d.]+ +\(by chance [\d.]+ to [\d.]+\)$"),
}


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_script(script, tmp_path):
    assert len(script.read_text(encoding="utf-8").splitlines()) < 60
    env = {**os.environ, **SETTINGS, "MPLBACKEND": "Agg"}
    done = subprocess.run([sys.executable, script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-2000:]
    found = re.search(PRINTS[script.name], done.stdout, re.MULTILINE)
    assert found, done.stdout
    if numbers := found.groupdict():
        assert float(numbers["low"]) < float(numbers["high"]), done.stdout
    assert "Warning" not in done.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {"runs"}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.name)
def test_notebook_is_stored_with_its_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    assert len([output for output in outputs if "text/html" in output.get("data", {})]) >= SHOWS[path.stem].tables + 1
    assert not re.search(r"/(root|home|tmp|work|Users)/|[A-Z]:\\\\|site-packages|\d+ ?it/s", json.dumps(outputs))
    assert path.stat().st_size < 300_000
    assert [cell.id for cell in notebook.cells] == [f"cell-{i}" for i in range(len(notebook.cells))]
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert notebook.metadata.kernelspec.name == "python3"
    assert all(set(cell.metadata) == set() for cell in code)


@pytest.mark.parametrize("name", ["clustering_heads", "mossa", "task_clusters", "topic_structure"])
def test_the_stored_findings_are_the_recorded_ones(name):
    from mechclust import load_findings

    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    outputs = [output.data for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    (stored,) = [data["text/html"] for data in outputs if data["text/plain"].startswith("Findings(")]
    recorded = load_findings(EXAMPLES / "results" / f"{name.replace('_', '-')}-paper")
    assert stored == recorded._repr_html_(), f"run: make notebooks (or python -P docs/notebooks.py {name})"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.name)
def test_the_install_cell(path, tmp_path, monkeypatch):
    cell = next(cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code")
    called = []
    monkeypatch.setattr(subprocess, "check_call", called.append)
    monkeypatch.chdir(tmp_path)
    exec(cell.source, {})
    assert called == []  # mechclust is installed
    assert cell.outputs == []
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    exec(cell.source, {})
    (tmp_path / "mechclust-0.2.0-py3-none-any.whl").touch()
    exec(cell.source, {})
    install = [sys.executable, "-m", "pip", "install", "--quiet"]
    assert called == [[*install, "mechclust"], [*install, "mechclust-0.2.0-py3-none-any.whl"]]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.name)
def test_notebook(path, tmp_path, monkeypatch):
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MPLBACKEND", raising=False)  # the kernel's own draws inline
    notebook, expected = nbformat.read(path, as_version=4), SHOWS[path.stem]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    (tmp_path / "results").symlink_to(EXAMPLES / "results")
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=1800, kernel_name="python3", resources=place).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]

    streams = [output for output in outputs if output.output_type == "stream"]
    assert not [stream.text for stream in streams if stream.name == "stderr"]
    printed = "".join(stream.text for stream in streams)
    assert re.search(expected.prints, printed, re.MULTILINE), printed

    shown = [output.data for output in outputs if "data" in output]
    assert all("text/plain" in data for data in shown)
    is_view = [data["text/plain"].startswith("AttentionView(") for data in shown]
    views = [data["text/html"] for data, view in zip(shown, is_view, strict=True) if view]
    html = [data["text/html"] for data, view in zip(shown, is_view, strict=True) if not view and "text/html" in data]
    assert len(views) == 1
    assert all(f'"{word}"' in views[0] for word in expected.in_view)
    assert len(views[0]) < 3_000_000
    for page in (*views, *html):  # drawn from the package, not from the network
        assert not re.search(r"<script[^>]*\ssrc=|<link|<iframe|src=.?https?:|url\(https?:|unpkg\.com|//cdn\.", page)

    assert sum("<table" in page for page in html) >= expected.tables
    images = [data["image/png"] for data in shown if "image/png" in data]
    images += re.findall(r'src="data:image/png;base64,([^"]+)"', "".join(html))
    assert len(images) >= expected.images
    for image in images:
        pixels = matplotlib.image.imread(io.BytesIO(base64.b64decode(image)), format="png")
        assert pixels.std() > 0.05  # something is drawn
    assert {found.name for found in tmp_path.iterdir()} <= {"runs", "results"}


@pytest.mark.parametrize("name", ["tasks", "probes"])
def test_a_file_of_the_users_that_stands_in_the_way(name, tmp_path):
    (tmp_path / f"{name}.py").write_text("raise RuntimeError('it has run')")
    script = tmp_path / "script.py"
    script.write_text("import mechclust")
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    file = str(tmp_path / f"{name}.py")
    assert f"ImportError: {file!r} hides mechclust's package {name!r}; rename it" in done.stderr
    (tmp_path / f"{name}.py").unlink()
    script.write_text("import mechclust, probes, tasks; print('fine')")
    assert subprocess.check_output([sys.executable, script], cwd=tmp_path, text=True) == "fine\n"


def test_every_example_is_expected_to_show_something():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PRINTS)
    assert {path.stem for path in EXAMPLES.glob("*.ipynb")} == set(SHOWS)


def test_prompts_do_not_give_the_task_away():
    from tasks import LabelledPrompts

    prompts = LabelledPrompts.from_file(EXAMPLES / "prompts" / "instructions.jsonl")
    tasks, inputs = prompts.labels["task"], prompts.labels["input"]
    assert len(set(tasks)) >= 8
    assert all(tasks.count(name) >= 25 for name in set(tasks))
    pairs = set(zip(tasks, inputs, strict=True))
    assert len(pairs) == len(prompts) == len(set(tasks)) * len(set(inputs))  # every input in every task
    endings = {}
    for prompt, task in zip(prompts.prompts, tasks, strict=True):
        endings.setdefault(prompt.strip()[-1], set()).add(task)
    assert all(len(found) == len(set(tasks)) for found in endings.values())
