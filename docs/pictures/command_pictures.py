"""Pictures for the pages of commands, and for the front page."""

from __future__ import annotations

import pandas as pd
from PIL import Image
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from docs.pictures import runs
from docs.pictures.models import BERT, GPT2, STEPS, own, repeating
from docs.pictures.probe_pictures import panels
from docs.pictures.registry import ROOT, Drawn, picture
from mechclust import HeadsConfig, measure_heads
from mechclust.report.style import COLORS, layer_shades
from probes import AttentionEntropy, LogitLens, TaskClusterARI, last_token, load_result, run
from probes.engine.plots import plot_chance_band

SMOLLM2 = ROOT / "examples" / "results" / "real-models" / "smollm2"


@picture(
    "task-or-wording",
    "README.md",
    "docs/index.md",
    alt="By layer, agreement of clusters with the last word and with the task, and accuracy of a classifier",
)
def task_or_wording() -> Drawn:
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
    accuracy, random = (clusters.set_index("layer")[name] for name in ("accuracy", "untrained_accuracy_high"))
    return figure, (
        "SmolLM2-135M-Instruct on 300 prompts for ten tasks. Left: its hidden states cluster by the last word, not by "
        "the task (below chance, since all tasks share their prompts' last words). Right: a classifier reads the task "
        f"with accuracy {accuracy.max():.2f} at layer {accuracy.idxmax()}. Random weights reach "
        f"{random.max():.2f} at layer {random.idxmax()} (chance 0.10)."
    )


@picture("readme-plot", "README.md", alt="Accuracy of a linear classifier by layer, with its interval and chance")
def readme_plot() -> Drawn:
    figure, (axis,) = panels(1, 4.6, 3.0)
    load_result(SMOLLM2 / "decodability.safetensors").plot("accuracy", ax=axis)
    return figure, (
        "Accuracy on held-out prompts, whose wordings the classifier may have seen: so it is higher than above. Hatched: "
        "chance (n = 300)."
    )


@picture(
    "own-model",
    "docs/probes/index.md",
    alt="Three panels: clusters by layer, probability of the answer by layer, and a map of heads",
)
def own_model() -> Drawn:
    model, prompts, batches = own()
    answers = [model.tokenizer.encode(word, add_special_tokens=False)[0] for word in prompts.classes["answer"]]
    probes = [TaskClusterARI("task", readout=last_token()), LogitLens("answer", answers), AttentionEntropy()]
    clusters, lens, entropy = run(model, batches, probes)
    figure, axes = panels(3, 4.4, 3.2)
    clusters.plot("ari", ax=axes[0])
    lens.plot("probability", ax=axes[1])
    entropy.plot("share", ax=axes[2])
    return figure, (
        f"`result.plot()` of three probes in one pass: {GPT2} ({len(prompts)} prompts). The states cluster by the task at "
        "layer 1 only. The answer appears from there on. Heads attend widely. Hatched or grey: chance."
    )


@picture(
    "clusters",
    "docs/commands/clusters.md",
    alt="Index of clusters and accuracy of a classifier by layer, for two labels",
)
def clusters() -> Drawn:
    return Image.open(runs.clusters() / "figures" / "curves_by_layer.png").reduce(2), (
        f"The figure that `mechclust clusters` draws of {GPT2} (96 prompts). For the task (left), one of "
        "three models with random weights reaches as much as the trained one (dashed: their mean, shaded: to the "
        "highest). So the task can be read from the prompts' wording. The answer (right) was learnt. Bars: 95% intervals "
        "over prompts. Hatched: chance, 95% of relabellings."
    )


@picture(
    "heads", "docs/commands/heads.md", alt="Attention above chance of each head by role, trained and random weights"
)
def heads() -> Drawn:
    steps = 800
    task, model = repeating(steps)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(task.n_symbols)}, unk_token="w0"))
    settings = HeadsConfig(n_sequences=64, length=task.length, periods=(6, 9), max_offset=4, untrained=3)
    result = measure_heads(model, settings, tokenizer=PreTrainedTokenizerFast(tokenizer_object=words))
    _, scores = result.panels()
    return scores.figure, (
        f"The second figure of `mechclust heads`, for a 2-block transformer trained for {steps} steps to continue "
        f"repeated random tokens ({settings.n_sequences} sequences). Blue: its heads. Grey: heads of three models "
        "with random weights, all at chance (0)."
    )


@picture(
    "topics",
    "docs/commands/topics.md",
    alt="Attention within topics over attention between topics by threshold, of a model and of random weights",
)
def topics() -> Drawn:
    return Image.open(runs.topics() / "figures" / "attention.png").reduce(2), (
        f"The first figure that `mechclust topics` draws, of {BERT} of 600 documents with five planted topics (n = 200 "
        "documents). Its attention does not stay within topics: pairs within a topic get less attention than pairs across "
        "topics, at any threshold and distance. Dashed: chance, the mean of three copies with random weights. Bars: 95% "
        "over documents and topic models."
    )


@picture("compare", "docs/commands/compare.md", alt="CKA of the tuned with the base model by layer, one curve per task")
def compare() -> Drawn:
    return Image.open(runs.compare() / "figures" / "cka_by_layer.png").reduce(2), (
        f"The figure that `mechclust compare` draws of {GPT2}, and of this model tuned for 30 more steps to answer the "
        "task `repeat` with the opposite too (2 tasks of 48 prompts). The residual stream differs from layer 1 (the "
        "output of `blocks.0`) on. The task whose answers changed stands out (bold). Bands: 95% over prompts. Hatched: chance, "
        "prompts paired at random."
    )


@picture(
    "history",
    "docs/commands/history.md",
    alt="A heat map of layer by training step, and one curve per layer over training steps with the chance band",
)
def history() -> Drawn:
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
    return figure, (
        f"Measured by `mechclust history` at {len(STEPS)} checkpoints of {GPT2} (96 prompts, 16 answers). From step "
        "20 on, hidden states of layers 2 to 4 cluster by the answer. Layer 1 does so weakly, and layer 0 (the "
        "embedding of the last token) not at all. Hatched: chance, the widest interval of all layers (95% of relabellings)."
    )


@picture("sandbox", "docs/sandbox.md", alt="Three panels of one network at one epoch: head outputs, answers, loss")
def sandbox() -> Drawn:
    from docs.pictures.models import summing
    from mechclust.commands.sandbox import open_sandbox
    from mechclust.sandbox import sandbox_figure

    _, _, place = summing()
    found = open_sandbox(place, seed=0, max_frames=60)
    epoch = found.epochs[len(found.epochs) // 3]
    return sandbox_figure(found, epoch, ["xi", "class_map", "loss"]), (
        f"One frame of the sandbox: epoch {epoch} of a network with one head of two dimensions, which learns to add three "
        "of eight binary digits. Left: the head's output for each sequence. Middle: the network's answer at each place of "
        "the plane. Right: the loss. Chance is an accuracy of one half."
    )
