"""Bad inputs of the command line: settings, folders of a user, files, models, series, streams."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from mechclust.commands.clusters import ClustersConfig
from mechclust.commands.compare import CompareConfig
from mechclust.commands.heads import HeadsConfig
from mechclust.commands.history import HistoryConfig
from mechclust.commands.mossa import MossaConfig
from mechclust.commands.sandbox import View
from mechclust.commands.topics import TopicsConfig
from mechclust.studies import list_studies
from probes import list_probes
from tests.bad_inputs.calls import Call, copied, result_of, warm_up
from tests.bad_inputs.inputs import write_inputs
from tests.bad_inputs.outcome import Case
from tests.bad_inputs.settings import HUGE, bad_words, numbers

N_SETTINGS = 440  # bad settings that are drawn from all
PROMPTS = "--prompts @in/prompts.jsonl"
CLUSTERS = f"clusters @in/gpt2 {PROMPTS} --out out --untrained 0 --n-permutations 20 --n-shuffles 3 --n-init 2"
COMPARE = (
    f"compare @in/gpt2 @in/tuned {PROMPTS} --out out --min-per-task 6 --n-resamples 20 --n-permutations 5 --no-top-pc "
    "--map-prompts 6"
)
HISTORY = f"history @in/series {PROMPTS} --out out --n-init 1 --n-permutations 19 --cka-permutations 5 --map-prompts 6"
_FEW_TOPICS = "--corpus @in/corpus --out out --n-topics 3 --passes 2"
TOPICS = (
    f"topics @in/bert {_FEW_TOPICS} --no-below 1 --no-above 1.0 --thresholds 0.1 0.2 --resamples 20 --topic-seeds 0 1"
)
HEADS = (
    "heads @in/gpt2 --corpus @in/corpus --split file --out out --length 24 --periods 5 9 --max-offset 3 "
    "--n-sequences 4 --max-length 16 --n-permutations 9"
)
SUITE = f"topics --suite @in/suite.toml {_FEW_TOPICS} --vocabulary 100"
MOSSA = (
    "mossa @in/mossa-base --tasks @in/tasks --prompt-field ask --answer-field reply --out out --tuning.lr 1e-2 "
    "--only copy swap first --ceilings 0 --nulls 0 --n-answers 0 --n-prompts 8 --cutoff 64"
)
SANDBOX = f"sandbox @in/series {PROMPTS} --out page.html --max-frames 10"
RUN = "run task-clusters --preset smoke --out out --workers 1 --training.steps 6 --arms private"
MEASURING = {
    "clusters": CLUSTERS, "compare": COMPARE, "history": HISTORY, "topics": TOPICS, "heads": HEADS, "suite": SUITE,
    "mossa": MOSSA,
}  # fmt: skip
WRITING = {**MEASURING, "run": RUN}
CONFIGURATIONS = {
    "clusters": ClustersConfig, "compare": CompareConfig, "history": HistoryConfig, "topics": TopicsConfig,
    "heads": HeadsConfig, "mossa": MossaConfig, "sandbox": View,
}  # fmt: skip
NAN = float("nan")


def cases(folder: Path, rng: np.random.Generator) -> Iterator[Case]:
    """Yield the cases.

    Args:
        folder: where the inputs are written.
        rng: draws the settings.
    """
    warm_up()
    inputs = folder / "in"
    write_inputs(inputs)
    kinds = {
        "settings": settings_calls(rng),
        "ownership": ownership_calls(),
        "prompts": prompt_calls(folder),
        "models": model_calls(inputs),
        "series": series_calls(inputs),
        "probes": probe_calls(),
        "jobs": job_calls(),
        "cost": cost_calls(),
        "streams": stream_calls(),
    }
    for kind, calls in kinds.items():
        for name, call in calls:
            yield Case(kind, name, partial(result_of, call, inputs))


Calls = Iterator[tuple[str, Call]]


# ---- settings ----


def settings_calls(rng: np.random.Generator) -> Calls:
    """Yield calls with one setting out of range; which are drawn from all settings and values."""
    lines: dict[str, tuple[str, Any]] = {
        name: (MEASURING.get(name, SANDBOX), config) for name, config in CONFIGURATIONS.items()
    }
    for study in list_studies():
        name = f"run {study.name}"
        lines[name] = (f"{name} --preset smoke --out out --workers 1", study.preset("smoke"))
    calls = []
    for command, (line, config) in lines.items():
        for option, kind in numbers(config):
            words = (option, option.replace("-", "_"), option.rpartition(".")[2].replace("-", "_"))
            for bad in bad_words(kind):
                calls.append((f"{command} --{option} {bad}", Call(f"{line} --{option} {bad}", words)))
    for option, bad in (("seed", "-1"), ("seed", HUGE), ("seed", str(2**32)), ("device", "''"), ("dtype", "float8")):
        calls.append((f"check --{option} {bad}", Call(f"check @in/gpt2 --{option} {bad}", (option,))))
    for option in ("topics", "topics-per-document", "sgd-rates"):
        line = f"run topic-structure --preset smoke --out out --workers 1 --{option}"
        calls.append((f"run topic-structure --{option}", Call(line, (option.replace("-", "_"),))))
    for place in sorted(rng.permutation(len(calls))[:N_SETTINGS]):
        yield calls[place]


def job_calls() -> Calls:
    """Yield settings of studies that do not fit together, or are used only after training."""
    for study in ("task-clusters", "cluster-factors", "heads-in-models", "induction-heads", "planted-layers", "mossa"):
        line = f"run {study} --preset smoke --out out --workers 1"
        freeze = "tuning" if study in ("planted-layers", "mossa") else "training"
        yield f"run {study} --n-heads 5", Call(f"{line} --n-heads 5", ("n_heads",))
        yield f"run {study} freezes nothing", Call(f"{line} --{freeze}.freeze nothing", ("freeze",))
        everything = f"{line} --{freeze}.freeze embed pos_embed blocks ln_final unembed"
        word = "tuning.freeze" if study == "planted-layers" else "nothing to train"
        yield f"run {study} freezes everything", Call(everything, (word,))
    heads = "run heads-in-models --preset smoke --out out --workers 1"
    yield "run heads-in-models --recipients", Call(f"{heads} --recipients 1000000", ("recipients",))
    smoke = "run mossa --preset smoke --out out --workers 1"
    yield "run for more than a day", Call(f"{smoke} --pretraining.steps 100000000", ("--yes",))
    yield "run of networks beyond memory", Call(f"{smoke} --d-model 1048576", ("memory",))
    yield "run of a batch beyond memory", Call(f"{smoke} --pretraining.batch-size 100000000", ("memory",))
    yield "run --probes that lack a label", Call(f"{smoke} --probes ClusteringHead", ("ClusteringHead",))
    for optimizer in ("adamw", "sgd"):
        for rate in ("1e6", "1e300"):
            line = f"{RUN} --training.optimizer {optimizer} --training.lr {rate} --training.clip 1e30"
            yield f"run {optimizer} with a rate of {rate}", Call(line, ("lr",), "either", at_work=True)


def cost_calls() -> Calls:
    """Yield numbers of draws and steps that would take more than a day."""
    options = (
        ("clusters", "--n-resamples 10000000"),
        ("compare", "--n-resamples 10000000"),
        ("history", "--n-resamples 10000000"),
        ("history", "--cka-permutations 10000000"),
        ("topics", "--resamples 10000000 --max-documents 1000000"),
        ("heads", "--n-permutations 10000000 --n-sequences 60000"),
        ("mossa", "--n-resamples 10000000"),
        ("mossa", "--steps-per-task 100000000"),
    )
    for command, option in options:
        yield f"{command} {option}", Call(f"{MEASURING[command]} {option}", ("--yes",))


# ---- folders of a user ----


def ownership_calls() -> Calls:
    """Yield outputs that are somebody else's."""
    files = (
        "out/report.html", "out/findings.csv", "out/figures/mine.png", "out/tables/mine.csv", "out/config.json",
        "out/rows/mine.safetensors", "out/results/mine.json", "out/mechclust.json", "out/checkpoints/mine.txt", "out",
    )  # fmt: skip
    for command, line in WRITING.items():
        for file in files:
            yield f"{command} with a user's {file}", Call(line, ("out",), mine=(file,))
        theirs = ("theirs/report.html", "theirs/figures/mine.png")
        yield f"{command} --out is a link", Call(line, ("out",), prepare=_link_to_theirs, mine=theirs)
        yield f"{command} report.html is a folder", Call(line, ("out",), prepare=_report_folder)
        yield f"{command} --out is a link to itself", Call(line, ("out",), prepare=_link_to_itself)
    for command in ("topics", "heads", "suite"):
        line = MEASURING[command].replace("@in/corpus", "@here/corpus").replace("--out out", "--out corpus/out")
        yield f"{command} --out is in its corpus", Call(line, ("corpus/out",), prepare=_corpus)
    yield "sandbox --out is a user's page", Call(SANDBOX, ("page.html",), mine=("page.html",))
    yield "sandbox --out is a link", Call(SANDBOX, ("page.html",), prepare=_link_of_page, mine=("theirs.html",))


