"""Pictures: every page of a probe or a command has one, and pages, files and the script that draws them agree."""

import base64
import io
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from matplotlib import colormaps
from PIL import Image

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
COMMANDS = [DOCS / name for name in ("sandbox.md", "notebooks.md")]
PAGES = [
    ROOT / "README.md",
    DOCS / "index.md",
    *sorted((DOCS / "probes").glob("*.md")),
    *sorted((DOCS / "commands").glob("*.md")),
    *COMMANDS,
]
FILES = sorted((DOCS / "assets" / "pictures").glob("*.png"))
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)\n\n\*(.+?)\*\n(?:\n|$)", re.DOTALL)


@pytest.fixture(scope="module")
def registry():
    import docs.pictures.all_pictures  # noqa: F401
    from docs.pictures import registry

    return registry


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_page_has_a_picture_with_words_and_caption(page):
    found = IMAGE.findall(page.read_text(encoding="utf-8"))
    assert found
    for words, place, caption in found:
        assert len(words) > 30
        file = (page.parent / place).resolve()
        if file.is_relative_to(DOCS / "results"):
            file = ROOT / "examples" / file.relative_to(DOCS)
        assert file.exists()
        flat = " ".join(caption.split())
        assert re.search(r"chance", flat, re.IGNORECASE), f"{page.name}: the caption says nothing of chance"
        assert re.search(r"\d", flat), f"{page.name}: the caption has no n"


def test_pages_files_and_script_agree(registry):
    shown = {
        Path(place).stem
        for path in [ROOT / "README.md", *DOCS.rglob("*.md")]
        for _, place in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", path.read_text(encoding="utf-8"))
        if Path(place).parent.name == "pictures"
    }
    assert {file.stem for file in FILES} == set(registry.PICTURES) == shown


def test_pictures_are_small(registry):
    sizes = {file.name: file.stat().st_size for file in FILES}
    assert [name for name, size in sizes.items() if size > registry.MOST] == []
    assert sum(sizes.values()) < 1_500_000


def test_stored_pictures_keep_rare_colours():
    """Of a heat map near 0 with a diagonal of 1: the diagonal stays red."""
    similarity = np.random.default_rng(0).normal(scale=0.15, size=(300, 300)).clip(-1, 1)
    np.fill_diagonal(similarity, 1)
    drawn = Image.fromarray(colormaps["RdBu_r"]((similarity + 1) / 2, bytes=True)[:, :, :3])
    held = io.BytesIO()
    drawn.save(held, "png")
    stored = runpy.run_path(str(DOCS / "notebooks.py"))["small"](base64.b64encode(held.getvalue()).decode())
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(stored))).convert("RGB")).astype(int)
    assert abs(shown - np.asarray(drawn).astype(int)).max() < 20
