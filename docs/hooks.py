"""What the site is built with beside mkdocs: files from elsewhere in the repository, formulas as MathML.

mkdocs calls these functions by their names.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

_ROOT = Path(__file__).parents[1]
_RESULTS = _ROOT / "examples" / "results"
_OUTPUT = re.compile(r"<div data-output=\"(\d+)\"></div>")
_outputs: dict[str, list[str]] = {}  # of the notebook that becomes this page
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
_LOADED = re.compile(r'<(?:script|img|iframe|source)[^>]*\ssrc="(?:https?:)?//|<link[^>]*\shref="(?:https?:)?//')


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Adds what stands elsewhere in the repository: figures of runs as ``results/RUN/figures/x.png``, two pages."""
    for path in sorted([*_RESULTS.rglob("*.png"), *_RESULTS.rglob("*.pdf")]):
        place = f"results/{path.relative_to(_RESULTS).as_posix()}"
        files.append(File.generated(config, place, abs_src_path=str(path)))
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        text = (_ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name.lower(), content=text))
    for path in sorted((_ROOT / "examples").glob("*.ipynb")):
        page = f"examples/{path.stem}.md"
        text, _outputs[page] = notebook_page(json.loads(path.read_text(encoding="utf-8")))
        files.append(File.generated(config, page, content=text))
    return files


def notebook_page(notebook: dict[str, Any]) -> tuple[str, list[str]]:
    """A notebook as Markdown with places for its outputs, and these as HTML."""
    parts: list[str] = []
    outputs: list[str] = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            parts.append(f'<div data-output="{len(outputs)}"></div>')
            outputs.append(_output(output))
    return "\n\n".join(parts) + "\n", outputs


def _output(output: dict[str, Any]) -> str:
    data = {
        kind: "".join(value) for kind, value in output.get("data", {}).items() if kind.startswith(("text", "image"))
    }
    if "text/html" in data:
        return f'<div class="notebook-output">{data["text/html"]}</div>'
    if "image/png" in data:
        picture = "".join(data["image/png"].split())
        return f'<img class="notebook-output" alt="Output of the cell above" src="data:image/png;base64,{picture}">'
    text = "".join(output.get("text", "")) or data.get("text/plain", "")
    return f"<pre><code>{html.escape(text)}</code></pre>"


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """Formulas are MathML, which browsers draw by themselves."""

    def formula(found: re.Match[str]) -> str:
        display = "block" if found[1] == "div" else "inline"
        try:
            mathml = str(convert(html.unescape(found[2]), display=display))
        except Exception as error:  # whatever the converter raises for LaTeX that it does not know
            raise PluginError(f"{page.file.src_uri}: cannot read the formula {found[2]!r} ({error})") from error
        if "\\" in mathml:  # a command that it does not know is left as text
            raise PluginError(f"{page.file.src_uri}: the formula {found[2]!r} has a command without MathML")
        return mathml

    outputs = _outputs.get(page.file.src_uri, [])
    return _OUTPUT.sub(lambda found: outputs[int(found[1])], _FORMULA.sub(formula, content))


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """A page that would load something from a network is refused."""
    if found := _LOADED.search(output):
        start = found.start()
        raise PluginError(f"{page.file.src_uri} loads from a network: {output[start : start + 120]!r}")
    return output