def _corpus(folder: Path) -> None:
    (folder / "corpus").mkdir()
    (folder / "corpus" / "text.txt").write_text("w1 w2 w3 w4\n\n" * 40)


def _link_to_theirs(folder: Path) -> None:
    (folder / "out").symlink_to(folder / "theirs")


def _link_to_itself(folder: Path) -> None:
    (folder / "out").symlink_to(folder / "out")


def _link_of_page(folder: Path) -> None:
    (folder / "page.html").symlink_to(folder / "theirs.html")


def _report_folder(folder: Path) -> None:
    (folder / "out" / "report.html").mkdir(parents=True)
    (folder / "out" / "report.html" / "note.txt").write_bytes(b"")


# ---- prompts ----


def prompt_calls(folder: Path) -> Calls:
    """Yield files of prompts and texts that cannot be read or used."""
    bad = {
        "empty": b"", "blank": b"\n\n\n", "not JSON": b"w1 w2\n", "half an object": b'{"prompt": "w1", "task": \n',
        "a list": b'["w1", "one"]\n', "no task": b'{"prompt": "w1"}\n', "no prompt": b'{"task": "one"}\n',
        "a number": b'{"prompt": 3, "task": "one"}\n', "null": b'{"prompt": null, "task": null}\n',
        "an empty prompt": b'{"prompt": "", "task": "one"}\n', "one prompt": b'{"prompt": "w1", "task": "one"}\n',
        "zeros": bytes(100), "UTF-16": '{"prompt": "w1", "task": "one"}\n'.encode("utf-16"),
        "one task": b'{"prompt": "w1", "task": "one"}\n' * 20,
        "a task (all)": b'{"prompt": "w1", "task": "(all)"}\n{"prompt": "w2", "task": "two"}\n' * 20,
        "NaN": b'{"prompt": "w1", "task": NaN}\n' * 20,
    }  # fmt: skip
    prompts = folder / "bad-prompts"
    prompts.mkdir(parents=True, exist_ok=True)
    for name, content in bad.items():
        (prompts / f"{name}.jsonl".replace(" ", "-")).write_bytes(content)
    for command in ("clusters", "compare", "history", "sandbox"):
        line = {**MEASURING, "sandbox": SANDBOX}[command]
        for path in sorted(prompts.iterdir()):
            expected = "either" if command == "sandbox" and path.stem in ("one-task", "NaN") else "refused"
            if command != "compare" and path.stem == "a-task-(all)":
                continue
            spoilt = line.replace("@in/prompts.jsonl", str(path))
            yield f"{command}, prompts: {path.stem}", Call(spoilt, (path.name, "example"), expected)
        for path in ("/dev/null", "@in/corpus", "@here/none.jsonl"):
            yield f"{command}, prompts: {path}", Call(line.replace("@in/prompts.jsonl", path), (path[-5:],))
        long = line.replace("@in/prompts.jsonl", "@in/long-prompts.jsonl")
        yield f"{command}, a prompt longer than the context", Call(long, ("context",))
    for command in ("topics", "heads", "suite"):
        for path in ("/dev/null", "@here/none", "@here/empty"):
            line = MEASURING[command].replace("@in/corpus", path)
            yield f"{command}, corpus: {path}", Call(line, (path[-5:],), prepare=_empty_folder)
    units = f"{CLUSTERS} --units same".replace("@in/", "@here/").replace("@here/gpt2", "@in/gpt2")
    yield "clusters, units of one value", Call(units, ("units",), prepare=_one_unit)
    for option in (
        "--split x",
        "--position x",
        "--label ''",
        "--label none",
        "--layers 99",
        "--heads L9H9",
        "--seed 3",
    ):
        yield f"sandbox {option}", Call(f"{SANDBOX} {option}", (option.split()[0].strip("-").rstrip("s"), "label ''"))


