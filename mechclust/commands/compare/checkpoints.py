"""The models that ``mechclust compare`` measures: by name or in memory, with an adapter or without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mechclust.commands.controls import task_and_model
from mechclust.commands.settings import Dtype
from mechclust.models import load_tokenizer
from mechclust.models.adapters import is_adapter
from mechclust.models.pretrained import model_name
from mechclust.models.sizes import Sizes
from probes.engine.texts import tokenizer_of
from probes.store.files import file_name
from tasks import InputError


@dataclass(frozen=True)
class Checkpoint:
    """A model to measure.

    Attributes:
        role: ``base``, ``tuned`` or ``control``.
        source: hub name, local directory, or a model in memory.
        device, dtype: of its weights.
        task: a control's.
        adapter: folder of the adapter that it is measured with.
        tokenizer: of a model in memory that has none of its own.
    """

    role: str
    source: Any
    device: str
    dtype: Dtype
    task: str | None = None
    adapter: str | None = None
    tokenizer: Any = None

    def __str__(self) -> str:
        return f"{self.role} {called(self.source, self.adapter)}"

    @property
    def name(self) -> str:
        """Of its folder of rows."""
        return self.role if self.task is None else f"{self.role}-{file_name(self.task)}"

    @property
    def in_memory(self) -> bool:
        """Whether the model was given, and not its name."""
        return not isinstance(self.source, str)

    @property
    def weights(self) -> tuple[Any, ...]:
        """The same for checkpoints that are one model, with other adapters or none."""
        return (id(self.source),) if self.in_memory else (self.source, self.device, self.dtype)

    @property
    def own_tokenizer(self) -> Any:
        """Of a model in memory: its own, or the one given with it."""
        own = tokenizer_of(self.source)
        return self.tokenizer if own is None else own

    def read(self, trust_remote_code: bool = False) -> tuple[Any, Sizes]:
        """Its tokenizer and its sizes, without loading weights.

        Raises:
            InputError: for a checkpoint that is not there or incomplete, and a model in memory without tokenizer.
        """
        if not self.in_memory:
            tokenizer, config = load_tokenizer(self.source, trust_remote_code=trust_remote_code)
            return tokenizer, Sizes.of(config)
        if (tokenizer := self.own_tokenizer) is None:
            raise InputError(f"{self} has no tokenizer to read prompts; give tokenizer= too")
        return tokenizer, Sizes.of_loaded(self.source)


def called(model: Any, adapter: str | None = None) -> str:
    """A model in a sentence."""
    name = repr(model_name(model)) + ("" if isinstance(model, (str, Path)) else " (in memory)")
    return name if adapter is None else f"{name} with the adapter {adapter!r}"


def find_checkpoints(
    base: Any,
    tuned: Any,
    controls: Sequence[str],
    tasks: Sequence[str],
    *,
    adapter: str | Path | None,
    where: tuple[str, Dtype],
    tuned_where: tuple[str, Dtype],
    tokenizer: Any = None,
) -> list[Checkpoint]:
    """Base, tuned, then controls.

    An adapter folder in the place of ``tuned`` or of a control is an adapter on ``base``; where ``base`` is one too,
    every folder is a model of its own, with the base that it names.

    Args:
        base, tuned: see ``compare_models``.
        controls: see ``CompareConfig``.
        tasks: of the prompts.
        adapter: on ``tuned``.
        where: device and dtype of the base.
        tuned_where: of the others.
        tokenizer: of models in memory without one.

    Raises:
        InputError: for controls of no task or of one twice, and for two adapters on one model.
    """

    def on_base(model: Any) -> bool:
        return (
            isinstance(model, (str, Path))
            and is_adapter(model)
            and not (isinstance(base, (str, Path)) and is_adapter(base))
        )

    def checkpoint(role: str, model: Any, place: tuple[str, Dtype], **more: Any) -> Checkpoint:
        source, put = (base, str(model)) if on_base(model) else (model, more.pop("adapter", None))
        source = str(source) if isinstance(source, Path) else source
        return Checkpoint(role, source, *place, tokenizer=tokenizer, **{**more, "adapter": put})

    if adapter is not None and isinstance(tuned, (str, Path)) and is_adapter(tuned):
        raise InputError(
            f"the tuned model {str(tuned)!r} is an adapter, and --adapter gives {str(adapter)!r} too; give one of them"
        )
    put = None if adapter is None else str(adapter)
    found = [checkpoint("base", base, where), checkpoint("tuned", tuned, tuned_where, adapter=put)]
    known: dict[str, str] = {}
    for control in controls:
        task, path = task_and_model(control, tasks)
        if task not in tasks:
            raise InputError(
                f"no task of the prompts for the control {control!r} (they have {', '.join(tasks)}); "
                "give TASK=MODEL, or a directory named after the task"
            )
        if task in known:
            raise InputError(f"{known[task]!r} and {path!r} are both controls of {task!r}; give one per task")
        known[task] = path
        found.append(checkpoint("control", path, tuned_where, task=task))
    return found
