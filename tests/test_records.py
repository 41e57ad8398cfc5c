"""The records of the papers' runs say what the installed version concludes from their measurements."""

import shutil
from pathlib import Path

import pytest

from mechclust.evidence import load_findings
from mechclust.studies.record import judge_again

RESULTS = Path(__file__).parents[1] / "examples" / "results"
RECORDS = sorted(
    path.parent.name for path in RESULTS.glob("*/results.tar.xz") if (path.parent / "config.json").exists()
)


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_judged_as_it_says(name, tmp_path):
    copy = shutil.copytree(RESULTS / name, tmp_path / name)
    judged = [(finding.id, finding.shown, finding.verdict) for finding in judge_again(copy)]
    recorded = [(finding.id, finding.shown, finding.verdict) for finding in load_findings(RESULTS / name)]
    assert judged == recorded, f"judge it again: mechclust report examples/results/{name}"
