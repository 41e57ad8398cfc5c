"""The attention view: what it collects, refuses and writes. How it looks is test_attention_browser.py's."""

import base64
import json
import re
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mechclust.attention import page as attention_page
from mechclust.attention.view import AttentionView, attention_view, attention_view_from_patterns
from mechclust.models import load_pretrained
from mechclust.models.build import build_model
from mechclust.models.config import ModelConfig
from probes import Head, HeadRoles, ProbeResult, run
from tasks import InputError

HOSTILE = "</script><img src=x onerror=window.__pwned=1>"
TOKENS = torch.tensor([3, 1, 4, 1, 5])
SHAPE = {"d_vocab": 9, "n_ctx": 6, "n_layers": 3, "d_model": 8, "n_heads": 2, "init_std": 0.8}


def new_model(attention="causal", **fields):
    return build_model(ModelConfig(**{**SHAPE, "attention": attention, **fields}))


model = cache(new_model)  # read only


@cache
def never_run():
    """A model of which all that is refused must be known before it runs."""
    found = new_model()
    found.forward = None
    return found


class Wrapped:
    """A model with the hook protocol, without configuration and tokenizer, but for what it is given."""

    def __init__(self, inner, **given):
        self.__dict__.update(inner=inner, **given)

    def __getattr__(self, name):
        if name in ("cfg", "tokenizer", "to_tokens"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __call__(self, tokens):
        return self.inner(tokens)


class Tokenizer:
    """A letter a token."""

    def __init__(self, letters="ab cdefgh\n"):
        self.letters = letters

    def convert_ids_to_tokens(self, ids):
        return [self.letters[i] for i in ids]

    def batch_decode(self, ids, clean_up_tokenization_spaces):
        assert not clean_up_tokenization_spaces
        return [self.letters[i] for (i,) in ids]

    def __call__(self, texts):
        return {"input_ids": [[self.letters.index(c) for c in text] for text in texts]}


def with_tokenizer(tokenizer, **fields):
    inner = model(**fields)
    return Wrapped(inner, cfg=inner.cfg, tokenizer=tokenizer)


def patterns_of(model, layer):
    kept = []
    hook = (f"blocks.{layer}.attn.hook_pattern", lambda pattern, hook: kept.append(pattern[0].detach().clone()))
    with torch.no_grad(), model.hooks(fwd_hooks=[hook]):
        model(TOKENS[None])
    return kept[0]


def unpacked(text, dtype):
    return np.frombuffer(base64.b64decode(text), dtype)


def data_of(html):
    """What the page's script is given."""
    return json.loads(re.findall(r"const data = (.*);\n", html)[-1])


def weights_of(data, i=0):
    return np.frombuffer(base64.b64decode(data["weights"][i]), "<i2") / data["steps"]


def view_of(str_tokens, names=("L0H0",), **more):
    n = len(str_tokens)
    return attention_view_from_patterns(torch.eye(n).repeat(len(names), 1, 1), str_tokens, names, causal=True, **more)


class TestFromModel:
    def test_every_head_of_every_layer_by_default(self):
        view = attention_view(model(), TOKENS)
        assert view.names == ("L0H0", "L0H1", "L1H0", "L1H1", "L2H0", "L2H1")
        assert view.str_tokens == ("3", "1", "4", "1", "5")
        assert (view.models, view.labels, view.values) == ((), (), ())
        for layer in range(3):
            torch.testing.assert_close(view.patterns[2 * layer : 2 * layer + 2], patterns_of(model(), layer))

    def test_chosen_layers_and_heads(self):
        view = attention_view(model(), TOKENS[None], layers=[-1, 0], heads=1, str_tokens=list("abcde"))
        assert view.names == ("L2H1", "L0H1")
        assert view.str_tokens == tuple("abcde")
        torch.testing.assert_close(view.patterns[0], patterns_of(model(), 2)[1])
        assert attention_view(model(), TOKENS, layers=1, heads=[-1]).names == ("L1H1",)
        assert attention_view(model(), TOKENS, layers=np.int64(1), heads=np.int64(-1)).names == ("L1H1",)

    def test_pairs_of_layer_and_head_in_their_order(self):
        view = attention_view(model(), TOKENS, heads=[(2, 1), (0, 0), (-1, -2)])
        assert view.names == ("L2H1", "L0H0", "L2H0")
        assert view.values == ()
        for pattern, (layer, head) in zip(view.patterns, [(2, 1), (0, 0), (2, 0)], strict=True):
            torch.testing.assert_close(pattern, patterns_of(model(), layer)[head])

    def test_heads_chosen_by_a_probe(self):
        names = [f"blocks.{i}.attn.hook_pattern" for i in range(3)]
        result = ProbeResult(
            "Demo",
            {"ratio": torch.tensor([[1.0, 3.25], [2.0, float("nan")], [0.5, 0.1]])},
            {"ratio": ("site", "head")},
            {"site": names, "head": ["0", "1"]},
            {name: i for i, name in enumerate(names)},
        )
        view = attention_view(model(), TOKENS, heads=result.top_heads("ratio", 2))
        assert view.names == ("L0H1", "L1H0")
        assert view.values == (3.25, 2.0)
        assert data_of(view.fragment())["heads"] == [{"name": "L0H1", "value": "3.25"}, {"name": "L1H0", "value": "2"}]

    @pytest.mark.parametrize(("attention", "causal"), [("causal", True), ("bidirectional", False)])
    def test_the_mask_follows_the_model(self, attention, causal):
        view = attention_view(model(attention), TOKENS)
        assert view.causal is causal
        assert data_of(view.fragment())["causal"] is causal
        assert repr(view).startswith(
            f"AttentionView(6 heads (L0H0 to L2H1), 5 tokens, {'causal' if causal else 'bidirectional'});"
        )

    def test_the_weights_correct_a_configuration_that_says_causal(self):
        encoder = Wrapped(model("bidirectional"), cfg=SimpleNamespace(attention_dir="causal", n_heads=2))
        assert not attention_view(encoder, TOKENS).causal
        assert attention_view(encoder, TOKENS[:1]).causal  # one token shows nothing to the contrary

    @pytest.mark.parametrize(("attention", "causal"), [("causal", True), ("bidirectional", False)])
    def test_without_a_configuration_the_weights_decide(self, attention, causal):
        view = attention_view(Wrapped(model(attention)), TOKENS)
        assert view.causal is causal
        assert view.names[-1] == "L2H1"

    @pytest.mark.parametrize("mask", [[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]])
    def test_padding_is_left_out(self, mask):
        mask, labels = torch.tensor(mask), ["p", None, "q", "r", None]
        view = attention_view(
            model(), TOKENS, attention_mask=mask[None], str_tokens=list("abcde"), labels=torch.arange(5)
        )
        assert view.str_tokens == tuple(c for c, real in zip("abcde", mask, strict=True) if real)
        assert view.labels == tuple(str(i) for i, real in enumerate(mask) if real)
        assert view.causal
        torch.testing.assert_close(view.patterns.sum(-1), torch.ones(6, 3))
        view = attention_view(model(), TOKENS, attention_mask=mask, labels=labels)
        assert view.labels == tuple(label for label, real in zip(labels, mask, strict=True) if real)

    def test_leaves_the_model_as_it_was(self):
        ours = new_model().train()
        state = torch.get_rng_state()
        attention_view(ours, TOKENS)
        assert ours.training
        assert torch.equal(torch.get_rng_state(), state)
        assert not any(hook.fwd_hooks for hook in ours.hook_dict.values())

    @pytest.mark.parametrize("times", [0, 2])
    def test_attention_that_is_not_computed_once_is_refused(self, times):
        class Odd(Wrapped):
            def __call__(self, tokens):
                for _ in range(times):
                    self.inner(tokens)

        ours = model()
        with pytest.raises(InputError) as error:
            attention_view(Odd(ours, cfg=ours.cfg), TOKENS, layers=1)
        assert str(error.value) == (
            f"hook point 'blocks.1.attn.hook_pattern' fired {times} times in one forward pass; expected once; "
            "choose layers whose attention the model computes once"
        )
        assert not any(hook.fwd_hooks for hook in ours.hook_dict.values())

    def test_a_text_goes_through_the_tokenizer(self):
        assert attention_view(with_tokenizer(Tokenizer()), "ab cd").str_tokens == ("a", "b", " ", "c", "d")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (
                {"tokens": torch.zeros(4, 5, dtype=torch.int64)},
                r"tokens has shape \(4, 5\) of int64; expected one seq",
            ),
            ({"tokens": torch.zeros(0, dtype=torch.int64)}, r"tokens has shape \(0,\)"),
            ({"tokens": torch.rand(5)}, r"tokens has shape \(5,\) of float32; expected one sequence of integers"),
            ({"tokens": "the cat"}, "tokens is the text 'the cat', but this .* has no tokenizer; give token ids"),
            (
                {"tokens": ["the", " cat"]},
                r"tokens is \['the', ' cat'\]; expected one sequence of integers; give token ids",
            ),
            (
                {"layers": 3},
                r"no layer 3 for attention\(\) in this model \(it has layers 0-2, layer 0 is blocks.0\)",
            ),
            ({"heads": 2}, r"no head 2 in layer 0, blocks.0 \(it has heads 0-1\)"),
            ({"heads": [(0, 0), (1, -3)]}, r"no head -3 in layer 1, blocks.1 \(it has heads 0-1\)"),
            ({"heads": []}, "heads is empty"),
            ({"layers": []}, "layers is empty; expected at least one layer, or None for all of them"),
            ({"heads": torch.tensor(1)}, r"heads is \[tensor\(1\)\]; expected head numbers"),
            (
                {"heads": [(0, 0)], "layers": 0},
                r"layers is 0, but heads has \(layer, head\) pairs; leave out layers, or give heads as numbers",
            ),
            (
                {"heads": [0, (1, 1)]},
                r"heads is \[0, \(1, 1\)\]; expected head numbers, or \(layer, head\) pairs such as those of "
                "result.top_heads",
            ),
            ({"heads": [(0, 0.5)]}, r"heads is \[\(0, 0\.5\)\]; expected head numbers"),
            ({"heads": "L0H0"}, r"heads is \['L', '0', 'H', '0'\]; expected head numbers"),
            ({"str_tokens": ["a"]}, "str_tokens has 1 strings for 5 token ids; expected one per position"),
            ({"labels": ["a"]}, "labels has 1 labels for 5 tokens; expected one label per position, None where"),
            ({"labels": torch.zeros(5, 2)}, r"labels has shape \(5, 2\) for 5 tokens; expected one label per position"),
            ({"labels": "topic"}, "labels is the text 'topic'; expected one label per position"),
            ({"attention_mask": torch.zeros(5, dtype=torch.bool)}, "has length 5 and 0 real tokens for 5 token ids"),
            ({"attention_mask": torch.ones(4, dtype=torch.bool)}, "has length 4 and 4 real tokens for 5 token ids"),
        ],
    )
    def test_refusals(self, arguments, message):
        with pytest.raises(InputError, match=message):
            attention_view(never_run(), **{"tokens": TOKENS, **arguments})

    def test_too_large_is_refused_before_the_model_runs(self):
        ours = never_run()
        with pytest.raises(
            InputError, match=r"^attention of 6 heads over 500 tokens makes a page of at least 2\.\d MB, and max"
        ):
            attention_view(ours, torch.zeros(500, dtype=torch.int64), max_bytes=1_000_000)
        with pytest.raises(InputError, match=r"^attention of 1 head over 40000 tokens in 2 models makes a page of at"):
            attention_view({"a": ours, "b": ours}, torch.zeros(40_000, dtype=torch.int64), heads=[(1, 0)])
        with pytest.raises(InputError, match=r"^attention of 6 heads over 5 tokens makes a page of \d+ kB, and"):
            attention_view(model(), TOKENS, str_tokens=["x" * 9000] * 5, max_bytes=60_000)
        with pytest.raises(InputError, match=r"^there are 65537 tokens; give at most 65536"):
            attention_view(ours, torch.zeros(65_537, dtype=torch.int64), heads=[(1, 0)])
        with pytest.raises(InputError, match=r"^attention of 1 head over 65536 tokens makes a page of at"):
            attention_view(ours, torch.zeros(65_536, dtype=torch.int64), heads=[(1, 0)], max_bytes=1_000_000)


