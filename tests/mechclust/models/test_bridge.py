"""TransformerLens's bridges of Hugging Face models: dropout, weights that change, and what they do not reproduce."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess

import pytest
import torch
import transformers

from mechclust.models import load_pretrained
from mechclust.models.plain_model import plain_model
from mechclust.models.short_logits import are_equal, short_logits
from probes import AttentionEntropy, record, run
from probes.engine.hooked_model import evaluation_mode, modules_of
from tasks import Batch, InputError

GPT2 = {
    "vocab_size": 22,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 32,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
BERT = {
    "vocab_size": 22,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}
TOKENS = torch.randint(3, 22, (4, 12), generator=torch.Generator().manual_seed(0))


def build(name, seed=0, **fields):
    """A small Hugging Face model with random weights, which no initialisation makes small or equal."""
    model_class = getattr(transformers, name)
    model = model_class._from_config(model_class.config_class(**fields), attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight_name, weight in model.named_parameters():
            mean = float(weight.ndim == 1 and "bias" not in weight_name)
            weight.copy_(mean + 0.3 * torch.randn(weight.shape, generator=generator))
    return model


class TestDropout:
    """The bridge runs modules of Hugging Face's model that it does not list, such as GPT-2's ``transformer.drop``."""

    @pytest.mark.parametrize(("name", "fields"), [("GPT2LMHeadModel", GPT2), ("BertForMaskedLM", BERT)])
    def test_is_off_in_a_run(self, name, fields):
        model = load_pretrained(build(name, **fields))
        expected = run(model, Batch(TOKENS), AttentionEntropy())["entropy"]
        model.original_model.train()
        before = modules_of(model)
        assert torch.equal(run(model, Batch(TOKENS), AttentionEntropy())["entropy"], expected)
        assert modules_of(model) == before

    def test_modes_of_all_modules_come_back(self):
        model = load_pretrained(build("GPT2LMHeadModel", **GPT2))
        model.original_model.train()
        dropout = model.original_model.transformer.drop
        with evaluation_mode(model):
            assert not dropout.training
        assert dropout.training
        dropout.training = False
        with evaluation_mode(model):
            pass
        assert not dropout.training
        assert model.original_model.training


NEOX = BERT
FUSED = [
    ("GPT2LMHeadModel", GPT2),
    ("GPTNeoXForCausalLM", NEOX),
    ("BloomForCausalLM", {"vocab_size": 22, "hidden_size": 16, "n_layer": 2, "n_head": 4}),
    ("FalconForCausalLM", {**BERT, "multi_query": True}),
    ("MptForCausalLM", {"vocab_size": 22, "d_model": 16, "n_layers": 2, "n_heads": 4, "max_seq_len": 32}),
    ("CodeGenForCausalLM", {**GPT2, "rotary_dim": 2}),
]


class TestWeightsThatChange:
    """TransformerLens copies fused weights; the bridge of a model in memory follows that model all the same."""

    @pytest.mark.parametrize(("name", "fields"), FUSED)
    def test_are_those_that_run(self, name, fields):
        plain = build(name, **fields)
        model = load_pretrained(plain)
        assert type(model).__name__ == "TransformerBridge"
        other = build(name, seed=1, **fields)
        with torch.inference_mode():
            before = model(TOKENS)
        for weight, value in zip(plain.parameters(), other.parameters(), strict=True):
            weight.data.copy_(value)  # no version counter changes, as with fused optimisers
        with torch.inference_mode():
            expected = other(TOKENS).logits
            assert not torch.allclose(before, expected, atol=0.1)
            torch.testing.assert_close(model(TOKENS), expected, atol=1e-5, rtol=0)

    def test_by_training(self):
        plain = build("GPTNeoXForCausalLM", **NEOX)
        model = load_pretrained(plain)
        optimizer = torch.optim.AdamW(plain.parameters(), lr=0.02, fused=True)
        for _ in range(3):
            optimizer.zero_grad()
            plain(TOKENS, labels=TOKENS).loss.backward()
            optimizer.step()
            with torch.no_grad():
                torch.testing.assert_close(model(TOKENS), plain(TOKENS).logits, atol=1e-5, rtol=0)

    def test_only_then_are_they_split(self):
        """Otherwise changes of the copies, as TransformerLens's interventions on weights, would be undone."""
        plain = build("GPTNeoXForCausalLM", **NEOX)
        model = load_pretrained(plain)
        states = torch.get_rng_state()
        with torch.no_grad():
            before = model(TOKENS)
            model.blocks[0].attn.q.original_component.weight.zero_()
            changed = model(TOKENS)
            assert not torch.allclose(changed, before)
            assert torch.equal(model(TOKENS), changed)
            plain.gpt_neox.layers[0].attention.query_key_value.bias.add_(0.1)
            torch.testing.assert_close(model(TOKENS), plain(TOKENS).logits, atol=1e-5, rtol=0)
        assert torch.equal(torch.get_rng_state(), states)


