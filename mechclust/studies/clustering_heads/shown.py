"""Networks of a run as the sandbox shows them, and the choice of networks worth a page."""

from __future__ import annotations

from pathlib import Path

from markupsafe import escape

from mechclust.sandbox import Curves, SandboxRun, sandbox_page
from mechclust.studies.clustering_heads.config import ClusteringHeadsConfig, jobs
from mechclust.studies.clustering_heads.detector import NEITHER
from mechclust.studies.clustering_heads.results import HeadsResults, TrainedNetwork
from mechclust.studies.clustering_heads.sandbox import sandbox_run
from mechclust.training import Snapshots


def snapshots_of(config: ClusteringHeadsConfig, arm: str, seed: int, out: Path) -> tuple[Snapshots, int]:
    """Return the snapshots that hold one network of an arm, and its number among their members."""
    job = next(job for job in jobs(config) if job.arms == (arm,) and seed in job.seeds)
    return Snapshots(out / "models" / job.name), job.seeds.index(seed)


def shown_networks(config: ClusteringHeadsConfig, results: HeadsResults) -> list[TrainedNetwork]:
    """Return networks worth a page: a textbook head, a failure, then other solved ones."""
    order = sorted(results.networks.values(), key=_rank)
    solved = [network for network in order if network.solved]
    failed = [network for network in order if not network.solved]
    return [*solved[:1], *failed[-1:], *solved[1:], *failed[:-1]][: max(1, config.sandbox)]


def _rank(network: TrainedNetwork) -> tuple[int, float]:
    return -2 * network.textbook - bool(network.head["integer_head"]) - network.solved, -network.accuracy


def sandbox_of(
    config: ClusteringHeadsConfig,
    network: TrainedNetwork,
    out: Path,
    *,
    max_frames: int = 300,
) -> SandboxRun:
    """Return one network of a run, ready for the sandbox, with its measured curves."""
    snapshots, member = snapshots_of(config, "base", network.seed, out)
    groups = network.dynamics.coords["group"]
    curves = Curves(
        epochs=snapshots.epochs,
        panels={
            "loss": {"train": network.curve("train_loss"), "test": network.curve("test_loss")},
            "accuracy": {"train": network.curve("train_accuracy"), "test": network.curve("test_accuracy")},
            "gradient_norms": dict(zip(groups, network.curve("gradient_norm").T, strict=True)),
            "within_ratio": {"within / total": network.curve("within_ratio")},
            "spikes": {"min |ξ|": network.curve("smallest_norm"), "margin": network.curve("margin")},
        },
        spikes=list(diagnosis_texts(network).items()),
        small_spikes=[(spike.epoch, f"to a loss of {spike.loss:.1e}") for spike in network.small_spikes],
    )
    return sandbox_run(snapshots, member, max_frames=max_frames, curves=curves)


def diagnosis_texts(network: TrainedNetwork) -> dict[int, str]:
    """Return the diagnosis of every spike in words, by epoch."""
    texts = {spike.epoch: "not diagnosed: before solving" for spike in network.spikes}
    for spike in network.spikes_after_solving():
        texts[spike.epoch] = "not diagnosed: no epoch is far from every spike"
    for spike, causes in network.diagnoses():
        texts[spike.epoch] = " and ".join(causes) or "neither norm nor margin small"
    return texts


def sandbox_pages(config: ClusteringHeadsConfig, results: HeadsResults) -> str:
    """Write the pages into the run's folder, and return links to them as HTML."""
    if not config.sandbox:
        return ""
    links = []
    for network in shown_networks(config, results):
        run = sandbox_of(config, network, results.folder)
        page = f"sandbox/seed{network.seed}.html"
        sandbox_page(run, results.folder / page)
        head = "no head recognised" if network.kind == NEITHER else f"{network.kind} head"
        text = f"seed {network.seed}: test accuracy {network.accuracy:.3f}, {head}; {run.kept}"
        links.append(f'<p><a href="{escape(page)}">{escape(text)}</a></p>')
    return "".join(links)
