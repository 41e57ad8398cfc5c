"""The attention view: what it collects, refuses and writes. How it looks is test_attention_browser.py's."""

import json
import re
from types import SimpleNamespace

import pytest
import torch

from mechclust.models.build import build_model
from mechclust.models.config import ModelConfig
from mechclust.views.attention import AttentionView, attention_view, attention_view_from_patterns
from tasks import InputError

HOSTILE = "</script><img src=x onerror=window.__pwned=1>"
TOKENS = torch.tensor([3, 1, 4, 1, 5])


def model(attention="causal"):
    return build_model(
        ModelConfig(d_vocab=9, n_ctx=6, n_layers=3, d_model=8, n_heads=2, init_std=0.8, attention=attention)
    )


class Wrapped:
    """A model with the hook protocol and nothing else, but for what it is given."""

    def __init__(self, inner, **given):
        self.inner, self.parameters, self.modules = inner, inner.parameters, inner.modules
        self.hook_dict, self.hooks = inner.hook_dict, inner.hooks
        self.__dict__.update(given)

    def __call__(self, tokens):
        return self.inner(tokens)


def patterns_of(model, layer):
    kept = []
    hook = (f"blocks.{layer - 1}.attn.hook_pattern", lambda pattern, hook: kept.append(pattern[0].detach().clone()))
    with torch.no_grad(), model.hooks(fwd_hooks=[hook]):
        model(TOKENS[None])
    return kept[0]


def props_of(html):
    return json.loads(re.findall(r"const props = (.*);\n", html)[-1])


def view_of(str_tokens, names=("L1H0",)):
    n = len(str_tokens)
    return attention_view_from_patterns(torch.eye(n).repeat(len(names), 1, 1), str_tokens, names, causal=True)


