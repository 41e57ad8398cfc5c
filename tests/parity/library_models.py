"""Building, training and loading models, the tasks, and the commands as functions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from tests.parity.library_probes import instructions, model_of
from tests.parity.library_rows import outcome
from tests.parity.names import Library

TOKENS = torch.tensor([[2, 3, 4, 5, 6], [7, 8, 9, 10, 11]])


def build(lib: Library, inputs: Path) -> Any:
    """Build, save and load a model."""
    mechclust = lib.mechclust
    model = mechclust.build_model(mechclust.ModelConfig(d_vocab=22, n_ctx=8, n_layers=2, d_model=16, n_heads=2))
    mechclust.save_model(model, "model.safetensors", note="ours")
    with torch.no_grad():
        logits, again = model(TOKENS), mechclust.load_model("model.safetensors")(TOKENS)
    metadata = lib.package("mechclust.models").read_metadata("model.safetensors")
    return {"logits": logits, "again": again, "hooks": sorted(model.hook_dict), "note": metadata.get("note")}


def train(lib: Library, inputs: Path) -> Any:
    """Train a model with callbacks, and train an ensemble."""
    training = lib.package("mechclust.training")
    task = lib.tasks.InstructionFollowing(n_tasks=2, n_symbols=8, n_eval=16)
    model, run = model_of(lib, task), Path("run")
    config = lib.mechclust.TrainConfig(steps=4, batch_size=8, n_checkpoints=3)
    batches = list(task.batches("validation_subset", 8))
    callbacks = [
        training.CheckpointCallback(run / "models", [0, 2, 4]),
        training.ProbeCallback(run, {"val": batches}, {"dims": lib.probes.NDims()}),
        training.AccuracyCallback(run, task, "validation_subset"),
    ]
    losses = lib.mechclust.train(model, task, config, run, callbacks)
    adding = lib.tasks.SparseModularAddition(p=2, length=6, n_support=3, n_train=32, n_test=32)
    members = [training.Member(lib.mechclust.model_for(adding, n_layers=1, d_model=8, n_heads=2, seed=s), adding)
               for s in (0, 1)]  # fmt: skip
    settings = lib.mechclust.TrainConfig(steps=4, batch_size=16)
    snapshots = training.train_ensemble(members, settings, "ensemble", snapshot_every=2)
    accuracy = list(training.accuracy(model, task, "validation_subset"))
    return {"losses": losses, "accuracy": accuracy, "steps": list(snapshots.steps), "ensemble": snapshots.losses()}


def _loaded(lib: Library, model: Any) -> dict[str, Any]:
    """Return a model's hook points and hidden states."""
    rows = lib.probes.collect_rows(model, TOKENS)
    return {"hooks": sorted(model.hook_dict), "rows": rows, "kind": type(model).__name__}


def load(lib: Library, inputs: Path) -> Any:
    """Load every family in every way."""
    load_pretrained, models = lib.mechclust.load_pretrained, lib.package("mechclust.models")
    found = {name: _loaded(lib, load_pretrained(inputs / name)) for name in ("gpt2", "llama", "bert", "bart", "bloom")}
    found["sdpa"] = _loaded(lib, load_pretrained(inputs / "gpt2", attention="sdpa"))
    found["half"] = _loaded(lib, load_pretrained(inputs / "gpt2", dtype=torch.bfloat16))
    found["untrained"] = _loaded(lib, load_pretrained(inputs / "gpt2", untrained=True, seed=3))
    found["spread"] = _loaded(lib, load_pretrained(inputs / "gpt2", device_map="auto"))
    model = load_pretrained(inputs / "gpt2")
    found["embeddings"] = models.token_embeddings(model)
    found["tokenizer"] = models.load_tokenizer(inputs / "gpt2")[0]("w1 w2")["input_ids"]
    if find_spec("peft"):
        found["adapter"] = _loaded(lib, load_pretrained(inputs / "gpt2", adapter=inputs / "adapter"))
        models.set_adapter(model, inputs / "adapter")
        found["set adapter"] = _loaded(lib, model)
        models.set_adapter(model, None)
        found["adapter removed"] = _loaded(lib, model)
    return found


def load_gguf(lib: Library, inputs: Path) -> Any:
    """Load a file in llama.cpp's format."""
    return _loaded(lib, lib.mechclust.load_pretrained(inputs / "tiny.gguf"))


def load_quantised(lib: Library, inputs: Path) -> Any:
    """Load weights in 8 and 4 bits."""
    kinds = ("8bit", "4bit")
    return {k: _loaded(lib, lib.mechclust.load_pretrained(inputs / "wide-llama", quantization=k)) for k in kinds}


