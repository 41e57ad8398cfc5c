"""What is known before work starts: settings for other processes, and room on the disk."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

from mechclust.commands.mossa.estimate import Plan, mean_longest
from mechclust.commands.mossa.inputs import chosen_examples, read_inputs, rows_bytes, task_and_model
from mechclust.commands.mossa.jobs import other_tasks, task_jobs
from mechclust.commands.mossa.models import models_of, trained_on
from mechclust.commands.mossa.states import comparison_device
from mechclust.models.sizes import Sizes
from tasks import InputError
from tasks.text.instructions import MISC
from tests.mechclust.commands.mossa import tiny
from tests.mechclust.commands.refusals import refusal


def test_jobs_find_every_path_from_any_folder(base, tasks, tmp_path, monkeypatch):
    for name in ("tuned", "without", "copy", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "clusters.toml").write_text(tiny.CLUSTERS)
    (tmp_path / "chat.jinja").write_text("")
    (tmp_path / "tasks").symlink_to(tasks)
    monkeypatch.chdir(tmp_path)
    config = tiny.settings(
        Path("tasks"),
        clusters=Path("clusters.toml"),
        chat_template=Path("chat.jinja"),
        experimental="tuned",
        without_held_out="without",
        controls=("copy", "swap=other", "count=hub/name"),
    )
    assert config.portable == config  # in this process nothing is anywhere else
    there = replace(config, workers=2).portable
    assert (there.tasks, there.clusters) == (tmp_path / "tasks", tmp_path / "clusters.toml")
    assert there.chat_template == tmp_path / "chat.jinja"
    assert (there.experimental, there.without_held_out) == (str(tmp_path / "tuned"), str(tmp_path / "without"))
    models = models_of(config.read(), config, {"copy": "copy", "count": "hub/name"})
    assert [model.given.source if model.given else "" for model in models] == [
        "", str(tmp_path / "tuned"), str(tmp_path / "without"), str(tmp_path / "copy"), "hub/name",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {}),
        ({"device": "cuda"}, {"device": "cuda"}),
        ({"device_map": "auto"}, {"device": "meta"}),
    ],
)
def test_states_are_compared_where_the_model_is(tasks, options, expected):
    class Elsewhere(torch.nn.Linear):
        """On a device of its own."""

        def parameters(self, recurse=True):
            return iter([SimpleNamespace(is_meta=False, device=torch.device("meta"))])

    resident = SimpleNamespace(config=tiny.settings(tasks, **options), hooked=Elsewhere(1, 1))
    assert comparison_device(resident) == expected


def test_null_controls_are_taken_equally_often():
    """Three clusters of four, two nulls each: each control is another's null twice, and never in its own cluster."""
    tasks = [SimpleNamespace(name=f"{cluster}{i}", cluster=cluster) for cluster in "abc" for i in range(4)]
    taken = {task.name: [other.name for other in other_tasks(task, tasks, 2)] for task in tasks}
    assert all(name[0] != other[0] for name, others in taken.items() for other in others)
    counts = Counter(other for others in taken.values() for other in others)
    assert set(counts) == {task.name for task in tasks}
    assert set(counts.values()) == {2}


def test_without_clusters_the_next_tasks_are_nulls():
    tasks = [SimpleNamespace(name=name, cluster=None) for name in "abc"]
    assert [[other.name for other in other_tasks(task, tasks, 1)] for task in tasks] == [["b"], ["c"], ["a"]]
    few = [SimpleNamespace(name=name, cluster="x") for name in "abc"]
    assert [other.name for other in other_tasks(few[1], few, 5)] == ["c", "a"]


def test_miscellaneous_tasks_are_nulls_of_each_other():
    """They have nothing in common."""
    tasks = [SimpleNamespace(name=name, cluster=MISC) for name in "abc"] + [SimpleNamespace(name="d", cluster="x")]
    assert [other.name for other in other_tasks(tasks[0], tasks, 3)] == ["b", "c", "d"]


def test_tasks_of_no_cluster_are_not_of_one_cluster():
    tasks = [*(SimpleNamespace(name=name, cluster="x") for name in "ab"), SimpleNamespace(name="c", cluster=None)]
    assert [other.name for other in other_tasks(tasks[0], tasks, 1)] == ["c"]


@pytest.mark.usefixtures("result")
def test_adapters_of_a_finished_run_are_finished(base, tasks, out, tmp_path):
    config = tiny.settings(tasks)
    inputs = read_inputs(str(base), config)
    assert Plan.from_inputs(inputs, config, out).unfinished == []
    assert Plan.from_inputs(inputs, config, out).rows == rows_bytes(inputs, config)
    plan = Plan.from_inputs(inputs, config, tmp_path)
    assert plan.unfinished == [*plan.training]


