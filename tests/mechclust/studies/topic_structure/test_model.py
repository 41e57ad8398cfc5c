"""The one-layer transformer of the topic study: its equations, its modes, and its traps."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest
import torch

from mechclust.models.weights import get_weights
from probes import TopicAttention, TopicEmbedding, attention_pattern, embedding, run
from probes.engine.hooked_model import forward
from probes.engine.sites import resolve
from tasks import Batch
from tests.mechclust.studies.topic_structure.topic_models import TASK, D, built, shaken

ALL = [
    {"embedding": e, "attention": a, "value": v, "decoder": d, "bias": b}
    for e, a, v, d, b in product(
        ("trained", "one-hot"),
        ("trained", "uniform"),
        ("trained", "identity", "fixed"),
        ("tied", "free", "identity"),
        (True, False),
    )
]


def record(model, batch):
    """Logits, and what every hook saw, in the order of firing."""
    kept = {}
    hooks = [(name, lambda x, hook, name=name: kept.update({name: x.clone()})) for name in model.hook_dict]
    with torch.no_grad(), model.hooks(fwd_hooks=hooks):
        return forward(model, batch), kept


def paper_logits(model, tokens):
    """Spec 3's formula, a document at a time, in the paper's orientation: columns are positions.

    ``f(Z) = W_pred (W_V Z) softmax_col((W_K Z)^T (W_Q Z) / sqrt(d_a)) + b_pred``, ``Z = W_E X``.
    Returns logits ``[d_vocab L]`` and the attention ``sigma(A)`` ``[key query]``.
    """
    w = {k.rsplit(".", 1)[-1]: v.T if v.ndim == 2 else v for k, v in get_weights(model).items()}
    x = torch.nn.functional.one_hot(tokens, model.config.d_vocab).to(w["W_V"].dtype).T
    z = w["W_E"] @ x
    a = (w["W_K"] @ z).T @ (w["W_Q"] @ z) / math.sqrt(model.config.width)
    sigma = a.exp() / a.exp().sum(dim=0, keepdim=True)
    pred = {"tied": w["W_E"].T, "identity": torch.eye(len(x), dtype=z.dtype)}.get(model.config.decoder, w.get("W_U"))
    return pred @ (w["W_V"] @ z) @ sigma + w["b_U"][:, None], sigma


@pytest.fixture(scope="module")
def documents():
    return next(TASK.batches("dev", 12))


# ---- equations ----


class TestForward:
    @pytest.mark.parametrize(
        "fields",
        [
            {**ALL[0]},
            {**ALL[-2]},
            {"decoder": "free"},
            {"embedding": "one-hot"},
            {"d_model": 5},
            {"d_model": 40, "decoder": "free", "value": "identity"},
        ],
        ids=str,
    )
    def test_is_the_papers_formula(self, fields, documents):
        """O6: our pattern is the transpose of the paper's column softmax."""
        model = shaken(built(**fields)).double()
        logits, kept = record(model, documents)
        for i, n in enumerate(documents.lengths().tolist()):
            expected, sigma = paper_logits(model, documents.tokens[i, :n])
            torch.testing.assert_close(logits[i, :n], expected.T, rtol=1e-9, atol=1e-9)
            pattern = kept["blocks.0.attn.hook_pattern"][i, 0, :n]
            torch.testing.assert_close(pattern[:, :n], sigma.T, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(sigma.sum(dim=0), torch.ones(n, dtype=torch.float64))
            assert not bool(pattern[:, n:].any())  # padding is hidden
        symmetric = torch.allclose(sigma, sigma.T, atol=1e-3)  # where it is not, the orientation shows
        assert symmetric == (model.config.attention == "uniform")

    def test_padding_changes_nothing(self, documents):
        model = shaken(built()).double()
        logits = forward(model, documents).detach()
        shortest = int(documents.lengths().argmin())
        n = int(documents.lengths()[shortest])
        assert n < documents.tokens.shape[1]
        alone = model(documents.tokens[shortest : shortest + 1, :n])[0].detach()
        torch.testing.assert_close(logits[shortest, :n], alone)
        for mask in (documents.attention_mask, documents.attention_mask.long(), documents.attention_mask.float()):
            assert torch.equal(model(documents.tokens, attention_mask=mask), logits)
        assert not torch.allclose(model(documents.tokens)[shortest, :n], alone, atol=1e-3)

    def test_masked_tokens_are_seen(self):
        """Hiding them would turn the gap of O1 into 1 / v."""
        tokens = torch.tensor([[2, 5, 1, 7, 3]])
        _, kept = record(shaken(built()), Batch(tokens))
        assert bool((kept["blocks.0.attn.hook_pattern"][0, 0, :, 2] > 0.01).all())
        uniform = record(built(attention="uniform", embedding="one-hot", value="identity"), Batch(tokens))[0]
        assert float(uniform[0, 1, 1]) == pytest.approx(0.2)

    @pytest.mark.parametrize("fields", [f for f in ALL if f["attention"] == "uniform"][::11], ids=str)
    def test_uniform_attention_is_one_over_the_length(self, fields, documents):
        """O5."""
        pattern = record(shaken(built(**fields)), documents)[1]["blocks.0.attn.hook_pattern"]
        for i, n in enumerate(documents.lengths().tolist()):
            torch.testing.assert_close(pattern[i, 0, :, :n], torch.full((pattern.shape[2], n), 1 / n))

    def test_a_one_hot_input_is_exactly_that(self, documents):
        """No LayerNorm, no type embedding, nothing drawn on top."""
        kept = record(shaken(built(embedding="one-hot")), documents)[1]
        expected = torch.nn.functional.one_hot(documents.tokens, D).float()
        for name in ("hook_embed", "blocks.0.hook_resid_pre"):
            assert torch.equal(kept[name], expected)

    @pytest.mark.parametrize("embedding", ["one-hot", "trained"])
    def test_a_normalised_input_has_a_vector_added_and_no_mean(self, embedding, documents):
        model = shaken(built(embedding=embedding, input="normalised"))
        added, found = model.embed.W_type.detach(), record(model, documents)[1]["hook_embed"]
        assert float(added.norm()) > 0.01
        rows = (model.embed.W_E.detach() + added)[documents.tokens]
        centred = rows - rows.mean(dim=-1, keepdim=True)
        scaled = centred / (rows.var(dim=-1, correction=0, keepdim=True) + 1e-5).sqrt()
        expected = scaled * model.embed.ln.weight.detach() + model.embed.ln.bias.detach()
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        assert all(weight.requires_grad for weight in (model.embed.W_type, *model.embed.ln.parameters()))

    def test_queries_keys_and_values_have_biases_as_in_the_public_code(self, documents):
        model = shaken(built(attention_bias=True))
        attn, kept = model.blocks[0].attn, record(model, documents)[1]
        for part in "QKV":
            expected = kept["blocks.0.hook_resid_pre"] @ getattr(attn, f"W_{part}") + getattr(attn, f"b_{part}")
            found = kept[f"blocks.0.attn.hook_{part.lower()}"][:, :, 0]
            torch.testing.assert_close(found, expected.detach(), rtol=1e-4, atol=1e-5)
            assert 0.05 < float(getattr(built(attention_bias=True).blocks[0].attn, f"b_{part}").detach().std()) < 1

    def test_attention_between_tokens_is_that_of_the_pattern(self, documents):
        model = shaken(built())
        sums, pairs = model.attention_between_tokens(documents)
        pattern = record(model, documents)[1]["blocks.0.attn.hook_pattern"][:, 0]
        expected = torch.zeros(2, D, D, dtype=torch.float64)
        for tokens, of_document, n in zip(documents.tokens, pattern, documents.lengths().tolist(), strict=True):
            for query, key in product(range(n), range(n)):
                expected[0, tokens[query], tokens[key]] += of_document[query, key]
                expected[1, tokens[query], tokens[key]] += 1
        torch.testing.assert_close(sums, expected[0], rtol=1e-4, atol=1e-5)
        assert torch.equal(pairs, expected[1])


class TestHooks:
    def test_fire_once_in_order_with_their_shapes(self, documents):
        batch, pos = documents.tokens.shape
        model = built(d_model=7)
        state, heads, square = (batch, pos, 7), (batch, pos, 1, 7), (batch, 1, pos, pos)
        expected = {
            "hook_embed": state,
            "blocks.0.hook_resid_pre": state,
            **{f"blocks.0.attn.hook_{k}": heads for k in "qkv"},
            "blocks.0.attn.hook_attn_scores": square,
            "blocks.0.attn.hook_pattern": square,
            "blocks.0.attn.hook_z": heads,
            "blocks.0.hook_attn_out": state,
            "blocks.0.hook_resid_post": state,
        }
        logits, kept = record(model, documents)
        assert [(k, tuple(v.shape)) for k, v in kept.items()] == list(expected.items())
        assert set(model.hook_dict) == set(expected)
        assert logits.shape == (batch, pos, D)
        assert [s.layer for s in resolve(model, [embedding(), attention_pattern()])] == [0, 0]

    @pytest.mark.parametrize(
        "name", ["hook_embed", "blocks.0.attn.hook_pattern", "blocks.0.attn.hook_v", "blocks.0.hook_resid_post"]
    )
    def test_can_change_the_forward_pass(self, name, documents):
        model = shaken(built(bias=False))
        with torch.no_grad(), model.hooks(fwd_hooks=[(name, lambda x, hook: torch.zeros_like(x))]):
            assert not bool(forward(model, documents).any())
        assert bool(forward(model, documents).any())

    def test_probes_measure_it(self, documents):
        model = shaken(built())
        attention, vectors = run(
            model, documents, [TopicAttention(TASK.token_topics), TopicEmbedding(TASK.token_topics)]
        )
        assert attention.coords["site"] == ["blocks.0.attn.hook_pattern"]
        assert attention["mean"].shape == (1, 1, 3)
        seen = [w for w in range(4, D) if bool((documents.tokens == w).any())]
        rows = model.embed.W_E.detach().double()[seen]
        dots, same = rows @ rows.T, TASK.token_topics[seen][:, None] == TASK.token_topics[seen]
        expected = dots[same & ~torch.eye(len(seen), dtype=torch.bool)].mean()
        torch.testing.assert_close(vectors["mean"][0, 1, 0], expected)


# ---- gradients ----


class TestGradients:
    @pytest.mark.parametrize("objective", ["cross-entropy", "squared"])
    @pytest.mark.parametrize(("zero", "other"), [("W_Q", "W_K"), ("W_K", "W_Q")])
    def test_keys_and_queries_wait_for_each_other(self, zero, other, objective, documents):
        """O4: exactly 0 where the other is 0, while the value matrix moves."""
        task, model = replace(TASK, objective=objective), shaken(built())
        attn = model.blocks[0].attn
        with torch.no_grad():
            getattr(attn, zero).zero_()
        for logits_loss in (
            lambda: task.loss(forward(model, documents), documents),
            lambda: task.loss_at(model.logits_at_loss(documents), documents.targets[documents.loss_mask]),
        ):
            model.zero_grad()
            logits_loss().backward()
            assert not bool(getattr(attn, other).grad.any())
            assert bool(getattr(attn, zero).grad.any())
            assert float(attn.W_V.grad.norm()) > 1e-3

    def test_both_at_zero_stay_there(self, documents):
        model = shaken(built())
        attn = model.blocks[0].attn
        with torch.no_grad():
            attn.W_Q.zero_()
            attn.W_K.zero_()
        TASK.loss(forward(model, documents), documents).backward()
        assert not bool(attn.W_Q.grad.any() or attn.W_K.grad.any())
        assert bool(attn.W_V.grad.any())


class TestLogitsAtLoss:
    @pytest.mark.parametrize("fields", ALL[::5], ids=lambda f: "-".join(map(str, f.values())))  # every pair of modes
    def test_are_those_of_the_forward_pass(self, fields, documents):
        model = shaken(built(**fields)).double()
        masks = documents.loss_mask, documents.attention_mask
        assert bool((~masks[1]).any())  # there is padding
        unpadded = Batch(documents.tokens, targets=documents.targets, loss_mask=documents.loss_mask)
        for batch in (documents, unpadded):
            found, grads = [], []
            full = forward(model, batch)
            for logits in (full[batch.loss_mask], model.logits_at_loss(batch)):
                model.zero_grad()
                if any(p.requires_grad for p in model.parameters()):
                    TASK.loss_at(logits, batch.targets[batch.loss_mask]).backward()
                found.append(logits.detach())
                grads.append({k: p.grad for k, p in model.named_parameters() if p.requires_grad})
            torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-12)
            for name, grad in grads[0].items():
                torch.testing.assert_close(grads[1][name], grad, rtol=0, atol=1e-12, msg=name)
            assert float(found[0].std()) > 1e-3

    @pytest.mark.parametrize(
        "fields",
        [
            {"d_model": 6},
            {"d_model": 30, "decoder": "free"},
            {"input": "normalised"},
            {"embedding": "one-hot", "input": "normalised", "attention_bias": True},
            {"embedding": "one-hot", "attention_bias": True},
        ],
        ids=str,
    )
    def test_at_other_widths_and_inputs(self, fields, documents):
        model = shaken(built(**fields)).double()
        expected = forward(model, documents)[documents.loss_mask]
        torch.testing.assert_close(model.logits_at_loss(documents), expected, rtol=0, atol=1e-11)
