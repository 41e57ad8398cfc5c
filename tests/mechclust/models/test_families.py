"""Every family of ``families.py`` against plain Hugging Face, the page on them, and what is refused with its reason."""

from __future__ import annotations

import copy
from importlib.metadata import version
from types import SimpleNamespace

import pytest
import torch

from mechclust import load_pretrained
from mechclust.models.hugging_face_blocks import find_blocks
from mechclust.models.read_only import ReadOnlyModel, is_read_only
from probes import attention_pattern, record, residual, resolve
from tasks import InputError
from tests.mechclust.models import families_page
from tests.mechclust.models.families import FAMILIES, LEFT, RIGHT, TOKENS, WORDS, N
from tests.mechclust.models.measured import CLOSE, NAMES, body_of, expected, measure, seen

FINAL_NORM = {"llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "gpt2", "gpt_neox", "phi3", "olmo2", "falcon"}
FINAL_NORM |= {"falcon_alibi", "falcon_new", "opt", "bloom", "biogpt", "modernbert", "t5"}
MAJOR = version("transformer-lens").split(".")[0]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Each family is measured once; read only."""
    found = {}

    def get(key):
        if key not in found:
            found[key] = measure(FAMILIES[key], FAMILIES[key].write(tmp_path_factory.mktemp(key)))
        return found[key]

    return get


@pytest.mark.parametrize("key", FAMILIES)
class TestAgainstHuggingFace:
    def test_what_hooks_see_and_write(self, measured, key):
        found, family = measured(key), FAMILIES[key]
        assert found.varies > 1e-2  # a layer or an axis mistaken for another would show
        assert found.embedding != "something else"
        assert set(found.off) == ({"whole", "right"} if found.refused else {"whole", "right", "left"})
        for padding, parts in found.off.items():
            assert {"output", "residual", "pattern"} == set(parts)
            assert max(parts.values()) < CLOSE, (padding, parts)
        assert (found.write is None) == (found.how == "read-only")
        assert found.write is None or found.write < CLOSE
        sizes = {"n_layers": N, "n_heads": 4, "d_model": 16, "d_head": family.d_head, "n_ctx": family.n_ctx}
        sizes["d_vocab"] = len(WORDS)
        assert {name: getattr(found.model.cfg, name) for name in sizes} == sizes

    def test_the_page_says_so(self, measured, key):
        way = "run: python -m tests.mechclust.models.families_page, with TransformerLens 3.9 and 4"
        assert measured(key).row() == families_page.found()[MAJOR][key], way

    def test_round_the_model_itself(self, measured, key):
        """Read-only, which every family may come as: without eager attention, or quantised.

        Where there is a final norm, Hugging Face's last hidden state comes after the last block's output.
        """
        family = FAMILIES[key]
        theirs, model = family.build(), ReadOnlyModel(family.build())
        assert "attn.hook_pattern" not in model.lacks
        for mask in (None, RIGHT):
            tokens = family.tokens(mask)
            ours, wanted = seen(model, tokens, mask), expected(theirs, tokens, mask)
            wanted["output"] = wanted["last_hidden_state"]
            if measured(key).row()["embedding"] == "before positions":  # as the bridge has it
                with torch.no_grad():
                    wanted["hook_embed"] = body_of(theirs).get_input_embeddings()(tokens)
            real = torch.ones_like(TOKENS).bool() if mask is None else mask.bool()
            for name, value in ours.items():
                assert value.shape == wanted[name].shape
                value, other = (x.transpose(1, 2) if x.ndim == 4 else x for x in (value, wanted[name]))
                torch.testing.assert_close(value[real], other[real], atol=1e-6, rtol=0)
        last, after = ours[f"blocks.{N - 1}.hook_resid_post"], ours["output"]
        assert (last.shape == after.shape and torch.equal(last, after)) == (key not in {*FINAL_NORM, "opt_350m"})


class TestThePage:
    def test_is_written_by_its_generator(self):
        way = "run: python -m tests.mechclust.models.families_page"
        assert families_page.PAGE.read_text(encoding="utf-8") == families_page.page(families_page.found()), way

    def test_has_every_family(self):
        assert {major: set(rows) for major, rows in families_page.found().items()} == {
            major: set(FAMILIES) for major in families_page.MAJORS
        }

    def test_words(self):
        row = {"how": "read-only", "embedding": "e", "residual": True, "patterns": True, "padding": ["right"]}
        rows = {"3": {key: {**row, "writes": False} for key in FAMILIES}}
        rows["4"] = {key: {**row, "how": "bridge", "writes": True, "patterns": False} for key in FAMILIES}
        lines = [line for line in families_page.page(rows).splitlines() if line.startswith("| BERT |")]
        assert lines == ["| BERT | BERT, MiniLM | read-only | bridge | e | yes | with 3.9 | from 4 | right |"]


class TestPadding:
    def test_on_the_left_of_a_model_that_counts_columns(self, measured):
        assert measured("bart").refused == (
            "the batch is padded on the left, but a BartEncoder counts positions from the first column, padding "
            "included, which would change what it computes; pad on the right"
        )
        seen(measured("bart").model, TOKENS, torch.ones_like(TOKENS))

    @pytest.mark.parametrize("key", ["gpt2", "bert", "distilbert", "albert", "electra"])
    def test_on_the_left_changes_positions_in_plain_hugging_face(self, key):
        """Why positions are given: for these a plain call differs from the example alone."""
        family = FAMILIES[key]
        theirs, model, tokens = family.build(), ReadOnlyModel(family.build()), family.tokens(LEFT)
        alone = expected(theirs, tokens[:1, 3:])["last_hidden_state"][0]
        plain = expected(theirs, tokens, LEFT)["last_hidden_state"][0, 3:]
        assert (plain - alone).abs().max() > 0.1
        torch.testing.assert_close(seen(model, tokens, LEFT)["output"][0, 3:], alone, atol=CLOSE, rtol=0)

    @pytest.mark.parametrize("side", [RIGHT, LEFT])
    def test_that_a_model_reads_although_it_is_masked(self, side):
        """FNet mixes all positions, and takes no mask."""
        model = ReadOnlyModel(build("FNetModel", **SMALL))
        with pytest.raises(InputError) as error:
            model(TOKENS, attention_mask=side)
        assert str(error.value) == (
            "the batch has padding, which changes what a FNetModel computes, although it is masked; give examples of "
            "one length, or one example per batch"
        )
        model(TOKENS, attention_mask=torch.ones_like(TOKENS))

    def test_that_a_recurrence_reads_on_the_left(self):
        shape = {**SMALL, "num_hidden_layers": 3, "lru_width": 16, "attention_window_size": 8}
        plain = build("RecurrentGemmaModel", **shape)
        with torch.no_grad():  # at first the padding's embedding is 0
            plain.get_input_embeddings().weight[0] = 1
        model = ReadOnlyModel(plain)
        with pytest.raises(InputError, match=r"changes what a RecurrentGemmaModel computes, .*; pad on the right$"):
            model(TOKENS, attention_mask=LEFT)
        padded = model(TOKENS, attention_mask=RIGHT)[0, :4]
        torch.testing.assert_close(padded, model(TOKENS[:1, :4])[0], atol=CLOSE, rtol=0)


def build(model, **fields):
    """A small model of another family."""
    import transformers

    config = getattr(transformers, f"{model.partition('For')[0].removesuffix('Model')}Config")(**fields)
    config._attn_implementation = "eager"
    return getattr(transformers, model)(config).eval()


SMALL = {"vocab_size": 22, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24}


class TestWithoutPatterns:
    def test_sdpa(self):
        """The hook points of patterns are not there, with the reason; the rest is as with eager attention."""
        eager, fast = FAMILIES["llama"].build(), FAMILIES["llama"].build()
        fast.set_attn_implementation("sdpa")
        model = ReadOnlyModel(fast)
        assert model.lacks["attn.hook_pattern"] == (
            "attention of kind 'sdpa' keeps no attention patterns; load the model with attention='eager'"
        )
        with pytest.raises(
            InputError, match="in this model: attention of kind 'sdpa' keeps no attention patterns; load"
        ):
            resolve(model, attention_pattern())
        assert resolve(model, residual(3, final_norm=True))[-1] == ("unembed.hook_in", 4)
        with pytest.raises(
            InputError, match=r"'unembed.hook_in' in this model: it has no head; its output is the last"
        ):
            resolve(ReadOnlyModel(fast.model), residual(final_norm=True))
        names = ["hook_embed", *(name for name in NAMES if "pattern" not in name), "unembed.hook_in"]
        assert sorted(model.hook_dict) == sorted([*names, *(f"blocks.{i}.attn.hook_attention" for i in range(3))])
        with torch.no_grad(), record(model, names) as kept:
            model(TOKENS)
        for name, value in expected(eager, TOKENS).items():
            if name in names:
                torch.testing.assert_close(kept[name][0], value, atol=CLOSE, rtol=0)

    def test_a_family_that_has_none(self):
        shape = {k: v for k, v in SMALL.items() if k != "num_attention_heads"}
        model = ReadOnlyModel(build("FNetModel", **shape))
        assert model.lacks["attn.hook_pattern"] == (
            "a FNetModel gives no attention patterns [batch head query key] for each of its blocks"
        )
        assert model.lacks["attn.hook_attention"] == (
            "the queries and keys of a FNetModel cannot be caught, because not each of its blocks calls transformers' "
            "attention once; residual() works"
        )
        assert len(model.hook_dict) == 1 + 2 * 3
        assert (model.cfg.n_heads, model.cfg.d_model) == (0, 16)


class TestPooler:
    @pytest.mark.parametrize("name", ["LayoutLMModel", "AlbertModel", "BigBirdModel"])
    def test_is_not_computed(self, name):
        """LayoutLM calls it without looking whether there is one, and ALBERT and BigBird its activation."""
        fields = {"attention_type": "original_full"} if name == "BigBirdModel" else {}
        plain = build(name, **SMALL, **fields)
        wanted = expected(plain, TOKENS)["last_hidden_state"]
        model = ReadOnlyModel(plain)
        torch.testing.assert_close(model(TOKENS), wanted, atol=1e-6, rtol=0)
        assert not [weight for weight, _ in model.named_parameters() if "pooler" in weight]


class TestBlocks:
    def test_one_block_one_head(self):
        """Nothing tells the block from other modules of that shape but its weights."""
        for name in ("LlamaForCausalLM", "BertModel"):
            model = ReadOnlyModel(build(name, **{**SMALL, "num_hidden_layers": 1, "num_attention_heads": 1}))
            (found,) = model._stream.calls
            assert type(found[0]).__name__ == {"L": "LlamaDecoderLayer", "B": "BertLayer"}[name[0]]

    def test_in_training(self):
        """Dropout before the first block is not taken for the block."""
        model = ReadOnlyModel(FAMILIES["bert"].build()).train()
        with record(model, ["hook_embed"]) as kept, torch.no_grad():
            model(TOKENS)
        share = float((kept["hook_embed"][0] == 0).float().mean())
        assert 0.02 < share < 0.4  # the dropout of .1 has acted

    def test_the_forward_pass_can_be_stopped(self):
        """Hook points fire while the model runs: what lies deeper than the last one read is never computed."""

        class Stop(BaseException):
            pass

        def stop(name, value):
            raise Stop

        model, ran = ReadOnlyModel(FAMILIES["distilbert"].build()), []
        for layer, block in enumerate(model.body.transformer.layer):
            block.register_forward_pre_hook(lambda module, inputs, layer=layer: ran.append(layer))
        before = {name: len(m._forward_hooks) + len(m._forward_pre_hooks) for name, m in model.named_modules()}
        with pytest.raises(Stop), record(model, ["blocks.0.hook_resid_post"], stop):
            model(TOKENS)
        assert ran == [0, 1]  # the second is entered, not run
        assert before == {name: len(m._forward_hooks) + len(m._forward_pre_hooks) for name, m in model.named_modules()}

    @pytest.mark.parametrize("key", ["llama", "distilbert", "t5"])
    def test_of_weights_that_come_when_they_are_needed(self, key):
        """Offloaded by accelerate: the model's device is ``meta``, where tokens would be lost."""
        accelerate = pytest.importorskip("accelerate")
        offloaded = FAMILIES[key].build()
        accelerate.cpu_offload(offloaded, execution_device=torch.device("cpu"))
        model = ReadOnlyModel(offloaded)
        assert model.body.device.type == "meta"
        wanted = expected(FAMILIES[key].build(), TOKENS)
        for name, value in seen(model, TOKENS).items():
            torch.testing.assert_close(value, wanted[name if name != "output" else "last_hidden_state"])

    def test_of_offloaded_weights_there_is_no_copy(self):
        accelerate = pytest.importorskip("accelerate")
        offloaded = FAMILIES["llama"].build()
        accelerate.cpu_offload(offloaded, execution_device=torch.device("cpu"))
        model = load_pretrained(offloaded)
        weights = [module._hf_hook.weights_map for module in offloaded.modules() if hasattr(module, "_hf_hook")]
        shared = {id(weight) for weight in weights if weight is not None}
        hooks = [module._hf_hook for module in model.body.modules() if hasattr(module, "_hf_hook")]
        copies = [hook.weights_map for hook in hooks if getattr(hook, "weights_map", None) is not None]
        assert copies
        assert {id(weight) for weight in copies} <= shared

    def test_of_a_copy_are_its_own(self):
        model = ReadOnlyModel(FAMILIES["albert"].build())
        again, before = copy.deepcopy(model), seen(model, TOKENS)["output"]
        with torch.no_grad():
            for weight in model.parameters():
                weight.zero_()
        assert torch.equal(seen(again, TOKENS)["output"], before)

    def test_looking_for_them_leaves_no_trace(self):
        """But the hooks by which Hugging Face itself keeps hidden states, which it adds at the first use."""
        state = torch.get_rng_state()
        theirs = FAMILIES["xlm_roberta"].build().train()
        model = ReadOnlyModel(theirs)
        assert all(module.training for module in theirs.modules())
        assert torch.equal(state, torch.get_rng_state())
        counts = {len(module._forward_pre_hooks) for module in model.body.modules()}
        assert counts == {0}

    @pytest.mark.parametrize(
        ("name", "fields", "why"),
        [
            (
                "XLNetModel",
                {"vocab_size": 22, "d_model": 16, "n_layer": 3, "n_head": 2, "d_inner": 24},
                "it has no modules that pass its hidden states on",
            ),
            (
                "MambaModel",
                {"vocab_size": 22, "hidden_size": 16, "num_hidden_layers": 3, "state_size": 4},
                "it has no modules that pass its hidden states on",
            ),
            (
                "FunnelModel",
                {"vocab_size": 22, "d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 24, "block_sizes": [2, 2]},
                "it does not give hidden states [batch pos d_model] of one width, one for each layer",
            ),
        ],
    )
    def test_what_has_none_is_refused_with_the_reason(self, name, fields, why):
        with pytest.raises(InputError) as error:
            ReadOnlyModel(build(name, **fields))
        assert str(error.value) == (
            f"a {name} cannot be measured: {why}; give a transformer over tokens, whose Hugging Face model has "
            "output_hidden_states"
        )

    def test_attention_that_changes_with_the_length_of_a_text(self):
        """Once BigBird has read a few tokens, it attends to all of a long text too."""
        fields = {**SMALL, "max_position_embeddings": 64, "block_size": 4, "num_random_blocks": 1}
        plain = build("BigBirdForMaskedLM", **fields)
        with pytest.raises(InputError) as error:
            load_pretrained(plain)
        assert str(error.value) == (
            "the block-sparse attention of a BigBirdModel changes with the length of a text; load the model with "
            "attention_type='original_full', and save it, or give it in memory"
        )
        tokens = torch.arange(64)[None] % 22
        plain = build("BigBirdForMaskedLM", **fields, attention_type="original_full")
        full = expected(plain, tokens)["last_hidden_state"]
        torch.testing.assert_close(load_pretrained(plain)(tokens), full, atol=1e-6, rtol=0)

    def test_the_decoder_of_an_encoder_decoder(self):
        parts = {"layers": 1, "attention_heads": 2, "ffn_dim": 8}
        fields = {f"{side}_{k}": n for side in ("encoder", "decoder") for k, n in parts.items()}
        with pytest.raises(InputError, match=r"^a BartDecoderWrapper cannot be measured: it does not name its token"):
            load_pretrained(build("BartForCausalLM", vocab_size=22, d_model=8, **fields))

    def test_states_of_two_widths_are_refused(self):
        """Each block passes its states on, but the first makes them wider."""
        blocks = torch.nn.ModuleList([torch.nn.Linear(4, 6), torch.nn.Linear(6, 6)])

        class Widening(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.blocks = blocks

            def forward(self):
                states = [torch.ones(1, 3, 4)]
                for block in self.blocks:
                    states.append(block(states[-1]))
                return SimpleNamespace(hidden_states=tuple(states), attentions=None)

        body = Widening()
        with pytest.raises(InputError, match="of one width, one for each layer"):
            find_blocks(body, body)

    def test_a_model_that_hears(self):
        parts = {"layers": 1, "attention_heads": 2, "ffn_dim": 8}
        fields = {f"{side}_{k}": n for side in ("encoder", "decoder") for k, n in parts.items()}
        ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
        with pytest.raises(
            InputError, match=r"^a WhisperEncoder cannot be measured: it does not run on token ids alone"
        ):
            ReadOnlyModel(build("WhisperModel", vocab_size=22, d_model=8, **fields, **ends))


class TestWhichWay:
    def configuration(self, key, *, architecture=None):
        config = FAMILIES[key].build().config
        config.architectures = [architecture or FAMILIES[key].model]
        return config

    def test_by_architecture(self):
        assert {key for key in FAMILIES if is_read_only(self.configuration(key))} == {
            key for key, row in families_page.found()[MAJOR].items() if row["how"] == "read-only"
        }

    def test_the_encoder_alone_of_an_encoder_decoder(self):
        """Its configuration says that it is no encoder-decoder."""
        model = build("T5ForConditionalGeneration", **FAMILIES["t5"].fields, vocab_size=22)
        import transformers

        alone = transformers.T5EncoderModel(model.config)
        assert not alone.config.is_encoder_decoder
        assert is_read_only(alone.config)
        assert ReadOnlyModel(alone.eval()).cfg.n_layers == N

    def test_a_model_that_sees(self):
        config = SimpleNamespace(model_type="vit")
        config.get_text_config = lambda: config
        for call in (lambda: is_read_only(config), lambda: ReadOnlyModel(SimpleNamespace(config=config))):
            with pytest.raises(InputError) as error:
                call()
            assert str(error.value) == (
                "a model of type 'vit' reads no tokens (its configuration has no vocab_size), so nothing can be "
                "measured in it; give a language model"
            )
