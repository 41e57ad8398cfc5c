"""Results of runs that were never made: curves of the paper's kind, for figures, tables and sentences of any size."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mechclust.commands.mossa.config import MossaConfig
from mechclust.commands.mossa.models import AGAIN, CONTROL, TUNED, UNSEEN, Model
from mechclust.commands.mossa.result import MossaResult
from mechclust.training.tuning import TunedAdapter
from probes import ProbeResult

ELEVEN = {
    "arithmetic": ["aqua", "gsm8k"],
    "explanation": ["creak_explain", "ecqa_explain", "gsm8k_work", "sensemaking_explain"],
    "multiple_choice": ["ecqa", "qasc", "sensemaking"],
    "yes_no": ["creak", "strategyqa"],
}
LEFT_OUT = ("gsm8k_work", "qasc")


def made_result(
    clusters: Mapping[Any, list[str]] = ELEVEN,
    held_out: tuple[str, ...] = LEFT_OUT,
    n_layers: int = 18,
    *,
    n: int = 200,
    n_answers: int = 60,
    d: int = 640,
    ceilings: int = 3,
    learnt: tuple[str, ...] | None = None,
    svcca: bool = False,
    trained: bool = True,
    seed: int = 0,
) -> MossaResult:
    """Base falls with depth, tuned stays up; a held-out task gains half of that; every second task is learnt.

    Args:
        learnt: tasks whose controls tell right answers from others; those that come after learn the form only, the last
            learns nothing.
    """
    draw = np.random.default_rng(seed)
    tasks = [task for names in clusters.values() for task in names]
    tasks = sorted(tasks, key=lambda task: task in held_out)
    of = {task: cluster for cluster, names in clusters.items() for task in names}
    learnt = tuple(tasks[::2]) if learnt is None else learnt
    depth = np.arange(1, n_layers + 2) / n_layers
    hooks = [f"blocks.{i}.hook_resid_post" for i in range(n_layers)] + ["unembed.hook_in"]
    layers = {hook: i + 1 for i, hook in enumerate(hooks)}
    doubled = [task for task in tasks if task not in held_out][:ceilings]

    def by_site(probe: str, **values: np.ndarray | float) -> ProbeResult:
        numbers = {name: torch.tensor(v, dtype=torch.float64)[:, None] for name, v in values.items() if name != "n"}
        return ProbeResult(
            probe,
            {**numbers, "n": torch.tensor([float(values["n"])])},
            {**dict.fromkeys(numbers, ("site", "label")), "n": ("label",)},
            {"site": hooks, "label": ["all"]},
            layers,
        )

    def answers(right: float, loss: float) -> ProbeResult:
        exact = (np.arange(n_answers) < right * n_answers).astype(float)
        losses = loss + 0.05 * draw.standard_normal(n_answers)
        margins = (3.0 if right > 0.5 else 0.0) + 0.1 * np.random.default_rng(seed).standard_normal(n_answers // 2)
        return ProbeResult(
            "Answers",
            {"exact": torch.tensor(exact), "loss": torch.tensor(losses), "margin": torch.tensor(margins)},
            {"exact": ("example",), "loss": ("example",), "margin": ("pair",)},
            {"example": list(map(str, range(n_answers))), "pair": list(map(str, range(n_answers // 2)))},
        )

    of_task = {}
    for k, task in enumerate(tasks):
        steep = draw.uniform(0.2, 0.9)
        gain = 0.5 if task in held_out else 0.85
        base = 1 - steep * depth**1.5 / depth[-1] ** 1.5
        tuned = base + gain * (1 - base) - 0.05 * np.exp(-((depth - 0.2) ** 2) / 0.01)
        own, others = 0.01 * draw.standard_normal((2, n_layers + 1)), {"other-1": 0.6 * tuned, "other-2": 0.5 * tuned}
        curves = {"base": base + own[0], "tuned": tuned + own[1], **others}
        if task in doubled:
            curves["again"] = 0.5 + 0.5 * tuned
        if task in held_out:
            curves["all-tasks"] = np.minimum(tuned + 0.1, 1)
        found = {}
        for role, values in curves.items():
            up = 1 - 0.6 * (1 - values)
            more = {"cka_null_low": 0 * up + 0.3, "cka_null_high": 0 * up + 0.35} if role == "tuned" else {}
            if role == "tuned":
                more |= {"debiased_cka_null_low": 0 * up - 0.04, "debiased_cka_null_high": 0 * up + 0.04}
            found[f"{role}.cka"] = by_site("CKA", debiased_cka=values, cka=up, n=n, **more)
            if not role.startswith("other"):
                found[f"{role}.without-top"] = by_site("CKA", debiased_cka=0.8 * values, cka=up, n=n)
                found[f"{role}.rbf"] = by_site("RBFCKA", debiased_rbf_cka=0.9 * values, rbf_cka=up, n=n)
                if svcca:
                    found[f"{role}.svcca"] = by_site("SVCCA", svcca=0.3 + 0.6 * values, n=n)
            if role in ("base", "tuned"):
                found[f"{role}.dims"] = by_site("NDims", n_dims=40 + 60 * depth * (1 + (role == "tuned")), n=n)
        if n_answers:
            last = k == len(tasks) - 1
            found["base.answers"] = answers(0.1, 2.0)
            found["control.answers"] = answers(0.7 if task in learnt else 0.1, 2.05 if last else 1.0)
            found["tuned.answers"] = answers(0.6 if task in learnt else 0.1, 1.2)
            if task in held_out:
                found["all-tasks.answers"] = answers(0.65, 1.1)
        of_task[task] = found

    names = sorted({cluster for cluster in of.values() if cluster is not None})
    numbers = {cluster: i for i, cluster in enumerate(names)}
    codes = np.repeat([numbers.get(of[task], len(names)) for task in tasks if task not in held_out], 20)
    shown = sorted({max(1, round(n_layers * k / 5)) for k in range(1, 6)})

    def of_model(tuned: bool) -> dict[str, ProbeResult]:
        xy = draw.standard_normal((len(shown), len(codes), 2)) + (1 + 2 * tuned) * np.stack([codes, codes % 3], axis=-1)
        purity = np.clip(0.3 + (0.5 if tuned else 0.2) * depth, 0, 1)
        at = [hooks[layer - 1] for layer in shown]
        return {
            "dims": by_site("NDims", n_dims=30 + 60 * depth * (1 + tuned), n=len(codes)),
            "projection": ProbeResult(
                "Projection",
                {"xy": torch.tensor(xy), "label": torch.tensor(codes)},
                {"xy": ("site", "example", "dimension"), "label": ("example",)},
                {"site": at, "example": list(map(str, range(len(codes)))), "dimension": ["1", "2"]},
                {hook: layers[hook] for hook in at},
            ),
            "purity": ProbeResult(
                "NeighbourPurity",
                {
                    "neighbour_purity": torch.tensor(purity),
                    "neighbour_purity_low": torch.tensor(purity - 0.05),
                    "neighbour_purity_high": torch.tensor(purity + 0.05),
                    "chance": torch.tensor(0.3),
                },
                {**dict.fromkeys([f"neighbour_purity{end}" for end in ("", "_low", "_high")], ("site",)), "chance": ()},
                {"site": hooks},
                layers,
            ),
        }

    models = [Model(TUNED), *([Model(UNSEEN)] if held_out else []), *(Model(CONTROL, task) for task in tasks)]
    models += [Model(AGAIN, task) for task in doubled]
    steps = [(step, float(0.4 + 2 * np.exp(-step / 40) + 0.05 * draw.random())) for step in range(10, 160, 10)]
    return MossaResult(
        base="google/gemma-3-270m",
        config=MossaConfig(tasks=Path("tasks")),
        tasks=tasks,
        clusters=[of[task] for task in tasks],
        held_out=[task in held_out for task in tasks],
        n_train=[int(draw.integers(200, 3000)) for _ in tasks],
        readability={t: {"Flesch-Kincaid": draw.uniform(3, 12), "Coleman-Liau": draw.uniform(5, 14)} for t in tasks},
        of_task=of_task,
        of_model={"base": of_model(False), "tuned": of_model(True)},
        trained={
            m: TunedAdapter(Path(m.name), 150, tuple((s, x + 0.1 * draw.random()) for s, x in steps), 900, 480.0)
            for m in models
            if trained
        },
        failed={},
        n_layers=n_layers,
        d=d,
        notes=["clusters are those of 'clusters.toml'"],
    )
