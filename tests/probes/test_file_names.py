"""Any name as part of a file's."""

from __future__ import annotations

from urllib.parse import unquote

import pytest

from probes.store.file_names import file_name
from probes.store.files import write_atomic
from tests.faults.hostile import HOSTILE


def test_different_names_are_different_files_in_the_folder_and_nowhere_else(tmp_path):
    names = [file_name(text) for text in HOSTILE.values()] + [file_name("x" * 10_001), file_name("x" * 9_999 + "y")]
    assert len(set(names)) == len(names)
    assert not [name for name in names if name.startswith(".")]
    folder, long = tmp_path / "in" / "here", "control-{}-tuned.safetensors"
    for name in names:
        write_atomic(folder / long.format(name), b"x")
        write_atomic(folder / "too" / name, b"x")
    files = {str(found.relative_to(folder)) for found in folder.rglob("*") if found.is_file()}
    assert files == {long.format(name) for name in names} | {f"too/{name}" for name in names}
    assert list(tmp_path.iterdir()) == [tmp_path / "in"]


@pytest.mark.parametrize("name", ["sort", "a/b", "..", ".hidden", "x = y", "50%", "\u4efb\u52a1", "a\nb"])
def test_a_short_name_can_be_read_back(name):
    assert unquote(file_name(name)) == name