def _one_unit(folder: Path) -> None:
    records = [{"prompt": f"w{i} w{i % 7}", "task": "ab"[i % 2], "same": "x"} for i in range(20)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def _empty_folder(folder: Path) -> None:
    (folder / "empty").mkdir()


# ---- models ----


def model_calls(inputs: Path) -> Calls:
    """Yield models that cannot be loaded, or whose numbers are not finite."""
    lines = {**MEASURING, "check": "check @in/gpt2"}
    for command in ("clusters", "compare", "topics", "heads", "check", "mossa"):
        model = {"topics": "@in/bert", "mossa": "@in/mossa-base"}.get(command, "@in/gpt2")
        source = model.removeprefix("@in/")
        for file in ("config.json", "model.safetensors", "tokenizer.json"):
            for size in (0, 50):
                cut = partial(_cut_file, inputs, source, file, size)
                call = Call(lines[command].replace(model, "@here/m", 1), ("/m", file), prepare=cut)
                yield f"{command}, {file} cut to {size} bytes", call
        for place in ("@here/none", "@here/empty", "@in/corpus", "@in/prompts.jsonl", "''"):
            line = lines[command].replace(model, place, 1)
            call = Call(line, (place[6:], "no model", "no directory"), prepare=_empty_folder)
            yield f"{command}, model {place}", call
    for command in ("clusters", "topics", "heads"):
        model = {"topics": "@in/bert"}.get(command, "@in/gpt2")
        for name, value in (("NaN", NAN), ("infinite", float("inf"))):
            spoil = partial(_spoilt, inputs, model.removeprefix("@in/"), "m", value)
            call = Call(lines[command].replace(model, "@here/m", 1), ("NaN",), prepare=spoil, at_work=True)
            yield f"{command}, {name} weights", call
    note = "another-gpt2"
    other = partial(_other_base, inputs)
    for command in ("clusters", "topics", "check", "history"):
        line = lines[command].replace("@in/bert", "@in/gpt2")
        call = Call(f"{line} --adapter @here/a", (), "accepted", prepare=other, said=note)
        yield f"{command}, adapter of another base", call
    yield "compare, adapter of another base", Call(COMPARE.replace("@in/tuned", "@here/a"), (), "accepted", other, note)
    yield "clusters, an adapter without its base", Call(CLUSTERS.replace("@in/gpt2", "@here/a"), (note,), prepare=other)
    for model in ("@in/llama", "@in/bert"):
        yield f"compare with {model}", Call(COMPARE.replace("@in/tuned", model), expected="either", said="famil|layers")


def _cut_file(inputs: Path, source: str, file: str, size: int, folder: Path) -> None:
    os.truncate(copied(source, "m", inputs, folder) / file, size)


def _spoilt(inputs: Path, source: str, to: str, value: float, folder: Path) -> None:
    """Copy a checkpoint with one number replaced in each matrix of its blocks."""
    path = copied(source, to, inputs, folder) / "model.safetensors"
    weights = load_file(path)
    for name, weight in weights.items():
        if weight.ndim == 2 and weight.is_floating_point() and (".h." in name or "layer" in name):
            weights[name] = torch.where(torch.arange(weight.numel()).view(weight.shape) == 3, value, weight)
    save_file(weights, path, {"format": "pt"})


def _other_base(inputs: Path, folder: Path) -> None:
    path = copied("adapter", "a", inputs, folder) / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "base_model_name_or_path": "somebody/another-gpt2"}))


