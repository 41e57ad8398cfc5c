"""Pictures of what long texts cost, and of how the cost of commands grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib import pyplot
from matplotlib.axes import Axes

from docs.pictures.probe_pictures import panels
from docs.pictures.registry import picture
from mechclust.report.style import BLUE, GREEN, GREY, RED
from tests.benchmarks import growth, row_growth
from tests.benchmarks.kept import kept_runs
from tests.benchmarks.long_texts import growth as growth_with_length

_LENGTHS = (512, 1024, 2048, 4096, 8192)
_LONGEST_PATTERN = 4096
_CURVES = {
    "bare": (GREY, "forward pass alone"),
    "sdpa": (BLUE, "three probes, no patterns"),
    "eager": (RED, "three probes, patterns"),
}


def _by_size(axis: Axes, sizes: Sequence[int]) -> None:
    """Scale both axes by logarithm, with a tick for each size."""
    axis.set(xscale="log", yscale="log")
    axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axis.minorticks_off()
    axis.grid(alpha=0.25)


@picture("long-texts")
def long_texts() -> Any:
    figure, axes = panels(2)
    for how, (color, label) in _CURVES.items():
        lengths = [length for length in _LENGTHS if how != "eager" or length <= _LONGEST_PATTERN]
        measured = [growth_with_length(length, how) for length in lengths]
        for axis, values in zip(axes, zip(*measured, strict=True), strict=True):
            axis.plot(lengths, values, color=color, marker="o", ms=4, label=label)
    for axis, unit in zip(axes, ("seconds", "MiB beyond the model"), strict=True):
        axis.set(xlabel="tokens", ylabel=unit)
        _by_size(axis, _LENGTHS)
    axes[0].legend(frameon=False)
    return figure


@picture("growth")
def commands_growth() -> Any:
    figure, axes = pyplot.subplots(3, len(growth.SIZES), figsize=(12, 7), sharey="row", layout="constrained")
    for column, (grows, sizes) in zip(axes.T, growth.SIZES.items(), strict=True):
        for command, color in zip(growth.COMMANDS, (BLUE, RED, GREEN), strict=True):
            of_command = [run for run in kept_runs(growth.KEPT) if run["command"] == command]
            runs = {run["size"]: run for run in of_command if run["grows"] == grows}
            for axis, amount in zip(column, ("seconds", "mib", "page_mb"), strict=True):
                amounts = [runs[size][amount] for size in sorted(runs)]
                axis.plot(sorted(runs), amounts, color=color, marker="o", ms=4, label=command)
        for axis in column:
            _by_size(axis, sizes)
        column[-1].set_xlabel(grows)
    for axis, unit, ticks in zip(
        axes[:, 0],
        ("seconds", "MiB at most", "MB of the page"),
        ((10, 30, 100, 300, 1_000), (600, 1_000, 2_000), (0.2, 0.5, 1, 2)),
        strict=True,
    ):
        axis.set_ylabel(unit)
        axis.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    axes[0, 0].legend(frameon=False)
    return figure


@picture("row-growth")
def probes_growth() -> Any:
    figure, axes = panels(2)
    for probe, color in zip(row_growth.PROBES, (BLUE, RED, GREEN, GREY), strict=True):
        runs = [run for run in kept_runs(row_growth.KEPT) if run["probe"] == probe]
        for axis, amount in zip(axes, ("seconds", "mib"), strict=True):
            amounts = [run[amount] for run in runs]
            axis.plot([run["rows"] for run in runs], amounts, color=color, marker="o", ms=4, label=probe)
    units = {"seconds": (0.01, 0.1, 1, 10, 100), "MiB beyond the rows": (10, 100, 1_000)}
    for axis, (unit, ticks) in zip(axes, units.items(), strict=True):
        axis.set(xlabel="rows", ylabel=unit)
        _by_size(axis, row_growth.SIZES)
        axis.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    axes[0].legend(frameon=False)
    return figure
