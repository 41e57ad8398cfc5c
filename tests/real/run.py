"""``make real``: fetches the real checkpoints, runs the commands on each, and writes what was found.

Into ``--out``: a folder per checkpoint with what each command wrote and printed, ``findings.json``, ``findings.csv``,
``models.json`` and ``figures/``. With ``--record`` the last four are copied to ``examples/results/real-models``, with
the command. ``--round small`` converts and checks every checkpoint, and judges no finding.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mechclust import HistoryConfig, check_model, load_pretrained, measure_history
from mechclust.cli import main as mechclust
from mechclust.evidence import load_findings
from mechclust.evidence.finding_tables import findings_text_table
from mechclust.evidence.findings import findings_bytes
from mechclust.jobs import map_jobs
from mechclust.report.run_record import machine_facts
from mechclust.report.table_text import table_as_csv
from probes import Readout, mean
from probes.store.files import write_atomic, write_json
from tasks import LabelledPrompts
from tests.real import data, measure, readme
from tests.real.figures import by_layer
from tests.real.findings import findings
from tests.real.models import (
    ANTIBODIES,
    BASE_LM,
    INSTRUCT,
    MAPPER,
    MODELS,
    PRETRAINED,
    SENTENCES,
    TUNED,
    TUNED_10K,
    RealModel,
)

Found = dict[str, Any]
_RECORD = data.ROOT / "examples" / "results" / "real-models"
_TOPIC_SEEDS = (2, 3, 4)  # of topic models; 0 and 1 were looked at before
_CLUSTER_SEEDS = (1, 2, 3)  # of k-means and of the classifier's folds; 0 was looked at before
_UNTRAINED = ("--untrained", "2")
_COMMAND = "python -m tests.real.run --record"
_SETTINGS = {
    "topic_seeds": _TOPIC_SEEDS,
    "cluster_seeds": _CLUSTER_SEEDS,
    "k_means_seeds": measure.SEEDS,
    "untrained": measure.UNTRAINED,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.real.run", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/real"))
    parser.add_argument("--round", choices=("small", "full"), default="full")
    parser.add_argument("--record", action="store_true", help=f"copy the results to {_RECORD.relative_to(data.ROOT)}")
    parser.add_argument("--workers", type=int, default=None, help="processes; one per core by default")
    options = parser.parse_args()
    if options.record and options.round == "small":
        parser.error("--record needs --round full")
    start = time.time()
    for package in dict.fromkeys(package for model in MODELS for package in model.packages):
        print(f"{package} in {package.unpacked()}", flush=True)
    shutil.rmtree(options.out, ignore_errors=True)
    jobs = [(name, options.out) for name in (_JOBS if options.round == "full" else _SMALL_JOBS)]
    parts = map_jobs(_job, jobs, options.workers)
    found = {key: value for part in parts for key, value in part.items() if key not in _BY_MODEL}
    found |= {key: {k: v for part in parts for k, v in part.get(key, {}).items()} for key in _BY_MODEL}
    if options.round == "small":
        _refuse_failed_checks(found["checks"])
        print(f"{len(found['checks'])} checkpoints pass mechclust check; {time.time() - start:.0f} s")
        return
    table = findings(found)
    write_atomic(options.out / "findings.json", findings_bytes(table))
    write_atomic(options.out / "findings.csv", table_as_csv(table.to_dataframe()))
    write_json(options.out / "models.json", {"settings": _SETTINGS, "machine": machine_facts(), "models": _rows(found)})
    by_layer(found["reactions"], options.out / "figures" / "reactions.png")
    print(f"\n{findings_text_table(table)}\n\n{time.time() - start:.0f} s; reports in {options.out}")
    _refuse_failed_checks(found["checks"])
    if options.record:
        _RECORD.mkdir(parents=True, exist_ok=True)
        for name in ("findings.json", "findings.csv", "models.json"):
            shutil.copy(options.out / name, _RECORD / name)
        shutil.copytree(options.out / "figures", _RECORD / "figures", dirs_exist_ok=True)
        for model in (INSTRUCT, BASE_LM):
            (_RECORD / model.name).mkdir(exist_ok=True)
            shutil.copy(options.out / model.name / "heads" / "roles.csv", _RECORD / model.name)
        for name in ("clusters/clusters.csv", "clusters/features.csv", "decodability.safetensors"):  # README's pictures
            shutil.copy(options.out / INSTRUCT.name / name, _RECORD / INSTRUCT.name)
        (_RECORD / "command.txt").write_text(f"{_COMMAND}\n", encoding="utf-8")
    held = {finding.id for finding in load_findings(_RECORD) if finding.verdict == "holds"}
    lost = [finding.id for finding in table if finding.id in held and finding.verdict == "does not hold"]
    if lost:
        raise SystemExit(f"findings that are recorded as holding do not hold: {', '.join(lost)}")


def _refuse_failed_checks(checks: Found) -> None:
    """End with the names of checkpoints that ``mechclust check`` finds at fault."""
    if failed := [name for name, row in checks.items() if row["failed"]]:
        raise SystemExit(f"mechclust check failed for {', '.join(failed)}; see check.txt in their folders")


_BY_MODEL = ("checks", "masked", "topics", "seconds")  # what several jobs add to


def _rows(found: Found) -> list[dict[str, Any]]:
    """One row for each checkpoint, for tables."""
    return [
        {
            "name": m.name,
            "what": m.what,
            "package": str(m.packages[0]) + (f" and {len(m.packages) - 1} more parts" if len(m.packages) > 1 else ""),
            "licence": m.licence,
            **found["checks"][m.name],
        }
        for m in MODELS
    ]


# ---- jobs: one for each family ----


def _job(job: tuple[str, Path]) -> Found:
    name, out = job
    os.environ["HF_HUB_OFFLINE"] = "1"
    start = time.time()
    with tempfile.TemporaryDirectory(prefix="mechclust-real-") as folder:
        tempfile.tempdir = folder  # where hidden states go that no report needs
        try:
            found = {**_JOBS, **_SMALL_JOBS}[name](out)
        finally:
            tempfile.tempdir = None
    print(f"{name}: {time.time() - start:.0f} s", flush=True)
    return {**found, "seconds": {name: time.time() - start}}


def _rxnfp(out: Path) -> Found:
    file = data.reactions()
    prompts = LabelledPrompts.from_file(file.path)
    stores = {m.name: measure.states(m.folder(), prompts, measure.CLS) for m in (PRETRAINED, TUNED)}
    fresh = [
        measure.states(PRETRAINED.folder(), prompts, measure.CLS, untrained=seed) for seed in range(measure.UNTRAINED)
    ]
    ari, chances = {}, []
    for name, store in stores.items():
        ari[name], chance = measure.ari(store, measure.CLS, measure.SEEDS)
        chances.append(chance)
    ari["untrained"] = np.concatenate([measure.ari(store, measure.CLS, 1)[0] for store in fresh])
    cka = measure.cka(stores[PRETRAINED.name], stores[TUNED.name], measure.CLS, parts=5)
    against = np.concatenate([measure.cka(store, stores[TUNED.name], measure.CLS) for store in fresh])
    reactions = {
        "source": file.source,
        "real": file.real,
        "ari": {name: rows.tolist() for name, rows in ari.items()},
        "chance": max(chances),
        "cka": cka.tolist(),
        "cka_untrained": against.tolist(),
    }
    _cli(out, TUNED, "clusters", "--prompts", str(file.every(3).path), *_UNTRAINED)
    few = ("--prompts", str(file.every(2).path), "--min-per-task", "10")
    _cli(out, PRETRAINED, "compare", str(TUNED.folder()), *few)
    return {
        "checks": {m.name: _check(out, m) for m in (PRETRAINED, TUNED, TUNED_10K)},
        "fingerprint": _fingerprint(),
        "series": _series(out, file.every(3).path),
        "masked": {PRETRAINED.name: _masked(PRETRAINED, file.texts[::80])},
        "reactions": reactions,
    }


def _series(out: Path, prompts: Path) -> list[tuple[str, tuple[int, ...]]]:
    """What ``mechclust history`` finds wrong with the three reaction models, the last one planted before itself too."""
    folder = out / "rxnfp-series"
    folder.mkdir(parents=True)
    for step, model in enumerate((PRETRAINED, TUNED_10K, TUNED, TUNED)):
        (folder / f"checkpoint-{step}").symlink_to(model.folder())
    options = ("--checkpoints", str(folder / "checkpoint-*"), "--prompts", str(prompts), "--position", "first")
    report = _cli(out, TUNED, "history", *options, "--print-figures")
    (out / "figures").mkdir(exist_ok=True)
    for suffix in (".png", ".pdf"):
        shutil.copy(report / "figures" / f"clusters_map{suffix}", out / "figures" / f"series{suffix}")
    config = HistoryConfig(prompts, checkpoints=(folder / "checkpoint-*",), position="first")
    found = measure_history(str(TUNED.folder()), config, report)  # which is there already
    return [(finding.kind, finding.checkpoints) for finding in found.findings]


def _fingerprint() -> float:
    """Largest difference of the fine-tuned model's state at [CLS], as a probe reads it, and the documented numbers."""
    reaction, wanted = data.fingerprint()
    store = measure.states(TUNED.folder(), LabelledPrompts([reaction], {"task": ["example"]}), measure.CLS)
    site = f"rows/{store.sites[-1]}"
    got = store.take(store.index, [site])[site][0, : len(wanted)]
    return float(np.abs(got.numpy() - np.array(wanted)).max())


