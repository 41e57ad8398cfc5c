"""Goals for speed that were set from a first measurement, with their measures: on two CPU cores, and on one GPU."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tasks import Batch
from tests.benchmarks import cka, extraction
from tests.benchmarks.commands import random_texts, run_command, word_model, write_prompts
from tests.benchmarks.ratio import alternate

PAGE = Path(__file__).parents[2] / "docs" / "cost.md"


class Goal(NamedTuple):
    """A measurement: its name, its first value, the goal, and the function that measures it."""

    name: str
    first: str
    goal: str
    measure: Callable[[], float]


def cpu_goals() -> list[Goal]:
    """Return the goals on the CPU. All are ratios of two times in one run, unless the name gives a unit."""
    return [
        *(
            Goal(f"CKA of {n} layers x 2,000 x 1,024 / {than}", first, goal, partial(measure, n))
            for than, measure, rows in (
                (
                    "a streamed prototype",
                    cka.kernels_over_grams,
                    ((8, "3.0", "1.1"), (16, "6.7", "1.1"), (33, "8.6", "1.1")),
                ),
                ("bare products", cka.kernels_over_products, ((8, "2.0", "0.7"), (16, "2.6", "0.5"), (33, "", "0.4"))),
            )
            for n, first, goal in rows
        ),
        Goal("`clusters`, 1,000 prompts, 6 layers / its forward passes", "2.25", "1.5", clusters_over_forward),
        Goal("200 relabellings of the ARI: n = 9,999 / 20,000", "7", "1", relabellings),
        Goal("`run` on tiny inputs / a bare pass", "1.42", "1.1", tiny_run),
        Goal("states from texts / a bare pass on their tokens", "1.39", "1.1", states_from_texts),
        Goal("`train` / a loop with sdpa and one product for q, k, v", "1.21", "1.05", train_over_loop),
        Goal("`train_ensemble` before its first step, in seconds", "1", "0.2", ensemble_start),
        Goal("share of `history` that draws figures", "0.24", "0.08", history_drawing),
        Goal("k-means ARI 20,000 x 768 / scikit-learn", "0.93", "0.7", kmeans_over_scikit_learn),
    ]


def cuda_goals() -> list[Goal]:
    """Return the goals on a GPU: ratios, or times in the unit that the name gives. First values are an H100's."""
    return [
        Goal(
            "`collect_rows` / a bare pass, 1.6B, 2,000 prompts", "2.8", "1.1", lambda: 1 / extraction.run_speed("cuda")
        ),
        Goal("`TaskClusterARI`, 17 layers x 2,000 x 2,048, in seconds", "10 to 12", "1", partial(probe_seconds, "ari")),
        Goal("`NDims`, in seconds", "8.0", "1", partial(probe_seconds, "dims")),
        Goal("`LinearDecodability`, in seconds", "5.0", "1", partial(probe_seconds, "linear")),
        Goal("k-means 20,000 x 768, in seconds", "0.64", "0.1", partial(kmeans_seconds, 20_000, 768)),
        Goal("k-means 100,000 x 768, in seconds", "2.4", "0.4", partial(kmeans_seconds, 100_000, 768)),
        Goal("k-means 1,000,000 x 64, in seconds", "3.2", "0.5", partial(kmeans_seconds, 1_000_000, 64)),
        Goal("CKA 1,000 x 4,096, in milliseconds", "2.7", "0.8", lambda: 1e3 * cka_seconds(1_000, 4_096)),
        Goal("training step, 6 layers, d 128, in milliseconds", "23", "8", lambda: 1e3 * step_seconds()),
    ]


# ---- commands ----


def _forward_seconds(folder: Path, texts: list[str]) -> float:
    """Return the processor seconds of bare forward passes of a model's body over texts, sorted by length."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    batches = [
        tokenizer(sorted(texts, key=len)[i : i + 64], return_tensors="pt", padding=True)
        for i in range(0, len(texts), 64)
    ]
    start = time.process_time()
    with torch.inference_mode():
        for batch in batches:
            model.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False)
    return time.process_time() - start


def clusters_over_forward() -> float:
    """Return the time of ``clusters``, imports included, over that of its forward passes (three copies are random)."""
    model = word_model(6, 512)
    texts = random_texts(1000, 16, 31)
    with tempfile.TemporaryDirectory() as folder:
        prompts = write_prompts(Path(folder), texts)
        used = run_command("clusters", str(model), "--prompts", str(prompts), "--out", f"{folder}/run")
    return used.seconds / (4 * _forward_seconds(model, texts))


def history_drawing() -> float:
    """Return the share of ``history`` that draws and writes the report, on eight checkpoints and 300 prompts."""
    from mechclust.commands.history import HistoryConfig, measure_history

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for seed in range(8):
            (folder / f"checkpoint-{seed}").symlink_to(word_model(4, 256, seed=seed))
        checkpoints = tuple(sorted(folder.iterdir()))
        config = HistoryConfig(prompts=write_prompts(folder, random_texts(300, 16, 31)), checkpoints=checkpoints)
        start = time.perf_counter()
        result = measure_history(str(folder), config, folder / "run")
        measured = time.perf_counter()
        result.write(folder / "report")
        return (time.perf_counter() - measured) / (time.perf_counter() - start)


# ---- states, relabellings, k-means ----


def relabellings() -> float:
    """Return the time of 200 relabellings of 9,999 examples over that of 20,000."""
    from probes.functional import adjusted_rand_null

    rng = np.random.default_rng(0)
    few, many = (rng.integers(10, size=(2, n)) for n in (9_999, 20_000))
    return alternate(lambda: adjusted_rand_null(*few, 200), lambda: adjusted_rand_null(*many, 200))


def tiny_run() -> float:
    """Return the time of ``run`` with every layer's last token over a bare pass: 64 batches of 8 short sequences."""
    from mechclust import ModelConfig, build_model
    from probes import collect_rows

    model = build_model(ModelConfig(d_vocab=60, n_ctx=12, n_layers=4, d_model=32, n_heads=4)).eval()
    tokens = torch.randint(60, (512, 12), generator=torch.Generator().manual_seed(0))
    batches = list(Batch(tokens, index=torch.arange(512)).split(8))

    def bare() -> None:
        with torch.inference_mode():
            for batch in batches:
                model(batch.tokens)

    return alternate(lambda: collect_rows(model, batches), bare)


