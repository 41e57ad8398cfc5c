"""What an ensemble's training kept: the weights of each step, whole or not at all."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file, save_file

from mechclust.models import build_model
from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
from mechclust.training import Member, Snapshots, TrainConfig, train, train_ensemble
from mechclust.training.snapshots import snapshot_steps
from tasks import InputError, SparseModularAddition

TASK = SparseModularAddition(length=5, n_support=2, n_train=70, n_test=8)
MODEL = PoolingTransformerConfig(n_ctx=5, d_mlp=4)
MEMBERS = [Member(replace(MODEL, seed=s), replace(TASK, seed=s + 10)) for s in (0, 3, 4)]
CONFIG = TrainConfig(
    steps=30, batch_size=16, lr=1e-2, schedule="constant", optimizer="adam", weight_decay=0.0, clip=None, save_every=13
)  # files of the steps 0, 13 and 26


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run with snapshots at 0, 7, 14, 21, 28 and 30; read only."""
    out = tmp_path_factory.mktemp("run")
    train_ensemble(MEMBERS, CONFIG, out, backend="vmap", snapshot_every=7)
    return out


@pytest.fixture(scope="module")
def alone():
    """Losses and weights ``[step]`` of every member trained by itself."""
    found = []
    for one in MEMBERS:
        kept = []

        def keep(step, model, kept=kept):
            kept.append({k: v.detach().clone() for k, v in model.named_parameters()})

        losses = train(build_model(one.model), one.task, replace(CONFIG, checkpoint_every=1), callbacks=[keep])
        found.append((losses, kept))
    return found


@pytest.fixture(scope="module")
def file_by_step(tmp_path_factory):
    """A run with a file for every step; read only."""
    out = tmp_path_factory.mktemp("by step")
    train_ensemble(MEMBERS, replace(CONFIG, steps=12, save_every=1), out, backend="vmap", snapshot_every=2)
    return out


@pytest.fixture
def own(file_by_step, tmp_path):
    """A copy of it to be damaged."""
    return shutil.copytree(file_by_step, tmp_path, dirs_exist_ok=True)


def refusal(function, *args):
    with pytest.raises(InputError) as refused:
        function(*args)
    return str(refused.value)


class TestReading:
    def test_steps_epochs_and_length(self, folder):
        found = Snapshots(folder)
        assert found.steps == [0, 7, 14, 21, 28, 30]
        assert found.epochs == [0, 1, 3, 5, 7, 7]  # 4 steps each
        assert len(found) == 6
        assert (found.backend, found.folder) == ("vmap", folder)

    def test_members_are_told_as_they_were_given(self, folder):
        found = Snapshots(str(folder))
        assert found.configs == [one.model for one in MEMBERS]
        assert found.tasks == [one.task for one in MEMBERS]

    def test_at(self, folder, alone):
        found = Snapshots(folder)
        for step in found.steps:
            weights = found.at(step)
            assert "losses" not in weights
            for i, (_, kept) in enumerate(alone):
                for name, values in kept[step].items():
                    torch.testing.assert_close(weights[name][i], values, atol=1e-5, rtol=0, msg=name)

    def test_neighbouring_steps_can_be_told_apart(self, alone):
        for _, kept in alone:
            for a, b in pairwise(kept):
                assert max(float((a[name] - b[name]).abs().max()) for name in a) > 1e-3

    @pytest.mark.parametrize(("member", "steps"), [(0, None), (2, None), (1, [28, 0, 30, 7]), (1, (21, 21, 0))])
    def test_of_all_steps_or_in_the_order_asked_for(self, folder, member, steps):
        found = Snapshots(folder)
        weights, read = found.of(member, steps), found.steps if steps is None else steps
        for i, step in enumerate(read):
            for name, values in found.at(step).items():
                assert weights[name].shape[0] == len(read)
                assert torch.equal(weights[name][i], values[member]), (name, step)

    def test_losses(self, folder, alone):
        losses = Snapshots(folder).losses()
        assert (losses.shape, losses.dtype) == ((30, 3), torch.float32)
        for i, (expected, _) in enumerate(alone):
            torch.testing.assert_close(losses[:, i], expected, atol=1e-5, rtol=0)

    @pytest.mark.parametrize(
        ("steps", "every", "save_every", "expected"),
        [
            (10, 4, 3, [0, 4, 8, 10]),
            (8, 4, 100, [0, 4, 8]),
            (3, 1, 1, [0, 1, 2, 3]),
            (3, 9, 1, [0, 3]),
            (1, 1, 3, [0, 1]),
        ],
    )
    def test_the_start_and_the_end_are_always_kept(self, tmp_path, steps, every, save_every, expected):
        config = replace(CONFIG, steps=steps, save_every=save_every)
        found = train_ensemble(MEMBERS[:1], config, tmp_path, snapshot_every=every, backend="vmap")
        assert found.steps == expected == snapshot_steps(steps, every)
        assert found.losses().shape == (steps, 1)
        assert [len(found.of(0)[name]) for name in ("embed.W_E", "blocks.0.mlp.b_out")] == [len(expected)] * 2

    def test_every_epoch_unless_told_otherwise(self, tmp_path):
        found = train_ensemble(MEMBERS[:1], replace(CONFIG, steps=9), tmp_path)
        assert (found.steps, found.epochs) == ([0, 4, 8, 9], [0, 1, 2, 2])


