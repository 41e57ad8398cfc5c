"""Measurements against peers, as ratios within one run. `make bench` also writes the goals into docs/cost.md."""

from __future__ import annotations

import argparse
import subprocess
import sys
import warnings
from collections.abc import Callable

import torch

from tests.benchmarks import cka, ensembles, extraction, goals, heads, kmeans, long_texts, mossa, topics
from tests.benchmarks.memory import forget_peak, held, peak, printed
from tests.benchmarks.ratio import alternate

Table = list[tuple[str, Callable[[], float], str]]
warnings.simplefilter("ignore")
torch.set_num_threads(1)


def training_step() -> float:
    """A mechclust training step against a plain loop over Hugging Face's GPT-2 of the same size."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from mechclust import build_model, model_for
    from tasks import InstructionFollowing

    task = InstructionFollowing(n_tasks=20)
    model = build_model(model_for(task, n_layers=6, d_model=128))
    peer = GPT2LMHeadModel(
        GPT2Config(vocab_size=task.d_vocab, n_positions=task.n_ctx, n_embd=128, n_layer=6, n_head=4,
                   resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, tie_word_embeddings=False)
    )  # fmt: skip
    return goals.train_over(task, model, peer, lambda batch, labels: peer(batch.tokens, labels=labels).loss)


def _setting(n_examples: int):
    from mechclust import ModelConfig, build_model
    from tasks import Batch

    model = build_model(ModelConfig(d_vocab=500, n_ctx=32, n_layers=6, d_model=256, n_heads=8))
    draw = torch.Generator().manual_seed(0)

    def batches():
        for start in range(0, n_examples, 64):
            tokens = torch.randint(500, (64, 32), generator=draw)
            index = torch.arange(start, start + 64)
            yield Batch(tokens, labels={"task": index % 10}, positions={"input": index % 32}, index=index)

    return model, batches


def _collector():
    """Keeps every residual site's state at every readout: what a probe with rows costs at most."""
    from probes import Probe, Rows, last_token, mean, residual, token_at

    class Collect(Probe):
        rows = Rows()

        def __init__(self, readout, at=residual(final_norm=True)):
            self.readout, self.at = readout, at

        def update(self, activations, batch):
            for site, x in activations.items():
                self.rows.add(site, batch.index, x)

        def compute(self):
            means = [self.rows.get(site)[1].mean().double() for site in self.site_names]
            return self.result({"mean": torch.stack(means)}, {"mean": ("site",)})

    return [Collect(r) for r in (last_token(), mean(), token_at("input"))]


def probes_over_forward() -> float:
    """`probes.run` with all residual sites and three readouts against a bare forward pass."""
    from probes import run

    model, batches = _setting(512)
    model.eval()

    def bare() -> None:
        with torch.inference_mode():
            for batch in batches():
                model(batch.tokens)

    probes = _collector()
    return alternate(lambda: run(model, batches(), probes), bare)


def _cache_loop(model, batches) -> None:
    """What a user writes by hand: cache everything, keep what is wanted afterwards."""
    kept = []
    with torch.inference_mode():
        for batch in batches():
            _, cache = model.run_with_cache(batch.tokens)
            names = ["hook_embed", *(f"blocks.{i}.hook_resid_post" for i in range(6))]
            rows = torch.arange(len(batch))
            kept.append([(cache[n][:, -1], cache[n].mean(1), cache[n][rows, batch.positions["input"]]) for n in names])


def probes_over_cache() -> float:
    """The same against a `run_with_cache` loop that keeps the same rows."""
    from probes import run

    model, batches = _setting(512)
    model.eval()
    probes = _collector()
    return alternate(lambda: run(model, batches(), probes), lambda: _cache_loop(model, batches))


def peak_mib(what: str, n_examples: int, *, growth: bool) -> float:
    """Peak resident memory in MiB while measuring, whole or its growth: median of five processes."""
    code = f"from tests.benchmarks.run import _peak; _peak({what!r}, {n_examples}, {growth})"
    return printed(code, rounds=5)[0]