def states_from_texts() -> float:
    """Return the time of ``collect_rows`` from 300 texts over bare passes of the batches that it makes of them."""
    from transformers import AutoModel

    from mechclust.models import load_pretrained
    from probes import collect_rows
    from probes.engine.batches import each_batch

    folder = str(word_model(6, 256))
    model, plain = load_pretrained(folder, attention="sdpa"), AutoModel.from_pretrained(folder).eval()
    texts = {"text": random_texts(300, 16, 31)}
    batches = list(each_batch(texts, {"": model}, tokens_per_batch=2048))

    def bare() -> None:
        with torch.inference_mode():
            for batch in batches:
                plain(input_ids=batch.tokens, attention_mask=batch.attention_mask, use_cache=False)

    return alternate(lambda: collect_rows(model, texts, tokens_per_batch=2048), bare, rounds=3)


def kmeans_over_scikit_learn() -> float:
    """Return the time of ``TaskClusterARI`` on rows over that of scikit-learn, both with 10 starts of k-means."""
    from sklearn.cluster import KMeans
    from sklearn.metrics import adjusted_rand_score
    from threadpoolctl import threadpool_limits

    from probes import TaskClusterARI, last_token, rows_from, run_stores

    rng = np.random.default_rng(0)
    task = rng.integers(10, size=20_000)
    rows = (rng.normal(size=(10, 768)) * 0.5)[task].astype(np.float32) + rng.standard_normal((20_000, 768), np.float32)
    saved = rows_from({"blocks.0.hook_resid_post": torch.from_numpy(rows)}, labels={"task": torch.from_numpy(task)})
    probe = TaskClusterARI(at=["blocks.0.hook_resid_post"], readout=last_token(), n_permutations=0)

    def theirs() -> None:
        with threadpool_limits(1):
            adjusted_rand_score(task, KMeans(10, n_init=10, random_state=0).fit_predict(rows))

    return alternate(lambda: run_stores(saved, probe), theirs, rounds=1)


# ---- training ----


