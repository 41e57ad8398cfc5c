"""Keys typed on a view in a real JupyterLab stay with the view: ``x`` and ``d d`` there delete the cell."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import torch

from tests.mechclust.browser import lacks

CELLS = ".jp-Notebook .jp-Cell"


def notebook(folder: Path) -> Path:
    """A notebook that was run: a view in the second of three cells."""
    import nbformat
    from nbformat.sign import NotebookNotary
    from nbformat.v4 import new_code_cell, new_notebook, new_output

    from mechclust.attention.view import attention_view_from_patterns

    patterns = torch.tensor([[[1.0, 0], [0.25, 0.75]], [[1, 0], [0.5, 0.5]]])
    view = attention_view_from_patterns(patterns, ["a", "b"], ["L0H0", "L0H1"], causal=True)
    shown = new_output("execute_result", {"text/html": view._repr_html_(), "text/plain": repr(view)}, execution_count=1)
    cells = [new_code_cell("1"), new_code_cell("view", outputs=[shown], execution_count=1), new_code_cell("2")]
    found = new_notebook(cells=cells)
    found.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    path = folder / "view.ipynb"
    nbformat.write(found, path)
    (folder / "trust").mkdir()
    NotebookNotary(data_dir=str(folder / "trust")).sign(found)  # else its scripts are not run
    return path


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[str]:
    """Address of a notebook in a JupyterLab of its own, without token."""
    if find_spec("jupyterlab") is None:
        lacks("no jupyterlab: pip install 'mechclust[lab]'")
    path = notebook(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "JUPYTER_DATA_DIR": str(tmp_path / "trust"),
        "JUPYTER_CONFIG_DIR": str(tmp_path / "config"),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"),
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--allow-root"]
    command += ["--IdentityProvider.token=", "--ServerApp.password=", f"--ServerApp.root_dir={tmp_path}"]
    server = subprocess.Popen(
        command, env={**os.environ, **settings}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        address = f"http://127.0.0.1:{port}"
        while server.poll() is None:
            try:
                with urlopen(f"{address}/api/status", timeout=60) as answer:
                    assert json.load(answer)
                break
            except (URLError, OSError):
                time.sleep(0.5)
        else:
            pytest.fail(f"JupyterLab ended with exit code {server.returncode}")
        yield f"{address}/lab/tree/{path.name}?reset"
    finally:
        server.terminate()
        server.wait()


@pytest.mark.slow
@pytest.mark.browser
def test_keys_on_a_view_do_not_delete_its_cell(browser: Any, lab: str) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 1400})
    page.goto(lab)
    page.locator(".thumb").nth(1).wait_for()
    cells = page.locator(CELLS)
    page.wait_for_function(f"() => document.querySelectorAll({CELLS!r}).length === 3")  # they are drawn one by one
    for focused in (".thumb", ".chip", ".plot", ".way", ".lift input"):
        page.locator(f".mechclust-attention {focused}").first.click()
        for key in ("x", "d", "d", "a"):
            page.keyboard.press(key)
        page.wait_for_timeout(300)
        assert cells.count() == 3, f"a key on {focused} changed the cells"
    page.locator(".jp-Notebook .jp-InputPrompt").first.click()  # on the cell itself they are JupyterLab's
    page.keyboard.press("x")
    page.wait_for_function(f"() => document.querySelectorAll({CELLS!r}).length === 2")
    page.close()


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_missing_jupyterlab_is_a_failure_in_ci(
    ci: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(f"{__name__}.find_spec", lambda name: None)
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="no jupyterlab: pip install"):
        request.getfixturevalue("lab")