class TestWork:
    """Operations of a forward pass: 2 per weight of the blocks (3 x 700) for all tokens, and of the head (1000)."""

    SIZES = Sizes(n_layers=3, d_model=10, d_vocab=100, n_ctx=64, block_weights=700, n_heads=5)

    def plan(self, base, tasks, **options):
        config = tiny.settings(tasks, **options)
        inputs = read_inputs(str(base), config)
        return replace(inputs, sizes=self.SIZES), Plan.from_inputs(
            replace(inputs, sizes=self.SIZES), config, Path("no run")
        )

    def test_training_reads_examples_and_predicts_answers(self, base, tasks):
        """Forward and back, and as much again for all but products."""
        tuning = replace(tiny.settings(tasks).tuning, batch_size=1, accumulation=4)
        inputs, plan = self.plan(base, tasks, tuning=tuning)
        for model in inputs.models[1:]:
            of_tasks = trained_on(model, inputs.collection)
            examples = inputs.format.answered(
                [example.prompt for task in of_tasks for example in task.train],
                [example.answer for task in of_tasks for example in task.train],
            )
            times = 3 * 4 * len(of_tasks) / len(examples)  # 3 steps of 4 for each task of a model
            read = times * sum(len(example.tokens) for example in examples)
            predicted = times * sum(len(example.tokens) - example.start for example in examples)
            training = plan.training[model.name]
            assert training.steps == 3 * len(of_tasks)
            assert training.tokens == pytest.approx(read)
            assert training.operations == pytest.approx(4 * 2 * (2100 * read + 1000 * predicted))

    def test_batches_are_as_long_as_their_longest_example(self, base, tasks):
        config = tiny.settings(tasks)
        one, two, twelve = (
            self.plan(base, tasks, tuning=replace(config.tuning, batch_size=n, accumulation=12 // n))[1].training[
                "tuned"
            ]
            for n in (1, 2, 12)
        )
        assert one.tokens == two.tokens == twelve.tokens
        assert one.operations < two.operations < twelve.operations

    def test_the_last_step_of_an_epoch_has_fewer_examples(self, base, tasks):
        """5 of a control's examples in steps of 4: two steps an epoch."""
        config = tiny.settings(tasks, steps_per_task=10)
        inputs = read_inputs(str(base), config)
        cut = replace(inputs.collection, tasks=[replace(task, train=task.train[:5]) for task in inputs.collection])
        plan = Plan.from_inputs(replace(inputs, collection=cut), config, Path("no run"))
        for task in cut:
            examples = inputs.format.answered([x.prompt for x in task.train], [x.answer for x in task.train])
            expected = 5 * sum(len(example.tokens) for example in examples)
            assert plan.training[f"control-{task.name}"].tokens == pytest.approx(expected)

    def test_measuring_reads_prompts_and_twice_the_answers_of_the_models_of_a_task(self, base, tasks):
        inputs, prompts_alone = self.plan(base, tasks, n_answers=0)
        jobs = {job.task: job for job in task_jobs(inputs, (), 1)}
        of_prompts = sum(
            len(jobs[task.name].models) * sum(map(len, inputs.format.prompts([x.prompt for x in task.test])))
            for task in inputs.collection
        )
        assert prompts_alone.measured == pytest.approx(of_prompts)
        assert prompts_alone.operations == pytest.approx(2 * 2100 * of_prompts)
        _, plan = self.plan(base, tasks)
        read = predicted = 0.0
        for task in inputs.collection:
            examples = inputs.format.answered([x.prompt for x in task.test], [x.answer for x in task.test])
            models = 4 if task.held_out else 3  # base, tuned, control, and the model tuned on all tasks
            times = models * 2 * 4 / len(examples)  # 4 answers, the right ones and exchanged ones
            read += times * sum(len(example.tokens) for example in examples)
            predicted += times * sum(len(example.tokens) - example.start for example in examples)
        assert plan.measured - of_prompts == pytest.approx(read)
        assert plan.operations - prompts_alone.operations == pytest.approx(2 * (2100 * read + 1000 * predicted))


@pytest.mark.parametrize(("n", "expected"), [(1, 2.0), (2, (5 * 3 + 3 * 2 + 1) / 9), (99, 3.0)])
def test_the_longest_of_lengths_drawn_at_random(n, expected):
    assert mean_longest([3, 1, 2], n) == pytest.approx(expected)


class TestRoom:
    def test_too_little_is_refused(self, base, tasks, tmp_path, monkeypatch):
        config = tiny.settings(tasks, svcca=True, keep_rows=True)
        plan = replace(Plan.from_inputs(read_inputs(str(base), config), config, tmp_path), rows=2**30)
        monkeypatch.setattr("mechclust.commands.mossa.estimate.free_disk_bytes", lambda _: 2**20)
        said = refusal(plan.check, config, tmp_path)
        assert said.startswith("the run needs up to 1.06 GiB more on disk, but ")
        assert said.endswith("has 1 MiB free; give fewer prompts (--n-prompts), or another folder with --out")

    def test_one_layer_that_does_not_fit_is_refused(self, base, tasks, tmp_path):
        config = tiny.settings(tasks, max_memory=1e-6)
        said = refusal(Plan.from_inputs(read_inputs(str(base), config), config, tmp_path).check, config, tmp_path)
        assert said.startswith("comparing the last layer takes up to ")
        assert said.endswith(
            "(1 at a time), more than --max-memory 1e-06; raise it, or give fewer prompts (--n-prompts)"
        )

    def test_a_base_that_leaves_no_room_on_the_device_is_refused(self, base, tasks, tmp_path, monkeypatch):
        config = tiny.settings(tasks)
        plan = replace(
            Plan.from_inputs(read_inputs(str(base), config), config, tmp_path), weights=3 * 2**30, layer=2**30
        )
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (7 * 2**29, 2**34))
        plan.check(config, tmp_path)  # on the CPU
        assert refusal(plan.check, replace(config, device="cuda"), tmp_path) == (
            "the base's weights and the comparison of a layer take 4 GiB of memory (float32, 1 at a time), besides "
            "activations and logits, but cuda has 3.5 GiB free; give --dtype bfloat16, fewer prompts (--n-prompts), "
            "or --device-map auto"
        )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"without_held_out": "x"},
            "--without-held-out is given without --experimental, so that it would be trained here; leave it out, or "
            "give the multi-task model too",
        ),
        (
            {"tokens_per_batch": 16},
            "tokens_per_batch is 16, and a prompt with its answer may have 32 (--cutoff); give at least as many, or a "
            "lower --cutoff",
        ),
        (
            {"chat": "no", "chat_template": Path("chat.jinja")},
            "--chat-template is given with --chat no; leave out one of them",
        ),
        ({"cutoff": 1024}, "--cutoff is 1024, but the model takes 64 tokens; give --cutoff 64"),
        (
            {"experimental": "x", "controls": ("copy=a", "copy=b")},
            "'a' and 'b' are both controls of 'copy'; give one per task",
        ),
        ({"n_shown": 1}, "n_shown is 1; expected at least 2"),
        ({"max_memory": 0.0}, "max_memory is 0.0; expected above 0"),
    ],
)
def test_what_is_refused_at_once(base, tasks, changed, message):
    assert refusal(read_inputs, str(base), tiny.settings(tasks, **changed)) == message


