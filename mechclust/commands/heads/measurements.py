"""What was measured of the roles of heads, and the tables made of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, starmap
from typing import TYPE_CHECKING, Any

import torch

from mechclust.commands.heads.config import HeadsConfig
from probes import ProbeResult
from probes.engine.head_names import head_name
from probes.head_roles import HEAD_ROLES, TESTED_ROLES, has_too_few_permutations

if TYPE_CHECKING:
    import pandas as pd

TRAINED = "trained"
ATTENTION = "pattern"
NAMES = {
    "induction": "induction",
    "duplicate": "duplicate token",
    "previous": "previous token",
    "first": "first token",
    "itself": "itself",
    "offset": "fixed offset",
    "local": "local",
}
"""The roles in words, the most telling first."""
_MEASURES = ("score", "chance", "excess", "excess_low", "excess_high", "share", "p_value", "p_holm", "called")


@dataclass(frozen=True)
class ModelRoles:
    """Measurements of one model.

    Attributes:
        roles: of ``HeadRoles``, by text.
        shown: attention of every head on one sequence, by text; empty for random weights.
    """

    roles: Mapping[str, ProbeResult]
    shown: Mapping[str, ProbeResult]

    @property
    def weights(self) -> str:
        """Fingerprint of the model."""
        return str(next(iter(self.roles.values())).metadata["model"])


@dataclass(frozen=True)
class RoleSummary:
    """Summary of one role on one text: how many heads play it, and how strong it is.

    Attributes:
        text: name of the text.
        role: as in ``HEAD_ROLES``.
        heads: number of heads that play this role more than any other.
        strongest: name of the strongest of these, or of all heads if there are none.
        score: its mean attention to the role's keys; for ``local`` see ``HeadRoles``.
        chance: the same by chance.
        excess: score less chance.
        excess_low: lower end of its 95% interval over sequences.
        excess_high: upper end.
        offset: its fixed offset, for that role.
        random_weights: score of the strongest head of all copies with random weights; NaN without copies.
        random_excess: the same less chance.
    """

    text: str
    role: str
    heads: int
    strongest: str
    score: float
    chance: float
    excess: float
    excess_low: float
    excess_high: float
    offset: int | None
    random_weights: float
    random_excess: float

    @property
    def compared(self) -> bool:
        """Whether there are random weights to compare with."""
        return self.random_excess == self.random_excess

    @property
    def above_random(self) -> bool:
        """Whether the whole interval of the strongest head is above the strongest with random weights."""
        return self.excess_low > self.random_excess


@dataclass(frozen=True, repr=False)
class Measurements:
    """Roles of a model and of copies with random weights; the attributes are described at ``HeadsResult``."""

    model: str
    config: HeadsConfig
    trained: ModelRoles
    untrained: Sequence[ModelRoles]
    tokenization: Mapping[str, Any]
    input_notes: Sequence[str] = ()

    @property
    def texts(self) -> list[str]:
        """Names of the texts."""
        return list(self.trained.roles)

    @property
    def n_heads(self) -> int:
        """Number of heads of the model."""
        return next(iter(self.trained.roles.values()))["role"].numel()

    @property
    def untested(self) -> tuple[str, ...]:
        """Roles that no head can be called, because there are too few permutations for Holm's correction."""
        return TESTED_ROLES if has_too_few_permutations(self.config.n_permutations, self.n_heads) else ()

    @property
    def results(self) -> dict[str, ProbeResult]:
        """The measurements, by the name of their file."""
        results: dict[str, ProbeResult] = {}
        for name, measured in self.models.items():
            results |= {f"{name}/roles-{_file(text)}": result for text, result in measured.roles.items()}
            results |= {f"{name}/attention-{_file(text)}": result for text, result in measured.shown.items()}
        return results

    @property
    def models(self) -> dict[str, ModelRoles]:
        """The model and its copies with random weights, by name."""
        copies = {f"untrained-seed{seed}": measured for seed, measured in enumerate(self.untrained)}
        return {TRAINED: self.trained, **copies}

    def summaries(self, text: str) -> list[RoleSummary]:
        """Return how much each role is played on a text, the one of most heads first."""
        roles = self.trained.roles[text]
        summaries = []
        for role in roles.coords["role"]:
            place = _strongest(roles, role)
            if place is not None:
                summaries.append(self._summary(text, role, place))
        return sorted(summaries, key=_order)

    def _summary(self, text: str, role: str, place: tuple[int, int]) -> RoleSummary:
        roles = self.trained.roles[text]
        of_head = {name: float(roles.sel(name, role=role)[place]) for name in _MEASURES}
        copies = [measured.roles[text] for measured in self.untrained]
        random = max((_highest(copy, role) for copy in copies), default=(torch.nan, torch.nan))
        return RoleSummary(
            text=text,
            role=role,
            heads=int((roles["role"] == HEAD_ROLES.index(role)).sum()),
            strongest=head_name(_layers(roles)[place[0]], place[1]),
            score=of_head["score"],
            chance=of_head["chance"],
            excess=of_head["excess"],
            excess_low=of_head["excess_low"],
            excess_high=of_head["excess_high"],
            offset=int(roles["best_offset"][place]) if role == "offset" else None,
            random_weights=random[1],
            random_excess=random[0],
        )

    # ---- tables ----

    def by_role(self) -> pd.DataFrame:
        """Return one row per text and role: the heads that play it, the strongest, and that of random weights."""
        import pandas as pd

        summaries = chain.from_iterable(map(self.summaries, self.texts))
        return pd.DataFrame(list(map(asdict, summaries)))

    def by_head(self) -> pd.DataFrame:
        """Return one row per text and head: its role, its best fixed offset, and how far it attends in tokens."""
        import pandas as pd

        rows = []
        for text, roles in self.trained.roles.items():
            for place, of_head in _heads(text, roles):
                role = HEAD_ROLES[int(roles["role"][place])]
                measures = {name: roles[name][place].item() for name in ("best_offset", "distance", "distance_uniform")}
                rows.append({**of_head, "role": role, **measures})
        return pd.DataFrame(rows)

    def to_dataframe(self) -> pd.DataFrame:
        """Return one row per model, text, head and role, with every measure of ``HeadRoles`` that has a role.

        The columns are ``model, text, layer, site, head, name, role``, then the measures. Copies with random weights
        have no p-values.
        """
        import pandas as pd

        return pd.DataFrame(list(chain.from_iterable(starmap(_rows, self.models.items()))))

    def strongest(self, n: int = 5) -> pd.DataFrame:
        """Return the ``n`` strongest heads of each role on each text, and the strongest of each copy.

        Args:
            n: heads per text and role, of the model itself.
        """
        table = self.to_dataframe().sort_values("excess", ascending=False, kind="stable")
        counts = table.groupby(["model", "text", "role"]).cumcount()
        table = table[(counts < n) & ((table["model"] == TRAINED) | (counts < 1))]
        order = table["role"].map(list(NAMES).index)
        table = table.assign(order=order).sort_values(["text", "order", "model"], kind="stable")
        columns = ["text", "role", "model", "name", "score", "chance", "excess_low", "excess_high", "p_holm"]
        return table[columns].reset_index(drop=True)