def _rxnmapper(out: Path) -> Found:
    file = data.reactions()
    _cli(out, MAPPER, "clusters", "--prompts", str(file.every(3).path), *_UNTRAINED)
    return {
        "checks": {MAPPER.name: _check(out, MAPPER)},
        "masked": {MAPPER.name: _masked(MAPPER, file.texts[::80])},
    }


def _antiberty(out: Path) -> Found:
    file = data.natural_or_shuffled()
    _cli(out, ANTIBODIES, "clusters", "--prompts", str(file.path), "--position", "mean", *_UNTRAINED)
    trained, chance = _seeds(ANTIBODIES, file.path, mean())
    fresh = [_seeds(ANTIBODIES, file.path, mean(), untrained=seed)[0][0] for seed in range(measure.UNTRAINED)]
    return {
        "checks": {ANTIBODIES.name: _check(out, ANTIBODIES)},
        "masked": {ANTIBODIES.name: _masked(ANTIBODIES, data.antibodies())},
        "antibodies": trained.tolist(),
        "antibodies_chance": chance,
        "antibodies_untrained": np.array(fresh).tolist(),
    }


def _minilm(out: Path) -> Found:
    _cli(out, SENTENCES, "clusters", "--prompts", str(data.INSTRUCTIONS), "--position", "mean", *_UNTRAINED)
    return {
        "checks": {SENTENCES.name: _check(out, SENTENCES)},
        "paraphrases": [float(x) for x in measure.nearest_is_paraphrase(SENTENCES.folder(), data.PARAPHRASES)],
        "topics": {"MiniLM": _topics(SENTENCES, n_documents=40)},
    }