class TestSideBySide:
    def test_each_model_reads_the_same_tokens(self):
        models = {"tuned": model(), "base": model(seed=1)}
        view = attention_view(models, TOKENS, layers=[1], labels=[0, 0, 1, 1, None])
        assert view.models == ("tuned", "base")
        assert view.names == ("L1H0", "L1H1")
        assert view.labels == ("0", "0", "1", "1", None)
        for patterns, each in zip(view.patterns, models.values(), strict=True):
            torch.testing.assert_close(patterns, patterns_of(each, 1))
        data = data_of(view.fragment())
        assert data["models"] == ["tuned", "base"]
        below = torch.tril(torch.ones(5, 5)).bool()
        for i in range(2):
            expected = view.patterns[i][:, below].flatten().numpy()
            np.testing.assert_allclose(weights_of(data, i), expected, atol=0.5001 / 10_000)
        assert "causal, tuned and base)" in repr(view)

    def test_causal_only_when_all_are(self):
        view = attention_view({"a": model(), "b": model("bidirectional")}, TOKENS)
        assert not view.causal
        assert not view.patterns[0].triu(1).any()
        encoder = Wrapped(model("bidirectional"), cfg=SimpleNamespace(attention_dir="causal", n_heads=2))
        assert not attention_view({"a": model(), "b": encoder}, TOKENS).causal  # whatever the configuration says

    def test_the_first_tokenizer_speaks_for_all(self):
        view = attention_view({"a": model(), "b": with_tokenizer(Tokenizer())}, "ab", layers=0)
        assert view.str_tokens == ("a", "b")

    @pytest.mark.parametrize(
        ("models", "arguments", "message"),
        [
            (
                {"tuned": {}, "base": {"n_layers": 2}},
                {},
                "these are heads L0H0 to L2H1 in model 'tuned' and L0H0 to L1H1 in model 'base'; expected the same in "
                r"both; choose heads that both have, such as heads=\[\(0, 0\), \(0, 1\)\]",
            ),
            ({"a": {}, "b": {"n_heads": 4}}, {"layers": 0}, "L0H0 to L0H1 in model 'a' and L0H0 to L0H3 in model 'b'"),
            ({"a": {}, "b": {"n_layers": 2}}, {"heads": [(-1, 0)]}, "heads L2H0 in model 'a' and L1H0 in model 'b'"),
            ({"a": {}, "b": {"n_layers": 2}}, {"layers": 2}, r"^model 'b': no layer 2 for attention\(\)"),
            (
                {"a": {}, "b": {"n_heads": 1}},
                {"heads": [(0, 1)]},
                r"^model 'b': no head 1 in layer 0, blocks.0 \(it has heads 0-0",
            ),
            ({"a": {}, "b": {"d_vocab": 8}}, {}, "model 'a' has a vocabulary of 9 tokens and 'b' one of 8"),
            ({}, {}, "no models given; give one, or several by name"),
            ({"": {}}, {}, "a model is called ''; expected a name"),
        ],
    )
    def test_refusals_name_the_model(self, models, arguments, message):
        with pytest.raises(InputError, match=message):
            attention_view({name: model(**fields) for name, fields in models.items()}, TOKENS, **arguments)

    def test_models_of_different_sizes_share_chosen_heads(self):
        view = attention_view(
            {"a": model(), "b": model(n_layers=2, n_heads=4)}, TOKENS, heads=[(1, 1), Head(0, 0, 0.5)]
        )
        assert view.names == ("L1H1", "L0H0")
        assert view.values == (None, 0.5)
        assert [head["value"] for head in data_of(view.page())["heads"]] == ["", "0.5"]

    @pytest.mark.parametrize("prepend_scheme", ["first", "always", "never"])
    def test_sentencepiece_tokens_keep_their_leading_spaces(self, prepend_scheme):
        """Decoders of Llama 2 and T5 remove one space of what they decode, here of each token."""
        from tokenizers import Tokenizer as Fast
        from tokenizers import decoders, models
        from transformers import PreTrainedTokenizerFast

        pieces = ["<s>", "▁cat", "cat", "▁", "▁▁", "▁é"]
        fast = Fast(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="<s>"))
        fast.decoder = decoders.Metaspace(prepend_scheme=prepend_scheme)
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=fast, bos_token="<s>")
        view = attention_view(with_tokenizer(tokenizer), torch.arange(6), layers=0)
        assert view.str_tokens == ("<s>", " cat", "cat", " ", "  ", " é")

    def test_tokenizers_that_differ(self):
        models = {"a": with_tokenizer(Tokenizer()), "b": with_tokenizer(Tokenizer("ba cdefgh\n"))}
        with pytest.raises(
            InputError,
            match="the tokenizers of models 'a' and 'b' make different token ids of the text 'ab'; compare models with "
            "one tokenizer, or give token ids",
        ):
            attention_view(models, "ab")


