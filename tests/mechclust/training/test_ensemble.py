"""Many seeds at once: each as if alone, and an interruption leaves no trace.

Ensembles are compared with single training in float64. Batched and single sums round differently, and Adam divides
a gradient by its own size plus 1e-8: in float32 the rounding of a gradient near zero can become a whole step, by
chance and by processor. A wrong batch, seed, learning rate or an update too many moves weights by 1e-2.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from mechclust.models import build_model
from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
from mechclust.studies.topic_structure.config import TopicTransformerConfig
from mechclust.training import Member, Snapshots, TrainConfig, ensemble, stack, train, train_ensemble
from tasks import InputError, SparseModularAddition, TopicDocuments

TASK = SparseModularAddition(length=5, n_support=2, n_train=70, n_test=8)  # 4 steps an epoch, 6 sequences left out
MODEL = PoolingTransformerConfig(n_ctx=5, d_mlp=4)
ADAM = TrainConfig(
    steps=14, batch_size=16, lr=1e-2, schedule="constant", optimizer="adam", weight_decay=0.0, clip=None, save_every=5
)
EVERY = 3  # steps between snapshots
KEPT = [0, 3, 6, 9, 12, 14]
SETTINGS = {
    "adam": ADAM,
    "adamw": replace(ADAM, optimizer="adamw", weight_decay=0.3, schedule="cosine", betas=(0.8, 0.95)),
    "sgd": replace(ADAM, optimizer="sgd", weight_decay=0.1, lr=0.1),
}
SEEDS = (0, 3, 4)


def member(seed, **fields):
    return Member(replace(MODEL, seed=seed), replace(TASK, seed=seed + 10), **fields)


MEMBERS = [member(seed) for seed in SEEDS]


def alone(one, config, at=()):
    """Losses and weights at every step in ``at`` of the same network trained by ``train``, in float64."""
    model, kept = build_model(one.model).double(), {}
    if one.weights is not None:
        model.load_state_dict(dict(one.weights))

    def keep(step, model):
        kept[step] = {k: v.detach().clone() for k, v in model.named_parameters()}

    losses = train(model, one.task, replace(config, checkpoint_every=1), callbacks=[keep])
    return losses, {step: kept[step] for step in (at or kept)}


@pytest.fixture
def double(monkeypatch):
    """Train ensembles in float64."""
    monkeypatch.setattr(stack, "build_model", lambda config: build_model(config).double())


def assert_close(stacked, i, expected, atol=1e-9):
    assert stacked.keys() == expected.keys()
    for name, values in expected.items():
        torch.testing.assert_close(stacked[name][i], values, atol=atol, rtol=0, msg=f"{name} of member {i}")


def contents(out):
    """Tensors of all files of a run, by file and name, and the steps they hold."""
    found = {}
    for path in sorted(Path(out).glob("*.safetensors")):
        found.update({f"{path.name}/{name}": tensor for name, tensor in load_file(path).items()})
        with safe_open(str(path), "pt") as file:
            held = file.metadata().get("held", file.metadata().get("step"))
        found[f"{path.name} holds"] = torch.tensor(json.loads(held))
    return found


def assert_identical(out, other):
    first, second = contents(out), contents(other)
    assert first.keys() == second.keys()
    assert [k for k in first if not torch.equal(first[k], second[k])] == []


class Stopped(Exception):
    pass


def interrupt(out, config, after, backend="vmap", members=MEMBERS, **options):
    """Train until ``after`` updates are done, then stop as a crash would."""
    step, done = ensemble.Stack.step, []

    def counted(self, *args):
        if len(done) == after:
            raise Stopped
        done.append(1)
        return step(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ensemble.Stack, "step", counted)
        with pytest.raises(Stopped):
            train_ensemble(members, config, out, backend=backend, **options)


def count_updates(monkeypatch):
    step, done = ensemble.Stack.step, []
    monkeypatch.setattr(ensemble.Stack, "step", lambda self, *args: done.append(1) or step(self, *args))
    return done


@pytest.fixture(scope="module")
def by_train():
    """Settings to what ``train`` makes of every member alone."""
    return {name: [alone(one, config) for one in MEMBERS] for name, config in SETTINGS.items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that nobody disturbed."""
    out = tmp_path_factory.mktemp("whole")
    train_ensemble(MEMBERS, ADAM, out, backend="vmap", snapshot_every=EVERY)
    return out


