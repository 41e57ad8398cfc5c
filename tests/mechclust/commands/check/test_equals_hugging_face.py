"""The row that matters most: what is measured is what plain Hugging Face computes. Planted faults must fail it."""

from __future__ import annotations

import re
from functools import cache

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model

import mechclust.commands.check.model
import mechclust.models.adapters
from mechclust.commands.check import check_model
from mechclust.commands.check.equal import allowed_rounding, equals_hugging_face
from mechclust.commands.check.inputs import CheckedModel
from mechclust.commands.check.reference import take_reference
from mechclust.commands.check.result import NotTried
from mechclust.models import ModelConfig, build_model, load_pretrained
from mechclust.models.adapters import set_adapter
from mechclust.models.pretrained import load_pretrained_unhooked
from tasks import InputError

ROW = "equals Hugging Face"
NEOX = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32}
FUSED = {"gpt2": ["c_attn"], "neox": ["query_key_value"]}
TARGETS = {**FUSED, "llama": ["q_proj", "k_proj", "v_proj"], "bert": ["query", "key", "value"]}
DECODERS = ("gpt2", "neox", "llama")


@pytest.fixture(scope="module")
def models(write_checkpoint, tmp_path_factory):
    """``models(family)``: a directory with a random model, each written once; read only."""
    written = {}

    def get(family):
        if family not in written:
            folder = tmp_path_factory.mktemp(family)
            written[family] = write_checkpoint(folder, "gpt2" if family == "neox" else family)
            if family == "neox":
                config = transformers.GPTNeoXConfig(
                    vocab_size=22, max_position_embeddings=16, initializer_range=0.2, **NEOX
                )
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(7)
                    transformers.GPTNeoXForCausalLM(config).save_pretrained(folder)
        return written[family]

    return get


def in_memory(folder, **options):
    auto = transformers.AutoModelForMaskedLM if "bert" in str(folder) else transformers.AutoModelForCausalLM
    return auto.from_pretrained(folder, attn_implementation="eager", **options).eval()


@pytest.fixture(scope="module")
def adapters(models, tmp_path_factory):
    """``adapters(family, scale)``: a folder with a random LoRA on q, k and v; read only."""
    written = {}

    def get(family, scale=1.0):
        if (family, scale) not in written:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(1)
                config = LoraConfig(
                    r=2,
                    lora_alpha=8,
                    target_modules=TARGETS[family],
                    init_lora_weights=False,
                    fan_in_fan_out=family == "gpt2",
                )
                tuned = get_peft_model(in_memory(models(family)), config)
            with torch.no_grad():
                for name, weight in tuned.named_parameters():
                    if "lora_B" in name:
                        weight.mul_(scale)
            folder = tmp_path_factory.mktemp(f"{family}-adapter")
            tuned.save_pretrained(folder)
            written[family, scale] = folder
        return written[family, scale]

    return get


@pytest.fixture
def row(monkeypatch):
    """The row alone, for what ``check_model`` takes: the other checks are left out, to save time."""

    def check(model, **options):
        found = mechclust.commands.check.model
        with monkeypatch.context() as patch:
            patch.setattr(found, "_ATTEMPTS", {ROW: found._ATTEMPTS[ROW]})
            patch.setattr(found, "_READ_ONLY", {})
            return check_model(model, **options)[ROW]

    return check


# ---- sound models ----


@pytest.mark.parametrize("family", ["neox", "llama", "albert", "bart"])
def test_families(models, family, row):
    """GPT-2, BERT, RoBERTa and ELECTRA pass among all checks, in ``test_check``."""
    found = row(models(family))
    assert found.passed is True, found.detail
    output = "the last hidden state" if family in ("albert", "bart") else "the logits"
    assert re.match(
        rf"{output} of \w+ \(transformers \S+\) (to the bit|within \S+e-0[78] of the largest); states of 3 layers "
        r"(to the bit|within \S+e-0[78]); attention of 2 blocks (to the bit|within \S+e-0[78]); without padding, "
        r"padded on the right",
        found.detail,
    )
    assert "(allowed 2.1e-05 in float32)" in found.detail


@pytest.mark.parametrize(("dtype", "bound"), [("bfloat16", "0.054"), ("float16", "0.0068")])
def test_half_precision(models, row, dtype, bound):
    found = row(models("gpt2"), dtype=dtype)
    assert found.passed is True, found.detail
    assert f"(allowed {bound} in {dtype})" in found.detail