class TestEncoders:
    def test_a_text_with_its_special_tokens(self, encoder_checkpoint):
        from tokenizers.processors import TemplateProcessing

        encoder = load_pretrained(encoder_checkpoint("bert", "ForMaskedLM"))
        encoder.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single="w0 $A w1", special_tokens=[("w0", 2), ("w1", 3)]
        )
        view = attention_view(encoder, "w5 nonsense w7")
        assert view.str_tokens == ("w0", "w5", "<unk>", "w7", "w1")
        assert view.names == ("L0H0", "L0H1", "L1H0", "L1H1")
        assert not view.causal
        torch.testing.assert_close(view.patterns.sum(-1), torch.ones(4, 5))
        assert (view.patterns > 0).all()
        weights = weights_of(data_of(view.page())).reshape(4, 5, 5)
        np.testing.assert_allclose(weights, view.patterns, atol=0.5001 / 10_000)

    def test_without_patterns_they_are_computed_in_blocks(self, encoder_checkpoint, monkeypatch):
        monkeypatch.setattr("probes.engine.attention._MAX_NUMBERS_AT_ONCE", 20)
        path = encoder_checkpoint("bert", "ForMaskedLM")
        eager, sdpa = (attention_view(load_pretrained(path, attention=kind), TOKENS) for kind in ("eager", "sdpa"))
        torch.testing.assert_close(sdpa.patterns, eager.patterns)

    def test_padding_changes_nothing(self, encoder_checkpoint):
        encoder = load_pretrained(encoder_checkpoint("albert", "ForMaskedLM"))
        padded, mask = torch.tensor([2, 9, 4, 3, 0, 0]), torch.tensor([1, 1, 1, 1, 0, 0])
        view, short = attention_view(encoder, padded, attention_mask=mask), attention_view(encoder, padded[:4])
        assert view.str_tokens == short.str_tokens == ("w0", "w7", "w2", "w1")
        torch.testing.assert_close(view.patterns, short.patterns)