def refused_models(lib: Library, inputs: Path) -> Any:
    """Give settings and models that cannot be used."""
    mechclust, bad = lib.mechclust, inputs / "bad"
    given: dict[str, Callable[[], Any]] = {
        "steps": lambda: mechclust.TrainConfig(steps=2.5),
        "rate": lambda: mechclust.TrainConfig(lr=float("inf")),
        "layers": lambda: mechclust.ModelConfig(d_vocab=20, n_ctx=8, n_layers="5"),
        "width": lambda: mechclust.ModelConfig(d_vocab=20, n_ctx=8, d_model=True),
        "vocabulary": lambda: mechclust.ModelConfig(d_vocab=10**12, n_ctx=8),
        "heads": lambda: mechclust.ModelConfig(d_vocab=20, n_ctx=8, d_model=8, n_heads=3),
        "before data": lambda: lib.probes.NDims().compute(),
        "no model": lambda: mechclust.load_pretrained(inputs / "nowhere"),
        "cut weights": lambda: mechclust.load_pretrained(bad / "cut-weights"),
        "wrong config": lambda: mechclust.load_pretrained(bad / "wrong-config"),
        "damaged adapter": lambda: mechclust.load_pretrained(inputs / "gpt2", adapter=bad / "adapter"),
        "number as model": lambda: mechclust.load_pretrained(5),
        "3bit": lambda: mechclust.load_pretrained(inputs / "gpt2", quantization="3bit"),
        "not a saved model": lambda: mechclust.load_model(inputs / "rows.safetensors"),
        "prompts": lambda: mechclust.ClustersConfig(inputs / "prompts.jsonl", position="middle").check(),
        "permutations": lambda: mechclust.ClustersConfig(inputs / "prompts.jsonl", n_permutations=0).check(),
        "tolerance": lambda: mechclust.CompareConfig(inputs / "prompts.jsonl", tolerance=float("nan")).check(),
    }
    kinds = {name: outcome(function) for name, function in given.items()}
    return {name: found.get("error", "accepted") for name, found in kinds.items()}


def tasks(lib: Library, inputs: Path) -> Any:
    """Draw batches of every task, and read prompts and corpora."""
    ours = lib.tasks
    made = [
        instructions(lib),
        ours.SkillSuite(n_eval=8),
        ours.SparseModularAddition(length=6, n_support=3, n_train=64, n_test=64),
        ours.TopicDocuments(n_topics=3, words_per_topic=3, lengths=(5, 9), n_documents=24),
    ]
    found: dict[str, Any] = {}
    for task in made:
        split = sorted(task.splits)[0]
        batches = [task.train_batch(3, 4), next(task.batches(split, 4))]
        again = type(task).from_config(task.to_config())
        found[type(task).__name__] = {"batches": batches, "splits": sorted(task.splits), "same": again == task}
    prompts = ours.LabelledPrompts.from_file(inputs / "prompts.jsonl")
    corpus = ours.Corpus.from_files([inputs / "corpus"], min_words=5)
    topics = ours.fit_topics(corpus, n_topics=3, passes=2, min_documents=1, max_share=1.0, stop_words="none")
    found["prompts"] = [list(prompts.prompts), dict(prompts.labels)]
    found["documents"] = sorted(corpus.documents)[:3]
    found["stream"] = sorted(ours.CorpusStream(inputs / "corpus.jsonl", text_field="body"))[:3]
    found["topics"] = {"words": topics.top_words(4), "weights": topics.weights}
    kinds = (
        isinstance(topics, ours.TopicModel),
        issubclass(ours.InputError, ValueError),
        isinstance(made[0], ours.Task),
    )
    found["kinds"] = [*kinds, ours.EncodedCorpus.__name__]
    texts = lib.package("tasks.text.instructions")
    read = texts.read_natural_instructions(inputs / "natural")
    found["instructions"] = [(task.name, len(task.train), len(task.test)) for task in read.tasks]
    return found


