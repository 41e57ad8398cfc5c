from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file

from probes import (
    CKA,
    NDims,
    RowStore,
    TaskClusterARI,
    all_tokens,
    collect_rows,
    last_token,
    mean,
    residual,
    rows_from,
    run,
    run_stores,
    save_rows,
    token_at,
)
from probes.engine.state import RowsState
from probes.rows import kept_rows, save, shards
from probes.store.temporary_files import LOCK, is_temporary, temporary_file_of
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
    with pytest.raises(InputError, match=r"^example index 16 is in the rows of 'base' but not of 'tuned' \(5 such\)"):
        run_stores({"tuned": stores["tuned"].select(index[:5]), "base": stores["base"]}, CKA())


def test_rows_of_different_positions_are_not_compared(two: dict[str, Any], tmp_path: Path) -> None:
    """The tokens are the same, but not the position under ``token_at``."""
    tokens = torch.arange(60).reshape(30, 2) % 30
    readout = token_at("p")
    stores = {}
    for name, place in (("tuned", 0), ("base", 1), ("again", 0)):
        batch = Batch(tokens, positions={"p": torch.full((30,), place)})
        stores[name] = save_rows(two["base"], batch, tmp_path / name, readout=readout)
    with pytest.raises(InputError) as refused:
        run_stores({"tuned": stores["tuned"], "base": stores["base"]}, CKA(readout=readout))
    assert str(refused.value) == (
        "example index 0 has different positions in 'tuned' and 'base' (30 such); save both from the same prompts, "
        "with the same tokenizer and positions"
    )
    result = run_stores({"tuned": stores["tuned"], "again": stores["again"]}, CKA(readout=readout))
    torch.testing.assert_close(result["cka"], torch.ones(3, 1).double())
    foreign = rows_from(collect_rows(two["base"], batch, readout=readout), readout=readout)
    unknown = "The tokens of 'y' are not known: they were not compared."
    notes = run_stores({"x": stores["tuned"], "y": foreign}, CKA(readout=readout)).notes
    assert unknown in notes
    assert not any("positions" in note for note in notes)  # other tokens may have other positions


def test_classes_that_one_store_lacks(two: dict[str, Any]) -> None:
    """Names are compared where both stores have them."""
    rows = {name: collect_rows(two[name], every_token(30)) for name in two}
    index = torch.tensor([i for i in range(30) if i % 3 < 2])
    stores = {"tuned": rows_from(rows["tuned"], labels={"task": ["a", "b", "c"] * 10}).select(index)}
    part = {site: x[index] for site, x in rows["base"].items()}
    stores["base"] = rows_from(part, index=index, labels={"task": ["a", "b"] * 10})
    assert run_stores(stores, CKA()).metadata["classes"] == {"task": ["a", "b", "c"]}
    stores["base"] = rows_from(part, index=index, labels={"task": ["a", "z"] * 10})
    with pytest.raises(InputError, match=r"^the classes of label 'task' are a, z in 'base', and a, b, c in an earlier"):
        run_stores(stores, CKA())


