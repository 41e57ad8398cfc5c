from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from probes import CKA, Probe, Sum, attach, last_token, residual, run
from tasks import Batch, InputError, InstructionFollowing


def gradients(model: Any) -> list[torch.Tensor]:
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return found


def test_a_training_loop_is_measured_and_not_disturbed(
    tiny_model: Any, task: InstructionFollowing, keep: Any, hooks_of: Any
) -> None:
    batches = [task.train_batch(step, 8) for step in range(3)]
    attached_model, plain_model = tiny_model(), tiny_model()
    clean = hooks_of(attached_model)
    probe = keep()
    with attach(attached_model, probe) as attached:
        for step, batch in enumerate(batches):
            batch = Batch(**{**vars(batch), "index": torch.arange(8) + 8 * step})
            with attached.on(batch):
                task.loss(attached_model(batch.tokens), batch).backward()
                assert attached_model.training
            task.loss(plain_model(batch.tokens), batch).backward()
            for a, b in zip(gradients(attached_model), gradients(plain_model), strict=True):
                assert torch.equal(a, b)
        attached_model(batches[0].tokens)  # outside of on(): not measured
    assert hooks_of(attached_model) == clean
    assert len(probe.compute().coords["example"]) == 24
    reference = keep()
    run(plain_model, Batch(batches[0].tokens, attention_mask=batches[0].attention_mask), reference)
    torch.testing.assert_close(probe.kept("hook_embed")[:8], reference.kept("hook_embed"))
    torch.testing.assert_close(
        probe.kept("blocks.1.hook_resid_post")[:8], reference.kept("blocks.1.hook_resid_post"), rtol=1e-4, atol=1e-5
    )


def test_states_do_not_hold_the_graph(model: Any, batch: Batch) -> None:
    class Total(Probe):
        total = Sum()

        def __init__(self, at: Any = residual(), readout: Any = last_token()) -> None:
            self.at, self.readout = at, readout

        def update(self, activations: Any, batch: Batch) -> None:
            assert not any(x.requires_grad for x in activations.values())
            for site, x in activations.items():
                self.total.add(site, x.sum(dim=0, dtype=torch.float64))

        def compute(self) -> Any:
            return self.result({}, {})

    probe = Total()
    with attach(model, [probe]) as attached, attached.on(batch):
        assert model(batch.tokens).requires_grad
    assert not probe.total["hook_embed"].requires_grad


def test_a_batch_given_twice_is_refused_until_reset(model: Any, batch: Batch) -> None:
    probe = CKA(form="moments")
    with attach(model, probe) as attached:
        with attached.on(batch):
            model(batch.tokens)
        before = probe.compute()
        message = (
            "example index 12 was given twice; give every example an index of its own and every batch once (after "
            "reset() a probe may measure it again)"
        )
        with pytest.raises(InputError, match=f"^{re.escape(message)}$"), attached.on(batch):
            model(batch.tokens)
        after = probe.compute()
        for measure, value in before.values.items():
            assert torch.equal(value.nan_to_num(), after[measure].nan_to_num())
        probe.reset()
        with attached.on(batch):
            model(batch.tokens)
    for measure, value in before.values.items():
        assert torch.equal(value.nan_to_num(), probe.compute()[measure].nan_to_num())


@pytest.mark.parametrize("fresh_first", [False, True])
def test_tokens_are_new_to_a_used_probe_and_to_a_fresh_one(model: Any, keep: Any, fresh_first: bool) -> None:
    """Both go on from the used one's examples: its own are kept, and the fresh one holds the new ones alone."""
    tokens = torch.randint(10, (6, 4), generator=torch.Generator().manual_seed(0))
    used, fresh, whole = keep(), keep(), keep()
    for probe, some in ((used, tokens[:4]), (whole, tokens)):
        with attach(model, probe) as attached, torch.no_grad(), attached.on(some):
            model(some)
    both = [fresh, used] if fresh_first else [used, fresh]
    with attach(model, both) as attached, torch.no_grad(), attached.on(tokens[4:]):
        model(tokens[4:])
    assert used.compute().coords["example"] == ["0", "1", "2", "3", "4", "5"]
    assert fresh.compute().coords["example"] == ["4", "5"]
    torch.testing.assert_close(used.compute()["sum"], whole.compute()["sum"])
    torch.testing.assert_close(fresh.compute()["sum"], whole.compute()["sum"][:, 4:])
    used.reset()
    with attach(model, used) as attached, torch.no_grad(), attached.on(tokens):
        model(tokens)
    assert used.compute().coords["example"] == ["0", "1", "2", "3", "4", "5"]


def test_an_exception_inside_removes_the_hooks(model: Any, batch: Batch, keep: Any, hooks_of: Any) -> None:
    clean, probe = hooks_of(model), keep()
    with pytest.raises(ZeroDivisionError), attach(model, probe) as attached, attached.on(batch):
        _ = model(batch.tokens).sum() / 0 * (1 / 0)
    assert hooks_of(model) == clean
    with pytest.raises(ZeroDivisionError), attach(model, probe):
        _ = 1 / 0
    assert hooks_of(model) == clean


def test_after_an_exception_in_one_batch_the_next_is_measured(model: Any, batch: Batch, keep: Any) -> None:
    first, second = batch.split(6)
    probe = keep()
    with attach(model, probe) as attached:
        with pytest.raises(ZeroDivisionError), attached.on(first):
            _ = 1 / 0
        model(first.tokens)
        with attached.on(second):
            model(second.tokens)
    assert probe.compute().coords["example"] == [str(i) for i in sorted(second.index.tolist())]


def test_a_block_without_a_forward_pass_or_with_two_is_told(model: Any, batch: Batch, keep: Any) -> None:
    with attach(model, keep()) as attached:
        with (
            pytest.raises(InputError, match="hook point 'hook_embed' exists but did not fire in this forward pass"),
            attached.on(batch),
        ):
            pass
        with (
            pytest.raises(InputError, match="hook point 'hook_embed' fired twice in one forward pass"),
            attached.on(batch),
        ):
            _ = model(batch.tokens), model(batch.tokens)


def test_without_probes_nothing_is_measured(model: Any, batch: Batch) -> None:
    with attach(model, []) as attached, torch.no_grad(), attached.on(batch):
        model(batch.tokens)


def test_a_block_within_a_block_is_refused(model: Any, batch: Batch, keep: Any) -> None:
    probe = keep()
    with attach(model, probe) as attached, attached.on(batch):
        with pytest.raises(InputError, match="is being measured already"), attached.on(batch):
            pass
        model(batch.tokens)
    assert len(probe.examples) == len(batch.tokens)


def test_a_forward_pass_of_another_batch_is_refused(model: Any, batch: Batch, keep: Any) -> None:
    first = next(batch.split(2))
    probe = keep()
    with attach(model, probe) as attached:
        for given, tokens in ((first, batch.tokens), (batch, first.tokens), (batch, batch.tokens[:, 1:])):
            with pytest.raises(InputError, match="give the batch of this forward pass"), attached.on(given):
                model(tokens)
    assert len(probe.examples) == 0
