"""Command lines: every command, with every option at least once.

``@in/`` stands for the folder of inputs, ``@runs/NAME/`` for what an earlier call wrote. Each call runs in a folder of
its own, so ``--out out`` is a new folder each time.
"""

from __future__ import annotations

import shlex
import tomllib
from importlib.util import find_spec
from pathlib import Path

STUDIES = tomllib.loads(Path(__file__).with_name("studies.toml").read_text())
_COMMANDS = ("clusters", "topics", "compare", "history", "mossa", "check", "sandbox", "report", "list", "run")

HELP = {
    **{name: f"{name} --help" for name in _COMMANDS},
    "topics --suite": "topics --suite --help",
    **{f"run {study}": f"run {study} --preset smoke --help" for study in STUDIES},
}
"""Command lines that list the options of a command, by the command."""

_CLUSTERS = "clusters @in/gpt2 --prompts @in/prompts.jsonl --out out"
_QUICK_CLUSTERS = "--untrained 0 --n-permutations 20 --n-shuffles 3 --n-init 2"
_COMPARE = "compare @in/gpt2 @in/tuned --prompts @in/prompts.jsonl --out out --min-per-task 6"
_QUICK_COMPARE = "--n-resamples 20 --n-permutations 5"
_HISTORY = "history @in/series --prompts @in/prompts.jsonl --out out"
_QUICK_HISTORY = "--n-init 1 --n-permutations 19 --cka-permutations 5 --map-prompts 6"
_TOPICS = "topics @in/bert --corpus @in/corpus --out out"
_QUICK_TOPICS = "--n-topics 3 --passes 2 --min-documents 1 --max-share 1.0 --thresholds 0.1 0.2 --n-permutations 9"
_SUITE = "topics --suite @in/suite.toml --corpus @in/corpus --out out"
_QUICK_SUITE = (
    "--n-topics 3 --passes 2 --vocabulary 100 --no-below 1 --no-above 1.0 --thresholds 0.1 0.2 --resamples 20 "
    "--max-documents 20 --max-length 24 --topic-seeds 0"
)
_MOSSA = "mossa @in/mossa-base --tasks @in/tasks --prompt-field ask --answer-field reply --out out"
_QUICK_MOSSA = (
    "--tuning.lr 1e-2 --tuning.batch-size 4 --tuning.accumulation 1 --tuning.save-every 2 --tuning.rank 2 "
    "--steps-per-task 3 --cutoff 32 --ceilings 1 --nulls 1 --n-answers 4 --n-shown 6"
)

