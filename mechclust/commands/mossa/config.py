"""Settings of ``mechclust mossa``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from mechclust.commands.settings import ModelSettings, check_resamples
from mechclust.models.instruction_format import PLAIN_END
from mechclust.models.resolved import resolved_model_path
from mechclust.training.tuning import TuneConfig
from probes.functional.hsic import LEAST_DEBIASED
from tasks import InputError
from tasks.settings import MAX_COUNT, AtLeast, AtMost, Count, CountOrZero, DrawsOrZero, Positive, Several
from tasks.text.instructions import TaskCollection, choose_held_out, read_task_folder

N_PERMUTATIONS = 20  # random pairings behind the chance level of CKA


@dataclass(frozen=True, kw_only=True)
class MossaConfig(ModelSettings):
    """Settings of ``mechclust mossa``; ``mechclust mossa --help`` also shows those that commands share.

    Args:
        tasks: folder of the tasks' files, JSONL or parquet with a prompt and an answer per line.
        prompt_field: field with the prompt.
        answer_field: field with the answer.
        task_field: field with the task's name, in files with several tasks.
        units: field that says which examples of a task belong together and are not independent, such as their
            template; chance levels of CKA then take units as independent. By default, every example is independent.
        clusters: TOML file with clusters and held-out tasks; ``clusters.toml`` in the folder by default.
        only: names of tasks; all by default.
        held_out: names of tasks to leave out of the multi-task model, instead of those in the file.
        n_held_out: if no tasks are named, leave out one task, drawn at random, from each of this many clusters; not
            with ``experimental``, which may have been trained on it.
        chat: whether prompts use the tokenizer's chat template: ``yes``, ``no``, or ``auto``, if it has one.
        chat_template: file with a chat template in Jinja, for a tokenizer without one, or in place of its own.
        end: text that ends a prompt without a chat template.
        cutoff: most tokens in a prompt and its answer; longer prompts are cut from the left.
        tuning: how each adapter is trained.
        steps_per_task: optimiser steps for a single-task model, and per task for the multi-task model, instead of
            ``tuning.epochs``.
        max_per_cluster: train the multi-task model on at most this many examples per cluster, drawn at random.
        ceilings: train this many single-task models again with another seed, to see how alike two of them are.
        nulls: also compare the multi-task model with the single-task models of this many other tasks.
        n_prompts: test prompts per task to measure.
        n_resamples: random halves of these, or of their units, behind the interval of each task's gain; 0 for none.
        n_answers: test prompts per task whose answers are scored; 0 for none.
        n_shown: test prompts per task for the dimensions and the picture of hidden states.
        rbf: also CKA with Gaussian kernels, on at most 1,000 prompts per task.
        without_top: also CKA without the largest principal component of each side.
        svcca: also mean canonical correlations; slow for wide models.
        experimental: a multi-task model trained elsewhere, instead of training one: a checkpoint, or an adapter's
            folder.
        without_held_out: the same, trained without the held-out tasks.
        controls: single-task models trained elsewhere: ``TASK=MODEL``, or folders named after their tasks.
        keep_rows: keep all hidden states, not only what is computed from them.
        max_memory: most memory, in GiB, for hidden states.

    Example:
        >>> from pathlib import Path
        >>> MossaConfig(tasks=Path("flan"), n_prompts=100).n_prompts
        100
    """

    tasks: Path
    prompt_field: str = "inputs"
    answer_field: str = "targets"
    task_field: str = "task"
    units: str | None = None
    clusters: Path | None = None
    only: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()
    n_held_out: CountOrZero = 0
    chat: Literal["auto", "yes", "no"] = "auto"
    chat_template: Path | None = None
    end: str = PLAIN_END
    cutoff: Count = 1024
    tuning: TuneConfig = TuneConfig()
    steps_per_task: Count | None = None
    max_per_cluster: Count = 50_000
    ceilings: CountOrZero = 6
    nulls: CountOrZero = 2
    n_prompts: Annotated[int, AtLeast(LEAST_DEBIASED), AtMost(MAX_COUNT)] = 1000
    n_resamples: DrawsOrZero = 50
    n_answers: CountOrZero = 200
    n_shown: Several = 100
    rbf: bool = True
    without_top: bool = True
    svcca: bool = False
    experimental: str | None = None
    without_held_out: str | None = None
    controls: tuple[str, ...] = ()
    keep_rows: bool = False
    max_memory: Positive = 8.0

    def check(self) -> None:
        """Refuse settings that cannot be run, before anything is read."""
        super().check()
        check_resamples(self.n_resamples)
        if self.tokens_per_batch < self.cutoff:
            raise InputError(
                f"tokens_per_batch is {self.tokens_per_batch}, and a prompt with its answer may have {self.cutoff} "
                "(--cutoff); give at least as many, or a lower --cutoff"
            )
        if self.chat_template is not None and self.chat == "no":
            raise InputError("--chat-template is given with --chat no; leave out one of them")
        if self.steps_per_task is not None and self.tuning.steps is not None:
            raise InputError("--steps-per-task and --tuning.steps are both given; give one of them")
        if self.adapter is not None:
            raise InputError(
                "--adapter is not for mossa, which swaps adapters itself; give the merged model as BASE, or the "
                "adapter as --experimental"
            )
        if self.quantize is not None:
            raise InputError(
                f"adapters cannot be added exactly to {self.quantize} weights; leave out --quantize (--dtype bfloat16 "
                "halves the memory)"
            )
        if self.controls and self.experimental is None:
            raise InputError("--controls are given without --experimental; give the multi-task model too")
        if self.experimental is not None and not self.controls:
            raise InputError("--experimental is given without --controls; give a single-task model per task too")
        if self.without_held_out is not None and self.experimental is None:
            raise InputError(
                "--without-held-out is given without --experimental, so that it would be trained here; leave it out, "
                "or give the multi-task model too"
            )

    @property
    def one_thread(self) -> bool:
        """Return true: all work is jobs, which take one thread also in this process."""
        return True

    @property
    def portable(self) -> Self:
        """Settings with absolute paths, for the process of a job, which may run in another folder."""
        if self.here:
            return self
        names = ("tasks", "clusters", "chat_template", "experimental", "without_held_out")
        paths: dict[str, Any] = {name: resolved_model_path(getattr(self, name)) for name in names}
        return replace(self, **paths)

    @property
    def trains(self) -> bool:
        """Whether models are trained here."""
        return self.experimental is None

    def read(self) -> TaskCollection:
        """Read the tasks.

        Raises:
            InputError: for files that cannot be read, with file and line.
        """
        tasks = read_task_folder(
            self.tasks,
            prompt_field=self.prompt_field,
            answer_field=self.answer_field,
            task_field=self.task_field,
            unit_field=self.units or "",
            clusters=self.clusters,
            tasks=self.only,
            held_out=self.held_out or None,
        )
        if self.n_held_out and self.trains and not tasks.held_out:
            return tasks.hold_out(choose_held_out(tasks, self.n_held_out, seed=self.seed))
        return tasks


def presets(tasks: Path) -> dict[str, MossaConfig]:
    """Return settings by name: ``flan2021`` as published, ``small`` for a small model on two CPU cores."""
    published = MossaConfig(tasks=tasks, n_held_out=7, n_prompts=10_000)
    small = replace(
        MossaConfig(tasks=tasks),
        tuning=TuneConfig(lr=1e-3, batch_size=8, accumulation=1, save_every=25),
        steps_per_task=100,
        cutoff=256,
        n_prompts=200,
        tokens_per_batch=2048,
    )
    return {"flan2021": published, "small": small}
