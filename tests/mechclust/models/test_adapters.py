"""Adapters: what is measured is the model that peft runs, and what was there comes back to the bit."""

from __future__ import annotations

import copy
import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from mechclust.models import adapters, load_pretrained, load_tokenizer, set_adapter
from mechclust.models.adapter_fit import check_adapter_fits, model_without_weights
from mechclust.models.adapters import (
    adapter_of,
    base_of_adapter,
    digest_of_adapter,
    is_adapter,
    with_adapter,
)
from mechclust.models.plain_model import plain_model
from mechclust.models.pretrained import load_pretrained_unhooked
from mechclust.models.resolved import ResolvedModel
from probes import CKA, record, residual, run
from tasks import Batch, InputError
from tests.mechclust.models.hooked import MASK, TOKENS

peft = pytest.importorskip("peft")

SMALL = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32}
COMMON = {"vocab_size": 22, "max_position_embeddings": 16, "bos_token_id": None, "eos_token_id": None}
# The modules an adapter is put beside. GPT-2's and NeoX's queries, keys and values are one fused weight, which
# TransformerLens splits when it wraps the model: with an adapter beside it, it runs the base and says nothing.
FAMILIES = {
    "gpt2": (
        "GPT2LMHeadModel",
        {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 16, "vocab_size": 22},
        ["c_attn", "c_fc"],
    ),
    "neox": ("GPTNeoXForCausalLM", {**SMALL, **COMMON}, ["query_key_value"]),
    "llama": ("LlamaForCausalLM", {**SMALL, **COMMON}, ["q_proj", "k_proj", "v_proj", "down_proj"]),
    "phi3": ("Phi3ForCausalLM", {**SMALL, **COMMON, "pad_token_id": 0}, ["qkv_proj", "gate_up_proj"]),
    "bert": ("BertForMaskedLM", {**SMALL, "vocab_size": 22, "max_position_embeddings": 16}, ["query", "value"]),
}


