from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from probes import CKA, RowStore, TaskClusterARI, last_token, mean, residual, run, run_stores, save_rows
from tasks import Batch, InputError
from tests.probes.test_cka import FORMS, every_token, states


@pytest.fixture
def two(fake_model: Any) -> dict[str, Any]:
    return {"tuned": fake_model(*states(30, 4, 4, 4)), "base": fake_model(*states(30, 3, 5, 4, seed=9))}


def saved(models: dict[str, Any], folder: Path, **options: Any) -> dict[str, RowStore]:
    """Each model's rows, the second's from batches in another order and of another size."""
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    batches = [list(every_token(30).split(4)), list(every_token(30, order).split(7))]
    return {
        name: save_rows(model, part, folder / name, labels=["task"], shard_rows=8, **options)
        for (name, model), part in zip(models.items(), batches, strict=True)
    }


@pytest.mark.parametrize("probe", [CKA(label="task"), CKA(pairs="all", form="rows")], ids=["moments", "rows"])
def test_the_same_value_as_the_paired_run(two: dict[str, Any], tmp_path: Path, probe: CKA) -> None:
    stores = saved(two, tmp_path)
    expected, found = run(two, every_token(30), probe.clone()), run_stores(stores, probe)
    for measure in FORMS:
        torch.testing.assert_close(found[measure], expected[measure], rtol=0, atol=1e-10)
    assert (found.coords, found.notes, found.layers) == (expected.coords, expected.notes, expected.layers)
    assert (found.metadata["d"], found.axes) == (expected.metadata["d"], expected.axes)


def test_one_store(two: dict[str, Any], tmp_path: Path) -> None:
    store = saved(two, tmp_path)["base"]
    layers = residual([0, 1])
    torch.testing.assert_close(
        run_stores(store, CKA(layers))["cka"], run(two["base"], every_token(30), CKA(layers))["cka"]
    )
    clusters = TaskClusterARI(readout=last_token(), n_permutations=5)
    assert torch.equal(run_stores(store, clusters)["ari"], run(two["base"], every_token(30), clusters.clone())["ari"])


def test_rows_come_in_the_order_asked_for(two: dict[str, Any], tmp_path: Path) -> None:
    stores = saved(two, tmp_path)
    index = torch.tensor([29, 3, 17, 0])
    for name, store in stores.items():
        rows = store.take(index, ["rows/hook_embed", "labels/task"])
        assert torch.equal(rows["rows/hook_embed"], two[name].layers[0].weight.detach()[index])
        assert torch.equal(rows["labels/task"], index % 3)
        assert (len(store), store.index.tolist()) == (30, list(range(30)))
        assert torch.cat(list(store.blocks())).sort().values.tolist() == list(range(30))


def test_some_examples_of_a_store(two: dict[str, Any], tmp_path: Path) -> None:
    index = torch.arange(1, 30, 3)  # one class; no example of some shards
    stores = {name: store.select(index) for name, store in saved(two, tmp_path).items()}
    found = run_stores({"tuned": stores["tuned"].select(index[:5]), "base": stores["base"].select(index[:5])}, CKA())
    expected = run(two, every_token(30).select(index[:5]), CKA())
    torch.testing.assert_close(found["debiased_cka"], expected["debiased_cka"], rtol=0, atol=1e-10)
    assert (len(stores["base"]), int(found["n"][0])) == (10, 5)
    with pytest.raises(InputError, match=r"^example index 16 is in the rows of 'base' and not of 'tuned' \(5 such\)"):
        run_stores({"tuned": stores["tuned"].select(index[:5]), "base": stores["base"]}, CKA())


def test_an_interrupted_store_goes_on(two: dict[str, Any], tmp_path: Path, hooks_of: Any) -> None:
    """The last shard half written, as by a killed process; then the same call again."""
    model = two["tuned"]
    before = hooks_of(model)

    def failing() -> Any:
        yield from list(every_token(30).split(4))[:5]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_rows(model, failing(), tmp_path / "s", labels=["task"], shard_rows=8)
    (tmp_path / "s" / ".rows-00002.safetensors.1.tmp").write_bytes(b"half")
    with pytest.raises(InputError, match=r"is unfinished; call save_rows with the same arguments to go on"):
        RowStore(tmp_path / "s")
    model.calls.clear()
    store = save_rows(model, every_token(30).split(4), tmp_path / "s", labels=["task"], shard_rows=8)
    assert model.calls.count("hook_embed") == 4  # 14 examples in batches of 4; 16 were there
    assert torch.equal(store.take(store.index, ["rows/hook_embed"])["rows/hook_embed"], model.layers[0].weight.detach())
    model.calls.clear()
    save_rows(model, every_token(30).split(9), tmp_path / "s", labels=["task"])
    assert model.calls == []
    assert hooks_of(model) == before


def test_an_extension_that_fails_leaves_an_unfinished_store(two: dict[str, Any], tmp_path: Path) -> None:
    model = two["tuned"]
    save_rows(model, every_token(20), tmp_path / "s")

    def failing() -> Any:
        yield every_token(28)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_rows(model, failing(), tmp_path / "s", shard_rows=8)
    with pytest.raises(InputError, match="unfinished"):
        RowStore(tmp_path / "s")
    assert len(save_rows(model, every_token(30), tmp_path / "s")) == 30


