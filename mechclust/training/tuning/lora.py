"""Training of one adapter by peft and Hugging Face's Trainer, which leaves the model and random state as they were."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from mechclust.models.installed import check_installed
from mechclust.models.instruction_format import FormattedExample
from mechclust.models.peft_import import import_peft
from mechclust.models.quiet_transformers import quiet_transformers
from mechclust.models.random_state import seeded_generators
from mechclust.models.weights import copy_with_shared_weights, gradient_flags_restored
from mechclust.training.tuning.answers import answer_collator
from mechclust.training.tuning.config import TuneConfig
from probes.engine.devices import device_of
from probes.store.files import write_errors
from tasks import InputError
from tasks.errors import error_suggestion

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
        model: the base, which ``check_trainable`` did not refuse.
        examples: prompts with answers, all of which are seen in each epoch.
        config: how to train.
        checkpoints: folder in which the Trainer keeps the last two.
        name: the adapter's name in errors.
        source: name or folder of the base, for the adapter's configuration.
        resume: the checkpoint to go on from.
        progress: show a bar of steps.

    Raises:
        InputError: for a folder that cannot be written. ``DivergedError`` for a loss that is not finite.
    """
    peft = import_peft("training an adapter", "llm")
    with write_errors(checkpoints):
        checkpoints.mkdir(parents=True, exist_ok=True)
    with quiet_transformers(), gradient_flags_restored(model), _seeded(config.seed):
        from mechclust.training.tuning.answer_trainer import AnswerTrainer, trainer_arguments

        arguments = trainer_arguments(config, len(examples), checkpoints, device_of(model), model.dtype)
        wrapped = _with_adapter(peft, model, config)
        if config.bf16:
            _round_frozen_layers(wrapped)
        if source is not None:  # peft looks for the size of the vocabulary there, whenever it saves
            wrapped.peft_config["default"].base_model_name_or_path = source
        trainer = AnswerTrainer(
            wrapped,
            arguments,
            data_collator=answer_collator(model),
            train_dataset=list(examples),
            name=name,
            progress=progress,
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
        return peft.get_peft_model(copy_with_shared_weights(model), lora)
    except ValueError as error:
        raise InputError(
            f"peft cannot put an adapter beside {', '.join(config.modules)} of {type(model).__name__} "
            f"({' '.join(str(error).split())[:200]}); name linear layers with --tuning.modules"
        ) from error


def _round_frozen_layers(model: Any) -> None:
    """Round the frozen float32 weights of linear layers to bfloat16, which autocast would do in every pass.

    Products are the same to the bit. The base's weights are not rounded, so that half their memory is needed besides.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.weight.dtype == torch.float32 and not module.weight.requires_grad:
            module.weight = nn.Parameter(module.weight.bfloat16(), requires_grad=False)


def check_trainable(model: PreTrainedModel, config: TuneConfig, name: str) -> None:
    """Refuse what an adapter cannot be trained on.

    Args:
        model: the base.
        config: how to train.
        name: the adapter's name in errors.

    Raises:
        InputError: for missing libraries, a model that writes no text, layers that it does not have, a GPU that is not
            the first one, and ``bf16`` on a GPU without it.
    """
    peft = import_peft("training an adapter", "llm")
    check_installed("accelerate", "training an adapter", "llm")
    check_modules(model, config.modules)
    with quiet_transformers(), gradient_flags_restored(model), _seeded(config.seed):
        _with_adapter(peft, model, config)
    device = device_of(model)
    if device.type == "cuda" and device.index not in (None, 0):
        raise InputError(
            f"the base of {name} is on {device}, but Hugging Face's Trainer uses the first GPU that it sees; give "
            f"this process one GPU with CUDA_VISIBLE_DEVICES={device.index}"
        )
    if config.bf16 and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise InputError(f"{torch.cuda.get_device_name(device)} cannot multiply in bfloat16; leave out --tuning.bf16")


def check_modules(model: PreTrainedModel, modules: Sequence[str]) -> None:
    """Refuse models that do not write text from left to right, and names that no module of a model has.

    peft needs only one of several names to be there.

    Raises:
        InputError: for such a model, or naming the first such module.
    """
    if not model.can_generate():
        raise InputError(f"{type(model).__name__} does not write text from left to right; give a causal language model")
    names = [name for name, _ in model.named_modules()]
    for wanted in modules:
        if not any(name == wanted or name.endswith(f".{wanted}") for name in names):
            linear = (name for name, module in model.named_modules() if type(module).__name__ in ("Linear", "Conv1D"))
            known = sorted({name.rpartition(".")[2] for name in linear})
            raise InputError(
                f"{type(model).__name__} has no linear layer {wanted!r}{error_suggestion(wanted, known)}; "
                "name some with --tuning.modules"
            )


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed torch for the adapter's first weights, and restore all global generators: the Trainer seeds them too."""
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    try:
        with seeded_generators(seed, gpu=True):  # the Trainer saves CUDA's even if the model is on the CPU
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