class TestFromModel:
    def test_every_head_of_every_layer_by_default(self):
        view = attention_view(model(), TOKENS)
        assert view.names == ("L1H0", "L1H1", "L2H0", "L2H1", "L3H0", "L3H1")
        assert view.str_tokens == ("3", "1", "4", "1", "5")
        for layer in (1, 2, 3):
            torch.testing.assert_close(view.patterns[2 * layer - 2 : 2 * layer], patterns_of(model(), layer))

    def test_chosen_layers_and_heads(self):
        view = attention_view(model(), TOKENS[None], layers=[-1, 1], heads=1, str_tokens=list("abcde"))
        assert view.names == ("L3H1", "L1H1")
        assert view.str_tokens == tuple("abcde")
        torch.testing.assert_close(view.patterns[0], patterns_of(model(), 3)[1])
        assert attention_view(model(), TOKENS, layers=2, heads=[-1]).names == ("L2H1",)

    @pytest.mark.parametrize(("attention", "causal"), [("causal", True), ("bidirectional", False)])
    def test_the_mask_follows_the_model(self, attention, causal):
        view = attention_view(model(attention), TOKENS)
        assert view.causal is causal
        assert props_of(view.fragment())["maskUpperTri"] is causal

    def test_the_weights_correct_a_configuration_that_says_causal(self):
        encoder = Wrapped(model("bidirectional"), cfg=SimpleNamespace(attention_dir="causal"))
        assert not attention_view(encoder, TOKENS).causal
        assert attention_view(encoder, TOKENS[:1]).causal  # one token shows nothing to the contrary

    @pytest.mark.parametrize(("attention", "causal"), [("causal", True), ("bidirectional", False)])
    def test_without_a_configuration_the_weights_decide(self, attention, causal):
        assert attention_view(Wrapped(model(attention)), TOKENS).causal is causal

    @pytest.mark.parametrize("mask", [[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]])
    def test_padding_is_left_out(self, mask):
        mask = torch.tensor(mask)
        view = attention_view(model(), TOKENS, attention_mask=mask[None], str_tokens=list("abcde"))
        assert view.str_tokens == tuple(c for c, real in zip("abcde", mask, strict=True) if real)
        assert view.causal
        torch.testing.assert_close(view.patterns.sum(-1), torch.ones(6, 3))

    def test_leaves_the_model_as_it_was(self):
        ours = model().train()
        state = torch.get_rng_state()
        attention_view(ours, TOKENS)
        assert ours.training
        assert torch.equal(torch.get_rng_state(), state)
        assert not any(hook.fwd_hooks for hook in ours.hook_dict.values())

    def test_a_text_goes_through_the_tokenizer(self):
        class Tokenizer:
            def batch_decode(self, ids, clean_up_tokenization_spaces):
                assert not clean_up_tokenization_spaces
                return ["ab cdefgh\n"[i] for (i,) in ids]

            def __call__(self, text, return_tensors):
                return {"input_ids": torch.tensor([["ab cdefgh\n".index(c) for c in text]])}

        view = attention_view(Wrapped(model(), tokenizer=Tokenizer()), "ab cd")
        assert view.str_tokens == ("a", "b", " ", "c", "d")

    @pytest.mark.usefixtures("without_type_checks")
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
            ({"layers": 4}, r"no layer 4 for attention_pattern\(\) in this model \(it has layers 1-3\)"),
            ({"heads": 2}, r"no head 2 in layer 1 \(it has heads 0-1\)"),
            ({"heads": []}, "heads is empty"),
            ({"str_tokens": ["a"]}, "str_tokens has 1 strings for 5 token ids; expected one per position"),
            ({"attention_mask": torch.zeros(5, dtype=torch.bool)}, "has length 5 and 0 real tokens for 5 token ids"),
            ({"attention_mask": torch.ones(4, dtype=torch.bool)}, "has length 4 and 4 real tokens for 5 token ids"),
        ],
    )
    def test_refusals(self, arguments, message):
        with pytest.raises(InputError, match=message):
            attention_view(model(), **{"tokens": TOKENS, **arguments})

    def test_too_large_is_refused_before_the_model_runs(self):
        ours = model()
        ours.forward = None
        with pytest.raises(
            InputError, match=r"^attention of 6 heads over 1000 tokens makes a page of at least 13\.\d MB"
        ):
            attention_view(ours, torch.zeros(1000, dtype=torch.int64))


class TestFromPatterns:
    @pytest.mark.parametrize("shape", [(2, 2), (1, 2, 3), (2, 2, 2), (1, 3, 3), (1, 1, 2, 2)])
    def test_shapes_must_fit(self, shape):
        with pytest.raises(InputError) as error:
            attention_view_from_patterns(torch.zeros(shape), ["a", "b"], ["L1H0"], causal=False)
        assert str(error.value) == (
            f"patterns has shape {shape}; expected [head query key] = (1, 2, 2) for 1 name and 2 tokens; "
            "pass one sequence, and a name for each head"
        )

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -3.0, 1.1])
    def test_values_must_be_weights(self, value):
        patterns = torch.eye(2)[None].clone()
        patterns[0, 1, 0] = value
        with pytest.raises(InputError, match=r"expected attention weights from -1 to 1; give the probabilities"):
            attention_view_from_patterns(patterns, ["a", "b"], ["L1H0"], causal=True)

    def test_a_causal_view_would_hide_weights(self):
        with pytest.raises(InputError, match="causal is True, but weights above the diagonal are not all 0"):
            attention_view_from_patterns(torch.full((1, 2, 2), 0.5), ["a", "b"], ["L1H0"], causal=True)

    def test_the_size_cap_names_the_number_and_the_way_out(self):
        patterns = torch.rand(2, 50, 50)
        view = attention_view_from_patterns(patterns, ["token"] * 50, ["a", "b"], causal=False)
        size = len(view.page().encode())
        attention_view_from_patterns(patterns, ["token"] * 50, ["a", "b"], causal=False, max_bytes=size)
        with pytest.raises(InputError) as error:
            attention_view_from_patterns(patterns, ["token"] * 50, ["a", "b"], causal=False, max_bytes=size - 1)
        assert str(error.value) == (
            "attention of 2 heads over 50 tokens makes a page of 1.3 MB, 1.3 MB of it JavaScript, "
            f"and max_bytes is {size - 1:,}; choose fewer layers, heads or tokens, or raise max_bytes"
        )

    def test_long_tokens_count_too(self):
        with pytest.raises(InputError, match=r"over 2 tokens makes a page of 3\.3 MB"):
            view_of(["a" * 2_000_000, "b"])

    def test_twelve_heads_over_128_tokens_fit(self):
        patterns = torch.softmax(torch.randn(12, 128, 128, generator=torch.Generator().manual_seed(0)), dim=-1)
        names = [f"L1H{h}" for h in range(12)]
        view = attention_view_from_patterns(patterns, [" token"] * 128, names, causal=False)
        assert len(view.page().encode()) < 3_000_000

    def test_weights_arrive_as_thousandths(self):
        patterns = torch.tensor([[[1.0, 0.0], [0.1234, -0.8766]]])
        view = attention_view_from_patterns(patterns, ["a", "b"], ["difference"], causal=True)
        assert props_of(view.fragment())["attention"] == [[[1000, 0], [123, -877]]]


