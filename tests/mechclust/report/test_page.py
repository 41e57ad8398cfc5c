"""The report page: everything in it is escaped, and nothing in it is elsewhere."""

from __future__ import annotations

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from unittest.mock import patch

import matplotlib as mpl
import pandas as pd
import pytest
import torch

from mechclust.evidence import Bound, Control, Finding, mean_part, resampled_part
from mechclust.report import Analysis, Panel, render_report_page, write_report_page
from mechclust.report.pictures import png_bytes
from probes import ProbeResult, load_result
from tasks import InputError

HOSTILE = "</script></pre></title>\"'><script>alert(1)</script><img src=x onerror=alert(2)>"


def figure(width=2, height=1):
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(width, height))
    drawn.subplots().plot([0, 1])
    return drawn


def a_finding(**fields):
    part = resampled_part("", [0.8765], (0.8, 0.95), Bound(">=", 0.5))
    about = {"id": "T1", "statement": "states cluster", "source": "paper", "paper": 0.9, "parts": (part,)}
    return Finding(**{**about, **fields})


HOSTILE_PARTS = (mean_part(HOSTILE, [0.1, 0.2], Bound(">", 0)),)


def page_of(**fields):
    return render_report_page(
        **{
            "title": "Title",
            "source": "Source",
            "analysis": Analysis(findings=[a_finding()]),
            "facts": {},
            "config": {},
            **fields,
        }
    )


class Tags(HTMLParser):
    """Every tag with its attributes, and the text outside tags."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)


def shown(page):
    return " ".join("".join(Tags(page).text).split())


class TestEscaping:
    @pytest.mark.parametrize(
        "fields",
        [
            {"title": HOSTILE},
            {"source": HOSTILE},
            {"facts": {HOSTILE: HOSTILE, "versions": {HOSTILE: HOSTILE}}},
            {"config": {HOSTILE: HOSTILE, "list": [HOSTILE]}},
            {"analysis": Analysis(findings=[a_finding(id=HOSTILE, statement=HOSTILE, source=HOSTILE, note=HOSTILE)])},
            {"analysis": Analysis(findings=[a_finding(parts=HOSTILE_PARTS, control=Control(HOSTILE, HOSTILE_PARTS))])},
            {"analysis": Analysis(findings=[], notes=[HOSTILE])},
            {"analysis": Analysis(findings=[], views={HOSTILE: "<p>view</p>"})},
            {"analysis": Analysis(findings=[], panels=[Panel(HOSTILE, figure(), HOSTILE)])},
            {"analysis": Analysis(headline=HOSTILE)},
            {"analysis": Analysis(folded={HOSTILE: "<p>table</p>"})},
        ],
        ids=[
            "title",
            "source",
            "facts",
            "config",
            "finding",
            "finding's notes",
            "notes",
            "view's name",
            "panel",
            "headline",
            "folded",
        ],
    )
    def test_hostile_text_is_inert(self, fields):
        page = page_of(**fields)
        parsed = Tags(page)
        assert not [tag for tag, _ in parsed.tags if tag == "script"]
        assert not [attrs for tag, attrs in parsed.tags if tag == "img" and not attrs["src"].startswith("data:")]
        assert not [attrs for _, attrs in parsed.tags if any(name.startswith("on") for name in attrs)]
        assert "alert(1)" in page  # shown, as text

    def test_it_is_shown_as_it_is(self):
        assert "<b>1 < 2 & 3</b>" in shown(page_of(title="<b>1 < 2 & 3</b>"))

    def test_views_are_html(self):
        page = page_of(analysis=Analysis(findings=[], views={"Heads": '<div id="heads">x</div>'}))
        assert '<div id="heads">x</div>' in page


class TestOrder:
    PARTS = {"notes": ["a note"], "panels": [Panel("one", figure(), "a caption")], "views": {"a view": "<p>x</p>"}}

    def places(self, analysis):
        page = page_of(analysis=analysis)
        places = {part: page.find(part) for part in ("a conclusion", "a note", "a caption", "a view", "a table")}
        return [part for part in sorted(places, key=places.get) if places[part] >= 0]

    def test_a_page_opens_with_the_conclusion_and_a_figure(self):
        assert self.places(Analysis(**self.PARTS)) == ["a caption", "a view", "a note"]
        found = Analysis(**self.PARTS, headline="a conclusion", folded={"a table": "<p>y</p>"})
        assert self.places(found) == ["a conclusion", "a caption", "a view", "a table", "a note"]
        assert "<b>a conclusion</b>" in found._repr_html_()

    def test_findings_are_the_conclusion_of_a_study(self):
        assert '<p class="headline">1 of 1 findings tested holds.</p>' in page_of(analysis=Analysis([a_finding()]))

    def test_figures_after_the_fourth_are_folded(self):
        panels = [Panel(f"n{place}", figure(), f"caption {place}. More") for place in range(6)]
        page = page_of(analysis=Analysis(panels=panels))
        folded = re.findall(r"<details[^>]*><summary>([^<]*)</summary><figure", page)
        assert folded == ["caption 4", "caption 5"]
        assert page.count("<figure") == 6

    def test_notes_are_folded(self):
        page = page_of(analysis=Analysis(**self.PARTS))
        assert re.search(r"<details[^>]*><summary>Notes \(1\)</summary><ul><li>a note</li></ul></details>", page)

    def test_what_is_folded_opens_with_a_click(self):
        page = page_of(analysis=Analysis(folded={"a table": '<p id="inside">y</p>'}))
        assert re.search(r'<details[^>]*><summary>a table</summary>.*<p id="inside">y</p>.*</details>', page)


class TestSelfContained:
    def test_nothing_is_fetched(self):
        panels = [Panel("one", figure(), "first"), Panel("two", figure(), "second")]
        page = page_of(analysis=Analysis(findings=[a_finding()], panels=panels, notes=["n"]), config={"a": 1})
        assert not re.findall(r"https?:", page)
        assert not re.findall(r"""=\s*["']?//""", page)
        assert "@import" not in page
        assert "url(" not in page
        sources = [attrs.get("src") or attrs.get("href") for _, attrs in Tags(page).tags]
        assert all(source.startswith("data:") for source in sources if source)

    def test_figures_are_embedded(self):
        drawn = figure()
        page = page_of(analysis=Analysis(findings=[], panels=[Panel("curve", drawn, "what it shows")]))
        (image,) = (attrs for tag, attrs in Tags(page).tags if tag == "img")
        data = base64.b64decode(image["src"].removeprefix("data:image/png;base64,"))
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        assert data == png_bytes(drawn)
        assert image["alt"] == "what it shows"

    def test_is_one_complete_utf8_page(self):
        page = page_of(title="Ünïcode – ✓")
        assert page.startswith("<!doctype html>")
        assert page.rstrip().endswith("</html>")
        assert '<meta charset="utf-8">' in page
        assert "Ünïcode – ✓" in page


