"""The logit lens: against hidden states, norm and head of plain Hugging Face, every exchange one by one, and a planted
answer."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from probes import LogitLens, all_tokens, embedding, head_output, mean, residual, run
from probes.extend import check_probe
from probes.functional import answer_scores
from tasks import Batch, InputError


@pytest.fixture(scope="module")
def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(3)
    shape = {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 8, "initializer_range": 0.5}
    return GPT2LMHeadModel(GPT2Config(vocab_size=23, **shape)).eval()


@pytest.fixture(scope="module")
def hooked(gpt2: Any) -> Any:
    from mechclust import load_pretrained

    return load_pretrained(gpt2)


@pytest.fixture(scope="module")
def examples() -> Batch:
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 23, (9, 6), generator=draw)
    answers = torch.tensor([4, 4, 7, 1, 7, 7, 2, 4, 22])
    lengths = torch.tensor([6, 4, 6, 3, 5, 6, 2, 6, 4])
    return Batch(
        tokens, attention_mask=torch.arange(6) < lengths[:, None], labels={"answer": answers, "class": answers % 3}
    )


def by_hand(gpt2: Any, batch: Batch) -> np.ndarray:
    """``[layer example d_vocab]`` probabilities at the last token, from Hugging Face's own blocks, norm and head."""
    body, kept = gpt2.transformer, list[torch.Tensor]()

    def keep(module: Any, inputs: Any, output: Any) -> None:
        kept.append(output[0] if isinstance(output, tuple) else output)

    handles = [block.register_forward_hook(keep) for block in body.h]
    found = []
    with torch.no_grad():
        for tokens, length in zip(batch.tokens, batch.lengths(), strict=True):
            kept.clear()
            gpt2(tokens[None, :length])
            states = [body.wte(tokens[None, :length]), *kept]
            found.append([gpt2.lm_head(body.ln_f(x))[0, -1].double().softmax(0).numpy() for x in states])
    for handle in handles:
        handle.remove()
    return np.array(found).transpose(1, 0, 2)


def test_it_is_hugging_faces_norm_and_head_at_every_layer(gpt2: Any, hooked: Any, examples: Batch) -> None:
    result = run(hooked, examples, LogitLens("answer"))
    p = by_hand(gpt2, examples)
    answers, n = examples.labels["answer"].numpy(), len(examples)
    own = p[:, np.arange(n), answers]
    ranks = np.array([[stats.rankdata(-row)[a] for row, a in zip(layer, answers, strict=True)] for layer in p])
    right = p.argmax(-1) == answers
    np.testing.assert_allclose(result["probability"], own.mean(1), rtol=1e-5)
    np.testing.assert_array_equal(result["rank"], np.median(ranks, axis=1))
    np.testing.assert_allclose(result["top"], right.mean(1))
    interval = stats.t.interval(0.95, n - 1, own.mean(1), stats.sem(own, axis=1))
    np.testing.assert_allclose([result["probability_low"], result["probability_high"]], interval, rtol=1e-4)
    others = [
        [(p[layer, j, answers[i]], right_of(p, layer, j, answers[i])) for i in range(n) for j in range(n) if i != j]
        for layer in range(3)
    ]
    np.testing.assert_allclose(
        result["probability_chance"], [np.mean([x for x, _ in each]) for each in others], rtol=1e-5
    )
    np.testing.assert_allclose(result["top_chance"], [np.mean([x for _, x in each]) for each in others])
    assert float(result["rank_chance"]) == 12
    assert (result.metadata["n"], result.metadata["answers"], result.layers["hook_embed"]) == (9, 5, 0)


def right_of(p: np.ndarray, layer: int, j: int, answer: int) -> bool:
    return bool(p[layer, j].argmax() == answer)


def test_the_median_ranks_interval_covers_it_as_often_as_it_says() -> None:
    from probes.logit_lens import _median_interval

    rng = np.random.default_rng(0)
    for n in (6, 15, 60):
        draws = (_median_interval(torch.from_numpy(rng.normal(size=n))) for _ in range(800))
        share = np.mean([low <= 0 <= high for low, high in draws])
        assert 0.93 < share <= 1, (n, share)
    assert all(math.isnan(end) for end in _median_interval(torch.arange(5.0)))


def test_without_a_label_the_answer_is_the_models_own(gpt2: Any, hooked: Any, examples: Batch) -> None:
    result = run(hooked, examples, LogitLens(at=embedding()))
    p = by_hand(gpt2, examples)
    own = p[[0, 2]][:, np.arange(9), p[2].argmax(-1)]
    assert result.coords["site"] == ["hook_embed", "blocks.1.hook_resid_post"]
    np.testing.assert_allclose(result["probability"], own.mean(1), rtol=1e-5)
    assert (float(result["rank"][1]), float(result["top"][1])) == (1, 1)


@pytest.mark.parametrize("site", ["blocks.1.hook_resid_pre", "blocks.1.hook_resid_mid", "unembed.hook_in"])
def test_the_models_own_answer_is_that_of_its_last_block(hooked: Any, examples: Batch, site: str) -> None:
    result = run(hooked, examples, LogitLens(at=[site]))
    whole = run(hooked, examples, LogitLens(at=[site, residual(0), residual(-1)]))
    assert result.coords["site"] == [site, "blocks.1.hook_resid_post"]
    assert torch.equal(result["probability"], whole["probability"][[0, 2]])
    assert float(result["top"][1]) == 1
    if site == "blocks.1.hook_resid_pre":  # the same tensor as layer 1
        assert torch.equal(result["top"][0], run(hooked, examples, LogitLens(at=residual(1)))["top"][0])
        assert float(result["top"][0]) < 1


