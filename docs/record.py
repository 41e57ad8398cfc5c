"""Writes the measured numbers of ``docs/`` from ``examples/results``: ``make record``.

They stand between two comments, which a page does not show:

- ``<!-- findings: NAME -->``, ``<!-- end -->``: the table of the findings of a record that pages show, or of those
  whose ids follow its name; below the whole table, which headline findings would still hold if they were one family.
- ``<!-- checkpoints -->``, ``<!-- end -->``: the real checkpoints that ``make real`` runs on.
- ``<!-- roles -->``, ``<!-- end -->``: the roles of heads in two of them.
- ``<!-- counts -->``, ``<!-- end -->``: a row for each study, in which is filled in how many of the findings that its
  page shows hold; checks do not count. A row that links to a section, ``NAME.md#ARM``, counts the record ``NAME-ARM``;
  what the intervals of a record without seeds are over stands in the row.
- ``<!-- headlines -->``, ``<!-- end -->``: the headline findings of every study's ``paper`` preset.
- ``<!-- quick -->``, ``<!-- end -->``: in how many runs with fresh seeds a ``quick`` preset shows its main effect.

``mechclust report RUN --record examples/results/NAME-paper`` is what brings the results there; those of real
checkpoints, ``python -m tests.real.run --record``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd

from mechclust.evidence import Findings, family_notes, load_findings
from mechclust.evidence.finding_tables import findings_in_tables, findings_markdown_table
from probes.head_roles import HEAD_ROLES

_ROOT = Path(__file__).parents[1]
_RESULTS = _ROOT / "examples" / "results"
_MARKED = re.compile(
    r"(<!-- (findings|counts|headlines|checkpoints|roles|quick)(?:: ([\w -]+?))? -->)((?:(?!<!--).)*)<!-- end -->",
    re.DOTALL,
)


def pages() -> list[Path]:
    """Every page with numbers of its own."""
    return [path for path in sorted(_ROOT.glob("docs/**/*.md")) if _MARKED.search(path.read_text(encoding="utf-8"))]


def written(text: str) -> str:
    """A page's text with the numbers in it made anew."""
    return _MARKED.sub(
        lambda found: f"{found[1]}\n\n{_table(found[2], found[3] or '', found[4])}\n\n<!-- end -->", text
    )


def _table(kind: str, names: str, held: str) -> str:
    if kind == "findings":
        return _findings_table(*names.split())
    if kind == "checkpoints":
        return _checkpoints()
    if kind == "headlines":
        return _headlines()
    if kind == "roles":
        return _roles()
    if kind == "quick":
        return _quick()
    head, line, *rows = held.strip().splitlines()
    return "\n".join([head, line, *map(_counted, rows)])


def _findings_table(study: str, *ids: str) -> str:
    findings = _recorded(study)
    if ids:
        return findings_markdown_table([finding for finding in findings if finding.id in ids])
    return "\n\n".join([findings_markdown_table(findings_in_tables(findings)), *family_notes(findings)])


def _headlines() -> str:
    """Return the headline findings of every study."""
    rows = [_row("study", "finding", "measured (95%)", "verdict"), "|---" * 4 + "|"]
    for folder in sorted(_RESULTS.glob("*-paper")):
        study = folder.name.removesuffix("-paper")
        for finding in load_findings(folder):
            if finding.shown == "headline":
                values = (finding.parts[0].measured_text, finding.verdict_text)
                link = f"[{study}](studies/{study}.md)"
                rows.append(_row(link, f"{finding.id}: {finding.statement}", *values))
    return "\n".join(rows)


def _quick() -> str:
    """A row for each quick preset that was measured: its main effect (of its last runs), and in how many it shows."""
    runs = pd.read_json(_ROOT / "tests" / "benchmarks" / "quick_presets.json")
    rows = [_row("study", "main effect", "runs that show it", "minutes (median)"), "|---" * 4 + "|"]
    for study, of_study in runs.groupby("study"):
        effect = of_study["effect"].iloc[-1]
        of_study = of_study[of_study["effect"] == effect]
        link = f"[{study}](studies/{study}.md)"
        shown = f"{of_study['shown'].sum()} of {len(of_study)}"
        rows.append(_row(link, effect, shown, f"{of_study['seconds'].median() / 60:.1f}"))
    return "\n".join(rows)


def _checkpoints() -> str:
    """A row for each checkpoint: where it comes from, what it is, and how many checks failed."""
    models = json.loads((_RESULTS / "real-models" / "models.json").read_text(encoding="utf-8"))["models"]
    head = ["", "model", "package", "licence", "layers, heads, d_model", "failed checks"]
    rows = []
    for m in models:
        size = ", ".join(re.findall(r"(\d+) layers of (\d+) heads, d_model (\d+)", m["model"])[0])
        rows.append(_row(m["name"], m["what"], f"`{m['package']}`", m["licence"], size, str(m["failed"])))
    return "\n".join([_row(*head), "|---" * len(head) + "|", *rows])


def _roles() -> str:
    """A row for each role: in each model and text the number of its heads, and the strongest with its score."""
    models = ("smollm2", "gemma3")
    tables = {name: pd.read_csv(_RESULTS / "real-models" / name / "roles.csv") for name in models}
    texts = tables[models[0]]["text"].unique()
    head = ["role", *(f"{name}, {text}" for name in models for text in texts)]
    rows = [_row(*head), "|---" * len(head) + "|"]
    for role in HEAD_ROLES[1:]:
        cells = [_role(tables[name], role, text) for name in models for text in texts]
        rows.append(_row(f"`{role}`", *cells))
    return "\n".join(rows)


def _role(table: pd.DataFrame, role: str, text: str) -> str:
    found = table[(table["role"] == role) & (table["text"] == text)]
    if found.empty:
        return "–"
    summary = found.iloc[0]
    back = f", {summary['offset']:.0f} back" if role == "offset" else ""
    scores = f"{summary['score']:.3f} ({summary['random_weights']:.3f})"
    return f"{scores}, {summary['strongest']}{back}; {summary['heads']}"


def _counted(row: str) -> str:
    """Fill in ``| study | paper | tested, how many seeds | hold | not specific | undecided | do not hold | link |``."""
    title, paper, tested, *_, link = _cells(row)
    name = re.findall(r"([\w-]+\.md(?:#[\w-]+)?)\)", link)[0].replace(".md#", "-").removesuffix(".md")
    findings = [finding for finding in findings_in_tables(_recorded(name)) if finding.kind == "finding"]
    verdicts = [finding.verdict for finding in findings if finding.verdict != "not tested"]
    of = "" if len(verdicts) == len(findings) else f" of {len(findings)}"
    settings, n = _folder(name) / "config.json", tested.partition(", ")[2]
    if settings.exists():  # of a study, which has seeds; some findings have intervals over pairs of them
        config = json.loads(settings.read_text(encoding="utf-8"))["config"]
        measured = {len(part.values) for finding in findings for part in finding.parts}
        seeds = {len(seeds) for key, seeds in config.items() if key == "seeds" or key.endswith("_seeds")}
        counts = sorted(seeds & measured)
        n = f"{' or '.join(map(str, counts))} {n.split()[-1]}"
    columns = ("holds", "not specific", "undecided", "does not hold")
    return _row(title, paper, f"{len(verdicts)}{of}, {n}", *(str(verdicts.count(word)) for word in columns), link)


def _recorded(study: str) -> Findings:
    return load_findings(_folder(study))


def _folder(study: str) -> Path:
    return next(path for path in (_RESULTS / f"{study}-paper", _RESULTS / study) if path.exists())


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip().strip("|").split(" | ")]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    for page in pages():
        page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
