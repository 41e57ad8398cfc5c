"""What ``run`` takes beside batches, and what it refuses before a model sees it."""

from __future__ import annotations

import re
from collections import UserDict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from probes import NDims, TaskClusterARI, attach, collect_rows, last_token, run, save_rows
from probes.engine.batch_items import count_batch_examples
from probes.engine.batches import each_batch
from probes.engine.text_tokenizer import TextTokenizer, tokenizer_of
from tasks import Batch, InputError

IDS = [[5, 6, 7], [1, 2], [3, 4, 5, 6], [8], [9, 1, 9]]


class Letters:
    """A tokenizer as Hugging Face's are called: an id a letter, behind a 0 of its own."""

    def __init__(self, first: int = 0) -> None:
        self.first = first
        self.calls: list[list[str]] = []

    def __call__(self, texts: list[str]) -> dict[str, list[list[int]]]:
        self.calls.append(texts)
        return {"input_ids": [[self.first, *(ord(c) - ord("a") for c in text)] for text in texts]}


@pytest.fixture(scope="module")
def model(tiny_model: Any) -> Any:
    """Read only."""
    return tiny_model(d_vocab=10, n_ctx=6)


def one_at_a_time() -> list[Batch]:
    return [Batch(torch.tensor([ids]), index=torch.tensor([i])) for i, ids in enumerate(IDS)]


@pytest.fixture(scope="module")
def expected(model: Any) -> torch.Tensor:
    """The last layer's rows of ``IDS``, one example at a time."""
    return collect_rows(model, one_at_a_time())["blocks.1.hook_resid_post"]


@pytest.fixture(scope="module")
def digest(model: Any) -> str:
    """What a result says of these examples."""
    return run(model, one_at_a_time(), NDims()).metadata["examples"]


