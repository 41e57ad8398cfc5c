"""Any name as part of a file's."""

from __future__ import annotations

from urllib.parse import unquote

import pytest

from probes.store.file_names import file_name
from probes.store.files import write_atomic
from tests.faults.hostile import HOSTILE


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_of_any_name_is_made_in_the_folder_and_nowhere_else(tmp_path, name):
    folder = tmp_path / "in" / "here"
    path = folder / f"control-{file_name(HOSTILE[name])}-tuned.safetensors"
    write_atomic(path, b"x")
    write_atomic(folder / "too" / file_name(HOSTILE[name]), b"x")
    files = {str(found.relative_to(tmp_path)) for found in tmp_path.rglob("*") if found.is_file()}
    assert files == {f"in/here/{path.name}", f"in/here/too/{file_name(HOSTILE[name])}"}
    assert not path.name.startswith(".")


def test_different_names_are_different_files():
    names = [file_name(text) for text in HOSTILE.values()] + [file_name("x" * 10_001), file_name("x" * 9_999 + "y")]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ["sort", "a/b", "..", ".hidden", "x = y", "50%", "\u4efb\u52a1", "a\nb"])
def test_a_short_name_can_be_read_back(name):
    assert unquote(file_name(name)) == name
