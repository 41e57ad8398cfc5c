"""The self-check: sound models of every kind pass, and each broken one fails the check that is about it."""

from __future__ import annotations

import contextlib
import gc
import math
import random
import re
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

import mechclust.commands.check.model
from mechclust.commands.check import check_model
from mechclust.commands.check.hooks import attention_rows
from mechclust.commands.check.inputs import CheckedModel, devices_of, dtypes_of
from mechclust.commands.check.result import Check, CheckReport
from mechclust.commands.check.text import check_beginning_token, text
from mechclust.models import ModelConfig, build_model, load_pretrained, save_model
from mechclust.models.sizes import ModelShape
from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
from mechclust.studies.topic_structure.config import TopicTransformerConfig
from tests.mechclust.commands.refusals import refusal

NAMES = [
    "model",
    "embedding()",
    "residual()",
    "attention_pattern()",
    "head_output()",
    "tokenizer",
    "beginning of sequence",
    "finite values",
    "same values twice",
    "equals Hugging Face",
    "attention rows",
    "attention direction",
    "blocks join",
    "alone as in a batch",
    "padding",
    "no trace",
]
READ_ONLY = ("equals, read-only", "equals, fused attention")  # of models of Hugging Face
TEXT = {"tokenizer", "beginning of sequence"}
OUR_OWN = {*TEXT, "equals Hugging Face"}  # what models that read no text do not try
SHAPE = {"d_vocab": 20, "n_ctx": 16, "n_layers": 2, "d_model": 8, "n_heads": 2, "init_std": 0.3}


def verdicts(report, passed):
    return {check.name for check in report.checks if check.passed is passed}


# ---- sound models ----


def sound(report, not_tried):
    assert verdicts(report, False) == set(), str(report)
    assert report.passed
    names = [check.name for check in report.checks]
    assert [name for name in names if name not in READ_ONLY] == NAMES
    for name in READ_ONLY:
        assert (name in names) == (report["equals Hugging Face"].passed is not None)
    assert verdicts(report, None) == set(not_tried)
    assert report["no trace"].detail.startswith("with hooks at ")
    return report


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_built_models(attention, tl_major, capfd):
    model = build_model(ModelConfig(**SHAPE, attention=attention))
    capfd.readouterr()
    unpadded = (tl_major, attention) == (3, "bidirectional")
    report = sound(check_model(model), OUR_OWN | ({"padding"} if unpadded else set()))
    assert capfd.readouterr() == ("", "")
    assert report["attention direction"].detail.startswith("causal: " if attention == "causal" else "both ways: ")
    assert (
        ": 2 layers of 2 heads, d_model 8, d_head 4, vocabulary 20, context 16, float32 on cpu; hooks read and write"
        in (report["model"].detail)
    )
    assert report["residual()"].detail == (
        "3 hook points fire once each: hook_embed to blocks.1.hook_resid_post, [batch pos d_model] 8x8x8"
    )
    assert report["attention_pattern()"].detail.endswith("[batch head query key] 8x2x8x8")
    assert report["head_output()"].detail.endswith("[batch pos head d_head] 8x8x2x4")
    if unpadded:
        assert report["padding"].detail.startswith(
            "padded batches are refused (InputError: TransformerLens 3.9 ignores"
        )
    else:
        assert re.search(r"differ by \S+e-0[6-9] of a state's length \(allowed \S+\)$", report["padding"].detail)


def test_the_topic_transformer():
    report = sound(check_model(build_model(TopicTransformerConfig(d_vocab=20))), OUR_OWN | {"blocks join"})
    assert "any length" in report["model"].detail
    assert report["model"].detail.startswith("TopicTransformer: 1 layer of 1 head, ")


def test_the_topic_transformer_with_attention_that_is_uniform_and_frozen():
    config = TopicTransformerConfig(d_vocab=12, embedding="one-hot", attention="uniform", init_std=0.0)
    report = sound(check_model(build_model(config)), OUR_OWN | {"blocks join", "attention direction"})
    assert "no token changes another token's state" in report["attention direction"].detail


def test_the_pooling_transformer():
    report = sound(
        check_model(build_model(PoolingTransformerConfig())),
        OUR_OWN | {"blocks join", "attention direction", "padding"},
    )
    assert report["residual()"].detail.endswith("8x12x2 (pooled)")  # it reads 12 tokens and no other number
    assert report["padding"].detail.startswith(
        "sequences of other lengths are refused (InputError: tokens has shape (1, "
    )