class TestContent:
    def test_findings(self):
        low, wide = (resampled_part("", [0.3], ends, Bound(">=", 0.5)) for ends in ((0.2, 0.4), (0.2, 0.9)))
        findings = [
            a_finding(note="a note"),
            a_finding(id="T2", parts=(low,), paper=None),
            a_finding(id="T3", parts=()),
            a_finding(id="T4", parts=(wide,), control=Control("another arm", (low,))),
        ]
        text = shown(page_of(analysis=Analysis(findings=findings)))
        assert "states cluster" in text
        assert "a note" in text
        assert "published: 0.900" in text
        assert "0.876 (0.800 to 0.950) >= 0.5 not measured ✓ holds" in text
        assert "0.300 (0.200 to 0.400) >= 0.5 not measured ✗ does not hold" in text
        assert "0.300 (0.200 to 0.900) >= 0.5 another arm: 0.300 (0.200 to 0.400) ? undecided" in text
        assert "Not tested: T3 Finding" in text  # folded
        assert "nan" not in text.lower()

    def test_a_report_without_findings_has_no_table_of_them(self):
        page = page_of(analysis=Analysis(findings=[]))
        assert "Verdict" not in page
        assert "Bounds were fixed" not in page

    def test_facts_and_configuration(self):
        page = page_of(facts={"date": "2030-01-02", "versions": {"torch": "9.9"}}, config={"seeds": [0, 1]})
        text = shown(page)
        assert "date: 2030-01-02" in text
        assert "torch 9.9" in text
        assert json.dumps({"seeds": [0, 1]}, indent=1).split("\n")[1].strip() in text

    def test_is_the_same_for_the_same_run(self):
        assert page_of() == page_of()