_LISTED = {
    "version": "--version",
    "usage": "--help",
    "list": "list",
    "list-with-plugin": "list",
}
_CHECK = {
    "check-gpt2": "check @in/gpt2 --device cpu --dtype float32 --seed 1 --no-trust-remote-code",
    "check-llama": "check @in/llama --device-map auto --trust-remote-code",
    "check-bert": "check @in/bert",
    "check-half": "check @in/gpt2 --dtype bfloat16",
    "check-adapter": "check @in/gpt2 --adapter @in/adapter",
    "check-saved": "check @runs/build/model.safetensors",
}
_CLUSTERS_CALLS = {
    "clusters": f"{_CLUSTERS} --untrained 1 --n-permutations 50 --n-shuffles 5 --n-init 2 --seed 1 --units unit "
    "--position last --bos model --tokens-per-batch 64 --device cpu --dtype float32 --map-prompts 20 --max-rows 40 "
    "--max-memory 1 --engine local --gpus-per-job 0 --no-chat --no-verify",
    "clusters-given": f"clusters @in/llama --prompts @in/prompts.jsonl --out out {_QUICK_CLUSTERS} --also first "
    "--given first --units none --position first",
    "clusters-csv": "clusters @in/gpt2 --prompts @in/prompts.csv --prompt-field text --task-field kind --out out "
    f"--label-fields first --within first --n-clusters 3 4 --drop-outliers 10 --standardise --pca 3 --cosine "
    f"--position mean {_QUICK_CLUSTERS}",
    "clusters-tsne": f"{_CLUSTERS} {_QUICK_CLUSTERS} --tsne --chat --adapter @in/adapter --trust-remote-code "
    "--device-map auto",
    "clusters-workers": "clusters @in/gpt2 --prompts @in/long-prompts.jsonl --out out --workers 2 --job-timeout 300 "
    f"--too-long truncate {_QUICK_CLUSTERS}",
    "clusters-bos": f"clusters @in/gpt2-bos --prompts @in/prompts.jsonl --out out --bos yes {_QUICK_CLUSTERS}",
}
_COMPARE_CALLS = {
    "compare": f"{_COMPARE} --n-resamples 30 --n-permutations 10 --max-per-task 15 --tolerance 0.02 --factor 1.4 "
    "--controls a=@in/controls/a @in/controls/b --clusters @in/clusters.toml --rbf --rbf-prompts 10 --top-pc "
    "--top-pc-prompts 10 --n-dims --n-dims-prompts 10 --purity --purity-prompts 20 "
    "--map-prompts 12 --max-memory 1 --seed 2 --units unit --position last --bos model --tokens-per-batch 64 "
    "--device cpu --dtype float32 --tuned-device cpu --tuned-dtype float32 --no-verify",
    "compare-csv": "compare @in/gpt2 @in/tuned --prompts @in/prompts.csv --prompt-field text --task-field kind --out "
    f"out --label-fields first --min-per-task 6 {_QUICK_COMPARE} --no-rbf --no-top-pc --no-n-dims --no-purity "
    "--position mean --chat --trust-remote-code --device-map auto",
    "compare-adapter": f"compare @in/gpt2 @in/adapter --prompts @in/prompts.jsonl --out out --min-per-task 6 "
    f"{_QUICK_COMPARE} --engine local --gpus-per-job 0",
    "compare-with-adapter": f"compare @in/gpt2 @in/gpt2 --adapter @in/adapter --prompts @in/prompts.jsonl --out out "
    f"--min-per-task 6 {_QUICK_COMPARE} --tuned-dtype bfloat16",
    "compare-long": "compare @in/gpt2 @in/tuned --prompts @in/long-prompts.jsonl --out out --min-per-task 6 "
    f"--workers 1 --too-long truncate {_QUICK_COMPARE}",
    "compare-zeroed": "compare @in/gpt2 @in/bad/zeroed --prompts @in/prompts.jsonl --out out --min-per-task 6 "
    f"{_QUICK_COMPARE}",
    "compare-alike": f"compare @in/gpt2 @in/tuned --prompts @in/bad/alike.jsonl --out out --min-per-task 6 "
    f"{_QUICK_COMPARE}",
    "compare-families": f"compare @in/gpt2 @in/llama --prompts @in/prompts.jsonl --out out --min-per-task 6 "
    f"{_QUICK_COMPARE}",
}
_HISTORY_CALLS = {
    "history": f"{_HISTORY} {_QUICK_HISTORY} --probes clusters cka heads topics AttentionEntropy --corpus "
    "@in/corpus.jsonl --text-field body --n-topics 3 --threshold 0.1 --min-documents 1 --max-length 24 --map-layers "
    "0 2 --attention-prompts 0 5 --seed 1 --units unit --position last --bos model --tokens-per-batch 64 --device cpu "
    "--dtype float32 --engine local --gpus-per-job 0 --no-verify",
    "history-checkpoints": "history series --checkpoints @in/series/checkpoint-8 @in/series/checkpoint-24 --prompts "
    f"@in/prompts.csv --prompt-field text --task-field kind --label-fields first --out out {_QUICK_HISTORY} --chat "
    "--trust-remote-code --device-map auto --adapter @in/adapter",
    "history-plugin": f"{_HISTORY} {_QUICK_HISTORY} --probes MeanNorm LinearDecodability NDims",
    "history-long": f"history @in/series --prompts @in/long-prompts.jsonl --out out {_QUICK_HISTORY} --workers 1 "
    "--too-long truncate --position mean",
}
_TOPICS_CALLS = {
    "topics": f"{_TOPICS} {_QUICK_TOPICS} --untrained 1 --stop-words none --max-documents 20 --max-length 24 --seed 1 "
    "--split paragraph --min-words 5 --bos model --tokens-per-batch 64 --device cpu --dtype float32 --engine local "
    "--gpus-per-job 0 --no-verify",
    "topics-lines": "topics @in/gpt2 --corpus @in/corpus.jsonl @in/corpus-lines.txt --text-field body --split line "
    f"--out out {_QUICK_TOPICS} --untrained 0 --stop-words @in/stop-words.txt --adapter @in/adapter --device-map auto "
    "--trust-remote-code",
    "suite": f"{_SUITE} {_QUICK_SUITE} --weights counts --stop-words none --split paragraph --min-words 5 "
    "--least-words 2 --document 3 --seed 1 --bos model --tokens-per-batch 64 --device cpu --dtype float32 --engine "
    "local --gpus-per-job 0 --no-verify",
    "suite-given": "topics --suite @in/bert @in/gpt2 --corpus @in/corpus.jsonl --text-field body --topic-model "
    "@runs/suite/out/topics.safetensors --thresholds 0.1 0.2 --resamples 20 --max-documents 20 --max-length 24 --out "
    "out --workers 2 --job-timeout 300 --device-map auto --trust-remote-code",
}
_MOSSA_CALLS = {
    "mossa": f"{_MOSSA} {_QUICK_MOSSA} --format flan --units form --clusters @in/tasks-clusters.toml --chat no --end "
    "' :' --n-prompts 12 --max-per-cluster 40 --rbf --without-top --svcca --keep-rows --max-memory 1 --seed 1 --bos "
    "model --tokens-per-batch 64 --device cpu --dtype float32 --engine local --gpus-per-job 0 --tuning.alpha 8 "
    "--tuning.dropout 0.0 --tuning.modules q_proj v_proj --tuning.warmup 1 --tuning.weight-decay 0.01 --tuning.clip "
    "2.0 --tuning.no-bf16 --tuning.seed 3 --no-verify",
    "mossa-natural": "mossa @in/mossa-base --preset small --tasks @in/natural --format natural-instructions --out out "
    f"{_QUICK_MOSSA} --held-out task001_copy --only task001_copy task002_swap task003_first "
    "task004_last --chat auto "
    "--chat-template @in/chat.jinja --no-rbf --no-without-top --trust-remote-code --device-map auto",
    "mossa-elsewhere": f"{_MOSSA} {_QUICK_MOSSA} --experimental @in/mossa-tuned --without-held-out @in/mossa-tuned "
    "--controls copy=@in/mossa-controls/copy swap=@in/mossa-controls/swap @in/mossa-controls/first "
    "@in/mossa-controls/last --clusters @in/tasks-clusters.toml --workers 1",
    "mossa-epochs": f"{_MOSSA} --tuning.lr 1e-2 --tuning.rank 2 --tuning.epochs 0.25 --cutoff 32 --ceilings 0 "
    "--nulls 0 --n-answers 0 --n-shown 6 --n-held-out 0 --only copy swap first --no-rbf --no-without-top",
}
_STUDY_CALLS = {
    **{
        f"run-{study}": f"run {study} --preset quick --out out --workers 1 --engine local --gpus-per-job 0 --no-verify "
        + " ".join(options.split())
        for study, options in STUDIES.items()
    },
    "run-with-plugin": "run task-clusters --preset smoke --out out --workers 2 --job-timeout 300 --probes MeanNorm "
    "NDims --arms private --training.steps 4",
    "run-beyond": "run topic-structure --preset smoke --experiment beyond --out out --workers 1",
    "report": "report @runs/run-task-clusters/out",
    "report-markdown": "report @runs/run-mossa/out --markdown",
    "report-record": "report @runs/run-task-clusters/out --record record --figures ari_over_training",
    "report-of-record": "report @runs/report-record/record --no-verify",
}
_SANDBOX_CALLS = {
    "sandbox-page": "sandbox @runs/run-clustering-heads/out --seed 200 --out page.html --max-frames 5 --no-verify",
    "sandbox-film": "sandbox @runs/run-clustering-heads/out --out film.gif --max-frames 3 --panels class_map",
    "sandbox-figure": "sandbox @runs/train/run --out figure.png --epoch 2 --panels class_map residual_2 --label task "
    "--layers 0 2 --heads L0H1 --plane last --split validation_subset --position input --sequences 8",
    "sandbox-texts": "sandbox @in/series --out page.html --prompts @in/prompts.jsonl --bos model --plane classes",
}
SHOWN = {*_LISTED, *_CHECK}
"""Calls whose printed lines are compared too."""

