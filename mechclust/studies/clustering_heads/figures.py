"""Figures and sandbox pages of the clustering-head study."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from mechclust.report.analysis import Panel
from mechclust.report.claims import share_interval
from mechclust.studies.clustering_heads.config import ABLATIONS, SOLVED
from mechclust.studies.clustering_heads.results import CLUSTERED
from mechclust.training import Snapshots
from probes.clustering_head import INTEGER_DEVIATION, TEXTBOOK_WITHIN_RATIO

if TYPE_CHECKING:
    from mechclust.studies.clustering_heads.config import ClusteringHeadsConfig
    from mechclust.studies.clustering_heads.results import Head, Runs
    from mechclust.studies.clustering_heads.sandbox import SandboxRun

_SOLVED, _FAILED, _SOFT = "#1b6ca8", "#b9b9b9", "#555555"
_KINDS = {"textbook": "#1b6ca8", "integer-weight": "#e08214", "neither": "#999999"}


def _kind(head: Head) -> str:
    return "textbook" if head.textbook else "integer-weight" if head.integer else "neither"


def panels(config: ClusteringHeadsConfig, runs: Runs, out: Path) -> list[Panel]:
    """The report's figures, those of what was run."""
    found = [
        Panel("training", training(config, runs), "Test loss of every network of the base setting (blue: above "
              f"{SOLVED} accuracy at the end; dotted: guessing), and accuracy at the end."),
        Panel("heads", heads(runs), "Deviation of the head's weights from integers, and within-ratio of the support's "
              "multiset, against accuracy, one point a network. Lines: the detector's thresholds."),
        Panel("dates", dates(runs), "When the head forms (within-ratio of its final partition below "
              f"{CLUSTERED}) and when test accuracy passes {SOLVED}; when the gradient peaks and when the loss drops "
              "most, outside spikes. Solved networks."),
        Panel("spikes", spikes(runs), "The network with the most loss spikes, of the solved ones if there are any: "
              "training loss, least norm of xi, margin of the nearest cluster. Dots mark spikes."),
    ]  # fmt: skip
    found.append(Panel("gradients", gradients(config, runs), "Norm of the training loss's gradient by group of "
                       "parameters, of the network in the first sandbox."))  # fmt: skip
    if len(runs.final) > 1:
        found.append(
            Panel(
                "shares", shares(config, runs), f"Share of networks above {SOLVED} test accuracy, with 95% intervals."
            )
        )
    if any(name.split(" ")[0] in ABLATIONS for name in runs.final):
        found.append(Panel("ablations", ablations(config, runs), "Test accuracy at the end as one setting varies: "
                           "every seed, and their mean. The base setting is dotted."))  # fmt: skip
    if runs.curriculum:
        found.append(Panel("curriculum", curriculum(config, runs), "Accuracy on the harder task from scratch and after "
                           "p = 2, and training loss on the straight line between the two solutions."))  # fmt: skip
    if config.sandbox:
        from mechclust.studies.clustering_heads.sandbox import sandbox_figure

        run = sandbox_of(config, runs.heads[_shown(config, runs)[0]], out)
        found.append(
            Panel("sandbox", sandbox_figure(run, run.epochs[-1]), f"The sandbox at the last epoch: {run.title}.")
        )
    return found


