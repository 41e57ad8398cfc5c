"""Prompts and answers as tokens: in chat templates and plainly, cut where they are too long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mechclust.models.instruction_format import FormattedExample, InstructionFormat
from mechclust.models.sizes import Sizes
from mechclust.models.tokenized_prompts import tokenize_prompts
from tasks import InputError, LabelledPrompts

WORDS = ("<s>", "</s>", "<unk>", "<user>", "<model>", "<end>", "Answer", ":", *(f"w{i}" for i in range(20)))
CHAT = (
    "{{ bos_token }}{% for m in messages %}{{ '<user>' if m.role == 'user' else '<model>' }}\n{{ m.content | trim }}"
    "<end>\n{% endfor %}{% if add_generation_prompt %}<model>\n{% endif %}"
)
MEND = "; fix it in the checkpoint's chat_template.jinja or tokenizer_config.json, or give --chat no"


def tokenizer(template: str | None = None, *, around: str = "<s> $A", spaced: bool = False, **special: Any) -> Any:
    """Words as tokens, with special ones round a text; ``spaced``: as sentencepiece, a space goes before a text."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = [*WORDS, *(f"▁{word}" for word in WORDS[6:] if spaced)]
    ids = {word: i for i, word in enumerate(words)}
    made = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    plain = pre_tokenizers.Whitespace()
    pieces = pre_tokenizers.Split(":", "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pieces]) if spaced else plain
    made.add_special_tokens([AddedToken(word, special=True) for word in WORDS[:6]])
    made.post_processor = processors.TemplateProcessing(around, special_tokens=[("<s>", 0), ("</s>", 1)])
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", **special}
    found = PreTrainedTokenizerFast(
        tokenizer_object=made, **{name: token for name, token in names.items() if token is not None}
    )
    found.chat_template = template
    return found


def shown(own: InstructionFormat, found: FormattedExample) -> tuple[str, str]:
    words = own.tokenizer.convert_ids_to_tokens(found.tokens)
    return " ".join(words[: found.start]), " ".join(words[found.start :])


def both(own: InstructionFormat, prompt: str = "w1 w2", answer: str = "w3") -> tuple[str, str]:
    """What an example is; its prompt is what is measured."""
    (found,) = own.answered([prompt], [answer])
    assert own.prompts([prompt]) == [found.tokens[: found.start]]
    return shown(own, found)


class TestPlain:
    def test_the_first_token_as_it_is_asked_for(self) -> None:
        """In training and measuring alike, and it stays where the beginning is cut off."""
        assert both(InstructionFormat(tokenizer(), bos="no")) == ("w1 w2 Answer :", "w3 </s>")
        put = InstructionFormat(tokenizer(around="$A"), bos="yes")
        assert both(put) == ("<s> w1 w2 Answer :", "w3 </s>")
        assert str(put).endswith("ended by '\\nAnswer:' (--bos yes).")
        assert both(InstructionFormat(tokenizer(), bos="yes")) == ("<s> w1 w2 Answer :", "w3 </s>")
        for own, kept in ((put, ["<s>", "Answer", ":"]), (InstructionFormat(tokenizer(), bos="no"), ["w2", "Answer"])):
            short = InstructionFormat(own.tokenizer, bos=own.bos, cutoff=3)
            (ids,) = short.prompts(["w1 w2"])
            assert own.tokenizer.convert_ids_to_tokens(ids)[: len(kept)] == kept

    def test_the_first_token_is_refused_where_it_cannot_be_asked_for(self) -> None:
        with pytest.raises(InputError) as error:
            InstructionFormat(tokenizer(CHAT), bos="no")
        assert str(error.value) == (
            "--bos no is for plain prompts, and the chat template writes its own special tokens; leave out --bos, or "
            "give --chat no"
        )
        with pytest.raises(InputError, match="no beginning-of-sequence token, so --bos yes has none to add; leave out"):
            InstructionFormat(tokenizer(around="$A", bos_token=None), bos="yes")

    def test_as_it_is_said(self) -> None:
        own = InstructionFormat(tokenizer())
        assert both(own) == ("<s> w1 w2 Answer :", "w3 </s>")
        assert str(own) == "Prompts are plain texts (the tokenizer has no chat template), ended by '\\nAnswer:'."

    @pytest.mark.parametrize("around", ["$A", "<s> $A", "<s> $A </s>", "$A </s>"])
    def test_special_tokens_round_texts(self, around: str) -> None:
        """One at the beginning where there is one, none between prompt and answer, one at the end."""
        begin = "<s> " if "<s>" in around else ""
        assert both(InstructionFormat(tokenizer(around=around))) == (f"{begin}w1 w2 Answer :", "w3 </s>")

    @pytest.mark.parametrize("around", ["$A", "<s> $A", "<s> $A </s>"])
    def test_a_space_before_texts(self, around: str) -> None:
        """An answer is read after its prompt: with one space, not two."""
        own = InstructionFormat(tokenizer(around=around, spaced=True), end=" Answer:")
        begin = "<s> " if "<s>" in around else ""
        assert both(own) == (f"{begin}▁w1 ▁w2 ▁Answer :", "▁w3 </s>")
        assert both(own, answer="w3 w4") == (f"{begin}▁w1 ▁w2 ▁Answer :", "▁w3 ▁w4 </s>")

    def test_an_answer_that_would_change_the_prompt(self) -> None:
        """It is read alone: the prompt is the same for every answer."""
        chat = tokenizer("{% for m in messages %}{{ m.content }}{% endfor %}")
        own = InstructionFormat(chat)
        assert chat("w1w2", add_special_tokens=False)["input_ids"] == [2]
        assert both(own, "w1", "w2") == ("w1", "w2")

    def test_an_empty_answer_has_its_end(self) -> None:
        assert both(InstructionFormat(tokenizer()), answer="") == ("<s> w1 w2 Answer :", "</s>")

    def test_no_examples(self) -> None:
        own = InstructionFormat(tokenizer())
        assert own.prompts([]) == own.answered([], []) == []

    def test_no_end(self) -> None:
        with pytest.raises(InputError) as refused:
            InstructionFormat(tokenizer(eos_token=None))
        assert str(refused.value) == (
            "this model's tokenizer has no end-of-sequence token, so answers would have no end; set "
            "tokenizer.eos_token and save the tokenizer"
        )

    def test_an_empty_prompt(self) -> None:
        own = InstructionFormat(tokenizer(around="$A"), end="")
        with pytest.raises(InputError) as refused:
            own.answered(["w1", ""], ["w2", "w3"])
        assert str(refused.value) == "the prompt '' has no tokens; leave this example out"


class TestCutting:
    @pytest.mark.parametrize(("around", "begin"), [("<s> $A", "<s> "), ("$A", ""), ("<s> $A </s>", "<s> ")])
    def test_a_prompt_is_cut_on_its_left(self, around: str, begin: str) -> None:
        cutoff = 7 + bool(begin)
        own = InstructionFormat(tokenizer(around=around), cutoff=cutoff)
        prompt = " ".join(f"w{i}" for i in range(10))
        (found,) = own.answered([prompt], ["w11 w12"])
        assert shown(own, found) == (f"{begin}w8 w9 Answer :", "w11 w12 </s>")
        assert len(found.tokens) == cutoff
        assert own.cut([prompt, "w1 w2"], ["w11 w12", "w11 w12"]) == (1, 0)  # the second just fits
        (ids,) = own.prompts([prompt])
        assert own.tokenizer.convert_ids_to_tokens(ids) == f"{begin}w5 w6 w7 w8 w9 Answer :".split()

    def test_an_answer_is_cut_at_its_end(self) -> None:
        own = InstructionFormat(tokenizer(), cutoff=5)
        (found,) = own.answered(["w1 w2"], ["w3 w4 w5 w6 w7"])
        assert shown(own, found) == ("<s> :", "w3 w4 w5")
        assert own.cut(["w1 w2"], ["w3 w4 w5 w6 w7"]) == (1, 1)
        (found,) = own.answered(["w1 w2"], ["w3 w4 w5"])  # without </s>
        assert shown(own, found) == ("<s> :", "w3 w4 w5")
        assert own.cut(["w1 w2"], ["w3 w4 w5"]) == (1, 1)
        assert own.cut(["w1 w2"], ["w3 w4"]) == (1, 0)

    def test_one_whose_answer_would_change_the_prompt_is_counted_too(self) -> None:
        """Prompt and answer are two tokens, and one in the other's place if they are read together."""
        template = "{% for m in messages %}{{ m.content }}{% endfor %}"
        own = InstructionFormat(tokenizer(template, around="$A"), cutoff=2)
        assert both(own, "w1", "w2") == ("w1", "w2")
        assert own.cut(["w1"], ["w2"]) == (0, 0)
        assert own.cut(["w1", "w1"], ["w2 w3", "w2 w3 w4"]) == (2, 2)
        (found,) = own.answered(["w1"], ["w2 w3"])
        assert shown(own, found) == ("w1", "w2")

    def test_what_fits_is_whole(self) -> None:
        own = InstructionFormat(tokenizer(), cutoff=7)
        assert both(own) == ("<s> w1 w2 Answer :", "w3 </s>")
        assert shown(own, own.answered(["w1 w2 w4"], ["w3"])[0]) == ("<s> w2 w4 Answer :", "w3 </s>")

    def test_no_room(self) -> None:
        with pytest.raises(InputError, match=r"^cutoff is 2; expected at least 3$"):
            InstructionFormat(tokenizer(), cutoff=2)
        InstructionFormat(tokenizer(around="$A"), cutoff=2)
        with pytest.raises(InputError, match=r"^cutoff is 2; expected at least 3$"):
            InstructionFormat(tokenizer(around="$A"), cutoff=2, bos="yes")

    def test_in_a_chat_template(self) -> None:
        """Of the tokens before a text only those are kept that the template writes too."""
        own = InstructionFormat(tokenizer(CHAT), cutoff=7)
        (found,) = own.answered(["w1 w2 w3 w4"], ["w5"])
        assert shown(own, found) == ("<s> w3 w4 <end> <model>", "w5 <end>")
        own = InstructionFormat(tokenizer(CHAT.replace("{{ bos_token }}", "")), cutoff=6)
        (found,) = own.answered(["w1 w2 w3 w4"], ["w5"])
        assert shown(own, found) == ("w3 w4 <end> <model>", "w5 <end>")

    def test_the_first_token_of_a_chat_template_that_plain_texts_lack(self) -> None:
        own = InstructionFormat(tokenizer(CHAT, around="$A"), cutoff=7)
        (found,) = own.answered(["w1 w2 w3 w4"], ["w5"])
        assert shown(own, found) == ("<s> w3 w4 <end> <model>", "w5 <end>")

    @pytest.mark.parametrize("around", ["$A", "<s> $A"])
    @pytest.mark.parametrize("begins", [True, False])
    def test_prompts_of_commands_in_a_chat_template(self, around: str, begins: bool) -> None:
        words = tokenizer(CHAT if begins else CHAT.replace("{{ bos_token }}", ""), around=around)
        prompts = LabelledPrompts(["w1 w2 w3 w4"], {"task": ["a"]})
        sizes = Sizes(None, None, len(WORDS), n_ctx=4 + begins)
        (batch,) = tokenize_prompts(prompts, words, sizes, tokens_per_batch=9, chat=True, too_long="truncate")
        kept = words.convert_ids_to_tokens(batch.tokens[0].tolist())
        assert kept == [*(["<s>"] if begins else []), "w3", "w4", "<end>", "<model>"]


class TestChat:
    @pytest.mark.parametrize("around", ["$A", "<s> $A", "<s> $A </s>"])
    def test_as_the_template_writes_it(self, around: str) -> None:
        """With one beginning of sequence, whatever the tokenizer puts before a plain text."""
        own = InstructionFormat(tokenizer(CHAT, around=around))
        assert own.chat
        assert both(own) == ("<s> <user> w1 w2 <end> <model>", "w3 <end>")
        assert (
            str(own) == "Prompts are user's messages in the tokenizer's chat template, with its default system prompt."
        )

    def test_tokens_are_those_of_hugging_face(self) -> None:
        words = tokenizer(CHAT)
        own = InstructionFormat(words)
        messages = [{"role": "user", "content": "w1 w2"}, {"role": "assistant", "content": "w3 w4"}]
        asked = words.apply_chat_template(messages[:1], add_generation_prompt=True, tokenize=True)["input_ids"]
        answered = words.apply_chat_template(messages, tokenize=True)["input_ids"]
        assert own.prompts(["w1 w2"]) == [asked]
        assert own.answered(["w1 w2"], ["w3 w4"]) == [FormattedExample(answered, len(asked))]

    def test_an_answer_is_read_after_its_prompt(self) -> None:
        """Alone it would begin with a space."""
        template = "{% for m in messages %}{{ m.content }}{{ ':' if m.role == 'user' }}{% endfor %}"
        own = InstructionFormat(tokenizer(template, around="$A", spaced=True))
        assert both(own, "w1", "w3") == ("▁w1 :", "w3")

    def test_only_where_it_is_wanted(self) -> None:
        own = InstructionFormat(tokenizer(CHAT), chat=False)
        assert both(own) == ("<s> w1 w2 Answer :", "w3 </s>")
        assert str(own) == "Prompts are plain texts, ended by '\\nAnswer:'."
        with pytest.raises(InputError) as refused:
            InstructionFormat(tokenizer(), chat=True)
        assert str(refused.value) == (
            "this model's tokenizer has no chat template; leave out --chat yes, or give one with --chat-template"
        )

    @pytest.mark.parametrize("template", [None, "{{ messages[0].content }}"])
    def test_one_of_a_file(self, template: str | None, tmp_path: Path) -> None:
        """For a tokenizer without one, and in place of its own, which stays as it is."""
        file, words = tmp_path / "chat.jinja", tokenizer(template)
        file.write_text(CHAT)
        own = InstructionFormat(words, template=file)
        assert both(own) == both(InstructionFormat(tokenizer(CHAT)))
        assert words.chat_template == template
        assert str(own) == (
            "Prompts are user's messages in the chat template of --chat-template, with its default system prompt."
        )

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("{% for m in messages %}", "fails in line 1 (TemplateSyntaxError: Unexpected end of template."),
            ("Answer the question.", "renders every prompt alike"),
            ("{{ messages[0].content }}", "renders every answer alike"),
        ],
    )
    def test_a_file_that_is_none_is_refused(self, text: str, said: str, tmp_path: Path) -> None:
        file = tmp_path / "chat.jinja"
        with pytest.raises(InputError) as refused:
            InstructionFormat(tokenizer(), template=file)
        assert str(refused.value) == f"no chat template {str(file)!r}; give the path of a Jinja chat template"
        file.write_text(text)
        with pytest.raises(InputError) as refused:
            InstructionFormat(tokenizer(CHAT), template=file)
        assert str(refused.value).startswith(f"the chat template {str(file)!r} {said}")
        assert str(refused.value).endswith("; fix it, or give another file with --chat-template")

    def test_one_that_strips_answers(self) -> None:
        assert both(InstructionFormat(tokenizer(CHAT)), answer="  w3\n\n") == (
            "<s> <user> w1 w2 <end> <model>",
            "w3 <end>",
        )

    def test_one_that_begins_answers_otherwise_than_it_asks_for_them(self) -> None:
        """As those do that ask for thoughts first: the answer follows what was asked, with the sequence's end."""
        own = InstructionFormat(tokenizer(CHAT.replace("<model>\n{% endif", "<model>w0\n{% endif")))
        assert both(own) == ("<s> <user> w1 w2 <end> <model> w0", "w3 </s>")

    def test_one_that_adds_to_answers(self) -> None:
        own = InstructionFormat(tokenizer(CHAT.replace("{{ m.content", "{{ 'w9 ' if m.role != 'user' }}{{ m.content")))
        assert both(own) == ("<s> <user> w1 w2 <end> <model>", "w9 w3 <end>")

    @pytest.mark.parametrize(
        ("template", "said"),
        [
            (
                "{% for m in messages %}{{ raise_exception('no assistants here') if m.role == 'assistant' else "
                "m.content }}{% endfor %}",
                "fails (TemplateError: no assistants here",
            ),
            ("always the same", "renders every prompt alike"),
            ("{{ messages[0].content }}", "renders every answer alike"),
        ],
    )
    def test_one_of_no_use_is_refused_at_once(self, template: str, said: str) -> None:
        with pytest.raises(InputError) as refused:
            InstructionFormat(tokenizer(template))
        text = str(refused.value)
        assert text.startswith(f"the chat template of this model's tokenizer {said}")
        assert text.endswith(MEND)
        assert "\n" not in text
        InstructionFormat(tokenizer(template), chat=False)  # the way out

    def test_one_that_refuses_some_answers(self) -> None:
        own = InstructionFormat(
            tokenizer(CHAT.replace("{{ bos_token }}", "{{ raise_exception('no') if messages[-1].content == 'w7' }}"))
        )
        assert own.prompts(["w1"])
        with pytest.raises(InputError) as refused:
            own.answered(["w1", "w1"], ["w3", "w7"])
        assert str(refused.value) == f"the chat template of this model's tokenizer fails (TemplateError: no){MEND}"

    def test_an_answer_of_which_nothing_is_left(self) -> None:
        own = InstructionFormat(tokenizer("{% for m in messages %}{{ m.content | trim }} {% endfor %}"))
        with pytest.raises(InputError) as refused:
            own.answered(["w1", "w2 w3"], ["w3", " "])
        assert str(refused.value) == "the answer of the prompt 'w2 w3' has no tokens; leave this example out"


@pytest.mark.parametrize("start", [0, 3, 4])
def test_prompt_and_answer_have_tokens(start: int) -> None:
    with pytest.raises(InputError) as refused:
        FormattedExample([1, 2, 3], start)
    assert str(refused.value) == (
        f"an answer begins at token {start} of 3; expected at least one token of the prompt before it, and one "
        "of the answer"
    )
