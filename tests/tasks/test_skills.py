"""The skill suite: right answers by hand, composable held-out skills, both streams, addressed draws."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tasks import Batch, InputError, SkillSuite, Task
from tasks.skills import OPERATIONS

SUITE = SkillSuite(n_eval=60)
HELD_OUT = [name for name in SUITE.task_names if name not in SUITE.seen]


def words(suite: SkillSuite, batch: Batch) -> list[list[str]]:
    return [suite.to_str_tokens(row) for row in batch.tokens]


def answer(suite: SkillSuite, operation: str, a: int, b: int) -> list[str]:
    """By the definition, one case at a time."""
    quartile = 0
    if operation == "copy":
        return [str(a), str(b)]
    if operation == "swap":
        return [str(b), str(a)]
    if operation == "translate":
        return [str(suite.permutation[a])]
    if operation in ("type", "classify"):
        x = b if operation == "type" else a
        while (quartile + 1) * suite.n_symbols / 4 <= x:
            quartile += 1
        return [f"{'type' if operation == 'type' else 'class'}{quartile}"]
    return ["YES" if a + b >= 12 else "NO"]


class TestPrompts:
    def test_answers(self):
        for skill in SUITE.task_names:
            operation, argument = skill.split("-")
            for row in words(SUITE, next(SUITE.batches("test", 60, tasks=[skill]))):
                data = list(map(int, row[3:11]))
                a, b = data[2 * int(argument)], data[2 * int(argument) + 1]
                expected = [*answer(SUITE, operation, a, b), "EOS"]
                assert row[11] == "ANS"
                assert row[12:] == expected + ["PAD"] * (3 - len(expected)), skill

    def test_padding_is_masked(self):
        """Answers are of one symbol or two; nothing follows their end."""
        batch = Batch.concat(list(SUITE.batches("test")))
        real = batch.token_mask()
        assert torch.equal(real, torch.tensor([[word != "PAD" for word in row] for row in words(SUITE, batch)]))
        assert set(batch.lengths().tolist()) == {14, 15}
        last = batch.tokens[torch.arange(len(batch)), batch.lengths() - 1]
        assert set(last.tolist()) == {SUITE.vocab.index("EOS")}

    def test_instructions_name_the_skill_in_every_way(self):
        (batch,) = SkillSuite(n_eval=3000).batches("test", 3000, tasks=["type-2"])
        found = {tuple(row[:3]) for row in words(SUITE, batch)}
        assert len(found) == 2 * 3 * 2 * 6
        for first, second, filler in found:
            assert {first.split(".")[0], second.split(".")[0]} == {"type", "arg2"}
            assert filler.startswith("fill")

    def test_labels_and_positions(self):
        batch = Batch.concat(list(SUITE.batches("test")))
        assert torch.equal(batch.labels["task"], batch.labels["cluster"] * 4 + batch.labels["argument"])
        assert torch.bincount(batch.labels["task"]).tolist() == [60] * 24
        assert set(batch.positions["answer"].tolist()) == {SUITE.answer_position}
        assert len(set(batch.index.tolist())) == len(batch)

    def test_half_of_the_data_walks_in_small_steps_within_the_symbols(self):
        batch = Batch.concat(list(SkillSuite(n_eval=500).batches("test")))
        data = batch.tokens[:, 3:11] - SUITE.vocab.index("0")
        assert data.min() == 0
        assert data.max() == 11
        steps = data.diff(dim=1).abs()
        walks = ((steps >= 0) & (steps <= 2)).all(dim=1).float().mean()
        assert 0.47 < walks < 0.53

    def test_the_loss_counts_the_answer_and_eos_alone(self):
        batch = next(SUITE.batches("test", tasks=["copy-1"]))
        assert batch.loss_mask is not None
        assert batch.targets is not None
        assert batch.loss_mask.sum(dim=1).unique().tolist() == [3]
        assert torch.equal(batch.targets[:, 11:14], batch.tokens[:, 12:15])
        single = next(SUITE.batches("test", tasks=["type-1"]))
        assert single.loss_mask is not None
        assert single.loss_mask.sum(dim=1).unique().tolist() == [2]


class TestStreams:
    def test_tuning_draws_seen_skills_alone(self):
        drawn = Batch.concat([SUITE.train_batch(step, 64) for step in range(20)]).labels["task"]
        names = {SUITE.task_names[t] for t in drawn.tolist()}
        assert names == set(SUITE.seen)
        assert names.isdisjoint(HELD_OUT)

    def test_a_control_draws_its_skill_alone(self):
        batch = replace(SUITE, skills=("swap-3",)).train_batch(0, 16)
        assert set(batch.labels["task"].tolist()) == {SUITE.task_names.index("swap-3")}

    def test_held_out_skills_are_composed_of_seen_words(self):
        assert len(HELD_OUT) == 12
        seen = [skill.split("-") for skill in SUITE.seen]
        for operation, argument in (skill.split("-") for skill in HELD_OUT):
            assert operation in {o for o, _ in seen}
            assert argument in {a for _, a in seen}

    def test_pretraining_answers_the_encoded_operations_and_goes_on_generically_otherwise(self):
        suite = replace(SUITE, stream="pretraining")
        batch = Batch.concat([suite.train_batch(step, 64) for step in range(60)])
        encoded = torch.isin(batch.labels["cluster"], torch.tensor([0, 1]))
        assert 0.46 < encoded.float().mean() < 0.54
        pairs = labels = walks = others = 0
        for row, known, cluster, k in zip(
            words(suite, batch), encoded.tolist(), *(batch.labels[n].tolist() for n in ("cluster", "argument")),
            strict=True,
        ):  # fmt: skip
            a, b, last = int(row[3 + 2 * k]), int(row[4 + 2 * k]), int(row[10])
            if known:
                assert row[12:14] == answer(suite, OPERATIONS[cluster], a, b)
                continue
            others += 1
            if row[13] != "EOS":
                pairs += 1
                assert row[12:15] == [str(a), str(b), "EOS"]
            elif row[12].startswith(("type", "class")):
                labels += 1
            else:
                walks += 1
                assert 0 <= abs(int(row[12]) - last) <= 2
        assert 0.17 < pairs / others < 0.23
        assert 0.12 < labels / (labels + walks) < 0.18

    def test_pretraining_counts_every_token(self):
        batch = replace(SUITE, stream="pretraining").train_batch(0, 8)
        assert batch.loss_mask is not None
        assert batch.targets is not None
        assert torch.equal(batch.loss_mask, batch.targets > 0)
        assert bool(batch.loss_mask[:, 0].all())

    @pytest.mark.parametrize("stream", ["tuning", "pretraining"])
    def test_examples_of_all_steps_have_an_index_of_their_own(self, stream):
        suite = replace(SUITE, stream=stream)
        index = torch.cat([suite.train_batch(step, 8).index for step in (0, 1, 2)])
        assert index.tolist() == list(range(24))

    def test_draws_are_addressed(self):
        assert torch.equal(SUITE.train_batch(7, 8).tokens, SUITE.train_batch(7, 8).tokens)
        other = replace(SUITE, stream_seed=1)
        assert not torch.equal(SUITE.train_batch(7, 8).tokens, other.train_batch(7, 8).tokens)
        one, two = (next(s.batches("test", tasks=["copy-0"])).tokens for s in (SUITE, other))
        assert torch.equal(one, two)

    def test_some_tasks_are_those_of_all(self):
        whole = Batch.concat(list(SUITE.batches("test")))
        part = next(SUITE.batches("test", tasks=["type-3"]))
        assert torch.equal(whole.select(torch.isin(whole.index, part.index)).tokens, part.tokens)


class TestScores:
    def test_accuracy_asks_for_the_whole_answer(self):
        batch = next(SUITE.batches("test", 4, tasks=["swap-0"]))
        assert batch.targets is not None
        logits = torch.nn.functional.one_hot(batch.targets, SUITE.d_vocab).float()
        assert SUITE.accuracy(logits, batch).tolist() == [1, 1, 1, 1]
        logits[0, SUITE.answer_position + 1] = 0
        logits[1, SUITE.answer_position] = 0
        logits[2, SUITE.answer_position + 2] = 0  # EOS does not count
        assert SUITE.accuracy(logits, batch).tolist() == [0, 0, 1, 1]

    def test_chance_is_the_commonest_answer_where_the_data_says_nothing(self):
        chance = SkillSuite(n_eval=2000, walk_share=0.0).chance()
        assert chance["classify-1"] == pytest.approx(0.25, abs=0.04)
        assert chance["sentiment-3"] == pytest.approx(78 / 144, abs=0.04)  # pairs that add up to less than 12: NO
        assert chance["copy-3"] < 0.05
        one_argument = ("copy-0", "copy-1", "copy-2", "copy-3", *(f"{o}-0" for o in OPERATIONS if o != "copy"))
        chance = SkillSuite(n_eval=2000, walk_share=0.0, seen=one_argument).chance()
        assert chance["sentiment-0"] == pytest.approx(78 / 144, abs=0.04)  # there is no wrong argument

    def test_chance_counts_the_operation_on_a_wrong_argument(self):
        suite = SkillSuite(n_eval=400)
        (batch,) = suite.batches("test", 400, tasks=["classify-1"])
        rows = words(suite, batch)
        wrong = {k: sum(answer(suite, "classify", int(r[3 + 2 * k]), 0) == [r[12]] for r in rows) / 400 for k in (0, 3)}
        assert suite.chance()["classify-1"] == max(wrong.values())
        assert max(wrong.values()) > 0.35

    def test_config_round_trip(self):
        suite = SkillSuite(seed=3, skills=("copy-0",), stream_seed=2)
        assert Task.from_config(suite.to_config()) == suite


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_symbols": 3}, "n_symbols is 3; expected at least 4"),
        ({"label_share": 1.5}, "label_share is 1.5; expected at most 1"),
        ({"stream": "test"}, "stream is 'test'; expected 'tuning' or 'pretraining'"),
        ({"length": 7}, "length is 7; expected at least 8, a pair for each of the 4 arguments"),
        ({"skills": ("copy-0", "copy-0")}, "skills has 'copy-0' twice; give it once"),
        ({"encoded": ()}, "encoded has 0 of 6 operations; expected some and not all, so that clusters that"),
        ({"encoded": OPERATIONS}, "encoded has 6 of 6 operations; expected some and not all"),
        ({"seen": ("copy-0",)}, "seen has no skill with 'swap'; expected every operation and every argument"),
        ({"seen": tuple(f"{o}-0" for o in OPERATIONS)}, "seen has no skill with '1'; expected every operation"),
        ({"skills": ("sort-0",)}, "skills has 'sort-0'; expected some of copy-0, copy-1,"),
    ],
)
def test_refusals(fields: dict[str, object], message: str):
    with pytest.raises(InputError) as refused:
        SkillSuite(**fields)  # type: ignore[arg-type]
    assert str(refused.value).startswith(message)


def test_an_unknown_skill_or_split_is_refused():
    with pytest.raises(InputError, match="no skill 'copy-9'"):
        next(SUITE.batches("test", tasks=["copy-9"]))
    with pytest.raises(InputError, match="no split 'train' in skill-suite"):
        next(SUITE.batches("train"))
