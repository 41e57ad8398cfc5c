from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from tasks import Batch, InputError, InstructionFollowing, Task
from tasks._regex import RandomRegex
from tests.tasks.regex import python_pattern

SMALL: dict[str, Any] = {"n_tasks": 5, "variants": 8, "n_inputs": 6, "n_mappings": 4, "n_eval": 30, "n_eval_tasks": 3}
VARIED = [
    {},
    {"outputs": "shared", "n_outputs": 3},
    {"split_by": "instruction"},
    {"n_distributions": 3, "seed": 4},
    {"variants_spread": 0.0, "validation_share": 0.5},
    {"n_outputs": 2, "overlap": 0.5, "loss_on": "output"},
]


def examples(task: InstructionFollowing, split: str, size: int = 7) -> Iterator[tuple[Batch, int, tuple[int, ...]]]:
    """Every example of a split: its batch, its row, and its real tokens."""
    for batch in task.batches(split, size):
        for row in range(len(batch)):
            yield batch, row, tuple(batch.tokens[row][batch.attention_mask[row]].tolist())  # type: ignore[index]


def same(a: Batch, b: Batch) -> bool:
    pairs = [(a.tokens, b.tokens), (a.attention_mask, b.attention_mask), (a.targets, b.targets), (a.index, b.index)]
    pairs += [(a.loss_mask, b.loss_mask), *((a.labels[k], b.labels[k]) for k in a.labels | b.labels)]
    pairs += [(a.positions[k], b.positions[k]) for k in a.positions | b.positions]
    return all(torch.equal(x, y) for x, y in pairs)  # type: ignore[arg-type]


def test_a_training_batch_depends_on_its_step_alone() -> None:
    task = InstructionFollowing(**SMALL)
    for step in (3, 0, 9):
        task.train_batch(step, 4)
    list(task.batches("validation"))
    again = InstructionFollowing(**SMALL).train_batch(7, 16)
    assert same(task.train_batch(7, 16), again)
    assert not torch.equal(task.train_batch(8, 16).index, again.index)
    other = InstructionFollowing(**SMALL, seed=1).train_batch(7, 16)
    assert other.tokens.shape != again.tokens.shape or not torch.equal(other.tokens, again.tokens)


def test_training_batches_are_training_instances() -> None:
    task = InstructionFollowing(**SMALL)
    train = {int(b.index[i]) for b, i, _ in examples(task, "train")}
    assert set(task.train_batch(0, 64).index.tolist()) <= train


def test_vocabulary_is_padding_symbols_inputs_outputs() -> None:
    task = InstructionFollowing(n_tasks=2, n_symbols=3, n_inputs=2, n_mappings=2, n_outputs=2, variants=3)
    assert task.vocab == ["<pad>", "a", "b", "c", "x0", "x1", "y0.0", "y0.1", "y1.0", "y1.1"]
    assert task.d_vocab == 10
    shared = replace(task, outputs="shared", n_outputs=3)
    assert shared.vocab[-5:] == ["x0", "x1", "y0", "y1", "y2"]
    assert replace(task, n_symbols=26).vocab[26] == "z"
    assert replace(task, n_symbols=27).vocab[1:28] == [f"i{s}" for s in range(27)]
    assert task.to_str_tokens(torch.tensor([0, 1, 9])) == ["<pad>", "a", "y1.1"]


def test_private_outputs_belong_to_one_task_and_shared_ones_to_all() -> None:
    private = InstructionFollowing(**SMALL, n_outputs=3)
    used = [set(row[row >= 0].tolist()) for row in private.mappings]
    assert sum(map(len, used)) == len(set.union(*used))
    assert all(private.vocab[y].startswith(f"y{t}.") for t, ys in enumerate(used) for y in ys)
    shared = InstructionFollowing(**SMALL, outputs="shared", n_outputs=3)
    assert set(shared.mappings[shared.mappings >= 0].tolist()) <= {shared.d_vocab - k for k in (1, 2, 3)}


@pytest.mark.parametrize("overlap", [0.0, 0.25, 1.0])
def test_any_two_tasks_have_the_overlap_of_their_outputs_in_common(overlap: float) -> None:
    # enough inputs that every task uses all of its outputs
    task = InstructionFollowing(n_tasks=4, variants=5, n_inputs=60, n_mappings=60, n_outputs=4, overlap=overlap)
    used = [set(row.tolist()) for row in task.mappings]
    assert {len(outputs) for outputs in used} == {4}
    assert {len(a & b) / 4 for i, a in enumerate(used) for b in used[:i]} == {overlap}
    assert task.d_vocab == 1 + 20 + 60 + len(set.union(*used))
    assert max(max(outputs) for outputs in used) == task.d_vocab - 1