@pytest.fixture(scope="module")
def pythia(gpt2, tmp_path_factory):
    """A GPT-NeoX checkpoint: rotary positions, attention and feed-forward layer in parallel."""
    from transformers import AutoTokenizer, GPTNeoXConfig, GPTNeoXForCausalLM

    folder = tmp_path_factory.mktemp("pythia")
    shape = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32}
    GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=24, max_position_embeddings=16, **shape)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(gpt2).save_pretrained(folder)
    return folder


def test_pythia(pythia):
    assert "(GPTNeoXForCausalLM): " in sound(check_model(pythia), set())["model"].detail


def test_gpt2_by_its_name(gpt2, monkeypatch):
    loaded = []

    def alone(load):
        def get(*args, **options):
            gc.collect()
            assert not [model for model in loaded if model() is not None]  # two models need not fit together
            found = load(*args, **options)
            loaded.append(weakref.ref(found[0] if isinstance(found, tuple) else found))
            return found

        return get

    for name in ("load_pretrained_unhooked", "load_pretrained"):
        load = getattr(mechclust.commands.check.model, name)
        monkeypatch.setattr(mechclust.commands.check.model, name, alone(load))
    report = sound(check_model(str(gpt2)), set())
    assert len(loaded) == 3  # the reference, the model, the same read-only
    assert report.model == str(gpt2)
    assert report["model"].detail.startswith("TransformerBridge (GPT2LMHeadModel): ")
    assert report["tokenizer"].detail == ("no special tokens are added; padded with <pad> (id 0)")


@pytest.mark.parametrize("family", ["bert", "electra", "roberta"])
def test_encoders(encoder_checkpoint, family, tl_major):
    head = None if family == "roberta" else "ForMaskedLM"
    read_only = family == "electra" or (family == "roberta" and tl_major == 3)
    report = sound(check_model(encoder_checkpoint(family, head)), {"head_output()"} if read_only else set())
    assert report["attention direction"].detail.startswith("both ways: ")
    assert report["model"].detail.endswith("hooks read and may not write" if read_only else "hooks read and write")
    if read_only:
        assert report["head_output()"].detail.startswith("no hook point 'blocks.0.attn.hook_z' in this model")


def test_half_precision(gpt2):
    report = sound(check_model(gpt2, dtype="bfloat16"), set())
    assert "bfloat16 on cpu" in report["model"].detail
    assert "(allowed 0.016)" in report["attention rows"].detail
    assert "(allowed 0.1)" in report["alone as in a batch"].detail


def test_a_loaded_model(gpt2):
    report = sound(check_model(load_pretrained(gpt2)), set())
    assert report.model == "TransformerBridge"
    assert report["equals, fused attention"].passed


def test_a_file_from_save_model(tiny_model, tmp_path):
    save_model(tiny_model(), tmp_path / "m.safetensors")
    sound(check_model(tmp_path / "m.safetensors"), OUR_OWN)


# ---- a small transformer, to break ----


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.hook_resid_pre, self.hook_resid_post = HookPoint(), HookPoint()
        self.attn = nn.Module()
        self.attn.hook_pattern, self.attn.hook_z = HookPoint(), HookPoint()
        self.W = nn.Parameter(torch.zeros(4, 8, 8))


class Tiny(HookedRootModule):
    """Two layers, two heads, written out: each of its steps is a method that a test can break."""

    def __init__(self):
        super().__init__()
        self.cfg = ModelShape(n_layers=2, n_heads=2, d_model=8, d_head=4, d_vocab=30, n_ctx=12)
        self.W_E, self.W_pos = nn.Parameter(torch.zeros(30, 8)), nn.Parameter(torch.zeros(12, 8))
        self.hook_embed = HookPoint()
        self.blocks = nn.ModuleList([Block(), Block()])
        draw = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for weight in self.parameters():
                weight.normal_(std=0.4, generator=draw)
        self.setup()

    def forward(self, tokens, attention_mask=None):
        mask = torch.ones_like(tokens) if attention_mask is None else attention_mask
        x = self.embed(tokens) + self.places(mask)
        for i, block in enumerate(self.blocks):
            x = self.layer(i, block, x, mask)
        return x @ self.W_E.T

    def embed(self, tokens):
        return self.hook_embed(self.W_E[tokens])

    def places(self, mask):
        return self.W_pos[(mask.cumsum(1) - 1).clamp(min=0)]

    def layer(self, i, block, x, mask):
        x = self.enter(i, block, x)
        q, k, v = (torch.einsum("bpd,de->bpe", x, w).unflatten(-1, (2, 4)) for w in block.W[:3])
        pattern = self.attend(block, torch.einsum("bqhe,bkhe->bhqk", q, k) / 20, mask)
        z = self.heads(i, block, torch.einsum("bhqk,bkhe->bqhe", pattern, v))
        return self.leave(i, block, x + z.flatten(2) @ block.W[3] / 3)

    def enter(self, i, block, x):
        return block.hook_resid_pre(x)

    def attend(self, block, scores, mask):
        return block.attn.hook_pattern(self.masked(scores, mask).softmax(-1))

    def masked(self, scores, mask):
        causal = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(causal | (mask == 0)[:, None, None], -1e9)

    def heads(self, i, block, z):
        return block.attn.hook_z(z)

    def leave(self, i, block, x):
        return block.hook_resid_post(x)