class TestFromPatterns:
    @pytest.mark.parametrize("shape", [(2, 2), (1, 2, 3), (2, 2, 2), (1, 3, 3), (1, 1, 2, 2)])
    def test_shapes_must_fit(self, shape):
        with pytest.raises(InputError) as error:
            attention_view_from_patterns(torch.zeros(shape), ["a", "b"], ["L0H0"], causal=False)
        assert str(error.value) == (
            f"patterns has shape {shape}; expected [head query key] = (1, 2, 2) for 1 name and 2 tokens; "
            "pass one sequence, and a name for each head"
        )

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -3.0, 1.1])
    def test_values_must_be_weights(self, value):
        patterns = torch.eye(2)[None].clone()
        patterns[0, 1, 0] = value
        with pytest.raises(InputError, match=r"expected attention weights from -1 to 1; give the probabilities"):
            attention_view_from_patterns(patterns, ["a", "b"], ["L0H0"], causal=True)

    def test_a_causal_view_would_hide_weights(self):
        with pytest.raises(InputError, match="causal is True, but weights above the diagonal are not all 0"):
            attention_view_from_patterns(torch.full((1, 2, 2), 0.5), ["a", "b"], ["L0H0"], causal=True)

    def test_values_of_a_tensor(self):
        patterns = torch.eye(2).expand(2, 2, 2)
        view = attention_view_from_patterns(patterns, "ab", ["x", "y"], causal=True, values=torch.tensor([0.25, 0.0]))
        assert view.values == (0.25, 0.0)

    def test_several_by_name(self):
        given = {"before": torch.eye(2)[None], "after": torch.full((1, 2, 2), 0.5)}
        view = attention_view_from_patterns(given, ["a", "b"], ["mean"], causal=False, values=[0.25])
        assert view.models == ("before", "after")
        assert torch.equal(view.patterns, torch.stack(list(given.values())))
        with pytest.raises(InputError, match=r"^patterns\['after'\] has shape \(1, 3, 3\)"):
            attention_view_from_patterns({**given, "after": torch.eye(3)[None]}, ["a", "b"], ["mean"], causal=False)
        with pytest.raises(InputError, match="no patterns given; give one tensor, or several by name"):
            attention_view_from_patterns({}, ["a"], ["mean"], causal=False)

    def test_labels_and_values_must_fit(self):
        with pytest.raises(InputError, match="labels has 2 labels for 1 token; expected one label per position"):
            view_of(["a"], labels=["x", "y"])
        with pytest.raises(InputError, match="values has 2 numbers for 1 head; expected one per head"):
            view_of(["a"], values=[1.0, 2.0])

    def test_the_size_cap_names_the_number_and_the_way_out(self):
        patterns = torch.rand(2, 50, 50)
        view = attention_view_from_patterns(patterns, ["token"] * 50, ["a", "b"], causal=False)
        size = len(view.page().encode())
        attention_view_from_patterns(patterns, ["token"] * 50, ["a", "b"], causal=False, max_bytes=size)
        with pytest.raises(InputError) as error:
            attention_view_from_patterns(patterns, ["token"] * 50, ["a", "b"], causal=False, max_bytes=size - 1)
        assert str(error.value) == (
            f"attention of 2 heads over 50 tokens makes a page of {size / 1e3:.0f} kB, "
            f"and max_bytes is {size - 1:,}; choose fewer layers, heads or tokens, or raise max_bytes"
        )

    def test_long_tokens_count_too(self):
        with pytest.raises(InputError, match=r"over 2 tokens makes a page of \d+\.\d MB"):
            view_of(["a" * 2_000_000, "b"])

    @pytest.mark.parametrize("n_models", [1, 2])
    def test_twelve_heads_over_128_tokens_fit(self, n_models):
        patterns = torch.softmax(torch.randn(12, 128, 128, generator=torch.Generator().manual_seed(0)), dim=-1)
        names = [f"L0H{h}" for h in range(12)]
        given = patterns if n_models == 1 else {"a": patterns, "b": patterns.flip(0)}
        view = attention_view_from_patterns(given, [" token"] * 128, names, causal=False)
        assert len(view.page().encode()) < 40_000 + n_models * 530_000

    def test_weights_arrive_to_four_decimals(self):
        patterns = torch.tensor([[[0.5, 0.5], [0.12344, -0.87656]]])
        view = attention_view_from_patterns(patterns, ["a", "b"], ["difference"], causal=False)
        assert weights_of(data_of(view.fragment())).tolist() == [0.5, 0.5, 0.1234, -0.8766]

    def test_what_a_causal_head_cannot_reach_is_not_sent(self):
        patterns = torch.tensor([[[1.0, 0, 0], [0.25, 0.75, 0], [0.5, 0.3, 0.2]]])
        view = attention_view_from_patterns(patterns, ["a", "b", "c"], ["L0H0"], causal=True)
        assert weights_of(data_of(view.fragment())).tolist() == [1.0, 0.25, 0.75, 0.5, 0.3, 0.2]