def test_functions_are_the_same_at_every_overlap_but_for_names() -> None:
    tasks = [InstructionFollowing(**SMALL, n_outputs=4, overlap=overlap) for overlap in (0.0, 0.5, 1.0)]
    for t in range(5):
        rows = [task.mappings[t] for task in tasks]
        same = [(row[:, None] == row[None]).tolist() for row in rows]
        assert same[0] == same[1] == same[2]
    strings = [[tokens[:-1] for *_, tokens in examples(task, "train")] for task in tasks]
    assert strings[0] == strings[1] == strings[2]


def test_all_outputs_in_common_is_shared_outputs() -> None:
    fields = {**SMALL, "n_outputs": 4}
    common = InstructionFollowing(**fields, overlap=1.0)
    shared = InstructionFollowing(**fields, outputs="shared")
    assert common.vocab == shared.vocab
    assert same(common.train_batch(3, 16), shared.train_batch(3, 16))


def test_loss_on_the_output_counts_one_token_an_example() -> None:
    task = InstructionFollowing(**SMALL, loss_on="output")
    for batch, i, tokens in examples(task, "train_subset"):
        (counted,) = batch.loss_mask[i].nonzero()[:, 0].tolist()  # type: ignore[index]
        assert counted == int(batch.positions["input"][i])
        assert int(batch.targets[i, counted]) == tokens[-1]  # type: ignore[index]


@pytest.mark.parametrize("fields", VARIED)
def test_labels_and_positions_are_what_the_tokens_say(fields: dict[str, Any]) -> None:
    task = InstructionFollowing(**SMALL, **fields)
    task_of: dict[tuple[int, ...], int] = {}
    number_of: dict[tuple[int, ...], int] = {}
    for split in task.splits:
        for batch, i, tokens in examples(task, split):
            *symbols, x, y = tokens
            assert all(1 <= s <= task.n_symbols for s in symbols)
            assert symbols
            assert task.vocab[x].startswith("x")
            assert task.vocab[y].startswith("y")
            assert batch.attention_mask[i, : len(tokens)].all()  # type: ignore[index]
            assert (batch.tokens[i, len(tokens) :] == 0).all()
            assert (int(batch.positions["input"][i]), int(batch.positions["output"][i])) == (
                len(tokens) - 2,
                len(tokens) - 1,
            )
            assert int(batch.positions["instruction_end"][i]) == len(tokens) - 3
            label = {name: int(values[i]) for name, values in batch.labels.items()}
            assert (label["input"], label["output"]) == (x, y)
            assert task.mappings[label["task"], x - 1 - task.n_symbols] == y
            assert task_of.setdefault(tuple(symbols), label["task"]) == label["task"]
            assert number_of.setdefault(tuple(symbols), label["instruction"]) == label["instruction"]
    assert len(set(number_of.values())) == len(number_of)


@pytest.mark.parametrize("fields", VARIED)
def test_splits_cover_every_instance_once(fields: dict[str, Any]) -> None:
    task = InstructionFollowing(**SMALL, **fields)
    seen = {split: [t[:-1] for _, _, t in examples(task, split)] for split in task.splits}
    train, validation = set(seen["train"]), set(seen["validation"])
    assert len(train) + len(validation) == len(seen["train"]) + len(seen["validation"])
    assert not train & validation
    strings = {t[:-1] for t in train | validation}
    assert len(train | validation) == len(strings) * task.n_mappings
    assert set(seen["train_subset"]) <= train
    assert set(seen["validation_subset"]) <= validation
    index = [int(b.index[i]) for split in ("train", "validation") for b, i, _ in examples(task, split)]
    assert len(set(index)) == len(index)


def test_split_by_instruction_hides_whole_instructions() -> None:
    task = InstructionFollowing(**SMALL, split_by="instruction", validation_share=0.3)
    train, validation = ({t[:-2] for _, _, t in examples(task, s)} for s in ("train", "validation"))
    assert not train & validation
    assert len(validation) == round(0.3 * len(train | validation))


def test_split_by_instance_holds_out_the_share() -> None:
    task = InstructionFollowing(**SMALL, validation_share=0.2)
    train, validation = (sum(1 for _ in examples(task, s)) for s in ("train", "validation"))
    assert validation == round(0.2 * (train + validation))


def test_evaluation_subsets_are_of_the_first_tasks_and_of_the_size_asked_for() -> None:
    task = InstructionFollowing(**SMALL)
    for split in ("train_subset", "validation_subset"):
        labels = torch.cat([b.labels["task"] for b in task.batches(split)])
        assert set(labels.tolist()) <= {0, 1, 2}
        assert len(labels) <= 30
    assert sum(len(b) for b in task.batches("train_subset")) == 30


