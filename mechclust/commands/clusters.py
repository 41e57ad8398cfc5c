"""How well a user's own model clusters a user's own prompts by task, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mechclust.commands.settings import PromptSettings, UntrainedSettings
from mechclust.models.tokenizers import encoder
from mechclust.report.analysis import Analysis, Panel
from mechclust.report.html import table_html
from mechclust.report.page import write_report
from probes import ProbeResult, TaskClusterARI, residual, run
from tasks import InputError, LabelledPrompts
from tasks.errors import suggest

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class ClustersConfig(UntrainedSettings, PromptSettings):
    """Settings of ``mechclust clusters``; ``mechclust clusters --help`` also shows those that commands share.

    Args:
        also: further labels of the file to compare the clusters with.
        tsne: cluster after a 2-D t-SNE instead of the states as they are.
        n_init: k-means starts.
        n_permutations: random relabellings behind the null interval.
        max_rows: use at most this many prompts, chosen by their place in the file.
        seed: of k-means, t-SNE and the relabellings.
    """

    also: tuple[str, ...] = ()
    tsne: bool = False
    n_init: int = 10
    n_permutations: int = 1000
    max_rows: int | None = None


@dataclass(frozen=True)
class ClustersResult:
    """What ``measure_clusters`` found.

    Attributes:
        model: the model's name.
        config: what was asked for.
        trained: ARI by site and label.
        untrained: the same for each untrained model.
    """

    model: str
    config: ClustersConfig
    trained: ProbeResult
    untrained: Sequence[ProbeResult]

    @property
    def notes(self) -> list[str]:
        """What a reader must know of the numbers."""
        found, after = self.trained.metadata, ", after t-SNE" if self.config.tsne else ""
        clusters = ", ".join(f"{n} for {label!r}" for label, n in found["n_clusters"].items())
        return [
            f"{found['n']} prompts, hidden state at {self.config.states}{after}; clusters: {clusters}.",
            *self.trained.notes,
        ]

    def to_dataframe(self) -> pd.DataFrame:
        """One row per layer and label: ``layer, site, label, ari, null_low, null_high, p_value, untrained``."""
        import pandas as pd

        rows = []
        for j, label in enumerate(self.trained.coords["label"]):
            for i, site in enumerate(self.trained.coords["site"]):
                row: dict[str, Any] = {"layer": self.trained.layers[site], "site": site, "label": label}
                row.update({m: float(self.trained[m][i, j]) for m in ("ari", "null_low", "null_high", "p_value")})
                if self.untrained:
                    row["untrained"] = float(np.mean([float(r["ari"][i, j]) for r in self.untrained]))
                rows.append(row)
        return pd.DataFrame(rows)

    def _repr_html_(self) -> str:
        return table_html(self.to_dataframe(), f"Task clusters in {self.model}", self.notes)


def measure_clusters(model: str, config: ClustersConfig, *, progress: bool = False) -> ClustersResult:
    """ARI between k-means clusters of hidden states and the prompts' labels, at every layer.

    Args:
        model: hub name or local directory, see ``load_pretrained``.
        config: what to measure.
        progress: show progress bars.

    Raises:
        InputError: for bad prompts (before the model is loaded) or a model that cannot be loaded.
    """
    prompts = LabelledPrompts.from_jsonl(config.prompts)
    _check(prompts, config)
    probe = TaskClusterARI(
        at=residual(),
        readout=config.readout,
        also=config.also,
        reduce="tsne" if config.tsne else None,
        n_init=config.n_init,
        n_permutations=config.n_permutations,
        max_rows=config.max_rows,
        seed=config.seed,
    )

    def measure(**options: Any) -> ProbeResult:
        hooked = config.load(model, "prompts", **options)
        batches = prompts.batches(
            encoder(hooked.tokenizer, config.chat),
            config.batch_size,
            pad_id=hooked.tokenizer.pad_token_id or 0,
            max_length=hooked.cfg.n_ctx,
            too_long=config.too_long,
        )
        return run(hooked, batches, probe, progress=progress)

    trained = measure()
    untrained = [measure(untrained=True, seed=seed) for seed in range(config.untrained)]
    return ClustersResult(str(model), config, trained, untrained)


def _check(prompts: LabelledPrompts, config: ClustersConfig) -> None:
    config.check()
    for name in ("task", *config.also):
        if name not in prompts.labels:
            raise InputError(f"{config.prompts} has no label {name!r}{suggest(name, prompts.labels)}")
        n = len(prompts.classes[name])
        if n < 2:
            raise InputError(
                f"{config.prompts} has one {name} only ({prompts.classes[name][0]!r}); clustering needs at least 2"
            )
        if min(len(prompts), config.max_rows or len(prompts)) < n:
            raise InputError(f"{config.prompts} has fewer prompts than classes of {name!r} ({n}); give several of each")


def write_clusters_report(result: ClustersResult, out: str | Path) -> Path:
    """Write ``clusters.csv``, the probe results, the figure and ``report.html`` into ``out``.

    Raises:
        InputError: when ``out`` cannot be written.
    """
    table = result.to_dataframe()
    caption = (
        "Adjusted Rand index between k-means clusters of the hidden states and the labels, by layer "
        "(0: token embedding). Grey: 95% of the index under random relabelling. Dashed: the same architecture, "
        "untrained (random weights)."
    )
    return write_report(
        out,
        title=f"Task clusters in {result.model}",
        source=f"Prompts: {result.config.prompts}",
        analysis=Analysis(
            panels=[Panel("ari_by_layer", _figure(result), caption)],
            views={"ARI by layer": table_html(table, number=".3f")},
            notes=result.notes,
        ),
        config={"model": result.model, **vars(result.config)},
        results={"trained": result.trained, **{f"untrained-seed{i}": r for i, r in enumerate(result.untrained)}},
        tables={"clusters": table},
    )


def _figure(result: ClustersResult) -> Figure:
    from mechclust.report.style import BLUE, RED, layer_axis, subplots

    labels = result.trained.coords["label"]
    figure, axes = subplots(len(labels), size=(5.2, 3.8), sharey=True)
    layers = [result.trained.layers[site] for site in result.trained.coords["site"]]
    for axis, label in zip(axes, labels, strict=True):
        low, high = (result.trained.sel(m, label=label).numpy() for m in ("null_low", "null_high"))
        axis.fill_between(layers, low, high, color="#bbbbbb", alpha=0.6, lw=0, label="chance (95%)")
        axis.plot(layers, result.trained.sel("ari", label=label), marker="o", color=BLUE, label="this model")
        for i, untrained in enumerate(result.untrained):
            name = None if i else "untrained"
            axis.plot(layers, untrained.sel("ari", label=label), ls="--", color=RED, label=name)
        axis.set(title=f"against {label!r}", ylim=(min(-0.05, float(low.min())), 1.02))
        layer_axis(axis)
        axis.legend(frameon=False)
    axes[0].set_ylabel("adjusted Rand index")
    return figure
