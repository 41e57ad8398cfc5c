"""A picture of what long texts cost."""

from __future__ import annotations

from docs.pictures.probe_pictures import panels
from docs.pictures.registry import Drawn, picture
from mechclust.report.style import BLUE, GREY, RED
from tests.benchmarks.long_texts import growth

_LENGTHS = (512, 1024, 2048, 4096, 8192)
_LONGEST_PATTERN = 4096
_CURVES = {
    "bare": (GREY, "forward pass alone"),
    "sdpa": (BLUE, "three probes, no patterns"),
    "eager": (RED, "three probes, patterns"),
}


@picture("long-texts", "docs/cost.md", alt="Seconds and memory of a forward pass with and without probes, by length")
def long_texts() -> Drawn:
    figure, axes = panels(2)
    for how, (color, label) in _CURVES.items():
        lengths = [length for length in _LENGTHS if how != "eager" or length <= _LONGEST_PATTERN]
        measured = [growth(length, how) for length in lengths]
        for axis, values in zip(axes, zip(*measured, strict=True), strict=True):
            axis.plot(lengths, values, color=color, marker="o", ms=4, label=label)
    for axis, unit in zip(axes, ("seconds", "MiB beyond the model"), strict=True):
        axis.set(xscale="log", yscale="log", xlabel="tokens", ylabel=unit)
        axis.set_xticks(_LENGTHS, [f"{length:,}" for length in _LENGTHS])
        axis.minorticks_off()
        axis.grid(alpha=0.25)
    axes[0].legend(frameon=False)
    return figure, (
        "One text through the model above, on one thread, measured once. With patterns, memory grows with the square of the "
        'length: `attention="eager"`, the default. Without them: `attention="sdpa"`.'
    )
