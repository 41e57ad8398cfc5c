"""Commands on random models and prompts, each in a separate process on one thread, and what they take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch


class Used(NamedTuple):
    """Seconds of the processor, and the peak memory in MiB, of a process."""

    seconds: float
    mib: float


def run_command(*arguments: str) -> Used:
    """Run a command of mechclust, and return what it took, imports included. Memory is at least that of the caller.

    Raises:
        RuntimeError: if it fails, with what it printed.
    """
    call = [sys.executable, "-m", "mechclust", *arguments]
    with tempfile.TemporaryFile("w+") as said:
        running = subprocess.Popen(call, stdout=said, stderr=said, env={**os.environ, "OMP_NUM_THREADS": "1"})
        _, status, used = os.wait4(running.pid, 0)
        said.seek(0)
        if status:
            raise RuntimeError(said.read())
    return Used(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


@cache
def word_model(layers: int, width: int, context: int = 64, seed: int = 0) -> Path:
    """Write a Llama with random weights and a tokenizer of 2,000 words, and return its folder."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = Path(tempfile.mkdtemp(prefix="mechclust-bench-"))
    words = ["</s>", "<unk>", *(f"w{i}" for i in range(2000))]
    by_word = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    by_word.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=by_word, eos_token="</s>", unk_token="<unk>", pad_token="</s>"
    ).save_pretrained(folder)
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=len(words), hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers,
        num_attention_heads=max(2, width // 64), max_position_embeddings=context, attn_implementation="sdpa",
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def random_texts(n: int, shortest: int, longest: int) -> list[str]:
    """Return texts of random words, of random numbers of words between two."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(shortest, longest + 1, size=n)
    return [" ".join(f"w{word}" for word in rng.integers(2000, size=length)) for length in lengths]


def write_prompts(folder: Path, texts: Sequence[str], n_classes: int = 10) -> Path:
    """Write prompts of so many tasks in turn as JSON lines, and return their file."""
    path = folder / "prompts.jsonl"
    rows = [{"prompt": text, "task": f"task{i % n_classes}"} for i, text in enumerate(texts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