def fails(name, model, *also, not_tried=(), last=False):
    """What the check of this name says of a broken model: it fails first, and alone but for ``also``.

    With ``last`` no check is made after it.
    """
    report = check_model(model)
    assert verdicts(report, None) == (TEXT if last else OUR_OWN | set(not_tried)), str(report)
    assert not last or report.checks[-1].passed is False
    assert not report.passed
    failed = [check for check in report.checks if check.passed is False]
    assert failed[0].name == name
    assert {check.name for check in failed[1:]} == set(also), str(report)
    return failed[0].detail


def test_the_small_transformer_is_sound_in_few_passes():
    model, passes = Tiny(), []
    model.register_forward_pre_hook(lambda module, args: passes.append(args[0].numel()))
    sound(check_model(model), OUR_OWN)
    assert len(passes) <= 25
    assert max(passes) == 64
    assert sum(passes) <= 2000


class TestHookPoints:
    def test_one_that_never_fires(self):
        class Broken(Tiny):
            def leave(self, i, block, x):
                return x if i else super().leave(i, block, x)

        text = fails("residual()", Broken(), not_tried={"blocks join"})
        assert text == (
            "'blocks.1.hook_resid_post' exists but did not fire in one forward pass, so probes there are refused; "
            "measure at other sites, such as residual(layers=...)"
        )

    def test_one_that_fires_twice(self):
        class Broken(Tiny):
            def heads(self, i, block, z):
                return super().heads(i, block, block.attn.hook_z(z) if i else z)

        text = fails("head_output()", Broken())
        assert text.startswith("'blocks.1.attn.hook_z' fired 2 times in one forward pass, so probes there are refused;")

    def test_two_that_are_wrong_are_counted(self):
        class Broken(Tiny):
            def heads(self, i, block, z):
                return z

        assert fails("head_output()", Broken()).endswith("head_output(layers=...) (and 1 more)")

    def test_another_shape(self):
        class Broken(Tiny):
            def heads(self, i, block, z):
                return block.attn.hook_z(z.flatten(2)).unflatten(-1, (2, 4))

        text = fails("head_output()", Broken())
        assert text.startswith(
            "'blocks.0.attn.hook_z' gives shape [8, 8, 8]; expected [batch pos head d_head] for [8, 8] tokens, so "
            "probes there would read other axes; measure at other sites"
        )

    def test_one_that_some_layers_lack(self):
        model = Tiny()
        model.blocks[1].attn.hook_pattern = nn.Identity()
        model.setup()
        text = fails("attention_pattern()", model, not_tried={"attention rows", "attention direction"})
        assert text == (
            "no hook point 'blocks.1.attn.hook_pattern' in this model (it has blocks 0-1), but layers [0] have it; "
            "measure at attention_pattern(layers=[0])"
        )

    def test_one_that_no_layer_has_is_not_tried(self):
        model = Tiny()
        for block in model.blocks:
            block.attn.hook_pattern = nn.Identity()
        model.setup()
        report = sound(
            check_model(model),
            OUR_OWN | {"attention_pattern()", "attention rows", "attention direction"},
        )
        assert report["attention_pattern()"].detail == (
            "no hook point 'blocks.0.attn.hook_pattern' in this model (it has blocks 0-1), so probes that need "
            "attention_pattern() cannot measure this model"
        )
        assert report["attention rows"].detail == "attention_pattern() does not work (its check says why)"

    def test_no_embedding(self):
        model = Tiny()
        model.hook_embed = nn.Identity()
        model.setup()
        stream = {"attention direction", "blocks join", "alone as in a batch", "padding"}
        text = fails("embedding()", model, "residual()", not_tried=stream)
        assert text == (
            "no hook point 'hook_embed' in this model, where probes measure by default; name this model's own hook "
            "points, at=[...], see model.hook_dict"
        )


