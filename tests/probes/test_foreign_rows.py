"""Rows that other engines extracted, measured beside our own."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from probes import (
    CKA,
    NDims,
    TaskClusterARI,
    collect_rows,
    first_token,
    last_token,
    mean,
    residual,
    rows_from,
    run,
    run_stores,
    save_rows,
    token_at,
)
from tasks import Batch, InputError
from tests.probes.test_cka import every_token, states

SITES = ["hook_embed", "blocks.0.hook_resid_post", "blocks.1.hook_resid_post"]


@pytest.fixture
def model(fake_model: Any) -> Any:
    return fake_model(*states(30, 4, 4, 6))


def uneven(n: int = 12) -> tuple[list[torch.Tensor], Batch]:
    """Sequences of 1 to 7 tokens, as a list and padded."""
    draw = torch.Generator().manual_seed(1)
    ids = [torch.randint(30, (int(torch.randint(1, 8, (), generator=draw)),), generator=draw) for _ in range(n)]
    tokens, mask = torch.full((n, 8), 29), torch.zeros(n, 8, dtype=torch.bool)
    for i, each in enumerate(ids):
        tokens[i, : len(each)], mask[i, : len(each)] = each, True
    return ids, Batch(tokens, mask, labels={"task": torch.arange(n) % 3})


def of_layers(model: Any, tokens: torch.Tensor) -> list[torch.Tensor]:
    return [layer(tokens).detach() for layer in model.layers]


def vllm_files(model: Any, ids: list[torch.Tensor], folder: Path, names: Any = "{}") -> list[Path]:
    """As its connector writes them: one a request, with a lock beside it."""
    folder.mkdir(exist_ok=True)
    paths = []
    for i, each in enumerate(ids):
        paths.append(folder / f"{names.format(i) if isinstance(names, str) else names[i]}.safetensors")
        hidden = torch.stack([x[:, :4] for x in of_layers(model, each)], dim=1)
        save_file({"hidden_states": hidden.contiguous(), "token_ids": each}, paths[-1])
        paths[-1].with_name(paths[-1].name + ".lock").touch()
    return paths


# ---- the same values as run ----


@pytest.mark.parametrize("readout", [last_token(), first_token(), mean(), token_at("input")], ids=repr)
def test_every_form_gives_what_run_gives(model: Any, readout: Any, tmp_path: Path) -> None:
    ids, batch = uneven()
    places = torch.tensor([len(each) // 2 for each in ids])
    whole = Batch(batch.tokens, batch.attention_mask, labels=batch.labels, positions={"input": places})
    expected = run(model, whole, CKA(readout=readout, label="task"))
    atol = 1e-6 if readout == mean() else 1e-10  # means over other padding round otherwise
    rows = collect_rows(model, whole, readout=readout)
    of_each = [of_layers(model, each) for each in ids]
    padded = of_layers(model, batch.tokens)
    options: dict[str, Any] = {
        "labels": {"task": batch.labels["task"]},
        "readout": readout,
        "positions": {"input": places},
    }
    mask = batch.attention_mask
    assert mask is not None
    ways: list[tuple[Any, dict[str, Any]]] = [
        (rows, {"tokens": ids}),
        ({name: x.numpy() for name, x in rows.items()}, {}),
        ({name: list(x) for name, x in rows.items()}, {}),
        (dict(enumerate(rows.values())), {"tokens": batch.tokens, "attention_mask": mask.int().numpy()}),
        (dict(enumerate(padded)), {"tokens": batch.tokens, "attention_mask": mask.tolist()}),
        ({i: x.numpy() for i, x in enumerate(padded)}, {"tokens": ids, "attention_mask": mask}),
        ({i: [each[i] for each in of_each] for i in range(3)}, {"tokens": [each.tolist() for each in ids]}),
        ({i: tuple(each[i][None].numpy() for each in of_each) for i in range(3)}, {}),  # [1 tokens d], as nnsight's
    ]
    store = save_rows(model, whole, tmp_path / "own", readout=readout, labels=["task"])
    unknown = "The tokens of 'theirs' are not known: they were not compared."
    for given, more in ways:
        found = rows_from(given, **options, **more)
        assert (found.sites, found.labels, len(found)) == (SITES, ["task"], 12)
        result = run_stores(found, CKA(readout=readout, label="task"))
        torch.testing.assert_close(result["debiased_cka"], expected["debiased_cka"], rtol=0, atol=atol)
        assert result.layers == expected.layers
        together = run_stores({"own": store, "theirs": found}, CKA(readout=readout))
        torch.testing.assert_close(together["cka"][:, 0], torch.ones(3).double(), rtol=0, atol=1e-9)
        if "tokens" in more:
            assert found.tokens is not None
            assert torch.equal(found.tokens, store.tokens)
            assert together.metadata["examples"] == expected.metadata["examples"]
            assert unknown not in together.notes
        else:
            assert unknown in together.notes


def test_the_index_says_which_example_a_row_is(model: Any) -> None:
    rows, order = collect_rows(model, every_token(30)), torch.randperm(30, generator=torch.Generator().manual_seed(2))
    given = {name: x[order] for name, x in rows.items()}
    found = rows_from(given, index=order, labels={"task": order % 3}, tokens=order[:, None])
    assert found.index.tolist() == list(range(30))
    taken = found.take(torch.tensor([4, 1]), ["rows/hook_embed", "labels/task"])
    assert torch.equal(taken["rows/hook_embed"], rows["hook_embed"][[4, 1]])
    assert taken["labels/task"].tolist() == [1, 1]
    some = found.select(torch.tensor([3, 9, 28]))
    assert (some.index.tolist(), len(some), len(some.select(torch.tensor([9])))) == ([3, 9, 28], 3, 1)
    assert torch.equal(some.take(some.index, ["rows/hook_embed"])["rows/hook_embed"], rows["hook_embed"][[3, 9, 28]])
    whole = rows_from(rows, tokens=torch.arange(30)[:, None])
    assert found.tokens is not None
    assert torch.equal(found.tokens, whole.tokens)
    cka = CKA()
    both = run_stores({"a": some, "b": whole.select(some.index)}, cka)
    assert both["n"].tolist() == [3]


def test_string_labels(model: Any) -> None:
    rows = collect_rows(model, every_token(30))
    names = np.array(["copy", "add", "sort"])[np.arange(30) % 3]
    found = rows_from(rows, labels={"task": names, "length": range(30)}, model="Llama")
    assert (found.classes, found.labels) == ({"task": ["add", "copy", "sort"]}, ["length", "task"])
    probe = TaskClusterARI(readout=last_token(), n_permutations=5)
    result = run_stores(found, probe)
    expected = run(model, every_token(30), probe.clone())
    torch.testing.assert_close(result["ari"], expected["ari"])
    assert result.metadata["classes"] == {"task": ["add", "copy", "sort"]}
    assert result.metadata["model"] == "Llama"
    assert "classes" not in run_stores(rows_from(rows), NDims()).metadata


def test_other_labels_replace_names_of_classes_too() -> None:
    rows = rows_from({1: torch.randn(40, 3)}, labels={"task": ["a", "b"] * 20})
    half = rows.select(rows.index[20:])
    labelled = half.with_labels({"task": torch.arange(20) % 2 + 5})
    result = run_stores(labelled, NDims(at=rows.sites, label="task"))
    assert result.coords["label"] == ["all", "5", "6"]
    assert "classes" not in result.metadata
    assert rows.classes == half.classes == {"task": ["a", "b"]}
    message = "label 'task' has 40 values for 20 examples; give one per example of index"
    with pytest.raises(InputError, match=f"^{message}$"):
        half.with_labels({"task": torch.arange(40)})


def test_some_layers_only(model: Any) -> None:
    rows = collect_rows(model, every_token(30))
    found = rows_from({2: rows[SITES[2]], "attn": rows[SITES[0]]})
    assert found.sites == [SITES[2], "attn"]
    torch.testing.assert_close(
        run_stores(found, CKA(at=found.sites))["cka"],
        run(model, every_token(30), CKA(at=[SITES[2], "hook_embed"]))["cka"],
    )
    for at in (residual(), residual(1), "hook_embed"):
        with pytest.raises(InputError, match=r"in this model: the rows given are of .*, attn; choose among them"):
            run_stores(found, CKA(at=at))


# ---- vLLM's files ----


@pytest.mark.parametrize("readout", [last_token(), mean()], ids=repr)
def test_vllm_files(fake_model: Any, tmp_path: Path, readout: Any) -> None:
    model = fake_model(*states(30, 4, 4, 4))
    ids, batch = uneven()
    expected = run(model, batch, CKA(readout=readout, label="task"))
    atol = 1e-6 if readout == mean() else 1e-10
    paths = vllm_files(model, ids, tmp_path / "numbered", "{}")
    options: dict[str, Any] = {"layers": [0, 1, 2], "labels": {"task": batch.labels["task"]}, "readout": readout}
    scrambled = [f"cmpl-{3 * i}x-{i % 4}" for i in range(12)]
    vllm_files(model, ids, tmp_path / "named", scrambled)
    vllm_files(model, ids, tmp_path / "prefixed", "hs_{}-0b3f")
    ways = [
        rows_from(tmp_path / "numbered", **options),
        rows_from(str(tmp_path / "prefixed"), **options),
        rows_from(paths, **options),
        rows_from(tmp_path / "named", index={name: i for i, name in enumerate(scrambled)}, **options),
    ]
    store = save_rows(model, batch, tmp_path / "own", readout=readout)
    for found in ways:
        assert (found.sites, found.index.tolist()) == (SITES, list(range(12)))
        assert found.tokens is not None
        assert torch.equal(found.tokens, store.tokens)
        result = run_stores(found, CKA(readout=readout, label="task"))
        torch.testing.assert_close(result["debiased_cka"], expected["debiased_cka"], rtol=0, atol=atol)
        assert result.metadata["examples"] == expected.metadata["examples"]
        one = run_stores({"a": found, "b": store}, CKA(at="blocks.0.hook_resid_post", readout=readout))
        assert float(one["cka"][0, 0]) == pytest.approx(1)
    assert rows_from(paths[3:5], index=[7, 2], layers=[5, 1, 9]).sites == [
        f"blocks.{k}.hook_resid_post" for k in (4, 0, 8)
    ]


def test_positions_of_more_prompts_than_there_are_files(tmp_path: Path) -> None:
    """A request may have failed: each later position would be taken for the example before."""
    for i in (0, 2):
        save_file({"hidden_states": torch.randn(4, 1, 3), "token_ids": torch.arange(4)}, tmp_path / f"{i}.safetensors")
    with pytest.raises(InputError, match=r"^positions\['input'\] has shape \(3,\); expected \(2,\), one position"):
        rows_from(tmp_path, layers=[1], positions={"input": [0, 1, 2]}, readout=token_at("input"))


def test_a_position_outside_its_file_is_told_with_its_example(tmp_path: Path) -> None:
    for i in (7, 9):
        save_file({"hidden_states": torch.randn(4, 1, 3), "token_ids": torch.arange(4)}, tmp_path / f"{i}.safetensors")
    rows = rows_from(tmp_path, layers=[1], positions={"input": [0, 99]}, readout=token_at("input"))
    with pytest.raises(InputError, match=r"position 'input' of example index 9 is 99"):
        rows.take(rows.index, [f"rows/{rows.sites[0]}"])


def test_files_are_read_one_at_a_time(fake_model: Any, tmp_path: Path) -> None:
    """Memory is that of the rows, not of the token states: 12 files of 400 tokens, 32 layers."""
    draw = torch.Generator().manual_seed(0)
    for i in range(12):
        hidden = torch.randn(400, 32, 16, generator=draw)
        save_file({"hidden_states": hidden, "token_ids": torch.arange(400)}, tmp_path / f"{i}.safetensors")
    size = 400 * 32 * 16 * 4
    found = rows_from(tmp_path, layers=range(1, 33))
    tracemalloc.start()
    rows = found.take(found.index, ["rows/blocks.3.hook_resid_post"])["rows/blocks.3.hook_resid_post"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < size
    assert rows.shape == (12, 16)
    assert torch.equal(rows[11], hidden[-1, 3])


def test_bad_vllm_files(fake_model: Any, tmp_path: Path) -> None:
    model = fake_model(*states(30, 4, 4, 4))
    ids, _ = uneven(3)
    good = vllm_files(model, ids, tmp_path / "good")
    odd, three = tmp_path / "odd.safetensors", {"layers": [0, 1, 2]}
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "0.safetensors.zst").touch()
    vllm_files(model, ids, tmp_path / "twice", ["0", "0-a", "1"])
    vllm_files(model, ids, tmp_path / "unnamed", ["a", "b", "c"])
    vllm_files(model, ids, tmp_path / "two", ["0-1", "2", "3"])

    def of(**tensors: torch.Tensor) -> list[Path]:
        save_file(tensors, odd)
        return [good[0], odd]

    def text() -> list[Path]:
        odd.write_bytes(b"not one")
        return [odd]

    hidden, tokens = torch.zeros(5, 3, 4), torch.arange(5)
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (lambda: good, {}, "layers is missing; give the layers that the files hold, in order, such as [8, 16, 24]"),
        (lambda: good, {"layers": [0, 1]}, f"{str(good[0])!r} holds 3 layers, but layers names 2; name those it holds"),
        (lambda: good, {"layers": [0, 1, -1]}, "layer -1 is negative; give the number of the hidden state"),
        (lambda: good, {"layers": [0, 1, 1]}, "layers has 1 twice; give it once"),
        (
            lambda: of(hidden_states=hidden),
            three,
            "odd.safetensors' has 'hidden_states' but no 'token_ids'; expected a",
        ),
        (lambda: of(token_ids=tokens, x=hidden), three, "has 'token_ids', 'x' but no 'hidden_states'; expected a file"),
        (
            lambda: of(hidden_states=hidden[0], token_ids=tokens),
            three,
            "have shape (3, 4) for 5 token_ids; expected [tokens layers d]",
        ),
        (lambda: of(hidden_states=hidden, token_ids=tokens[:4]), three, "have shape (5, 3, 4) for 4 token_ids"),
        (lambda: of(hidden_states=hidden.int(), token_ids=tokens), three, "are I32; expected floating-point numbers"),
        (
            lambda: of(hidden_states=hidden[..., :2].clone(), token_ids=tokens),
            three,
            "have width 2, but earlier ones 4;",
        ),
        (text, three, "is truncated, still being written or not a safetensors file ("),
        (lambda: [tmp_path / "none.safetensors"], three, "no file "),
        (lambda: [], three, "no files were given; give vLLM's files, or their folder"),
        (lambda: tmp_path / "nowhere", three, "no *.safetensors in "),
        (lambda: tmp_path / "packed", three, "packed'; unpack its .zst files first"),
        (lambda: tmp_path / "twice", three, "example index 0 was given twice; give every example an index of its own"),
        (
            lambda: tmp_path / "unnamed",
            three,
            "'a.safetensors' has no numbers in its name, so its example is not known",
        ),
        (
            lambda: tmp_path / "two",
            three,
            "'0-1.safetensors' has 2 numbers in its name, so its example is not known; give",
        ),
        (lambda: tmp_path / "good", {**three, "index": {"0": 0, "9": 1}}, "no file '9.safetensors' in "),
        (
            lambda: tmp_path / "good",
            {**three, "index": [0, 1, 2]},
            "index is a list, but a folder has no order; give {",
        ),
        (lambda: good, {**three, "index": {"0": 0}}, "index is a mapping, which is for a folder of files; give one"),
        (
            lambda: good,
            {**three, "tokens": ids},
            "vLLM's files bring their own tokens; leave tokens and attention_mask",
        ),
    ]
    for given, options, message in cases:
        with pytest.raises(InputError, match=re.escape(message)):
            rows_from(given(), **options)
    hidden[4, 1, 2] = torch.nan
    found = rows_from(of(hidden_states=hidden, token_ids=tokens), **three)
    run_stores(found, NDims(["hook_embed", SITES[2]]))
    with pytest.raises(
        InputError, match=r"NaN or infinity in the rows of 'blocks.0.hook_resid_post' for example index 1;"
    ):
        run_stores(found, NDims())
    good[1].unlink()
    with pytest.raises(
        InputError, match=r"^no file '.*1.safetensors'; give the paths of vLLM's files, or their folder$"
    ):
        rows_from(good, **three)


@pytest.mark.parametrize("rows", [torch.randn(3, 4, 5), torch.randn(3, 5)], ids=["states", "rows"])
def test_padded_lists_of_tokens_are_those_of_a_tensor(rows: torch.Tensor) -> None:
    ids = [[1, 2, 3, 4], [0, 5, 6, 7], [0, 0, 8, 9]]
    mask = [[1, 1, 1, 1], [0, 1, 1, 1], [0, 0, 1, 1]]
    expected = rows_from({1: rows}, tokens=torch.tensor(ids), attention_mask=torch.tensor(mask)).tokens
    assert expected is not None
    for tokens in (ids, [torch.tensor(each) for each in ids]):
        found = rows_from({1: rows}, tokens=tokens, attention_mask=mask).tokens
        assert found is not None
        assert torch.equal(found, expected)
    if rows.ndim == 3:  # without padding, tokens are lists of other lengths
        real = [[1, 2, 3, 4], [5, 6, 7], [8, 9]]
        assert torch.equal(rows_from({1: rows}, tokens=real, attention_mask=mask).tokens, expected)


# ---- bad input ----


def test_an_example_of_padding_only() -> None:
    mask = torch.ones(4, 5)
    mask[2] = 0
    for readout in (last_token(), mean()):
        with pytest.raises(InputError) as refused:
            rows_from({0: torch.randn(4, 5, 3)}, attention_mask=mask, index=[3, 4, 7, 9], readout=readout)
        assert str(refused.value) == ("example index 7 has no real token (its attention mask is all 0); leave it out")
    mask[2, 0] = 1
    assert len(rows_from({0: torch.randn(4, 3)}, attention_mask=mask, tokens=torch.ones(4, 5).long())) == 4


def test_what_is_not_given_by_name() -> None:
    x, words = torch.randn(4, 3), np.array([["a", "b"]] * 4)
    layers = "give {0: array} by the number of its layer, or {hook name: array}"
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (x, {}, f"rows are an array of shape (4, 3), whose layer is not known; {layers}"),
        (x.numpy(), {}, "rows are an array of shape (4, 3), whose layer is not known; give"),
        ([x, x], {}, f"rows hold a Tensor, whose layer is not known; {layers}, or paths of vLLM's files"),
        (3, {}, "rows hold a int, whose layer is not known; give"),
        ({0: x}, {"labels": np.arange(4)}, "labels are a ndarray without a name; give them by name, {'task': values}"),
        ({0: words}, {}, "the rows of 'hook_embed': <U1 is not an array of numbers ("),
        ({0: x}, {"index": ["a", "b", "c", "d"]}, "index: list is not an array of numbers ("),
        ({0: x}, {"tokens": words}, "tokens: <U1 is not an array of numbers ("),
        (
            {0: x},
            {"attention_mask": torch.ones(4, 5)},
            "attention_mask has nothing to mask: the rows of 'hook_embed' are [n d], one per example; leave it out",
        ),
    ]
    for given, options, message in cases:
        with pytest.raises(InputError, match=f"^{re.escape(message)}"):
            rows_from(given, **options)


def test_bad_rows() -> None:
    x, nan = torch.randn(4, 3), torch.randn(4, 3)
    nan[2, 1] = torch.nan
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ({}, {}, "no rows were given; give {hook name: [n d]}"),
        (
            {0: x, 1: x[:3]},
            {},
            "there are 3 rows of 'blocks.0.hook_resid_post' but 4 of 'hook_embed'; give one row per",
        ),
        ({0: x[:0]}, {}, "there are no rows of 'hook_embed'; give at least one example"),
        ({0: []}, {}, "there are no rows of 'hook_embed'; give at least one example"),
        ({0: x, "hook_embed": x}, {}, "the rows of 'hook_embed' were given twice (also as 'hook_embed'); give"),
        (
            {"layers/3": x},
            {},
            "the hook name 'layers/3' has a '/', which separates it from a model's; replace it",
        ),
        (
            {-1: x},
            {},
            "layer -1 is negative; give the number of the hidden state: 0 for the embedding, l for the output",
        ),
        ({1.0: x}, {}, "rows are called 1.0; expected a hook name or the number of a hidden state"),
        ({True: x}, {}, "rows are called True; expected a hook name or the number of a hidden state"),
        ({0: x[0]}, {}, "the array of the rows of 'hook_embed' has shape (3,); expected [n d], [n pos d] or a list of"),
        (
            {0: x[None, None]},
            {},
            "has shape (1, 1, 4, 3); expected [n d], [n pos d] or a list of [tokens d], all of one",
        ),
        ({0: [x, x[:, :2]]}, {}, "an element of the rows of 'hook_embed' has shape (4, 2); expected [n d]"),
        ({0: [x, x[0]]}, {}, "an element of the rows of 'hook_embed' has shape (3,); expected [n d]"),
        ({0: [x, x[:0]]}, {}, "element 1 of the rows of 'hook_embed' has no tokens; leave it out"),
        ({0: x.long()}, {}, "the rows of 'hook_embed' are torch.int64; expected floating-point hidden states"),
        ({0: x.numpy() > 0}, {}, "the rows of 'hook_embed' are torch.bool; expected floating-point hidden states"),
        (
            {0: nan},
            {"index": [5, 6, 7, 8]},
            "NaN or infinity in the rows of 'hook_embed' for example index 7; leave the",
        ),
        ({0: x / 0}, {}, "NaN or infinity in the rows of 'hook_embed' for example index 0; leave the example out"),
        ({0: x}, {"index": [3, 1, 2, 3]}, "example index 3 was given twice; give every example an index of its own"),
        ({0: x}, {"index": [0, 1]}, "index has shape (2,) and dtype torch.int64; expected 4 integers, one per example"),
        ({0: x}, {"index": [0.0, 1, 2, 3]}, "dtype torch.float32; expected 4 integers, one per example"),
        (
            {0: x},
            {"index": {"a": 1}},
            "index is a mapping, which is for a folder of files; give one integer per example",
        ),
        ({0: x}, {"layers": [0]}, "layers are for vLLM's files; name the layers of tensors by their keys"),
        ({0: x}, {"labels": {"task": [0, 1]}}, "label 'task' has 2 values for 4 examples; give one per example"),
        ({0: x}, {"labels": {"task": [0, 1, 2, 0.5]}}, "label 'task' has 0.5; expected integers only, or strings only"),
        (
            {0: x},
            {"labels": {"task": [0, 1, 2, 2**63]}},
            f"label 'task' has {2**63}, too large for 64",
        ),
        ({0: x}, {"labels": {"task": [0, 1, 2, "a"]}}, "label 'task' has 'a'; expected integers only, or strings only"),
        (
            {0: x},
            {"tokens": [[1], [2]]},
            "tokens is for 2 examples and the rows for 4; give tokens for every example",
        ),
        (
            {0: [x, x[:2]]},
            {"tokens": [[1, 2, 3, 4], [1]]},
            "element 1 of tokens has 1 tokens, but its hidden states cover 2; give the tokens that the states",
        ),
        (
            {0: [x, x]},
            {"attention_mask": torch.ones(2, 4)},
            "are a list, which has no padding; leave attention_mask out",
        ),
        (
            {0: x[None]},
            {"attention_mask": torch.ones(1, 3)},
            "attention_mask has shape (1, 3); expected (1, 4) like tokens",
        ),
        (
            {0: x[None], 1: x[None, :3]},
            {},
            "the states of 'blocks.0.hook_resid_post' are of other numbers of tokens than those of the sites before it",
        ),
        (
            {0: [x, x]},
            {"positions": {"input": [0, 1, 2]}, "readout": token_at("input")},
            "positions['input'] has shape (3,); expected (2,), one position per example",
        ),
        (
            {0: x[None]},
            {"attention_mask": [[0.0, 0.0, -1e9, -1e9]]},
            "attention_mask has a number besides 0 and 1; expected 1 on real tokens and 0 on padding",
        ),
        ({0: x[None]}, {"readout": token_at("input")}, "no position 'input' in this batch (it has no named positions)"),
    ]
    for given, options, message in cases:
        with pytest.raises(InputError, match=re.escape(message)):
            rows_from(given, **options)


def test_what_is_not_the_same_is_told(model: Any, tmp_path: Path) -> None:
    rows = collect_rows(model, every_token(30))
    store = save_rows(model, every_token(30), tmp_path / "s")
    tokens = torch.arange(30)[:, None]
    tokens[[4, 5]] = tokens[[5, 4]]
    found = rows_from(rows, tokens=tokens)
    cases: list[tuple[Any, Any, str]] = [
        ({"own": store, "x": found}, CKA(), "example index 4 has different tokens in 'own' and 'x' (2 such)"),
        (found, CKA(readout=mean()), "'rows_from(...)' holds rows of readout last_token(), but the probe has mean()"),
        (
            found,
            CKA(label="task"),
            "no label 'task' in this batch (it has no labels); give it to rows_from too: "
            "rows_from(..., labels={'task': ...})",
        ),
    ]
    for given, probe, message in cases:
        with pytest.raises(InputError, match=re.escape(message)):
            run_stores(given, probe)
    with pytest.raises(InputError, match=r"'rows_from\(...\)' has no rows of example index 30 \(1 such\)"):
        found.take(torch.tensor([30]), ["rows/hook_embed"])