class _Block(nn.Module):
    """A pre-norm block with one product for queries, keys and values, and fused causal attention."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(2))
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x: Tensor) -> Tensor:
        batch, pos, d = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(batch, pos, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, pos, d))
        return x + self.mlp(self.norms[1](x))


class _Transformer(nn.Module):
    """A causal transformer as a user would write it for speed."""

    def __init__(self, d_vocab: int, n_ctx: int, layers: int, d: int, heads: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(d_vocab, d), nn.Embedding(n_ctx, d)
        self.blocks = nn.Sequential(*(_Block(d, heads) for _ in range(layers)), nn.LayerNorm(d))
        self.head = nn.Linear(d, d_vocab)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.token(tokens) + self.place.weight[: tokens.shape[1]]))


def _training(device: str = "cpu") -> tuple[Any, Any, Any]:
    from mechclust import build_model, model_for
    from tasks import InstructionFollowing

    task = InstructionFollowing(n_tasks=20)
    model = build_model(model_for(task, n_layers=6, d_model=128)).to(device)
    return task, model, _Transformer(task.d_vocab, task.n_ctx, 6, 128, 4).to(device)


def train_over_loop() -> float:
    """Return the time of ``train`` over that of a plain loop round a network that was written for speed."""
    task, model, peer = _training()

    def loss_of(batch: Batch, labels: Tensor) -> Tensor:
        return F.cross_entropy(peer(batch.tokens)[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

    return train_over(task, model, peer, loss_of, rounds=5)


def train_over(
    task: Any, model: Any, peer: nn.Module, loss_of: Callable[[Batch, Tensor], Tensor], rounds: int = 9, steps: int = 4
) -> float:
    """Return the time of ``train`` over that of a plain loop with the same data, optimiser, schedule and clipping.

    Args:
        task: the data of both.
        model: the network that ``train`` trains.
        peer: the network of the loop.
        loss_of: the peer's loss on a batch, whose labels are -100 in padding.
        rounds: rounds of ``alternate``.
        steps: steps of a round.
    """
    from mechclust import TrainConfig, train

    optimizer = torch.optim.AdamW(peer.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1200)

    def theirs() -> None:
        for step in range(steps):
            batch = task.train_batch(step, 256)
            loss = loss_of(batch, batch.tokens.masked_fill(~batch.attention_mask, -100))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(peer.parameters(), 1.0)
            optimizer.step()
            schedule.step()

    return alternate(lambda: train(model, task, TrainConfig(steps=steps)), theirs, rounds=rounds)


def ensemble_start() -> float:
    """Return the seconds of ``train_ensemble`` of 40 seeds without those of its steps."""
    from mechclust import TrainConfig
    from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
    from mechclust.training import Member, train_ensemble
    from tasks import SparseModularAddition

    members = [Member(PoolingTransformerConfig(seed=s), SparseModularAddition(seed=s)) for s in range(40)]

    def seconds(steps: int) -> float:
        config = TrainConfig(steps=steps, batch_size=32, lr=3e-3, schedule="constant", optimizer="adam", clip=None)
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            train_ensemble(members, config, folder, backend="vmap")
            return time.perf_counter() - start

    seconds(1)
    one = min(seconds(1) for _ in range(3))
    eleven = min(seconds(11) for _ in range(3))
    return one - (eleven - one) / 10


# ---- on a GPU ----


def _seconds_on(device: str, measured: Callable[[], object], rounds: int = 3) -> float:
    """Return the median seconds of a function, after one call that warms up."""
    seconds = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        measured()
        if device != "cpu":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return median(seconds[1:])


def probe_seconds(name: str, device: str = "cuda", layers: int = 17, n: int = 2_000, d: int = 2_048) -> float:
    """Return the seconds of a probe on rows of several layers with ten tasks."""
    from probes import LinearDecodability, NDims, TaskClusterARI, last_token, rows_from, run_stores

    draw = torch.Generator().manual_seed(0)
    task = torch.randint(10, (n,), generator=draw)
    centres = 0.3 * torch.randn(10, d, generator=draw)
    rows = {f"blocks.{i}.hook_resid_post": centres[task] + torch.randn(n, d, generator=draw) for i in range(layers)}
    stored = rows_from(rows, labels={"task": task})
    probe = {
        "ari": lambda: TaskClusterARI(at=[*rows], readout=last_token(), device=device),
        "dims": lambda: NDims(at=[*rows], device=device),
        "linear": lambda: LinearDecodability(at=[*rows], device=device),
    }[name]()
    return _seconds_on(device, lambda: run_stores(stored, probe), rounds=1)


def kmeans_seconds(n: int, d: int, device: str = "cuda") -> float:
    """Return the seconds of ten starts of k-means for ten clusters, with the rows on the device."""
    from probes.functional import kmeans

    rows = torch.randn(n, d, generator=torch.Generator().manual_seed(0)).to(device)
    return _seconds_on(device, lambda: kmeans(rows, 10, max_iter=30), rounds=1)


def cka_seconds(n: int, d: int, device: str = "cuda") -> float:
    """Return the seconds of CKA of two matrices on the device, in float32."""
    from probes.functional import linear_cka

    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randn(n, d, generator=draw).to(device) for _ in range(2))
    return _seconds_on(device, lambda: linear_cka(x, y, precision="float32"), rounds=20)


def step_seconds(device: str = "cuda", steps: int = 50) -> float:
    """Return the seconds of a training step with 256 sequences."""
    from mechclust import TrainConfig, train

    task, model, _ = _training(device)
    return _seconds_on(device, lambda: train(model, task, TrainConfig(steps=steps))) / steps


# ---- the tables ----


def write_goals(device: str) -> None:
    """Measure every goal of a device, and write the table into the docs' page on cost.

    Raises:
        SystemExit: without that device.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("bench: DEVICE is cuda, but there is no GPU; leave DEVICE out for the CPU's table")
    goals = cuda_goals() if device == "cuda" else cpu_goals()
    where = torch.cuda.get_device_name() if device == "cuda" else "two CPU cores"
    lines = [f"| on {where} | first | now | goal |", "|---|---|---|---|"]
    for goal in goals:
        value = goal.measure()
        now = f"{value:.2g}" if value <= float(goal.goal) else f"**{value:.2g}**"
        lines.append(f"| {goal.name} | {goal.first} | {now} | {goal.goal} |")
        print(lines[-1], flush=True)
    marked = re.compile(rf"(?<=<!-- goals: {device} -->\n\n).*?(?=\n\n<!-- end -->)", re.DOTALL)
    PAGE.write_text(marked.sub("\n".join(lines), PAGE.read_text(), count=1))
