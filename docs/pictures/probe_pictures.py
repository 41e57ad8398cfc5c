"""A picture for the page of each probe."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib import pyplot

from docs.pictures.models import documents, instructed, instructions, own, repeating, summing, topical
from docs.pictures.registry import picture
from mechclust.report.style import BLUE, COLORS, GREY, ORANGE, RED
from probes import (
    CKA,
    RBFCKA,
    SVCCA,
    AttentionEntropy,
    ClusteringHead,
    HeadRoles,
    LinearDecodability,
    LogitLens,
    NDims,
    NeighbourPurity,
    NormJacobian,
    Projection,
    TaskClusterARI,
    TopicEmbedding,
    last_token,
    residual,
    run,
    token_at,
)
from probes.engine.plots import plot_chance_band

AT_INPUT = token_at("input")


def panels(n: int, width: float = 4.4, height: float = 3.2, **options: Any) -> tuple[Any, list[Any]]:
    """A figure with panels in a row."""
    figure, axes = pyplot.subplots(1, n, figsize=(width * n, height), squeeze=False, layout="constrained", **options)
    return figure, list(axes[0])


@picture("task-cluster-ari")
def task_cluster_ari() -> Any:
    _, examples = instructions()
    figure, axes = panels(2, sharey=True)
    probe = TaskClusterARI("task", also=("output",), readout=AT_INPUT, n_init=100)  # 10 starts: a poor optimum
    for axis, name, steps in zip(axes, ("before training", "after 200 steps"), (0, 200), strict=True):
        found = run(instructed(steps=steps), examples, probe)
        found.plot("ari", ax=axis)
        axis.set(title=name, ylim=(-0.05, 1.05))
    return figure


@picture("linear-decodability")
def linear_decodability() -> Any:
    model, _, batches = own()
    clusters = TaskClusterARI("task", readout=last_token())
    linear = LinearDecodability("task", readout=last_token())
    raw, read = run(model, batches, [clusters, linear])
    figure, (left, right) = panels(2)
    raw.plot("ari", ax=left).set(title="clusters", ylim=(-0.1, 1.05))
    read.plot("accuracy", ax=right).set(title="linear classifier", ylim=(0.3, 1.05))
    return figure


@picture("logit-lens")
def logit_lens() -> Any:
    model, prompts, batches = own()
    answers = [model.tokenizer.encode(word, add_special_tokens=False)[0] for word in prompts.classes["answer"]]
    lens = run(model, batches, LogitLens("answer", answers))
    figure, (left, right) = panels(2)
    lens.plot("probability", ax=left).set_title("probability of the answer")
    lens.plot("rank", ax=right).set_title("its median rank (1: first)")
    right.set_yscale("log")
    return figure


@picture("attention-entropy")
def attention_entropy() -> Any:
    _, examples = instructions()
    figure, axes = panels(2, 5.2)
    for axis, name, each in (
        (axes[0], "before training", instructed(steps=0)),
        (axes[1], "after training", instructed()),
    ):
        found = run(each, examples, AttentionEntropy())
        found.plot("share", ax=axis)
        axis.images[0].set_clim(0, 1)
        axis.set_title(name)
        values = found["share"]
        for site, head in np.ndindex(*values.shape):
            dark = values[site, head] < 0.5
            axis.text(head, site, f"{values[site, head]:.2f}", ha="center", va="center", color="w" if dark else "k")
    axes[1].set_ylabel("")
    return figure


@picture("head-roles")
def head_roles() -> Any:
    steps = 800
    task, untrained = repeating()
    _, trained = repeating(steps)
    figure, axes = panels(3, 3.9, 2.8)
    result = run(trained, task.batches("test"), HeadRoles())
    result.plot("role", ax=axes[0]).set_title("roles")
    before = run(untrained, task.batches("test"), HeadRoles(n_permutations=0))
    for axis, role in zip(axes[1:], ("previous", "induction"), strict=True):
        result.plot("excess", ax=axis, role=role)
        axis.images[0].set_clim(0, 1)
        axis.set(title=f"{role}: attention above chance", ylabel="")
        for site, head in np.ndindex(2, 4):
            value = float(result.sel("excess", role=role)[site, head])
            axis.text(head, site, f"{value:.2f}", ha="center", va="center", color="w" if value < 0.5 else "k")
    print(f"before training, roles are within {float(before['excess'][..., :6].abs().max()):.3f} of 0")
    return figure


@picture("projection")
def projection() -> Any:
    _, examples = instructions()
    result = run(instructed(), examples, Projection(at=residual([1, 2, 3, 4]), readout=AT_INPUT))
    figure, axes = panels(4, 2.5, 2.6)
    for axis, site, xy in zip(axes, result.coords["site"], result["xy"], strict=True):
        axis.scatter(xy[:, 0], xy[:, 1], c=[COLORS[i] for i in result["label"].int().tolist()], s=7)
        axis.set(title=f"layer {result.layers[site]}", xticks=[], yticks=[])
    return figure


@picture("cka")
def cka() -> Any:
    _, examples = instructions()
    one, other, none = instructed(), instructed(1), instructed(steps=0)
    probe = CKA(readout=AT_INPUT)
    found = {
        "trained, with itself": run(one, examples, probe),
        "untrained, with itself": run(none, examples, probe),
        "trained, with another seed": run({"a": one, "b": other}, examples, CKA(readout=AT_INPUT, pairs="all")),
    }
    figure, axes = panels(3, 4.0, 3.2)
    for axis, (name, result) in zip(axes, found.items(), strict=True):
        result.plot("debiased_cka", ax=axis, label="all")
        axis.images[0].set_clim(0, 1)
        axis.set_title(name, fontsize=10)
    return figure


@picture("similarity")
def similarity() -> Any:
    _, examples = instructions()
    figure, axes = panels(2, sharey=True)
    probes = [CKA(readout=AT_INPUT), RBFCKA(readout=AT_INPUT), SVCCA(readout=AT_INPUT)]
    names = ("debiased_cka", "debiased_rbf_cka", "svcca")
    pairs = {
        "trained and untrained": {"a": instructed(), "b": instructed(steps=0)},
        "two seeds, trained": {"a": instructed(), "b": instructed(1)},
    }
    for axis, (title, pair) in zip(axes, pairs.items(), strict=True):
        for k, (found, name) in enumerate(zip(run(pair, examples, probes), names, strict=True)):
            values = found[name].reshape(len(found.coords["site"]), -1)[:, 0]
            axis.plot(range(len(values)), values, color=COLORS[k], marker="osv"[k], ms=4, label=name)
        axis.set(title=title, xlabel="layer", xticks=range(5), ylim=(-0.05, 1.05))
        axis.axhline(0, color=GREY, ls="--", lw=1)
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("similarity")
    axes[1].legend(frameon=False, fontsize=8)
    return figure


@picture("n-dims")
def n_dims() -> Any:
    _, examples = instructions()
    found = run({"trained": instructed(), "untrained": instructed(steps=0)}, examples, NDims(readout=AT_INPUT))
    figure, (axis,) = panels(1, 5.6)
    found.plot("n_dims", ax=axis)
    axis.set(ylabel="directions that hold 99% of the variance", ylim=(0, None), title="")
    axis.yaxis.label.set_fontsize(8)
    return figure


@picture("neighbour-purity")
def neighbour_purity() -> Any:
    _, examples = instructions()
    probe = NeighbourPurity(residual([1, 2, 3, 4]), label="task", readout=AT_INPUT)
    found = run({"trained": instructed(), "untrained": instructed(steps=0)}, examples, probe)
    figure, (axis,) = panels(1, 5.6)
    found.plot("neighbour_purity", ax=axis)
    axis.set(ylim=(0, 1.05), title="")
    return figure


@picture("clustering-head")
def clustering_head() -> Any:
    task, snapshots, _ = summing()
    probe = ClusteringHead(equivalence=("multiset", "sum"), support=task.positions, modulus=2)
    results = [run(snapshots.model(seed), task.batches("test"), probe) for seed in range(8)]
    ratios = [float(found.sel("within_ratio", equivalence="multiset")) for found in results]
    figure, axes = panels(2, 4.6, 3.6)
    batch = next(iter(task.batches("test", batch_size=400)))
    classes = batch.tokens[:, list(task.positions)].sum(dim=1)
    for axis, name, seed in (
        (axes[0], "tightest", int(np.argmin(ratios))),
        (axes[1], "loosest", int(np.argmax(ratios))),
    ):
        with torch.inference_mode():
            _, cache = snapshots.model(seed).run_with_cache(batch.tokens)
        z = cache["blocks.0.attn.hook_z"].reshape(len(batch), -1, 2)[:, -1]
        for c in range(4):
            here = z[classes == c]
            axis.scatter(here[:, 0], here[:, 1], color=COLORS[c], s=9, label=f"sum {c}")
        axis.set(title=f"{name} of 8 seeds: within_ratio {ratios[seed]:.3f}", xlabel="output 0", ylabel="output 1")
    axes[0].legend(frameon=False, fontsize=8)
    return figure


@picture("topic-attention")
def topic_attention() -> Any:
    _, _, _, found = topical()
    steps = sorted(found)
    ratio, low, high = (
        np.array([float(found[step][name]) for step in steps])
        for name in ("overall_ratio", "overall_ratio_null_low", "overall_ratio_null_high")
    )
    figure, (axis,) = panels(1, 5.6)
    axis.plot(steps, ratio, color=BLUE, marker="o", ms=4)
    print(f"the ratio ends at {ratio[-1]:.1f}")
    plot_chance_band(axis, steps, low, high)
    axis.set(xlabel="training step", ylabel="same topic / different topic")
    axis.grid(alpha=0.25)
    return figure


@picture("distance-matched")
def distance_matched() -> Any:
    draw = torch.Generator().manual_seed(0)
    topic = torch.randint(0, 4, (50, 5), generator=draw).repeat_interleave(8, dim=1)  # runs of 8 words
    words = 6 * topic + torch.randint(0, 6, topic.shape, generator=draw)
    place = torch.arange(40)
    fall = 1.0 / (1 + (place[:, None] - place).abs()).float()
    same = topic[:, :, None] == topic[:, None, :]
    figure, axes = panels(2, sharey=True)
    from probes.engine.attention import EagerAttention
    from probes.functional.distance_matched_topic_attention import DistanceMatchedPairs, matched_means, unmatched_means
    from probes.functional.word_topics import WordTopics

    pairs = DistanceMatchedPairs.from_words(words, WordTopics.from_topics(torch.arange(24) // 6), max_distance=39)
    number = pairs.pairs()
    for axis, factor, title in ((axes[0], 1.0, "distance alone"), (axes[1], 1.5, "distance and topic")):
        total = pairs.sums(EagerAttention((fall * torch.where(same, factor, 1.0))[:, None]).rows, 1)
        ratios = {}
        for name, means in (("all distances", unmatched_means), ("equal distance", matched_means)):
            one, other = means(total, number)[0].tolist()
            ratios[name] = one / other
        curve = total[0].sum(dim=0) / number.sum(dim=0)
        for k, label in enumerate(("same topic", "different topic")):
            axis.plot(range(1, 40), curve[k].numpy(), color=(RED, BLUE)[k], marker="os"[k], ms=3, lw=1, label=label)
        axis.set(title=f"{title}: ratio " + ", ".join(f"{v:.2f} ({k})" for k, v in ratios.items()), xlabel="distance")
        axis.title.set_fontsize(8)
        axis.grid(alpha=0.25)
        axis.set_yscale("log")
        axis.yaxis.set_minor_formatter("")
    axes[0].set_ylabel("mean attention")
    axes[0].legend(frameon=False, fontsize=8)
    return figure


@picture("topic-embedding")
def topic_embedding() -> Any:
    from mechclust.models import token_embeddings

    task, text = documents()
    untrained, model, _, _ = topical()
    figure, axes = panels(2, 4.0, 3.5)
    for axis, name, each in ((axes[0], "before training", untrained), (axes[1], "after training", model)):
        words = token_embeddings(each)[-task.n_words :].detach()
        words = words / words.norm(dim=1, keepdim=True)
        image = axis.imshow(words @ words.T, vmin=-1, vmax=1, cmap="RdBu_r", interpolation="nearest")
        axis.set(title=name, xlabel="word, sorted by topic")
    axes[0].set_ylabel("word, sorted by topic")
    figure.colorbar(image, ax=axes, label="cosine (chance 0)")
    found = run(model, text, TopicEmbedding(task.token_topics))
    low, high = (float(found[f"difference_null_{end}"].flatten()[0]) for end in ("low", "high"))
    difference = float(found["difference"].flatten()[0])
    print(f"difference {difference:.2f}, chance {low:.2f} to {high:.2f}")
    return figure


@picture("norm-jacobian")
def norm_jacobian() -> Any:
    task, snapshots, _ = summing()
    places = range(0, len(snapshots.steps), 2)
    results = [
        run(snapshots.model(0, snapshots.steps[place]), task.batches("test"), NormJacobian()) for place in places
    ]
    epochs = [snapshots.epochs[place] for place in places]
    figure, (left, right) = panels(2)
    for name, color in (("median_norm", BLUE), ("smallest_norm", ORANGE)):
        left.plot(epochs, [float(found[name]) for found in results], color=color, label=name)
    right.plot(epochs, [float(found["jacobian"]) for found in results], color=RED)
    left.legend(frameon=False, fontsize=8)
    left.set(xlabel="epoch", ylabel="norm of the head's output")
    right.set(xlabel="epoch", ylabel="largest Jacobian")
    for axis in (left, right):
        axis.grid(alpha=0.25)
        axis.set_yscale("log")
    return figure


@picture("norms")
def norms() -> Any:
    _, _, weights, _ = topical()
    figure, (axis,) = panels(1, 5.8, 3.4)
    weights.compute().plot("norm", ax=axis)
    axis.set(title="", xlim=(0, 300), ylabel="Frobenius norm")
    return figure