def test_means_over_tokens_in_half_precision() -> None:
    from mechclust import ModelConfig, build_model

    model = build_model(ModelConfig(d_vocab=13, n_ctx=6, n_layers=1, d_model=8, n_heads=2)).to(torch.bfloat16)
    batch = Batch(torch.arange(12).view(2, 6), torch.tensor([[True] * 6, [True] * 4 + [False] * 2]))
    assert bool(run(model, batch, LogitLens(readout=mean()))["probability"].isfinite().all())


def test_behind_the_final_norm_it_is_not_applied_again(hooked: Any, examples: Batch) -> None:
    result = run(hooked, examples, LogitLens("answer", at=residual(-1, final_norm=True)))
    assert result.coords["site"] == ["blocks.1.hook_resid_post", "unembed.hook_in"]
    torch.testing.assert_close(*result["probability"], rtol=1e-5, atol=0)


def test_classes_have_tokens(hooked: Any, examples: Batch) -> None:
    tokens = [5, 9, 11]
    direct = Batch(
        examples.tokens, examples.attention_mask, labels={"answer": torch.tensor(tokens)[examples.labels["class"]]}
    )
    expected = run(hooked, direct, LogitLens("answer"))
    assert torch.equal(run(hooked, examples, LogitLens("class", tokens))["rank"], expected["rank"])


def test_a_planted_answer_is_found_at_its_layer_and_a_random_one_is_at_chance(gpt2: Any, hooked: Any) -> None:
    """The model's own answers at layer 1, given as labels; and the same answers in another order."""
    draw = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, 23, (60, 5), generator=draw)
    top = torch.from_numpy(by_hand(gpt2, Batch(tokens))[1].argmax(-1))
    shuffled = top[torch.randperm(60, generator=draw)]
    batch = Batch(tokens, labels={"planted": top, "shuffled": shuffled})
    planted, random = run(hooked, batch, [LogitLens("planted"), LogitLens("shuffled")])
    assert float(planted["top"][1]) == 1 > float(planted["top_chance"][1]) + 0.3
    assert float(planted["rank"][1]) == 1
    chance = random["probability_chance"]
    assert bool(((random["probability_low"] < chance) & (chance < random["probability_high"])).all())
    assert bool((planted["probability_low"] > planted["probability_chance"])[1])


def test_soft_caps_are_applied() -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    from mechclust import load_pretrained

    torch.manual_seed(0)
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = Gemma2Config(
        vocab_size=20, head_dim=4, intermediate_size=16, final_logit_softcapping=0.1, initializer_range=1.0, **shape
    )
    plain = Gemma2ForCausalLM(config).eval()
    tokens = torch.tensor([[1, 5, 3], [2, 2, 9]])
    with torch.no_grad():
        theirs = plain(tokens).logits[:, -1].double().softmax(-1)
    batch = Batch(tokens, labels={"answer": torch.tensor([4, 4])})
    result = run(load_pretrained(plain), batch, LogitLens("answer"))
    assert float(result["probability"][-1]) == pytest.approx(float(theirs[:, 4].mean()), rel=1e-5)
    assert "all examples have one answer" in result.notes[-1]


def test_the_contract(model: Any, batch: Batch) -> None:
    check_probe(LogitLens(), model, batch)
    check_probe(LogitLens("task", tokens=[3, 1, 4, 5], at=[residual(0), residual(final_norm=True)]), model, batch)


def test_equal_logits_share_their_rank() -> None:
    scores = answer_scores(torch.zeros(1, 9), torch.tensor([0]))
    assert (scores.rank.tolist(), scores.probability.tolist()) == ([5], [pytest.approx(1 / 9)])


def test_one_example_has_notes_and_no_numbers_of_others(hooked: Any) -> None:
    result = run(hooked, torch.tensor([[1, 2, 3]]), LogitLens())
    for measure in ("probability_low", "probability_chance", "top_chance", "rank_low"):
        assert bool(result[measure].isnan().all()), measure
    assert len(result.notes) == 2


def refused(text: str) -> Any:
    return pytest.raises(InputError, match=re.escape(text))


def test_what_it_refuses(hooked: Any, examples: Batch) -> None:
    from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

    from mechclust import load_pretrained

    with refused("readout all_tokens() keeps every position; choose last_token()"):
        LogitLens(readout=all_tokens())
    with refused("tokens was given without answer; give the label whose classes they are the tokens of"):
        LogitLens(tokens=[1, 2])
    with refused("'blocks.0.attn.hook_z' is not in the residual stream; give at=residual()"):
        run(hooked, examples, LogitLens(at=head_output()))
    with refused("label 'answer' has the class 4, but tokens has 2 token ids; give one per class"):
        run(hooked, examples, LogitLens("answer", [0, 1]))
    many = Batch(examples.tokens, labels={"answer": torch.full((9,), 40)})
    with refused("the answer 40 is not a token id (ids are 0 to 22); give token ids"):
        run(hooked, many, LogitLens("answer"))
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    bert = load_pretrained(BertForMaskedLM(BertConfig(vocab_size=23, **small)).eval())
    with refused("are not its final norm and unembedding applied to the last block's output"):
        run(bert, examples, LogitLens())
    plain = GPT2LMHeadModel(GPT2Config(vocab_size=23, n_embd=8, n_layer=1, n_head=2)).eval()
    with refused("a ReadOnlyModel computes no logits, so it has no logit lens; give a causal language model"):
        run(load_pretrained(plain, attention="sdpa"), examples, LogitLens())
    with refused("LogitLens measures one model at a time, but was given 2"):
        run({"a": hooked, "b": hooked}, examples, LogitLens())
