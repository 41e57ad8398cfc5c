"""Every example runs, in a process of its own; notebooks top to bottom, with their outputs checked."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_script(script, tmp_path):
    done = subprocess.run([sys.executable, script], cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.name)
def test_notebook(path, monkeypatch):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "store notebooks without outputs"
    nbclient.NotebookClient(notebook, timeout=280, kernel_name="python3").execute()
    html = [
        output["data"]["text/html"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "text/html" in output.get("data", {})
    ]
    views = [h for h in html if "CircuitsVis" in "".join(h)]
    assert len(views) == 1
    assert "unpkg.com" not in "".join(views[0])  # drawn from the package, not from the network


def test_prompts_do_not_give_the_task_away():
    from tasks import LabelledPrompts

    prompts = LabelledPrompts.from_jsonl(EXAMPLES / "prompts" / "instructions.jsonl")
    tasks, inputs = prompts.labels["task"], prompts.labels["input"]
    assert len(set(tasks)) >= 8
    assert all(tasks.count(name) >= 25 for name in set(tasks))
    pairs = set(zip(tasks, inputs, strict=True))
    assert len(pairs) == len(prompts) == len(set(tasks)) * len(set(inputs))  # every input in every task
    endings = {}
    for prompt, task in zip(prompts.prompts, tasks, strict=True):
        endings.setdefault(prompt.strip()[-1], set()).add(task)
    assert all(len(found) == len(set(tasks)) for found in endings.values())
