"""What is disturbed: the commands, every study's smoke preset, and the Python calls that write files, on tiny random
models. Each writes into ``out`` of its working folder."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults.process import Call, command, python

if TYPE_CHECKING:  # imported by processes only, late
    from mechclust.jobs import Engine
    from probes.engine.hooked_model import HookedModel
    from tasks import Batch

STUDIES = (
    *("task-clusters", "cluster-factors", "topic-structure", "clustering-heads", "mossa", "planted-layers"),
    *("heads-in-models", "induction-heads"),
)
N_PER_TASK = 20


@dataclass(frozen=True)
class Subject:
    """Something that is run.

    Attributes:
        name: on the command line of the campaign.
        call: from the folder of inputs.
        begins: another subject, whose finished ``out`` it starts from.
        waits: whether a second owner waits a while before it is refused, as training does.
    """

    name: str
    call: Callable[[Path], Call]
    begins: str | None = None
    waits: bool = False


def make_inputs(folder: Path) -> None:
    """Two tiny GPT-2 checkpoints, prompts of three tasks, and a corpus of two topics."""
    from tests.mechclust.commands.compare.cases import records, shake
    from tests.mechclust.conftest import checkpoint

    checkpoint(folder / "base")
    checkpoint(folder / "tuned", change=shake)
    write_prompts(folder / "prompts.jsonl", records(n=N_PER_TASK))
    write_corpus(folder / "corpus.txt", corpus())


def write_prompts(path: Path, rows: Iterable[object]) -> None:
    """One JSON object a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def corpus() -> list[str]:
    """Documents whose words are of one of two topics."""
    draw = random.Random(0)
    topics = [range(8), range(10, 18)]
    return [" ".join(f"w{draw.choice(topics[i % 2])}" for _ in range(30)) for i in range(30)]


def write_corpus(path: Path, documents: Iterable[str]) -> None:
    """Paragraphs."""
    path.write_bytes("\n\n".join(documents).encode(errors="surrogatepass"))


# ---- the calls ----


COMPARE = ("--n-resamples", "20", "--n-permutations", "2", "--map-prompts", "20")
CLUSTERS = ("--n-permutations", "5", "--n-shuffles", "3", "--n-init", "2", "--map-prompts", "20")
TOPICS = (
    *("--n-topics", "2", "--passes", "2", "--thresholds", "0.2", "--no-below", "2", "--no-above", "1"),
    *("--min-words", "10", "--resamples", "20", "--topic-seeds", "0", "1", "--max-length", "16"),
)


def _compare(inputs: Path) -> Call:
    models = (str(inputs / "base"), str(inputs / "tuned"))
    return command("compare", *models, "--prompts", str(inputs / "prompts.jsonl"), *COMPARE, "--out", "out")


def _clusters(inputs: Path) -> Call:
    prompts = ("--prompts", str(inputs / "prompts.jsonl"))
    return command("clusters", str(inputs / "base"), *prompts, *CLUSTERS, "--out", "out")


def _topics(inputs: Path) -> Call:
    corpus = ("--corpus", str(inputs / "corpus.txt"))
    return command("topics", str(inputs / "base"), *corpus, *TOPICS, "--out", "out")


def _study(name: str, workers: int) -> Callable[[Path], Call]:
    def call(inputs: Path) -> Call:
        return command("run", name, "--preset", "smoke", "--workers", str(workers), "--out", "out")

    return call


def _report(inputs: Path) -> Call:
    return command("report", "out")


def _save_rows(inputs: Path) -> Call:
    def work() -> None:
        from probes.rows.save import save_rows

        store = save_rows(small_model(), small_batches(), "out", labels=["task"], shard_rows=24)
        store.take(store.index, [f"rows/{site}" for site in store.sites])  # checksums are compared by whoever reads

    return python(work)


def sharded(address: str | None = None) -> Call:
    """Two probes over shards, in one process or on a Ray cluster."""

    def work() -> None:
        from mechclust.jobs import Ray, run_sharded
        from probes import CKA, NDims

        engine: Engine = "local" if address is None else Ray(address)
        out = Path("out")
        probes = [NDims(), CKA()]
        kept = out / "shards"
        results = run_sharded(small_model, small_batches(), probes, engine=engine, shard_examples=40, out=kept)
        for k, result in enumerate(results):
            result.save(out / f"{k}.safetensors")

    return python(work)