def padded_ids(left: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(map(len, IDS))
    rows = [([77] * (longest - len(ids)), ids) for ids in IDS]  # no id of this vocabulary
    tokens = torch.tensor([pad + ids if left else ids + pad for pad, ids in rows])
    return tokens, (tokens != 77).long()


class Dataset:
    """Rows as ``datasets`` gives them."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return self.rows[i]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)


TOKENS, MASK = padded_ids()
LEFT, LEFT_MASK = padded_ids(left=True)
GIVEN: dict[str, Any] = {
    "a tokenizer's lists": {"input_ids": IDS},
    "a tokenizer's lists with masks": UserDict(
        {"input_ids": IDS, "attention_mask": [[1] * len(x) for x in IDS], "token_type_ids": [[0] * len(x) for x in IDS]}
    ),
    "a tokenizer's tensors": UserDict({"input_ids": TOKENS, "attention_mask": MASK}),
    "a tokenizer's tensors, padded on the left": {"input_ids": LEFT, "attention_mask": LEFT_MASK},
    "a tokenizer's lists without token types and positions": {
        "input_ids": IDS,
        "token_type_ids": None,
        "position_ids": None,
    },
    "tensors with positions": {
        "input_ids": LEFT,
        "attention_mask": LEFT_MASK,
        "position_ids": (LEFT_MASK.long().cumsum(dim=1) - 1).clamp(min=0),
    },
    "arrays": {"input_ids": TOKENS.numpy(), "attention_mask": MASK.numpy()},
    "columns of a data frame": dict(pd.DataFrame({"input_ids": [[], *IDS]})[1:]),
    "lists padded by the tokenizer": {"input_ids": TOKENS.tolist(), "attention_mask": MASK.tolist()},
    "a data set's rows": Dataset([{"input_ids": ids, "length": len(ids)} for ids in IDS]),
    "rows of tensors": [{"input_ids": torch.tensor(ids)} for ids in IDS],
    "a loader's batches": [
        {"input_ids": TOKENS[:2], "attention_mask": MASK[:2]},
        {"input_ids": TOKENS[2:], "attention_mask": MASK[2:]},
    ],
    "a batch whose mask is numbers": Batch(TOKENS, MASK),
    "one row after another, then a tensor": [{"input_ids": ids} for ids in IDS[:4]] + [torch.tensor(IDS[4:])],
}


@pytest.mark.parametrize(
    ("what", "budget"),
    [*((what, 7) for what in GIVEN), ("a tokenizer's lists", 4), ("a tokenizer's tensors", 4), ("arrays", 4096)],
)
def test_all_of_these_are_the_same_examples(
    what: str, model: Any, expected: torch.Tensor, digest: str, budget: int
) -> None:
    rows = collect_rows(model, GIVEN[what], tokens_per_batch=budget)["blocks.1.hook_resid_post"]
    torch.testing.assert_close(rows, expected, rtol=1e-4, atol=1e-5)
    assert run(model, GIVEN[what], NDims(), tokens_per_batch=budget).metadata["examples"] == digest


def test_a_tensor_is_cut_into_batches(model: Any) -> None:
    tokens = torch.randint(10, (9, 4), generator=torch.Generator().manual_seed(0))
    sizes = [(len(batch), batch.index.tolist()) for batch in each_batch(tokens, {"": model}, tokens_per_batch=19)]
    assert sizes == [(4, [0, 1, 2, 3]), (4, [4, 5, 6, 7]), (1, [8])]
    for given in (tokens, tokens.numpy(), tokens.to(torch.int16), [tokens[:5], tokens[5:]]):
        rows = collect_rows(model, given, tokens_per_batch=36)["hook_embed"]
        assert torch.equal(rows, collect_rows(model, Batch(tokens))["hook_embed"])


def test_texts(model: Any, tmp_path: Path) -> None:
    texts, tokenizer = ["bcd", "a", "hii", "fg"], Letters()
    rows = [[0, *(ord(c) - ord("a") for c in text)] for text in texts]
    expected = collect_rows(model, {"input_ids": rows})["blocks.1.hook_resid_post"]
    for given in (texts, tuple(texts), iter(texts), [{"text": text, "n": 1} for text in texts], {"text": texts}):
        found = collect_rows(model, given, tokenizer=tokenizer, tokens_per_batch=8)["blocks.1.hook_resid_post"]
        torch.testing.assert_close(found, expected)
    store = save_rows(model, texts, tmp_path / "rows", tokenizer=tokenizer)
    assert torch.equal(
        store.take(store.index, ["rows/blocks.1.hook_resid_post"])["rows/blocks.1.hook_resid_post"], expected
    )
    assert [len(call) for call in tokenizer.calls] == [4] * 6  # all at once


def test_the_models_own_tokenizer_reads_texts(fake_model: Any) -> None:
    model, other = (fake_model(torch.randn(10, 4), torch.randn(10, 4)) for _ in range(2))
    with pytest.raises(InputError, match=r"^texts need a tokenizer, and the model has none; give tokenizer=$"):
        run(model, ["a", "b"], NDims())
    model.tokenizer, other.tokenizer = Letters(), Letters()
    assert run({"a": model, "b": other}, ["abc", "d", "fa"], NDims()).metadata["examples"].startswith("3-")
    other.tokenizer = Letters(first=1)
    message = "models 'a' and 'b' read 'abc' as different tokens; give the tokenizer that both should use, tokenizer="
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        run({"a": model, "b": other}, ["abc", "d"], NDims())
    assert run({"a": model, "b": other}, ["abc", "d"], NDims(), tokenizer=Letters()).coords["site"]


def test_a_tokenizer_that_transformer_lens_changed_is_read_again_from_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed = SimpleNamespace(
        tokenizer=SimpleNamespace(name_or_path="a/b"), cfg=SimpleNamespace(default_prepend_bos=True)
    )
    read: dict[str, Any] = {}
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda name, **given: read.update(given) or name)
    assert tokenizer_of(changed) == "a/b"
    assert read == {"local_files_only": True, "trust_remote_code": False}
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda name, **given: 1 / 0)
    with pytest.raises(InputError, match=r"tokenizer, and that of 'a/b' cannot be read \(.*\); give tokenizer=, or"):
        tokenizer_of(changed)


def test_integers_of_a_row_become_labels(model: Any) -> None:
    tokens = torch.randint(10, (12, 4), generator=torch.Generator().manual_seed(0))
    task = torch.arange(12) % 3
    probe = TaskClusterARI(at="hook_embed", readout=last_token(), n_init=1, n_permutations=5)
    expected = run(model, Batch(tokens, labels={"task": task}), probe)
    for given in (
        [{"input_ids": ids, "task": k, "name": "x"} for ids, k in zip(tokens.tolist(), task.tolist(), strict=True)],
        {"input_ids": tokens, "task": task},
        {"input_ids": tokens.tolist(), "task": task.tolist()},
        {"input_ids": tokens.numpy(), "task": task.numpy()},
        [{"input_ids": ids, "task": np.int64(k)} for ids, k in zip(tokens, task, strict=True)],
    ):
        assert torch.equal(run(model, given, probe)["ari"], expected["ari"])
    others = {"score": torch.rand(12), "pair": torch.ones(12, 2).long(), "phase": torch.ones(12, dtype=torch.complex64)}
    with pytest.raises(InputError, match=r"no label 'score' in this batch \(it has 'task'\)"):
        run(
            model,
            {"input_ids": tokens, "task": task, **others},
            TaskClusterARI(label="score", at="hook_embed", readout=last_token()),
        )
    words = ["sort", "count"]
    for strings in (
        [{"input_ids": [1, 2], "task": word} for word in words],
        [{"text": "ab", "task": word} for word in words],
        {"input_ids": [[1, 2], [3]], "task": words},
        {"input_ids": torch.ones(2, 2).long(), "task": words},
        {"input_ids": torch.ones(2, 2).long(), "task": ["sort", 3]},
        {"input_ids": torch.ones(2, 2).long(), "attention_mask": torch.ones(2, 2), "task": np.array(words)},
        {"text": ["ab", "a"], "task": words},
        {"text": ["ab", "a"], "task": [2**63, -(2**63) - 1]},
        {"input_ids": torch.ones(2, 2).long(), "task": [2**63, 3]},
        {"text": ["ab", "a"], "task": np.array([2**64 - 1, 2**63], dtype=np.uint64)},
    ):
        with pytest.raises(InputError, match=r"^label 'task' has strings, or integers of .*; number them \(0, 1, "):
            run(model, strings, probe, tokenizer=Letters())
    with pytest.raises(InputError, match=r"^no label 'task' .* \(it has no labels\); add it to Batch.labels$"):
        run(model, [{"input_ids": [1, 2]}], probe)
    assert run(model, [{"input_ids": [1, k], "hash": 2**64 - k} for k in range(4)], NDims())  # which no probe reads


def test_a_data_loader(model: Any) -> None:
    from torch.utils.data import DataLoader, TensorDataset

    tokens = torch.randint(10, (12, 4), generator=torch.Generator().manual_seed(0))
    found = run(model, DataLoader(TensorDataset(tokens), 5), NDims())
    assert torch.equal(found["n_dims"], run(model, tokens, NDims())["n_dims"])
    with pytest.raises(InputError, match=r"type list; give several tensors as {'input_ids': tokens, 'task': labels}$"):
        run(model, DataLoader(TensorDataset(tokens, tokens[:, 0]), 5), NDims())


def test_data_sets_of_hugging_face(model: Any) -> None:
    datasets = pytest.importorskip("datasets")
    task = [i % 2 for i in range(5)]
    texts = ["bcd", "a", "hii", "fg", "ccc"]
    probe = TaskClusterARI(at="hook_embed", readout=last_token(), n_init=1, n_permutations=5)
    expected = run(model, {"input_ids": IDS, "task": task}, probe)
    data = datasets.Dataset.from_dict({"input_ids": IDS, "task": task})
    for given in (data, data.with_format("torch"), data.with_format("numpy"), data.to_iterable_dataset(), data[:]):
        assert torch.equal(run(model, given, probe)["ari"], expected["ari"])
    by_text = datasets.Dataset.from_dict({"text": texts, "task": task})
    expected = run(model, texts, NDims(), tokenizer=Letters())
    for given in (by_text, by_text["text"], by_text[:]):
        assert run(model, given, NDims(), tokenizer=Letters()).metadata["examples"] == expected.metadata["examples"]
    with pytest.raises(InputError, match=r"'train', 'test', but neither 'input_ids' nor 'text'; .*data\['train'\]$"):
        run(model, datasets.DatasetDict({"train": data, "test": data}), probe)


def test_a_hugging_face_tokenizer(model: Any) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"[PAD]": 0, **{w: i + 1 for i, w in enumerate("abcdefg")}}, "a"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]")
    texts = ["a b c", "d", "e f"]
    expected = run(model, texts, NDims(), tokenizer=tokenizer).metadata["examples"]
    for options in (
        {},
        {"padding": True},
        {"padding": True, "return_tensors": "pt"},
        {"padding": "max_length", "max_length": 6},
    ):
        assert run(model, tokenizer(texts, **options), NDims()).metadata["examples"] == expected
    pairs = {**tokenizer(texts), "token_type_ids": [[0, 0, 1], [0], [0, 0]]}
    with pytest.raises(InputError, match=r"^token_type_ids has values other than 0 \(pairs of texts\)"):
        run(model, pairs, NDims())


def test_positions_of_packed_texts_are_refused(model: Any) -> None:
    packed = {"input_ids": [[1, 2, 3, 4]], "position_ids": [[0, 1, 0, 1]]}
    for given in (packed, {name: torch.tensor(values) for name, values in packed.items()}):
        with pytest.raises(InputError, match="position_ids does not count each text's tokens from 0"):
            run(model, given, NDims())


# ---- what is refused ----


def test_what_run_takes_is_said_in_one_sentence(model: Any) -> None:
    takes = (
        "expected a Batch, token ids [batch pos], a list of texts, what a Hugging Face tokenizer gives, rows of a data "
        "set with 'input_ids' or 'text', or an iterable of these; got "
    )
    for given, message in (
        ("a text", "a single text was given ('a text'); give a list of texts, [text]"),
        (3, f"{takes}int"),
        (None, f"{takes}NoneType"),
        (pd.DataFrame({"text": ["a"]}), "a data frame was given; give its rows: df.to_dict('records') in pandas"),
        ([3.5], f"{takes}an element of type float"),
        ([[1, 2], [3]], f"{takes}an element of type list; give lists of token ids as {{'input_ids': lists}}"),
        (torch.ones(2, 3), "tokens is torch.float32; expected integer token ids: give tokens.long()"),
        (torch.ones(2, 3).bool(), "tokens is torch.bool; expected integer token ids"),
        ({"input_ids": torch.ones(2, 3)}, "tokens is torch.float32; expected integer token ids"),
        ({"input_ids": [[1, 2.5]]}, "input_ids has 2.5; expected integer token ids"),
        (torch.ones(3).long(), "tokens has shape (3,); expected [batch pos]: stack the sequences"),
        ({"input_ids": None}, "input_ids is None; expected integer token ids"),
        ({"input_ids": torch.tensor(5)}, "input_ids is tensor(5); expected integer token ids"),
        ({"input_ids": [[1, 2], None]}, "input_ids has None; expected integer token ids"),
        ({"text": None}, "text is None; expected a text or a list of texts"),
        ({"text": ["a", None]}, "text has None; expected a text or a list of texts"),
        (torch.tensor(5), "tokens has shape (); expected [batch pos]"),
        ([{"prompt": "a"}], "an element has 'prompt', but neither 'input_ids' nor 'text'; rename the field"),
        ({}, "an element has no fields, but neither 'input_ids' nor 'text'"),
        ([{"input_ids": [1, 2], "attention_mask": [1]}], "attention_mask has 1 values for 2 input_ids; expected one"),
        (
            [{"input_ids": [1, 2], "attention_mask": [0.0, -1e9]}],
            "attention_mask has -1000000000.0; expected 1 on real tokens and 0 on padding",
        ),
        (
            {"input_ids": [[1, 2, 0], [3, 4, 0]], "attention_mask": [[1, 1, 0]]},
            "attention_mask is not a list of 2 masks; give one for each of the input_ids",
        ),
        ({"input_ids": [[1, 2]], "attention_mask": [1, 0]}, "attention_mask is not a list of 1 masks; give one"),
        (
            {"input_ids": [[1, 2], [3, 4]], "attention_mask": [1, 0]},
            "attention_mask has 1 values for 2 input_ids; expected one",
        ),
        ({"input_ids": [[1], []]}, "example 1 has no tokens; leave it out"),
        (
            Batch(torch.ones(2, 2).long(), torch.tensor([[1, 1], [0, 0]])),
            "example index 1 has no real token (its attention mask is all 0); leave it out",
        ),
        ({"input_ids": torch.ones(1, 0).long()}, "example index 0 has no tokens; leave it out"),
    ):
        with pytest.raises(InputError, match=f"^{re.escape(message)}"):
            run(model, given, NDims())
    with pytest.raises(InputError, match=r"^example 1 \(''\) encodes to no tokens; leave it out$"):
        run(model, ["ab", ""], NDims(), tokenizer=lambda texts: {"input_ids": [[1] * len(text) for text in texts]})
    with pytest.raises(InputError, match=r"^tokens_per_batch is 0; expected at least 1$"):
        run(model, TOKENS, NDims(), tokens_per_batch=0)
    many: Any
    for many in ("many", 80.0, True):
        expected = f"tokens_per_batch is {many!r}; expected an integer of at least 1"
        with pytest.raises(InputError, match=f"^{re.escape(expected)}$"):
            run(model, TOKENS, NDims(), tokens_per_batch=many)


def test_ids_outside_the_vocabulary_are_told_before_the_model_sees_them(model: Any) -> None:
    for bad in (-1, 10, 50_000):
        tokens = torch.tensor([[1, 2, 3], [4, 5, 6], [7, bad, 9]])
        message = (
            f"example index 7 has token id {bad} at position 1, but the vocabulary of the model has 10 tokens (0 to "
            "9); use this model's own tokenizer, and mask padding (attention_mask)"
        )
        with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
            run(model, Batch(tokens, index=torch.tensor([5, 6, 7])), NDims())
    with pytest.raises(InputError, match="but the vocabulary of model 'b' has 10 tokens"):
        run({"b": model}, tokens, NDims())
    told = pytest.raises(InputError, match="has token id 50000 at position 1")
    with attach(model, NDims()) as attached, told, attached.on(tokens):
        pass


@pytest.mark.parametrize(("pad", "left"), [(-100, False), (-1, True), (10, True), (50_257, False)])
def test_padding_may_be_any_id(model: Any, expected: torch.Tensor, pad: int, left: bool, tmp_path: Path) -> None:
    tokens, mask = padded_ids(left)
    tokens[mask == 0] = pad
    given = Batch(tokens, mask)
    rows = collect_rows(model, given)["blocks.1.hook_resid_post"]
    torch.testing.assert_close(rows, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(given.tokens, tokens)  # nobody's batch is changed
    store = save_rows(model, given, tmp_path / "rows")
    assert torch.equal(store.take(store.index, ["rows/hook_embed"])["rows/hook_embed"], model_rows(model, IDS))


def model_rows(model: Any, ids: list[list[int]]) -> torch.Tensor:
    last = [Batch(torch.tensor([row]), index=torch.tensor([i])) for i, row in enumerate(ids)]
    return collect_rows(model, last, at="hook_embed")["hook_embed"]


def test_more_tokens_than_the_context(model: Any) -> None:
    message = "example index 1 has 7 tokens, more than the model's context of 6; shorten it"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        run(model, {"input_ids": [[1] * 6, [1] * 7]}, NDims())
    message = "sequences are padded to 8 tokens, more than the model's context of 6; pad them only to the longest (5)"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        run(model, Batch(torch.ones(2, 8).long(), torch.arange(8) < torch.tensor([[5], [4]])), NDims())


def test_a_model_with_rotary_positions_does_not_pass_its_context_silently() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    from mechclust.models.pretrained import load_pretrained

    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = load_pretrained(LlamaForCausalLM(LlamaConfig(vocab_size=20, max_position_embeddings=6, **sizes)))
    run(model, torch.ones(2, 6).long(), NDims())
    with pytest.raises(InputError, match=r"has 7 tokens, more than the model's context of 6; shorten it"):
        run(model, torch.ones(2, 7).long(), NDims())


# ---- how examples are put together ----


def some(n: int, longest: int = 6, seed: int = 0) -> list[list[int]]:
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (n,), generator=draw)
    return [torch.randint(10, (int(k),), generator=draw).tolist() for k in lengths]


def test_examples_of_like_length_go_together_longest_first(model: Any) -> None:
    ids = some(60)
    for given in ({"input_ids": ids}, [{"input_ids": i} for i in ids], Dataset([{"input_ids": i} for i in ids])):
        batches = list(each_batch(given, {"": model}, tokens_per_batch=24))
        assert all(batch.tokens.numel() <= 24 for batch in batches)
        widths = [batch.tokens.shape[1] for batch in batches]
        assert widths == sorted(widths, reverse=True)
        assert sum(batch.tokens.numel() for batch in batches) <= 1.1 * sum(map(len, ids))
        found = {
            int(i): row[:n].tolist() for b in batches for i, row, n in zip(b.index, b.tokens, b.lengths(), strict=True)
        }
        assert found == dict(enumerate(ids))


def test_labels_travel_with_their_examples(model: Any) -> None:
    ids = some(20)
    length = [len(i) for i in ids]
    tokens = torch.nn.utils.rnn.pad_sequence(list(map(torch.tensor, ids)), batch_first=True)
    mask = torch.arange(tokens.shape[1]) < torch.tensor(length)[:, None]
    for given in (
        {"input_ids": ids, "n": length},
        {"input_ids": tokens, "attention_mask": mask, "n": torch.tensor(length)},
    ):
        for batch in each_batch(given, {"": model}, tokens_per_batch=12):
            assert torch.equal(batch.labels["n"], batch.lengths())
            assert batch.labels["n"].dtype == torch.int64


def test_a_stream_is_sorted_some_examples_at_a_time(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probes.engine.batches._STREAM_WINDOW", 10)
    ids, drawn = some(35), list[int]()

    def stream() -> Iterator[dict[str, Any]]:
        for i, row in enumerate(ids):
            drawn.append(i)
            yield {"input_ids": row}

    seen = list[int]()
    for batch in each_batch(stream(), {"": model}, tokens_per_batch=12):
        seen += batch.index.tolist()
        assert len(drawn) - len(seen) <= 10  # no more than a window waits
    assert sorted(seen) == list(range(35))
    assert sorted(seen[:10]) == list(range(10))
    rows = collect_rows(model, stream(), tokens_per_batch=12)["blocks.1.hook_resid_post"]
    expected = collect_rows(model, {"input_ids": ids})["blocks.1.hook_resid_post"]
    torch.testing.assert_close(rows, expected, rtol=1e-4, atol=1e-5)


def test_a_streams_texts_are_tokenized_a_window_at_a_time(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probes.engine.batches._STREAM_WINDOW", 4)
    tokenizer, texts = Letters(), ["b", "cde", "f", "gh", "i", "bb"]
    for given in (iter(texts), texts):
        tokenizer.calls.clear()
        batches = list(each_batch(given, {"": model}, reading=TextTokenizer({"": model}, tokenizer)))
        assert [len(call) for call in tokenizer.calls] == [4, 2]
        assert sorted(i for batch in batches for i in batch.index.tolist()) == list(range(6))
    assert len(batches) == 1  # a list is sorted as a whole


def test_a_budget_below_the_longest_example_is_refused_with_both_numbers(model: Any) -> None:
    message = (
        "tokens_per_batch is 3, fewer than the 4 tokens of example index 2; give at least 4, or leave out longer "
        "examples"
    )
    rows = [{"input_ids": ids} for ids in IDS]
    for given in ({"input_ids": IDS}, rows, iter(rows), {"input_ids": TOKENS, "attention_mask": MASK}):
        with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
            run(model, given, NDims(), tokens_per_batch=3)
    with pytest.raises(InputError, match=r"^tokens_per_batch is 3, fewer than the 4 tokens of example index 0; give"):
        run(model, TOKENS % 10, NDims(), tokens_per_batch=3)
    run(model, Batch(TOKENS, MASK), NDims(), tokens_per_batch=3)  # nobody cuts a batch of one's own


def test_the_share_of_padding_is_told(model: Any) -> None:
    batch = Batch(torch.ones(2, 4).long(), torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]]))
    assert (
        run(model, [batch, Batch(torch.ones(1, 2).long(), index=torch.tensor([2]))], NDims()).metadata["padding"] == 0.3
    )
    assert run(model, torch.ones(3, 4).long(), NDims()).metadata["padding"] == 0
    ids = some(200)
    sorted_, small = (
        run(model, {"input_ids": ids}, NDims(), tokens_per_batch=n).metadata["padding"] for n in (60, 4096)
    )
    assert sorted_ < 0.05 < small  # 4,096 tokens hold all of them


def test_attach_keeps_the_order_and_the_padding_of_its_batch(model: Any) -> None:
    for tokens, mask in (padded_ids(), padded_ids(left=True)):
        tokens = tokens % 10
        probe = NDims(readout=last_token())
        with (
            attach(model, probe) as attached,
            torch.no_grad(),
            attached.on({"input_ids": tokens, "attention_mask": mask}),
        ):
            model(tokens, attention_mask=mask)
        expected = run(model, Batch(tokens, mask), NDims(readout=last_token()))
        torch.testing.assert_close(probe.compute()["n_dims"], expected["n_dims"])
        encoded = {"input_ids": tokens.tolist(), "attention_mask": mask.long().tolist()}
        of_lists = NDims(readout=last_token())
        with attach(model, of_lists) as attached, torch.no_grad(), attached.on(encoded):
            model(tokens, attention_mask=mask)
        torch.testing.assert_close(of_lists.compute()["n_dims"], expected["n_dims"])
    with attach(model, NDims()) as attached:
        told = pytest.raises(InputError, match=r"^on\(\) measures one forward pass, but was given 0 batches; give one")
        with told, attached.on(torch.ones(0, 3).long()):
            pass


def test_examples_are_counted_without_drawing_them() -> None:
    assert (
        count_batch_examples(["a", "b", "c"]) == count_batch_examples(({"text": "a"}, {"input_ids": [1, 2]}, "c")) == 3
    )
    assert count_batch_examples({"text": ["a", "b"]}) == count_batch_examples({"input_ids": [[1], [2, 3]]}) == 2
    assert count_batch_examples({"text": "a"}) == count_batch_examples({"input_ids": [1, 2]}) == 1
    filtered = pd.Series([[1], [2, 3], [4]])[1:]
    assert count_batch_examples({"input_ids": filtered}) == count_batch_examples({"text": filtered}) == 2
    assert count_batch_examples(iter(["a"])) is None
    assert count_batch_examples(torch.tensor(5)) is None  # refused later, as a batch
    with pytest.raises(InputError, match=r"^text is None; expected a text or a list of texts$"):
        count_batch_examples([{"text": None}])
