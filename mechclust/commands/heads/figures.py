"""Figures of ``mechclust heads``: the map of roles, the scores behind it, and attention to look at."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechclust.attention import attention_view_from_patterns
from mechclust.commands.heads.inputs import REPEATED
from mechclust.commands.heads.measurements import ATTENTION, NAMES, Measurements, ModelRoles
from mechclust.report.panel import Panel
from mechclust.report.style import BLUE, GREY, styled
from mechclust.report.subplots import subplots
from probes import ProbeResult
from probes.head_roles import LEAST_EXCESS

_LEGEND_WIDTH = 1.5  # inches beside a map
_ROLES_EXPLAINED = (
    "Light grey: none. Induction: it attends to what came after an earlier occurrence of the token. Duplicate: to that "
    "occurrence. Previous: to the token before. First: to the first token, which takes up attention that goes nowhere "
    "else (a sink). Itself: to the token itself. Offset: to a token at one distance. Local: to tokens nearby."
)
_ROLES = [role for role in NAMES if role != "local"]  # whose scores are shares of attention


@styled()
def heads_panels(result: Measurements) -> list[Panel]:
    """Draw the figures, in the report's order."""
    random = " Grey: random weights." if result.untrained else ""
    return [
        Panel(
            "roles_by_head",
            _maps(result),
            f"The role that each head plays most, by layer and head, with the number of its heads. {_ROLES_EXPLAINED}",
        ),
        Panel(
            "scores_by_role",
            _scores(result),
            f"Attention of every head to the tokens of each role but local, less chance. Blue: the model.{random} The "
            "lower end of the interval of a head that plays the role is above the line.",
        ),
    ]


def _maps(result: Measurements) -> Figure:
    roles = result.trained.roles
    n_layers, n_heads = roles[REPEATED]["role"].shape
    size = (min(5.5, max(2.4, 0.22 * n_heads) + _LEGEND_WIDTH), min(4.2, max(2.2, 0.2 * n_layers)))
    figure, axes = subplots(len(roles), size=size, grid=None)
    for axis, (text, of_text) in zip(axes, roles.items(), strict=True):
        of_text.plot("role", ax=axis)
        axis.set_title(text)
    return figure


def _scores(result: Measurements) -> Figure:
    figure, axes = subplots(len(result.texts), size=(5.2, 2.8), grid="y", sharey=True)
    for axis, text in zip(axes, result.texts, strict=True):
        for measured in result.untrained:
            _draw_scores(axis, measured, text, GREY, -0.17)
        _draw_scores(axis, result.trained, text, BLUE, 0.17 if result.untrained else 0)
        axis.axhline(LEAST_EXCESS, color="black", lw=0.8)
        axis.set_xticks(range(len(_ROLES)), [NAMES[role].replace(" ", "\n") for role in _ROLES])
        axis.set_title(text)
    axes[0].set_ylabel("attention above chance")
    return figure


def _draw_scores(axis: Axes, measured: ModelRoles, text: str, color: str, shift: float) -> None:
    """Draw a point for each head above its role, spread so that they do not hide each other."""
    spread = np.random.default_rng(0)
    for k, role in enumerate(_ROLES):
        excess = measured.roles[text].sel("excess", role=role).flatten().numpy()
        x = k + shift + spread.uniform(-0.13, 0.13, len(excess))
        axis.plot(x, excess, ".", color=color, alpha=0.6, markersize=4, markeredgewidth=0)


def attention_views(result: Measurements) -> dict[str, str]:
    """Return HTML of the attention of each played role's strongest head on one sequence of each text, by title."""
    views: dict[str, str] = {}
    for text, shown in result.trained.shown.items():
        played = {role.role: role.strongest for role in result.summaries(text) if role.heads}
        heads = {role: played[role] for role in NAMES if role in played}
        if heads:
            title = f"Where the strongest head of each role attends: {text}"
            views[title] = _view(shown, heads, include_js=not views)
    return views


def _view(shown: ProbeResult, heads: Mapping[str, str], *, include_js: bool) -> str:
    """Return HTML of the attention of heads, given by role."""
    places = torch.tensor([shown.coords["name"].index(head) for head in heads.values()])
    names = [f"{head}:{NAMES[role].replace(' ', '-')}" for role, head in heads.items()]
    view = attention_view_from_patterns(
        shown[ATTENTION][places].float(), shown.metadata["tokens"], names, causal=shown.metadata["causal"]
    )
    return view.fragment(include_js=include_js)