@pytest.mark.parametrize("kind", ["mamba", "rwkv"])
def test_hidden_states_of_recurrent_models_begin_behind_the_first_block(kind, row):
    config = transformers.AutoConfig.for_model(kind, vocab_size=20, hidden_size=16, num_hidden_layers=2)
    found = row(transformers.AutoModelForCausalLM.from_config(config))
    assert found.passed
    assert "states of 3 layers to the bit" in found.detail


def test_hybrids_give_attention_of_their_attention_blocks_alone(row):
    config = transformers.Lfm2Config(
        vocab_size=20,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=2,
        layer_types=["conv", "full_attention", "conv", "full_attention"],
        attn_implementation="eager",
    )
    found = row(transformers.Lfm2ForCausalLM(config))
    assert found.passed is True, found.detail
    assert "; attention of 2 blocks " in found.detail


def test_the_bound():
    assert allowed_rounding(torch.float32, 31) == pytest.approx(100 * 2**-23 * 32**0.5)
    assert allowed_rounding(torch.float16, 3) == 4 * 2**-10 * 2
    assert allowed_rounding(torch.float16, 3, merged=True) == 2 * allowed_rounding(torch.float16, 3)
    assert allowed_rounding(torch.float32, 3, merged=True) == allowed_rounding(torch.float32, 3)
    assert allowed_rounding(torch.bfloat16, 32) == 0.1


# ---- models in memory ----


def test_a_hugging_face_model_in_memory_is_left_as_it_is(models, adapters):
    plain = in_memory(models("gpt2")).train()
    before = {name: weight.clone() for name, weight in plain.state_dict().items()}
    tokens = torch.tensor([[3, 4, 5]])
    logits = plain.eval()(tokens).logits
    plain.train()
    report = check_model(plain, adapter=adapters("gpt2"))
    assert report[ROW].passed is True, report[ROW].detail
    assert report.passed, str(report)
    assert report.model == "GPT2LMHeadModel"
    assert report["tokenizer"].passed is None
    assert all(module.training for module in plain.modules())
    assert all(torch.equal(weight, before[name]) for name, weight in plain.state_dict().items())
    assert torch.equal(plain.eval()(tokens).logits, logits)


def test_a_hooked_model_is_compared_with_the_one_whose_weights_it_shares(models, adapters, row):
    model = load_pretrained(models("neox"))
    found = row(model)
    assert found.passed is True
    assert found.detail.endswith(
        "; weights are shared with it, so a fault in loading or merging would not show: give the model by name for that"
    )
    set_adapter(model, adapters("neox"))
    found = row(model)
    assert found.passed is True
    assert f"shared with it and the adapter {str(adapters('neox'))!r} in them, so " in found.detail


def test_a_hooked_model_that_computes_something_else(models, row):
    model = load_pretrained(models("llama"))
    model.blocks[1].attn.register_forward_hook(lambda module, args, out: (out[0] * 1.1, *out[1:]))
    found = row(model)
    assert found.passed is False
    assert "and it begins in block 1 (0." in found.detail


def test_no_reference(tiny_model, row):
    found = row(tiny_model())
    assert found.passed is None
    assert found.detail == (
        "it is not known what plain Hugging Face computes for a model in memory that load_pretrained did not "
        "load, since a model inside TransformerLens's bridge computes as the bridge does; give its name or directory"
    )


def test_a_file_of_save_model(tiny_model, row, tmp_path):
    from mechclust.models import save_model

    save_model(tiny_model(), tmp_path / "m.safetensors")
    found = row(tmp_path / "m.safetensors")
    assert found.passed is None
    assert found.detail == "the file is from save_model, so there is no Hugging Face model to compare with"


def test_a_reference_that_fails(models, row, monkeypatch):
    def load(*args, **options):
        plain, tokenizer = load_pretrained_unhooked(*args, **options)
        plain.forward = None
        return plain, tokenizer

    monkeypatch.setattr(mechclust.commands.check.model, "load_pretrained_unhooked", load)
    found = row(models("gpt2"))
    assert found.passed is None
    assert found.detail.startswith("plain Hugging Face stopped with TypeError")


# ---- planted faults ----


@pytest.fixture(scope="module")
def reference():
    """``reference(folder)``: what plain Hugging Face computes, once for each model; read only."""
    return cache(lambda folder: take_reference(*load_pretrained_unhooked(folder), 0))


@pytest.fixture
def planted(reference):
    """The row for a model that is loaded by name, with a fault planted in what ``load_pretrained`` gives."""

    def check(folder, plant):
        hooked = load_pretrained(folder)
        with torch.no_grad():
            hooked = plant(hooked) or hooked
        passed, detail = equals_hugging_face(CheckedModel(hooked, hooked.tokenizer, 0), reference(folder))
        assert passed is False, detail
        return detail

    return check


