"""Changes planted in known layers: what a run says of them."""

from __future__ import annotations

import pytest
import torch

from tests.mechclust.commands.mossa import tiny

pytestmark = pytest.mark.usefixtures("few_draws")
SEEN = [task for task in tiny.TASKS if task != "last"]


def save_adapter(base, path, seed, blocks):
    """An adapter of random weights in these blocks, counted from 0."""
    import peft
    import transformers

    targets = ["q_proj", "v_proj", "down_proj"]
    config = peft.LoraConfig(r=4, target_modules=targets, layers_to_transform=blocks, init_lora_weights=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(base), config)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "lora" in name:
                    weight.copy_(torch.randn(weight.shape))
    model.save_pretrained(path)


@pytest.fixture(scope="module")
def planted(tasks, tmp_path_factory):
    """Tuned is changed in layers 2 and 3, the controls in layers 5 and 6, of 8."""
    pytest.importorskip("peft")
    folder = tmp_path_factory.mktemp("planted")
    base = tiny.write_base(folder / "base", num_hidden_layers=8)
    save_adapter(base, folder / "tuned", 0, [1, 2])
    for seed, task in enumerate(SEEN, 1):
        save_adapter(base, folder / task, seed, [4, 5])
    given = {"experimental": str(folder / "tuned"), "controls": tuple(str(folder / task) for task in SEEN)}
    least = {"n_resamples": 0, "n_answers": 0, "nulls": 0, "rbf": False, "without_top": False}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("probes.projection.project_2d", lambda rows, seed: rows[:, :2])  # t-SNE takes most of the run
        return tiny.run(base, tasks, folder / "run", **least, **given)


def test_what_the_curves_are(planted):
    curves = planted.curves().seen
    assert curves.median("base")[:4] == pytest.approx(1)
    assert curves.median("base")[4] < 0.9
    assert curves.median("tuned")[0] == pytest.approx(1)
    assert curves.median("tuned")[1:4].max() < 0.9


def test_tuned_alone_changed_below_the_controls(planted):
    assert planted.groups.tuned_alone == (2, 3, 4)  # layer 4 inherits the change
    (reading,) = [reading for reading in planted.readings if reading.what == "Tuned alone changed"]
    assert reading.where == "layers 2-4"
    curves = planted.curves().seen
    base, tuned = (curves.median(role)[1:4].min() for role in ("base", "tuned"))
    assert reading.value == f"median CKA with the controls at least {base:.2f} (pre), down to {tuned:.2f} (tuned)"
    assert reading.verdict.startswith("The controls are like pre there.")
    assert any("tuned alone changed at 2-4" in reading.value for reading in planted.readings)