class TestValues:
    def test_weights_that_are_not_finite(self):
        model = Tiny()
        with torch.no_grad():
            model.blocks[1].W[3, 0, 0] = math.nan
        text = fails("finite values", model, last=True)
        assert text.startswith("the weights 'blocks.1.W' hold NaN or infinity; load the checkpoint again")

    def test_float8_weights_that_are_not_finite(self):
        model = Tiny()
        model.codes = nn.Parameter(torch.full((3,), math.nan).to(torch.float8_e4m3fn), requires_grad=False)
        text = fails("finite values", model, last=True)
        assert text.startswith("the weights 'codes' hold NaN or infinity")

    def test_activations_that_are_not_finite(self):
        class Broken(Tiny):
            def leave(self, i, block, x):
                return super().leave(i, block, x / 0 if i else x)

        text = fails("finite values", Broken(), last=True)
        assert text == (
            "the activations at 'blocks.1.hook_resid_post' hold NaN or infinity, and probes refuse them; measure in "
            "float32 if this is float32, or look for the cause there"
        )

    def test_dropout_left_on(self):
        class Broken(Tiny):
            def leave(self, i, block, x):
                return super().leave(i, block, F.dropout(x, 0.1, training=True))

        text = fails("same values twice", Broken(), last=True)
        assert re.match(
            r"'blocks.0.hook_resid_post' gives different values the second time, by up to [\d.]+: the", text
        )
        assert text.endswith("so no number can be reproduced; turn its dropout or state off for evaluation")

    def test_a_state_that_the_same_batch_does_not_show(self):
        class Broken(Tiny):
            last, drift = None, 0.0

            def embed(self, tokens):
                if self.last is None or not torch.equal(tokens, self.last):
                    self.last, self.drift = tokens, self.drift + 5.0
                return super().embed(tokens) + self.drift

        fails("same values twice", Broken(), last=True)

    def test_an_output_that_is_random(self):
        model = build_model(ModelConfig(**SHAPE))
        model.unembed.register_forward_hook(lambda module, args, out: out + torch.rand(out.shape))
        text = fails("same values twice", model, last=True)
        assert text.startswith("'output' gives different values the second time, by up to 0.")

    def test_an_output_that_is_random_for_small_batches_alone(self):
        class Broken(Tiny):
            def forward(self, tokens, attention_mask=None):
                out = super().forward(tokens, attention_mask)
                return out + torch.from_numpy(generator.random(out.shape)) if len(tokens) == 2 else out

        generator = np.random.default_rng(0)
        found = check_model(Broken())["no trace"]
        assert found.passed is False
        assert re.match(
            r"the model's output differs the second time, by up to [\d.]+: the forward pass is", found.detail
        )

    def test_an_output_that_is_not_a_number(self):
        class Broken(Tiny):
            def forward(self, tokens, attention_mask=None):
                return super().forward(tokens, attention_mask) * math.nan

        text = fails("finite values", Broken(), last=True)
        assert text.startswith("the model's output holds NaN")

    def test_attention_rows(self):
        class Broken(Tiny):
            def attend(self, block, scores, mask):
                return block.attn.hook_pattern(self.masked(scores, mask).softmax(-1) * 0.9)

        text = fails("attention rows", Broken())
        assert text.startswith("rows differ from 1 by up to 0.1 ('blocks.")
        assert text.endswith(
            "load with attn_implementation='eager', or divide by the rows' sums in a probe of your own"
        )

    def test_patterns_that_hide_what_is_used(self):
        class Broken(Tiny):
            def attend(self, block, scores, mask):
                super().attend(block, scores, mask)
                return scores.softmax(-1)

            def forward(self, tokens, attention_mask=None):
                return super().forward(tokens)

        text = fails("attention direction", Broken(), "padding")
        assert text.startswith(
            "the patterns show no later token, but with another last token earlier states change by "
        )
        assert text.endswith("not give the attention that is used; do not use attention_pattern() with this model")

    def test_patterns_that_are_not_used(self):
        class Broken(Tiny):
            def attend(self, block, scores, mask):
                block.attn.hook_pattern(scores.masked_fill((mask == 0)[:, None, None], -1e9).softmax(-1))
                return self.masked(scores, mask).softmax(-1)

        text = fails("attention direction", Broken())
        assert re.match(r"the patterns put up to 0\.\d+ on later tokens, but with another last token no earlier", text)

    @pytest.mark.parametrize("size", ["n_ctx", "d_vocab"])
    def test_one_position_or_one_token_shows_no_direction(self, size):
        model = Tiny()
        model.cfg = SimpleNamespace(**{**vars(model.cfg), size: 1})
        found = check_model(model)["attention direction"]
        assert found == Check("attention direction", None, "it needs two positions and two tokens")

    def test_a_mask_that_is_lost(self):
        class Broken(Tiny):
            def masked(self, scores, mask):
                return scores.masked_fill((mask == 0)[:, None, None], -1e9)

        model = Broken()
        model.cfg = SimpleNamespace(**vars(model.cfg), attention_dir="causal")
        text = fails("attention direction", model)
        assert text.startswith("the model is declared causal, but up to 0.")
        assert text.endswith("its mask is lost; try another version of TransformerLens, or attn_implementation='eager'")

    def test_something_between_the_blocks(self):
        class Broken(Tiny):
            def enter(self, i, block, x):
                return super().enter(i, block, x + 1e-3)

        text = fails("blocks join", Broken())
        assert text.startswith(
            "'blocks.1.hook_resid_pre' is not what 'blocks.0.hook_resid_post' gave: something stands"
        )

    def test_examples_that_see_each_other(self):
        class Broken(Tiny):
            def embed(self, tokens):
                x = super().embed(tokens)
                return x - x.mean(0) / 10

        text = fails("alone as in a batch", Broken(), "padding")
        assert re.match(
            r"4 examples alone and in a batch of 8 differ by 0\.\d+ of a state's length \(.*; allowed 0.00012\)", text
        )
        assert text.endswith("so results depend on the batch size; measure with batches of one")

    def test_attention_to_padding(self):
        class Broken(Tiny):
            def masked(self, scores, mask):
                causal = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
                return scores.masked_fill(causal, -1e9).masked_fill((mask == 0)[:, None, None], 0.0)

        text = fails("padding", Broken())
        assert re.match(r"up to 0\.\d+ of attention goes to padding although it is masked, so that states depend", text)
        assert text.endswith("give batches of sequences of one length")

    def test_places_that_depend_on_padding(self):
        class Broken(Tiny):
            def places(self, mask):
                return self.W_pos[: mask.shape[1]].flip(0)

        text = fails("padding", Broken())
        assert re.match(r"4 examples padded on the right and without padding differ by \d\S* of a state's length", text)
        assert "padding changes what is measured; give batches of sequences of one length" in text

    def test_no_mask_at_all_is_not_tried(self):
        class Unpadded(Tiny):
            def forward(self, tokens):
                return super().forward(tokens)

        text = sound(check_model(Unpadded()), OUR_OWN | {"padding"})["padding"].detail
        assert text.startswith("padded batches are refused (TypeError: ")
        assert text.endswith("; give batches of sequences of one length")