# ---- series ----


def series_calls(inputs: Path) -> Calls:
    """Yield series of checkpoints of which one is damaged, of another kind, or has no number."""
    lines = {"history": HISTORY.replace("@in/series", "@here/series"), "sandbox": SANDBOX.replace("@in", "@here", 1)}
    for command, line in lines.items():
        for step in (16, 32):
            for size in (0, 50, 3000):
                cut = partial(_cut_series, inputs, step, size)
                yield f"{command}, checkpoint-{step} cut to {size}", Call(line, (f"checkpoint-{step}",), prepare=cut)
        for value in (NAN, float("inf")):
            spoil = partial(_spoilt_series, inputs, value)
            yield f"{command}, {value} in checkpoint-16", Call(line, ("16",), "refused", spoil, at_work=True)
        named = partial(_named_series, inputs, ("20", "100", "final"))
        yield f"{command}, checkpoints 20, 100, final", Call(line, (), "accepted", named, "final")
        unnumbered = partial(_named_series, inputs, ("a", "b", "c"))
        expected = "accepted" if command == "history" else "refused"
        yield f"{command}, checkpoints a, b, c", Call(line, ("series",), expected, unnumbered, "order")
        llama = partial(_llama_series, inputs)
        yield f"{command}, Llama checkpoints", Call(line, (), "accepted", llama)
    for kind in ("file", "link to nowhere"):
        call = Call(lines["history"], ("checkpoint-16",), prepare=partial(_no_folder, inputs, kind))
        yield f"history, checkpoint-16 is a {kind}", call
    for place, words in (("@in/tuned", "@here/t"), ("@in/gpt2", "@here/t")):
        cut = partial(_cut_file_of, inputs, place.removeprefix("@in/"), "model.safetensors")
        yield f"compare, {place} cut", Call(COMPARE.replace(place, words, 1), ("/t/model",), prepare=cut)
    first = partial(_cut_file_of, inputs, "mossa-controls/first", "adapter_model.safetensors")
    given = "--experimental @in/mossa-tuned --controls copy=@in/mossa-controls/copy swap=@in/mossa-controls/swap"
    yield "mossa, the last control cut", Call(f"{MOSSA} {given} first=@here/t", ("/t",), prepare=first)