def training(config: ClusteringHeadsConfig, runs: Runs) -> Figure:
    """Test loss over epochs of all networks, and the distribution of accuracy."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    for head in sorted(runs.heads.values(), key=lambda h: h.solved):
        color, width = (_SOLVED, 0.9) if head.solved else (_FAILED, 0.6)
        left.plot(head.curve("test_loss"), color=color, lw=width, alpha=0.7)
    left.set(yscale="log", xlabel="epoch", ylabel="test loss (nats)")
    left.axhline(np.log(config.task.p), color=_SOFT, ls=":", lw=1)
    right.hist([h.accuracy for h in runs.heads.values()], bins=np.linspace(0.4, 1, 31), color=_SOLVED)
    right.axvline(SOLVED, color=_SOFT, ls=":", lw=1)
    right.set(xlabel="test accuracy at the end", ylabel="networks")
    return figure


def heads(runs: Runs) -> Figure:
    """What the detector sees, against accuracy."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True)
    for kind, color in _KINDS.items():
        mine = [h for h in runs.heads.values() if _kind(h) == kind]
        accuracy = [h.accuracy for h in mine]
        style: dict[str, Any] = {"color": color, "alpha": 0.75, "label": f"{kind} ({len(mine)})", "s": 26}
        left.scatter(accuracy, [float(h.head["integer_deviation"]) for h in mine], **style)
        right.scatter(accuracy, [float(h.head["within_ratio"][0, 0, 0]) for h in mine], **style)
    left.axhline(INTEGER_DEVIATION, color=_SOFT, ls=":", lw=1)
    right.axhline(TEXTBOOK_WITHIN_RATIO, color=_SOFT, ls=":", lw=1)
    left.set(xlabel="test accuracy at the end", ylabel="deviation from integer weights")
    right.set(xlabel="test accuracy at the end", ylabel="within-ratio of the multiset", yscale="log")
    left.legend(frameon=False, title="verdict")
    return figure


