"""Probes while the Trainer trains a LoRA adapter."""

from __future__ import annotations

import pytest
import torch

from mechclust import load_pretrained
from mechclust.models.adapters import merged_copy
from mechclust.training.trainer_callback import MechclustCallback
from probes import TaskClusterARI, last_token, run
from tasks import InputError, LabelledPrompts
from tests.mechclust import trained


def with_adapter(model, **fields):
    import peft

    fields = {"r": 2, "target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True, "bias": "all"} | fields
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return peft.get_peft_model(model, peft.LoraConfig(**fields))


@pytest.fixture(scope="module")
def runs(untrained_gpt2, history_prompts, tmp_path_factory):
    """The same training with a callback and without."""
    found = {}
    for name in ("measured", "alone"):
        model, tokenizer = untrained_gpt2()
        probe = TaskClusterARI(readout=last_token(), n_permutations=19, n_init=1)
        callback = MechclustCallback(probe, LabelledPrompts.from_file(history_prompts), every=24)
        folder = tmp_path_factory.mktemp(name)
        with torch.random.fork_rng(devices=[]), pytest.MonkeyPatch.context() as patch:
            patch.setattr(trained, "STEPS", 24)
            added = [callback] if name == "measured" else []
            found[name] = trained.train(with_adapter(model), tokenizer, folder, add_to=added), callback, folder
    return found


def test_the_adapter_is_measured(runs, history_prompts):
    _, callback, folder = runs["measured"]
    saved, prompts = load_pretrained(folder / "checkpoint-24"), LabelledPrompts.from_file(history_prompts)
    found = run(saved, list(prompts.batches(saved.tokenizer)), callback.hook.probes[0])
    before, during = (callback.hook.results[step][0]["label_silhouette"].flatten() for step in (0, 24))
    assert during.tolist() == pytest.approx(found["label_silhouette"].flatten().tolist(), abs=1e-5)
    assert (during - before).abs().max() > 0.05


def test_training_goes_on_to_the_same_bits(runs):
    weights = [dict(runs[name][0].model.named_parameters()) for name in ("measured", "alone")]
    assert any("lora_A" in name for name in weights[0])
    for name, weight in weights[0].items():
        assert weight.equal(weights[1][name]), name


def test_only_the_changed_weights_are_copied(untrained_gpt2):
    tuned = with_adapter(untrained_gpt2()[0], bias="none", target_modules=["c_fc"])
    theirs = {weight.data_ptr() for weight in tuned.parameters()}
    copied = {name for name, weight in merged_copy(tuned).named_parameters() if weight.data_ptr() not in theirs}
    assert {name.split(".", 3)[3] for name in copied} == {"mlp.c_fc.weight", "mlp.c_fc.bias"}


@pytest.mark.parametrize("target", ["c_attn", "lm_head", "wte"])
def test_logits_are_those_of_the_adapter_beside_the_weights(untrained_gpt2, target):
    """Also of an embedding and a head that are tied, of which the adapter changes one."""
    model, tokenizer = untrained_gpt2()
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    fields = {"bias": "none", "init_lora_weights": False, "fan_in_fan_out": target == "c_attn"}
    tuned = with_adapter(model, target_modules=[target], **fields).eval()
    tokens = torch.tensor([[3, 5, 7, 11]])
    with torch.no_grad():
        expected = tuned(tokens).logits
        with tuned.disable_adapter():
            base = tuned(tokens).logits
        found = load_pretrained(merged_copy(tuned), tokenizer=tokenizer)(tokens)
        again = tuned(tokens).logits
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert (base - expected).abs().max() > 0.01
    assert again.equal(expected)
    kept = {name.replace(".base_layer", ""): weight for name, weight in model.named_parameters()}
    assert all(kept[name].equal(weight) for name, weight in before.items())


def test_a_quantised_base_is_refused(untrained_gpt2):
    model, _ = untrained_gpt2()
    model.is_quantized = True
    with pytest.raises(InputError) as caught:
        merged_copy(with_adapter(model))
    assert str(caught.value) == (
        "the base is quantised, and an adapter cannot be added exactly to rounded weights; save checkpoints and run "
        "mechclust history on them"
    )
