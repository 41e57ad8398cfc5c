"""A tiny Llama and five tiny tasks, and a run that kills itself."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import torch

from mechclust.commands.mossa import MossaConfig, MossaResult, run_mossa
from mechclust.training.tuning import TuneConfig

LETTERS = "abcdef"
TASKS: dict[str, Callable[[list[str]], str]] = {
    "copy": " ".join,
    "swap": lambda word: " ".join(reversed(word)),
    "first": lambda word: word[0],
    "last": lambda word: word[-1],
    "count": lambda word: str(len(set(word))),
}
CLUSTERS = '[clusters]\nwhole = ["copy", "swap"]\nplace = ["first", "last", "count"]\n\n[held_out]\ntasks = ["last"]\n'
TRAIN, TEST = 24, 12


def write_base(folder: Path, **fields: Any) -> Path:
    """A random Llama with a tokenizer of words."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["</s>", "<unk>", ":", "Answer", *LETTERS, *TASKS, *map(str, range(1, 5))]
    by_word = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    by_word.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=by_word, eos_token="</s>", unk_token="<unk>")
    tokenizer.save_pretrained(folder)
    known = {"vocab_size": len(words), "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3}
    known |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**known, "initializer_range": 0.3, **fields}))
    model.save_pretrained(folder)
    return folder


def write_tasks(folder: Path) -> Path:
    """Words of four letters, and what each task makes of them."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    words = draw.sample([list(word) for word in product(LETTERS, repeat=4)], TRAIN + TEST)
    for task, answer in TASKS.items():
        for split, chosen in (("train", words[:TRAIN]), ("test", words[TRAIN:])):
            lines = [{"inputs": f"{task} {' '.join(word)}", "targets": answer(word)} for word in chosen]
            (folder / f"{task}_{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "clusters.toml").write_text(CLUSTERS)
    return folder


def settings(tasks: Path, **fields: Any) -> MossaConfig:
    """Seconds."""
    tuning = TuneConfig(lr=1e-2, batch_size=4, accumulation=1, save_every=5, rank=2)
    known: dict[str, Any] = {"steps_per_task": 3, "cutoff": 32, "ceilings": 1, "nulls": 1, "n_answers": 4, "n_shown": 6}
    return MossaConfig(tasks=tasks, **{**known, "n_resamples": 20, "tuning": tuning, **fields})


def run(base: Path, tasks: Path, out: Path, **fields: Any) -> MossaResult:
    """The run of these settings."""
    return run_mossa(base, settings(tasks, **fields), out)


def _kill_at(owner: Any, name: str, call: int) -> None:
    """kill -9 this process when a function is called for the so-many-th time."""
    whole, count = getattr(owner, name), 0

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(*args, **options)

    setattr(owner, name, counted)


def killed_run(base: Path, tasks: Path, out: Path, when: str) -> None:
    """Run these settings in a process that kills itself while it trains or measures."""
    if when == "training":
        from mechclust.training.tuning.answer_trainer import AnswerTrainer

        _kill_at(AnswerTrainer, "training_step", 8)  # of 15 of the first adapter, 5 of which are kept
    else:
        from mechclust.commands.mossa import measure

        _kill_at(measure, "save_rows_anew", 6)  # in the second task
    run(base, tasks, out)
