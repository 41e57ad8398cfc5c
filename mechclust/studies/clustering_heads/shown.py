"""Networks of a run as the sandbox shows them, and which of them are worth a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from markupsafe import escape

from mechclust.sandbox import Curves, SandboxRun, sandbox_page
from mechclust.sandbox.curves import FOLLOWED, SERIES
from mechclust.studies.clustering_heads.config import ClusteringHeadsConfig, jobs
from mechclust.studies.clustering_heads.graph import graph_film
from mechclust.studies.clustering_heads.results import HeadsResults, TrainedNetwork
from mechclust.studies.clustering_heads.sandbox import sandbox_run
from mechclust.training import Snapshots

_FILMED = 60  # epochs in the film of the graph at most, evenly spaced on a logarithmic scale
_HEADS = {
    "textbook": "textbook head",
    "integer-weight": "integer-weight head",
    "planar": "planar head",
    "neither": "no head recognised",
}


def snapshots_of(config: ClusteringHeadsConfig, arm: str, seed: int, out: Path) -> tuple[Snapshots, int]:
    """The snapshots that hold one network of an arm, and its number among their members."""
    job = next(job for job in jobs(config) if job.arms == (arm,) and seed in job.seeds)
    return Snapshots(out / "models" / job.name), job.seeds.index(seed)


def shown_networks(config: ClusteringHeadsConfig, results: HeadsResults) -> list[TrainedNetwork]:
    """Networks worth a page: a textbook head, a failure, then other solved ones."""
    order = sorted(results.networks.values(), key=lambda n: (-2 * n.textbook - n.integer - n.solved, -n.accuracy))
    solved, failed = [n for n in order if n.solved], [n for n in order if not n.solved]
    return [*solved[:1], *failed[-1:], *solved[1:], *failed[:-1]][: max(1, config.sandbox)]


def sandbox_of(
    config: ClusteringHeadsConfig,
    network: TrainedNetwork,
    out: Path,
    *,
    max_frames: int = 300,
    epochs: Sequence[int] | None = None,
) -> SandboxRun:
    """One network of a run, ready for the sandbox, with its measured curves."""
    snapshots, member = snapshots_of(config, "base", network.seed, out)
    causes = {
        spike.epoch: " and ".join(found) or "neither norm nor margin small" for spike, found in network.diagnoses()
    }
    curves = Curves(
        epochs=snapshots.epochs,
        gradient_norms=dict(zip(network.dynamics.coords["group"], network.curve("gradient_norm").T, strict=True)),
        spikes=[(spike.epoch, causes.get(spike.epoch, "not diagnosed: before solving")) for spike in network.spikes],
        small_spikes=[(spike.epoch, f"to a loss of {spike.loss:.1e}") for spike in network.small_spikes],
        **{name: network.curve(name) for name in SERIES if name not in FOLLOWED},
    )
    return sandbox_run(snapshots, member, max_frames=max_frames, curves=curves, epochs=epochs)


def sandbox_pages(config: ClusteringHeadsConfig, results: HeadsResults, out: Path) -> str:
    """Write the pages, and a film of each network as a graph; links to them, as HTML for the report in ``out``."""
    links = []
    for network in shown_networks(config, results) if config.sandbox else ():
        run, name = sandbox_of(config, network, out), f"sandbox/seed{network.seed}.html"
        sandbox_page(run, out / name)
        text = f"seed {network.seed}: test accuracy {network.accuracy:.3f}, {_HEADS[network.kind]}; {run.kept}"
        links.append(f'<p><a href="{escape(name)}">{escape(text)}</a></p>')
        snapshots, member = snapshots_of(config, "base", network.seed, out)
        places = np.unique(np.geomspace(1, len(snapshots), _FILMED).round().astype(int)) - 1
        film = f"sandbox/graph-seed{network.seed}.gif"
        graph_film(snapshots, member, out / film, epochs=[snapshots.epochs[place] for place in places], dpi=60)
        text = f"seed {network.seed} as a graph: film of {len(places)} epochs"
        links.append(f'<p><a href="{escape(film)}">{escape(text)}</a></p>')
    return "".join(links)
