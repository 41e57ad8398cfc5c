"""Files for print: their resolution, fonts and bytes."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from hashlib import sha256

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from mechclust.report.axes import plot_chance_band
from mechclust.report.pictures import pdf_bytes, print_pictures
from mechclust.report.subplots import subplots


def drawn(text: str = "layer") -> Figure:
    figure, (axis,) = subplots(1, size=(3, 2))
    axis.plot([0, 1, 2], [0.1, 0.5, 0.4])
    plot_chance_band(axis, [0, 2], np.zeros(2), np.full(2, 0.1))
    axis.set(xlabel=text, title="$ a cost $")
    return figure


def test_a_png_has_300_dots_per_inch_and_a_pdf_embeds_its_fonts() -> None:
    files = print_pictures(drawn())
    assert sorted(files) == [".pdf", ".png"]
    with Image.open(io.BytesIO(files[".png"])) as image:
        assert image.size == (900, 600)
    assert files[".pdf"].startswith(b"%PDF-")
    assert b"/FontFile2" in files[".pdf"]  # TrueType, which is type 42
    assert b"/Type3" not in files[".pdf"]
    assert b"CreationDate" not in files[".pdf"]


def test_equal_figures_are_equal_files_in_every_process() -> None:
    code = (
        "from hashlib import sha256; from tests.mechclust.report.test_pictures import drawn, pdf_bytes; "
        "print(sha256(pdf_bytes(drawn())).hexdigest())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == sha256(pdf_bytes(drawn())).hexdigest()


def test_a_pdf_takes_any_text_and_no_setting_of_the_user() -> None:
    plain = pdf_bytes(drawn())
    with matplotlib.rc_context({"pdf.fonttype": 3, "savefig.transparent": True, "pdf.compression": 0}):
        assert pdf_bytes(drawn()) == plain
    assert pdf_bytes(drawn("日本 $_$ \u202e <b>")).startswith(b"%PDF-")