class TestHtml:
    def test_a_token_cannot_leave_the_script(self):
        view = view_of([HOSTILE, "<!--<script>", "a'\"&`${1}\u2028"], names=(HOSTILE,))
        for html in (view.fragment(), view.page(title=HOSTILE), view._repr_html_()):
            ours = html.replace(view.fragment().split("<script>")[1].split("</script>")[0], "")  # without the bundle
            assert "<img" not in ours
            assert "<!--" not in ours
            assert html.count("</script>") == 2
            assert props_of(html)["tokens"][1:] == ["<!--<script>", "a'\"&`${1}\\u2028"]

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
        view = view_of([token])
        assert view.str_tokens == (token,)
        assert props_of(view.page())["tokens"] == [shown]
        view.page().encode()

    def test_nothing_is_loaded_from_anywhere(self):
        page = view_of(["a"]).page()
        assert "unpkg" not in page
        assert "sourceMappingURL" not in page
        assert not re.search(r"<(link|img|iframe)|<script[^>]+src=|\bimport\b[^;]{0,80}https?:", page)
        assert "default-src 'none'" in page

    def test_never_asks_whether_there_is_a_network(self, monkeypatch):
        def refuse(*args, **kwargs):
            raise AssertionError("tried to reach the network")

        monkeypatch.setattr("urllib.request.urlopen", refuse)
        monkeypatch.setattr("socket.socket.connect", refuse)
        view = view_of(["a"])
        assert "CircuitsVis.AttentionHeads" in view._repr_html_()

    def test_the_javascript_can_be_left_out(self):
        view = view_of(["a", "b"])
        assert len(view.fragment(include_js=False)) < 2_000 < 1_000_000 < len(view.fragment())
        assert view.fragment().count("<div") == view.fragment().count("</div>")

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

    def test_repr_is_one_line(self):
        assert repr(view_of(["a", "\n"])) == "AttentionView(1 head (L1H0), 2 tokens, causal)"
        assert isinstance(view_of(["a"]), AttentionView)

    def test_another_circuitsvis_is_refused_by_name(self, monkeypatch):
        import circuitsvis.attention

        from mechclust.views import attention

        monkeypatch.setattr(attention, "_bundle", attention._bundle.__wrapped__)
        drawn = type("Drawn", (), {"local_src": "<canvas>"})()
        monkeypatch.setattr(circuitsvis.attention, "attention_heads", lambda *args: drawn)
        with pytest.raises(RuntimeError, match=r"install circuitsvis==1\.43\.3"):
            view_of(["a"])