@pytest.mark.usefixtures("double")
class TestEqualsTrain:
    @pytest.mark.parametrize(
        ("backend", "settings"), [("vmap", "adam"), ("vmap", "adamw"), ("vmap", "sgd"), ("loop", "adamw")]
    )
    def test_at_every_step(self, by_train, tmp_path, backend, settings):
        config = SETTINGS[settings]
        found = train_ensemble(MEMBERS, config, tmp_path, backend=backend, snapshot_every=1)
        assert (found.steps, found.backend) == (list(range(15)), backend)
        for i, (losses, _) in enumerate(by_train[settings]):
            torch.testing.assert_close(found.losses()[:, i].float(), losses, atol=1e-6, rtol=0)
        for step in found.steps:
            held = found.at(step)
            for i, (_, weights) in enumerate(by_train[settings]):
                assert_close(held, i, weights[step])
        for i, one in enumerate(MEMBERS):  # before any update: to the bit
            assert_close(found.at(0), i, dict(build_model(one.model).double().named_parameters()), atol=0)

    @pytest.mark.parametrize("fields", [{"freeze": ("embed", "blocks.0.attn"), "clip": 0.02}, {"warmup": 9}], ids=str)
    def test_freezing_and_warm_up(self, by_train, tmp_path, fields):
        """What is frozen does not count for clipping; decay by layer is in ``test_ensemble_transformers.py``."""
        config = replace(ADAM, **fields)
        found = train_ensemble(MEMBERS, config, tmp_path).at(14)
        for i, one in enumerate(MEMBERS):
            assert_close(found, i, alone(one, config)[1][14])
            without = by_train["adam"][i][1][14]
            assert max(float((found[name][i] - without[name]).abs().max()) for name in without) > 1e-3

    def test_one_member(self, by_train, tmp_path):
        found = train_ensemble(MEMBERS[1:2], ADAM, tmp_path)
        assert_close(found.at(14), 0, by_train["adam"][1][1][14])

    def test_it_moved_and_members_differ(self, by_train):
        """Else the comparisons say nothing."""
        for settings in SETTINGS:
            ends = [weights[14]["blocks.0.attn.W_V"] for _, weights in by_train[settings]]
            starts = [weights[0]["blocks.0.attn.W_V"] for _, weights in by_train[settings]]
            assert min(float((a - b).abs().max()) for a, b in zip(ends, starts, strict=True)) > 0.03
            assert min(float((a - ends[0]).abs().max()) for a in ends[1:]) > 0.03

    def test_weights_to_begin_with(self, by_train, tmp_path):
        """As in transfer, where a network goes on with another task."""
        _, weights = by_train["adam"][0]
        members = [member(3, weights=weights[10]), MEMBERS[1]]
        found = train_ensemble(members, ADAM, tmp_path)
        assert_close(found.at(0), 0, weights[10], atol=0)
        for i, (losses, own) in enumerate((alone(members[0], ADAM), by_train["adam"][1])):
            assert_close(found.at(14), i, own[14])
            torch.testing.assert_close(found.losses()[:, i].float(), losses, atol=1e-6, rtol=0)

    def test_members_of_different_tasks(self, by_train, tmp_path):
        members = [MEMBERS[0], Member(replace(MODEL, seed=5), replace(TASK, p=3, support=(1, 4), seed=2))]
        found = train_ensemble(members, ADAM, tmp_path)
        for i, (_, own) in enumerate((by_train["adam"][0], alone(members[1], ADAM))):
            assert_close(found.at(14), i, own[14])

    def test_a_wider_model_with_several_heads(self, tmp_path):
        task = replace(TASK, p=4, n_embeddings=6)
        model = replace(MODEL, d_vocab=6, d_model=8, n_heads=2, d_mlp=16)
        members = [Member(replace(model, seed=s), replace(task, seed=s)) for s in (0, 1)]
        found = train_ensemble(members, ADAM, tmp_path)
        for i, one in enumerate(members):
            assert_close(found.at(14), i, alone(one, ADAM)[1][14])

    def test_a_task_without_rows_to_gather(self, by_train, tmp_path):
        """Batches come from the task itself, also if only one member's is such; without epochs the whole run is one."""

        @dataclass(frozen=True)
        class Streamed(SparseModularAddition):
            name: ClassVar[str] = "streamed"
            train_rows = epoch_steps = property()  # hasattr says no

            def train_batches(self, steps, batch_size):
                return replace(TASK, seed=self.seed).train_batches(steps, batch_size)

        members = [
            replace(one, task=Streamed(length=5, n_support=2, n_train=70, n_test=8, seed=one.task.seed))
            for one in MEMBERS
        ]
        for name, mixed in (("all", members), ("one", [members[0], *MEMBERS[1:]])):
            found = train_ensemble(mixed, ADAM, tmp_path / name)
            assert (found.steps, found.epochs) == ([0, 14], [0, 1])
            for i, (_, weights) in enumerate(by_train["adam"]):
                assert_close(found.at(14), i, weights[14])


