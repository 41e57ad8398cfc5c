"""Training of one adapter by peft and Hugging Face's Trainer, which leaves the model and random state as they were."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mechclust.models.adapters import import_peft
from mechclust.models.huggingface import quiet_transformers
from mechclust.models.instruction_format import FormattedExample
from mechclust.models.weights import shared_copy
from mechclust.training.tuning.answers import answer_collator
from mechclust.training.tuning.config import TuneConfig
from probes.engine.devices import device_of
from probes.store.files import write_errors
from tasks import InputError
from tasks.errors import suggest

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def train_lora(
    model: PreTrainedModel,
    examples: Sequence[FormattedExample],
    config: TuneConfig,
    checkpoints: Path,
    name: str,
    source: str | None,
    resume: Path | None,
    progress: bool,
) -> float:
    """Train to the last step, keep its checkpoint, and return the seconds. See ``tune_adapter``.

    Args:
        model: the base.
        examples: all of them.
        config: how to train.
        checkpoints: their folder.
        name: the adapter's name in errors.
        source: name or folder of the base, for the adapter's configuration.
        resume: the checkpoint to go on from.
        progress: show a bar of steps.

    Raises:
        InputError: for missing libraries and a GPU that the Trainer does not take. ``DivergedError`` for a loss that is
            not finite.
    """
    peft = import_peft("training an adapter", "llm")
    _check_accelerate()
    device = device_of(model)
    if device.type == "cuda" and device.index not in (None, 0):
        raise InputError(
            f"the base of {name} is on {device}, but Hugging Face's Trainer uses the first GPU that it sees; give "
            f"this process one GPU with CUDA_VISIBLE_DEVICES={device.index}"
        )
    with write_errors(checkpoints):
        checkpoints.mkdir(parents=True, exist_ok=True)
    with quiet_transformers(), _borrowed(model), _seeded(config.seed):
        from mechclust.training.tuning.trainer import AnswerTrainer, MarkWhole, StepBar

        arguments = training_arguments(config, len(examples), checkpoints, device, model.dtype)
        wrapped = _with_adapter(peft, model, config)
        if source is not None:
            wrapped.peft_config["default"].base_model_name_or_path = source
        trainer = AnswerTrainer(
            wrapped,
            arguments,
            data_collator=answer_collator(model),
            train_dataset=list(examples),
            callbacks=[MarkWhole(), StepBar(name)] if progress else [MarkWhole()],
            name=name,
        )
        outcome = trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return float(outcome.metrics["train_runtime"])


def _with_adapter(peft: Any, model: PreTrainedModel, config: TuneConfig) -> Any:
    """Return peft's model with a new adapter, which shares the weights of the base."""
    lora = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=list(config.modules),
        task_type="CAUSAL_LM",
    )
    try:
        return peft.get_peft_model(shared_copy(model), lora)
    except ValueError as error:
        raise InputError(
            f"peft cannot put an adapter beside {', '.join(config.modules)} of {type(model).__name__} "
            f"({' '.join(str(error).split())[:200]}); name linear layers with --tuning.modules"
        ) from error


def training_arguments(
    config: TuneConfig, n_examples: int, folder: Path, device: torch.device, dtype: torch.dtype = torch.float32
) -> Any:
    """Return Hugging Face's ``TrainingArguments`` for one model on one device. Several adapters are several jobs."""
    from transformers import TrainingArguments

    if config.bf16 and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise InputError(f"{torch.cuda.get_device_name(device)} cannot multiply in bfloat16; leave out --tuning.bf16")
    steps = config.steps_for(n_examples)
    every = max(1, steps // 100)  # a logged loss is a mean over these
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=config.batch_size,
        gradient_accumulation_steps=config.accumulation,
        max_steps=steps,
        learning_rate=config.lr,
        lr_scheduler_type="cosine",
        warmup_steps=config.warmup,
        weight_decay=config.weight_decay,
        max_grad_norm=config.clip,
        **matmul_precision(config, device, dtype),
        logging_steps=every,
        logging_nan_inf_filter=False,
        save_steps=every * math.ceil(config.save_every / every),  # a mean is not cut by an interruption
        save_total_limit=2,
        seed=config.seed,
        data_seed=config.seed,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        use_cpu=device.type == "cpu",
        dataloader_pin_memory=device.type == "cuda",
    )
    arguments._n_gpu = min(1, arguments.n_gpu)
    return arguments


def matmul_precision(config: TuneConfig, device: torch.device, dtype: torch.dtype) -> dict[str, bool]:
    """Return the format in which matrices are multiplied, as ``TrainingArguments`` takes it.

    In float16 small gradients of the activations would be 0, so the Trainer scales the loss. The adapter's weights are
    float32 (peft).

    Args:
        config: how to train.
        device: where.
        dtype: of the base's weights.
    """
    return {"bf16": config.bf16, "fp16": not config.bf16 and device.type == "cuda" and dtype == torch.float16}


def check_modules(model: PreTrainedModel, modules: Sequence[str]) -> None:
    """Refuse names that no module of a model has: peft needs only one of several to be there.

    Raises:
        InputError: naming the first, and the model's linear layers.
    """
    names = [name for name, _ in model.named_modules()]
    for wanted in modules:
        if not any(name == wanted or name.endswith(f".{wanted}") for name in names):
            linear = (name for name, module in model.named_modules() if type(module).__name__ in ("Linear", "Conv1D"))
            known = sorted({name.rpartition(".")[2] for name in linear})
            raise InputError(
                f"{type(model).__name__} has no linear layer {wanted!r}{suggest(wanted, known)}; name some with "
                "--tuning.modules"
            )


def _check_accelerate() -> None:
    try:
        with quiet_transformers():
            import accelerate  # noqa: F401
    except ImportError:
        raise InputError(
            "training an adapter needs accelerate; install it with: pip install 'mechclust[llm]'"
        ) from None


@contextmanager
def _borrowed(model: PreTrainedModel) -> Iterator[None]:
    """Restore which weights need gradients: peft freezes the weights that its model shares with this one."""
    before = [(weight, weight.requires_grad) for weight in model.parameters()]
    try:
        yield
    finally:
        for weight, needed in before:
            weight.requires_grad_(needed)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Restore the global generators, which the Trainer seeds and draws from."""
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    try:
        with torch.random.fork_rng(devices=list(devices)):
            torch.manual_seed(seed)
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
