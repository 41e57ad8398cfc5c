"""One instruction and its answer."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Example:
    """One instruction and its answer.

    Attributes:
        prompt: the input of a model.
        answer: the output that it should give.
        where: place of the example, such as ``"tasks/copa_train.jsonl, line 3"``. Not compared by ``==``.
        unit: says which examples belong together, for example by template. Empty if unknown.
    """

    prompt: str
    answer: str
    where: str = field(default="", compare=False)
    unit: str = ""