GEMMA3 = {**BERT, "head_dim": 8, "num_key_value_heads": 2, "attn_logit_softcapping": 0.5}
UNLIKE = [
    ("OpenAIGPTLMHeadModel", GPT2),  # padded batches lose the causal mask
    ("GPT2LMHeadModel", {**GPT2, "scale_attn_weights": False}),
    ("GPTBigCodeForCausalLM", {**GPT2, "scale_attn_weights": False}),
    ("GPTBigCodeForCausalLM", {**GPT2, "multi_query": False}),  # is not wrapped
    ("GPTNeoXForCausalLM", {**NEOX, "attention_bias": False}),  # is not wrapped
    ("PhiForCausalLM", {**BERT, "qk_layernorm": True}),  # is not wrapped
    ("Gemma3ForCausalLM", GEMMA3),
]


class TestWhatABridgeDoesNotReproduce:
    @pytest.mark.parametrize(("name", "fields"), UNLIKE)
    def test_is_read_only(self, name, fields):
        plain = build(name, **fields)
        states = torch.get_rng_state()
        model = load_pretrained(plain)
        assert torch.equal(torch.get_rng_state(), states)
        assert type(model).__name__ == "ReadOnlyModel"
        mask = torch.ones_like(TOKENS)
        mask[0, 8:] = 0
        names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(2)]
        with torch.no_grad(), record(model, names) as seen:
            model(TOKENS, attention_mask=mask)
            expected = plain(TOKENS, attention_mask=mask, output_attentions=True).attentions
        for found, pattern in zip((seen[name][0] for name in names), expected, strict=True):
            torch.testing.assert_close(found[:, :, :8], pattern[:, :, :8], atol=1e-5, rtol=0)

    @pytest.mark.parametrize(("name", "fields"), [*FUSED, ("BertForMaskedLM", BERT)])
    def test_others_are_bridges_also_in_bfloat16(self, name, fields):
        assert type(load_pretrained(build(name, **fields).bfloat16())).__name__ == "TransformerBridge"

    def test_short_contexts_and_models_in_training(self):
        plain = build("GPT2LMHeadModel", **{**GPT2, "n_positions": 3}).train()
        assert type(load_pretrained(plain)).__name__ == "TransformerBridge"
        assert plain.training

    def test_rounding_of_coarse_multiplications_is_none(self, monkeypatch):
        expected = build("GPT2LMHeadModel", **GPT2)(TOKENS).logits.detach()
        rounded = expected.bfloat16().float()
        assert not are_equal([rounded], [expected])
        monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
        assert are_equal([rounded], [expected])
        assert not are_equal([1.2 * expected], [expected])

    def test_overflow_of_the_original_says_nothing(self):
        overflown = torch.tensor([float("inf"), 1.0])
        assert are_equal([overflown], [overflown])
        assert not are_equal([overflown], [torch.ones(2)])

    def test_the_padded_place_is_not_compared(self):
        plain = build("GPT2LMHeadModel", **GPT2)
        alone, padded = short_logits(plain, plain.config)
        tokens = (torch.arange(8).view(2, 4) + plain.config.vocab_size // 2) % plain.config.vocab_size
        torch.testing.assert_close(alone, plain(tokens).logits)
        torch.testing.assert_close(padded, torch.cat([alone[0], alone[1, :3]]))
        bert = build("BertForMaskedLM", **BERT)  # which would attend to it
        _, padded = short_logits(bert, bert.config)
        torch.testing.assert_close(padded[4:], bert(tokens[1:, :3]).logits[0])

    def test_no_memory_is_no_reason(self, monkeypatch):
        def without_memory(*_):
            raise torch.OutOfMemoryError("CUDA out of memory")

        monkeypatch.setattr("mechclust.models.pretrained.short_logits", without_memory)
        with pytest.raises(torch.OutOfMemoryError):
            load_pretrained(build("GPT2LMHeadModel", **GPT2))


LFM2 = {**BERT, "num_key_value_heads": 2, "layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}
RWKV = {"vocab_size": 22, "hidden_size": 16, "num_hidden_layers": 2, "attention_hidden_size": 16}


class TestPaddingOnTheLeft:
    @pytest.mark.parametrize(
        ("name", "fields"), [("Lfm2ForCausalLM", {**LFM2, "conv_bias": True}), ("RwkvForCausalLM", RWKV)]
    )
    def test_that_a_bridge_reads_is_refused(self, name, fields):
        model = load_pretrained(build(name, **fields))
        assert type(model).__name__ == "TransformerBridge"
        mask = torch.ones_like(TOKENS)
        mask[0, :4] = 0
        with pytest.raises(InputError) as error:
            model(TOKENS, attention_mask=mask)
        assert str(error.value) == (
            f"the batch has padding, which changes what a {name} computes, although it is masked; pad on the right"
        )
        with torch.no_grad():
            alone = model(TOKENS[:1, :8])
            torch.testing.assert_close(model(TOKENS, attention_mask=mask.flip(1))[:1, :8], alone, atol=1e-5, rtol=0)

    @pytest.mark.parametrize(("name", "fields"), [("Lfm2ForCausalLM", {**LFM2, "conv_bias": False}), FUSED[0]])
    def test_that_changes_nothing_is_taken(self, name, fields):
        model = load_pretrained(build(name, **fields))
        mask = torch.ones_like(TOKENS)
        mask[0, :4] = 0
        with torch.no_grad():
            alone = model(TOKENS[:1, 4:])
            torch.testing.assert_close(model(TOKENS, attention_mask=mask)[:1, 4:], alone, atol=1e-5, rtol=0)


def gemma3_with_pictures():
    """A small Gemma 3 with random weights that reads texts and pictures."""
    text = {**BERT, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128}
    pictures = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.Gemma3Config(
        text_config=text,
        vision_config={**pictures, "image_size": 16, "patch_size": 4},
        mm_tokens_per_image=4,
        **{"image_token_index": 19, "boi_token_index": 20, "eoi_token_index": 21},
    )
    return transformers.Gemma3ForConditionalGeneration._from_config(config, attn_implementation="eager").eval()


class TestAModelOfTextsAndPictures:
    def test_asks_for_nothing_and_installs_nothing(self, monkeypatch):
        """TransformerLens asks the hub for a processor of pictures, and runs pip if there is none."""
        done = []
        for name in ("run", "call", "check_call", "check_output", "Popen"):
            monkeypatch.setattr(subprocess, name, lambda *command, **_: done.append(command))
        loader = transformers.AutoProcessor
        monkeypatch.setattr(loader, "from_pretrained", lambda *names, **_: done.append(names))
        plain = gemma3_with_pictures()
        model = load_pretrained(plain)
        assert type(model).__name__ == "TransformerBridge"
        assert done == []
        assert transformers.AutoProcessor is loader
        with torch.no_grad():
            torch.testing.assert_close(model(TOKENS[:, :8].clamp(max=18)), plain(TOKENS[:, :8].clamp(max=18)).logits)

    def test_takes_texts_that_are_longer_than_a_picture(self):
        plain = gemma3_with_pictures()
        tokens = TOKENS.clamp(max=18).reshape(2, 24)
        model = load_pretrained(plain, attention="sdpa")
        assert model.cfg.n_ctx == 128
        with torch.no_grad():
            expected = plain(tokens, output_hidden_states=True).hidden_states[-1]
            torch.testing.assert_close(model(tokens), expected, atol=1e-5, rtol=0)


class TestTheModelInMemory:
    @pytest.mark.parametrize("attention", ["eager", "sdpa"])
    def test_can_still_be_pickled_saved_and_copied(self, attention):
        plain = build("GPT2LMHeadModel", **GPT2)
        hooked = load_pretrained(plain, attention=attention)
        file = io.BytesIO()
        torch.save(plain, file)
        file.seek(0)
        copies = [pickle.loads(pickle.dumps(plain)), torch.load(file, weights_only=False), copy.deepcopy(plain)]
        with torch.no_grad():
            expected = plain(TOKENS).logits
            plain.transformer.wte.weight.zero_()
            for each in copies:
                assert torch.equal(each(TOKENS).logits, expected)
                again = load_pretrained(each)
                torch.testing.assert_close(again(TOKENS), expected, atol=1e-5, rtol=0)
                assert plain_model(again) is each
        assert plain_model(hooked) is plain

    def test_llama_4_names_its_body_otherwise(self):
        if not hasattr(transformers, "Llama4ForCausalLM"):
            pytest.skip("this transformers has no Llama 4")
        fields = {**BERT, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size_mlp": 24, "num_local_experts": 2}
        plain = build("Llama4ForCausalLM", **fields)
        with torch.no_grad():
            expected = plain(TOKENS, output_hidden_states=True).hidden_states[-1]
            found = load_pretrained(plain, attention="sdpa")(TOKENS)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)

    def test_has_the_attention_that_was_asked_for(self):
        plain = build("GPT2LMHeadModel", **GPT2)
        model = load_pretrained(plain, attention="sdpa")
        assert model.body.config._attn_implementation == "sdpa"
        assert "blocks.0.attn.hook_attention" in model.hook_dict
        assert plain.config._attn_implementation == "eager"
        bloom = load_pretrained(build(FUSED[2][0], **FUSED[2][1]), attention="sdpa")  # has no other
        assert bloom.body.config._attn_implementation == "eager"

    @pytest.mark.parametrize("option", [{"attention": "sdpa"}, {"tokenizer": object()}])
    def test_with_hooks_keeps_attention_and_tokenizer(self, option):
        hooked = load_pretrained(build("GPT2LMHeadModel", **GPT2))
        with pytest.raises(InputError) as error:
            load_pretrained(hooked, **option)
        assert str(error.value) == (
            "the model has hooks already, and keeps its tokenizer and attention; leave tokenizer and attention out, or "
            "give the Hugging Face model"
        )
        assert load_pretrained(hooked) is hooked