UNUSED: dict[str, str] = {}
"""Options that no call uses, with the reason."""

WITH_PLUGIN = {"list-with-plugin", "history-plugin", "run-with-plugin"}

LIMITS_S = {"refused-many-permutations": 20}
"""Calls that may never end: after so many seconds they are observed to hang."""

COPIED = {"refused-record-not-ours": "bad/not-ours", "refused-out-not-ours": "bad/not-ours"}
"""Inputs that a call might write to: copied to the call's own ``out``."""


def commands() -> dict[str, str]:
    """Return all command lines that are not refused, by the call's name."""
    found = {**_LISTED, **_STUDY_CALLS, **_CHECK, **_CLUSTERS_CALLS, **_COMPARE_CALLS, **_HISTORY_CALLS}
    found |= {**_TOPICS_CALLS, **_MOSSA_CALLS, **_SANDBOX_CALLS}
    if find_spec("gguf"):
        found["check-gguf"] = "check @in/tiny.gguf"
        found["clusters-gguf"] = f"clusters @in/tiny.gguf --prompts @in/gguf-prompts.jsonl --out out {_QUICK_CLUSTERS}"
    if find_spec("bitsandbytes"):
        models = "@in/wide-llama --prompts @in/prompts.jsonl --out out --quantize 8bit"
        found["clusters-quantised"] = f"clusters {models} {_QUICK_CLUSTERS}"
    if find_spec("ray"):
        found["clusters-ray"] = f"{_CLUSTERS} {_QUICK_CLUSTERS} --engine ray --workers 1"
    return found


