"""Special tokens around a text, also where its words look like them."""

from __future__ import annotations

import pytest

from tasks.text.text_encoder import text_encoder_special_tokens


@pytest.mark.parametrize(
    ("template", "unknown", "around"),
    [
        ("<s> $A </s>", "</s>", ([0], [1])),
        ("<s> $A </s>", "<s>", ([0], [1])),
        ("<s> $A", "<s>", ([0], [])),
        ("$A </s>", "</s>", ([], [1])),
        ("$A", "<s>", ([], [])),
    ],
)
def test_an_unknown_word_is_not_taken_for_a_special_token(template, unknown, around):
    assert text_encoder_special_tokens(_tokenizer(template, unknown)) == around


def test_a_text_without_tokens():
    assert text_encoder_special_tokens(_tokenizer("<s> $A", None), "") == ([0], [])
    assert text_encoder_special_tokens(_tokenizer("<s> $A", None), "", bos="no") == ([], [])


def _tokenizer(template, unknown):
    from tokenizers import Tokenizer, models
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "M": 2}, unk_token=unknown or "<s>"))
    words.post_processor = TemplateProcessing(single=template, special_tokens=[("<s>", 0), ("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>", unk_token=unknown)
