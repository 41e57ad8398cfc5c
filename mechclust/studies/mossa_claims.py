"""What the MOSSA study concludes: claims C1 to C11 of spec 2, with bounds written before the paper runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mechclust.studies.claims import Bound, Claim, claim
from mechclust.studies.mossa import MODELS, MossaConfig, result_path, suite_of
from mechclust.studies.study import Analysis, Panel
from probes import ProbeResult
from probes.functional import LayerGroups, crossover, layer_groups
from tasks import InputError

_PAPER = "Zhao, Ziser & Cohen"
_ABOVE_CHANCE = 0.05


@dataclass(frozen=True)
class Measured:
    """What one seed measured. Layers are blocks 1 to n; CKA is the debiased form unless it says so.

    Attributes:
        cka: ``"base"``, ``"tuned"`` and, where there is a ceiling, ``"again"`` to ``[task layer]``: with the control.
        biased: the same in the biased form.
        dims: ``"base"`` and ``"tuned"`` to ``[layer]`` dimensions for 99% of the variance, over all seen skills.
        purity: the same for the share of nearest neighbours in the cluster.
        purity_chance: by chance.
        accuracy: ``"base"``, ``"tuned"`` and ``"control"`` to ``[task]``.
        chance: ``[task]`` accuracy of the commonest answer.
        seen: ``[task]`` tuned on.
        encoded: ``[task]`` answered by pre-training.
        cluster: ``[task]`` the operation's number.
        identity: largest distance from 1 of a model's CKA with itself, also rotated and scaled.
    """

    cka: dict[str, np.ndarray]
    biased: dict[str, np.ndarray]
    dims: dict[str, np.ndarray]
    purity: dict[str, np.ndarray]
    purity_chance: float
    accuracy: dict[str, np.ndarray]
    chance: np.ndarray
    seen: np.ndarray
    encoded: np.ndarray
    cluster: np.ndarray
    identity: float

    @property
    def n_layers(self) -> int:
        return self.cka["base"].shape[1]

    @property
    def upper(self) -> slice:
        """The upper half of the layers."""
        return slice(self.n_layers // 2, None)

    def median(self, model: str, tasks: np.ndarray | None = None) -> np.ndarray:
        """``[layer]`` over tasks, the seen ones by default."""
        return np.median(self.cka[model][self.seen if tasks is None else tasks], axis=0)

    def spread(self, model: str, tasks: np.ndarray | None = None) -> np.ndarray:
        """``[layer]`` interquartile range over tasks."""
        low, high = np.quantile(self.cka[model][self.seen if tasks is None else tasks], (0.25, 0.75), axis=0)
        return high - low

    @cached_property
    def groups(self) -> LayerGroups:
        """Of the seen tasks."""
        return self._groups(self.seen)

    @cached_property
    def unseen_groups(self) -> LayerGroups:
        """Of the held-out tasks."""
        return self._groups(~self.seen)

    def _groups(self, tasks: np.ndarray) -> LayerGroups:
        pre, tuned = (self.median(kind, tasks).tolist() for kind in MODELS)
        return layer_groups(pre, tuned, self.spread("tuned", tasks).tolist(), self.dims["tuned"].tolist())

    @property
    def gain(self) -> np.ndarray:
        """``[task]`` tuned - base, mean over the upper half."""
        return (self.cka["tuned"] - self.cka["base"])[:, self.upper].mean(axis=1)  # type: ignore[no-any-return]


def load(config: MossaConfig, out: Path, seed: int) -> Measured:
    """Read a seed's artefacts."""
    suite = suite_of(config, seed)
    names = suite.task_names

    def read(name: str) -> ProbeResult:
        path = result_path(out, seed, name)
        if not path.exists():
            raise InputError(f"{str(out)!r} lacks {path.relative_to(out)}; start the study again with the same --out")
        return ProbeResult.load(path)

    kinds = (*MODELS, *(("again",) if config.ceiling else ()))
    found = {kind: [read(f"{name}.{kind}") for name in names] for kind in kinds}
    both = read("accuracy")["accuracy"].numpy()
    own = np.array([float(read(f"{name}.accuracy")["accuracy"].flatten()[0]) for name in names])
    chance, identity = suite.chance(), read("identity")
    return Measured(
        cka={k: np.stack([r.sel("debiased_cka", label="all").numpy() for r in rs]) for k, rs in found.items()},
        biased={k: np.stack([r.sel("cka", label="all").numpy() for r in rs]) for k, rs in found.items()},
        dims={kind: read(f"{kind}.dims").sel("n_dims", label="all").numpy() for kind in MODELS},
        purity={kind: read(f"{kind}.purity")["neighbour_purity"].numpy() for kind in MODELS},
        purity_chance=float(read("base.purity")["chance"]),
        accuracy={**dict(zip(MODELS, both, strict=True)), "control": own},
        chance=np.array([chance[name] for name in names]),
        seen=np.array([name in suite.seen for name in names]),
        encoded=np.array([name.split("-")[0] in suite.encoded for name in names]),
        cluster=np.array([suite.cluster_names.index(name.split("-")[0]) for name in names]),
        identity=max(float(identity[m].max()) for m in ("itself", "rotated")),
    )