def _cut_file_of(inputs: Path, source: str, file: str, folder: Path) -> None:
    os.truncate(copied(source, "t", inputs, folder) / file, 500)


def _cut_series(inputs: Path, step: int, size: int, folder: Path) -> None:
    os.truncate(copied("series", "series", inputs, folder) / f"checkpoint-{step}" / "model.safetensors", size)


def _no_folder(inputs: Path, kind: str, folder: Path) -> None:
    checkpoint = copied("series", "series", inputs, folder) / "checkpoint-16"
    shutil.rmtree(checkpoint)
    if kind == "file":
        checkpoint.write_bytes(b"")
    else:
        checkpoint.symlink_to(folder / "nowhere")


def _spoilt_series(inputs: Path, value: float, folder: Path) -> None:
    series = copied("series", "series", inputs, folder)
    shutil.rmtree(series / "checkpoint-16")
    _spoilt(inputs, "series/checkpoint-16", "series/checkpoint-16", value, folder)


def _named_series(inputs: Path, names: tuple[str, ...], folder: Path) -> None:
    for step, name in zip((8, 16, 24), names, strict=True):
        copied(f"series/checkpoint-{step}", f"series/checkpoint-{name}", inputs, folder)


def _llama_series(inputs: Path, folder: Path) -> None:
    for step in (100, 200):
        path = copied("llama", f"series/checkpoint-{step}", inputs, folder) / "model.safetensors"
        save_file(
            {name: weight * (1 + step / 1000) for name, weight in load_file(path).items()}, path, {"format": "pt"}
        )


# ---- probes and streams ----


def probe_calls() -> Calls:
    """Yield every probe by its name: it is measured, or refused before anything is."""
    line = HISTORY.replace("--map-prompts 6", "--map-prompts 0")
    for probe in list_probes():
        call = Call(f"{line} --probes {probe.name}", (probe.name,), "either", said="report:")
        yield f"history --probes {probe.name}", call
    for name in ("", "Cka", "clusters clusters", "topics"):
        yield f"history --probes {name!r}", Call(f"{line} --probes {name or repr(name)}", ("probes",))


def stream_calls() -> Calls:
    """Yield outputs that cannot be written."""
    measuring = {name: MEASURING[name] for name in ("clusters", "heads", "topics")}
    lines = {"list": "list", "check": "check @in/gpt2", "sandbox": SANDBOX, **measuring}
    for command, line in lines.items():
        yield f"{command} > /dev/full", Call(line, ("standard output",), stdout="full", at_work=True)
        yield f"{command} >&-", Call(line, (), "accepted", stdout="closed")