def test_an_evaluation_subset_without_examples_is_refused() -> None:
    fields = {**SMALL, "n_tasks": 20, "n_eval_tasks": 1, "variants": 2, "validation_share": 0.01}
    message = (
        "no example of 'validation_subset' is of the first 1 tasks; raise n_eval_tasks or variants, or raise "
        "validation_share"
    )
    with pytest.raises(InputError, match=re.escape(message)):
        list(InstructionFollowing(**fields).batches("validation_subset"))
    raised = InstructionFollowing(**{**fields, "n_eval_tasks": 20})
    assert len(next(raised.batches("validation_subset"))) > 0
    large = {"n_tasks": 5, "variants": 4, "n_eval_tasks": 1, "validation_share": 0.9, "split_by": "instruction"}
    with pytest.raises(InputError, match=r"'train_subset' is of the first 1 tasks; .* or lower validation_share$"):
        list(InstructionFollowing(**large, n_eval=5, seed=0).batches("train_subset", 8))


def test_batches_do_not_depend_on_the_batch_size() -> None:
    task = InstructionFollowing(**SMALL)
    assert [t for *_, t in examples(task, "train", 3)] == [t for *_, t in examples(task, "train", 50)]


@pytest.mark.parametrize("m", [1, 2, 5])
def test_instructions_come_from_m_expressions_per_task(m: int) -> None:
    task = InstructionFollowing(**{**SMALL, "variants": 12}, n_distributions=m)
    assert [len(r) for r in task._grammar[0]] == [m] * task.n_tasks
    names = task.vocab[1:]
    matched: set[tuple[int, int]] = set()
    for batch, i, tokens in [*examples(task, "train"), *examples(task, "validation")]:
        t, text = int(batch.labels["task"][i]), "".join(task.to_str_tokens(torch.tensor(tokens[:-2])))
        hits = [d for d, r in enumerate(task._grammar[0][t]) if re.fullmatch(python_pattern(r, names), text)]
        assert hits, f"{text} is from none of the expressions of task {t}"
        matched.update((t, d) for d in hits)
    assert matched == {(t, d) for t in range(task.n_tasks) for d in range(m)}


def test_the_number_of_variants_is_in_its_range() -> None:
    task = InstructionFollowing(n_tasks=12, variants=20, variants_spread=0.3)
    strings = {int(b.labels["instruction"][i]): int(b.labels["task"][i]) for b, i, _ in examples(task, "train", 99)}
    counts = [list(strings.values()).count(t) for t in range(12)]
    assert all(14 <= c <= 26 for c in counts)
    assert len(set(counts)) > 1
    flat = InstructionFollowing(n_tasks=4, variants=20, variants_spread=0.0, n_distributions=3)
    assert len({t[:-2] for s in ("train", "validation") for *_, t in examples(flat, s)}) == 80


def test_a_task_has_at_least_one_instruction_whatever_the_spread() -> None:
    task = InstructionFollowing(n_tasks=2, variants=1, variants_spread=0.6)
    assert len(set(Batch.concat(list(task.batches("train"))).labels["task"].tolist())) == 2
    with pytest.raises(InputError, match="n_distributions is 2; expected at most the 1 instructions"):
        replace(task, n_distributions=2)


def test_loss_counts_every_token_but_padding(task: InstructionFollowing, batch: Batch) -> None:
    logits = torch.randn(*batch.tokens.shape, task.d_vocab, generator=torch.Generator().manual_seed(0))
    terms = []
    for i in range(len(batch)):
        for p in range(int(batch.lengths()[i]) - 1):
            row = logits[i, p].double()
            terms.append(float(row.logsumexp(0) - row[batch.tokens[i, p + 1]]))
    assert len({int(n) for n in batch.lengths()}) > 1, "the batch has no padding to leave out"
    assert float(task.loss(logits, batch)) == pytest.approx(sum(terms) / len(terms), rel=1e-6)


def test_loss_without_a_mask_is_the_mean_over_all_positions(task: InstructionFollowing) -> None:
    tokens = torch.tensor([[1, 2]])
    loss = task.loss(torch.zeros(1, 2, task.d_vocab), Batch(tokens, targets=tokens))
    assert float(loss) == pytest.approx(math.log(task.d_vocab))