@pytest.mark.usefixtures("double")
class TestRates:
    RATES = {"blocks.0.mlp": 0.1, "embed.W_E": 0.0, "blocks.0.mlp.W_in": 3.0}

    def test_rate_is_another_learning_rate(self, by_train, tmp_path):
        config = SETTINGS["adamw"]
        found = train_ensemble([MEMBERS[0], replace(MEMBERS[1], rate=0.3)], config, tmp_path)
        assert_close(found.at(14), 0, by_train["adamw"][0][1][14])  # its neighbour's rate is none of its business
        assert_close(found.at(14), 1, alone(MEMBERS[1], replace(config, lr=0.3 * config.lr))[1][14])

    @pytest.mark.parametrize("settings", list(SETTINGS))
    def test_rates_are_parameter_groups_of_the_stock_optimiser(self, by_train, tmp_path, settings):
        config = SETTINGS[settings]
        members = [MEMBERS[0], replace(MEMBERS[1], rate=0.5, rates=self.RATES)]
        found = train_ensemble(members, config, tmp_path)
        assert_close(found.at(14), 0, by_train[settings][0][1][14])
        assert_close(found.at(14), 1, self.by_hand(MEMBERS[1], config, 0.5))
        assert torch.equal(found.at(14)["embed.W_E"][1], found.at(0)["embed.W_E"][1])

    def by_hand(self, one, config, rate):
        model = build_model(one.model).double()
        factors = {"embed.W_E": 0.0, "blocks.0.mlp.W_in": 0.3, "blocks.0.mlp.b_in": 0.1}
        factors.update({"blocks.0.mlp.W_out": 0.1, "blocks.0.mlp.b_out": 0.1})
        groups = [{"params": [p], "factor": rate * factors.get(name, 1.0)} for name, p in model.named_parameters()]
        betas = {} if config.optimizer == "sgd" else {"betas": config.betas}
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[config.optimizer]
        optimizer = kind(groups, lr=config.lr, weight_decay=config.weight_decay, foreach=False, **betas)
        for step in range(config.steps):
            for group in optimizer.param_groups:
                group["lr"] = group["factor"] * config.lr_at(step)
            batch = one.task.train_batch(step, config.batch_size)
            optimizer.zero_grad()
            one.task.loss(model(batch.tokens), batch).backward()
            optimizer.step()
        return {k: v.detach() for k, v in model.named_parameters()}


class TestIndependence:
    @pytest.mark.usefixtures("double")
    def test_of_the_other_members_and_their_order(self, by_train, tmp_path):
        both = train_ensemble([MEMBERS[2], member(7, rate=5.0), MEMBERS[0]], ADAM, tmp_path)
        assert_close(both.at(14), 0, by_train["adam"][2][1][14])
        assert_close(both.at(14), 2, by_train["adam"][0][1][14])

    @pytest.mark.parametrize("ahead", [1, 48, 10_000])  # 1, 3 and all steps; the last part is shorter
    def test_of_reading_ahead(self, whole, tmp_path, monkeypatch, ahead):
        monkeypatch.setattr(ensemble, "_READ_AHEAD", ahead)
        train_ensemble(MEMBERS, ADAM, tmp_path, backend="vmap", snapshot_every=EVERY)
        assert_identical(tmp_path, whole)

    @pytest.mark.usefixtures("double")
    @pytest.mark.parametrize("batch_size", [7, 33])
    def test_batches_that_divide_neither_the_read_ahead_nor_the_epoch(self, tmp_path, monkeypatch, batch_size):
        monkeypatch.setattr(ensemble, "_READ_AHEAD", 100)
        config = replace(ADAM, steps=16, batch_size=batch_size)
        found = train_ensemble(MEMBERS, config, tmp_path, backend="vmap", snapshot_every=5)
        for i, one in enumerate(MEMBERS):
            losses, weights = alone(one, config)
            torch.testing.assert_close(found.losses()[:, i].float(), losses, atol=1e-6, rtol=0)
            for step in (5, 15, 16):
                assert_close(found.at(step), i, weights[step])

    @pytest.mark.parametrize("save_every", [1, 1000])
    def test_of_saving(self, whole, tmp_path, save_every):
        found = train_ensemble(
            MEMBERS, replace(ADAM, save_every=save_every), tmp_path, backend="vmap", snapshot_every=EVERY
        )
        known = Snapshots(whole)
        assert found.steps == known.steps == KEPT
        assert torch.equal(found.losses(), known.losses())
        for step in known.steps:
            assert_close(found.at(step), slice(None), known.at(step), atol=0)

    def test_the_global_random_state_is_left_alone(self, tmp_path):
        before = torch.get_rng_state()
        train_ensemble(MEMBERS, replace(ADAM, steps=3), tmp_path)
        assert torch.equal(before, torch.get_rng_state())

    def test_progress(self, whole, tmp_path, capsys):
        train_ensemble(MEMBERS, ADAM, tmp_path, backend="vmap", snapshot_every=EVERY, progress=True, name="some seeds")
        assert "some seeds" in capsys.readouterr().err
        assert_identical(tmp_path, whole)


