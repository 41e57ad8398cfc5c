from __future__ import annotations

import json
import re
from collections import UserDict
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

from tasks import InputError, LabelledPrompts

GOOD = {"prompt": "Sort: b a", "task": "sort"}


def encode(texts: Sequence[str]) -> list[list[int]]:
    return [[ord(c) for c in text] for text in texts]


@pytest.fixture
def write(tmp_path: Path):
    def file(*lines: object, raw: bytes | None = None) -> Path:
        path = tmp_path / "prompts.jsonl"
        text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
        path.write_bytes(text.encode() if raw is None else raw)
        return path

    return file


def test_reads_labels_and_skips_blank_lines(write) -> None:
    path = write(GOOD | {"level": 2}, "", {"prompt": "Zähle: b a", "task": "count", "level": True}, "")
    prompts = LabelledPrompts.from_file(path)
    assert len(prompts) == 2
    assert prompts.prompts == ["Sort: b a", "Zähle: b a"]
    assert prompts.classes == {"task": ["count", "sort"], "level": ["2", "True"]}
    assert prompts.source == str(path)


def test_reads_windows_line_ends(write) -> None:
    line = json.dumps(GOOD)
    assert LabelledPrompts.from_file(write(raw=f"{line}\r\n{line}\r\n".encode())).labels == {"task": ["sort", "sort"]}