def shake(model, scale=0.2, only=lambda name, weight: True):
    """Every weight random: norms of 1 and biases of 0 hide mistakes."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if only(name, weight):
                weight.add_(torch.randn(weight.shape) * scale)


def write_adapter(base, folder, targets, **options):
    model = getattr(transformers, json.loads((base / "config.json").read_text())["architectures"][0])
    wrapped = peft.get_peft_model(
        model.from_pretrained(base), peft.LoraConfig(r=4, target_modules=targets, init_lora_weights=False, **options)
    )
    shake(wrapped, 0.3, lambda name, weight: weight.requires_grad)
    wrapped.save_pretrained(folder)
    return folder


def changed(adapter, folder, **fields):
    """Copies an adapter with other fields in its configuration."""
    shutil.copytree(adapter, folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, **fields}))
    return folder


@pytest.fixture(scope="module")
def written(tmp_path_factory, gpt2):
    """``written(family)``: a base and two adapters, the second with biases. Read only."""
    done = {}

    def get(family):
        if family not in done:
            name, fields, targets = FAMILIES[family]
            folder = tmp_path_factory.mktemp(family)
            cls = getattr(transformers, name)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(3)
                base = cls(cls.config_class(**fields))
                shake(base)
                base.save_pretrained(folder / "base")
                for file in gpt2.glob("tokenizer*"):
                    shutil.copy(file, folder / "base")
                fan = {"fan_in_fan_out": family == "gpt2"}
                write_adapter(folder / "base", folder / "one", targets, lora_dropout=0.3, **fan)
                write_adapter(folder / "base", folder / "two", targets, bias="all", **fan)
            done[family] = folder
        return done[family]

    return get


def state(model, mask=None):
    """Output and last residual stream."""
    site = "blocks.1.hook_resid_post"
    with torch.no_grad(), record(model, [site]) as seen:
        output = model(TOKENS) if mask is None else model(TOKENS, attention_mask=mask)
    return output, seen[site][0]


@cache
def expected(folder, adapter, padded=False):
    """What peft computes, with the adapter beside the weights."""
    model, _ = load_pretrained_unhooked(folder / "base", adapter=adapter and folder / adapter)
    with torch.no_grad():
        return model(TOKENS, attention_mask=MASK if padded else None).logits


class TestSwapping:
    @pytest.mark.parametrize("family", FAMILIES)
    def test_logits_are_those_of_peft_and_the_base_comes_back(self, written, family):
        folder = written(family)
        model = load_pretrained(folder / "base")
        at_first, state_at_first = state(model)
        moved = float((expected(folder, "one") - expected(folder, None)).abs().max())
        assert moved > 0.5  # there is something to see
        for adapter in ("one", "two", "one", None):
            set_adapter(model, adapter and folder / adapter)
            output, residual_stream = state(model)
            torch.testing.assert_close(output, expected(folder, adapter), atol=2e-5, rtol=0)
            assert torch.equal(residual_stream, state_at_first) == (adapter is None)
        assert torch.equal(output, at_first)
        assert adapter_of(model) is None

    @pytest.mark.parametrize("family", ["gpt2", "bert"])
    def test_read_only_and_padded(self, written, family):
        folder = written(family)
        model = load_pretrained(folder / "base", adapter=folder / "one", attention="sdpa")
        bridge = load_pretrained(folder / "base", adapter=folder / "one")
        real = MASK.bool()
        torch.testing.assert_close(state(model, MASK)[1][real], state(bridge, MASK)[1][real], atol=2e-5, rtol=0)
        torch.testing.assert_close(
            state(bridge, MASK)[0][real], expected(folder, "one", padded=True)[real], atol=2e-5, rtol=0
        )


def test_a_dropped_adapter_would_be_seen(written):
    """The worst mistake: a CKA of 1 between base and tuned, because the base was measured twice."""
    folder = written("gpt2")
    models = {"base": load_pretrained(folder / "base"), "tuned": load_pretrained(folder / "one")}
    tokens = torch.randint(2, 22, (40, 5), generator=torch.Generator().manual_seed(0))
    batch = Batch(tokens, labels={"task": torch.arange(40) % 2})
    found = run(models, batch, CKA(at=residual([-1])))
    assert float(found.sel("debiased_cka", site="blocks.1.hook_resid_post")) < 0.98


class TestKinds:
    def kind(self, written, tmp_path, config):
        folder = written("llama")
        model = transformers.LlamaForCausalLM.from_pretrained(folder / "base")
        wrapped = peft.get_peft_model(model, config)
        shake(wrapped, 0.3, lambda name, weight: weight.requires_grad)
        wrapped.save_pretrained(tmp_path / "adapter")
        with torch.no_grad():
            return folder / "base", tmp_path / "adapter", wrapped.eval()(TOKENS).logits

    @pytest.mark.parametrize(
        "config",
        [
            pytest.param(lambda: peft.LoraConfig(r=2, target_modules=["q_proj"], use_dora=True), id="dora"),
            pytest.param(lambda: peft.LoraConfig(r=2, target_modules=["q_proj"], use_rslora=True), id="rslora"),
            pytest.param(
                lambda: peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"]), id="whole modules"
            ),
            pytest.param(
                lambda: peft.IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
                id="ia3",
            ),
            pytest.param(lambda: peft.LoHaConfig(r=2, target_modules=["v_proj"]), id="loha"),
        ],
    )
    def test_are_merged(self, written, tmp_path, config):
        base, adapter, theirs = self.kind(written, tmp_path, config())
        torch.testing.assert_close(state(load_pretrained(base, adapter=adapter))[0], theirs, atol=2e-5, rtol=0)
        unloaded = model_without_weights(ResolvedModel(str(base)))
        check_adapter_fits(str(adapter), unloaded)
        assert all(weight.is_meta and weight.requires_grad for weight in unloaded.parameters())

    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.parametrize("adapter", ["one", "two"])
    def test_fit_before_the_base_is_loaded(self, written, family, adapter):
        """Also beside fused weights, with biases, and where transformers renames weights."""
        folder = written(family)
        check_adapter_fits(str(folder / adapter), model_without_weights(ResolvedModel(str(folder / "base"))))

    def test_poly_is_refused(self, written, tmp_path):
        adapter = changed(written("llama") / "one", tmp_path / "a", peft_type="POLY")
        with pytest.raises(InputError, match=r"of kind POLY, .* changes weights by the task, .* cannot be merged"):
            load_pretrained(written("llama") / "base", adapter=adapter)

    @pytest.mark.parametrize("error", [AttributeError("no merge"), NotImplementedError("no merge")])
    def test_one_that_peft_does_not_merge_is_refused(self, written, monkeypatch, error):
        def fails(*args, **options):
            raise error

        folder = written("llama")
        model = load_pretrained(folder / "base", adapter=folder / "one")
        before = state(model)[0]
        monkeypatch.setattr("peft.tuners.tuners_utils.BaseTuner.merge_and_unload", fails)
        with pytest.raises(InputError, match=r"cannot be merged: .*: no merge; give one that can, such as LoRA$"):
            set_adapter(model, folder / "two")
        assert torch.equal(state(model)[0], before)

    def test_prompt_tuning_is_refused(self, written, tmp_path):
        config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
        base, adapter, _ = self.kind(written, tmp_path, config)
        with pytest.raises(InputError, match=r"of kind PROMPT_TUNING, which adds positions .* cannot be merged"):
            load_pretrained(base, adapter=adapter)

    def test_of_tied_embeddings_is_refused(self, written, tmp_path):
        """Merged, it would change the head too, which peft does not."""
        folder = written("gpt2")
        adapter = write_adapter(folder / "base", tmp_path / "a", ["wte"])
        with pytest.raises(InputError, match=r"tied to another .* tie_word_embeddings=False"):
            load_pretrained(folder / "base", adapter=adapter)

    def test_of_a_tied_head_is_refused_and_harms_nothing(self, written, tmp_path):
        """peft keeps its weight under a second name, by which the embedding would be changed."""
        folder = written("gpt2")
        adapter = write_adapter(folder / "base", tmp_path / "a", ["lm_head", "c_fc"])
        theirs = transformers.GPT2LMHeadModel.from_pretrained(folder / "base")
        before = {name: weight.clone() for name, weight in theirs.named_parameters()}
        model = load_pretrained(theirs)
        with pytest.raises(InputError, match="tied to another"):
            set_adapter(model, adapter)
        assert all(torch.equal(weight, before[name]) for name, weight in theirs.named_parameters())


class TestFolders:
    def test_a_folder_of_an_adapter_brings_its_base(self, written):
        folder = written("llama")
        assert is_adapter(folder / "one")
        assert not is_adapter(folder / "base")
        assert base_of_adapter(folder / "one") == str(folder / "base")
        model = load_pretrained(folder / "one")
        assert adapter_of(model) == str(folder / "one")
        torch.testing.assert_close(state(model)[0], expected(folder, "one"), atol=2e-5, rtol=0)
        assert load_tokenizer(folder / "one")[1].model_type == "llama"

    def test_a_tokenizer_beside_it_is_read(self, written, tmp_path):
        """With it comes the chat template of the tuning."""
        base, adapter = written("llama") / "base", shutil.copytree(written("llama") / "one", tmp_path / "a")
        tokenizer = load_tokenizer(base)[0]
        assert tokenizer.chat_template is None
        tokenizer.chat_template = "{{ messages[0]['content'] }}!"
        tokenizer.save_pretrained(adapter)
        found = [load_tokenizer(adapter)[0], load_pretrained(base, adapter=adapter).tokenizer]
        found += [load_pretrained_unhooked(base, adapter=adapter)[1]]
        assert [each.chat_template for each in found] == [tokenizer.chat_template] * 3
        assert load_pretrained(base).tokenizer.chat_template is None

    def refused(self, *arguments, **options):
        with pytest.raises(InputError) as error:
            load_pretrained(*arguments, **options)
        assert "\n" not in str(error.value)
        return str(error.value)

    def test_without_base(self, written, tmp_path):
        adapter = shutil.copytree(written("llama") / "one", tmp_path / "a")
        config = json.loads((adapter / "adapter_config.json").read_text())
        gone = str(tmp_path / "gone")
        (adapter / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": gone}))
        assert self.refused(adapter) == (
            f"{str(adapter)!r} is an adapter, and its base, {gone!r}, is not there; give the base, and the adapter "
            "with --adapter"
        )
        for base in (5, ["a"], None):
            (adapter / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": base}))
            assert "its adapter_config.json names no base; give the base" in self.refused(adapter)
        assert adapter_of(load_pretrained(written("llama") / "base", adapter=adapter)) == str(adapter)

    @pytest.mark.parametrize("fields", [{"r": 0}, {"r": "2"}, {"peft_type": "nope"}], ids=str)
    def test_with_a_damaged_configuration(self, written, tmp_path, fields):
        adapter = changed(written("llama") / "one", tmp_path / "a", **fields)
        message = self.refused(adapter)
        assert message.startswith(f"the adapter_config.json of the adapter {str(adapter)!r} cannot be used (")
        assert message.endswith("); save the adapter again")

    @pytest.mark.parametrize("data", [b"", b"[]", "{}".encode("utf-16")])
    def test_with_a_configuration_that_is_no_object(self, written, tmp_path, data):
        adapter = shutil.copytree(written("llama") / "one", tmp_path / "a")
        (adapter / "adapter_config.json").write_bytes(data)
        for arguments in ({"model": adapter}, {"model": written("llama") / "base", "adapter": adapter}):
            assert "is not a JSON object; download it, or save the adapter, again" in self.refused(**arguments)

    def test_with_weights_that_are_not_finite(self, written, tmp_path):
        adapter = shutil.copytree(written("llama") / "one", tmp_path / "a")
        weights = load_file(adapter / "adapter_model.safetensors")
        next(iter(weights.values()))[0, 0] = torch.nan
        save_file(weights, adapter / "adapter_model.safetensors")
        message = self.refused(written("llama") / "base", adapter=adapter)
        assert message.startswith(f"the adapter {str(adapter)!r} cannot be merged: ")

    def test_beside_a_base_of_which_a_part_is_offloaded(self, written):
        plain = transformers.LlamaForCausalLM.from_pretrained(written("llama") / "base")
        plain.model.layers[1].to("meta")
        with pytest.raises(InputError, match=r"^part of the base is offloaded, .* \(device=\), without device_map$"):
            with_adapter(plain, written("llama") / "one")

    @pytest.mark.parametrize("share", [0.0, 0.5])
    def test_with_weights_that_are_cut_off(self, written, tmp_path, share):
        adapter = shutil.copytree(written("llama") / "one", tmp_path / "a")
        weights = adapter / "adapter_model.safetensors"
        weights.write_bytes(weights.read_bytes()[: int(share * weights.stat().st_size)])
        message = self.refused(adapter)
        assert message.startswith(f"the weights of the adapter {str(adapter)!r} are damaged or cut off (")
        assert message.endswith("); download or save them again")

    def test_beside_a_model(self, written, tmp_path):
        both = shutil.copytree(written("llama") / "base", tmp_path / "both")
        for file in (written("llama") / "one").iterdir():
            shutil.copy(file, both)
        assert self.refused(both) == (
            f"{str(both)!r} holds an adapter (adapter_config.json) and a model (config.json), so it is not clear "
            "which is meant; put them in separate folders"
        )

    def test_for_another_base(self, written, tmp_path):
        gpt2, llama = written("gpt2"), written("llama")
        message = self.refused(gpt2 / "base", adapter=llama / "one")
        assert message.startswith(
            f"the adapter {str(llama / 'one')!r}, trained for {str(llama / 'base')!r}, does not fit"
        )
        assert "GPT2LMHeadModel" in message
        assert "q_proj" in message

    def test_for_a_base_of_another_width(self, written, tmp_path):
        _, fields, targets = FAMILIES["llama"]
        wide = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**fields, "hidden_size": 32}))
        wide.save_pretrained(tmp_path / "wide")
        adapter = write_adapter(tmp_path / "wide", tmp_path / "a", targets)
        message = self.refused(written("llama") / "base", adapter=adapter)
        assert "does not fit this base (LlamaForCausalLM)" in message
        assert "q_proj" in message
        assert "[4, 32]" in message
        assert "[4, 16]" in message

    def test_for_a_deeper_base(self, written, tmp_path):
        """peft leaves out what it finds no place for, and says nothing."""
        _, fields, targets = FAMILIES["llama"]
        deep = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**fields, "num_hidden_layers": 3}))
        deep.save_pretrained(tmp_path / "deep")
        adapter = write_adapter(tmp_path / "deep", tmp_path / "a", targets)
        message = self.refused(written("llama") / "base", adapter=adapter)
        assert "layers.2" in message
        assert "give the base that it was trained for" in message

    def test_a_failed_swap_leaves_the_model_as_it_was(self, written):
        llama = written("llama")
        model = load_pretrained(llama / "base", adapter=llama / "one")
        before = state(model)[0]
        with pytest.raises(InputError):
            set_adapter(model, written("gpt2") / "one")
        assert torch.equal(state(model)[0], before)
        assert adapter_of(model) == str(llama / "one")

    @pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
    @pytest.mark.parametrize("before", ["one", None])
    def test_so_does_a_swap_that_fails_while_it_writes(self, written, monkeypatch, error, before):
        """Fused weights are split again, and the adapter's folder is not needed."""
        neox = written("neox")
        model = load_pretrained(neox / "base", adapter=before and neox / before)
        at_first = state(model)[0]
        write = adapters._Resident._write
        writes = iter([False, True, False, False, False, False])

        def failing(resident, weights):
            half = dict(list(weights.items())[: len(weights) // 2])
            if not next(writes):
                return write(resident, weights)
            write(resident, half)
            raise error

        monkeypatch.setattr(adapters._Resident, "_write", failing)
        with pytest.raises(error):
            set_adapter(model, neox / "two")
        assert torch.equal(state(model)[0], at_first)
        assert adapter_of(model) == (before and str(neox / before))

    def test_without_weights(self, written, tmp_path):
        adapter = shutil.copytree(written("llama") / "one", tmp_path / "a")
        (adapter / "adapter_model.safetensors").unlink()
        assert self.refused(written("llama") / "base", adapter=adapter) == (
            f"the adapter {str(adapter)!r} has no weights (adapter_model.safetensors); save it again"
        )

    def test_on_the_hub(self, monkeypatch):
        """transformers would put it beside the weights, where TransformerLens leaves it out."""
        from types import SimpleNamespace

        files = [SimpleNamespace(rfilename=name) for name in ("config.json", "adapter_config.json")]
        info = SimpleNamespace(siblings=files)
        monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda self, name, timeout: info)
        assert self.refused("somebody/lora") == (
            "'somebody/lora' on the Hugging Face hub is an adapter; download it (hf download somebody/lora --local-dir "
            "DIR) and give the folder"
        )

    def test_no_adapter_there(self, written, tmp_path):
        message = self.refused(written("llama") / "base", adapter=tmp_path)
        assert (
            message == f"no adapter in {str(tmp_path)!r} (no adapter_config.json); give a local folder that peft saved"
        )

    def test_of_models_that_take_none(self, written):
        from mechclust.models import ModelConfig, build_model

        own = build_model(ModelConfig(d_vocab=9, n_ctx=4, n_layers=1, d_model=8, n_heads=2))
        with pytest.raises(InputError, match="that load_pretrained did not load cannot take an adapter; load the base"):
            set_adapter(own, written("llama") / "one")


class TestModelsInMemory:
    def test_share_their_weights_and_are_left_as_they_are(self, written):
        theirs = transformers.LlamaForCausalLM.from_pretrained(written("llama") / "base").eval()
        modules = [type(module) for module in theirs.modules()]
        with torch.no_grad():
            before = theirs(TOKENS).logits
        model = load_pretrained(theirs)
        torch.testing.assert_close(state(model)[0], before, atol=1e-5, rtol=0)
        assert [type(module) for module in theirs.modules()] == modules
        assert theirs.config._attn_implementation == "sdpa"
        with torch.no_grad():
            assert torch.equal(theirs(TOKENS).logits, before)
        assert plain_model(model) is theirs
        pointers = {weight.data_ptr() for weight in theirs.parameters()}
        assert pointers <= {weight.data_ptr() for weight in model.parameters()}

    def test_take_a_tokenizer(self, written, gpt2):
        tokenizer = load_tokenizer(gpt2)[0]
        tokenizer.init_kwargs.pop("name_or_path", None)  # as one that was made in memory
        theirs = transformers.GPT2LMHeadModel.from_pretrained(gpt2)
        assert load_pretrained(theirs, tokenizer=tokenizer).tokenizer is tokenizer
        assert load_pretrained(theirs).tokenizer is None

    def test_need_the_gradients_that_they_needed(self, written):
        """Peft freezes all weights of a model that it puts an adapter into."""
        folder = written("gpt2")
        theirs = transformers.GPT2LMHeadModel.from_pretrained(folder / "base")
        next(theirs.parameters()).requires_grad_(False)
        weights = list(theirs.parameters())
        needed = [weight.requires_grad for weight in weights]
        assert sum(needed) == len(needed) - 1
        model = load_pretrained(theirs)
        for adapter in (folder / "one", folder / "two", None):
            set_adapter(model, adapter)
            assert [weight.requires_grad for weight in weights] == needed
        load_pretrained_unhooked(theirs, adapter=folder / "two")
        assert [weight.requires_grad for weight in weights] == needed

    def test_several_round_one_share_its_adapter(self, written):
        """Two would stack their adapters, and take each other's for the base."""
        folder = written("neox")
        theirs = transformers.GPTNeoXForCausalLM.from_pretrained(folder / "base").eval()
        before = {name: weight.clone() for name, weight in theirs.named_parameters()}
        one = load_pretrained(theirs, adapter=folder / "one")
        two = load_pretrained(theirs, adapter=folder / "two")
        for model in (one, two):
            assert adapter_of(model) == str(folder / "two")
            torch.testing.assert_close(state(model)[0], expected(folder, "two"), atol=2e-5, rtol=0)
        set_adapter(one, None)
        for model in (one, two):
            torch.testing.assert_close(state(model)[0], expected(folder, None), atol=2e-5, rtol=0)
        assert all(torch.equal(weight, before[name]) for name, weight in theirs.named_parameters())

    def test_a_copy_of_one_with_hooks_is_a_model_of_its_own(self, written):
        folder = written("llama")
        theirs = transformers.LlamaForCausalLM.from_pretrained(folder / "base").eval()
        load_pretrained(theirs)
        tuned = copy.deepcopy(theirs)
        assert plain_model(tuned) is None
        model = load_pretrained(tuned, adapter=folder / "one")
        assert plain_model(model) is tuned
        assert adapter_of(theirs) is None
        assert all(
            torch.equal(weight, before)
            for weight, before in zip(
                theirs.parameters(),
                transformers.LlamaForCausalLM.from_pretrained(folder / "base").parameters(),
                strict=True,
            )
        )
        torch.testing.assert_close(state(model)[0], expected(folder, "one"), atol=2e-5, rtol=0)

    @pytest.mark.parametrize("attention", ["eager", "sdpa"])
    def test_untrained_copies(self, written, attention):
        theirs = transformers.LlamaForCausalLM.from_pretrained(written("llama") / "base").eval()
        one, again, other = (
            state(load_pretrained(theirs, untrained=True, seed=s, attention=attention))[1] for s in (1, 1, 2)
        )
        assert torch.equal(one, again)
        assert not torch.equal(one, other)
        hooked = load_pretrained(theirs, attention=attention)
        torch.testing.assert_close(state(load_pretrained(hooked, untrained=True, seed=1))[1], one, atol=1e-5, rtol=0)

    def test_another_head(self, written):
        """TransformerLens has no bridge for it; its body is measured."""
        theirs = transformers.LlamaForSequenceClassification.from_pretrained(written("llama") / "base").eval()
        model = load_pretrained(theirs)
        assert type(model).__name__ == "ReadOnlyModel"
        torch.testing.assert_close(
            state(model)[1], state(load_pretrained(written("llama") / "base"))[1], atol=1e-5, rtol=0
        )

    def test_options_that_cannot_change_them(self, written):
        theirs = transformers.LlamaForCausalLM.from_pretrained(written("llama") / "base")
        with pytest.raises(InputError, match=r"dtype is torch.bfloat16, but the model is in memory already; leave it"):
            load_pretrained(theirs, dtype=torch.bfloat16)
        with pytest.raises(InputError, match="expected a model, got dict; give a hub name, a directory"):
            load_pretrained({})

    @pytest.mark.parametrize("inside", [False, True])
    def test_with_an_adapter_beside_their_weights(self, written, inside):
        """TransformerLens would run the base, and say nothing."""
        wrapped = peft.get_peft_model(
            transformers.GPT2LMHeadModel.from_pretrained(written("gpt2") / "base"),
            peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True),
        )
        with pytest.raises(InputError, match=r"has a peft adapter beside its weights, .* or the merged model"):
            load_pretrained(wrapped.base_model.model if inside else wrapped)


@pytest.mark.parametrize("weights", ["adapter_model.safetensors", "adapter_model.bin"])
def test_what_tells_adapters_apart(tmp_path: Path, weights: str) -> None:
    """Their weights and how these are scaled, not where the base was."""

    def written(name: str, data: bytes = b"weights", **config: Any) -> str:
        folder = tmp_path / name
        folder.mkdir()
        known = {"peft_type": "LORA", "base_model_name_or_path": "base", "lora_alpha": 16}
        (folder / "adapter_config.json").write_text(json.dumps({**known, **config}))
        (folder / weights).write_bytes(data)
        return digest_of_adapter(folder)

    first = written("first")
    assert written("moved", base_model_name_or_path="/elsewhere/base") == first
    assert len({first, written("scaled", lora_alpha=32), written("other", b"others")}) == 3