class TestResume:
    @pytest.mark.parametrize("after", [4, 5, 13])  # saves come before steps 5 and 10
    def test_ends_with_the_same_bits(self, whole, tmp_path, monkeypatch, after):
        interrupt(tmp_path, ADAM, after, snapshot_every=EVERY)
        saved = (after // 5) * 5
        assert (tmp_path / "state.safetensors").exists() == bool(saved)
        done = count_updates(monkeypatch)
        train_ensemble(MEMBERS, ADAM, tmp_path, backend="vmap", snapshot_every=EVERY)
        assert len(done) == 14 - saved  # went on, and not from the start
        assert_identical(tmp_path, whole)

    def test_twice_and_with_another_read_ahead(self, whole, tmp_path, monkeypatch):
        interrupt(tmp_path, ADAM, 7, snapshot_every=EVERY)
        monkeypatch.setattr(ensemble, "_READ_AHEAD", 80)
        interrupt(tmp_path, ADAM, 7, snapshot_every=EVERY)
        train_ensemble(MEMBERS, ADAM, tmp_path, backend="vmap", snapshot_every=EVERY)
        assert_identical(tmp_path, whole)

    @pytest.mark.parametrize("settings", ["adamw", "sgd"])
    def test_with_rates_and_a_schedule(self, tmp_path, settings):
        config = SETTINGS[settings]
        members = [MEMBERS[0], replace(MEMBERS[1], rate=0.5, rates={"blocks.0.mlp": 0.1})]
        interrupt(tmp_path / "a", config, 8, members=members, snapshot_every=EVERY)
        for out in ("a", "b"):
            train_ensemble(members, config, tmp_path / out, backend="vmap", snapshot_every=EVERY)
        assert_identical(tmp_path / "a", tmp_path / "b")

    def test_killed_between_the_snapshots_and_the_state(self, whole, tmp_path, monkeypatch):
        save, saves = ensemble.save_training_state, []

        def stop(*args):
            if len(saves) == 1:
                raise Stopped
            saves.append(1)
            save(*args)

        monkeypatch.setattr(ensemble, "save_training_state", stop)
        with pytest.raises(Stopped):
            train_ensemble(MEMBERS, ADAM, tmp_path, backend="vmap", snapshot_every=EVERY)
        assert (tmp_path / "snapshots-00000005.safetensors").exists()
        monkeypatch.setattr(ensemble, "save_training_state", save)
        train_ensemble(MEMBERS, ADAM, tmp_path, backend="vmap", snapshot_every=EVERY)
        assert_identical(tmp_path, whole)

    def test_auto_goes_on_with_the_backend_it_had(self, tmp_path, monkeypatch):
        """Else the bits would change when the bound on what is worth compiling does."""
        interrupt(tmp_path, ADAM, 7, backend="auto")
        monkeypatch.setattr(ensemble, "_WORTH_COMPILING", 0)
        monkeypatch.setattr(torch, "compile", None)  # not to be called
        assert train_ensemble(MEMBERS, ADAM, tmp_path).backend == "vmap"

    def test_of_a_finished_run_trains_no_more(self, tmp_path, monkeypatch):
        train_ensemble(MEMBERS, ADAM, tmp_path)
        before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.glob("*.safetensors")}
        done = count_updates(monkeypatch)
        found = train_ensemble(MEMBERS, ADAM, tmp_path)
        assert (done, found.steps) == ([], [*range(0, 14, 4), 14])
        after = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.glob("*.safetensors")}
        assert after == before