def _after(m: Measured) -> slice:
    """The layers after the shared ones."""
    return slice(len(m.groups.shared), None)


def _least(values: np.ndarray) -> float:
    return float(values.min()) if len(values) else math.nan


def _zero_shot(m: Measured) -> float:
    """How far the tuned model is above chance on held-out skills whose operation pre-training did not answer."""
    cells = ~m.seen & ~m.encoded
    return float((m.accuracy["tuned"] - m.chance)[cells].mean()) if cells.any() else math.nan


def claims(config: MossaConfig, found: Sequence[Measured]) -> list[Claim]:
    """C1 to C11."""
    from scipy.stats import spearmanr

    options: dict[str, Any] = {"tested": config.test_claims}

    def falls(m: Measured) -> float:
        curve = m.median("base")
        return float(spearmanr(np.arange(len(curve)), curve).statistic) if np.ptp(curve) > 0 else math.nan

    def above(m: Measured) -> float:
        return _least((m.median("tuned") - m.median("base"))[_after(m)])

    def narrowing(m: Measured) -> float:
        spread, start = m.spread("tuned"), len(m.groups.shared)
        return float(spread[start:].min() / spread[start - 1]) if 0 < start < m.n_layers else math.nan

    def early(m: Measured) -> float:
        return _least((m.median("tuned") - m.median("base"))[: m.n_layers // 2])

    def later(m: Measured) -> float:
        unseen = crossover(m.median("base", ~m.seen).tolist(), m.median("tuned", ~m.seen).tolist())
        return float(unseen - crossover(m.median("base").tolist(), m.median("tuned").tolist()))

    deviation = [max(float(np.abs(m.biased[k] - m.cka[k]).max()) for k in m.cka) for m in found]
    last = [float((m.median("tuned") - m.median("base"))[-1]) for m in found]
    widening = [float(m.spread("base")[m.upper].mean() - 2 * m.spread("base")[0]) for m in found]
    gains = [float(m.gain[m.seen & ~m.encoded].mean() - m.gain[m.seen & m.encoded].mean()) for m in found]
    dims = [_least((m.dims["tuned"] - m.dims["base"])[m.n_layers // 3 :]) for m in found]
    purer = [float((m.purity["tuned"] - m.purity["base"])[m.upper].mean()) for m in found]
    zero_shot = float(np.mean([_zero_shot(m) for m in found]))
    none = [float(not m.unseen_groups.transition) for m in found]
    n, d = config.suite.n_eval, config.d_model
    groups = "; ".join(dict.fromkeys(str(m.groups) for m in found))
    return [
        claim("C1", "CKA(base, base) is 1, also when one side is rotated and scaled (largest distance, any layer)",
              "definition", [m.identity for m in found], Bound("<=", 1e-9), **options),
        claim("C2", "pre: median CKA with the controls falls with depth (Spearman)", _PAPER,
              [falls(m) for m in found], Bound("<", -0.8), **options),
        claim("C3", "pre: interquartile range over tasks, mean of the upper half, is at least twice the first layer's",
              _PAPER, widening, [("upper - 2 x first", widening, Bound(">=", 0))], **options),
        claim("C4", "tuned > pre (medians) on every layer after the shared ones; by .2 at the last", _PAPER, last,
              [("last gap", last, Bound(">=", 0.2)), ("least gap", [above(m) for m in found], Bound(">", 0))],
              paper=0.378, note=groups, **options),
        claim("C5", "some early layer (lower half) has tuned < pre (the least median difference)", _PAPER,
              [early(m) for m in found], Bound("<", 0), paper=-0.042, **options),
        claim("C6", "tuned interquartile range after the shared layers falls below half its value at their end",
              _PAPER, [narrowing(m) for m in found], Bound("<", 0.5), paper=0.32, **options),
        claim("C7", "the gain (tuned - pre, upper half) is larger for clusters that pre-training did not encode",
              _PAPER, gains, Bound(">", 0), chance="0", **options),
        claim("C8", "tuned needs at least as many dimensions as pre after the first third (least difference)", _PAPER,
              dims, Bound(">=", 0), **options),
        claim("C9", "held-out tasks: tuned crosses pre later than for seen tasks, and there is no transition", _PAPER,
              [later(m) for m in found],
              [("layers later", [later(m) for m in found], Bound(">", 0)), ("no transition", none, Bound(">=", 1))],
              tested=config.test_claims and zero_shot >= _ABOVE_CHANCE, paper=4,
              note=f"zero-shot accuracy on held-out, not encoded skills is {zero_shot:.2f} above chance; "
              f"tested where at least {_ABOVE_CHANCE}"),
        claim("C10", f"biased and debiased CKA agree within .02 at n = {n}, d = {d} (largest difference)", "spec 2",
              deviation, Bound("<=", 0.02), tested=config.test_claims and n >= 10 * d),
        claim("C11", "nearest neighbours at ANS share the cluster more often in tuned, upper half (difference)", _PAPER,
              purer, Bound(">", 0), **options, chance=f"0; purity by chance {found[0].purity_chance:.2f}"),
    ]  # fmt: skip


def analyse(config: MossaConfig, out: Path) -> Analysis:
    """Claims, figures and tables of a run."""
    from mechclust.views import mossa as figures

    found = [load(config, out, seed) for seed in config.seeds]
    suite, first = config.suite, config.seeds[0]
    pictures = {kind: ProbeResult.load(result_path(out, first, f"{kind}.projection")) for kind in MODELS}
    n = suite.n_eval
    seeds = f"{len(found)} seed{'s' if len(found) > 1 else ''}"
    panels = [
        Panel("boxes", figures.boxes(found),
              f"Debiased CKA with the single-task controls over each task's own test prompts (n = {n}, d = "
              f"{config.d_model}), by layer: the base model (pre) beside the model tuned on all seen tasks. A box is "
              f"over tasks, pooled over {seeds}. Dotted: two controls of one task tuned in another order (ceiling)."),
        Panel("groups", figures.groups(found),
              "Left: median over seen tasks of tuned - pre, a line a seed. Middle: interquartile range over seen "
              "tasks of tuned (and pre, dashed). Right: dimensions for 99% of the variance over all seen tasks."),
        Panel("clusters", figures.clusters(found, suite.cluster_names),
              "Median CKA with the controls by cluster, pre dashed and tuned solid; seen tasks blue, held-out orange."),
        Panel("accuracy", figures.accuracy(found, suite.task_names),
              f"Accuracy on {n} test prompts a task, mean over {seeds}; grey: the commonest answer."),
        Panel("projection", figures.projection(pictures, suite.cluster_names),
              f"Residual stream at ANS in two dimensions (t-SNE), seed {first}, coloured by cluster."),
        Panel("purity", figures.purity(found),
              f"Share of the {config.purity[0]} nearest neighbours at ANS in the same cluster."),
    ]  # fmt: skip
    rows = [
        {"seed": seed, "seen": str(m.groups), "held out": str(m.unseen_groups)}
        for seed, m in zip(config.seeds, found, strict=True)
    ]
    return Analysis(
        claims=claims(config, found),
        panels=panels,
        views={"Layer groups by the rule": figures.table(rows), "Medians by layer": figures.table(_medians(found))},
        notes=_notes(config, found),
    )


def _medians(found: Sequence[Measured]) -> list[dict[str, Any]]:
    """A row a curve: medians over tasks and seeds by layer."""
    rows = []
    for which in ("seen", "held out"):
        for kind, name in (("base", "pre"), ("tuned", "tuned"), ("again", "ceiling")):
            if kind not in found[0].cka or (which == "held out" and found[0].seen.all()):
                continue
            curves = [m.median(kind, m.seen if which == "seen" else ~m.seen) for m in found]
            mean = np.mean(curves, axis=0)
            rows.append({"tasks": which, "model": name, **{f"L{i + 1}": f"{v:.2f}" for i, v in enumerate(mean)}})
    return rows


def _notes(config: MossaConfig, found: Sequence[Measured]) -> list[str]:
    notes = []
    if config.tuning.layer_decay < 1:
        notes.append(
            f"Tuning multiplies the learning rate by {config.tuning.layer_decay:g} from each block to the one below "
            "and leaves the embeddings as they are, so that the lower layers agree with the controls partly by "
            "construction."
        )
    if "again" in found[0].cka:
        least = min(float(m.median("again").min()) for m in found)
        notes.append(f"Ceiling: two controls of a seen task have a median CKA of at least {least:.3f} at every layer.")
    notes.append(
        "CKA does not change when a layer is rotated or scaled, and a few examples can move it far (Davari et al. "
        "2022): neighbour purity and dimensions are shown beside it."
    )
    return notes