def test_several_probes_in_one_pass(two: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = saved(two, tmp_path)
    chosen = [CKA(label="task"), NDims(residual([0, 1])), CKA(residual([1, 2]))]
    expected = [run_stores(stores, probe.clone()) for probe in chosen]
    opened: list[Path] = []
    open_ = shards._open
    monkeypatch.setattr(shards, "_open", lambda path: opened.append(path) or open_(path))
    found = run_stores(stores, chosen)
    assert [result.probe for result in found] == ["CKA", "NDims", "CKA"]
    for one, other in zip(found, expected, strict=True):
        assert one.metadata == other.metadata
        for measure, values in other.values.items():
            torch.testing.assert_close(one[measure], values, rtol=0, atol=0, equal_nan=True)
    of_first = [path for path in opened if "tuned" in path.parts]
    assert len(of_first) == len(set(of_first)) == 4 * 3  # each shard's file of each site once for all probes
    assert run_stores(stores, []) == []
    with pytest.raises(InputError, match="no stores given; give one, or several by name"):
        run_stores({}, CKA())


def test_labels_that_differ_between_stores(two: dict[str, Any], tmp_path: Path) -> None:
    stores = saved(two, tmp_path)
    given = every_token(30)
    given.labels["task"][7] = 0
    stores["base"] = save_rows(two["base"], given, tmp_path / "x", labels=["task"])
    with pytest.raises(InputError) as refused:
        run_stores(stores, CKA())
    assert str(refused.value) == (
        "example index 7 has 0 as its label 'task' in 'base', and 1 in an earlier store; save all with the same labels"
    )


# ---- what is on disk ----


def test_one_file_a_site_and_shard(two: dict[str, Any], tmp_path: Path) -> None:
    store = saved(two, tmp_path)["tuned"]
    shards = sorted(path.name for path in store.folder.iterdir() if not is_temporary(path))
    assert shards == ["rows.json", "shard-00000", "shard-00001", "shard-00002", "shard-00003"]
    files = {"index", "hook_embed", "blocks.0.hook_resid_post", "blocks.1.hook_resid_post"}
    for shard in shards[1:]:
        names = {path.name for path in (store.folder / shard).iterdir()}
        assert names == {"shard.json", *(f"{name}.safetensors" for name in files)}
        marker = json.loads((store.folder / shard / "shard.json").read_text())
        assert (set(marker), set(marker["files"])) == ({"examples", "files", "checksum"}, names - {"shard.json"})
    whole = load_file(store.folder / "shard-00000" / "hook_embed.safetensors")
    index = load_file(store.folder / "shard-00000" / "index.safetensors")
    assert torch.equal(whole["rows"], two["tuned"].layers[0].weight[index["index"]].detach())
    assert torch.equal(index["labels/task"], index["index"] % 3)


def test_measuring_one_layer_reads_no_other(two: dict[str, Any], tmp_path: Path) -> None:
    store = saved(two, tmp_path)["tuned"]
    expected = run_stores(store, CKA(residual(1)))
    for shard in store.folder.glob("shard-*"):
        (shard / "hook_embed.safetensors").write_bytes(b"damaged")
        (shard / "blocks.1.hook_resid_post.safetensors").unlink()
    found = run_stores(RowStore(store.folder), CKA(residual(1)))
    assert torch.equal(found["debiased_cka"], expected["debiased_cka"])
    for layer, words in ((0, "hook_embed.safetensors' is damaged"), (2, "resid_post.safetensors' is missing")):
        with pytest.raises(InputError, match=re.escape(words)):
            run_stores(RowStore(store.folder), CKA(residual(layer)))


def test_order_split_and_shards_do_not_change_rows(two: dict[str, Any], tmp_path: Path) -> None:
    model, names = two["tuned"], ["rows/hook_embed", "rows/blocks.1.hook_resid_post", "labels/task"]
    expected = collect_rows(model, every_token(30))
    order = torch.randperm(30, generator=torch.Generator().manual_seed(3))
    for k, (given, shard_rows) in enumerate(
        [
            (every_token(30), 4096),
            (every_token(30, order).split(1), 1),
            (every_token(30, order).split(11), 7),
            ({"input_ids": torch.arange(30)[:, None], "task": torch.arange(30) % 3}, 8),
        ]
    ):
        store = save_rows(model, given, tmp_path / str(k), labels=["task"], shard_rows=shard_rows, tokens_per_batch=4)
        found = store.take(torch.arange(30), names)
        assert torch.equal(found["rows/hook_embed"], expected["hook_embed"])
        assert torch.equal(found["rows/blocks.1.hook_resid_post"], expected["blocks.1.hook_resid_post"])
        assert torch.equal(found["labels/task"], torch.arange(30) % 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_rows_in_another_dtype(two: dict[str, Any], tmp_path: Path, dtype: torch.dtype) -> None:
    model = two["tuned"]
    store = save_rows(model, every_token(30).split(4), tmp_path / "s", dtype=dtype, shard_rows=8)
    expected = collect_rows(model, every_token(30))
    found = store.take(store.index, [f"rows/{site}" for site in expected])
    for site, rows in expected.items():
        assert torch.equal(found[f"rows/{site}"], rows.to(dtype))
    assert store.dtype == dtype == RowStore(tmp_path / "s").dtype
    name = str(dtype).removeprefix("torch.")
    for other in (None, torch.float32):
        with pytest.raises(InputError, match=f"holds rows of dtype {name}; give a new folder, or delete this one"):
            save_rows(model, every_token(30), tmp_path / "s", dtype=other)
    save_rows(model, every_token(30), tmp_path / "own")
    with pytest.raises(InputError, match="holds rows of dtype of the model; give a new folder"):
        save_rows(model, every_token(30), tmp_path / "own", dtype=dtype)


def test_what_a_dtype_cannot_hold(two: dict[str, Any], tmp_path: Path) -> None:
    model = two["tuned"]
    model.layers[1].weight.data[12, 1] = -1e5
    with pytest.raises(InputError) as refused:
        save_rows(model, every_token(30).split(5), tmp_path / "s", dtype=torch.float16)
    assert str(refused.value) == (
        "torch.float16 cannot hold the activations at 'blocks.0.hook_resid_post' for example index 12 (up to 1e+05; "
        "the dtype's largest number is 6.55e+04); keep them in bfloat16 or float32"
    )
    store = save_rows(model, every_token(30).split(5), tmp_path / "b", dtype=torch.bfloat16)
    assert float(store.take(torch.tensor([12]), ["rows/blocks.0.hook_resid_post"]).popitem()[1][0, 1]) == -99840
    for dtype in (torch.int8, "float16"):
        with pytest.raises(InputError, match=r"; expected torch.float16, torch.bfloat16, torch.float32"):
            save_rows(model, every_token(30), tmp_path / "c", dtype=dtype)


def test_names_that_are_no_file_names(tmp_path: Path) -> None:
    folder = tmp_path / "shard-00000"
    names = ["index", "a/b", "..", "ü"]
    index = {"index": torch.arange(2), "tokens": torch.arange(2)}
    rows = ((name, torch.full((2, 3), float(i))) for i, name in enumerate(names))
    shards.write_shard(folder, index, rows)
    assert len(list(folder.iterdir())) == len(names) + 2
    for i, name in enumerate(names):
        assert shards.Shard(folder).rows(name).tolist() == [[i] * 3] * 2


def test_hooks_are_set_once(two: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = two["tuned"], list[int]()
    hooks = model.hooks
    monkeypatch.setattr(model, "hooks", lambda *a, **k: calls.append(1) or hooks(*a, **k))
    save_rows(model, every_token(30).split(3), tmp_path / "s", shard_rows=6)
    assert calls == [1]


# ---- interruptions ----


def test_an_interrupted_store_goes_on(two: dict[str, Any], tmp_path: Path, hooks_of: Any) -> None:
    """The last shard half written, as by a killed process; then the same call again."""
    model = two["tuned"]
    before = hooks_of(model)

    def failing() -> Any:
        yield from list(every_token(30).split(4))[:5]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_rows(model, failing(), tmp_path / "s", labels=["task"], shard_rows=8)
    with pytest.raises(InputError, match=r"is unfinished; call save_rows with the same arguments to finish it"):
        RowStore(tmp_path / "s")
    model.calls.clear()
    store = save_rows(model, every_token(30).split(4), tmp_path / "s", labels=["task"], shard_rows=8)
    assert model.calls.count("hook_embed") == 3  # 10 examples in batches of 4; 20 were there
    assert torch.equal(store.take(store.index, ["rows/hook_embed"])["rows/hook_embed"], model.layers[0].weight.detach())
    model.calls.clear()
    save_rows(model, every_token(30).split(9), tmp_path / "s", labels=["task"])
    assert model.calls == []
    assert hooks_of(model) == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_what_was_measured_is_kept_whatever_fails(
    two: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """In the forward pass, between two sites of an update, and between handing rows over and letting them go."""
    model, expected = two["tuned"], collect_rows(two["tuned"], every_token(30))

    def failing(function: Callable[..., Any], calls: int, first: bool = False) -> Callable[..., Any]:
        left = [calls]

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] or first:
                found = function(*args, **kwargs)
            if not left[0]:
                raise error
            return found

        return wrapped

    places = [  # the fifth batch's pass and update; the first shard of 8 examples
        (type(model), "forward", 5, False, 16),
        (RowsState, "add", 5 * 4 - 2, False, 16),
        (kept_rows.KeptRows, "reset", 2, False, 8),
        (kept_rows.KeptRows, "reset", 2, True, 8),
        (save._Writer, "_wait", 2, False, 16),
    ]
    for k, (whose, name, calls, first, kept) in enumerate(places):
        with monkeypatch.context() as patched:
            patched.setattr(whose, name, failing(getattr(whose, name), calls, first))
            with pytest.raises(error):
                save_rows(model, every_token(30).split(4), tmp_path / str(k), shard_rows=8)
        found = [shard.columns()["index"] for shard in shards.store_shards(tmp_path / str(k))]
        assert torch.cat(found).tolist() == list(range(kept)), name
        store = save_rows(model, every_token(30).split(4), tmp_path / str(k), shard_rows=8)
        for site, rows in expected.items():
            assert torch.equal(store.take(store.index, [f"rows/{site}"])[f"rows/{site}"], rows)


def test_after_bad_input_something_else_may_be_given(two: dict[str, Any], tmp_path: Path) -> None:
    def failing() -> Any:
        yield every_token(12)
        raise InputError("this is a bad prompt; give another")

    with pytest.raises(InputError, match="bad prompt"):
        save_rows(two["tuned"], failing(), tmp_path / "s")
    assert len(save_rows(two["tuned"], every_token(30), tmp_path / "s", dtype=torch.float64)) == 30


def test_a_shard_every_some_seconds(two: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 10 seconds each: one of 4, for the clock starts before the first batch is read."""
    clock = [0.0]
    monkeypatch.setattr(save.time, "monotonic", lambda: clock[0])

    def slow() -> Any:
        for batch in every_token(30).split(4):
            clock[0] += 10
            yield batch

    store = save_rows(two["tuned"], slow(), tmp_path / "s")
    assert [len(index) for index in store.blocks()] == [12, 12, 6]


_KILLED = """
import os, signal, sys
import torch
import probes.store.files, probes.rows.row_store, probes.rows.save
from probes import save_rows
from tests.probes.conftest import FakeModel
from tests.probes.test_cka import every_token, states

model = FakeModel(states(30, 4, 4, 4)).eval()

def save(folder, last):
    left = [last]
    def killing(function):
        def wrapped(*args, **kwargs):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)
        return wrapped
    for name in ("mkdir", "fsync", "replace"):
        setattr(os, name, killing(getattr(os, name)))
    save_rows(model, every_token(30).split(4), folder, labels=["task"], shard_rows=12)

save_rows(model, every_token(3), f"{sys.argv[1]}/first", labels=["task"])  # imports what is imported late
for last in range(1, 100):
    child = os.fork()
    if not child:
        save(f"{sys.argv[1]}/{last}", last)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        print(last, os.WEXITSTATUS(status))
        break
"""


@pytest.mark.slow
def test_killed_at_any_point(two: dict[str, Any], tmp_path: Path, hooks_of: Any) -> None:
    """SIGKILL before each call that makes a folder, flushes a file or renames one; then the same call again."""
    done = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    last, status = map(int, done.stdout.split())
    assert (last > 20, status) == (True, 0)
    model, kept = two["tuned"], set()
    for k in range(1, last):
        folder = tmp_path / str(k)
        before = {path.name for path in folder.iterdir()} if folder.exists() else set()
        model.calls.clear()
        store = save_rows(model, every_token(30).split(4), folder, labels=["task"], shard_rows=12)
        kept.add((len([name for name in before if name.startswith("shard")]), model.calls.count("hook_embed")))
        for i, site in enumerate(store.sites):
            assert torch.equal(store.take(store.index, [f"rows/{site}"])[f"rows/{site}"], model.layers[i].weight.data)
        assert {path.name.split("-")[0] for path in folder.iterdir()} == {LOCK, "rows.json", "shard"}
    # Nothing kept is measured again: 12 of 30 examples a shard, in batches of 4.
    assert {(0, 8), (1, 5), (2, 2)} <= kept <= {(0, 8), (1, 5), (2, 2), (3, 0)}


def test_leftovers(two: dict[str, Any], tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    folder = tmp_path / "s"
    shard, header = (temporary_file_of(folder / name).name for name in ("shard-00000", "rows.json"))

    def of(name: str, process: int) -> Path:
        return folder / name.replace(f".{os.getpid()}.", f".{process}.")

    of(shard, dead.pid).mkdir(parents=True)
    (of(shard, dead.pid) / "hook_embed.safetensors").write_bytes(b"half")
    of(header, dead.pid).write_bytes(b"half")
    of(header, os.getpid()).write_bytes(b"of a process before us")
    of(header, 10**25).write_bytes(b"half")
    (living := of(header, os.getppid())).write_bytes(b"of a living one")
    save_rows(two["tuned"], every_token(30), folder)
    assert {path.name for path in folder.iterdir()} == {LOCK, "rows.json", "shard-00000", living.name}


def test_killed_while_the_header_was_first_written(two: dict[str, Any], tmp_path: Path) -> None:
    """Of a dead process of this machine, and of one of another, which may live."""
    (tmp_path / ".rows.json.1.tmp").touch()
    assert len(save_rows(two["tuned"], every_token(30), tmp_path)) == 30


_SAVED = """
import sys, time
from probes import save_rows
from tests.probes.conftest import FakeModel
from tests.probes.test_cka import every_token, states

def slow():
    for batch in every_token(30).split(4):
        yield batch
        print("measured", flush=True)
        time.sleep(float(sys.argv[2]))

save_rows(FakeModel(states(30, 4, 4, 4)).eval(), slow(), sys.argv[1], shard_rows=4)
"""


@pytest.mark.slow
def test_two_processes_in_one_folder(two: dict[str, Any], tmp_path: Path) -> None:
    """The second is refused; when the first is killed the second goes on with what the first kept."""
    command = [sys.executable, "-c", _SAVED, str(tmp_path / "s")]
    with subprocess.Popen([*command, "60"], stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"measured\n"
        refused = subprocess.run([*command, "0"], capture_output=True, text=True, check=False)
        first.kill()
    assert refused.stderr.splitlines()[-1] == (
        f"tasks.errors.InputError: {str(tmp_path / 's')!r} is in use by another process; wait until it is done, or "
        "give a new folder"
    )
    again = subprocess.run([*command, "0"], capture_output=True, text=True, check=False)
    assert (again.returncode, again.stderr) == (0, "")
    found = RowStore(tmp_path / "s").take(torch.arange(30), ["rows/hook_embed"])
    assert torch.equal(found["rows/hook_embed"], two["tuned"].layers[0].weight.data)


def test_interrupted_and_resumed_with_other_labels(two: dict[str, Any], tmp_path: Path) -> None:
    def interrupted() -> Any:
        yield from list(every_token(30).split(10))[:2]
        raise KeyboardInterrupt

    relabelled = every_token(30)
    relabelled.labels["task"] = relabelled.labels["task"] + 3
    with pytest.raises(KeyboardInterrupt):
        save_rows(two["tuned"], interrupted(), tmp_path / "s", labels=["task"], shard_rows=10)
    with pytest.raises(InputError) as refused:
        save_rows(two["tuned"], relabelled, tmp_path / "s", labels=["task"], shard_rows=10)
    assert str(refused.value) == (
        f"example index 0 has 3 as its label 'task', not 0 as in {str(tmp_path / 's')!r}; give the same labels, or "
        "a new folder"
    )
    assert len(save_rows(two["tuned"], every_token(30), tmp_path / "s", labels=["task"])) == 30


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
    relabelled = every_token(30)
    relabelled.labels["task"][4] = 2
    (tmp_path / "file").write_text("mine")
    tuned = {"labels": ["task"]}
    for args, options, message in (
        (
            (two["base"], every_token(30), folder),
            tuned,
            f"{str(folder)!r} holds rows of another model or dtype; give a new folder",
        ),
        ((model, every_token(30), folder), {**tuned, "at": residual(0)}, "holds rows of other sites"),
        ((model, every_token(30), folder), {**tuned, "readout": mean()}, "holds rows of another readout"),
        ((model, every_token(30), folder), {}, "holds rows of other labels"),
        (
            (model, relabelled, folder),
            tuned,
            f"example index 4 has 2 as its label 'task', not 1 as in {str(folder)!r}; give the same labels, or a new",
        ),
        ((model, swapped, folder), tuned, f"example index 4 has different tokens in {str(folder)!r}; give the same"),
        ((model, every_token(28), folder), tuned, "holds example index 28, which is not in these batches (2 such)"),
        ((model, every_token(30), tmp_path / "other"), tuned, "has files but is not a row store; give a new folder"),
        ((model, every_token(30), tmp_path / "file"), tuned, "is a file; give a new folder"),
        ((model, [every_token(3)] * 2, tmp_path / "a"), {}, "example index 0 was given twice; give every example"),
        ((model, [], tmp_path / "b"), {}, "there are no examples to measure"),
        (
            (model, every_token(3), tmp_path / "c"),
            {"labels": "task"},
            "labels is the string 'task'; expected a sequence",
        ),
        (
            (model, every_token(3), tmp_path / "c"),
            {"labels": ["task", "task"]},
            "label 'task' is named twice; name it once",
        ),
        ((model, every_token(3), tmp_path / "c"), {"shard_rows": 0}, "shard_rows is 0; expected at least 1"),
        ((model, every_token(3), tmp_path / "c"), {"readout": all_tokens()}, "all_tokens() keeps every position"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            save_rows(*args, **options)
    assert not (tmp_path / "c").exists()


def test_padding_does_not_change_what_the_tokens_were(two: dict[str, Any], tmp_path: Path) -> None:
    tokens = torch.tensor([[1, 2, 0], [3, 4, 5], [7, 8, 9], [2, 1, 0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 1, 1], [1, 1, 0]]).bool()
    shifted = torch.tensor([[0, 1, 2], [3, 4, 5], [7, 8, 9], [0, 2, 1]])
    one = save_rows(two["tuned"], Batch(tokens, mask), tmp_path / "a")
    other = save_rows(two["base"], Batch(shifted, mask.flip(1)), tmp_path / "b")
    assert torch.equal(one.tokens, other.tokens)
    assert len(torch.unique(one.tokens)) == 4
    assert run_stores({"a": one, "b": other}, CKA())["n"].tolist() == [4]


def test_unsigned_labels_and_index_are_kept(two: dict[str, Any], tmp_path: Path) -> None:
    numbers = torch.arange(6).to(torch.uint16)
    batch = Batch(every_token(6).tokens, labels={"task": numbers}, index=numbers)
    store = save_rows(two["base"], batch, tmp_path / "rows", labels=["task"])
    assert store.take(store.index, ["labels/task"])["labels/task"].tolist() == [0, 1, 2, 3, 4, 5]


def test_an_index_of_small_integers_is_the_same_index(two: dict[str, Any], tmp_path: Path) -> None:
    tokens = every_token(6).tokens
    for n, dtype in ((4, torch.int32), (6, torch.int64), (6, torch.int16)):  # resumed with others
        store = save_rows(two["base"], Batch(tokens[:n], index=torch.arange(n).to(dtype)), tmp_path / "rows")
    rows = store.take(torch.tensor([5, 0], dtype=torch.int32), ["rows/hook_embed"])["rows/hook_embed"]
    assert torch.equal(rows, two["base"].layers[0].weight.detach()[[5, 0]])
    with pytest.raises(InputError, match=r"^the index of examples is torch.float32; give integers$"):
        store.take(torch.tensor([0.5]), ["rows/hook_embed"])


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
            "example index 28 is in the rows of 'tuned' but not of 'fewer' (2 such); save both from the same batches",
        ),
        (
            {"tuned": stores["tuned"], "x": other},
            CKA(),
            "example index 4 has different tokens in 'tuned' and 'x' (2 such); save both from the same prompts",
        ),
        (other, CKA(), "has no rows of 'hook_embed' (it has blocks.0.hook_resid_post, blocks.1.hook_resid_post)"),
        (stores, CKA(readout=mean()), "holds rows of readout last_token(), but the probe has mean(); give the probe"),
        (
            stores,
            TaskClusterARI(readout=last_token()),
            "TaskClusterARI measures one model at a time; give it one store",
        ),
        (fewer, CKA(label="task"), "no label 'task' in this batch"),
        ({0: fewer, 1: fewer}, CKA(), "a model is called 0; expected a name, such as 'tuned'"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            run_stores(given, probe)


def test_damaged_stores(two: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no row store in .*nowhere'; write one with save_rows"):
        RowStore(tmp_path / "nowhere")
    model, folder = two["tuned"], saved(two, tmp_path)["tuned"].folder
    expected = collect_rows(model, every_token(30))["hook_embed"]

    def flip(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        path.write_bytes(data)

    def again() -> torch.Tensor:
        store = save_rows(model, every_token(30), folder, labels=["task"])
        return store.take(store.index, ["rows/hook_embed"])["rows/hook_embed"]

    one = folder / "shard-00001"
    shutil.rmtree(one)
    with pytest.raises(InputError, match=r"holds 22 of 30 examples, so a shard is missing; call save_rows"):
        RowStore(folder)
    assert torch.equal(again(), expected)  # the missing shard is written anew, beside the others
    one = folder / "shard-00002"
    way = "and call save_rows with the same arguments to measure its examples again"
    harm: list[tuple[str, Callable[[Path], None], str]] = [
        ("index.safetensors", flip, "is damaged (its checksum does not match)"),
        ("index.safetensors", Path.unlink, "is missing"),
        ("shard.json", Path.unlink, "is missing or damaged"),
        ("shard.json", lambda path: path.write_text("[]") and None, "is missing or damaged"),
        ("hook_embed.safetensors", flip, "is damaged (its checksum does not match)"),
        ("hook_embed.safetensors", lambda path: os.truncate(path, 9), "is damaged (its size or header does not match)"),
        ("hook_embed.safetensors", lambda path: os.truncate(path, 0), "is damaged (its size or header does not match)"),
        (
            "hook_embed.safetensors",
            lambda path: os.truncate(path, path.stat().st_size - 1),
            "is damaged (its size or header does not match)",
        ),
        ("hook_embed.safetensors", Path.unlink, "cannot be read (No such file or directory)"),
    ]
    for name, damage, words in harm:
        damage(one / name)
        with pytest.raises(InputError) as refused:
            again()
        assert str(refused.value) == f"{str(one / name)!r} {words}; delete the folder {str(one)!r} {way}"
        if damage is not flip:
            with pytest.raises(InputError, match=re.escape(words)):
                save_rows(model, every_token(30), folder, labels=["task"])
        shutil.rmtree(one)
        assert torch.equal(again(), expected)
        one = max(folder.glob("shard-*"))


def test_headers_of_others(two: dict[str, Any], tmp_path: Path) -> None:
    folder = saved(two, tmp_path)["base"].folder
    older = f"{str(folder)!r} was written by another version (mechclust-rows-1); save the rows again, in a new folder"
    other = (
        f"{str(folder / 'rows.json')!r} is damaged or not the header of a row store; save the rows again, in a new "
        "folder"
    )
    whole = (folder / "rows.json").read_text()
    for text, message in (
        ("{", other),
        (whole.replace("readout", "readou\udcf4"), other),  # a byte with its first bit flipped
        (whole.replace("readout", "seadout"), other),
        ("[]", other),
        (json.dumps({"format": "another"}), other),
        (whole.replace("hook_embed", "hook_embee"), other),
        (json.dumps({"format": "mechclust-rows-1", "sites": []}), older),
    ):
        (folder / "rows.json").write_bytes(text.encode(errors="surrogateescape"))
        for call in (lambda: RowStore(folder), lambda: save_rows(two["base"], every_token(30), folder)):
            with pytest.raises(InputError) as refused:
                call()
            assert str(refused.value) == message


def test_what_is_no_store(two: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text("{}")
    name = str(tmp_path / "prompts.jsonl")
    with pytest.raises(InputError) as refused:
        RowStore(tmp_path / "prompts.jsonl")
    assert str(refused.value) == f"{name!r} is a file; give the folder that save_rows wrote"
    store: Any
    for store in ("st", Path("st"), {"a": "st"}):
        with pytest.raises(InputError, match=r"^'st' is a path; give RowStore\('st'\)$"):
            run_stores(store, NDims())
    with pytest.raises(InputError, match=r"^got Tensor as rows; give a RowStore, or what rows_from returns$"):
        run_stores(torch.ones(2, 3), NDims())  # type: ignore[call-overload]
    store = save_rows(two["tuned"], every_token(30), tmp_path / "s")
    with pytest.raises(InputError) as refused:
        run_stores(store, CKA(residual([0, 1]), label="task"))
    assert str(refused.value) == (
        "no label 'task' in this batch (it has no labels); save the rows again with it: save_rows(..., labels=['task'])"
    )


def test_what_is_not_in_a_store(two: dict[str, Any], tmp_path: Path) -> None:
    store = saved(two, tmp_path)["tuned"]
    name = str(store.folder)
    for index, names, message in (
        ([3, 30], ["rows/hook_embed"], f"{name!r} has no rows of example index 30 (1 such); choose from its index"),
        ([-1], ["labels/task"], "has no rows of example index -1"),
        ([3], ["rows/hook_embad"], "has no rows of 'hook_embad' (it has hook_embed, blocks.0.hook_resid_post,"),
        ([3], ["labels/topic"], "has no label 'topic' (it has task)"),
        ([3], ["hook_embed"], f"'hook_embed' is not a name in {name!r}; expected 'rows/<site>' or 'labels/<name>'"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            store.take(torch.tensor(index), names)
    assert store.take(torch.tensor([], dtype=torch.int64), ["rows/hook_embed"])["rows/hook_embed"].shape == (0, 4)
    with pytest.raises(InputError, match="has no rows of example index 7"):
        store.select(torch.arange(7)).take(torch.tensor([7]), ["labels/task"])


# ---- a disk that is full ----


class _Usage(NamedTuple):
    free: int


def test_too_little_space_is_refused_before_work(
    two: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = two["tuned"]
    needed = 30 * 3 * 4 * 4
    monkeypatch.setattr(shutil, "disk_usage", lambda path: _Usage(needed - 1))
    folder = tmp_path / "new" / "rows"
    message = (
        f"the rows of 30 examples take 1.4 KiB on disk (3 hook points, 12 numbers of 4 bytes per example), but "
        f"{str(folder)!r} has 1.4 KiB free; give fewer prompts or layers, dtype=torch.bfloat16, or another folder"
    )

    def refused(given: Any, calls: int, **options: Any) -> str:
        model.calls.clear()
        with pytest.raises(InputError) as error:
            save_rows(model, given, folder, **options)
        assert model.calls.count("hook_embed") == calls
        return str(error.value)

    tokens = torch.arange(30)[:, None]
    ways: list[Any] = [
        every_token(30),
        list(every_token(30).split(4)),
        tokens,
        {"input_ids": tokens},
        list(tokens.split(7)),
    ]
    for given in ways:
        assert refused(given, 1) == message  # the width is known after the first batch
        model.cfg = type("cfg", (), {"d_model": 4})
        assert refused(given, 0) == message
        del model.cfg
    monkeypatch.setattr(shutil, "disk_usage", lambda path: _Usage(needed // 2 - 1))
    assert refused(every_token(30), 1, dtype=torch.float16).endswith(
        "720 bytes on disk (3 hook points, 12 numbers of 2 bytes per example), but "
        f"{str(folder)!r} has 719 bytes free; give fewer prompts or layers, or another folder"
    )
    save_rows(model, every_token(30).split(4), folder)  # a generator: of how many is not known
    assert len(save_rows(model, every_token(30), folder)) == 30  # all there: nothing is written
    monkeypatch.setattr(shutil, "disk_usage", lambda path: _Usage(needed))
    assert len(save_rows(model, every_token(30), tmp_path / "fits")) == 30


@pytest.mark.parametrize("at", [2, 9])
def test_a_disk_that_fills_up(
    two: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hooks_of: Any, at: int
) -> None:
    model, folder, calls = two["tuned"], tmp_path / "s", Counter[str]()
    before, fsync = hooks_of(model), os.fsync

    def full(file: int) -> None:
        calls["fsync"] += 1
        if calls["fsync"] > at:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(file)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError) as refused:
        save_rows(model, every_token(30).split(4), folder, shard_rows=8)
    kept = 8 * len(list(folder.glob("shard-*")))
    assert kept == {2: 0, 9: 8}[at]
    assert str(refused.value) == (
        f"the rows could not be written to {str(folder)!r} (No space left on device); the {kept} examples already "
        "written are kept: free space there, and call save_rows with the same arguments to continue"
    )
    assert ([path.name for path in folder.glob(".*")], hooks_of(model)) == ([LOCK], before)
    monkeypatch.setattr(os, "fsync", fsync)
    model.calls.clear()
    assert len(save_rows(model, every_token(30).split(4), folder, shard_rows=8)) == 30
    assert model.calls.count("hook_embed") == -(-(30 - kept) // 4)


def test_shards_that_cannot_be_written(two: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> None:
        raise InputError("cannot write") from PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(save, "write_shard", failing)
    message = r"\(Permission denied\); the 0 examples already written are kept: make the folder writable, and call save"
    with pytest.raises(InputError, match=message):
        save_rows(two["tuned"], every_token(30), tmp_path / "s")


def test_a_copy_of_a_shard_is_refused(two: dict[str, Any], tmp_path: Path) -> None:
    save_rows(two["base"], every_token(12).split(4), tmp_path, shard_rows=4)
    shutil.copytree(tmp_path / "shard-00001", tmp_path / "shard-00003")
    message = f"{str(tmp_path)!r} holds example index 4 in 'shard-00001' and 'shard-00003'; delete one of these folders"
    with pytest.raises(InputError, match=re.escape(message)):
        RowStore(tmp_path)
    shutil.rmtree(tmp_path / "shard-00003")
    assert len(save_rows(two["base"], every_token(12).split(4), tmp_path, shard_rows=4)) == 12


def test_shards_without_their_header_are_told_by_its_name(two: dict[str, Any], tmp_path: Path) -> None:
    save_rows(two["base"], every_token(6), tmp_path / "rows")
    (tmp_path / "rows" / "rows.json").unlink()
    message = "has shards of rows but no rows.json, which says which model they are of; put it back, delete the"
    with pytest.raises(InputError, match=re.escape(message)):
        save_rows(two["base"], every_token(6), tmp_path / "rows")
