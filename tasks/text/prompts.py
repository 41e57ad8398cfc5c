"""Labelled prompts for text models, read from files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Int64
from torch import Tensor

from tasks.batch import Batch, pad_right
from tasks.batch_rows import token_batch_rows
from tasks.errors import InputError
from tasks.settings import check_choice
from tasks.text.bos_token import Bos
from tasks.text.prompt_files import PromptFileFields, read_prompt_file
from tasks.text.text_encoder import text_encoder
from tasks.text.token_ids import check_token_ids, known_pad_token_id
from tasks.text.utf8 import check_utf8_texts
from tasks.text.visible import quoted, shortened

Encode = Callable[[Sequence[str]], Any]
"""Texts to token ids, all at once: tokenizers are faster so."""


@dataclass(frozen=True)
class LabelledPrompts:
    """Texts with a task label each, and optional further labels.

    Attributes:
        prompts: the texts.
        labels: label name to one class name per prompt. ``"task"`` is required.
        source: their origin, for messages.

    Raises:
        InputError: for no prompts, a prompt that is empty or not a string, or labels that do not fit.

    Example:
        >>> prompts = LabelledPrompts(["Sort: b a", "Count: b a"], {"task": ["sort", "count"]})
        >>> prompts.classes
        {'task': ['count', 'sort']}
        >>> batch = next(prompts.batches(lambda texts: [[ord(c) for c in text] for text in texts]))
        >>> batch.index.tolist(), batch.labels["task"].tolist(), batch.lengths().tolist()
        ([1, 0], [0, 1], [10, 9])
    """

    prompts: Sequence[str]
    labels: Mapping[str, Sequence[str]]
    source: str = "prompts"

    def __post_init__(self) -> None:
        if not isinstance(self.prompts, str):
            object.__setattr__(self, "prompts", list(self.prompts))  # a column of a data frame counts by its own index
        if not self.prompts:
            raise InputError(f"{self.source} holds no prompts; give at least one prompt with its task")
        check_utf8_texts(self.prompts, f"{self.source}: prompt")
        for i, prompt in enumerate(self.prompts):
            if not prompt.strip():
                raise InputError(f"{self.source}: prompt {i + 1} is empty; give it a text or remove it")
        if "task" not in self.labels:
            raise InputError(
                f'{self.source} has no label "task" (it has {", ".join(map(shortened, self.labels)) or "none"})'
            )
        for name, values in self.labels.items():
            if len(values) != len(self.prompts):
                raise InputError(
                    f"{self.source}: label {quoted(name)} has {len(values)} values for {len(self.prompts)} prompts; "
                    "expected one per prompt"
                )
            check_utf8_texts(values, f"{self.source}: label {quoted(name)} of prompt")

    def __len__(self) -> int:
        return len(self.prompts)

    def __repr__(self) -> str:
        """Return one line, however many prompts there are.

        Example:
            >>> LabelledPrompts(["count to three", "sort a list"], {"task": ["count", "sort"]})
            LabelledPrompts(2 prompts, labels: 2 task)
        """
        labels = ", ".join(f"{len(values)} {name}" for name, values in self.classes.items())
        return f"LabelledPrompts({len(self)} prompts, labels: {labels})"

    @cached_property
    def classes(self) -> dict[str, list[str]]:
        """The sorted class names of each label. A batch's integer label is the place in this list."""
        return {name: sorted(set(values)) for name, values in self.labels.items()}

    @classmethod
    def from_file(
        cls, path: str | Path, *, prompt: str = "prompt", task: str = "task", labels: Sequence[str] = ()
    ) -> LabelledPrompts:
        r"""Read prompts from JSON lines, CSV or parquet.

        The format follows the name: ``.csv``, ``.tsv`` and ``.parquet`` by their ending, and one JSON object per line
        under any other name.

        Args:
            path: path of the file.
            prompt: field or column with the text.
            task: field or column with the task, which is called ``"task"`` whatever its name there.
            labels: further fields to read as labels, by default all others.

        Raises:
            InputError: naming the file and line or row for unreadable text, a missing or extra field, or a label that
                is not a string, integer or boolean.

        Example:
            >>> import os, tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = os.path.join(folder, "questions.csv")
            ...     with open(path, "w") as file:
            ...         _ = file.write("question,kind\nWho wrote it?,person\n")
            ...     LabelledPrompts.from_file(path, prompt="question", task="kind").labels
            {'task': ['person']}
        """
        path = Path(path)
        prompts, labels_of = read_prompt_file(path, PromptFileFields(prompt, task, tuple(labels)))
        return cls(prompts, labels_of, source=str(path))

    def batches(
        self,
        encode: Encode,
        tokens_per_batch: int = 4096,
        *,
        bos: Bos = "model",
        pad_id: int = 0,
        max_length: int | None = None,
        too_long: Literal["refuse", "truncate"] = "refuse",
        keep: int = 0,
        d_vocab: int | None = None,
    ) -> Iterator[Batch]:
        """Yield token batches, padded on the right: prompts of similar length together, longest first.

        ``index`` is a prompt's place in the file, from 0.

        Args:
            encode: a Hugging Face tokenizer, or any function of texts to token ids.
            tokens_per_batch: most tokens of a batch, padding included.
            bos: whether each prompt begins with the beginning-of-sequence token: ``"model"`` leaves it to the
                tokenizer, ``"yes"`` adds it if it is missing, ``"no"`` removes it.
            pad_id: the id to pad with, or 0 if the model has no embedding for it. The attention mask hides it.
            max_length: the model's context length.
            too_long: ``"refuse"`` a prompt over ``max_length``, or ``"truncate"`` it from the left,
                so that its last token stays.
            keep: special tokens at the beginning that stay too.
            d_vocab: number of the model's token embeddings. ``None``: do not check.

        Raises:
            InputError: for a prompt that is too long for the model or for ``tokens_per_batch``, encodes to no token, or
                to one without an embedding. Also for no beginning-of-sequence token to add or to remove.
        """
        check_choice(too_long=(too_long, ("refuse", "truncate")))
        if max_length is not None and keep >= max_length:
            raise InputError(f"keep is {keep} and max_length {max_length}; expected to keep fewer tokens than fit")
        encoded = text_encoder(encode, bos)(self.prompts)
        for i, ids in enumerate(encoded):
            if not ids:
                raise InputError(f"{self._name_of(i)} encodes to no tokens; remove it")
            check_token_ids([ids], d_vocab, self._name_of(i))
            if max_length is not None and len(ids) > max_length:
                if too_long == "refuse":
                    raise self._too_long_error(i, len(ids), max_length)
                encoded[i] = [*ids[:keep], *ids[len(ids) - max_length + keep :]]
        pad_id = known_pad_token_id(pad_id, d_vocab)
        labels = {name: self._label_numbers(name) for name in self.labels}
        for rows in token_batch_rows(list(map(len, encoded)), tokens_per_batch, self._name_of):
            tokens, attention_mask = pad_right([torch.tensor(encoded[i]) for i in rows], pad_id)
            index = torch.from_numpy(rows)
            batch_labels = {name: numbers[index] for name, numbers in labels.items()}
            yield Batch(tokens, attention_mask, labels=batch_labels, index=index)

    def _name_of(self, i: int) -> str:
        return f"{self.source}: prompt {i + 1}"

    def _too_long_error(self, i: int, n_tokens: int, max_length: int) -> InputError:
        return InputError(
            f"{self._name_of(i)} has {n_tokens} tokens, more than the model's context of {max_length}; shorten it, "
            "or choose too_long='truncate' (--too-long truncate) to keep its end"
        )

    def _label_numbers(self, name: str) -> Int64[Tensor, "prompt"]:
        """Return the place of each prompt's class in ``classes``."""
        number_of = {value: number for number, value in enumerate(self.classes[name])}
        return torch.tensor([number_of[value] for value in self.labels[name]])