def _layers(roles: ProbeResult) -> list[int]:
    return [roles.layers[site] for site in roles.coords["site"]]


def _strongest(roles: ProbeResult, role: str) -> tuple[int, int] | None:
    """Return site and head of the largest excess among the heads with this role, or among all if it is no head's."""
    excess = roles.sel("excess", role=role).nan_to_num(nan=-torch.inf)
    has_role = roles["role"] == HEAD_ROLES.index(role)
    if bool(has_role.any()):
        excess = torch.where(has_role, excess, -torch.inf)
    if bool((excess == -torch.inf).all()):
        return None
    site, head = divmod(int(excess.argmax()), excess.shape[1])
    return site, head


def _highest(roles: ProbeResult, role: str) -> tuple[float, float]:
    """Return excess and score of the head with the largest excess."""
    heads = roles.top_heads("excess", 1, role=role)
    if not heads:
        return torch.nan, torch.nan
    (head,) = heads
    site = roles.coords["site"][_layers(roles).index(head.layer)]
    return head.value, float(roles.sel("score", site=site, head=head.head, role=role))


def _rows(name: str, measured: ModelRoles) -> Iterator[dict[str, Any]]:
    """Yield a row per text, head and role."""
    for text, roles in measured.roles.items():
        for place, of_head in _heads(text, roles):
            values = {measure: roles[measure][place].tolist() for measure in _MEASURES}
            for k, role in enumerate(roles.coords["role"]):
                yield {"model": name, **of_head, "role": role, **{measure: values[measure][k] for measure in _MEASURES}}


def _heads(text: str, roles: ProbeResult) -> Iterator[tuple[tuple[int, int], dict[str, Any]]]:
    """Yield the place of each head in the result, and the columns that name it."""
    for i, site in enumerate(roles.coords["site"]):
        layer = roles.layers[site]
        for head in range(len(roles.coords["head"])):
            yield (i, head), {"text": text, "layer": layer, "site": site, "head": head, "name": head_name(layer, head)}


def _order(summary: RoleSummary) -> tuple[int, int]:
    """Return a key that is least for the role of most heads."""
    return -summary.heads, list(NAMES).index(summary.role)


def _file(text: str) -> str:
    return text.replace(" ", "-")
