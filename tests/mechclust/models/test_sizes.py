"""How large a model is before its weights are loaded, and how much memory is free."""

from __future__ import annotations

import pytest
import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel

from mechclust import load_pretrained
from mechclust.models.sizes import Sizes
from probes.engine import devices
from probes.engine.devices import free_device_memory


def test_least_weights_are_nearly_all_weights_of_a_model():
    config = GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=3, n_head=2)
    n_weights = sum(weight.numel() for weight in GPT2LMHeadModel(config).parameters())
    assert 0.9 * n_weights < Sizes.from_config(config).least_weights <= n_weights


SHAPE = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "vocab_size": 99}
OWN_WIDTH = {"intermediate_size": None}  # the MLP's width has another name
NEMOTRON = {"mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 4}
NARROW = {"embedding_size": 8}
MAMBA = {"layers_block_type": ["mamba", "hybrid"] * 3, "mamba_d_state": 4}


@pytest.mark.parametrize(
    ("family", "fields", "known"),
    [
        ("Albert", NARROW, True),
        ("Electra", NARROW, True),
        ("RemBert", {"input_embedding_size": 8}, True),
        ("OPT", {**OWN_WIDTH, "ffn_dim": 64, "word_embed_proj_dim": 8, "max_position_embeddings": 16}, True),
        ("XGLM", {**OWN_WIDTH, "ffn_dim": 64}, True),
        ("Falcon", {**OWN_WIDTH, "multi_query": True, "ffn_hidden_size": 64}, True),
        ("GPTBigCode", {**OWN_WIDTH, "n_inner": 64, "n_positions": 16}, True),
        ("DistilBert", {**OWN_WIDTH, "hidden_dim": 64}, True),
        ("CTRL", {**OWN_WIDTH, "dff": 64, "n_positions": 16}, True),
        ("T5", {**OWN_WIDTH, "d_ff": 64, "d_kv": 4, "num_decoder_layers": 1}, True),
        ("RecurrentGemma", {}, False),
        ("NemotronH", {"layers_block_type": ["mamba", "mlp"] * 3, **NEMOTRON}, False),
        ("MobileBert", {**NARROW, "intra_bottleneck_size": 8, "true_hidden_size": 8}, False),
        ("Zamba", {**MAMBA, "attention_head_dim": 16, "n_mamba_heads": 2, "mamba_dt_rank": 4}, False),
        ("Zamba2", {**MAMBA, "attention_head_dim": 32, "mamba_headdim": 16, "n_mamba_heads": 8}, False),
    ],
)
def test_no_model_has_fewer_weights_than_the_least(family, fields, known):
    given = {name: value for name, value in {**SHAPE, **fields}.items() if value is not None}
    config = getattr(transformers, f"{family}Config")(**given)
    with torch.device("meta"):
        model = getattr(transformers, f"{family}{'Encoder' if family == 'T5' else ''}Model")(config)
    n_weights = sum(weight.numel() for weight in model.parameters())
    sizes = Sizes.from_config(config)
    assert (0.5 * n_weights if known else 0) < sizes.least_weights <= n_weights
    assert (sizes.block_weights is not None) == known


def test_sizes_that_are_not_known_count_as_nothing():
    assert Sizes(None, None, None, None).least_weights == 0


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("Roberta", {}),
        ("RobertaPreLayerNorm", {}),
        ("IBert", {}),
        ("Esm", {"position_embedding_type": "absolute", "mask_token_id": 4}),
        ("MarkupLM", {"tag_pad_id": 3, "subs_pad_id": 3, "xpath_unit_hidden_size": 4, "max_depth": 2}),
        ("Xmod", {"languages": ["en_XX"], "default_language": "en_XX"}),
        ("Luke", {"entity_vocab_size": 4, "entity_emb_size": 4}),
        ("Lilt", {"hidden_size": 24}),
        ("LayoutLMv3", {"hidden_size": 24, "coordinate_size": 4, "shape_size": 4, "visual_embed": False}),
    ],
)
def test_positions_that_begin_behind_the_padding_token(family, fields):
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = getattr(transformers, f"{family}Config")(
        vocab_size=9, max_position_embeddings=8, pad_token_id=1, **{**shape, **fields}
    )
    model = getattr(transformers, f"{family}Model")(config).eval()
    longest = Sizes.from_config(config).n_ctx
    assert longest == load_pretrained(model).cfg.n_ctx == 6
    model(torch.full((1, longest), 3))
    with pytest.raises((IndexError, RuntimeError)):
        model(torch.full((1, longest + 1), 3))


@pytest.mark.skipif(not hasattr(transformers, "Gemma4TextConfig"), reason="needs a transformers with Gemma 4")
def test_layers_whose_heads_differ_in_width():
    """Transformers refuses to tell the width of a head, which Gemma 4 has twice."""
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.Gemma4TextConfig(
        vocab_size=40,
        vocab_size_per_layer_input=40,
        hidden_size_per_layer_input=4,
        num_key_value_heads=2,
        head_dim=4,
        global_head_dim=8,
        layer_types=["sliding_attention", "full_attention"],
        num_kv_shared_layers=0,
        **shape,
    )
    sizes = Sizes.from_config(config)
    assert (sizes.n_layers, sizes.d_model, sizes.n_heads) == (2, 16, 4)
    plain = transformers.Gemma4ForCausalLM(config).eval()
    tokens = torch.tensor([[3, 1, 4]])
    with torch.no_grad():
        states = load_pretrained(plain, attention="sdpa")(tokens)
        torch.testing.assert_close(states, plain.model(tokens).last_hidden_state, atol=1e-5, rtol=0)


def test_free_memory_is_what_linux_calls_available(tmp_path, monkeypatch):
    (tmp_path / "meminfo").write_text("MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:    3000 kB\n")
    monkeypatch.setattr(devices, "_MEMINFO", tmp_path / "meminfo")
    assert free_device_memory("cpu") == 3000 * 1024


def test_free_memory_is_not_known_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "_MEMINFO", tmp_path / "missing")
    assert free_device_memory("cpu") is None
    assert free_device_memory("meta") is None


def test_positions_of_prophetnet_begin_behind_the_padding_token_too():
    """It reads longer texts, but gives the same position to all tokens beyond."""
    parts = {"encoder_ffn_dim": 8, "num_encoder_layers": 2, "num_encoder_attention_heads": 2}
    parts |= {name.replace("encoder", "decoder"): value for name, value in parts.items()}
    config = transformers.ProphetNetConfig(vocab_size=9, hidden_size=8, max_position_embeddings=8, **parts)
    model = load_pretrained(transformers.ProphetNetModel(config).eval())
    assert Sizes.from_config(config).n_ctx == model.cfg.n_ctx == 8 - config.pad_token_id - 1
