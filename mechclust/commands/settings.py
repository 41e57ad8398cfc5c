"""Settings that commands share, with their checks: how a model is run, on which prompts or texts, and controls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from mechclust.jobs import Engine, Ray
from mechclust.jobs.ray_engine import ray_engine_address
from mechclust.models import load_pretrained, set_adapter
from mechclust.models.adapters import adapter_of, check_adapter
from mechclust.models.hugging_face_checkpoint import cached_commit
from mechclust.models.load_plain import Quantization
from mechclust.models.pretrained import AnyModel
from mechclust.models.resolved import ResolvedModel, resolve_model
from mechclust.models.tokenizers import check_has_tokenizer
from mechclust.report.matmul_speed import matmul_speed
from probes import Readout, first_token, last_token, mean
from probes.engine.devices import check_device
from probes.engine.text_tokenizer import tokenizer_of
from tasks import InputError, LabelledPrompts
from tasks.settings import Count, Positive, RepeatsOrZero, Seed, check_settings
from tasks.text.bos_token import Bos
from tasks.text.splitting import SplitBy
from tasks.text.visible import quoted

FEWEST_HALVES = 20  # of the units, for their variance

Dtype = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Choice of the processes that do the work.

    Args:
        engine: where jobs run: ``local``, on this machine, or ``ray``, on a Ray cluster.
        address: address of the Ray cluster, ``auto`` or HOST:PORT. By default the one in RAY_ADDRESS, or a new cluster
            on this machine.
        gpus_per_job: GPUs per worker of a Ray cluster, such as 1. With 0.5, two workers share one.
        workers: number of parallel processes, with one thread each. By default everything runs in the command's
            process, or, with ``ray``, in as many as the cluster has room for.
        job_timeout: seconds after which an unfinished job is stopped.
        yes: begin work that is estimated to take more than a day, or more memory than is free.
    """

    engine: Literal["local", "ray"] = "local"
    address: str | None = None
    gpus_per_job: float = 0
    workers: Count | None = None
    job_timeout: Positive | None = None
    yes: bool = False

    def check(self) -> None:
        """Refuse values out of range, and options that do not go together."""
        check_settings(self)
        if self.engine == "local" and (self.address is not None or self.gpus_per_job):
            what = "--address" if self.address is not None else "--gpus-per-job"
            raise InputError(f"{what} is for a Ray cluster; add --engine ray, or leave it out")
        engine = self.jobs
        if isinstance(engine, Ray):
            ray_engine_address(engine)
        if self.here and self.job_timeout is not None:
            raise InputError(
                "--job-timeout ends worker processes, and there are none; add --workers 2 or --engine ray, or leave it "
                "out"
            )

    @property
    def here(self) -> bool:
        """Whether all is done in this process."""
        return self.engine == "local" and self.workers in (None, 1)

    @property
    def one_thread(self) -> bool:
        """Whether work is done with one thread, as in a worker."""
        return not self.here

    @property
    def at_once(self) -> int:
        """Number of jobs that are in this machine's memory together."""
        return 1 if self.engine == "ray" else self.workers or 1

    @property
    def jobs(self) -> Engine:
        """The engine, as ``map_jobs`` takes it."""
        return "local" if self.engine == "local" else Ray(self.address, self.gpus_per_job)

    @property
    def on(self) -> dict[str, Any]:
        """Options ``workers``, ``engine`` and ``timeout`` of ``map_jobs``, ``run_sharded``, ``save_rows_sharded``."""
        return {"workers": self.workers, "engine": self.jobs, "timeout": self.job_timeout}

    def check_shared(self, *models: ResolvedModel) -> None:
        """Refuse a model in memory if other processes have to load it."""
        if not self.here and any(model.in_memory for model in models):
            option = "engine='ray'" if self.engine == "ray" else f"workers={self.workers}"
            raise InputError(
                f"a model in memory cannot be loaded by other processes ({option}); give its name or folder, or leave "
                "out engine and workers"
            )


def stamps_of(source: str) -> list[tuple[str, int, int]]:
    """Return name, size and time of every file of a local checkpoint, or the commit of one that was downloaded.

    Weights trained again in a folder, or pushed again to a repository, are other weights.
    """
    path = Path(source)
    if not path.exists():
        commit = cached_commit(source)
        return [] if commit is None else [(commit, 0, 0)]
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()]