class TestAttentionRows:
    """Two layers of patterns by hand, of which one row is off."""

    @staticmethod
    def checked(row=(0.5, 0.25, 0.25), dtype=torch.float32):
        patterns = {f"blocks.{i}.attn.hook_pattern": torch.full((2, 2, 3, 3), 1 / 3, dtype=dtype) for i in range(2)}
        patterns["blocks.1.attn.hook_pattern"][1, 0, 2] = torch.tensor(row, dtype=dtype)
        return SimpleNamespace(seen=patterns, working=lambda kind: list(patterns))

    def test_all_rows_are_counted(self):
        passed, said = attention_rows(self.checked())
        assert passed
        assert said.startswith("24 rows: largest deviation from 1 ")
        assert "(allowed 1e-05)" in said

    @pytest.mark.parametrize("row", [(0.5, 0.25, 0.26), (0.5, 0.25, 0.24)])
    def test_one_row_that_does_not_sum_to_one_is_found(self, row):
        passed, said = attention_rows(self.checked(row))
        assert not passed
        assert said.startswith("rows differ from 1 by up to 0.01 ('blocks.1.attn.hook_pattern'; allowed 1e-05)")

    def test_one_negative_weight_is_found(self):
        passed, said = attention_rows(self.checked((1.0, -0.25, 0.25)))
        assert not passed
        assert said.startswith("the smallest weight is -0.25")

    @pytest.mark.parametrize(("off", "passes"), [(0.0, True), (0.005, False)])
    def test_half_precision_has_more_room(self, off, passes):
        passed, said = attention_rows(self.checked((0.5, 0.25, 0.25 + off), torch.float16))
        assert passed == passes
        assert "allowed 0.002" in said