def test_a_store_is_never_mixed(two: dict[str, Any], tmp_path: Path) -> None:
    model, folder = two["tuned"], tmp_path / "tuned"
    saved(two, tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    swapped = every_token(30)
    swapped.tokens[[4, 5]] = swapped.tokens[[5, 4]]
    tuned = {"labels": ["task"]}
    for args, options, message in (
        (
            (two["base"], every_token(30), folder),
            tuned,
            f"{str(folder)!r} holds rows of another model; give a new folder",
        ),
        ((model, every_token(30), folder), {**tuned, "at": residual(0)}, "holds rows of other sites"),
        ((model, every_token(30), folder), {**tuned, "readout": mean()}, "holds rows of another readout"),
        ((model, every_token(30), folder), {}, "holds rows of other labels"),
        ((model, swapped, folder), tuned, f"example index 4 has other tokens than in {str(folder)!r}; give the same"),
        ((model, every_token(28), folder), tuned, "holds example index 28, which is not in these batches (2 such)"),
        ((model, every_token(30), tmp_path / "other"), tuned, "has files and is not a row store; give a new folder"),
        ((model, [every_token(3)] * 2, tmp_path / "a"), {}, "example index 0 was given twice; give every example"),
        ((model, [], tmp_path / "b"), {}, "there are no examples to measure"),
        (
            (model, every_token(3), tmp_path / "c"),
            {"labels": "task"},
            "labels is the string 'task'; expected a sequence",
        ),
        ((model, every_token(3), tmp_path / "c"), {"shard_rows": 0}, "shard_rows is 0; expected at least 1"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            save_rows(*args, **options)
    with torch.no_grad():
        model.layers[1].weight[0, 0] += 1e-6
    with pytest.raises(InputError, match="holds rows of another model"):
        save_rows(model, every_token(30), folder, **tuned)


def test_padding_does_not_change_what_the_tokens_were(two: dict[str, Any], tmp_path: Path) -> None:
    tokens = torch.tensor([[1, 2, 0], [3, 4, 5], [7, 8, 9], [2, 1, 0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 1, 1], [1, 1, 0]]).bool()
    shifted = torch.tensor([[0, 1, 2], [3, 4, 5], [7, 8, 9], [0, 2, 1]])
    one = save_rows(two["tuned"], Batch(tokens, mask), tmp_path / "a")
    other = save_rows(two["base"], Batch(shifted, mask.flip(1)), tmp_path / "b")
    assert torch.equal(one.tokens, other.tokens)
    assert len(torch.unique(one.tokens)) == 4
    assert run_stores({"a": one, "b": other}, CKA())["n"].tolist() == [4]


def test_what_does_not_fit_is_refused(two: dict[str, Any], tmp_path: Path) -> None:
    stores, model = saved(two, tmp_path), two["base"]
    fewer = save_rows(model, every_token(28), tmp_path / "fewer")
    swapped = every_token(30)
    swapped.tokens[[4, 5]] = swapped.tokens[[5, 4]]
    other = save_rows(model, swapped, tmp_path / "swapped", at=residual([1, 2]))
    for given, probe, message in (
        (
            {"tuned": stores["tuned"], "fewer": fewer},
            CKA(),
            "example index 28 is in the rows of 'tuned' and not of 'fewer' (2 such); save both from the same batches",
        ),
        (
            {"fewer": fewer, "base": stores["base"]},
            CKA(),
            "example index 28 is in the rows of 'base' and not of 'fewer'",
        ),
        (
            {"tuned": stores["tuned"], "x": other},
            CKA(),
            "example index 4 has other tokens in 'tuned' than in 'x' (2 such); save both from the same prompts",
        ),
        (other, CKA(), "has no rows of 'hook_embed' (it has blocks.0.hook_resid_post, blocks.1.hook_resid_post)"),
        (stores, CKA(readout=mean()), "holds rows of readout last_token(), and the probe has mean(); give the probe"),
        (
            stores,
            TaskClusterARI(readout=last_token()),
            "TaskClusterARI measures one model at a time; give it one store",
        ),
        (fewer, CKA(label="task"), "no label 'task' in this batch"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            run_stores(given, probe)


def test_damaged_stores(two: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no row store in .*nowhere'; write one with save_rows"):
        RowStore(tmp_path / "nowhere")
    saved(two, tmp_path)
    (tmp_path / "tuned" / "rows-00001.safetensors").unlink()
    with pytest.raises(InputError, match="holds 22 of 30 examples; a file is missing: save the rows anew"):
        RowStore(tmp_path / "tuned")
    # the missing shard is written anew, beside the others
    again = save_rows(two["tuned"], every_token(30), tmp_path / "tuned", labels=["task"])
    rows = again.take(again.index, ["rows/hook_embed"])["rows/hook_embed"]
    assert torch.equal(rows, two["tuned"].layers[0].weight.detach())
    for text in ("{", json.dumps({"format": "another"})):
        (tmp_path / "base" / "rows.json").write_text(text)
        with pytest.raises(InputError, match="is not the header of a row store; expected a folder from save_rows"):
            RowStore(tmp_path / "base")


def test_bad_activations_name_their_site(two: dict[str, Any], tmp_path: Path) -> None:
    two["base"].layers[1].weight.data[12] = torch.inf
    with pytest.raises(InputError, match=r"activations at 'blocks.0.hook_resid_post' for example index 12"):
        save_rows(two["base"], every_token(30).split(5), tmp_path / "s")