def _train(inputs: Path) -> Call:
    def work() -> None:
        from mechclust import TrainConfig, build_model, model_for, save_model, train
        from mechclust.training import ProbeCallback
        from probes import NDims, TaskClusterARI
        from tasks import InstructionFollowing

        task = InstructionFollowing(n_tasks=4, variants=20, n_eval=40)
        model = build_model(model_for(task, n_layers=2, d_model=16))
        probes = {"dims": NDims(), "ari": TaskClusterARI("task", n_permutations=5, n_init=2)}
        batches = {"validation": list(task.batches("validation_subset"))}
        config = TrainConfig(steps=40, batch_size=16, n_checkpoints=6, save_every=5)
        train(model, task, config, "out", [ProbeCallback("out/results", batches, probes)])
        save_model(model, "out/model.safetensors")

    return python(work)


def _train_ensemble(inputs: Path) -> Call:
    def work() -> None:
        from mechclust.studies.clustering_heads import PoolingTransformerConfig
        from mechclust.training import Member, TrainConfig, train_ensemble
        from tasks import SparseModularAddition

        def data(seed: int) -> SparseModularAddition:
            return SparseModularAddition(length=5, n_support=2, n_train=70, n_test=8, seed=seed)

        members = [Member(PoolingTransformerConfig(n_ctx=5, d_mlp=4, seed=s), data(s)) for s in (0, 1, 2)]
        config = TrainConfig(
            steps=120, batch_size=16, lr=1e-2, schedule="constant", optimizer="adam", weight_decay=0.0, clip=None,
            save_every=13,
        )  # fmt: skip
        train_ensemble(members, config, "out", backend="vmap")

    return python(work)


def _artefacts(inputs: Path) -> Call:
    """Reads files of each kind that a user keeps, and makes anew what is not there."""

    def work() -> None:
        from mechclust import load_model, load_result, save_model
        from mechclust.models.weights import get_weights
        from probes import NDims, run

        out, model, probe = Path("out"), small_model(), NDims()
        batches = list(small_batches(4))
        if not (out / "model.safetensors").exists():
            save_model(model, out / "model.safetensors")
        if not (out / "result.safetensors").exists():
            run(model, batches, NDims()).save(out / "result.safetensors")
        if not (out / "state.safetensors").exists():
            kept = NDims()
            run(model, batches, kept)
            kept.save_state(out / "state.safetensors")
        weights = get_weights(load_model(out / "model.safetensors"))
        result = load_result(out / "result.safetensors")
        probe.load_state(out / "state.safetensors")
        print(sum(float(x.double().sum()) for x in weights.values()))
        print(result.to_dataframe().to_string(), probe.compute().to_dataframe().to_string())

    return python(work)


def small_model() -> HookedModel:
    """A random transformer for the Python calls."""
    from mechclust import ModelConfig, build_model

    return build_model(ModelConfig(d_vocab=40, n_ctx=12, n_layers=3, d_model=32, n_heads=2, init_std=0.2))


def small_batches(n: int = 40) -> Iterator[Batch]:
    """Random tokens, drawn by the batch's number."""
    import torch

    from tasks import Batch

    for k in range(n):
        draw = torch.Generator().manual_seed(k)
        index = torch.arange(8 * k, 8 * k + 8)
        yield Batch(torch.randint(40, (8, 12), generator=draw), labels={"task": index % 3}, index=index)


SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject("save_rows", _save_rows),
        Subject("train", _train, waits=True),
        Subject("train_ensemble", _train_ensemble, waits=True),
        Subject("run_sharded", lambda inputs: sharded()),
        Subject("artefacts", _artefacts),
        *(Subject(name, _study(name, 1)) for name in STUDIES),
        *(Subject(f"{name} --workers 2", _study(name, 2)) for name in STUDIES),
        Subject("compare", _compare),
        Subject("clusters", _clusters),
        Subject("topics", _topics),
        Subject("report", _report, begins="mossa"),
    )
}
