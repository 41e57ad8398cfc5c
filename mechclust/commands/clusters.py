"""How well a user's own model clusters a user's own prompts by task, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from mechclust.models import load_pretrained
from mechclust.models.tokenizers import encoder
from mechclust.report.analysis import Analysis, Panel
from mechclust.report.folder import check_writable, machine
from probes import ProbeResult, TaskClusterARI, last_token, mean, residual, run
from probes.files import write_atomic
from probes.hooks import check_device
from tasks import InputError, LabelledPrompts

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class ClustersConfig:
    """Settings of ``mechclust clusters``.

    Args:
        prompts: JSONL file: one object a line with ``prompt``, ``task`` and any further labels.
        also: further labels of the file to compare the clusters with.
        position: which hidden state: that of the ``last`` prompt token, or the ``mean`` over tokens.
        chat: wrap each prompt as a user message in the tokenizer's chat template.
        too_long: ``refuse`` a prompt over the model's context, or ``truncate`` it from the left.
        baselines: untrained models (same architecture, random weights, seeds 0, 1, ...) to compare with.
        tsne: cluster after a 2-D t-SNE instead of the states as they are.
        n_init: k-means starts.
        n_permutations: random relabellings behind the null interval.
        max_rows: use at most this many prompts, chosen by their place in the file.
        batch_size: prompts a forward pass.
        device: such as ``cpu`` or ``cuda``.
        dtype: of the model's weights.
        seed: of k-means, t-SNE and the relabellings.
    """

    prompts: Path
    also: tuple[str, ...] = ()
    position: Literal["last", "mean"] = "last"
    chat: bool = False
    too_long: Literal["refuse", "truncate"] = "refuse"
    baselines: int = 1
    tsne: bool = False
    n_init: int = 10
    n_permutations: int = 1000
    max_rows: int | None = None
    batch_size: int = 16
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    seed: int = 0


@dataclass(frozen=True)
class ClustersResult:
    """What ``measure_clusters`` found.

    Attributes:
        model: the model's name.
        config: what was asked for.
        trained: ARI by site and label.
        untrained: the same for each random-weight baseline.
    """

    model: str
    config: ClustersConfig
    trained: ProbeResult
    untrained: Sequence[ProbeResult]

    def table(self) -> pd.DataFrame:
        """One row a layer and label: ``layer, site, label, ari, null_low, null_high, p_value, untrained``."""
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
        from mechclust.report.page import table_html

        return table_html(f"Task clusters in {self.model}", self.table(), self.trained.notes)


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
    readout = last_token() if config.position == "last" else mean()
    probe = TaskClusterARI(
        at=residual(),
        readout=readout,
        also=config.also,
        reduce="tsne" if config.tsne else None,
        n_init=config.n_init,
        n_permutations=config.n_permutations,
        max_rows=config.max_rows,
        seed=config.seed,
    )

    def measure(**options: Any) -> ProbeResult:
        hooked = load_pretrained(model, device=config.device, dtype=getattr(torch, config.dtype), **options)
        if hooked.tokenizer is None:
            raise InputError(f"{str(model)!r} has no tokenizer to read prompts; give a Hugging Face checkpoint")
        batches = prompts.batches(
            encoder(hooked.tokenizer, config.chat),
            config.batch_size,
            pad_id=hooked.tokenizer.pad_token_id or 0,
            max_length=hooked.cfg.n_ctx,
            too_long=config.too_long,
        )
        return run(hooked, batches, probe, progress=progress)

    trained = measure()
    return ClustersResult(
        str(model), config, trained, [measure(untrained=True, seed=seed) for seed in range(config.baselines)]
    )


def _check(prompts: LabelledPrompts, config: ClustersConfig) -> None:
    check_device(config.device)
    for name, least in (("batch_size", 1), ("baselines", 0)):
        if getattr(config, name) < least:
            raise InputError(f"{name} is {getattr(config, name)}; expected at least {least}")
    for name in ("task", *config.also):
        if name not in prompts.labels:
            raise InputError(f"{config.prompts} has no label {name!r} (it has {', '.join(prompts.labels)})")
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
    from mechclust.report.page import render_report, save_panels

    out, config = Path(out), result.config
    table = result.table()
    caption = (
        "Adjusted Rand index between k-means clusters of the hidden states and the labels, by layer "
        "(0: token embedding). Grey: 95% of the index under random relabelling. Dashed: the same architecture "
        "with random weights."
    )
    panels = [Panel("ari_by_layer", _figure(result), caption)]
    states = "last prompt token" if config.position == "last" else "mean over tokens"
    analysis = Analysis(
        claims=[],
        panels=panels,
        views={"ARI by layer": table.to_html(index=False, float_format=lambda x: f"{x:.3f}", border=0)},
        notes=[
            f"{result.trained.metadata['n']} prompts, hidden state at the {states}"
            f"{', after t-SNE' if config.tsne else ''}; clusters: {result.trained.metadata['n_clusters']}.",
            *result.trained.notes,
        ],
    )
    record = {k: str(v) if isinstance(v, Path) else v for k, v in vars(config).items()}
    page = render_report(
        title=f"Task clusters in {result.model}",
        source=f"Prompts: {config.prompts}",
        analysis=analysis,
        facts=machine(),
        config={"model": result.model, **record},
    )
    check_writable(out)
    save_panels(panels, out / "figures")
    result.trained.save(out / "results" / "trained.safetensors")
    for seed, untrained in enumerate(result.untrained):
        untrained.save(out / "results" / f"untrained-seed{seed}.safetensors")
    write_atomic(out / "clusters.csv", table.to_csv(index=False).encode())
    write_atomic(out / "report.html", page.encode())
    return out / "report.html"


def _figure(result: ClustersResult) -> Figure:
    from matplotlib.figure import Figure

    labels = result.trained.coords["label"]
    figure = Figure(figsize=(5.2 * len(labels), 3.8), layout="constrained")
    layers = [result.trained.layers[site] for site in result.trained.coords["site"]]
    for axis, label in zip(np.atleast_1d(figure.subplots(1, len(labels), sharey=True)), labels, strict=True):
        low, high = (result.trained.sel(m, label=label).numpy() for m in ("null_low", "null_high"))
        axis.fill_between(layers, low, high, color="#bbbbbb", alpha=0.6, lw=0, label="chance (95%)")
        axis.plot(layers, result.trained.sel("ari", label=label), marker="o", color="#1b6ca8", label="this model")
        for i, untrained in enumerate(result.untrained):
            axis.plot(
                layers,
                untrained.sel("ari", label=label),
                ls="--",
                color="#c8553d",
                label=None if i else "random weights",
            )
        axis.set(title=f"against {label!r}", xlabel="layer", ylim=(min(-0.05, float(low.min())), 1.02))
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.25)
        axis.legend(frameon=False)
    axes = figure.axes
    axes[0].set_ylabel("adjusted Rand index")
    return figure
