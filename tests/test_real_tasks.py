"""The tasks made by rule for MOSSA on a real model."""

import json
import tomllib

import pytest

from tests.real.mossa_tasks import (
    CLUSTERS,
    HELD_OUT,
    LEAST_TRAIN,
    MOST_TRAIN,
    N_TEST,
    QUESTIONS,
    RULES,
    Example,
    made,
    n_train,
    number_in_words,
    write,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    questions = tmp_path_factory.mktemp("questions")
    for task in QUESTIONS:
        for split, n in (("train", MOST_TRAIN), ("test", N_TEST)):
            rows = [{"inputs": f"{split} {i}?", "targets": "yes", "task": task} for i in range(n)]
            (questions / f"{task}_{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path_factory.mktemp("tasks")
    write(questions, out)
    return out


def test_every_task_has_its_examples_and_none_twice(folder):
    for task in CLUSTERS:
        rows = []
        for split, n in (("train", n_train(task)), ("test", N_TEST)):
            of_split = [json.loads(line) for line in (folder / f"{task}_{split}.jsonl").read_text().splitlines()]
            assert len(of_split) == n
            rows += of_split
        assert len({row["inputs"] for row in rows}) == len(rows)
        assert all(row["targets"] and row["task"] == task for row in rows)
    sizes = [n_train(task) for task in CLUSTERS]
    assert (min(sizes), max(sizes), len(set(sizes))) == (LEAST_TRAIN, MOST_TRAIN, len(CLUSTERS))


def test_each_cluster_of_a_task_that_is_held_out_has_others(folder):
    clusters = tomllib.loads((folder / "clusters.toml").read_text())
    assert clusters["held_out"]["tasks"] == list(HELD_OUT)
    for tasks in clusters["clusters"].values():
        assert set(tasks) - set(HELD_OUT)


def test_the_examples_are_the_same_in_every_run():
    assert made("match_text") == made("match_text")
    assert {row["inputs"] for row in made("sort_words")} != {row["inputs"] for row in made("reverse_words")}


@pytest.mark.parametrize(
    ("number", "words"), [(0, ""), (7, "seven"), (13, "thirteen"), (40, "forty"), (521, "five hundred twenty one")]
)
def test_numbers_in_words(number, words):
    assert number_in_words(number) == words


@pytest.mark.parametrize(
    ("home", "away", "text"), [(3, 1, " beat the "), (0, 2, " lost to the "), (2, 2, " drew 2-2 ")]
)
def test_the_higher_score_wins(home, away, text):
    texts = {row["targets"] for row in made("match_text") if f'"goals": [{home}, {away}]' in row["inputs"]}
    assert texts
    assert all(text in each for each in texts)


def test_a_diary_is_translated_word_by_word():
    class First:
        def randrange(self, n):
            return 0

        def choice(self, names):
            return names[0]

    english = "Tuesday, January 1, 1980: Austria, Arabic"
    assert RULES["translate_en_de"].draw(First()) == Example(english, "Dienstag, 1. Januar 1980: Österreich, Arabisch")