class TestFaults:
    def test_one_weight(self, planted, models):
        """A thousandth is enough; it begins where it is."""

        def change(model):
            model.blocks[1].mlp.gate.weight[3, 5] += 0.02

        text = planted(models("llama"), change)
        assert re.match(
            r"the logits are \S+ of the largest away from those of LlamaForCausalLM \(transformers \S+\) \(allowed "
            r"2\.1e-05 in float32\), and it begins in block 1 \(0\.00\d+\): numbers from it are not those of this "
            r"checkpoint; try another version of TransformerLens, or read its states with load_pretrained\(\.\.\., "
            r"attention='sdpa'\), where Hugging Face computes them$",
            text,
        ), text

    def test_a_weight_behind_the_blocks(self, planted, models):
        def change(model):
            model.ln_final.weight.mul_(1.01)

        text = planted(models("llama"), change)
        assert "and all states agree, so it is the final norm or the head: " in text

    def test_the_scale_of_attention(self, planted, models):
        def change(model):
            model.blocks[0].attn.q.weight.mul_(1.01)

        assert "and it begins in the attention of block 0 (0.00" in planted(models("gpt2"), change)

    def test_embeddings_that_are_multiplied(self, planted, models):
        def change(model):
            model.embed.register_forward_hook(lambda module, args, out: out * 4.0)

        assert "and it begins in the embedding (3)" in planted(models("llama"), change)

    @pytest.mark.parametrize("family", ["gpt2", "albert"])
    def test_another_dtype(self, planted, models, family):
        text = planted(models(family), lambda model: model.to(torch.bfloat16))
        assert "and it begins in the embedding (0.0" in text
        assert text.endswith(
            "the weights here are bfloat16, and Hugging Face's float32: the model was loaded in another dtype than was "
            "asked for; load it again with dtype=..., and check that"
        )

    def test_a_read_only_model(self, planted, models):
        def change(model):
            model.body.encoder.layer[1].output.dense.bias[0] += 0.01

        assert "and it begins in block 1 (0.0" in planted(models("electra"), change)

    def test_hooks_that_are_in_the_wrong_place(self, planted, models):
        """Logits are right, and the states are not."""

        def change(model):
            class Shifted(type(model)):
                def hooks(self, fwd_hooks=(), **options):
                    moved = {"blocks.1.hook_resid_post": "blocks.0.hook_resid_post"}
                    return super().hooks(fwd_hooks=[(moved.get(name, name), f) for name, f in fwd_hooks], **options)

            model.__class__ = Shifted

        assert re.match(
            r"the logits of LlamaForCausalLM \(transformers \S+\) to the bit, but hook points show other states than "
            r"Hugging Face's, from block 1 on \(\d\S* away; allowed 2\.1e-05 in float32\): they are not where "
            r"their names say, so layers would be confused; try another version of TransformerLens, ",
            planted(models("llama"), change),
        )

    def test_padding_that_is_attended_to(self, planted, models):
        def change(model):
            class Deaf(type(model)):
                def forward(self, tokens, **options):
                    options.pop("attention_mask", None)
                    return super().forward(tokens, **options)

            model.__class__ = Deaf

        text = planted(models("bert"), change)
        assert text.startswith("padded on the right: the logits are ")
        assert text.endswith(
            "padding changes what this model computes, and not what Hugging Face computes; give batches of "
            "sequences of one length"
        )

    def test_values_that_are_no_numbers(self, planted, models):
        def change(model):
            model.unembed.weight[3] = torch.nan

        assert planted(models("neox"), change).startswith("the logits are not a number or of another shape from ")


# ---- adapters ----