def test_accuracy_looks_at_the_answer_to_x(task: InstructionFollowing, batch: Batch) -> None:
    logits = torch.randn(*batch.tokens.shape, task.d_vocab, generator=torch.Generator().manual_seed(1))
    for i in range(0, len(batch), 2):  # the model knows every other answer
        length = int(batch.lengths()[i])
        logits[i, length - 2, batch.tokens[i, length - 1]] = 99.0
    expected = []
    for i in range(len(batch)):
        length = int(batch.lengths()[i])
        expected.append(float(int(logits[i, length - 2].argmax()) == int(batch.tokens[i, length - 1])))
    accuracy = task.accuracy(logits, batch)
    assert accuracy.tolist() == expected
    assert accuracy.dtype == torch.float32
    assert 0.5 <= accuracy.mean() < 1


def test_n_ctx_is_the_longest_sequence() -> None:
    task = InstructionFollowing(**SMALL)
    assert max(len(t) for s in ("train", "validation") for *_, t in examples(task, s)) == task.n_ctx


def test_x_alone_is_guessed_from_the_commonest_task_of_each_input() -> None:
    # more examples than one default batch, so that batches of different lengths are joined
    task = InstructionFollowing(n_tasks=6, variants=60, n_eval=400, validation_share=0.3)
    counts: dict[int, list[int]] = {}
    for batch, i, tokens in examples(task, "train_subset"):
        counts.setdefault(tokens[-2], [0] * 6)[int(batch.labels["task"][i])] += 1
    hits = [
        counts[tokens[-2]].index(max(counts[tokens[-2]])) == int(batch.labels["task"][i])
        for batch, i, tokens in examples(task, "validation_subset")
    ]
    assert task.input_only_accuracy() == pytest.approx(sum(hits) / len(hits))


def test_config_survives_json() -> None:
    task = InstructionFollowing(**SMALL, regex_elements=(2, 5), split_by="instruction", seed=3)
    again = Task.from_config(json.loads(json.dumps(task.to_config())))
    assert again == task
    assert same(again.train_batch(2, 8), task.train_batch(2, 8))


def test_unknown_config_is_refused_with_what_is_known() -> None:
    config = InstructionFollowing().to_config()
    with pytest.raises(InputError, match=r"InstructionFollowing has no field 'n_task' \(it has n_tasks, outputs, "):
        Task.from_config({**config, "n_task": 3})
    with pytest.raises(InputError, match=r"no task 'skills-of-mine' \(there are .*instruction-following"):
        Task.from_config({**config, "name": "skills-of-mine"})
    with pytest.raises(InputError, match="no task None"):
        Task.from_config({})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_tasks": 0}, "n_tasks is 0; expected at least 1"),
        ({"outputs": "own"}, "outputs is 'own'; expected 'private' or 'shared'"),
        ({"loss_on": "y"}, "loss_on is 'y'; expected 'all' or 'output'"),
        (
            {"n_outputs": 4, "overlap": 0.3},
            "overlap is 0.3 of 4 outputs; expected steps of 1/4, so that a whole number of them is shared",
        ),
        ({"overlap": 1.5}, "overlap is 1.5; expected at most 1"),
        (
            {"outputs": "shared", "overlap": 0.5},
            "overlap applies to private outputs, but outputs is 'shared'; leave one of them out",
        ),
        ({"split_by": "task"}, "split_by is 'task'; expected 'instance' or 'instruction'"),
        ({"n_mappings": 11}, "n_mappings is 11; expected at most n_inputs (10)"),
        ({"n_symbols": 2}, "n_symbols is 2; expected at least 3"),
        ({"validation_share": 1.0}, "validation_share is 1.0; expected below 1"),
    ],
)
def test_a_bad_field_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        InstructionFollowing(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"regex_elements": (4, 3)},
        {"seed": -1},
        {"variants_spread": 2.0},
        {"variants": 2, "variants_spread": 0.0, "n_distributions": 5},
        {"n_tasks": 1, "variants": 1, "n_mappings": 1},  # one instance: nothing is left to train on
    ],
    ids=str,
)
def test_a_field_that_cannot_work_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="expected"):
        InstructionFollowing(**{**SMALL, **fields}).train_batch(0, 2)


def test_too_many_instructions_for_the_symbols_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RandomRegex, "sample", lambda self, rng: (0,))  # a language of one word, which task 0 takes
    task = InstructionFollowing(n_tasks=2, n_symbols=3, variants=1, variants_spread=0.0)
    message = "no expression over 3 symbols gives task 1 its 1 distinct instructions; raise n_symbols or lower variants"
    with pytest.raises(InputError, match=message):
        _ = task.n_ctx


def test_an_unknown_split_is_told() -> None:
    message = r"no split 'test' in instruction-following \(it has train, validation, train_subset, validation_subset\)"
    with pytest.raises(InputError, match=message):
        next(InstructionFollowing(**SMALL).batches("test"))