def dates(runs: Runs) -> Figure:
    """Two orders of dates, one point a solved network."""
    figure = Figure(figsize=(9.5, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    solved = [h for h in runs.solved if h.integer and h.formed_at is not None and h.solved_at is not None]
    formed: list[Any] = [(h.formed_at, h.solved_at) for h in solved]
    pairs: list[tuple[Any, list[tuple[int, int]], str, str]] = [
        (left, formed, "head formed (epoch)", f"accuracy passes {SOLVED} (epoch)"),
        (right, [pair[::-1] for h in runs.solved if (pair := h.peak_and_drop(without_spikes=True)) is not None],
         "largest fall of the loss outside spikes (epoch)", "largest gradient outside spikes (epoch)"),
    ]  # fmt: skip
    for axis, points, x, y in pairs:
        axis.axline((0, 0), slope=1, color=_SOFT, lw=0.8, ls=":")
        if points:
            axis.scatter(*zip(*points, strict=True), color=_SOLVED, alpha=0.7, s=26)
        axis.set(xlabel=x, ylabel=y, xlim=(0, None), ylim=(0, None))
    return figure


def spikes(runs: Runs) -> Figure:
    """Loss, least norm and margin of one network over training, its spikes marked."""
    head = max(runs.solved or runs.heads.values(), key=lambda h: len(h.spikes))
    figure = Figure(figsize=(11, 5), layout="constrained")
    axes = figure.subplots(3, 1, sharex=True)
    names = {"train_loss": "training loss", "smallest_norm": "least |xi|", "margin": "least margin"}
    at = [spike.epoch for spike in head.spikes]
    for axis, (name, label) in zip(axes, names.items(), strict=True):
        values = head.curve(name)
        axis.plot(values, color=_SOLVED, lw=0.9)
        axis.plot(at, values[at], "o", color="#c8553d", ms=4)
        axis.set(ylabel=label, yscale="log")
        axis.grid(alpha=0.25)
    axes[0].set_title(f"seed {head.seed}: {len(at)} spikes", loc="left", fontsize=10)
    axes[-1].set_xlabel("epoch")
    return figure


def gradients(config: ClusteringHeadsConfig, runs: Runs) -> Figure:
    """Gradient norms by group of parameters over training, on a logarithmic and a linear scale."""
    head = runs.heads[_shown(config, runs)[0]]
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    axes = figure.subplots(1, 2)
    groups = head.result.coords["group"][:-1]
    for axis, scale in zip(axes, ("log", "linear"), strict=True):
        for group, values in zip(groups, head.curve("gradient_norm").T, strict=False):
            axis.plot(values, lw=0.9, label=group)
        axis.set(xlabel="epoch", ylabel="gradient norm", yscale=scale)
        axis.grid(alpha=0.25)
    axes[0].set_title(f"seed {head.seed}", loc="left", fontsize=10)
    axes[1].legend(frameon=False)
    return figure


def shares(config: ClusteringHeadsConfig, runs: Runs) -> Figure:
    """Share of networks that solve the task, by arm."""
    from mechclust.studies.clustering_heads.results import MITIGATIONS

    arms = [arm for arm in ("base", *MITIGATIONS, "scratch", "transfer") if runs.shares(arm)]
    p = config.task.p
    names = {
        "base": f"base, p = {p}",
        "scratch": f"p = {p + 1} from scratch",
        "transfer": f"p = {p + 1} from solved p = {p}",
    }
    figure = Figure(figsize=(8, 0.6 + 0.45 * len(arms)), layout="constrained")
    axis = figure.subplots()
    for row, arm in enumerate(reversed(arms)):
        values = runs.shares(arm)
        mean, (low, high) = float(np.mean(values)), share_interval(values) or (np.nan, np.nan)
        axis.errorbar(mean, row, xerr=[[mean - low], [high - mean]], fmt="o", color=_SOLVED, capsize=3)
    axis.set_yticks(range(len(arms)), [f"{names.get(a, a)} (n = {len(runs.shares(a))})" for a in reversed(arms)])
    axis.set(xlabel=f"share above {SOLVED} test accuracy", xlim=(-0.02, 1))
    axis.grid(alpha=0.25, axis="x")
    return figure


def _varied(config: ClusteringHeadsConfig, runs: Runs) -> dict[str, dict[float, list[float]]]:
    """Kind of ablation to value to the test accuracies at the end, of what there is."""
    grid = config.ablations
    values = dict(zip(ABLATIONS, (grid.batch_sizes, grid.lrs, grid.widths, grid.discounts), strict=True))
    found = {
        kind: {v: [test for _, test in runs.final.get(f"{kind} {v:g}", {}).values()] for v in of}
        for kind, of in values.items()
    }
    return {kind: {v: tests for v, tests in of.items() if tests} for kind, of in found.items()}


_LABELS = {
    "batch": "batch size",
    "lr": "learning rate",
    "width": "feed-forward width",
    "discount": "factor on the feed-forward learning rate",
}


def ablations(config: ClusteringHeadsConfig, runs: Runs) -> Figure:
    """Accuracy, and the share that solves the task, against each setting that was varied."""
    base = dict(zip(ABLATIONS, (config.batch_size, config.lr, config.d_mlp, 1.0), strict=True))
    figure = Figure(figsize=(11, 6), layout="constrained")
    for axis, (kind, found) in zip(figure.subplots(2, 2, sharey=True).flat, _varied(config, runs).items(), strict=True):
        for value, tests in found.items():
            axis.plot([value] * len(tests), tests, "o", color=_SOLVED, alpha=0.4, ms=4, mew=0)
        axis.plot(list(found), [np.mean(tests) for tests in found.values()], color=_SOLVED, label="mean accuracy")
        solved = [np.mean(np.array(tests) > SOLVED) for tests in found.values()]
        axis.plot(list(found), solved, color="#e08214", ls="--", label=f"share above {SOLVED}")
        axis.axvline(base[kind], color=_SOFT, ls=":", lw=1)
        axis.set(xscale="log", xlabel=_LABELS[kind], ylim=(-0.03, 1.03))
        axis.grid(alpha=0.25)
    for axis in figure.axes[::2]:
        axis.set_ylabel("test accuracy")
    figure.axes[0].legend(frameon=False, loc="center right")
    return figure


def ablation_table(config: ClusteringHeadsConfig, runs: Runs) -> str:
    """HTML: accuracy (mean, standard deviation over seeds) and share solved by value; empty without ablations."""
    rows = []
    for kind, found in _varied(config, runs).items():
        for value, tests in found.items():
            spread = f" ± {np.std(tests, ddof=1):.3f}" if len(tests) > 1 else ""
            share = f"{np.mean(np.array(tests) > SOLVED):.2f}"
            rows.append([_LABELS[kind], f"{value:g}", f"{np.mean(tests):.3f}{spread}", share, str(len(tests))])
    head = "".join(f"<th>{h}</th>" for h in ("setting", "value", "test accuracy", f"share above {SOLVED}", "seeds"))
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if rows else ""


def curriculum(config: ClusteringHeadsConfig, runs: Runs) -> Figure:
    """Accuracy by arm and split, and the loss between the two solutions."""
    figure = Figure(figsize=(10, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    results = list(runs.curriculum.values())
    labels, colors = [], {"train": "#e08214", "test": _SOLVED}
    for place, (arm, split) in enumerate((a, s) for a in ("scratch", "curriculum") for s in colors):
        values = [float(r.sel("accuracy", arm=arm, split=split)) for r in results]
        left.bar(place, np.mean(values), color=colors[split], alpha=0.35)
        left.plot([place] * len(values), values, "o", color=colors[split], ms=4)
        labels.append(f"{arm},\n{split}")
    left.axhline(1 / config.curriculum.p, color=_SOFT, ls=":", lw=1)
    left.set_xticks(range(len(labels)), labels)
    left.set(ylabel=f"accuracy, p = {config.curriculum.p}", ylim=(0, 1.03))
    for result in results:
        right.plot([float(x) for x in result.coords["place"]], result["line"].numpy(), color=_SOLVED, alpha=0.6)
    right.set(xlabel="from scratch (0) to curriculum (1)", ylabel="training loss (nats)", yscale="symlog")
    return figure


# ---- sandbox ----


def _shown(config: ClusteringHeadsConfig, runs: Runs) -> list[int]:
    """Seeds worth a page: a textbook head, a failure, then other solved ones."""
    order = sorted(runs.heads.values(), key=lambda h: (-2 * h.textbook - h.integer - h.solved, -h.accuracy))
    solved, failed = [h.seed for h in order if h.solved], [h.seed for h in order if not h.solved]
    return [*solved[:1], *failed[-1:], *solved[1:], *failed[:-1]][: max(1, config.sandbox)]


def sandbox_of(config: ClusteringHeadsConfig, head: Head, out: Path, *, max_frames: int = 300) -> SandboxRun:
    """One network of a run, ready for the sandbox, with its measured curves."""
    from mechclust.studies.clustering_heads.sandbox import Curves, sandbox_run

    folder, member = _snapshots_of(config, out, head.seed)
    groups = head.result.coords["group"]
    names = ("train_loss", "test_loss", "train_accuracy", "test_accuracy", "within_ratio", "smallest_norm", "margin")
    causes = {
        spike.epoch: " and ".join(found) or "neither norm nor margin small" for spike, found, _ in head.diagnoses()
    }
    snapshots = Snapshots(folder)
    curves = Curves(
        epochs=snapshots.epochs,
        gradient_norms=dict(zip(groups, head.curve("gradient_norm").T, strict=True)),
        spikes=[(spike.epoch, causes.get(spike.epoch, "not diagnosed: before solving")) for spike in head.spikes],
        **{name: head.curve(name) for name in names},
    )
    return sandbox_run(snapshots, member, max_frames=max_frames, curves=curves)


def _snapshots_of(config: ClusteringHeadsConfig, out: Path, seed: int) -> tuple[Path, int]:
    """The folder that holds a seed of the base setting, and its place there."""
    from mechclust.studies.clustering_heads.config import jobs

    job = next(job for job in jobs(config) if job.arms == ("base",) and seed in job.seeds)
    return out / "models" / job.name, job.seeds.index(seed)


def sandbox_pages(config: ClusteringHeadsConfig, runs: Runs, out: Path) -> dict[str, str]:
    """Write the pages; their paths, relative to the report, and what each shows."""
    from mechclust.studies.clustering_heads.sandbox import sandbox_page

    pages = {}
    for seed in _shown(config, runs) if config.sandbox else ():
        head = runs.heads[seed]
        run = sandbox_of(config, head, out)
        sandbox_page(run, out / "figures" / f"sandbox-seed{seed}.html")
        pages[f"figures/sandbox-seed{seed}.html"] = (
            f"seed {seed}: test accuracy {head.accuracy:.3f}, {_kind(head)} head; {run.kept}"
        )
    return pages