def test_reads_a_file_with_a_byte_order_mark(write) -> None:
    line = json.dumps(GOOD)
    assert LabelledPrompts.from_file(write(raw=f"\ufeff{line}\n".encode())).prompts == [GOOD["prompt"]]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([""], "holds no prompts; give at least one prompt with its task"),
        (
            [GOOD, "{'prompt': 1}"],
            'line 2 is not JSON (Expecting property name enclosed in double quotes at column 2): "',
        ),
        (
            [GOOD, '{"prompt": "a", "task": ' + "9" * 4301 + "}"],
            "line 2 has an integer of more than 4,300 digits; give the label as a string",
        ),
        (
            ['{"prompt": "a", "task": ' + "[" * 100_000 + "]" * 100_000 + "}"],
            "line 1 is nested too deeply; give an object of strings, integers and booleans",
        ),
        (
            ['{"prompt": "a", "task": ' + "[" * 20 + "]" * 20 + "}"],
            "line 1: label 'task' is [[[[[[[...]]]]]]]; expected a string, an integer or a boolean",
        ),
        ([GOOD, '{"prompt": "a", "prompt": "b", "task": "c"}'], "line 2 has two fields 'prompt'; rename one"),
        ([GOOD, "", [1]], 'line 3 is a JSON list; expected an object with "prompt" and "task"'),
        ([{"prompt": "a"}], 'line 1 has no "task" (it has prompt); add it'),
        ([{}], 'line 1 has no "prompt" and no "task" (it has nothing)'),
        ([GOOD, {"task": "a"}], 'line 2 has no "prompt" (it has task); add it'),
        ([{"prompt": 3, "task": "a"}], "line 1: the prompt is 3; expected a string"),
        ([{"prompt": " ", "task": "a"}], "line 1: the prompt is empty; give it a text or remove the line"),
        ([GOOD | {"task": 0.5}], "line 1: label 'task' is 0.5; expected a string, an integer or a boolean"),
        ([GOOD, GOOD | {"task": " "}], "line 2: label 'task' is empty; give it a name or remove the line"),
        (
            [GOOD, '{"prompt": "a\\ud800", "task": "x"}'],
            "prompt 2 has half a character ('\\ud800'), which no tokenizer",
        ),
        ([GOOD, GOOD | {"kind": "x"}], "line 2: label 'kind' is not on every line; give it on every line or on none"),
        ([GOOD | {"kind": "x"}, GOOD], "line 2: label 'kind' is not on every line; give it on every line or on none"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(write, lines: list, message: str) -> None:
    path = write(*lines)
    with pytest.raises(InputError, match=re.escape(message)) as error:
        LabelledPrompts.from_file(path)
    assert str(path) in str(error.value)


def test_a_file_that_cannot_be_read_is_refused(write, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"no prompts file '.*none.jsonl'; give the path of a JSONL, CSV or parquet file"
    ):
        LabelledPrompts.from_file(tmp_path / "none.jsonl")
    with pytest.raises(InputError) as error:
        LabelledPrompts.from_file(path := write(raw=b'{"prompt": "a",\n "task": "\xff"}'))
    assert str(error.value) == (
        f"{str(path)!r} is not UTF-8 (line 2, byte 11: 0xff); convert it, for example with iconv -f latin1 -t utf-8"
    )
    with pytest.raises(
        InputError, match=f"^{re.escape(repr(str(tmp_path)))} is a directory; give a JSONL, CSV or parquet file$"
    ):
        LabelledPrompts.from_file(tmp_path)


def test_a_file_that_the_system_withholds_is_refused(write, monkeypatch) -> None:
    def withheld(self):
        raise PermissionError(13, "Permission denied", str(self))

    path = write(GOOD)
    monkeypatch.setattr(Path, "read_bytes", withheld)
    with pytest.raises(InputError) as error:
        LabelledPrompts.from_file(path)
    assert str(error.value) == f"cannot read {str(path)!r} (Permission denied); give a JSONL, CSV or parquet file"


@pytest.mark.parametrize(
    ("prompts", "labels", "message"),
    [
        ([], {"task": []}, "prompts holds no prompts"),
        (["a", ""], {"task": ["x", "y"]}, "prompts: prompt 2 is empty; give it a text or remove it"),
        (["a", 3], {"task": ["x", "y"]}, "prompts: prompt 2 is 3; expected a string"),
        ("ab", {"task": ["x", "y"]}, "prompts: prompts: the string 'ab' was given; expected a list of strings"),
        (["a", "b"], {"task": ["x", 1]}, "prompts: label 'task' of prompt 2 is 1; expected a string"),
        (
            ["a", "b"],
            {"task": "xy"},
            "label 'task' of prompts: the string 'xy' was given; expected a list",
        ),
        (["a"], {"kind": ["x"]}, 'prompts has no label "task" (it has kind)'),
        (["a"], {}, 'prompts has no label "task" (it has none)'),
        (["a", "b"], {"task": ["x"]}, "prompts: label 'task' has 1 values for 2 prompts; expected one per prompt"),
    ],
)
def test_bad_prompts_are_refused(prompts: list, labels: dict, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        LabelledPrompts(prompts, labels)


def test_batches_hold_prompts_of_like_length_longest_first_padded_on_the_right() -> None:
    prompts = LabelledPrompts(["ab", "d", "efg", "hij"], {"task": ["t", "s", "t", "s"], "kind": ["k"] * 4})
    calls = []

    def counted(texts: Sequence[str]) -> list[list[int]]:
        calls.append(list(texts))
        return encode(texts)

    first, second = prompts.batches(counted, tokens_per_batch=6, pad_id=7)
    assert first.tokens.tolist() == [[101, 102, 103], [104, 105, 106]]
    assert second.tokens.tolist() == [[97, 98], [100, 7]]
    assert second.attention_mask.tolist() == [[True, True], [True, False]]  # type: ignore[union-attr]
    assert [b.index.tolist() for b in (first, second)] == [[2, 3], [0, 1]]
    assert [b.labels["task"].tolist() for b in (first, second)] == [[1, 0], [1, 0]]
    assert second.labels["kind"].tolist() == [0, 0]
    assert calls == [["ab", "d", "efg", "hij"]]


def test_a_tokenizer_as_it_is() -> None:
    """Which gives more than ids, by name."""
    prompts = LabelledPrompts(["ab", "d"], {"task": ["t", "s"]})

    def tokenizer(texts: Sequence[str]) -> UserDict:
        return UserDict({"attention_mask": [], "input_ids": encode(texts)})

    (found,), (expected,) = prompts.batches(tokenizer), prompts.batches(encode)
    assert found.tokens.tolist() == expected.tokens.tolist()


@pytest.mark.parametrize("budget", [3, 4, 5, 6, 9, 100])
def test_every_prompt_comes_once_within_the_budget(budget: int) -> None:
    texts = ["ab", "d", "efg", "hij", "k", "lm", "nop"]
    prompts = LabelledPrompts(texts, {"task": texts})
    batches = list(prompts.batches(encode, budget))
    assert all(batch.tokens.numel() <= budget for batch in batches)
    assert [batch.tokens.shape[1] for batch in batches] == sorted((b.tokens.shape[1] for b in batches), reverse=True)
    found = {
        int(i): "".join(map(chr, ids[mask].tolist()))
        for batch in batches
        for i, ids, mask in zip(batch.index, batch.tokens, batch.attention_mask, strict=True)
    }
    assert found == dict(enumerate(texts))


def test_a_budget_below_the_longest_prompt_is_refused_with_both_numbers() -> None:
    prompts = LabelledPrompts(["ab", "cdefg"], {"task": ["t", "s"]}, source="mine.jsonl")
    message = (
        "tokens_per_batch is 4, fewer than the 5 tokens of mine.jsonl: prompt 2; give at least 5, or leave out longer "
        "examples"
    )
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        next(prompts.batches(encode, 4))
    with pytest.raises(InputError, match=r"^tokens_per_batch is 0; expected at least 1$"):
        next(prompts.batches(encode, 0))


def test_a_prompt_that_is_too_long_is_refused_or_keeps_its_end() -> None:
    prompts = LabelledPrompts(["abcde", "fg"], {"task": ["t", "s"]}, source="mine.jsonl")
    message = (
        "mine.jsonl: prompt 1 has 5 tokens, more than the model's context of 3; shorten it, or choose "
        "too_long='truncate' (--too-long truncate) to keep its end"
    )
    with pytest.raises(InputError, match=re.escape(message)):
        next(prompts.batches(encode, max_length=3))
    (batch,) = prompts.batches(encode, max_length=3, too_long="truncate")
    assert batch.tokens.tolist() == [[99, 100, 101], [102, 103, 0]]
    assert batch.tokens[0, batch.last_positions()[0]] == ord("e")
    assert next(prompts.batches(encode, max_length=5)).tokens.shape == (2, 5)


def test_tokens_that_are_kept_must_leave_room() -> None:
    prompts = LabelledPrompts(["abcde"], {"task": ["t"]})
    with pytest.raises(InputError, match="keep is 3 and max_length 3"):
        next(prompts.batches(encode, max_length=3, too_long="truncate", keep=3))


def test_a_prompt_without_tokens_is_refused() -> None:
    prompts = LabelledPrompts(["a", "b"], {"task": ["t", "s"]})
    with pytest.raises(InputError, match="prompts: prompt 2 encodes to no tokens; remove it"):
        next(prompts.batches(lambda texts: [[] if text == "b" else [1] for text in texts]))


def test_a_token_the_model_has_no_embedding_for_is_refused_and_a_pad_is_replaced() -> None:
    """Many checkpoints add a padding token to the tokenizer that the model never had."""
    prompts = LabelledPrompts(["ab", "a"], {"task": ["t", "s"]}, source="mine.jsonl")
    (batch,) = prompts.batches(encode, pad_id=128, d_vocab=128)
    assert batch.tokens.tolist() == [[97, 98], [97, 0]]
    (batch,) = prompts.batches(encode, pad_id=127, d_vocab=128)
    assert batch.tokens.tolist() == [[97, 98], [97, 127]]
    with pytest.raises(InputError) as error:
        next(prompts.batches(encode, d_vocab=98))
    assert str(error.value) == (
        "mine.jsonl: prompt 1 has token id 98, but the model has 98 token embeddings; save the model's own tokenizer"
    )


def test_columns_of_a_data_frame_are_read_in_their_order() -> None:
    frame = pd.DataFrame({"text": ["left out", "b b", "a a"], "task": ["z", "y", "x"]})[1:]
    prompts = LabelledPrompts(frame["text"], {"task": frame["task"]})
    batch = next(prompts.batches(encode))
    assert (prompts.prompts, batch.tokens[:, 0].tolist()) == (["b b", "a a"], [ord("b"), ord("a")])
    assert batch.label("task").tolist() == [1, 0]
