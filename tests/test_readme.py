"""What the README says is what was measured, and its code runs."""

import re
from pathlib import Path

import pytest

from mechclust.studies.claims import load_claims, markdown_table

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("run", sorted((ROOT / "examples" / "results").iterdir()), ids=lambda path: path.name)
def test_the_claims_are_the_measured_ones(run):
    assert markdown_table(load_claims(run / "claims.json")) in README


def test_its_pictures_and_files_are_there():
    names = re.findall(r"\]\((examples/[^)]+)\)", README) + re.findall(r"`(examples/[^`]+)`", README)
    assert len(names) >= 4
    assert all((ROOT / name).exists() for name in names)


def test_its_probe_keeps_the_contract(model, batch):
    from probes.testing import check_probe

    code = next(block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "class MeanNorm" in block)
    names: dict = {}
    exec(code, names)  # the README's own text
    check_probe(names["MeanNorm"](), model, batch)


def test_its_script_is_the_example():
    code = next(
        block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "InstructionFollowing" in block
    )
    example = (ROOT / "examples" / "task_clusters.py").read_text()
    for line in code.splitlines():
        if line.startswith(("from", "task =", "model =")):
            assert line in example