class TestFolder:
    ABOUT = {"title": "T", "source": "S", "config": {"prompts": Path("a/b.jsonl"), "files": [Path("c")], "n": 1}}

    def test_has_all_that_it_is_given(self, tmp_path):
        panels = [Panel("one", figure(), ""), Panel("two", figure(), "")]
        found = ProbeResult("Counted", {"n": torch.tensor(3)}, {"n": ()}, {})
        written = write_report_page(
            tmp_path / "run",
            **self.ABOUT,
            analysis=Analysis(panels=panels),
            results={"trained": found, "seed 0/a": found},
            tables={"layers": pd.DataFrame({"layer": [0, 1], "ari": [0.5, None]})},
        )
        files = sorted(p.relative_to(tmp_path / "run").as_posix() for p in (tmp_path / "run").rglob("*") if p.is_file())
        assert files == [
            "figures/one.png",
            "figures/two.png",
            "layers.csv",
            "mechclust.json",
            "report.html",
            "results/seed 0/a.safetensors",
            "results/trained.safetensors",
        ]
        assert written == tmp_path / "run" / "report.html"
        assert (tmp_path / "run" / "figures" / "two.png").read_bytes() == panels[1].png
        assert "with --print-figures for print (PNG of 300 dpi, and PDF): one, two." in shown(written.read_text())
        assert (tmp_path / "run" / "layers.csv").read_text() == "layer,ari\n0,0.5\n1,\n"
        assert int(load_result(tmp_path / "run" / "results" / "seed 0" / "a.safetensors")["n"]) == 3

    @pytest.mark.parametrize(("for_print", "formats"), [(False, ["png"]), (True, ["png", "png", "pdf"])])
    def test_draws_a_figure_again_for_print_only(self, tmp_path, for_print, formats):
        drawn = figure()
        analysis = Analysis(panels=[Panel("one", drawn, "")])
        with patch.object(drawn, "savefig", wraps=drawn.savefig) as savefig:
            write_report_page(tmp_path, **self.ABOUT, analysis=analysis, print_figures=for_print)
        assert [call.kwargs["format"] for call in savefig.call_args_list] == formats
        files = {path.name: path.read_bytes()[:4] for path in (tmp_path / "figures").iterdir()}
        assert files == {"one.png": b"\x89PNG", **({"one.pdf": b"%PDF"} if for_print else {})}

    def test_says_when_and_with_what_it_was_made(self, tmp_path):
        text = shown(write_report_page(tmp_path, **self.ABOUT, analysis=Analysis()).read_text())
        assert "CPU cores" in text
        assert "torch" in text

    def test_paths_of_the_configuration_are_text(self, tmp_path):
        text = shown(write_report_page(tmp_path, **self.ABOUT, analysis=Analysis()).read_text())
        assert '"prompts": "a/b.jsonl", "files": [ "c" ], "n": 1' in text

    def test_figures_stay_legible_on_a_narrow_page(self):
        page = page_of(analysis=Analysis(panels=[Panel("one", figure(), "")]))
        assert "min-width: min(640px, var(--wide, 0px))" in page
        assert "--wide:260px" in page  # 2 inches at 130 dots

    def test_the_opening_figure_has_the_whole_width_if_it_is_wide_or_findings_are_below(self):
        narrow, wide = ([Panel("one", figure(width, 2), "")] for width in (4, 4.1))
        for analysis, expected in (
            (Analysis(panels=narrow), "opening"),
            (Analysis(panels=wide), "opening wide"),
            (Analysis(panels=narrow, findings=[a_finding()]), "opening wide"),
            (Analysis(), "opening wide"),
        ):
            classes = [attributes.get("class") or "" for _, attributes in Tags(page_of(analysis=analysis)).tags]
            assert [found for found in classes if found.startswith("opening")] == [expected]

    def test_is_of_one_command(self, tmp_path):
        found = ProbeResult("Counted", {"n": torch.tensor(3)}, {"n": ()}, {})
        for name in ("a", "b/c", "d"):
            write_report_page(tmp_path, **self.ABOUT, analysis=Analysis(), results={name: found}, command="topics")
        assert [p.name for p in (tmp_path / "results").iterdir()] == ["d.safetensors"]
        with pytest.raises(InputError, match=r"holds a report of mechclust topics; give another folder with --out"):
            write_report_page(tmp_path, **self.ABOUT, analysis=Analysis(), command="compare")

    def test_a_full_disk_is_a_sentence(self, tmp_path, monkeypatch):
        def full(*args):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("mechclust.report.folder.write_atomic", full)
        with pytest.raises(InputError, match=r"^the report could not be written to '.*' \(No space left on device\)"):
            write_report_page(tmp_path, **self.ABOUT, analysis=Analysis())

    def test_one_that_cannot_be_written_is_refused_before_anything_is_drawn(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match=r"cannot write to '.*' \(Not a directory\)"):
            write_report_page(
                tmp_path / "file" / "run", **self.ABOUT, analysis=Analysis(panels=[Panel("one", None, "")])
            )


def test_drawing_leaves_matplotlib_as_it_was():
    """No backend is chosen and no setting changed for the importing script."""
    before = dict(mpl.rcParams)
    png_bytes(figure())
    page_of()
    assert dict(mpl.rcParams) == before
