"""Blocks that are given another model's residual stream add the same if their weights are the same."""

from __future__ import annotations

import copy

import pytest
import torch

from mechclust.models import load_pretrained
from mechclust.models.patching import can_be_patched
from mechclust.models.same_input import same_input
from probes import record, residual, save_rows
from tasks import Batch, InputError
from tests.mechclust.models.hooked import TOKENS, activations

LAYERS = (1, 2, 3)
POSTS = [f"blocks.{i}.hook_resid_post" for i in range(3)]


@pytest.fixture(scope="module")
def base_path(write_checkpoint, tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("base"), n_layer=3)


@pytest.fixture(scope="module")
def base(base_path):
    return load_pretrained(base_path)


@pytest.fixture(scope="module")
def tuned(write_checkpoint, tmp_path_factory):
    """The base with another block in the middle; read only."""

    def alter(model):
        draw = torch.Generator().manual_seed(0)
        for weight in model.transformer.h[1].parameters():
            weight += 0.5 * torch.randn(weight.shape, generator=draw)

    return load_pretrained(write_checkpoint(tmp_path_factory.mktemp("tuned"), n_layer=3, change=alter))


@pytest.fixture(scope="module")
def own(tiny_model):
    """A model of our own architecture, and the same with another first block; read only."""
    first = tiny_model(n_layers=3)
    second = copy.deepcopy(first)
    with torch.no_grad():
        for weight in second.blocks[0].parameters():
            weight += torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    return first, second


def added(base, model, names=POSTS, tokens=TOKENS):
    """What each block of a model adds to the base's residual stream."""
    with same_input(base, model) as blocks, record(blocks, names) as seen, torch.no_grad():
        blocks(tokens)
    return [seen[name][0] for name in names]


class TestWhatBlocksAdd:
    def test_only_the_changed_block_adds_something_else(self, base, tuned):
        of_base = added(base, base)
        of_tuned = added(base, tuned)
        assert [torch.equal(x, y) for x, y in zip(of_base, of_tuned, strict=True)] == [True, False, True]
        assert not torch.allclose(of_base[1], of_tuned[1], atol=0.1)

    def test_a_model_of_our_own(self, own):
        first, second = own
        pairs = zip(added(first, first, tokens=TOKENS % 5), added(first, second, tokens=TOKENS % 5), strict=True)
        assert [torch.equal(x, y) for x, y in pairs] == [False, True, True]

    def test_without_it_later_layers_inherit_the_change(self, base, tuned):
        states = [activations(model, POSTS)[1] for model in (base, tuned)]
        assert [torch.equal(states[0][name], states[1][name]) for name in POSTS] == [True, False, False]

    def test_it_is_the_difference_of_the_stream(self, base):
        """The base's own stream is left as it is, whatever is reported of it."""
        _, states = activations(base, ["blocks.0.hook_resid_pre", *POSTS])
        stream = list(states.values())
        for delta, before, after in zip(added(base, base), stream, stream[1:], strict=False):
            assert torch.equal(delta, after - before)

    def test_a_changed_block_reads_the_stream_of_the_base(self, base, tuned):
        """The output of the altered block alone on the base's stream, computed by writing it once."""
        _, states = activations(base, [f"blocks.{i}.hook_resid_pre" for i in range(3)])
        before = states["blocks.1.hook_resid_pre"]
        after = []

        def receive(name, activation):
            if name == POSTS[1]:
                after.append(activation)
            return before if name == "blocks.1.hook_resid_pre" else None

        with record(tuned, ["blocks.1.hook_resid_pre", POSTS[1]], receive), torch.no_grad():
            tuned(TOKENS)
        assert torch.equal(added(base, tuned)[1], after[0] - before)

    def test_saved_rows(self, base, tuned, tmp_path):
        """Padding, batches and a pass that stops after the last block change nothing."""
        mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)
        batch = Batch(TOKENS, attention_mask=mask, index=torch.arange(2))
        rows = []
        for name, model in (("base", base), ("tuned", tuned)):
            with same_input(base, model) as blocks:
                store = save_rows(blocks, [batch], tmp_path / name, at=residual(LAYERS))
            taken = store.take(store.index, [f"rows/{post}" for post in POSTS])
            rows.append([taken[f"rows/{post}"] for post in POSTS])
        assert [torch.equal(x, y) for x, y in zip(*rows, strict=True)] == [True, False, True]
        alone = added(base, base, tokens=TOKENS[:1, :3])[0][0, -1]
        torch.testing.assert_close(rows[0][0][0], alone, rtol=0, atol=1e-6)


class TestAfterwards:
    def test_the_models_are_as_before(self, base, tuned):
        before = [activations(model, POSTS) for model in (base, tuned)]
        added(base, tuned)
        for model, (output, states) in zip((base, tuned), before, strict=True):
            output_now, states_now = activations(model, POSTS)
            assert torch.equal(output_now, output)
            assert all(torch.equal(states_now[name], states[name]) for name in POSTS)

    def test_after_an_error_too(self, base, tuned):
        output, _ = activations(tuned, POSTS)

        def stopped():
            with same_input(base, tuned) as blocks:
                blocks(TOKENS)
                raise RuntimeError("stop")

        with pytest.raises(RuntimeError, match="stop"):
            stopped()
        assert torch.equal(activations(tuned, POSTS)[0], output)

    def test_after_an_error_of_the_model(self, base, tuned):
        output, _ = activations(tuned, POSTS)

        def fail(name, activation):
            raise RuntimeError("stop")

        with same_input(base, tuned) as blocks:
            with pytest.raises(RuntimeError, match="stop"), record(blocks, POSTS[1:2], fail):
                blocks(TOKENS)
            assert blocks._streams == {}  # the base's hidden states are not kept
        assert torch.equal(activations(tuned, POSTS)[0], output)


class TestRefused:
    def test_other_depths(self, base, gpt2):
        shallow = load_pretrained(gpt2)
        with pytest.raises(InputError) as refused, same_input(base, shallow):
            pass
        assert str(refused.value) == "the models have 3 and 2 blocks; give a model and one tuned from it"

    def test_a_model_that_is_read_only(self, base, base_path):
        read_only = load_pretrained(base_path, attention="sdpa")
        assert can_be_patched(base)
        assert not can_be_patched(read_only)
        with pytest.raises(InputError, match="the hooks of this model cannot write"), same_input(base, read_only):
            pass

    def test_a_base_that_is_read_only_will_do(self, base_path, base, tuned):
        """It is only read; but its kernels are others, so that equal blocks add almost the same."""
        read_only = load_pretrained(base_path, attention="sdpa")
        for x, y in zip(added(read_only, tuned), added(base, tuned), strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-5)
