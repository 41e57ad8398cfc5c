"""Loss and exact matches, against one forward pass per example and against greedy decoding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from mechclust.models.instruction_format import FormattedExample
from mechclust.training.tuning import score_answers
from mechclust.training.tuning.answers import IGNORED, answer_collator, check_answers_fit, padded_answers
from tasks import InputError
from tests.mechclust.training.tuning.small import FAMILIES, examples, language_model


def greedy(model: Any, prompt: list[int], n: int) -> list[int]:
    """What Hugging Face's own decoding gives."""
    tokens = torch.tensor([prompt])
    options = {"do_sample": False, "max_new_tokens": n, "min_new_tokens": n, "pad_token_id": 0, "eos_token_id": None}
    return model.generate(tokens, attention_mask=torch.ones_like(tokens), **options)[0, len(prompt) :].tolist()


def decodable(model: Any) -> list[FormattedExample]:
    """Of every two answers one is what the model decodes, the other is that with one token changed."""
    model.eval()
    found = []
    for i, example in enumerate(examples(12)):
        prompt = example.tokens[: example.start]
        answer = greedy(model, prompt, len(example.tokens) - example.start)
        if i % 2:
            answer[i % len(answer)] = (answer[i % len(answer)] + 1) % 40
        found.append(FormattedExample([*prompt, *answer], len(prompt)))
    model.train()
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_against_single_forward_passes_and_decoding(family: str) -> None:
    """Padding, batches and dropout, which GPT-2 has, change nothing."""
    model = language_model(family)
    given = decodable(model)
    assert len({len(example.tokens) for example in given}) > 3
    assert model.training
    assert "logits_to_keep" in answer_collator(model)(given)
    found = score_answers(model, given, tokens_per_batch=40)
    assert model.training
    model.eval()
    for i, example in enumerate(given):
        with torch.no_grad():
            logits = model(torch.tensor([example.tokens])).logits[0].double()
        places = torch.arange(example.start, len(example.tokens))
        own = -logits.log_softmax(-1)[places - 1, torch.tensor(example.tokens)[places]].mean()
        assert float(found.loss[i]) == pytest.approx(float(own), abs=2e-6)
        answer = example.tokens[example.start :]
        assert bool(found.exact[i]) == (greedy(model, example.tokens[: example.start], len(answer)) == answer)
    assert found.exact.tolist() == [i % 2 == 0 for i in range(12)]
    assert found.loss.dtype == torch.float64


def test_of_no_examples() -> None:
    found = score_answers(language_model(), [])
    assert found.loss.shape == found.exact.shape == (0,)


class Simple(transformers.LlamaForCausalLM):
    """Its forward pass gives logits of all places, as that of models with their own code may."""

    def forward(self, input_ids: Any, attention_mask: Any = None, labels: Any = None, **kwargs: Any) -> Any:
        assert "logits_to_keep" not in kwargs
        return super().forward(input_ids, attention_mask=attention_mask, labels=labels, **kwargs)


def test_models_that_take_no_logits_to_keep() -> None:
    model = language_model()
    simple = Simple(model.config)
    simple.load_state_dict(model.state_dict())
    given = examples()
    assert "logits_to_keep" in answer_collator(model)(given)
    assert "logits_to_keep" not in answer_collator(simple)(given)
    few, every = score_answers(model, given), score_answers(simple, given)
    torch.testing.assert_close(few.loss, every.loss, atol=1e-6, rtol=0)
    assert torch.equal(few.exact, every.exact)


SMALL = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
SMALL |= {"num_key_value_heads": 1, "pad_token_id": 0}
READ_LEFT_PADDING = {
    "RecurrentGemmaForCausalLM": {**SMALL, "attention_window_size": 8, "lru_width": 16},
    "Lfm2ForCausalLM": {**SMALL, "conv_bias": True, "layer_types": ["conv", "full_attention", "conv"]},
}


@pytest.mark.parametrize("name", READ_LEFT_PADDING)
def test_models_that_read_masked_padding_on_the_left(name: str) -> None:
    kind = getattr(transformers, name)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(3)
        model = kind(kind.config_class(**READ_LEFT_PADDING[name]))
        for weight in model.parameters():
            weight.normal_(0, 0.3)
    given = examples()
    assert "logits_to_keep" not in answer_collator(model)(given)
    together = score_answers(model, given).loss
    one_by_one = torch.cat([score_answers(model, [example]).loss for example in given])
    torch.testing.assert_close(together, one_by_one, atol=1e-5, rtol=0)


def test_only_wanted_logits_are_computed_also_behind_peft() -> None:
    import peft

    model = peft.get_peft_model(language_model(), peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    given = [FormattedExample([1, 2, 3, 4, 5, 6], 4), FormattedExample([1, 2, 3, 4, 5], 4)]
    seen = []
    model.get_base_model().lm_head.register_forward_hook(lambda module, args, out: seen.append(tuple(out.shape)))
    found = score_answers(model, given)
    assert seen[-1] == (2, 3, 40)  # from the last token of the prompt on
    model.eval()
    with torch.no_grad():
        logits = model(torch.tensor([given[1].tokens])).logits[0]
    assert float(found.loss[1]) == pytest.approx(float(-logits.log_softmax(-1)[3, 5]), abs=2e-6)


def test_a_padded_batch_is_what_it_says() -> None:
    given = [FormattedExample([5, 6, 7, 8], 3), FormattedExample([9, 1], 1)]
    batch = padded_answers(given)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8], [0, 0, 9, 1]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [0, 0, 1, 1]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3], [0, 0, 0, 1]]
    assert batch["labels"].tolist() == [[IGNORED, 8], [IGNORED, 1]]  # whatever the prompts' lengths
    assert batch["logits_to_keep"].tolist() == [2, 3]
    whole = padded_answers(given, all_logits=True)
    assert whole["input_ids"].tolist() == [[5, 6, 7, 8], [9, 1, 0, 0]]
    assert whole["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert whole["labels"].tolist() == [[IGNORED, IGNORED, IGNORED, 8], [IGNORED, 1, IGNORED, IGNORED]]
    assert whole.keys() == {"input_ids", "attention_mask", "labels"}


def test_a_model_without_a_limit_of_its_own_reads_every_length() -> None:
    config = transformers.BloomConfig(vocab_size=40, hidden_size=8, n_layer=1, n_head=2)
    check_answers_fit(transformers.BloomForCausalLM(config), [FormattedExample(list(range(30)), 4)], "the answers")


def test_what_a_model_cannot_read() -> None:
    model = language_model(max_position_embeddings=8)
    with pytest.raises(InputError) as refused:
        score_answers(model, [FormattedExample(list(range(9)), 4), FormattedExample([1, 2], 1)])
    assert str(refused.value) == (
        "an example of the answers has 9 tokens with its answer, but the model takes 8; give --cutoff 8"
    )
    with pytest.raises(InputError) as refused:
        score_answers(model, [FormattedExample([1, 2], 1), FormattedExample([3, 40], 1)])
    assert str(refused.value) == (
        "an example of the answers has the token 40, but the model's vocabulary has 40 tokens; give the "
        "tokenizer of this "
        "model"
    )
    with pytest.raises(InputError, match="fewer than the 5 tokens of example 2; give at least 5"):
        score_answers(model, [FormattedExample([1, 2], 1), FormattedExample([1, 2, 3, 4, 5], 2)], tokens_per_batch=4)
