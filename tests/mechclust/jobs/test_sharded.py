"""A measurement cut into shards: the same numbers, whoever measured what, and nothing twice."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from mechclust.jobs import Outcome, imap_jobs, run_sharded, sharded
from mechclust.models import ModelConfig, build_model
from probes import CKA, NDims, Probe, Rows, Sum, TaskClusterARI, last_token, residual, run
from probes.store.locks import locked_folder
from probes.store.versions import package_versions
from tasks import Batch, InputError
from tests.damage import WAYS

ROOT = Path(__file__).parents[3]
CONFIG = ModelConfig(d_vocab=20, n_ctx=8, n_layers=1, d_model=16, n_heads=2, init_std=0.2)
TOKENS = torch.randint(0, 20, (90, 8), generator=torch.Generator().manual_seed(0))
WHOLE = Batch(TOKENS, labels={"task": TOKENS[:, 0] % 3})
one = partial(build_model, CONFIG)


def seeded(seed: int) -> Any:
    return build_model(ModelConfig(**{**vars(CONFIG), "seed": seed}))


def two() -> dict[str, Any]:
    return {"tuned": seeded(0), "base": seeded(1)}


class Every(Probe):
    """All kinds of state but moments: a real sum, an integer one, rows with a cap and without."""

    total, count, kept, few = Sum(), Sum(torch.int64), Rows(), Rows(cap=7)

    def __init__(self, at: Any = residual(), readout: Any = last_token()) -> None:
        self.at, self.readout = at, readout

    def update(self, activations: Any, batch: Batch) -> None:
        for site, x in activations.items():
            self.total.add(site, x.double().sum(dim=0))
            self.count.add(site, len(x))
            self.kept.add(site, batch.index, x)
            self.few.add(site, batch.index, x)

    def compute(self) -> Any:
        parts = {"total": self.total, "count": self.count}
        values = {name: torch.stack([state[site] for site in self.site_names]) for name, state in parts.items()}
        rows = {"kept": self.kept, "few": self.few}
        values |= {name: torch.stack([state.get(site)[1] for site in self.site_names]) for name, state in rows.items()}
        axes = {"total": ("site", "d"), "count": ("site",), "kept": ("site", "row", "d"), "few": ("site", "some", "d")}
        sizes = {"d": 16, "row": len(values["kept"][0]), "some": len(values["few"][0])}
        return self.result(values, axes, {name: list(map(str, range(n))) for name, n in sizes.items()})


def words(texts: list[str]) -> dict[str, list[list[int]]]:
    """A tokenizer: the digits of a text."""
    return {"input_ids": [[int(i) for i in text.split()] for text in texts]}


def function(k: int, before: Any = None) -> list[Batch]:
    """The batches of a shard; numbers 0 to 2."""
    if before is not None:
        before()
    return list(WHOLE.select(slice(30 * k, 30 * k + 30)).split(10))


def die_once(flag: Path, whom: Any = os.getpid) -> None:
    if not flag.exists():
        flag.touch()
        os.kill(whom(), signal.SIGKILL)


def same(one: Any, other: Any) -> bool:
    """To the bit."""
    values = one.values.keys() == other.values.keys() and all(
        torch.equal(one[name].nan_to_num(7.0), other[name].nan_to_num(7.0)) for name in one.values
    )
    return values and one.metadata == other.metadata and one.notes == other.notes


class TestEqualToRun:
    @pytest.mark.parametrize(
        ("load", "probe"),
        [
            (one, Every()),
            (one, TaskClusterARI(readout=last_token(), label="task", n_init=1, n_permutations=9)),
            (two, CKA(label="task", form="rows")),
            (two, CKA(label="task", n_resamples=5)),
        ],
    )
    def test_to_the_bit_where_rows_and_integers_are_kept(self, load: Any, probe: Probe) -> None:
        expected = run(load(), WHOLE.split(10), probe.clone())
        found = run_sharded(load, WHOLE.split(10), probe, workers=1, shard_examples=20)
        if isinstance(probe, Every):
            torch.testing.assert_close(found.values.pop("total"), expected.values.pop("total"), rtol=1e-12, atol=0)
        assert same(found, expected)
        assert len(probe.examples) == 90

    @pytest.mark.parametrize(
        ("load", "probe"),
        [
            (one, NDims(form="moments")),
            (two, CKA(label="task", form="moments")),
            (two, CKA(label="task", pairs="all")),
        ],
    )
    def test_to_rounding_where_moments_are(self, load: Any, probe: Probe) -> None:
        expected = run(load(), WHOLE.split(10), probe.clone())
        found = run_sharded(load, WHOLE.split(10), probe, workers=1, shard_examples=20)
        assert found.metadata == expected.metadata
        for name in expected.values:
            torch.testing.assert_close(found[name], expected[name], rtol=1e-9, atol=1e-12, equal_nan=True)

    def test_several_probes_and_their_padding(self) -> None:
        """Texts of many lengths, which need a tokenizer here and no model."""
        texts = [" ".join(map(str, row[: 2 + i % 7].tolist())) for i, row in enumerate(TOKENS)]
        probes = [Every(), NDims(form="rows")]
        kwargs: dict[str, Any] = {"tokenizer": words, "tokens_per_batch": 64}
        expected = run(one(), texts, [probe.clone() for probe in probes], **kwargs)
        found = run_sharded(one, texts, probes, workers=1, shard_examples=20, **kwargs)
        assert expected[0].metadata["padding"] > 0
        assert [result.metadata for result in found] == [result.metadata for result in expected]
        assert torch.equal(found[0]["kept"], expected[0]["kept"])
        assert same(found[1], expected[1])

    def test_everything_that_a_batch_holds_goes_along(self) -> None:
        batch = Batch(
            TOKENS[:6],
            attention_mask=TOKENS[:6] > 3,
            targets=TOKENS[:6],
            loss_mask=TOKENS[:6] > 2,
            positions={"input": TOKENS[:6, 1] % 8},
            labels={"a/b": TOKENS[:6], "task": TOKENS[:6, 0], "": TOKENS[:6, 2]},
            index=torch.tensor([9, 8, 3, 4, 1, 7]),
            lacks={"": "say %r"},
        )
        (shard,) = sharded.shards_of(
            [batch.select(slice(1, None))],
            1,
            reading=sharded.tokenizer_of_data_shards(None, "model"),
            tokens_per_batch=1,
        )
        (found,) = shard.batches({}, shard.reading({}))
        expected = batch.select(slice(1, None))
        for name in ("tokens", "attention_mask", "targets", "loss_mask", "index"):
            assert torch.equal(getattr(found, name), getattr(expected, name)), name
        assert torch.equal(found.position("input"), expected.position("input"))
        assert torch.equal(found.label("a/b"), expected.label("a/b"))
        assert torch.equal(found.label("task"), expected.label("task"))
        assert torch.equal(found.label(""), expected.label(""))  # as of a CSV file with an unnamed column
        assert found.lacks == {"": "say %r"}
        assert len(shard.source) < 3000  # a slice, and not all that it was cut from

    def test_functions_that_give_batches(self) -> None:
        probe = Every()
        found = run_sharded(one, [partial(function, k) for k in range(3)], probe, workers=1)
        expected = run(one(), WHOLE.split(10), Every())
        assert torch.equal(found["kept"], expected["kept"])
        assert found.metadata == expected.metadata

    def test_functions_that_give_texts(self) -> None:
        """They bring no index: each shard has numbers of its own."""
        texts = [[" ".join(map(str, row.tolist())) for row in TOKENS[30 * k : 30 * k + 30]] for k in range(3)]
        probe = Every()
        found = run_sharded(one, [partial(list, some) for some in texts], probe, workers=1, tokenizer=words)
        assert probe.examples.tensor().tolist() == [[k * 2**32, k * 2**32 + 29] for k in range(3)]
        torch.testing.assert_close(found["kept"], run(one(), WHOLE, Every())["kept"], rtol=1e-5, atol=1e-6)


def one_worker_a_shard(seed: int, fn: Any, jobs: Any, *_: Any, setup: Any, **__: Any) -> Any:
    """In place of ``imap_jobs``: outcomes in a random order."""
    outcomes = [Outcome(k, fn(setup(), job)) for k, job in enumerate(jobs)]
    random.Random(seed).shuffle(outcomes)
    yield from outcomes


class TestOrder:
    def test_merged_in_the_order_of_the_shards_whoever_is_first(self, monkeypatch: Any) -> None:
        probe = CKA(label="task", form="moments")
        expected = run_sharded(one, WHOLE.split(10), probe, workers=1, shard_examples=20)
        for seed in range(2):
            monkeypatch.setattr(sharded, "imap_jobs", partial(one_worker_a_shard, seed))
            assert same(run_sharded(one, WHOLE.split(10), probe, shard_examples=20), expected)

    @pytest.mark.parametrize("progress", [False, True])
    def test_its_settings_reach_the_workers(self, monkeypatch: Any, capsys: Any, progress: bool) -> None:
        seen: dict[str, Any] = {}

        def noted(*given: Any, **settings: Any) -> Any:
            seen.update(settings)
            return one_worker_a_shard(0, *given, **settings)

        monkeypatch.setattr(sharded, "imap_jobs", noted)
        run_sharded(one, WHOLE, NDims(), timeout=7.0, progress=progress)
        assert (seen["timeout"], seen["lead"]) == (7.0, sharded._MAX_SHARDS_AHEAD)
        assert ("measuring" in capsys.readouterr().err) == progress

    def test_workers_whose_models_differ(self, monkeypatch: Any) -> None:
        monkeypatch.setattr(sharded, "imap_jobs", partial(one_worker_a_shard, 0))
        seeds = iter(range(9))
        with pytest.raises(InputError) as refused:
            run_sharded(lambda: seeded(next(seeds)), WHOLE.split(10), NDims(), shard_examples=30)
        assert str(refused.value) == (
            "shard 1 was measured on a different model from shard 0 (their weights or configurations differ); give "
            "every worker the same model and measure again"
        )

    def test_workers_whose_models_differ_are_stopped_at_the_second_shard(self) -> None:
        """Not when all data is measured."""
        measured = []

        def batches() -> Any:
            for batch in WHOLE.split(10):
                measured.append(len(batch))
                yield batch

        def reseeded(fn: Any, jobs: Any, *_: Any, **__: Any) -> Any:
            for k, job in enumerate(jobs):
                yield Outcome(k, fn(sharded._Worker(partial(seeded, k)), job))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sharded, "imap_jobs", reseeded)
            with pytest.raises(InputError, match=r"^shard 1 was measured on a different model from shard 0"):
                run_sharded(one, batches(), NDims(), shard_examples=10)
        assert sum(measured) == 20

    def test_what_comes_early_waits(self) -> None:
        outcomes = iter([Outcome(2, "c"), Outcome(0, "a"), Outcome(1, "b"), Outcome(3, "d")])
        merged = sharded._in_order(outcomes, kept=False)
        assert [next(merged), next(merged), next(merged)] == ["a", "b", "c"]
        assert list(merged) == ["d"]

    def test_of_several_errors_the_first_shards_is_raised_and_what_is_kept_goes_on(self) -> None:
        """Also where it comes last."""
        outcomes = [Outcome(1, None, ValueError("b")), Outcome(0, "a"), Outcome(3, "d"), Outcome(2, None, OSError("c"))]
        for kept, left in ((True, []), (False, [3, 2])):
            given = iter(outcomes)
            with pytest.raises(ValueError, match="b"):
                list(sharded._in_order(given, kept=kept))
            assert [outcome.position for outcome in given] == left

    def test_data_is_drawn_as_it_is_needed(self, monkeypatch: Any) -> None:
        drawn, ahead = [], []

        def batches() -> Any:
            for batch in WHOLE.split(10):
                drawn.append(len(batch))
                yield batch

        class Told(Every):
            def merge(self, other: Probe) -> None:
                ahead.append(sum(drawn) - len(self.examples))
                super().merge(other)

        run_sharded(one, batches(), Told(), workers=1, shard_examples=10)
        assert max(ahead) <= 20

    def test_many_small_states_of_rows_end_as_moments(self) -> None:
        """Rows of each shard take less memory than moments, those of all shards more."""
        probe, expected = CKA(residual(1)), CKA(residual(1))
        run(one(), WHOLE.split(10), expected)
        found = run_sharded(one, WHOLE.split(10), probe, workers=1, shard_examples=10)
        assert found.metadata["form"] == "moments"
        assert not len(probe.rows)
        torch.testing.assert_close(found["cka"], expected.compute()["cka"], rtol=1e-12, atol=0)


@pytest.mark.slow
class TestProcesses:
    def test_two_workers_of_which_one_is_killed_in_a_shard(self, tmp_path: Path) -> None:
        """Its shard is measured again by another one, counted once, and the bits are those of one process."""
        probes = [CKA(label="task", form="moments"), Every()]
        expected = run_sharded(one, [partial(function, k) for k in range(3)], probes, workers=1)
        killed = partial(function, 1, partial(die_once, tmp_path / "killed"))
        shards = [partial(function, 0), killed, partial(function, 2)]
        found = run_sharded(one, shards, [probe.clone() for probe in probes], workers=2, out=tmp_path / "out")
        assert (tmp_path / "killed").exists()
        assert all(map(same, found, expected))

    def test_the_killed_driver_is_gone_on_with(self, tmp_path: Path) -> None:
        """Killed in the second of three shards: the first is not measured again."""
        code = f"""