@pytest.fixture(scope="module")
def many():
    """A positive and a negative head over 600 tokens."""
    scores = 3 * torch.randn(2, 600, 600, generator=torch.Generator().manual_seed(0))
    return torch.softmax(scores, dim=-1) * torch.tensor([1.0, -1.0])[:, None, None]


@pytest.fixture(scope="module")
def tiles(many):
    view = attention_view_from_patterns(many, [f"t{i}" for i in range(600)], ["a", "b"], causal=False)
    return data_of(view.fragment())["tiles"]


class TestManyTokens:
    """A page holds each query's strongest keys, and the strongest weight of each block."""

    def test_the_strongest_keys_have_four_decimals(self, many, tiles):
        keys = unpacked(tiles["keys"][0], "<u2").reshape(2, 600, tiles["kept"])
        weights = unpacked(tiles["weights"][0], "<i2").reshape(keys.shape) / 10_000
        np.testing.assert_allclose(weights, np.take_along_axis(many.numpy(), keys, axis=2), atol=0.5001 / 10_000)
        sizes = many.abs().numpy()
        assert (np.sort(sizes, axis=2)[..., -tiles["kept"]] <= np.abs(weights[..., -1]) + 1e-4).all()

    def test_up_to_512_tokens_have_every_weight(self):
        for n, held in ((512, "weights"), (513, "tiles")):
            view = attention_view_from_patterns(torch.eye(n)[None], ["t"] * n, ["a"], causal=True)
            assert held in data_of(view.fragment())

    def test_a_block_has_its_strongest_weight_with_its_sign(self, many, tiles):
        size = tiles["block"]
        side = -(-600 // size)
        blocks = unpacked(tiles["blocks"][0], "i1").reshape(2, side, side) / 127
        for head in range(2):
            for q, k in [(0, 0), (3, 70), (side - 1, side - 1)]:
                block = many[head, q * size : (q + 1) * size, k * size : (k + 1) * size]
                expected = float(block.abs().max().sqrt()) * (1 if head == 0 else -1)
                assert blocks[head, q, k] == pytest.approx(expected, abs=0.51 / 127)

    def test_a_page_of_2048_tokens_is_below_two_megabytes(self):
        patterns = torch.rand(4, 2048, 2048, generator=torch.Generator().manual_seed(0)).tril()
        patterns /= patterns.sum(dim=-1, keepdim=True)
        view = attention_view_from_patterns(patterns, [" token"] * 2048, list("abcd"), causal=True)
        assert 1_000_000 < len(view.page()) < 2_000_000

    def test_only_the_chosen_heads_of_a_long_text_are_kept(self):
        long = model(n_ctx=600)
        tokens = torch.arange(600) % 9
        view = attention_view(long, tokens, heads=[(1, 1), (0, 0)])
        assert view.patterns.shape == (2, 600, 600)
        torch.testing.assert_close(view.patterns[0], attention_view(long, tokens, layers=1).patterns[1])


class TestRoles:
    def test_the_strongest_heads_of_each_role_are_shown(self):
        roles = run(model(), torch.tensor([[0, 1, 2, 0, 1, 2]] * 3), HeadRoles(max_offset=2, n_permutations=0))
        called = replace(roles, values={**roles.values, "role": torch.tensor([[6, 1], [0, 6], [0, 0]])})
        view = attention_view(model(), TOKENS, roles=called)
        assert sorted(zip(view.names, view.roles, strict=True)) == [
            ("L0H0", "induction"),
            ("L0H1", "previous"),
            ("L1H1", "induction"),
        ]
        assert view.values[0] == pytest.approx(float(roles.sel("excess", role="previous", layer=0, head=1)))
        assert view.values[1] >= view.values[2]
        with pytest.raises(InputError, match="leave out layers and heads"):
            attention_view(model(), TOKENS, roles=called, layers=0)
        with pytest.raises(InputError, match="no head of roles plays a role"):
            attention_view(model(), TOKENS, roles=replace(roles, values={**roles.values, "role": torch.zeros(3, 2)}))


class TestHtml:
    def test_no_string_can_leave_the_script(self):
        strings = [HOSTILE, "<!--<script>", "a'\"&`${1}\u2028"]
        patterns = {HOSTILE: torch.eye(3)[None]}
        view = attention_view_from_patterns(patterns, strings, [HOSTILE], causal=True, labels=strings)
        for html in (view.fragment(), view.page(title=HOSTILE), view._repr_html_()):
            assert html.count("</script>") == 2
            ours = html.replace(attention_page._code(1).html, "")
            assert "<img" not in ours
            assert "<!--" not in ours
            data = data_of(html)
            assert data["tokens"][1:] == ["<!--<script>", "a'\"&`${1}\\u2028"]
            assert data["labels"][0] == data["models"][0] == HOSTILE
            assert data["heads"][0]["name"] == HOSTILE.replace(" ", "·")

    @pytest.mark.parametrize(
        ("token", "shown"),
        [
            ("\n", r"\n"),
            (" the", "·the"),
            ("\t\r\n", r"\t\r\n"),
            ("\x00", r"\x00"),
            ("a\u202eb", r"a\u202eb"),  # would turn the text around
            ("\ud800", r"\ud800"),  # half a character, as byte-level tokenizers make
            ("naïve 🦜", "naïve·🦜"),
            ("", ""),
        ],
    )
    def test_whitespace_and_control_characters_can_be_seen(self, token, shown):
        view = view_of([token], labels=[token])
        assert view.str_tokens == (token,)
        data = data_of(view.page())
        assert data["tokens"] == [shown]
        assert data["labels"] == [shown.replace("·", " ")]
        view.page().encode()

    def test_nothing_is_loaded_from_anywhere(self):
        page = view_of(["a"]).page()
        assert "unpkg" not in page
        assert "sourceMappingURL" not in page
        assert not re.search(r"<(img|iframe)|<link[^>]+https?:|<script[^>]+src=|\bimport\b[^;]{0,80}https?:", page)
        assert not re.search(r"@import|url\(\s*['\"]?https?:", attention_page._code(1).html.split("<script>")[0])
        assert "default-src 'none'" in page

    def test_the_javascript_can_be_left_out(self):
        view = view_of(["a", "b"])
        assert len(view.fragment(include_js=False)) < 2_000 < 30_000 < len(view.fragment()) < 40_000
        assert view.fragment(include_js=False).count("<div") == view.fragment(include_js=False).count("</div>") == 1

    def test_two_views_on_one_page_have_places_of_their_own(self):
        view = view_of(["a"])
        places = {re.search(r'<div id="([\w-]+)"', view.fragment(include_js=False))[1] for _ in range(2)}
        assert len(places) == 2

    def test_save_writes_the_page(self, tmp_path):
        path = tmp_path / "deep" / "view.html"
        view_of(["日本"]).save(path, title="<Heads>")
        text = path.read_text(encoding="utf-8")
        assert text.startswith("<!doctype html>")
        assert "<title>&lt;Heads&gt;</title>" in text

    def test_repr_is_one_line_with_the_way_to_see_it(self):
        view = view_of(["a", "\n"])
        assert isinstance(view, AttentionView)
        assert repr(view) == (
            'AttentionView(1 head (L0H0), 2 tokens, causal); print() lists weights, .save("view.html") draws them'
        )

    def test_a_terminal_lists_where_the_last_token_attends(self):
        patterns = torch.tensor([[[1, 0, 0], [0.25, 0.75, 0], [0.5, -0.3, 0.2]]])
        view = attention_view_from_patterns({"a": patterns, "b": -patterns}, ["x", "\n", " z"], ["L0H0"], causal=True)
        assert str(view).splitlines() == [
            "1 head (L0H0), 3 tokens, causal, a and b",
            "The last token, ·z (2), attends most to:",
            r"  a  L0H0  x (0) 0.500  \n (1) -0.300  ·z (2) 0.200",
            r"  b  L0H0  x (0) -0.500  \n (1) 0.300  ·z (2) -0.200",
        ]
        assert str(view_of(["a"], [f"L0H{i}" for i in range(18)])).endswith("L0H15  a (0) 1.000\n  ... and 2 more")

    def test_without_javascript_the_text_is_left(self):
        from html import unescape

        view = view_of(["<b>", "c"])
        assert unescape(re.search("<pre>(.*?)</pre>", view.fragment(), re.DOTALL)[1]) == str(view)
        assert "<b>" not in view.fragment(include_js=False)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.tensor([3, 9]), "tokens has the id 9, but the model knows ids 0 to 8; give others"),
        (torch.tensor([-1, 3]), "tokens has the id -1, but the model knows ids 0 to 8; give others"),
        (torch.zeros(7, dtype=torch.int64), "there are 7 tokens, but the model reads at most 6; give fewer"),
    ],
)
def test_tokens_the_model_cannot_read_are_refused(tokens, message):
    with pytest.raises(InputError) as error:
        attention_view(model(), tokens)
    assert str(error.value) == message


class TestCircuitsVis:
    def test_has_the_same_heads_and_tokens(self):
        patterns = torch.rand(2, 3, 3, generator=torch.Generator().manual_seed(0)).tril()
        view = attention_view_from_patterns(patterns, ["a", "b", "c"], ["L0H0", "L1H1"], causal=True)
        drawn = view.circuitsvis().local_src
        assert '"attentionHeadNames": ["L0H0", "L1H1"]' in drawn
        assert '"tokens": ["a", "b", "c"]' in drawn
        weights = json.loads(drawn.split('"attention": ')[1].split(', "attentionHeadNames"')[0])
        assert torch.equal(torch.tensor(weights), patterns)
        assert '"maskUpperTri": true' in drawn

    def test_of_several_models_one_is_named(self):
        patterns = {"before": torch.ones(1, 2, 2) / 2, "after": torch.eye(2)[None]}
        view = attention_view_from_patterns(patterns, ["a", "b"], ["L0H0"], causal=False)
        assert view.circuitsvis("after").local_src != view.circuitsvis("before").local_src
        for model, told in ((None, "None"), ("other", "'other'")):
            with pytest.raises(InputError, match=f"no model {told} in this view; expected one of before, after"):
                view.circuitsvis(model)