SCRIPT = """
import sys, time
import torch
torch.set_num_threads(1)
from mechclust.studies.clustering_heads import PoolingTransformerConfig
from mechclust.training import Member, TrainConfig, ensemble, train_ensemble
from tasks import SparseModularAddition

step, out, pause = ensemble.Stack.step, sys.argv[1], float(sys.argv[2])
def slow(self, *args):
    time.sleep(pause)
    return step(self, *args)
ensemble.Stack.step = slow
members = [
    Member(
        PoolingTransformerConfig(n_ctx=5, d_mlp=4, seed=s),
        SparseModularAddition(length=5, n_support=2, n_train=70, n_test=8, seed=s),
        rates={"blocks.0.mlp": 0.5},
    )
    for s in range(3)
]
config = TrainConfig(steps=50, batch_size=16, lr=1e-2, optimizer="adamw", clip=None, save_every=6)
train_ensemble(members, config, out, backend="vmap", snapshot_every=4)
ensemble.Stack.step = step
"""


@pytest.mark.slow
def test_kill_minus_9_leaves_no_trace(tmp_path, monkeypatch):
    script, killed, whole = tmp_path / "script.py", tmp_path / "killed", tmp_path / "whole"
    script.write_text(SCRIPT)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen([sys.executable, str(script), str(killed), "0.1"], env=environment)
    try:
        while not (killed / "snapshots-00000006.safetensors").exists():
            assert process.poll() is None, "the run ended before it could be killed"
            time.sleep(0.005)
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL
    with safe_open(str(killed / "state.safetensors"), "pt") as file:
        assert 0 < int(file.metadata()["step"]) < 50
    with pytest.raises(InputError, match=r"lacks the snapshots that begin at step (12|20|24) \(of 50 steps\)"):
        Snapshots(killed)
    for out in (killed, whole):  # the same run to its end, and one that nobody killed
        monkeypatch.setattr(sys, "argv", [str(script), str(out), "0"])
        runpy.run_path(str(script), run_name="__main__")
    assert_identical(killed, whole)


def no_compiler(*args, **kwargs):
    def compiled(*args):
        raise RuntimeError("\nno C++ compiler\nand a long explanation")

    return compiled


class TestCompiled:
    @pytest.mark.slow
    @pytest.mark.usefixtures("double")
    @pytest.mark.timeout(600)
    def test_equals_train_and_resumes(self, by_train, tmp_path):
        """The one test with the real compiler: a minute on a machine that never ran it, seconds afterwards."""
        global_state = torch.get_rng_state()
        interrupt(tmp_path / "a", ADAM, 7, backend="compiled", snapshot_every=EVERY)
        for out in ("a", "b"):
            found = train_ensemble(MEMBERS, ADAM, tmp_path / out, backend="compiled", snapshot_every=EVERY)
            assert found.backend == "compiled"
        assert_identical(tmp_path / "a", tmp_path / "b")
        for i, (losses, weights) in enumerate(by_train["adam"]):
            torch.testing.assert_close(found.losses()[:, i].float(), losses, atol=1e-6, rtol=0)
            for step in found.steps:
                assert_close(found.at(step), i, weights[step])
        assert torch.equal(global_state, torch.get_rng_state())
        seen = []  # hooks added to what was compiled would be ignored, without a word
        model = found.model(1)
        with model.hooks(fwd_hooks=[("blocks.0.attn.hook_pattern", lambda pattern, hook: seen.append(pattern.shape))]):
            model(next(TASK.batches("test")).tokens)
        assert seen == [(8, 1, 1, 5)]

    # 14 steps of 3 x 16 sequences count as 14.3.
    @pytest.mark.parametrize(("bound", "backend"), [(14, "compiled"), (15, "vmap")])
    def test_auto_compiles_where_that_is_worth_it(self, tmp_path, monkeypatch, bound, backend):
        monkeypatch.setattr(ensemble, "_WORTH_COMPILING", bound)
        monkeypatch.setattr(torch, "compile", lambda function, **options: function)
        assert train_ensemble(MEMBERS, ADAM, tmp_path).backend == backend

    def test_auto_goes_on_without_a_compiler(self, whole, tmp_path, monkeypatch):
        monkeypatch.setattr(ensemble, "_WORTH_COMPILING", 0)
        monkeypatch.setattr(torch, "compile", no_compiler)
        message = r"^torch\.compile failed \(no C\+\+ compiler\); training continues uncompiled"
        with pytest.warns(UserWarning, match=message) as seen:
            found = train_ensemble(MEMBERS, ADAM, tmp_path, snapshot_every=EVERY)
        (warning,) = seen
        assert warning.filename == __file__
        assert found.backend == "vmap"
        known = Snapshots(whole)
        assert torch.equal(found.losses(), known.losses())
        assert_close(found.at(14), slice(None), known.at(14), atol=0)

    def test_compiled_without_a_compiler_is_refused(self, tmp_path, monkeypatch):
        monkeypatch.setattr(torch, "compile", no_compiler)
        with pytest.raises(InputError) as refused:
            train_ensemble(MEMBERS, ADAM, tmp_path, backend="compiled")
        assert str(refused.value) == (
            "torch.compile cannot compile this training (no C++ compiler); choose backend 'vmap'"
        )
        assert [path.name for path in tmp_path.iterdir()] == [".mechclust.lock"]


