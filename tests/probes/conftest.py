"""A model that is nothing but hook points, and a probe that keeps what it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from probes import Probe, ProbeResult, Readout, Rows, last_token, residual
from probes.engine.sites import Sites
from tasks import Batch
from tests.probes.topic_documents import TASK


class FakeModel(nn.Module):
    """Speaks the hook protocol; every token's state at each layer is planted.

    Hook points: ``hook_embed``, ``blocks.{l}.hook_resid_post``, and ``hook_silent``, which never fires.
    """

    def __init__(self, states: Sequence[Tensor]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Embedding.from_pretrained(s.float(), freeze=False) for s in states)
        self.drop = nn.Dropout(0.5)
        names = ["hook_embed", *(f"blocks.{i}.hook_resid_post" for i in range(len(states) - 1))]
        self.names, self.hook_dict = names, {name: nn.Identity() for name in [*names, "hook_silent"]}
        self.points = nn.ModuleList(self.hook_dict.values())
        self.calls: list[str] = []
        self.fire_twice = False

    def forward(self, tokens: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        for name, layer in zip(self.names, self.layers, strict=True):
            for _ in range(1 + self.fire_twice):
                self.calls.append(name)
                x = self.hook_dict[name](self.drop(layer(tokens)))
        return x

    @contextmanager
    def hooks(self, fwd_hooks: Sequence[tuple[str, Callable]]) -> Iterator[None]:
        handles = [
            self.hook_dict[name].register_forward_hook(lambda module, _, out, f=f: f(out, hook=module))
            for name, f in fwd_hooks
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


class Keep(Probe):
    """Keeps every example's activations, and remembers what it saw."""

    rows = Rows()

    def __init__(self, at: Sites = residual(), readout: Readout = last_token()) -> None:
        self.at, self.readout = at, readout

    def update(self, activations: Mapping[str, Tensor], batch: Batch) -> None:
        for site, x in activations.items():
            self.rows.add(site, batch.index, x)

    def compute(self) -> ProbeResult:
        index = [str(int(i)) for i in self.rows.get(self.site_names[0])[0]]
        sums = torch.stack([self.rows.get(s)[1].flatten(1).sum(1) for s in self.site_names])
        return self.result({"sum": sums}, {"sum": ("site", "example")}, {"example": index})

    def kept(self, site: str) -> Tensor:
        return self.rows.get(site)[1]


@pytest.fixture(scope="session")
def fake_model() -> Callable[..., FakeModel]:
    """``fake_model(embedding_states, layer_1_states, ...)``, ``[vocab d]`` each."""
    return lambda *states: FakeModel(states).eval()


@pytest.fixture(scope="session")
def keep() -> Callable[..., Any]:
    """``keep(at, readout)``: a new ``Keep`` probe."""
    return Keep


@pytest.fixture(scope="session")
def hooks_of() -> Callable[[nn.Module], dict[str, int]]:
    """Number of forward hooks on each module that has any."""

    def count(model: nn.Module) -> dict[str, int]:
        return {k: len(m._forward_hooks) for k, m in model.named_modules() if len(m._forward_hooks)}

    return count


@pytest.fixture(scope="session")
def topic_model() -> Callable[..., Any]:
    from mechclust.models import build_model
    from mechclust.studies.topic_structure.config import TopicTransformerConfig

    return lambda d_vocab=TASK.d_vocab, **fields: build_model(TopicTransformerConfig(d_vocab=d_vocab, **fields))


@pytest.fixture(scope="session")
def documents() -> Batch:
    """Masked documents of different lengths, padded."""
    return next(TASK.batches("dev", 12))


@pytest.fixture(scope="session")
def token_topics(task: Any) -> Tensor:
    """Three topics for the tokens of the instruction task, padding's too, and none for every fourth."""
    return (torch.arange(task.d_vocab) + 1) % 4 - 1
