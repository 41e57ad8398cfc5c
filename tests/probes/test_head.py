"""The language-model head never runs for nothing: its logits are the largest tensor of a forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mechclust.models import load_pretrained
from probes import attach, collect_rows, residual, run, save_rows
from probes.engine.hooked_model import modules_of
from tasks import Batch
from tests.mechclust.models.families import FAMILIES

TOKENS = torch.tensor([[1, 2, 3], [3, 0, 1], [2, 2, 4], [4, 1, 0]])
BATCHES = list(Batch(TOKENS).split(2))


@contextmanager
def counting(module: nn.Module) -> Iterator[list[int]]:
    """Forward passes of a module from begin to end, whoever else is hooked to it."""
    calls, forward = list[int](), module.forward

    def counted(*arguments: Any, **options: Any) -> Any:
        found = forward(*arguments, **options)
        calls.append(1)
        return found

    module.forward = counted  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        del module.forward


def head_of(model: Any) -> nn.Module:
    """What multiplies with the vocabulary."""
    return getattr(model.unembed, "original_component", None) or model.unembed


@pytest.fixture(params=["built", "llama", "gemma2", "bert"])
def model(request: pytest.FixtureRequest, tiny_model: Any, tl_major: int) -> Any:
    """Ours, and those of Hugging Face: a decoder, one whose logits are capped behind the head, and an encoder."""
    if request.param == "built":
        return tiny_model()
    if tl_major == 3:
        pytest.skip("TransformerLens 3.9 has no bridge to these models here")
    return load_pretrained(FAMILIES[request.param].build())


def test_the_head_never_runs(model: Any, keep: Any, tmp_path: Any) -> None:
    pre_hooks = len(head_of(model)._forward_pre_hooks)
    with torch.no_grad(), model.hooks(fwd_hooks=[("hook_embed", lambda x, hook: None)]):
        model(TOKENS)  # the bridge adds some hooks of its own at the first call
    before = modules_of(model)
    with counting(head_of(model)) as calls:
        run(model, BATCHES, keep(residual(final_norm=True)))
        run(model, Batch(TOKENS[:1]), keep(residual(0)))
        collect_rows(model, TOKENS)
        save_rows(model, BATCHES, tmp_path / "rows", shard_rows=1)
        assert calls == []
        model(TOKENS)
        assert calls == [1]
    assert modules_of(model) == before
    assert len(head_of(model)._forward_pre_hooks) == pre_hooks


def test_it_runs_where_a_site_lies_behind_it(model: Any, keep: Any) -> None:
    name = next((n for n in ("unembed.hook_out",) if n in model.hook_dict), None)
    if name is None:
        pytest.skip("TransformerLens 3.9 has no hook point behind the head")
    probe = keep([residual(), name])
    with counting(head_of(model)) as calls:
        run(model, BATCHES, probe)
    assert calls
    seen = []
    with torch.no_grad(), model.hooks(fwd_hooks=[(name, lambda x, hook: seen.append(x[:, -1]))]):
        model(TOKENS)
    torch.testing.assert_close(probe.kept(name), seen[0])


def test_attach_leaves_the_callers_pass_whole(model: Any, keep: Any) -> None:
    with torch.no_grad():
        expected = model(TOKENS)
        with attach(model, keep()) as attached, attached.on(Batch(TOKENS)):
            found = model(TOKENS)
    logits = [getattr(x, "logits", x) for x in (expected, found)]
    assert torch.equal(*logits)


def test_only_the_first_pass_goes_beyond_the_deepest_site(model: Any, keep: Any) -> None:
    block = model.blocks[1]
    with counting(getattr(block, "original_component", None) or block) as calls:
        run(model, BATCHES, keep(residual(0)))
    assert calls == [1]  # to find hook points that fire twice


class Own(nn.Module):
    """A model of somebody else with a head called in another way, and another hook on it."""

    def __init__(self, with_head: bool) -> None:
        super().__init__()
        from transformer_lens.hook_points import HookPoint

        self.embed, self.hook_embed = nn.Embedding(7, 4), HookPoint()
        self.unembed: Any = nn.Linear(4, 7) if with_head else None
        self.hook_dict = {"hook_embed": self.hook_embed}

    @contextmanager
    def hooks(self, fwd_hooks: Any = ()) -> Iterator[None]:
        handles = [self.hook_dict[n].register_forward_hook(lambda m, _, x, f=f: f(x, hook=m)) for n, f in fwd_hooks]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def forward(self, tokens: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.hook_embed(self.embed(tokens))
        return x if self.unembed is None else self.unembed(x)


def test_a_model_of_ones_own_with_a_head_or_without(keep: Any) -> None:
    for with_head in (True, False):
        model, probe, seen = Own(with_head), keep("hook_embed"), list[Any]()
        theirs = seen.append
        handles = [m.register_forward_pre_hook(lambda m, _, f=theirs: f(m)) for m in [model.unembed] if m is not None]
        run(model, BATCHES, probe)
        assert torch.equal(probe.kept("hook_embed"), model.embed(TOKENS)[:, -1])
        assert len(seen) == with_head  # theirs stays and comes before ours; the second pass does not get there
        for handle in handles:
            assert handle.id in model.unembed._forward_pre_hooks
