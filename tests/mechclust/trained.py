"""A real series: a tiny GPT-2 trained by Hugging Face's Trainer, with a stale checkpoint and one of another place."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

STEPS, EVERY = 48, 8


def prompts_of_three_tasks():
    """36 prompts; the word before the last tells the task, and the answer depends on it."""
    return [
        {"prompt": f"w{first} w{10 + k} w{14 + ending}", "task": task}
        for k, task in enumerate(("a", "b", "c"))
        for first in range(6)
        for ending in range(2)
    ]


@pytest.fixture(scope="session")
def history_prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("history") / "prompts.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in prompts_of_three_tasks()))
    return path


def training_rows(tokenizer):
    """After each prompt the task's own answer."""
    rows = []
    for record in prompts_of_three_tasks():
        tokens = tokenizer(f"{record['prompt']} w{16 + 'abc'.index(record['task'])}")["input_ids"]
        rows.append({"input_ids": tokens, "labels": tokens})
    return rows


def train(model, tokenizer, folder, callbacks=(), add_to=(), report_to=()):
    """A Trainer that has trained."""
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        save_steps=EVERY,
        logging_steps=EVERY,
        per_device_train_batch_size=12,
        learning_rate=5e-3,
        report_to=list(report_to),
        use_cpu=True,
        disable_tqdm=True,
        seed=3,
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=training_rows(tokenizer),
        processing_class=tokenizer,
        callbacks=list(callbacks),
    )
    for callback in add_to:
        callback.add_to(trainer)
    trainer.train()
    return trainer


@pytest.fixture(scope="session")
def untrained_gpt2(gpt2):
    """Loads the same untrained model again and again, with its tokenizer."""
    import transformers

    def load():
        model = transformers.AutoModelForCausalLM.from_pretrained(gpt2)
        return model, transformers.AutoTokenizer.from_pretrained(gpt2)

    return load


@pytest.fixture(scope="session")
def trained_series(untrained_gpt2, tmp_path_factory):
    """The Trainer's own folder; read only. ``checkpoint-8`` to ``checkpoint-48``."""
    folder = tmp_path_factory.mktemp("series") / "run"
    model, tokenizer = untrained_gpt2()
    with torch.random.fork_rng(devices=[]):
        train(model, tokenizer, folder)
    return folder


@pytest.fixture(scope="session")
def spoilt_series(trained_series, tmp_path_factory):
    """The same where ``checkpoint-16`` holds the last one's weights; read only."""
    folder = tmp_path_factory.mktemp("spoilt") / "run"
    shutil.copytree(trained_series, folder)
    weights = "model.safetensors"
    shutil.copy(folder / f"checkpoint-{STEPS}" / weights, folder / "checkpoint-16" / weights)
    return folder