class TestRefusals:
    def refusal(self, *args, **options):
        with pytest.raises(InputError) as refused:
            train_ensemble(*args, **options)
        return str(refused.value)

    @pytest.fixture(scope="class")
    def stopped(self, tmp_path_factory):
        """A folder with a run that was stopped; read only."""
        out = tmp_path_factory.mktemp("stopped")
        interrupt(out, ADAM, 7, snapshot_every=EVERY)
        return out

    @pytest.fixture
    def held(self, stopped, tmp_path):
        """A copy of it."""
        return shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)

    @pytest.mark.parametrize(
        ("training", "options", "difference"),
        [
            ({"lr": 0.5}, {}, "training lr = 0.01, not 0.5"),
            ({}, {"snapshot_every": 8}, "ensemble every = 3, not 8"),
            ({}, {"snapshot_every": None}, "ensemble every = 3, not 4"),
            ({}, {"backend": "loop"}, "ensemble backend = 'vmap', not 'loop'"),
        ],
    )
    def test_other_settings_in_the_same_folder(self, held, training, options, difference):
        before = contents(held)
        options = {"backend": "vmap", "snapshot_every": EVERY, **options}
        message = self.refusal(MEMBERS, replace(ADAM, **training), held, **options)
        assert message == (
            f"{str(held)!r} holds a run with {difference}; choose another output folder, or the same settings "
            "to continue"
        )
        assert contents(held).keys() == before.keys()

    @pytest.mark.parametrize(
        "members",
        [
            MEMBERS[:2],
            MEMBERS[::-1],
            [*MEMBERS[:2], member(5)],
            [*MEMBERS[:2], replace(MEMBERS[2], task=TASK)],
            [*MEMBERS[:2], replace(MEMBERS[2], rate=2.0)],
            [*MEMBERS[:2], replace(MEMBERS[2], rates={"embed": 2.0})],
            [*MEMBERS[:2], replace(MEMBERS[2], weights=dict(build_model(MODEL).named_parameters()))],
        ],
    )
    def test_other_members_in_the_same_folder(self, held, members):
        message = self.refusal(members, ADAM, held, backend="vmap", snapshot_every=EVERY)
        assert message.startswith(f"{str(held)!r} holds a run with ensemble members = [{{")

    def test_other_weights_to_begin_with(self, tmp_path):
        first, second = (
            [member(0, weights=dict(build_model(replace(MODEL, seed=s)).named_parameters()))] for s in (0, 1)
        )
        interrupt(tmp_path, ADAM, 7, members=first)
        assert "holds a run with ensemble members" in self.refusal(second, ADAM, tmp_path, backend="vmap")

    def test_snapshots_of_another_run_without_its_state(self, held):
        """They would be taken for this one's."""
        (held / "state.safetensors").unlink()
        for members, config, every in (
            (MEMBERS[:2], ADAM, EVERY),
            (MEMBERS, replace(ADAM, lr=0.5), EVERY),
            (MEMBERS, ADAM, EVERY + 1),
        ):
            message = self.refusal(members, config, held, backend="vmap", snapshot_every=every)
            assert message.endswith(
                "snapshots-00000000.safetensors' is from a run with other settings; remove it, or choose another folder"
            )

    def test_a_damaged_state(self, held):
        path = held / "state.safetensors"
        path.write_bytes(path.read_bytes()[:-100])
        message = self.refusal(MEMBERS, ADAM, held, backend="vmap", snapshot_every=EVERY)
        assert message.startswith(f"{str(path)!r} is truncated or not a safetensors file (")

    def test_no_members(self, tmp_path):
        assert self.refusal([], ADAM, tmp_path) == "there are no members; give at least one network to train"

    def test_members_of_different_shapes(self, tmp_path):
        message = self.refusal([MEMBERS[0], replace(MEMBERS[1], model=replace(MODEL, eps=1e-4))], ADAM, tmp_path)
        assert message.startswith(
            "member 1 is a PoolingTransformerConfig(d_vocab=3, n_ctx=5, d_model=2, n_heads=1, d_m"
        )
        assert message.endswith("seed=0); only seeds and d_mlp may differ")
        other = replace(MEMBERS[1], model=TopicTransformerConfig(d_vocab=3))
        assert self.refusal([MEMBERS[0], other], ADAM, tmp_path).startswith("member 1 is a TopicTransformerConfig(")

    def test_backend(self, tmp_path):
        assert self.refusal(MEMBERS, ADAM, tmp_path, backend="jit") == (
            "backend is 'jit'; expected 'auto', 'compiled', 'vmap' or 'loop'"
        )

    @pytest.mark.skipif(torch.cuda.is_available(), reason="the device is there")
    def test_device(self, tmp_path):
        assert "device 'cuda' is not available" in self.refusal(MEMBERS, ADAM, tmp_path, device="cuda")
        assert "no device 'gpu'; expected cpu, cuda" in self.refusal(MEMBERS, ADAM, tmp_path, device="gpu")

    @pytest.mark.parametrize("every", [0, -1])
    def test_snapshot_every(self, tmp_path, every):
        assert self.refusal(MEMBERS, ADAM, tmp_path, snapshot_every=every) == (
            f"snapshot_every is {every}; expected at least 1, or None for an epoch"
        )

    def test_rates_of_no_weight(self, tmp_path):
        members = [MEMBERS[0], replace(MEMBERS[1], rates={"embed": 0.5, "mlp": 2.0})]
        assert self.refusal(members, ADAM, tmp_path) == (
            "rates has 'mlp', in which nothing is trained (there are embed.W_E, pos_embed.W_pos, blocks.0.attn.query, "
            "blocks.0.attn.W_V, blocks.0.mlp.W_in, blocks.0.mlp.b_in, blocks.0.mlp.W_out, blocks.0.mlp.b_out)"
        )

    @pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf")])
    def test_rates_that_are_none(self, rate):
        for fields in ({"rate": rate}, {"rates": {"embed": rate}}):
            with pytest.raises(InputError) as refused:
                replace(MEMBERS[1], **fields)
            text = f"a member has a rate of {rate}; expected a factor of at least 0 on the learning rate"
            assert str(refused.value) == text

    def test_a_task_without_loss_at(self, tmp_path, task):
        assert self.refusal([Member(MODEL, task)], ADAM, tmp_path) == (
            "the task 'instruction-following' has no loss_at; train its models one by one with train()"
        )

    def test_models_that_answer_at_every_position(self, tmp_path):
        topics = TopicDocuments(n_topics=3, words_per_topic=4, lengths=(5, 9), n_documents=40, selected_share=0.4)
        one = Member(TopicTransformerConfig(d_vocab=topics.d_vocab), topics)
        message = self.refusal([one], ADAM, tmp_path)
        assert message.startswith("a TopicTransformer gives logits [16, ")
        assert message.endswith(
            "expected [batch d_vocab], one answer per sequence; train such models one by one with train()"
        )

    def test_tasks_that_do_not_fit_each_other_or_the_model(self, tmp_path):
        for fields, size in (
            ({"n_train": 71}, "71 sequences of 5 tokens"),
            ({"length": 4}, "70 sequences of 4 tokens"),
        ):
            other = replace(MEMBERS[1], task=replace(TASK, **fields))
            assert self.refusal([MEMBERS[0], other], ADAM, tmp_path) == (
                f"member 1 trains on {size}, member 0 on 70 of 5; only seeds may differ"
            )
        assert self.refusal([Member(MODEL, replace(TASK, length=6))], ADAM, tmp_path) == (
            f"the task {TASK.name!r} has examples of 6 tokens, but the model's n_ctx is 5; build the model with "
            "model_for(task)"
        )
        assert self.refusal([MEMBERS[0], Member(MODEL, replace(TASK, n_embeddings=4))], ADAM, tmp_path) == (
            f"the task {TASK.name!r} has 4 tokens, but the model's d_vocab is 3; build the model with model_for(task)"
        )

    def test_more_in_a_batch_than_there_is(self, tmp_path):
        message = self.refusal(MEMBERS, replace(ADAM, batch_size=71), tmp_path)
        assert message == "batch_size is 71; expected 1 to the 70 training sequences"

    def test_weights_that_do_not_fit(self, tmp_path):
        wide = dict(build_model(replace(MODEL, d_mlp=8)).named_parameters())
        message = self.refusal([member(4, weights=wide)], ADAM, tmp_path)
        assert message.startswith("the weights of the member of seed 4 do not fit: ")
        assert "size mismatch for blocks.0.mlp.W_in" in message
        few = {"embed.W_E": torch.zeros(3, 2)}
        assert "Missing key(s)" in self.refusal([member(4, weights=few)], ADAM, tmp_path)

    def test_nothing_is_written_before_that(self, tmp_path):
        for members, options in (([], {}), (MEMBERS, {"backend": "jit"}), (MEMBERS, {"snapshot_every": 0})):
            self.refusal(members, ADAM, tmp_path / "out", **options)
        assert not (tmp_path / "out").exists()