def commands(lib: Library, inputs: Path) -> Any:
    """Call the commands as functions, with models in memory where they take them."""
    mechclust, prompts = lib.mechclust, inputs / "prompts.jsonl"
    load_pretrained = mechclust.load_pretrained
    base, tuned = load_pretrained(inputs / "gpt2"), load_pretrained(inputs / "tuned")
    clusters = mechclust.measure_clusters(
        base, mechclust.ClustersConfig(prompts, untrained=0, n_permutations=20, n_shuffles=3, n_init=1)
    )
    compared = mechclust.compare_models(
        base, tuned, mechclust.CompareConfig(prompts, min_per_task=6, n_resamples=20, n_permutations=5), "rows"
    )
    history = mechclust.measure_history(
        inputs / "series", mechclust.HistoryConfig(prompts, n_init=1, n_permutations=19, cka_permutations=5), "series"
    )
    settings: dict[str, Any] = {"n_topics": 3, "passes": 2, "min_documents": 1, "max_share": 1.0, "untrained": 0}
    topics = mechclust.measure_topics(
        load_pretrained(inputs / "bert"),
        mechclust.TopicsConfig((inputs / "corpus",), thresholds=(0.1,), n_permutations=9, **settings),
    )
    written = {
        "clusters": _write(lib, "clusters", clusters, "clusters"),
        "compare": _write(lib, "compare", compared, "compare"),
        "history": _write(lib, "history", history, "history"),
        "topics": _write(lib, "topics", topics, "topics"),
    }
    results = (clusters, compared, history, topics)
    classes = ("ClustersResult", "CompareResult", "HistoryResult", "TopicsResult")
    return {
        "written": {name: sorted(p.name for p in Path(name).rglob("*") if p.is_file()) for name in written},
        "kinds": [isinstance(r, getattr(mechclust, name)) for r, name in zip(results, classes, strict=True)],
        "cka": compared.cka,
        "history": dict(history.results),
        "checked": _checked(lib, base),
    }


def _write(lib: Library, command: str, result: Any, folder: str) -> Path:
    """Write a report: a method of the result, and a function of the command in version 0.1."""
    if hasattr(result, "write"):
        return Path(result.write(folder))
    return Path(getattr(lib.mechclust, f"write_{command}_report")(result, folder))


def _checked(lib: Library, model: Any) -> Any:
    report = lib.mechclust.check_model(model)
    kinds = [isinstance(report, lib.mechclust.CheckReport), isinstance(report.checks[0], lib.mechclust.Check)]
    return {"checks": {check.name: check.passed for check in report.checks}, "kinds": kinds}


def mossa(lib: Library, inputs: Path) -> Any:
    """Run mossa as a function, with models that were tuned elsewhere."""
    mechclust = lib.mechclust
    controls = tuple(str(inputs / "mossa-controls" / name) for name in ("copy", "swap", "first", "last"))
    config = mechclust.MossaConfig(
        tasks=inputs / "tasks", prompt_field="ask", answer_field="reply", cutoff=32, ceilings=0, nulls=1, n_answers=2,
        n_shown=4, rbf=False, without_top=False, experimental=str(inputs / "mossa-tuned"), controls=controls,
    )  # fmt: skip
    found = mechclust.run_mossa(inputs / "mossa-base", config, "run")
    _write(lib, "mossa", found, "report")
    files = sorted(path.name for path in Path("report").rglob("*") if path.is_file())
    loaded = mechclust.load_result(next(Path("run").rglob("*.cka.safetensors"), None) or _any_result())
    return {"kind": isinstance(found, mechclust.MossaResult), "tasks": list(found.tasks), "files": files,
            "result": loaded.probe}  # fmt: skip


def _any_result() -> Path:
    """Return some file of results that the run wrote."""
    return sorted(Path("report").rglob("*.safetensors"))[0]


def attention_view(lib: Library, inputs: Path) -> Any:
    """Show attention, and write the page."""
    attention = lib.package("mechclust.attention")
    view = attention.attention_view(lib.mechclust.load_pretrained(inputs / "gpt2"), "w1 w2 w3")
    own = attention.attention_view_from_patterns(view.patterns, view.str_tokens, view.names, causal=True)
    return {"patterns": view.patterns, "tokens": list(view.str_tokens), "names": list(view.names),
            "same": isinstance(own, attention.AttentionView)}  # fmt: skip


def imports(lib: Library, inputs: Path) -> Any:
    """Name the modules that the packages load, in a fresh process."""
    import subprocess

    heavy = ("transformer_lens", "pandas", "matplotlib", "sklearn", "transformers")
    shown = f"import sys; print([m for m in {heavy!r} if m in sys.modules])"
    found = {}
    for package in ("tasks", "probes", "probes.functional", "mechclust"):
        command = [sys.executable, "-P", "-c", f"import {package}; {shown}"]
        found[package] = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return found


CALLS: dict[str, Callable[[Library, Path], Any]] = {
    "build": build,
    "train": train,
    "load": load,
    **({"load-gguf": load_gguf} if find_spec("gguf") else {}),
    **({"load-quantised": load_quantised} if find_spec("bitsandbytes") else {}),
    "refused-models": refused_models,
    "tasks": tasks,
    "commands": commands,
    **({"mossa-in-python": mossa} if find_spec("peft") else {}),
    "attention-view": attention_view,
    "imports": imports,
}