class TestTraces:
    def test_hooks_that_stay(self):
        class Broken(Tiny):
            @contextlib.contextmanager
            def hooks(self, fwd_hooks=()):
                for name, hook in fwd_hooks:
                    self.hook_dict[name].add_hook(hook)
                yield self

        model = Broken()
        text = fails("no trace", model)
        assert re.match(r"\d+ hooks stay behind, the first at 'hook_embed': every later pass is slower", text)
        assert "the model's hooks() must remove what it added; call model.reset_hooks() or load the model again" in text

    def test_hooks_that_stay_after_a_failure(self):
        class Broken(Tiny):
            @contextlib.contextmanager
            def hooks(self, fwd_hooks=()):
                handles = [self.hook_dict[k].register_forward_hook(lambda m, i, o, f=f: f(o, m)) for k, f in fwd_hooks]
                yield self
                for handle in handles:
                    handle.remove()

        text = fails("no trace", Broken())
        assert text.startswith("7 hooks stay behind when a probe fails, the first at 'hook_embed': ")

    def test_training_flags(self):
        class Broken(Tiny):
            def forward(self, tokens, attention_mask=None):
                self.blocks[1].training = True
                return super().forward(tokens, attention_mask)

        model = Broken().eval()
        text = fails("no trace", model)
        assert text.startswith(
            "measuring changed which modules are in training mode; set model.train() or model.eval()"
        )

    @pytest.mark.parametrize(
        ("whose", "draw"),
        [("torch's", lambda: torch.rand(1)), ("Python's", random.random), ("numpy's", np.random.rand)],
    )
    def test_random_states(self, whose, draw):
        class Broken(Tiny):
            def forward(self, tokens, attention_mask=None):
                draw()
                return super().forward(tokens, attention_mask)

        text = fails("no trace", Broken())
        assert text.startswith(
            f"{whose} random state changed: the forward pass draws random numbers although dropout is off"
        )

    def test_an_output_that_depends_on_who_looks(self):
        class Broken(Tiny):
            def forward(self, tokens, attention_mask=None):
                looked_at = any(block.attn.hook_pattern._forward_hooks for block in self.blocks)
                return super().forward(tokens, attention_mask) + looked_at / 8

        text = fails("no trace", Broken())
        assert text == (
            "while hooks read it the model's output differs by up to 0.13, so what is measured is not what runs "
            "without hooks; load with attn_implementation='eager'"
        )

    def test_nothing_is_left_behind(self):
        """Of the model given, and of the process."""
        model = Tiny().train()
        model.blocks[0].eval()
        flags = [module.training for module in model.modules()]
        weights = {name: weight.clone() for name, weight in model.state_dict().items()}
        hooks = {name: len(module._forward_hooks) for name, module in model.named_modules()}
        before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
        first = check_model(model)
        assert torch.equal(before[0], torch.get_rng_state())
        assert before[1:] == (random.getstate(), np.random.get_state()[1].tolist())
        assert flags == [module.training for module in model.modules()]
        assert hooks == {name: len(module._forward_hooks) for name, module in model.named_modules()}
        assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())
        assert check_model(model) == first  # and the same again


# ---- tokenizers ----


def tokenizer_of(gpt2):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(gpt2)


class TestTokenizers:
    def checked(self, tokenizer, d_vocab=22):
        model = build_model(ModelConfig(**{**SHAPE, "d_vocab": d_vocab}))
        return Check("tokenizer", *text(CheckedModel(model, tokenizer, 0)))

    def test_the_right_one(self, gpt2):
        assert self.checked(tokenizer_of(gpt2)).passed

    def test_a_pad_token_beyond_the_embedding(self, gpt2):
        tokenizer = tokenizer_of(gpt2)
        tokenizer.add_special_tokens({"pad_token": "[PAD]"})
        check = self.checked(tokenizer)
        assert (check.passed, check.verdict) == (True, "note")
        assert check.detail.endswith(
            "; the pad token [PAD] (id 22) is beyond the embedding of 22 tokens: id 0 fills up batches instead, hidden "
            "by the mask"
        )
        assert self.checked(tokenizer, d_vocab=23).verdict == "ok"

    def test_added_tokens_without_an_embedding(self, gpt2):
        tokenizer = tokenizer_of(gpt2)
        tokenizer.add_tokens(["w100"])
        tokenizer.add_special_tokens({"pad_token": "[PAD]"})
        assert self.checked(tokenizer) == Check(
            "tokenizer",
            False,
            "2 tokens without an embedding, the first 'w100', id 22 of 22: the tokenizer is another model's, or tokens "
            "were added to it; use the model's own, or model.resize_token_embeddings",
        )

    def test_special_tokens(self, gpt2):
        from tokenizers.processors import TemplateProcessing

        tokenizer = tokenizer_of(gpt2)
        tokenizer.add_special_tokens({"cls_token": "[CLS]", "sep_token": "[SEP]"})
        for single, said in (
            ("[CLS] $A [SEP]", "[CLS] before and [SEP] after are added, so last_token() reads [SEP]"),
            ("[CLS] $A", "[CLS] before is added;"),
        ):
            tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
                single=single, special_tokens=[("[CLS]", 22), ("[SEP]", 23)]
            )
            check = self.checked(tokenizer, d_vocab=24)
            assert check.passed
            assert said in check.detail

    def test_no_pad_token(self, gpt2):
        tokenizer = tokenizer_of(gpt2)
        tokenizer.pad_token = None
        assert self.checked(tokenizer).detail.endswith(
            "there is no pad token: id 0 fills up batches, hidden by the mask"
        )


