"""Chat templates are programs that come with a checkpoint; a bad one is one sentence."""

from __future__ import annotations

import pytest

from mechclust.models.chat_templates import templated_tokenizer
from mechclust.models.tokenizers import load_tokenizer
from tasks import InputError

BAD = {
    "{{ messages[0]['content'] }}\n{% nonsense %}": r"fails in line 2 \(TemplateSyntaxError: Encountered unknown tag",
    "{{ messages[0].content.missing.deeper }}": r"fails \(UndefinedError: 'str object' has no attribute 'missing'",
    "{{ raise_exception('no users here') }}": r"fails \(TemplateError: no users here",
    "{% for i in range(10 ** 9) %}{{ i }}{% endfor %}": r"fails \(OverflowError: Range too big",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}": r"fails \(SecurityError: access to attribute",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": r"fails \(RecursionError",
    "always the same": "renders every prompt alike",
}


@pytest.fixture
def tokenizer(gpt2):
    return load_tokenizer(gpt2)[0]


@pytest.mark.parametrize("template", BAD)
def test_a_bad_one_is_one_sentence_with_the_fault_and_the_way_out(tokenizer, template):
    tokenizer.chat_template = template
    with pytest.raises(InputError, match=f"the chat template of this model's tokenizer {BAD[template]}") as refused:
        templated_tokenizer(tokenizer, chat=True)(["w1 w2", "w3"])
    assert "\n" not in str(refused.value)
    assert str(refused.value).endswith(
        "fix it in the checkpoint's chat_template.jinja or tokenizer_config.json, or leave out --chat"
    )


def test_one_that_changes_the_text_is_used(tokenizer):
    tokenizer.chat_template = "{{ messages[0]['content'] | replace('w1', 'w9') }} w2"
    assert templated_tokenizer(tokenizer, chat=True)(["w1", "w3"]) == [[11, 4], [5, 4]]