class TestAdapters:
    @pytest.mark.parametrize("family", TARGETS)
    def test_families(self, models, adapters, family, row):
        found = row(models(family), adapter=adapters(family))
        assert found.passed is True, found.detail
        assert ", with the adapter (unmerged by peft) (allowed 2.1e-05 in float32)" in found.detail
        assert re.search(r"; the adapter moves the output by [\d.]+ of its length$", found.detail)

    @pytest.mark.parametrize(("family", "dtype"), [("llama", "bfloat16"), ("neox", "float16")])
    def test_half_precision(self, models, adapters, row, family, dtype):
        """A fused projection and others."""
        found = row(models(family), adapter=adapters(family), dtype=dtype)
        assert found.passed is True, found.detail

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_the_trap_of_fused_projections(self, models, adapters, row, dtype, monkeypatch):
        """What TransformerLens does with a LoRA on a fused projection: the base is measured."""
        monkeypatch.setattr(mechclust.models.adapters, "split_again", lambda model: None)
        found = row(models("neox"), adapter=adapters("neox"), dtype=dtype)
        assert found.passed is False
        assert re.match(
            r"with the adapter: the logits are \S+ of the largest away from those of GPTNeoXForCausalLM .*: these are "
            r"the base's values: the adapter is not in what is measured \(it may sit on a fused projection, which "
            r"TransformerLens copies\), and a comparison with the base would find that nothing changed; merge it "
            r"\(peft: merge_and_unload\), save the model, and check that$",
            found.detail,
        )

    def test_the_trap_as_it_comes(self, models, row):
        """A model in memory with LoRA layers inside: given to TransformerLens as it is, it would run the base."""
        config = LoraConfig(target_modules=TARGETS["neox"], init_lora_weights=False, r=2)
        inside = get_peft_model(in_memory(models("neox")), config).get_base_model()
        with pytest.raises(InputError, match="has a peft adapter beside its weights, which a wrapper"):
            row(inside)

    def test_the_trap_below_rounding(self, models, adapters, row, monkeypatch):
        """A weak adapter that is lost in bfloat16: every value is within the bound, all of them together are not."""
        folder = adapters("gpt2", 0.02)
        assert row(models("gpt2"), adapter=folder, dtype="float32").passed is True
        lose = mechclust.commands.check.model.load_pretrained
        monkeypatch.setattr(
            mechclust.commands.check.model,
            "load_pretrained",
            lambda model, **options: lose(model.without_adapter, **options),
        )
        found = row(models("gpt2"), adapter=folder, dtype="bfloat16")
        assert found.passed is False
        assert re.match(
            r"with the adapter: the output is the base's, 0\.0\d+ of its length away; the adapter is not", found.detail
        )

    def test_one_that_rounding_hides(self, models, adapters, row):
        found = row(models("llama"), adapter=adapters("llama", 0.001), dtype="bfloat16")
        assert found.passed is True
        assert found.detail.endswith(" of its length, which rounding in bfloat16 hides: check in float32 too")

    def test_one_that_does_nothing(self, models, adapters, row):
        found = row(models("llama"), adapter=adapters("llama", 0.0))
        assert found.passed is True
        assert found.detail.endswith("; the adapter changes no logit here: it is new, or not for these modules")


# ---- the reference ----


class TestReference:
    def test_it_reads_what_hugging_face_gives(self, models):
        plain = in_memory(models("gpt2"))
        reference = take_reference(plain, None, 0)
        assert [case.is_padded for case in reference.cases] == [False, True]
        assert reference.base_outputs == []
        assert (reference.dtype, reference.weights) == (torch.float32, "float32")
        case = reference.cases[0]
        values = case.values
        with torch.inference_mode():
            out = plain(case.batch.tokens, output_hidden_states=True, output_attentions=True)
            normed = plain.transformer.ln_f(values.states[2])  # the last is the block's own, before the final norm
        assert torch.equal(values.outputs[0], out.logits)
        assert torch.equal(values.states[1], out.hidden_states[1])
        assert torch.equal(normed, out.hidden_states[2])
        assert not torch.equal(values.states[2], out.hidden_states[2])
        assert torch.equal(values.patterns[1], out.attentions[1])

    def test_it_leaves_no_trace(self, models):
        plain = in_memory(models("bert")).train()
        plain(
            torch.tensor([[3, 4]]), output_hidden_states=True, output_attentions=True
        )  # leaves Hugging Face's own hooks
        hooks = [len(module._forward_hooks) for module in plain.modules()]
        take_reference(plain, None, 0)
        assert all(module.training for module in plain.modules())
        assert hooks == [len(module._forward_hooks) for module in plain.modules()]

    def test_special_tokens_are_left_out(self, models):
        tokenizer = transformers.AutoTokenizer.from_pretrained(models("bert"))
        reference = take_reference(in_memory(models("bert")), tokenizer, 0)
        for case in reference.cases:
            mask = case.batch.attention_mask
            real = case.batch.tokens.flatten() if mask is None else case.batch.tokens[mask]
            assert not set(real.tolist()) & set(tokenizer.all_special_ids)

    def test_a_model_that_gives_another_shape(self, models):
        reference = take_reference(in_memory(models("gpt2")), None, 0)
        other = build_model(ModelConfig(d_vocab=22, n_ctx=16, n_layers=2, d_model=8, n_heads=2))
        passed, text = equals_hugging_face(CheckedModel(other, None, 0), reference)
        assert passed is False
        assert "it begins in the embedding (inf)" in text
        with pytest.raises(NotTried, match=r"^a reason$"):
            equals_hugging_face(CheckedModel(other, None, 0), "a reason")