REFUSED: dict[str, tuple[str, str]] = {
    "refused-no-command": ("trian @in/gpt2", "trian"),
    "refused-option": ("clusters @in/gpt2 --prompts @in/prompts.jsonl --nperm 5", "--nperm"),
    "refused-study": ("run task-cluster", "task-cluster"),
    "refused-preset": ("run task-clusters --preset smal", "smal"),
    "refused-setting": ("run task-clusters --preset smoke --training.step 5", "--training.step"),
    "refused-shared-outputs": ("run task-clusters --preset smoke --out out --workers 1 --shared-outputs 0", "0"),
    "refused-permutations": ("run task-clusters --preset smoke --out out --workers 1 --n-permutations -1", "-1"),
    "refused-layers": ("run task-clusters --preset smoke --out out --workers 1 --n-layers 0", "0"),
    "refused-rate": ("run task-clusters --preset smoke --out out --workers 1 --training.lr inf", "inf"),
    "refused-tolerance": ("run heads-in-models --preset smoke --out out --workers 1 --tolerance -1", "-1"),
    "refused-layer-decay": ("run planted-layers --preset smoke --out out --workers 1 --layer-decay -1", "-1"),
    "refused-study-rate": ("run clustering-heads --preset smoke --out out --workers 1 --lr 0", "0"),
    "refused-study-model": (
        "run planted-layers --preset smoke --out out --workers 1 --model nowhere --prompts @in/no",
        "no",
    ),
    "refused-probe": ("run task-clusters --preset smoke --out out --workers 1 --probes Nothing", "Nothing"),
    "refused-address": (f"{_CLUSTERS} --address 127.0.0.1:1", "--address"),
    "refused-run-address": (
        "run task-clusters --preset smoke --out out --workers 1 --address 127.0.0.1:1",
        "--address",
    ),
    "refused-seed": (f"{_CLUSTERS} --seed 4294967296 {_QUICK_CLUSTERS}", "4294967296"),
    "refused-many-permutations": (f"{_CLUSTERS} --n-permutations 100000000000000000000", "100000000000000000000"),
    "refused-memory": (f"{_COMPARE} --max-memory nan", "nan"),
    "refused-compare-tolerance": (f"{_COMPARE} --tolerance nan", "nan"),
    "refused-model": ("clusters @in/nowhere --prompts @in/prompts.jsonl --out out", "nowhere"),
    "refused-nan": (f"clusters @in/bad/nan --prompts @in/prompts.jsonl --out out {_QUICK_CLUSTERS}", "blocks.1"),
    "refused-cut-weights": ("clusters @in/bad/cut-weights --prompts @in/prompts.jsonl --out out", "cut-weights"),
    "refused-wrong-config": ("clusters @in/bad/wrong-config --prompts @in/prompts.jsonl --out out", "wrong-config"),
    "refused-adapter": (f"{_CLUSTERS} --adapter @in/bad/adapter", "adapter"),
    "refused-other-adapter": ("clusters @in/llama --prompts @in/prompts.jsonl --adapter @in/adapter", "adapter"),
    "refused-utf-16": ("clusters @in/gpt2 --prompts @in/bad/utf-16.jsonl --out out", "utf-16.jsonl"),
    "refused-empty": ("clusters @in/gpt2 --prompts @in/bad/empty.jsonl --out out", "empty.jsonl"),
    "refused-cut": ("clusters @in/gpt2 --prompts @in/bad/cut.jsonl --out out", "cut.jsonl"),
    "refused-no-task": ("clusters @in/gpt2 --prompts @in/bad/no-task.jsonl --out out", "task"),
    "refused-one-task": ("clusters @in/gpt2 --prompts @in/bad/one-task.jsonl --out out", "one-task.jsonl"),
    "refused-long": ("clusters @in/gpt2 --prompts @in/long-prompts.jsonl --out out --too-long refuse", "36"),
    "refused-given": (f"{_CLUSTERS} --given frist", "frist"),
    "refused-out-not-ours": (f"{_CLUSTERS} {_QUICK_CLUSTERS}", "out"),
    "refused-compare-quantize": (f"{_COMPARE} --quantize 5bit", "5bit"),
    "refused-compare-address": (f"{_COMPARE} --address 127.0.0.1:1", "--address"),
    "refused-compare-timeout": (f"{_COMPARE} --workers 2 --job-timeout -1", "-1"),
    "refused-history-timeout": (f"{_HISTORY} --workers 2 --job-timeout -1", "-1"),
    "refused-topics-timeout": (f"{_TOPICS} --workers 2 --job-timeout -1", "-1"),
    "refused-mossa-timeout": (f"{_MOSSA} --workers 2 --job-timeout -1", "-1"),
    "refused-few": (f"{_COMPARE} --min-per-task 50", "50"),
    "refused-control": (f"{_COMPARE} --controls d=@in/controls/a", "d"),
    "refused-revisions": (
        "history nobody/nothing --revisions step0 step1 --prompts @in/prompts.jsonl",
        "nobody/nothing",
    ),
    "refused-history-quantize": (f"{_HISTORY} --quantize 5bit --address 127.0.0.1:1", "5bit"),
    "refused-cut-series": ("history @in/bad/cut-series --prompts @in/prompts.jsonl --out out", "checkpoint-16"),
    "refused-nan-series": ("history @in/bad/nan-series --prompts @in/prompts.jsonl --out out", "checkpoint-16"),
    "refused-history-cka": (f"{_HISTORY} {_QUICK_HISTORY} --probes CKA", "CKA"),
    "refused-history-head": (f"{_HISTORY} {_QUICK_HISTORY} --probes ClusteringHead", "multiset"),
    "refused-topics-few": (f"{_TOPICS} --n-topics 1", "1"),
    "refused-topics-quantize": (f"{_TOPICS} --quantize 5bit --address 127.0.0.1:1", "5bit"),
    "refused-corpus": ("topics @in/bert --corpus @in/nowhere --out out", "nowhere"),
    "refused-suite": (f"{_SUITE} --adapter @in/adapter", "--adapter"),
    "refused-suite-quantize": (f"{_SUITE} --quantize 5bit --address 127.0.0.1:1", "5bit"),
    "refused-mossa-preset": (f"{_MOSSA} --preset smal", "smal"),
    "refused-mossa-adapter": (f"{_MOSSA} --adapter @in/adapter", "--adapter"),
    "refused-mossa-quantize": (f"{_MOSSA} --quantize 8bit", "--quantize"),
    "refused-mossa-address": (f"{_MOSSA} --address 127.0.0.1:1", "--address"),
    "refused-mossa-steps": (f"{_MOSSA} --tuning.steps 5 --steps-per-task 3", "--tuning.steps"),
    "refused-mossa-task": (f"{_MOSSA} --task-field kind --task-field kind --only nothing", "nothing"),
    "refused-check-model": ("check @in/nowhere", "nowhere"),
    "refused-check-nan": ("check @in/bad/nan", ""),
    "refused-report": ("report @in/corpus", "corpus"),
    "refused-report-figures": ("report @runs/run-task-clusters/out --figures nothing", "--record"),
    "refused-record-not-ours": ("report @runs/run-task-clusters/out --record out", "out"),
    "refused-sandbox": ("sandbox @in/corpus --out page.html", "corpus"),
    "refused-sandbox-head": ("sandbox @runs/train/run --out page.html --heads L7H0", "L7H0"),
    "refused-sandbox-ending": ("sandbox @runs/train/run --out page.docx", "page.docx"),
}
"""Bad input: the command line, and what the message must name."""