@dataclass(frozen=True, kw_only=True)
class ModelSettings(EngineSettings):
    """Options for loading a model, reading texts and running it.

    Args:
        adapter: folder of an adapter (LoRA or a relative, saved by peft) to add to the model.
        bos: whether each text begins with the beginning-of-sequence token: ``yes``, ``no``, or ``model``, as the
            tokenizer does.
        tokens_per_batch: maximum number of tokens per forward pass, including padding. Prompts of similar length are
            batched together.
        device: device to run on, such as ``cpu`` or ``cuda``.
        device_map: ``auto`` spreads a model that is too large for one device over several. Give it without ``device``.
        quantize: load the weights in ``8bit`` or ``4bit`` (needs bitsandbytes).
        dtype: dtype of the model's weights.
        trust_remote_code: run code that comes with a checkpoint. It can do whatever you can do, so read it first.
        seed: seed for everything random.
    """

    adapter: Path | None = None
    bos: Bos = "model"
    tokens_per_batch: Count = 4096
    device: str = "cpu"
    device_map: str | None = None
    quantize: Quantization | None = None
    dtype: Dtype = "float32"
    trust_remote_code: bool = False
    seed: Seed = 0

    def check(self) -> None:
        """Refuse settings that no model can be run with."""
        super().check()
        self.check_device(self.device)
        if self.device_map is not None and self.device != "cpu":
            raise InputError(f"device is {self.device!r} and device_map {self.device_map!r}; give one of them")
        if self.adapter is not None:
            check_adapter(self.adapter)
            if self.quantize is not None:
                raise InputError(
                    f"an adapter cannot be added exactly to {self.quantize} weights; leave out --quantize or --adapter"
                )

    def check_device(self, device: str) -> None:
        """Refuse a device that this machine lacks, if it is needed here."""
        if self.engine == "local":
            check_device(device)

    def resolve(self, model: AnyModel) -> ResolvedModel:
        """Resolve a model given as a name, a folder, an adapter or in memory, with the adapter of these settings.

        Raises:
            InputError: if the model is an adapter itself, and these settings have another.
        """
        return resolve_model(model, self.adapter)

    def forward_speed(self, width: int, dtype: torch.dtype | None = None) -> float | None:
        """Return the multiplications and additions per second of the model's device in products of this width.

        They are computed in ``dtype``, by default the model's.

        ``None`` if the device is on another machine, or not alone, or the weights are quantised.
        """
        reachable = self.device == "cpu" or self.engine == "local"
        if not reachable or self.quantize is not None or self.device_map is not None:
            return None
        dtype = dtype or getattr(torch, self.dtype)
        return matmul_speed(self.device, dtype, width, min(512, self.tokens_per_batch), one_thread=self.one_thread)

    def load(self, model: ResolvedModel, what: str, *, without_patterns: bool = False, **options: Any) -> Any:
        """Load a model with a tokenizer to read ``what``.

        Args:
            model: loaded by these settings if it was given by name. A model in memory is taken as it is.
            what: the purpose of the tokenizer, in words.
            without_patterns: load it without attention patterns, if its attention can be caught for probes at
                ``attention()``.
            **options: further ones, as ``load_pretrained`` takes them. With ``untrained`` no adapter is added.
        """
        if options.get("untrained"):
            model = model.without_adapter
        if not model.in_memory:
            options = {
                "device": None if self.device_map else self.device,
                "device_map": self.device_map,
                "quantization": self.quantize,
                "dtype": getattr(torch, self.dtype),
                "trust_remote_code": self.trust_remote_code,
            } | options
        if without_patterns:
            options["attention"] = "sdpa"
        given = options.get("tokenizer")
        if hasattr(model.source, "hook_dict") and not options.get("untrained"):  # it keeps both
            options = {name: given for name, given in options.items() if name not in ("tokenizer", "attention")}
        hooked: Any = load_pretrained(model, **options)
        if without_patterns and {"attn.hook_attention", "attn.hook_pattern"} <= getattr(hooked, "lacks", {}).keys():
            del hooked  # memory may not hold two copies
            hooked = load_pretrained(model, **{**options, "attention": "eager"})
        check_has_tokenizer(repr(model.name), getattr(hooked, "tokenizer", None) if given is None else given, what)
        return hooked

    @contextmanager
    def loaded(
        self, model: ResolvedModel, what: str, *, tokenizer: Any = None, **options: Any
    ) -> Iterator[tuple[Any, Any]]:
        """Load a model for a block, with its tokenizer: the given one, or the model's.

        An adapter that loading puts into a model in memory is taken out again, since the weights are the caller's.
        """
        before = adapter_of(model.source)
        hooked = self.load(model, what, tokenizer=tokenizer, **options)
        try:
            yield hooked, tokenizer_of(hooked) if tokenizer is None else tokenizer
        finally:
            if adapter_of(model.source) != before:
                set_adapter(hooked, before)


