"""Instructions and answers as tokens: in a chat template if a tokenizer has one, otherwise plainly."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mechclust.models.chat_templates import OWN_TEMPLATE, n_special_tokens_at_start, render_chat_template
from tasks import InputError
from tasks.settings import check_at_least
from tasks.text.bos_token import Bos, leading_bos
from tasks.text.files import read_text
from tasks.text.text_encoder import text_encoder, text_encoder_special_tokens

PLAIN_END = "\nAnswer:"
"""What ends a prompt without chat template, so that the last prompt token is the same in every prompt."""

_TEMPLATE_REMEDY = "fix it in the checkpoint's chat_template.jinja or tokenizer_config.json, or give --chat no"


@dataclass(frozen=True)
class FormattedExample:
    """A prompt and its answer as tokens.

    Attributes:
        tokens: both, one after the other.
        start: position of the answer's first token.

    Raises:
        InputError: if one of them has no tokens.
    """

    tokens: list[int]
    start: int

    def __post_init__(self) -> None:
        if not 0 < self.start < len(self.tokens):
            raise InputError(
                f"an answer begins at token {self.start} of {len(self.tokens)}; expected at least one token of the "
                "prompt before it, and one of the answer"
            )


class InstructionFormat:
    """A way to turn prompts and answers into tokens, for training and measuring alike.

    In a chat template a prompt is a user's message, with the template's system prompt. The answer is an assistant's
    message in the template, with its end of turn. Without a template a prompt is its text and ``end``. The answer
    follows after a space and ends with the end-of-sequence token.

    Excess tokens are cut from the left of the prompt, except special ones at its start. The answer and the end of the
    prompt therefore stay.

    Args:
        tokenizer: the model's tokenizer.
        chat: whether to use its chat template. ``None``: if it has one.
        end: text that ends a prompt without a template.
        cutoff: most tokens of prompt and answer together.
        bos: whether a plain prompt begins with the beginning-of-sequence token: ``"model"`` leaves it to the tokenizer,
            ``"yes"`` adds one if there is none, ``"no"`` removes it. A chat template has its own.
        template: file with a chat template, in place of the tokenizer's.

    Raises:
        InputError: for a ``template`` that cannot be read, ``chat`` without a template, ``bos`` with one or without
            such a token, or a template that fails or leaves out prompts or answers. Also for a missing end-of-sequence
            token if one is needed, and a cutoff that leaves no room.

    Example:
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> from transformers import PreTrainedTokenizerFast
        >>> words = Tokenizer(models.WordLevel({"</s>": 0, "2": 1, "+": 2, "=": 3, "4": 4}, unk_token="</s>"))
        >>> words.pre_tokenizer = pre_tokenizers.Whitespace()
        >>> plain = InstructionFormat(PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>"), end=" =")
        >>> plain.prompts(["2 + 2"]), plain.answered(["2 + 2"], ["4"])
        ([[1, 2, 1, 3]], [FormattedExample(tokens=[1, 2, 1, 3, 4, 0], start=4)])
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        chat: bool | None = None,
        end: str = PLAIN_END,
        cutoff: int = 1024,
        bos: Bos = "model",
        template: str | Path | None = None,
    ) -> None:
        self.template = None if template is None else read_text(template, "a Jinja chat template", "chat template")
        self._called = OWN_TEMPLATE if template is None else f"the chat template {str(template)!r}"
        self._mend = _TEMPLATE_REMEDY if template is None else "fix it, or give another file with --chat-template"
        if self.template is not None:
            tokenizer = copy(tokenizer)  # which others read with too
            tokenizer.chat_template = self.template
        has_template = template is not None or bool(getattr(tokenizer, "chat_template", None))
        if chat and not has_template:
            raise InputError(
                "this model's tokenizer has no chat template; leave out --chat yes, or give one with --chat-template"
            )
        self.tokenizer = tokenizer
        self.chat = has_template if chat is None else chat
        self.end = end
        self.cutoff = cutoff
        self.bos = bos
        self._check_special_tokens()
        self._encode = text_encoder(tokenizer, bos)
        self._before, self._after = text_encoder_special_tokens(tokenizer, bos=bos)
        check_at_least(cutoff=(cutoff, len(self._before) + 2))
        if self.chat:
            self._check_template()

    def _check_special_tokens(self) -> None:
        """Refuse a rule for the beginning of a chat template, and a plain answer that could not end."""
        if self.chat and self.bos != "model":
            raise InputError(
                f"--bos {self.bos} is for plain prompts, and the chat template writes its own special tokens; leave "
                "out --bos, or give --chat no"
            )
        if not self.chat and self.tokenizer.eos_token_id is None:
            raise InputError(
                "this model's tokenizer has no end-of-sequence token, so answers would have no end; "
                "set tokenizer.eos_token and save the tokenizer"
            )

    def __str__(self) -> str:
        """Return the format in a sentence."""
        if self.chat:
            owner = "tokenizer's chat template" if self.template is None else "chat template of --chat-template"
            return f"Prompts are user's messages in the {owner}, with its default system prompt."
        reason = "" if getattr(self.tokenizer, "chat_template", None) else " (the tokenizer has no chat template)"
        bos = "" if self.bos == "model" else f" (--bos {self.bos})"
        return f"Prompts are plain texts{reason}, ended by {self.end!r}{bos}."

    @property
    def beginning(self) -> str:
        """State with which token prompts begin."""
        (ids,) = self.prompts(["a"])
        token = leading_bos(self.tokenizer, ids)
        return f"Prompts begin with {'no beginning-of-sequence token' if token == 'none' else token}."

    def prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each prompt, up to the beginning of the answer."""
        whole = [self._rendered(text) if self.chat else text + self.end for text in texts]
        return [self._cut(ids, self.cutoff) for ids in self._read(whole)]

    def answered(self, prompts: Sequence[str], answers: Sequence[str]) -> list[FormattedExample]:
        """Return each prompt with its answer, which is never empty. An answer that is too long loses its end.

        Raises:
            InputError: for a chat template that fails, and an answer without any token, quoting its prompt.
        """
        examples = []
        for prompt, (before, answer) in zip(prompts, self._tokens(prompts, answers), strict=True):
            answer = answer[: self.cutoff - self._n_kept(before) - 1]
            kept = self._cut(before, self.cutoff - len(answer))
            if not answer or not kept:
                raise InputError(
                    f"the {'prompt' if answer else 'answer of the prompt'} {prompt[:60]!r} has no tokens; "
                    "leave this example out"
                )
            examples.append(FormattedExample([*kept, *answer], len(kept)))
        return examples

    def cut(self, prompts: Sequence[str], answers: Sequence[str]) -> tuple[int, int]:
        """Count the prompts that lose their beginning in ``answered``, and the answers that lose their end."""
        tokens = self._tokens(prompts, answers)
        cut_answers = [len(answer) >= self.cutoff - self._n_kept(before) for before, answer in tokens]
        return sum(len(before) + len(answer) > self.cutoff for before, answer in tokens), sum(cut_answers)

    def _tokens(self, prompts: Sequence[str], answers: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        """Return the tokens of each prompt, and those of its answer with its end, before anything is cut."""
        texts = [self._texts(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]
        prompt_ids = self._read([prompt for prompt, _ in texts])
        both_ids = self._read([prompt + answer for prompt, answer in texts])
        tokens = []
        for (_, text), before, both in zip(texts, prompt_ids, both_ids, strict=True):
            # As it is read after its prompt, where that leaves the prompt's own tokens as they are.
            answer = both[len(before) :] if both[: len(before)] == before else self._without_specials(text)
            tokens.append((before, answer if self.chat else [*answer, self.tokenizer.eos_token_id]))
        return tokens

    def _texts(self, prompt: str, answer: str) -> tuple[str, str]:
        """Return prompt and answer as texts in this format."""
        if not self.chat:
            return prompt + self.end, f" {answer}"
        before = self._rendered(prompt)
        both = self._rendered(prompt, answer)
        if both.startswith(before):
            return before, both[len(before) :].rstrip("\n")
        return before, answer + (self.tokenizer.eos_token or "")

    def _read(self, texts: list[str]) -> list[list[int]]:
        """Return the tokens of texts, without special ones at the end, after which no answer could follow."""
        if self.chat:
            return self._encode(texts, add_special_tokens=False)
        n = len(self._after)
        return [ids[:-n] if n and ids[-n:] == self._after else ids for ids in self._encode(texts)]

    def _without_specials(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _n_kept(self, ids: list[int]) -> int:
        """Count the tokens that stay when the beginning is cut off."""
        return n_special_tokens_at_start(self.tokenizer, ids, self._before)

    def _cut(self, ids: list[int], most: int) -> list[int]:
        kept = self._n_kept(ids)
        return ids if len(ids) <= most else [*ids[:kept], *ids[len(ids) - most + kept :]]

    def _rendered(self, *turns: str) -> str:
        """Return messages in the chat template, see ``render_chat_template``."""
        return render_chat_template(self.tokenizer, *turns, called=self._called, mend=self._mend)

    def _check_template(self) -> None:
        """Refuse a template that leaves out prompts or answers, before anything is read with it."""
        if self._rendered("one") == self._rendered("two"):
            raise InputError(f"{self._called} renders every prompt alike; {self._mend}")
        if self._rendered("one", "one") == self._rendered("one", "two"):
            raise InputError(f"{self._called} renders every answer alike; {self._mend}")