def test_a_base_that_no_adapter_can_be_trained_on_is_refused_at_once(base, tasks, tmp_path):
    """Every job found out for itself."""
    other_modules = replace(tiny.settings(tasks).tuning, modules=("c_attn",))
    with pytest.raises(InputError, match=r"^LlamaForCausalLM has no linear layer 'c_attn' \(it has down_proj, "):
        read_inputs(str(base), tiny.settings(tasks, tuning=other_modules))
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    encoder = BertConfig(vocab_size=40, max_position_embeddings=64, **sizes)
    BertForMaskedLM(encoder).save_pretrained(tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(base / file, tmp_path)
    with pytest.raises(InputError, match=r"^BertForMaskedLM does not write text from left to right; give a causal"):
        read_inputs(str(tmp_path), tiny.settings(tasks))


@pytest.mark.parametrize(
    ("control", "task", "model"),
    [
        ("a=b=m", "a=b", "m"),
        ("a=m", "a", "m"),
        ("a=m=n", "a", "m=n"),
        ("../x = y=runs/lr=0.1", "../x = y", "runs/lr=0.1"),
        ("runs/lr=0.1/b", "b", "runs/lr=0.1/b"),
        ("=1+2=m", "=1+2", "m"),
    ],
)
def test_a_task_or_a_control_with_an_equals_sign(control, task, model):
    assert task_and_model(control, ["a", "a=b", "b", "../x = y", "=1+2"]) == (task, model)


def test_examples_of_an_ordered_file_are_drawn(base, tasks):
    task = read_inputs(str(base), tiny.settings(tasks)).collection["copy"]
    assert chosen_examples(task, 4) != list(task.test[:4])
    assert len(set(chosen_examples(task, 4))) == 4
    assert chosen_examples(task, 99) == list(task.test)


def test_examples_that_are_cut_are_told(base, tasks):
    notes = read_inputs(str(base), tiny.settings(tasks, cutoff=8)).notes
    (note,) = [note for note in notes if note.startswith("With --cutoff 8")]
    assert note == (
        "With --cutoff 8, examples of copy, count, first, last and swap are too long (checked on up to 128 of each "
        "task): up to 36 prompts of a task lose their beginning"
    )
    assert not any("--cutoff" in note for note in read_inputs(str(base), tiny.settings(tasks)).notes)
