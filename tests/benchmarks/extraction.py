"""Hidden states of every layer at the last token: ``run`` against forward passes alone and a plain loop.

On a Llama shape with random weights, 64 prompts of 8 to 200 tokens; with ``device="cuda"`` on one of a billion weights
in bfloat16, 2,000 prompts, ``scale=2`` of seven billion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.benchmarks.ratio import alternate

_BATCH = 16  # prompts a forward pass, where nobody sorts them
_BUDGET = 4096  # tokens a forward pass, where they are sorted
_CUDA = {
    1: {"num_hidden_layers": 16, "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32},
    2: {"num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32},
}
_CPU = {"num_hidden_layers": 8, "hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 8}


class _Setting(NamedTuple):
    theirs: Any  # Hugging Face's model, with its head
    model: Any  # ours round the same weights
    ids: list[list[int]]
    device: str


@lru_cache
def _setting(device: str = "cpu", scale: int = 1) -> _Setting:
    from transformers import LlamaConfig, LlamaForCausalLM

    from mechclust.models import load_pretrained

    if device == "cpu":
        torch.set_num_threads(1)
    shape = _CPU if device == "cpu" else _CUDA[scale]
    vocabulary = 8000 if device == "cpu" else 128_000
    torch.manual_seed(0)
    with torch.device(device):
        config = LlamaConfig(vocab_size=vocabulary, max_position_embeddings=2048, attn_implementation="sdpa", **shape)
        theirs = LlamaForCausalLM(config).eval()
    if device != "cpu":
        theirs = theirs.to(torch.bfloat16)
    model = load_pretrained(theirs, attention="sdpa")
    return _Setting(theirs, model, _prompts(64 if device == "cpu" else 2000, vocabulary), device)


def _prompts(n: int, vocabulary: int) -> list[list[int]]:
    """Of 8 to 200 tokens."""
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(8, 201, (n,), generator=draw)
    return [torch.randint(vocabulary, (int(length),), generator=draw).tolist() for length in lengths]


def _run(setting: _Setting, batches: Any = None) -> dict[str, Tensor]:
    from probes import collect_rows

    given = {"input_ids": setting.ids} if batches is None else batches
    return collect_rows(setting.model, given, tokens_per_batch=_BUDGET)


def _batches(setting: _Setting) -> list[Any]:
    """Those that ``run`` makes of the prompts."""
    from probes.engine.batches import each_batch

    return list(each_batch({"input_ids": setting.ids}, {"": setting.model}, tokens_per_batch=_BUDGET))


def _waited(setting: _Setting) -> None:
    if setting.device != "cpu":
        torch.cuda.synchronize()


def _bare(setting: _Setting, batches: list[Any]) -> None:
    """Forward passes of Hugging Face's body, nothing kept."""
    with torch.inference_mode():
        for batch in batches:
            batch = batch.to(setting.device)
            setting.theirs.model(input_ids=batch.tokens, attention_mask=batch.attention_mask, use_cache=False)
    _waited(setting)


def _padded(ids: list[list[int]], device: str) -> tuple[Tensor, Tensor]:
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(i) for i in ids], batch_first=True)
    mask = torch.arange(tokens.shape[1]) < torch.tensor(list(map(len, ids)))[:, None]
    return tokens.to(device), mask.long().to(device)


def _unsorted(ids: list[list[int]]) -> Iterator[list[int]]:
    yield from (list(range(start, min(start + _BATCH, len(ids)))) for start in range(0, len(ids), _BATCH))


def _loop(setting: _Setting, model: Any, groups: Iterator[list[int]]) -> list[Tensor]:
    """What one writes with ``output_hidden_states=True``: by layer ``[n d]``."""
    found: list[list[Tensor]] = []
    places = list[int]()
    with torch.inference_mode():
        for group in groups:
            tokens, mask = _padded([setting.ids[i] for i in group], setting.device)
            out = model(input_ids=tokens, attention_mask=mask, output_hidden_states=True, use_cache=False)
            last = mask.sum(1) - 1
            rows = torch.arange(len(group), device=tokens.device)
            found.append([state[rows, last].cpu() for state in out.hidden_states])
            places += group
    order = torch.tensor(places).argsort()
    return [torch.cat(layer)[order] for layer in zip(*found, strict=True)]


def run_speed(device: str = "cpu") -> float:
    """Tokens a second of ``collect_rows`` over those of bare forward passes of the same batches."""
    setting = _setting(device)
    batches = _batches(setting)
    return alternate(lambda: _bare(setting, batches), lambda: _run(setting, batches), rounds=3)


def over_unsorted(device: str = "cpu") -> float:
    """Time of a plain Hugging Face loop in batches of 16 over that of ``collect_rows``."""
    setting = _setting(device)
    return alternate(lambda: _loop(setting, setting.theirs, _unsorted(setting.ids)), lambda: _run(setting), rounds=3)


def table() -> list[tuple[str, Callable[[], float], str]]:
    """What is measured, how, and the goal."""
    return [
        ("tokens/s of run / of bare forward passes, same batches", run_speed, ">= .90"),
        ("Hugging Face loop, 16 unsorted prompts per batch / run", over_unsorted, ">= 2"),
    ]