for _study in STUDIES:  # options that every study has, and that would start processes
    _line = f"run {_study} --preset smoke --out out --probes Nothing --address 127.0.0.1:1 --job-timeout -1"
    REFUSED[f"refused-engine-of-{_study}"] = (_line, "-1")

KILLED = {
    "killed-compare": (f"{_COMPARE} {_QUICK_COMPARE}", "out/**/*.safetensors"),
    "killed-history": (f"{_HISTORY} {_QUICK_HISTORY}", "out/**/*.safetensors"),
    "killed-run": (
        "run task-clusters --preset smoke --out out --workers 1 --arms private --training.steps 6",
        "out/results/**/*.safetensors",
    ),
    "killed-mossa": (f"{_MOSSA} {_QUICK_MOSSA} --ceilings 0 --no-rbf", "out/adapters/**/*.safetensors"),
}
"""Runs that are killed at the first file that matches, and resumed: the command line and the pattern."""


def words(line: str, inputs: Path, work: Path) -> list[str]:
    """Return the words of a command line, with its folders."""
    return [word.replace("@in/", f"{inputs}/").replace("@runs/", f"{work}/") for word in shlex.split(line)]


def all_lines() -> list[str]:
    """Return every command line but those for help."""
    refused = [line for line, _ in REFUSED.values()]
    killed = [line for line, _ in KILLED.values()]
    return [*commands().values(), *refused, *killed]


def command_of(line: str) -> str:
    """Return which command's options a line uses, as in ``HELP``."""
    first, *others = line.split()
    if first == "topics" and others[:1] == ["--suite"]:
        return "topics --suite"
    if first == "run":
        return f"run {others[0]}"
    return first
