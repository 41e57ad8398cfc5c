"""A chat template from a file, for a base whose tokenizer has none."""

from __future__ import annotations

import pytest

from mechclust.commands.mossa.inputs import read_inputs
from mechclust.commands.mossa.models import CONTROL, Model, ResidentBase
from tasks import InputError
from tests.mechclust.commands.mossa import tiny
from tests.mechclust.commands.refusals import refusal

CHAT = (
    "{% for m in messages %}{{ 'first ' if m.role == 'user' else 'last ' }}{{ m.content }} </s>{% endfor %}"
    "{% if add_generation_prompt %}last {% endif %}"
)


@pytest.fixture
def template(tmp_path):
    file = tmp_path / "chat.jinja"
    file.write_text(CHAT)
    return file


def test_prompts_and_answers_are_read_with_it(base, tasks, template, tmp_path):
    config = tiny.settings(tasks, chat_template=template)
    inputs = read_inputs(str(base), config)
    plain = read_inputs(str(base), tiny.settings(tasks))
    note = "Prompts are user's messages in the chat template of --chat-template, with its default system prompt."
    assert note in inputs.notes
    assert all(any(note.startswith("Prompts begin with ") for note in each.notes) for each in (inputs, plain))
    resident = ResidentBase(str(base), config, tmp_path / "run")
    examples, _ = resident.training(Model(CONTROL, "copy"))
    read = resident.hooked.tokenizer.decode(examples[0].tokens).split()
    example = inputs.collection["copy"].train[0]
    assert read == ["first", *example.prompt.split(), "</s>", "last", *example.answer.split(), "</s>"]
    assert resident.hooked.tokenizer.chat_template is None
    assert inputs.digest() != plain.digest()


def test_what_it_says_tells_runs_apart_and_not_where_it_is(result, base, tasks, out, template, tmp_path):
    moved = tmp_path / "moved.jinja"
    other = tmp_path / "other.jinja"
    moved.write_text(CHAT)
    other.write_text(CHAT.replace("first ", "count "))
    all_inputs = [read_inputs(str(base), tiny.settings(tasks, chat_template=file)) for file in (template, moved, other)]
    digests = [inputs.digest() for inputs in all_inputs]
    assert digests[0] == digests[1] != digests[2]
    with pytest.raises(InputError, match="holds what was measured of other texts"):
        tiny.run(base, tasks, out, chat_template=template)


def test_one_that_is_missing_is_refused_before_work(base, tasks, tmp_path):
    said = refusal(tiny.run, base, tasks, tmp_path / "run", chat_template=tmp_path / "chat.jinja")
    file = str(tmp_path / "chat.jinja")
    assert said == f"no chat template {file!r}; give the path of a Jinja chat template"
    assert not (tmp_path / "run").exists()