class TestBeginning:
    def beginning(self, tokenizer):
        model = build_model(ModelConfig(**{**SHAPE, "d_vocab": 24}))
        return Check("beginning of sequence", *check_beginning_token(CheckedModel(model, tokenizer, 0)))

    def test_there_is_none(self, gpt2):
        check = self.beginning(tokenizer_of(gpt2))
        assert (check.verdict, check.detail) == (
            "ok",
            "the tokenizer has no token for it; texts begin with their first word",
        )

    def test_one_that_is_not_added(self, gpt2):
        """GPT-2's tokenizer. TransformerLens adds it."""
        tokenizer = tokenizer_of(gpt2)
        tokenizer.add_special_tokens({"bos_token": "[BOS]"})
        check = self.beginning(tokenizer)
        assert (check.verdict, check.detail) == (
            "note",
            "there is [BOS] (id 22), but Hugging Face's tokenizer does not put it before a text, so that texts are "
            "measured without it; where the model was trained with it, choose --bos yes, the same for all models "
            "compared",
        )

    @pytest.mark.parametrize("kind", ["bos_token", "cls_token"])
    def test_one_that_is_added(self, gpt2, kind):
        from tokenizers.processors import TemplateProcessing

        tokenizer = tokenizer_of(gpt2)
        tokenizer.add_special_tokens({kind: "[B]"})
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="[B] $A", special_tokens=[("[B]", 22)])
        check = self.beginning(tokenizer)
        assert (check.verdict, check.detail) == (
            "ok",
            "[B] (id 22) is put before every text, as Hugging Face's tokenizer does; --bos no leaves it out",
        )

    @pytest.mark.parametrize("added", [False, True])
    def test_one_that_is_also_the_unknown_token(self, added):
        from tokenizers import Tokenizer, models
        from tokenizers.processors import TemplateProcessing
        from transformers import PreTrainedTokenizerFast

        words = Tokenizer(models.WordLevel({"<s>": 0, "M": 1, "K": 2}, unk_token="<s>"))
        if added:
            words.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", unk_token="<s>")
        checked = CheckedModel(build_model(ModelConfig(**SHAPE)), tokenizer, 0)
        assert self.beginning(tokenizer).verdict == ("ok" if added else "note")
        assert text(checked)[1].startswith("<s> before is added;" if added else "no special tokens are added;")


# ---- models over several devices, and quantised ones ----


class TestPlaced:
    def test_a_model_of_which_parts_are_kept_elsewhere(self, gpt2):
        """The second block is on the CPU until it runs, and its weights are without values meanwhile."""
        places = {"transformer.wte": "cpu", "transformer.wpe": "cpu", "transformer.h.0": "cpu", "lm_head": "cpu"}
        places |= {"transformer.ln_f": "cpu", "transformer.h.1": "disk"}
        report = check_model(gpt2, device_map=places)
        assert "float32 on cpu and disk or CPU until needed; " in report["model"].detail
        assert report["equals Hugging Face"].passed is True, str(report)
        assert report.passed, str(report)
        found = re.match(
            r"weights \((\d+) of (\d+) tensors are elsewhere until needed and were not looked at\), and act",
            report["finite values"].detail,
        )
        assert found is not None
        assert 0 < int(found[1]) < int(found[2])

    def test_what_is_said_of_them(self):
        model = SimpleNamespace(
            parameters=lambda: [
                torch.zeros(1, dtype=torch.uint8),
                torch.zeros(1, dtype=torch.bfloat16, device="meta"),
            ],
            config=SimpleNamespace(quantization_config={"quant_method": "bitsandbytes"}),
        )
        assert dtypes_of(model) == "bfloat16 and uint8 (quantised, bitsandbytes)"
        assert devices_of(model) == "cpu and disk or CPU until needed"

    @pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.float8_e5m2])
    def test_the_bound_does_not_ask_weights_of_8_bits(self, dtype):
        """These have no rounding of their own; what is computed has."""
        model = Tiny()
        model.codes = nn.Parameter(torch.zeros(3, dtype=dtype), requires_grad=False)
        sound(check_model(model), OUR_OWN)