class TestLostFiles:
    @pytest.mark.parametrize("starts", [(10,), (0, 5, 10)], ids=str)
    def test_of_a_finished_run(self, whole, tmp_path, starts):
        """Nothing is touched; without the state, everything is made again."""
        out = shutil.copytree(whole, tmp_path / "run")
        lost = [out / f"snapshots-{start:08d}.safetensors" for start in starts]
        for path in lost:
            path.unlink()
        before = {path: path.read_bytes() for path in out.iterdir()}
        with pytest.raises(InputError, match=r"train it again with the same settings|holds no snapshots"):
            Snapshots(out)
        with pytest.raises(InputError) as refused:
            train_ensemble(MEMBERS, ADAM, out, backend="vmap", snapshot_every=EVERY)
        assert str(refused.value).startswith(f"{str(out / 'state.safetensors')!r} is of step")
        assert str(lost[0]) in str(refused.value)
        assert {path: path.read_bytes() for path in out.iterdir()} == before
        (out / "state.safetensors").unlink()
        train_ensemble(MEMBERS, ADAM, out, backend="vmap", snapshot_every=EVERY)
        assert_identical(out, whole)

    def test_of_an_interrupted_run(self, tmp_path):
        interrupt(tmp_path, ADAM, 11, snapshot_every=EVERY)
        (tmp_path / "snapshots-00000000.safetensors").unlink()
        with pytest.raises(InputError, match=r"snapshots-00000000.safetensors' of earlier"):
            train_ensemble(MEMBERS, ADAM, tmp_path, backend="vmap", snapshot_every=EVERY)

    def test_damaged(self, whole, tmp_path):
        interrupt(tmp_path, ADAM, 11, snapshot_every=EVERY)
        path = tmp_path / "snapshots-00000005.safetensors"
        path.write_bytes(path.read_bytes()[:-8])
        with pytest.raises(InputError, match=r"cannot be read \(.*; remove it and state.safetensors, and train again"):
            train_ensemble(MEMBERS, ADAM, tmp_path, backend="vmap", snapshot_every=EVERY)
        path.unlink()
        (tmp_path / "state.safetensors").unlink()
        train_ensemble(MEMBERS, ADAM, tmp_path, backend="vmap", snapshot_every=EVERY)
        assert_identical(tmp_path, whole)

    def test_no_warning_where_all_is_well(self, tmp_path):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            interrupt(tmp_path, ADAM, 11)
            train_ensemble(MEMBERS, ADAM, tmp_path, backend="vmap")
            train_ensemble(MEMBERS, ADAM, tmp_path, backend="vmap")


@pytest.mark.parametrize("lost", [[1], [0, 2]])
def test_a_member_that_diverges_is_named_and_stops_no_other(tmp_path, lost):
    members = [member(seed, rate=1e38 if i in lost else 1.0) for i, seed in enumerate(SEEDS)]
    more = " and those of 1 more" if len(lost) > 1 else ""
    with pytest.warns(UserWarning, match=rf"diverged: the loss of member {lost[0]}{more} is not finite \(step \d+\)"):
        found = train_ensemble(members, SETTINGS["sgd"], tmp_path, backend="vmap")
    finite = found.losses().isfinite().all(dim=0)
    assert finite.tolist() == [i not in lost for i in range(3)]


def test_the_step_at_which_a_member_diverges_is_counted_from_the_start(tmp_path, monkeypatch):
    step = ensemble.Stack.step

    def spoiled(self, now, *args):
        losses = step(self, now, *args)
        return losses if now != 8 else torch.where(torch.tensor([False, True, False]), torch.nan, losses)

    monkeypatch.setattr(ensemble.Stack, "step", spoiled)
    with pytest.warns(UserWarning, match=r"the loss of member 1 is not finite \(step 8\)"):
        train_ensemble(MEMBERS, ADAM, tmp_path, backend="vmap")