@dataclass(frozen=True, kw_only=True)
class UntrainedSettings(ModelSettings):
    """The untrained models that a model is compared with.

    Args:
        untrained: how many untrained models (same architecture, random weights, seeds 0, 1, ...) to compare with.
    """

    untrained: RepeatsOrZero = 1


@dataclass(frozen=True, kw_only=True)
class PromptSettings:
    """Choice of the prompts, and of how they are read.

    Args:
        prompts: file of prompts with their tasks and any further labels: JSONL (one object per line), ``.csv``,
            ``.tsv`` or ``.parquet``.
        prompt_field: field or column of that file with the prompt's text.
        task_field: field or column with the task.
        label_fields: further fields to read as labels. By default all others.
        position: which hidden state to use: at the ``last`` prompt token, at the ``first`` (``[CLS]`` in BERT-like
            encoders), or the ``mean`` over tokens.
        units: a label in the file that groups prompts that are not independent. P-values and intervals then take units
            as independent. ``auto`` takes the field ``template``, or finds templates by removing the field ``input``,
            if there are enough of them. With ``none``, every prompt is independent.
        chat: wrap each prompt as a user message in the tokenizer's chat template.
        too_long: for a prompt longer than the model's context: ``refuse`` it, or ``truncate`` it from the left.
    """

    prompts: Path = field(kw_only=False)
    prompt_field: str = "prompt"
    task_field: str = "task"
    label_fields: tuple[str, ...] = ()
    units: str = "auto"
    position: Literal["last", "first", "mean"] = "last"
    chat: bool = False
    too_long: Literal["refuse", "truncate"] = "refuse"

    def read_prompts(self) -> LabelledPrompts:
        """Return the prompts of the file.

        Raises:
            InputError: naming the file and the line or row that cannot be read.
        """
        return LabelledPrompts.from_file(
            self.prompts, prompt=self.prompt_field, task=self.task_field, labels=self.label_fields
        )

    @property
    def kept_labels(self) -> list[str]:
        """Labels that are kept beside hidden states: the task, and the units if there are any."""
        return ["task", *([] if self.unit_label in (None, "task") else [str(self.unit_label)])]

    @property
    def unit_label(self) -> str | None:
        """The label of units that probes get, or ``None`` as long as templates have not been looked for."""
        return None if self.units in ("auto", "none") else self.units

    @property
    def sampled(self) -> str:
        """Name what intervals and chance take as independent: prompts, or units."""
        return "prompts" if self.unit_label is None else f"units ({quoted(self.unit_label)})"

    @property
    def readout(self) -> Readout:
        """Hidden state of a prompt that a probe reads."""
        return {"last": last_token, "first": first_token, "mean": mean}[self.position]()

    @property
    def states(self) -> str:
        """Hidden state of a prompt that a probe reads, in words."""
        return "the mean over prompt tokens" if self.position == "mean" else f"the {self.position} prompt token"


@dataclass(frozen=True, kw_only=True)
class CorpusSettings:
    """Choice of the texts, and of the unit that counts as a document.

    Args:
        corpus: text, JSON lines, parquet and MediaWiki dumps, or directories of them, also as .gz and .bz2.
        split: the unit that counts as a document in a text file: a paragraph (between blank lines), a file or a line.
        min_words: paragraphs with fewer words are joined to the next ones in their file.
        text_field: the field of an object or row that holds the text.
    """

    corpus: tuple[Path, ...] = field(kw_only=False)
    split: SplitBy = "paragraph"
    min_words: Count = 100
    text_field: str = "text"


def check_resamples(n_resamples: int) -> None:
    """Refuse too few random halves for an interval."""
    if 0 < n_resamples < FEWEST_HALVES:
        raise InputError(f"n_resamples is {n_resamples}; expected 0 for no intervals, or at least {FEWEST_HALVES}")


def check_map_prompts(most: int) -> None:
    """Refuse a map of a single prompt."""
    if most == 1:
        raise InputError(f"map_prompts is {most}; expected 0 for no map, or at least 2")


def check_window(max_length: int, tokens_per_batch: int) -> None:
    """Refuse windows that do not fit into a batch."""
    if max_length > tokens_per_batch:
        raise InputError(
            f"tokens_per_batch is {tokens_per_batch}, fewer than the {max_length} tokens of a window; give at least "
            f"{max_length}, or shorter windows (--max-length)"
        )