# ---- what cannot be checked ----


class TestRefusals:
    def refused(self, *args, **options):
        return refusal(check_model, *args, **options)

    def test_a_model_without_hooks(self):
        assert self.refused(nn.Linear(2, 2)).startswith("a Linear has no hook_dict, so nothing can be measured in it; ")

    def test_a_model_without_sizes(self):
        model = Tiny()
        model.cfg = SimpleNamespace(n_layers=2)
        assert self.refused(model) == (
            "a Tiny has no cfg.n_heads, so its shapes cannot be checked; build it with mechclust.build_model or load "
            "it with mechclust.load_pretrained"
        )

    def test_several_models(self):
        assert self.refused({"a": Tiny(), "b": Tiny()}) == (
            "check_model takes one model, but was given 2; check them one at a time"
        )

    @pytest.mark.parametrize(
        ("name", "value", "instead"),
        [
            ("device", "cpu", "move it with model.to(...)"),
            ("dtype", "bfloat16", "change it with model.to(...)"),
            ("device_map", "auto", "load it with load_pretrained(..., device_map=...)"),
            ("adapter", "folder", "put it in with set_adapter(model, folder)"),
        ],
    )
    def test_options_of_a_model_that_is_loaded(self, name, value, instead):
        assert self.refused(Tiny(), **{name: value}) == (
            f"{name} is {value!r}, but the model is loaded already; {instead}, or give the model's name"
        )

    def test_a_seed_or_dtype_out_of_range(self):
        assert self.refused(Tiny(), seed=10**20).startswith(f"seed is {10**20}; expected")
        assert self.refused(Tiny(), dtype="float8").startswith("dtype is 'float8'; expected")

    def test_a_device_without_a_name(self, gpt2):
        assert self.refused(gpt2, device="").startswith("no device ''")

    def test_a_compiled_model(self):
        assert "went through torch.compile, which silently ignores hooks" in self.refused(torch.compile(Tiny()))

    def test_a_forward_pass_that_fails_ends_the_checks(self):
        class Broken(Tiny):
            def forward(self, tokens, attention_mask=None):
                raise RuntimeError("no kernel\nfor this")

        report = check_model(Broken())
        assert [check.name for check in report.checks] == ["model", "forward pass"]
        assert report["forward pass"].passed is False
        assert report["forward pass"].detail == (
            "stopped with RuntimeError: no kernel for this; nothing else can be tried: make model(tokens) work for "
            "tokens [batch pos]"
        )

    def test_a_check_that_breaks_is_one_row(self, monkeypatch):
        def breaks(checked):
            raise ValueError

        monkeypatch.setitem(mechclust.commands.check.model._ATTEMPTS, "finite values", breaks)
        report = check_model(Tiny())
        assert report["finite values"] == Check("finite values", False, "stopped with ValueError")


# ---- the report ----


class TestReport:
    report = CheckReport(
        "<m>",
        [
            Check("first", True, "fine"),
            Check("the second", False, "a <b> & " + "word " * 40),
            Check("third", None, "no reason"),
        ],
    )

    def test_as_text(self):
        lines = str(self.report).splitlines()
        assert lines[0] == "<m>: 1 passed, 1 failed, 1 not tried"
        assert lines[1] == "ok         first       fine"
        assert lines[2].startswith("FAILED     the second  a <b> & word word")
        assert lines[3].startswith(" " * 23 + "word")
        assert lines[-1] == "not tried  third       no reason"
        assert max(map(len, lines)) <= 120

    def test_as_html(self):
        page = self.report._repr_html_()
        assert "a &lt;b&gt; &amp; word" in page
        assert "&lt;m&gt;: 1 passed" in page
        assert "a <b>" not in page
        assert page.count("<tr") == 4

    def test_as_a_data_frame(self):
        frame = self.report.to_dataframe()
        assert list(frame.columns) == ["check", "verdict", "passed", "detail"]
        assert frame["verdict"].tolist() == ["ok", "FAILED", "not tried"]
        assert frame["passed"].isna().tolist() == [False, False, True]
        assert frame["passed"].dtype == "boolean"

    def test_by_name(self):
        assert self.report["third"].detail == "no reason"
        assert not self.report.passed
        with pytest.raises(KeyError, match=r"no check 'fourth' in this report \(it has first, the second, third\)"):
            self.report["fourth"]

    def test_progress_goes_to_standard_error(self, capfd):
        check_model(Tiny(), progress=True)
        out, err = capfd.readouterr()
        assert out == ""
        assert "checking" in err
