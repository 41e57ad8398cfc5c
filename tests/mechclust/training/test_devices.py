"""Every training function gives on a GPU what it gives on the CPU.

On the simulated GPU it is the same to the last bit. A real GPU rounds otherwise, which Adam may magnify to a whole
step (``test_ensemble.py``): there, losses of the first steps agree.
"""

from __future__ import annotations

from dataclasses import replace

import peft  # noqa: F401 - it looks for GPUs when it is imported
import pytest
import torch

from mechclust.models import build_model, model_for
from mechclust.models.weights import get_weights
from mechclust.training import LowRank, Member, TrainConfig, WeightNorms, train, train_ensemble
from mechclust.training.tuning import TuneConfig, tune_adapter
from tasks import SkillSuite, SparseModularAddition
from tests.mechclust.training.tuning.small import MODULES, examples, language_model

TASK = SparseModularAddition(length=5, n_support=2, n_train=70, n_test=8)
SUITE = SkillSuite()
SHAPE = {"n_layers": 1, "d_model": 8, "n_heads": 2, "init_std": 0.3}
CONFIG = TrainConfig(steps=4, batch_size=8, lr=1e-2, warmup=2, save_every=2, checkpoint_every=2)


def one_model(device, folder):
    """Train one model with a callback; a second one takes over the saved state."""
    first, second = (build_model(model_for(SUITE, seed=1, **SHAPE)).to(device) for _ in range(2))
    norms = WeightNorms()
    losses = train(first, SUITE, CONFIG, folder, callbacks=[norms])
    train(second, SUITE, CONFIG, folder)
    assert {weight.device.type for weight in second.parameters()} == {device}
    weights = get_weights(second)
    assert all(torch.equal(values.cpu(), weights[name].cpu()) for name, values in get_weights(first).items())
    return torch.cat([losses, norms.compute()["norm"].flatten().float()])


def ensemble(backend, low_rank=None):
    def run(device, folder):
        """Train transformers, whose rates differ."""
        members = [
            Member(model_for(SUITE, seed=s, **SHAPE), replace(SUITE, seed=s), rates={"unembed" if s else "": 0.5})
            for s in (0, 1)
        ]
        members = [replace(member, rates={}) for member in members] if low_rank else members
        return train_ensemble(members, CONFIG, folder, backend=backend, device=device, low_rank=low_rank).losses()

    return run


def pooling(device, folder):
    """Train networks that give one answer a sequence."""
    from mechclust.studies.clustering_heads.config import PoolingTransformerConfig

    members = [Member(PoolingTransformerConfig(n_ctx=5, d_mlp=4, seed=s), replace(TASK, seed=s)) for s in (0, 1)]
    return train_ensemble(members, replace(CONFIG, batch_size=16), folder, backend="vmap", device=device).losses()


def adapter(device, folder):
    """Train an adapter with Hugging Face's Trainer."""
    model = language_model("llama").to(device)
    config = TuneConfig(lr=1e-2, batch_size=4, accumulation=1, save_every=2, steps=3, rank=2, modules=MODULES["llama"])
    tuned = tune_adapter(model, examples(), config, folder / "adapter", base="b")
    return torch.tensor([loss for _, loss in tuned.losses])


TRAININGS = {
    "train": one_model,
    "vmap": ensemble("vmap"),
    "loop": ensemble("loop"),
    "low rank": ensemble("vmap", LowRank(rank=1)),
    "pooling": pooling,
    "adapter": adapter,
}


@pytest.fixture(scope="module", params=TRAININGS)
def training(request):
    return request.param


@pytest.fixture(scope="module")
def expected(training, tmp_path_factory):
    """Losses on the CPU, once for all devices and before one is simulated."""
    return TRAININGS[training]("cpu", tmp_path_factory.mktemp("cpu") / "cpu")


@pytest.mark.parametrize("device", ["simulated cuda", "cuda"], indirect=True)
def test_losses_are_those_of_the_cpu(training, expected, device, request, tmp_path):
    losses = TRAININGS[training](device, tmp_path / "device").cpu()
    if request.node.callspec.params["device"] == "cuda":
        torch.testing.assert_close(losses[:2], expected[:2], atol=1e-3, rtol=1e-3)
    else:
        assert torch.equal(losses, expected)
