"""The folders that the project's own commands make of the small models."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from docs.pictures.models import STEPS, bert, folder, gpt2, tuned
from mechclust.cli import main

_ANSWERS = ("--task-field", "answer", "--label-fields", "answer", "--attention-prompts", 2)


def _made(*arguments: object) -> None:
    if main([str(argument) for argument in arguments]):
        raise SystemExit(f"mechclust {' '.join(map(str, arguments))} has failed")


@cache
def clusters() -> Path:
    """``mechclust clusters`` of the trained GPT-2."""
    place, prompts = gpt2()
    out = folder() / "clusters"
    options = ("--also", "answer", "--print-figures", "--out", out)
    _made("clusters", place / f"checkpoint-{STEPS[-1]}", "--prompts", prompts, *options)
    return out


@cache
def compare() -> Path:
    """``mechclust compare`` of the trained GPT-2 and the same, tuned."""
    place, prompts = gpt2()
    out = folder() / "compare"
    _made("compare", place / f"checkpoint-{STEPS[-1]}", tuned(), "--prompts", prompts, "--print-figures", "--out", out)
    return out


@cache
def history() -> Path:
    """``mechclust history`` of the GPT-2's checkpoints."""
    place, prompts = gpt2()
    out = folder() / "history"
    folders = [place / f"checkpoint-{step}" for step in STEPS]
    _made("history", place, "--checkpoints", *folders, "--prompts", prompts, *_ANSWERS, "--out", out)
    return out


@cache
def topics() -> Path:
    """``mechclust topics`` of the trained BERT."""
    model, corpus = bert()
    out = folder() / "topics"
    topic_models = ("--n-topics", 5, "--no-above", 1, "--weights", "counts")
    measures = ("--thresholds", 0.04, 0.1, 0.18, "--max-documents", 200, "--seed", 1, "--untrained", 3)
    _made(
        "topics",
        model,
        "--corpus",
        corpus,
        "--split",
        "line",
        *topic_models,
        *measures,
        "--print-figures",
        "--out",
        out,
    )
    return out


@cache
def sandbox() -> Path:
    """``mechclust sandbox`` of a network that learned to add, with every curve, which only its study measures."""
    run = folder() / "clustering-heads"
    task = ("--task.length", 8, "--task.n-support", 3, "--task.n-embeddings", 2, "--task.n-train", 1024)
    training = ("--epochs", 100, "--batch-size", 128, "--lr", 0.01)
    _made("run", "clustering-heads", "--preset", "quick", "--seeds", 0, *task, *training, "--out", run)
    out = folder() / "sandbox.html"
    _made("sandbox", run, "--seed", 0, "--out", out)
    return out
