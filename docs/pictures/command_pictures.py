"""Pictures for the pages of commands, and for the front page."""

from __future__ import annotations

from typing import Any

import pandas as pd
from PIL import Image
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from docs.pictures import runs
from docs.pictures.models import STEPS, own, repeating
from docs.pictures.probe_pictures import panels
from docs.pictures.registry import ROOT, picture
from mechclust import HeadsConfig, measure_heads
from mechclust.report.style import COLORS, layer_shades
from probes import AttentionEntropy, LogitLens, TaskClusterARI, last_token, load_result, run
from probes.engine.plots import plot_chance_band

SMOLLM2 = ROOT / "examples" / "results" / "real-models" / "smollm2"


@picture("task-or-wording")
def task_or_wording() -> Any:
    clusters, features = (pd.read_csv(SMOLLM2 / f"{name}.csv") for name in ("clusters", "features"))
    words = features[features["name"] == "last word"]
    tasks = features[features["name"] == "task"]
    trained, wording = COLORS[0], COLORS[1]
    figure, (left, right) = panels(2, 5.0, 3.4)
    for table, colour, label, where in ((words, wording, "last word", 0.95), (tasks, trained, "task", -0.16)):
        left.plot(table["layer"], table["ami"], color=colour, lw=2)
        left.plot(table["layer"], table["untrained"], color=colour, ls="--", lw=1.2)
        left.text(10, where, label, color=colour)
    left.text(10, 0.55, "last word, random weights", color=wording, fontsize=8)
    left.axhline(0, color="#777777", lw=0.8)
    left.text(30, 0.02, "chance", color="#777777", fontsize=8, ha="right")
    left.set(
        ylim=(-0.25, 1.08),
        xlabel="layer",
        ylabel="adjusted mutual information",
        title="Clusters follow the last word, not the task",
    )
    layers = clusters["layer"]
    right.plot(layers, clusters["accuracy"], color=trained, lw=2)
    right.plot(layers, clusters["untrained_accuracy"], color=trained, ls="--", lw=1.2)
    plot_chance_band(
        right, layers.to_numpy(), clusters["linear_null_low"].to_numpy(), clusters["linear_null_high"].to_numpy()
    )
    right.text(22, 0.9, "trained", color=trained, ha="right")
    right.text(1.5, 0.7, "random weights", color=trained, fontsize=8)
    right.text(30, 0.19, "chance", color="#777777", fontsize=8, ha="right")
    right.set(
        ylim=(0, 1.03),
        xlabel="layer",
        ylabel="accuracy on held-out wordings",
        title="A classifier reads the task, also with random weights",
    )
    for name in ("accuracy", "untrained_accuracy_high"):
        best = clusters.set_index("layer")[name]
        print(f"{name} {best.max():.2f} at layer {best.idxmax()}")
    return figure


@picture("readme-plot")
def readme_plot() -> Any:
    figure, (axis,) = panels(1, 4.6, 3.0)
    load_result(SMOLLM2 / "decodability.safetensors").plot("accuracy", ax=axis)
    return figure


@picture("own-model")
def own_model() -> Any:
    model, prompts, batches = own()
    answers = [model.tokenizer.encode(word, add_special_tokens=False)[0] for word in prompts.classes["answer"]]
    probes = [TaskClusterARI("task", readout=last_token()), LogitLens("answer", answers), AttentionEntropy()]
    clusters, lens, entropy = run(model, batches, probes)
    figure, axes = panels(3, 4.4, 3.2)
    clusters.plot("ari", ax=axes[0])
    lens.plot("probability", ax=axes[1])
    entropy.plot("share", ax=axes[2])
    return figure


@picture("clusters")
def clusters() -> Any:
    return Image.open(runs.clusters() / "figures" / "curves_by_layer.png").reduce(2)


@picture("heads")
def heads() -> Any:
    steps = 800
    task, model = repeating(steps)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(task.n_symbols)}, unk_token="w0"))
    settings = HeadsConfig(n_sequences=64, length=task.length, periods=(6, 9), max_offset=4, untrained=3)
    result = measure_heads(model, settings, tokenizer=PreTrainedTokenizerFast(tokenizer_object=words))
    _, scores = result.panels()
    return scores.figure


@picture("topics")
def topics() -> Any:
    return Image.open(runs.topics() / "figures" / "attention.png").reduce(2)


@picture("compare")
def compare() -> Any:
    return Image.open(runs.compare() / "figures" / "cka_by_layer.png").reduce(2)


@picture("history")
def history() -> Any:
    table = pd.read_csv(runs.history() / "history.csv")
    table = table[table["measure"] == "clusters"]
    values = table.pivot(index="layer", columns="step", values="value")
    figure, (left, right) = panels(2, 5.0, 3.3)
    image = left.imshow(values, origin="lower", aspect="auto", vmin=0, vmax=1)
    left.set(xlabel="checkpoint", ylabel="layer", title="clusters by answer (adjusted Rand index)")
    left.set_xticks(range(len(STEPS)), list(map(str, STEPS)))
    figure.colorbar(image, ax=left)
    high, low = (table.pivot(index="layer", columns="step", values=end) for end in ("null_high", "null_low"))
    for layer, colour in zip(values.index, layer_shades(len(values)), strict=True):
        right.plot(range(len(STEPS)), values.loc[layer], color=colour, marker="o", ms=4, label=f"layer {layer}")
    plot_chance_band(right, range(len(STEPS)), low.min().to_numpy(), high.max().to_numpy())
    right.set_xticks(range(len(STEPS)), list(map(str, STEPS)))
    right.set(xlabel="checkpoint", title="the same, with chance (hatched)")
    right.grid(alpha=0.25)
    right.legend(frameon=False, fontsize=8)
    return figure


@picture("sandbox")
def sandbox() -> Any:
    from docs.pictures.models import summing
    from mechclust.commands.sandbox import open_sandbox
    from mechclust.sandbox import sandbox_figure

    _, _, place = summing()
    found = open_sandbox(place, seed=0, max_frames=60)
    epoch = found.epochs[len(found.epochs) // 3]
    return sandbox_figure(found, epoch, ["xi", "class_map", "loss"])