class TestModel:
    @pytest.mark.parametrize("step", [0, 14, None])
    def test_gives_the_logits_of_that_step(self, folder, alone, step):
        model = Snapshots(folder).model(2, step)
        expected = build_model(MEMBERS[2].model)
        expected.load_state_dict(alone[2][1][30 if step is None else step])
        tokens = next(TASK.batches("all")).tokens
        torch.testing.assert_close(model(tokens), expected(tokens), atol=1e-4, rtol=0)

    def test_has_hooks_that_read_and_write(self, folder):
        found, seen = Snapshots(folder), {}
        model, tokens = found.model(0), next(TASK.batches("all")).tokens

        def keep(name):
            return lambda value, hook: seen.__setitem__(name, value.detach())

        with model.hooks(fwd_hooks=[(name, keep(name)) for name in model.hook_dict]):
            logits = model(tokens)
        assert seen.keys() == model.hook_dict.keys()
        expected = seen["blocks.0.hook_resid_post"][:, 0] @ found.at(30)["embed.W_E"][0].T
        torch.testing.assert_close(logits, expected, atol=1e-6, rtol=0)
        with model.hooks(fwd_hooks=[("blocks.0.hook_resid_post", lambda value, hook: value * 0)]):
            assert not model(tokens).any()

    def test_can_be_trained_on(self, folder):
        model = Snapshots(folder).model(1, 14)
        train(model, TASK, replace(CONFIG, steps=1))
        assert not torch.equal(model.embed.W_E, Snapshots(folder).at(14)["embed.W_E"][1])

    def test_is_each_time_another(self, folder):
        found = Snapshots(folder)
        first = found.model(1)
        with torch.no_grad():
            first.embed.W_E.zero_()
        assert found.model(1).embed.W_E.all()


class TestRefusals:
    def test_an_unknown_step(self, folder):
        found = Snapshots(folder)
        for step, near in ((1, 0), (6, 7), (29, 28), (1000, 30), (-1, 0)):
            message = f"{str(folder)!r} has no snapshot of step {step}; the nearest is step {near}"
            assert refusal(found.at, step) == refusal(found.model, 0, step) == message
            assert refusal(found.of, 0, [7, step]) == message

    def test_no_steps(self, folder):
        assert refusal(Snapshots(folder).of, 0, []) == (
            "there are no steps to read; give at least one, or None for all"
        )

    @pytest.mark.parametrize("member", [3, -1])
    def test_a_member_out_of_range(self, folder, member):
        found = Snapshots(folder)
        message = f"there is no member {member} in {str(folder)!r} (it has 0 to 2)"
        assert refusal(found.of, member) == refusal(found.model, member) == message

    def test_a_folder_without_any(self, tmp_path):
        for folder in (tmp_path, tmp_path / "none"):
            assert refusal(Snapshots, folder) == (
                f"{str(folder)!r} holds no snapshots; give the folder of an ensemble's training"
            )

    @pytest.mark.parametrize(
        ("lost", "first", "before"),
        [
            ([4], 4, "remove state.safetensors there and "),
            ([0, 2], 0, "remove state.safetensors there and "),
            ([2, 4, 8], 2, "remove state.safetensors there and "),
            ([10, 11], 10, ""),  # as of an interrupted training, whose state goes on
            ([3], 3, "remove state.safetensors there and "),  # file 3 held losses alone
        ],
    )
    def test_lost_files(self, own, lost, first, before):
        for step in lost:
            (own / f"snapshots-{step:08d}.safetensors").unlink()
        assert refusal(Snapshots, own) == (
            f"{str(own)!r} lacks the snapshots that begin at step {first} (of 12 steps), and maybe later ones; "
            f"{before}train it again with the same settings to make them"
        )

    def test_a_truncated_file(self, own):
        path = own / "snapshots-00000006.safetensors"
        path.write_bytes(path.read_bytes()[:-8])
        message = refusal(Snapshots, own)
        assert message.startswith(f"{str(path)!r} cannot be read (")
        assert message.endswith("); remove it and state.safetensors, and train again with the same settings")

    def test_a_copy_of_another_name_is_not_read(self, own):
        shutil.copy(own / "snapshots-00000001.safetensors", own / "snapshots-00000001 (1).safetensors")
        assert Snapshots(own).steps == [0, 2, 4, 6, 8, 10, 12]

    def test_a_file_that_is_something_else(self, own):
        path = own / "snapshots-00000006.safetensors"
        save_file(load_file(path), path)
        assert refusal(Snapshots, own) == (
            f"{str(path)!r} is not a file of snapshots; remove it, or give another folder"
        )

    def test_files_of_two_runs(self, own, folder):
        path = own / "snapshots-00000026.safetensors"
        path.write_bytes((folder / path.name).read_bytes())
        assert "is from a run with other settings; remove it, or choose another folder" in refusal(Snapshots, own)

    def test_what_a_killed_run_left_half_written_is_not_read(self, own):
        (own / ".snapshots-00000006.safetensors.123.tmp").write_bytes(b"half")
        assert Snapshots(own).steps == [0, 2, 4, 6, 8, 10, 12]