def _peak(what: str, n_examples: int, growth: bool) -> None:
    from probes import Probe, Sum, all_tokens, residual, run

    class MeanNorm(Probe):
        total = Sum()

        def __init__(self, at=residual(), readout=all_tokens()):
            self.at, self.readout = at, readout

        def update(self, activations, batch):
            for site, x in activations.items():
                self.total.add(site, x.norm(dim=-1).sum())

        def compute(self):
            return self.result({"norm": torch.stack([self.total[s] for s in self.site_names])}, {"norm": ("site",)})

    model, batches = _setting(n_examples)
    model.eval()
    with torch.inference_mode():
        model(next(batches()).tokens)  # allocations of the first pass are not the measurement's
    forget_peak()  # the peak so far is the imports'
    before = held()
    if what == "cache":
        _cache_loop(model, batches)
    else:
        run(model, batches(), MeanNorm())
    print(peak() - (before if growth else 0))


def import_time() -> float:
    """`import probes` against `import torch`, each in a fresh process."""
    return _over_torch("-c", "import probes")


def help_time() -> float:
    """The help of a command against `import torch`, each in a fresh process."""
    return _over_torch("-m", "mechclust", "clusters", "--help")


def _over_torch(*given: str) -> float:
    def fresh(*arguments: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)

    return alternate(fresh(*given), fresh("-c", "import torch"), rounds=5)


def _memory_over_cache() -> float:
    return peak_mib("run", 512, growth=True) / peak_mib("cache", 512, growth=True)


def _memory_over_data() -> float:
    """Additive state: the data's size must not show."""
    return peak_mib("run", 4096, growth=False) / peak_mib("run", 512, growth=False)


def _training() -> Table:
    return [
        ("training step / bare Hugging Face GPT-2 loop", training_step, "<= 1.10"),
        ("probes.run, 8 residual sites x 3 readouts / bare forward", probes_over_forward, "<= 1.20"),
        ("time, the same / hand-written run_with_cache loop", probes_over_cache, ""),
        ("growth of peak memory, probes.run / run_with_cache loop", _memory_over_cache, ""),
        ("peak memory of the process, 8x the data / 1x", _memory_over_data, "1"),
        ("import probes / import torch", import_time, "<= 1.05"),
        ("mechclust clusters --help / import torch", help_time, "<= 1.20"),
    ]


def _probes() -> Table:
    return [
        ("BERT-base forward with TopicAttention / without", topics.attention_overhead, "<= 1.30"),
        ("ClusteringHead on 4,096 sequences / bare forward", heads.detector, ""),
        ("growth of memory while a task of 4,000 prompts is measured / of 1,000", mossa.memory, "<= 1.5"),
    ]


TABLES: dict[str, Callable[[], Table]] = {
    "run": _training,
    "extraction": extraction.table,
    "clusters": kmeans.table,
    "cka": cka.table,
    "probes": _probes,
    "ensembles": ensembles.table,
    "long-texts": long_texts.table,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.run", description=__doc__)
    parser.add_argument("tables", nargs="*", help=f"which: goals, {', '.join(TABLES)}; all by default")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="with cuda: the goals on a GPU alone")
    given = parser.parse_args()
    chosen = given.tables or ["goals", *TABLES]
    if unknown := [name for name in chosen if name not in ("goals", *TABLES)]:
        parser.error(f"no table {unknown[0]!r}; expected goals, {', '.join(TABLES)}")
    if given.device == "cuda":
        chosen = ["goals"]
    if "goals" in chosen:
        goals.write_goals(given.device)
        chosen.remove("goals")
    print("| measurement (median ratio, one thread) | ratio | goal |\n|---|---|---|")
    for name in chosen:
        for what, measure, goal in TABLES[name]():
            print(f"| {what} | {measure():.3g} | {goal} |", flush=True)


if __name__ == "__main__":
    main()
