"""Measurements against peers, as ratios within one run. `make bench` also writes the goals into docs/cost.md."""

from __future__ import annotations

import argparse
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial

import torch

from tests.benchmarks import (
    attention,
    cka,
    corpora,
    ensembles,
    extraction,
    goals,
    heads,
    jobs,
    kmeans,
    long_texts,
    mossa,
    pairs,
    stores,
    topic_models,
    topics,
    tuning,
)
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


def _topics() -> Table:
    overhead, plain, matched = topics.attention_overhead, "TopicAttention", "DistanceMatchedTopicAttention"
    return [
        ("per-pair loop / TopicAttention, 100 documents x 100 tokens", topics.attention_loop, ">= 100"),
        ("the same, the loop over Python lists prepared in advance", lambda: topics.attention_loop(lists=True), ""),
        ("BERT-base forward with TopicAttention / without", partial(overhead, plain), "<= 1.30"),
        ("the same with DistanceMatchedTopicAttention", partial(overhead, matched), "<= 1.30"),
        ("the same with both", partial(overhead, plain, matched), "<= 1.30"),
        ("the same with 18 matched, as of a suite of 3 topic models", partial(overhead, *[matched] * 18), ""),
        ("BERT-base forward with TopicEmbedding, 20,000 words x 13 sites / without", topics.embedding_overhead, ""),
        ("MiB of that probe at its peak, of which its sums are 1,523 (no ratio)", topics.embedding_memory, "<= 1600"),
        ("double loop / topic_similarity, 400 words", topics.similarity_loop, ""),
        ("25 runs of the attention table, full forward / ours", topics.attention_table, ">= 4"),
    ]


def _heads() -> Table:
    return [
        ("40 runs of train / train_ensemble of 40 seeds, an epoch", heads.speedup, ">= 20"),
        ("the same, uncompiled (vmap)", lambda: heads.speedup("vmap"), ""),
        ("ClusteringHead on 4,096 sequences / bare forward", lambda: heads.detector()[0], ""),
        ("ms of ClusteringHead per snapshot (no ratio)", lambda: heads.detector()[1], ""),
        ("ms per epoch and seed, ensemble of 40 (no ratio)", lambda: 1e3 * heads.seconds_per_epoch() / 40, ""),
        ("s to make a sandbox page of 300 epochs (no ratio)", lambda: heads.sandbox()[0], ""),
        ("MB of that page (no ratio)", lambda: heads.sandbox()[1], "<= 15"),
    ]


def _views() -> Table:
    return [
        ("circuitsvis AttentionHeads / attention view, 12 x 128", attention.faster, ">= 10"),
        ("ms until that view is drawn (no ratio)", attention.milliseconds, "<= 1000"),
        ("MB of its page (no ratio)", attention.megabytes, "<= 3"),
    ]


TABLES: dict[str, Callable[[], Table]] = {
    "run": _training,
    "extraction": extraction.table,
    "stores": stores.table,
    "jobs": jobs.table,
    "clusters": kmeans.table,
    "cka": cka.table,
    "pairs": pairs.table,
    "topics": _topics,
    "topic-models": topic_models.table,
    "corpora": corpora.table,
    "heads": _heads,
    "ensembles": ensembles.table,
    "views": _views,
    "long-texts": long_texts.table,
    "tuning": tuning.table,
    "mossa": mossa.table,
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
