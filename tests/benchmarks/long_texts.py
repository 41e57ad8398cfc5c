"""Probes of attention in long texts against bare forward passes: time, memory, and error against eager attention."""

from __future__ import annotations

from functools import lru_cache, partial
from time import perf_counter
from typing import Any

import torch

from tests.benchmarks.memory import forget_peak, peak, printed
from tests.benchmarks.ratio import alternate

_WORDS = 5_000


@lru_cache
def _model(family: str = "Llama", attention: str = "sdpa") -> Any:
    """Two layers of 8 heads x 64, with random weights."""
    import transformers

    from mechclust import load_pretrained

    shape = {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 2, "max_position_embeddings": 2**15}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64}
    config = getattr(transformers, f"{family}Config")(vocab_size=_WORDS, **shape, **heads)
    torch.manual_seed(0)
    plain = getattr(transformers, f"{family}ForCausalLM")._from_config(config, attn_implementation="eager")
    if attention == "sdpa" and family == "Llama":
        plain.set_attn_implementation("sdpa")
    return load_pretrained(plain.base_model.eval(), attention=attention)


def _tokens(length: int) -> torch.Tensor:
    """A text whose words have frequencies by Zipf's law."""
    frequencies = 1 / torch.arange(1, _WORDS + 1)
    return torch.multinomial(frequencies, length, replacement=True, generator=torch.Generator().manual_seed(0))[None]


def _probes(n_permutations: int) -> list[Any]:
    """Every statistic: masses of 10 topics, entropies and roles."""
    from probes import AttentionEntropy, HeadRoles, TopicAttention

    topics = torch.arange(_WORDS) % 10
    return [
        TopicAttention(topics, n_permutations=n_permutations),
        AttentionEntropy(),
        HeadRoles(n_permutations=n_permutations),
    ]


def overhead(length: int, n_permutations: int = 0, family: str = "Llama", rounds: int = 3) -> float:
    """The three probes together against a bare forward pass."""
    from probes import run
    from tasks import Batch

    model = _model(family)
    tokens = _tokens(length)
    batch = Batch(tokens)
    return alternate(lambda: run(model, batch, _probes(n_permutations)), partial(_bare, model, tokens), rounds=rounds)


def _bare(model: Any, tokens: torch.Tensor) -> None:
    with torch.inference_mode():
        model(tokens)


@lru_cache
def error(family: str = "Llama", length: int = 512) -> float:
    """Largest difference of masses, entropies and patterns from sums over Hugging Face's eager pattern, in float32."""
    from probes import record
    from probes.engine.attention import EagerAttention

    tokens = _tokens(length)
    sums = []
    for attention, end in (("sdpa", "attention"), ("eager", "pattern")):
        model = _model(family, attention)
        names = [f"blocks.{layer}.attn.hook_{end}" for layer in range(2)]
        with torch.inference_mode(), record(model, names) as kept:
            model(tokens)
            for (layer,) in kept.values():
                layer = EagerAttention(layer) if end == "pattern" else layer
                sums.append([layer.mass(tokens % 10, 10), layer.entropy(), layer.pattern()])
    return max(float((x - y).abs().max()) for fused, eager in zip(sums[:2], sums[2:], strict=True)
               for x, y in zip(fused, eager, strict=True))  # fmt: skip


@lru_cache
def memory(length: int, family: str = "Llama") -> float:
    """MiB that the probes add to the peak of a bare forward pass, in a separate process."""
    return printed(f"from tests.benchmarks.long_texts import print_memory; print_memory({length}, {family!r})")[0]


def print_memory(length: int, family: str) -> None:
    """Print the MiB that the probes without relabellings add to the peak of a bare forward pass."""
    from probes import run
    from tasks import Batch

    torch.set_num_threads(1)
    model = _model(family)
    tokens = _tokens(length)
    run(model, tokens[:, :64], _probes(0))
    _bare(model, tokens)
    peaks = []
    for measure in (partial(_bare, model, tokens), partial(run, model, Batch(tokens), _probes(0))):
        forget_peak()
        measure()
        peaks.append(peak())
    print(peaks[1] - peaks[0])


def growth(length: int, how: str) -> tuple[float, float]:
    """Seconds and MiB of a pass in a separate process: ``bare``, or with the probes, ``sdpa`` or ``eager``."""
    seconds, mib = printed(f"from tests.benchmarks.long_texts import print_growth; print_growth({length}, {how!r})")
    return seconds, mib


def print_growth(length: int, how: str) -> None:
    """Print the seconds, and the MiB beyond the model."""
    from probes import run
    from tasks import Batch

    torch.set_num_threads(1)
    model = _model(attention="eager" if how == "eager" else "sdpa")
    tokens = _tokens(length)
    run(model, tokens[:, :64], _probes(0))
    forget_peak()
    before = peak()
    start = perf_counter()
    if how == "bare":
        _bare(model, tokens)
    else:
        run(model, Batch(tokens), _probes(0))
    print(perf_counter() - start, peak() - before)


def table() -> list[tuple[str, Any, str]]:
    """Return the rows."""
    probes = "topics, entropy and roles of heads together"
    return [
        (f"{probes}, 2,048 tokens / bare sdpa forward", partial(overhead, 2048), "<= 2.5"),
        ("the same, 512 tokens", partial(overhead, 512), ""),
        ("the same, 8,192 tokens", partial(overhead, 8192, rounds=1), ""),
        ("the same with 99 relabellings, 2,048 tokens", partial(overhead, 2048, 99), ""),
        ("soft caps (Gemma 2), in blocks of queries, 2,048 tokens / bare eager forward",
         partial(overhead, 2048, family="Gemma2"), ""),
        ("largest error against the eager pattern, float32, 512 tokens (no ratio)", error, "<= 1e-5"),
        ("the same, soft caps (no ratio)", partial(error, "Gemma2"), "<= 1e-5"),
        ("MiB beyond a bare forward, 4,096 tokens (no ratio)", partial(memory, 4096), ""),
        ("MiB beyond a bare forward, 8,192 tokens (no ratio)", partial(memory, 8192), ""),
        ("the same, soft caps, 4,096 tokens, beyond a bare eager forward (no ratio)",
         partial(memory, 4096, "Gemma2"), ""),
    ]  # fmt: skip
