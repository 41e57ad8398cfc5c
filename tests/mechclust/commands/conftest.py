"""Everything that the commands read, in one folder."""

from __future__ import annotations

import pytest

from tests.mechclust.commands.compare.cases import records, shake, write_prompts
from tests.mechclust.commands.mossa import tiny
from tests.mechclust.commands.topics.cases import plant, write_planted_corpus


@pytest.fixture(scope="session")
def inputs(write_checkpoint, tmp_path_factory):
    """A folder with models, prompts, a corpus and tasks; read only."""
    folder = tmp_path_factory.mktemp("inputs")
    write_checkpoint(folder / "gpt2")
    write_checkpoint(folder / "series" / "checkpoint-1")
    write_checkpoint(folder / "series" / "checkpoint-2", change=shake)
    write_checkpoint(folder / "bert", "bert", change=plant)
    write_planted_corpus(folder / "corpus")
    write_prompts(folder / "prompts.jsonl", records())
    tiny.write_base(folder / "llama")
    tiny.write_tasks(folder / "tasks")
    return folder