def _smollm2(out: Path) -> Found:
    folder = _cli(out, INSTRUCT, "clusters", "--prompts", str(data.INSTRUCTIONS))
    readme.check_command(folder.with_name("clusters.txt").read_text(encoding="utf-8"))
    readme.run_python(INSTRUCT.folder()).save(folder.with_name("decodability.safetensors"))
    said = measure.next_words(INSTRUCT.folder(), [f"The capital of {name} is" for name in data.CAPITALS])
    trained, untrained = _clusters(folder, data.INSTRUCTIONS)
    _roles(out, INSTRUCT)
    return {
        "checks": {INSTRUCT.name: _check(out, INSTRUCT)},
        "capitals": [float(a == b) for a, b in zip(said, data.CAPITALS.values(), strict=True)],
        "smollm2": trained,
        "smollm2_controls": _chance(folder),
        "smollm2_untrained": untrained,
    }


def _smollm2_chat(out: Path) -> Found:
    options = ("--prompts", str(data.INSTRUCTIONS), "--chat", "--untrained", "0")
    folder = _cli(out, INSTRUCT, "clusters", *options, name="clusters-chat")
    trained, untrained = _clusters(folder, data.INSTRUCTIONS, chat=True)
    return {"chat": trained, "chat_untrained": untrained}


def _smollm2_fresh(out: Path) -> Found:
    """Measure what ``_smollm2`` and ``_smollm2_chat`` do, on prompts that no rule was made for."""
    prompts = data.fresh_instructions().path
    options = ("--prompts", str(prompts), "--untrained", "0")
    folder = _cli(out, INSTRUCT, "clusters", *options, name="clusters-fresh")
    trained, untrained = _clusters(folder, prompts)
    in_chat = _cli(out, INSTRUCT, "clusters", *options, "--chat", name="clusters-fresh-chat")
    chat, chat_untrained = _clusters(in_chat, prompts, chat=True)
    found = {
        "smollm2": trained,
        "smollm2_controls": _chance(folder),
        "smollm2_untrained": untrained,
        "chat": chat,
        "chat_untrained": chat_untrained,
    }
    return {"fresh": found}


def _chance(folder: Path) -> dict[str, float]:
    """Return the highest ends of chance intervals over layers, of the index of the task."""
    table = _of_task(pd.read_csv(folder / "clusters.csv"))
    return {name: table[name].max() for name in ("null_high", "given_null_high")}