import os
from functools import partial
from pathlib import Path
from tests.mechclust.jobs.test_sharded import *
die = partial(die_once, Path({str(tmp_path / "killed")!r}))
shards = [partial(function, 0), partial(function, 1, die), partial(function, 2)]
run_sharded(one, shards, [CKA(label="task", form="moments"), Every()], workers=1, out={str(tmp_path / "out")!r})
"""
        driver = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
        assert driver.returncode == -signal.SIGKILL
        out = tmp_path / "out"
        assert sorted(path.name for path in out.glob("shard*")) == ["shard-00000.safetensors", "shards.json"]
        before = (out / "shard-00000.safetensors").stat().st_mtime_ns
        shards = [partial(function, k) for k in range(3)]
        probes: list[Probe] = [CKA(label="task", form="moments"), Every()]
        found = run_sharded(one, shards, probes, workers=1, out=out)
        assert (out / "shard-00000.safetensors").stat().st_mtime_ns == before
        assert all(map(same, found, run_sharded(one, shards, probes, workers=1)))


class TestFolder:
    @pytest.fixture(scope="class")
    @classmethod
    def finished(cls, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
        """A finished measurement: its folder, read only, and what it found."""
        out = tmp_path_factory.mktemp("finished") / "out"
        return out, cls.measure(out)

    @pytest.fixture
    def out(self, finished: tuple[Path, Any], tmp_path: Path) -> Path:
        """A copy of its folder."""
        return shutil.copytree(finished[0], tmp_path / "out")

    @staticmethod
    def measure(out: Path, load: Any = one, batches: Any = None, probe: Probe | None = None, **settings: Any) -> Any:
        given = {"workers": 1, "shard_examples": 30, **settings}
        return run_sharded(load, batches or WHOLE.split(10), probe or NDims(), out=out, **given)

    def test_nothing_is_measured_twice(self, finished: tuple[Path, Any], out: Path, monkeypatch: Any) -> None:
        monkeypatch.setattr(sharded, "run_by_steps", None)  # calling it would fail
        assert same(self.measure(out), finished[1])

    @pytest.mark.parametrize("damage", WAYS)
    def test_a_damaged_shard_is_measured_anew(self, finished: tuple[Path, Any], out: Path, damage: Any) -> None:
        path = out / "shard-00001.safetensors"
        whole = path.read_bytes()
        damage(path)
        assert same(self.measure(out), finished[1])
        assert path.read_bytes() == whole

    @pytest.mark.parametrize(
        ("changes", "told"),
        [
            ({"batches": [WHOLE.select(slice(30, 90))]}, "other examples, or of the same ones in other batches"),
            ({"batches": list(WHOLE.split(15))}, "other examples, or of the same ones in other batches"),
            (
                {"batches": list(Batch(TOKENS, labels={"task": TOKENS[:, 1] % 3}).split(10))},
                "other examples, or of the same ones in other batches",
            ),
            ({"load": partial(seeded, 1)}, "another model"),
        ],
    )
    def test_other_data_or_model(self, out: Path, changes: Any, told: str) -> None:
        with pytest.raises(InputError) as refused:
            self.measure(out, **changes)
        path = str(out / "shard-00000.safetensors")
        others = "" if len(changes.get("batches", "ab")) == 1 else "; 2 other jobs failed too"
        assert str(refused.value) == (
            f"job 'shard 0': {path!r} holds the state of {told}; give the same again, or a new folder as out{others}"
        )

    def test_other_probes(self, out: Path) -> None:
        with pytest.raises(InputError) as refused:
            self.measure(out, probe=NDims(variance=0.5))
        assert str(refused.value) == f"{str(out)!r} holds shards of {NDims()!r}; give a new folder, or delete this one"

    @pytest.mark.parametrize("text", [None, "{", '{"format": "mechclust-shards-1"}'])
    def test_a_lost_or_damaged_description_is_written_anew(
        self, finished: tuple[Path, Any], out: Path, text: str | None
    ) -> None:
        """Nothing is measured twice, and other probes are refused as before."""
        (out / "shards.json").unlink() if text is None else (out / "shards.json").write_text(text)
        before = (out / "shard-00001.safetensors").stat().st_mtime_ns
        with pytest.raises(InputError, match="other probes"):
            self.measure(out, probe=NDims(variance=0.5))
        (out / "shards.json").unlink()
        assert same(self.measure(out), finished[1])
        assert (out / "shard-00001.safetensors").stat().st_mtime_ns == before
        assert (out / "shards.json").exists()

    def test_other_versions_of_packages(self, out: Path, monkeypatch: Any) -> None:
        monkeypatch.setattr(sharded, "package_versions", lambda: {**package_versions(), "torch": "1.2.3"})
        with pytest.raises(InputError) as refused:
            self.measure(out)
        assert str(refused.value) == (
            f"{str(out)!r} was measured with torch {torch.__version__}, but this process has torch 1.2.3; install the "
            "same versions, or give a new folder"
        )
        (out / "shards.json").unlink()
        with pytest.raises(InputError, match="holds the state of other versions of packages; give"):
            self.measure(out)

    def test_the_shards_after_one_that_fails_are_kept(self, tmp_path: Path) -> None:
        """And the error names the first that failed."""
        shards = [partial(function, k) for k in range(3)]
        shards[0] = shards[1] = partial(int, "wrong")
        with pytest.raises(ValueError, match="wrong") as raised:
            self.measure(tmp_path / "out", batches=shards)
        assert "raised by job 'shard 0'" in raised.value.__notes__
        assert [path.name for path in (tmp_path / "out").glob("shard-*")] == ["shard-00002.safetensors"]

    def test_what_a_lost_node_was_writing_is_removed(self, out: Path) -> None:
        left = out / ".shard-00001.safetensors.elsewhere.77.tmp"
        left.touch()
        self.measure(out)
        assert not left.exists()

    def test_a_folder_of_something_else(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.tex").touch()
        with pytest.raises(InputError) as refused:
            self.measure(tmp_path)
        assert str(refused.value) == f"{str(tmp_path)!r} has files but no shards of a measurement; give a new folder"

    def test_a_second_owner(self, out: Path) -> None:
        with (
            locked_folder(out),
            pytest.raises(InputError, match=r"is in use by another process; wait until it is done, or"),
        ):
            self.measure(out)


class TestRefusals:
    def test_an_example_in_two_shards(self) -> None:
        with pytest.raises(InputError) as refused:
            run_sharded(
                one, [WHOLE.select(slice(0, 10)), WHOLE.select(slice(9, 20))], Every(), workers=1, shard_examples=1
            )
        assert str(refused.value) == (
            "example index 9 (1 such) is in both states; merge each state once, and give every "
            "example an index of its own"
        )

    @pytest.mark.parametrize(
        ("changes", "told"),
        [
            ({"probes": CKA(label="topic")}, r"job 'shard 0': no label 'topic' in this batch \(it has 'task'\)"),
            ({"probes": Every(at="blocks.9.hook_out")}, r"job 'shard 0': no hook point 'blocks.9.hook_out'"),
            ({"load": two}, r"job 'shard 0': Every measures one model at a time, but was given 2 \(tuned, base\)"),
            ({"batches": TOKENS + 1}, "job 'shard 0': example index .* has token id 20 at position"),
            ({"batches": ["1 2", "3"]}, "texts need a tokenizer, and the workers have the model; give tokenizer="),
            ({"probes": []}, "no probes given; give one or several"),
            ({"batches": []}, "there are no examples to measure; give at least one non-empty batch"),
            (
                {"batches": [partial(function, 0), WHOLE]},
                "batches has functions and something else",
            ),
            ({"shard_examples": 0}, "shard_examples"),
        ],
    )
    def test_with_the_name_of_the_shard(self, changes: Any, told: str) -> None:
        given: dict[str, Any] = {"load": one, "batches": WHOLE.split(10), "probes": Every(), "workers": 1, **changes}
        with pytest.raises(InputError, match=told):
            run_sharded(**given)


@pytest.mark.usefixtures("forked")
def test_no_shard_is_begun_far_behind_one_that_hangs() -> None:
    """Else the states of all that come after it would wait in the driver's memory."""
    started: list[int] = []

    def jobs() -> Any:
        for k in range(40):
            started.append(k)
            yield f"__import__('time').sleep({0 if k else 1})"

    for outcome in imap_jobs(eval, jobs(), 2, lead=4):
        if outcome.position == 0:
            assert len(started) <= 16  # 8 until then, and those that were drawn at once after it
            break