def _clusters(folder: Path, prompts: Path, chat: bool = False) -> tuple[list[Found], list[Found]]:
    """Return what SmolLM2's states cluster by for each seed of k-means, and those of models with random weights."""
    model = str(INSTRUCT.folder())
    trained = [measure.clusters(model, prompts, folder, seed, chat) for seed in _CLUSTER_SEEDS]
    fresh = (load_pretrained(model, untrained=True, seed=seed) for seed in range(measure.UNTRAINED))
    untrained = [measure.clusters(network, prompts, None, _CLUSTER_SEEDS[0], chat) for network in fresh]
    return trained, untrained


def _roles(out: Path, model: RealModel) -> None:
    """Measure the roles of heads, on repeated random tokens and on pages of the language reference."""
    folder, _ = data.python_reference()
    _cli(out, model, "heads", "--corpus", str(folder), "--n-permutations", "0")


def _of_task(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["label"] == "task"]


def _gemma3(out: Path) -> Found:
    _roles(out, BASE_LM)
    return {
        "checks": {BASE_LM.name: _check(out, BASE_LM)},
        "nats": measure.nats(BASE_LM.folder(), list(data.own_pages().values())),
        "nats_uniform": float(np.log(262144)),
        "topics": {"Gemma 3": _topics(BASE_LM, n_documents=12, length=128)},
    }


_JOBS: Mapping[str, Callable[[Path], Found]] = {  # the longest first
    "gemma3": _gemma3,
    "smollm2": _smollm2,
    "smollm2-fresh": _smollm2_fresh,
    "smollm2-chat": _smollm2_chat,
    "rxnfp": _rxnfp,
    "minilm": _minilm,
    "antiberty": _antiberty,
    "rxnmapper": _rxnmapper,
}


def _checked(model: RealModel, out: Path) -> Found:
    return {"checks": {model.name: _check(out, model)}}


_SMALL_JOBS: Mapping[str, Callable[[Path], Found]] = {
    f"check {model.name}": partial(_checked, model) for model in MODELS
}


# ---- steps ----


def _cli(out: Path, model: RealModel, command: str, *arguments: str, name: str = "") -> Path:
    """Run a command as a user would; its report is in the folder that comes back, what it printed beside it."""
    folder = out / model.name / (name or command)
    folder.parent.mkdir(parents=True, exist_ok=True)
    printed = io.StringIO()
    argv = [command, str(model.folder()), *arguments, "--out", str(folder)]
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()) as errors:
        code = mechclust(argv)
    folder.with_name(f"{folder.name}.txt").write_text(printed.getvalue(), encoding="utf-8")
    if code:
        raise SystemExit(f"mechclust {' '.join(argv)} ended with {code}: {errors.getvalue().strip()[-500:]}")
    return folder


def _check(out: Path, model: RealModel) -> dict[str, Any]:
    """``mechclust check``: its verdicts counted, whether logits are Hugging Face's, and what it says of the model."""
    report = check_model(str(model.folder()))
    file = out / model.name / "check.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{report}\n", encoding="utf-8")
    verdicts = [check.passed for check in report.checks]
    equal = [check.passed for check in report.checks if "Hugging Face" in check.name]
    return {
        "model": report["model"].detail.split(";")[0].removesuffix(", float32 on cpu"),
        "passed": verdicts.count(True),
        "failed": verdicts.count(False),
        "not_tried": verdicts.count(None),
        "equal": bool(equal) and all(equal),
    }


def _masked(model: RealModel, texts: list[str]) -> Found:
    """Return which masked tokens a model and one with random weights get right, and the commonest token's share."""
    right, commonest = measure.masked_accuracy(model.folder(), texts)
    untrained, _ = measure.masked_accuracy(model.folder(), texts, untrained=0)
    return {"right": right, "untrained": untrained, "commonest": commonest}


def _seeds(model: RealModel, path: Path, readout: Readout, untrained: int | None = None) -> tuple[np.ndarray, float]:
    store = measure.states(model.folder(), LabelledPrompts.from_file(path), readout, untrained=untrained)
    return measure.ari(store, readout, 1 if untrained is not None else 5)


def _topics(model: RealModel, **reading: int) -> Found:
    """The ratio of attention, for several topic models."""
    folder, source = data.python_reference()
    rows = [measure.topic_attention(model.folder(), folder, seed, **reading) for seed in _TOPIC_SEEDS]
    return {name: [row[name] for row in rows] for name in rows[0]} | {"source": source}


if __name__ == "__main__":
    main()
