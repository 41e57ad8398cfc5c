"""Which attention heads play another role in the tuned model than in the base, on repeated random tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechclust.commands.compare.config import CompareConfig
from mechclust.commands.parts import MeasurementPart, part_path, remove_others
from mechclust.commands.repeated_tokens import repeated_tokens
from mechclust.commands.saved_rows import Checkpoint
from mechclust.models.sizes import Sizes
from mechclust.report.reading import Reading
from mechclust.report.text import first_few
from probes import HeadRoles, ProbeResult, run
from probes.engine.hooks import HookedModel
from probes.engine.sites import head_name
from probes.head_roles import HEAD_ROLES
from tasks import Batch, InputError
from tasks.errors import first_line

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = ("layer", "head", "name", "base_role", "tuned_role", "role")
_MEASURES = ("excess", "excess_low", "excess_high")


def role_sequences(tokenizer: Any, sizes: Sequence[Sizes], config: CompareConfig) -> list[Batch]:
    """Return sequences of repeated random tokens, none if the models have no room for them."""
    n = config.n_role_sequences
    shortest = min(sizes, key=_context)
    with suppress(InputError):
        return repeated_tokens(tokenizer, shortest, n, config.tokens_per_batch, bos=config.bos, seed=config.seed)
    return []


def _context(sizes: Sizes) -> float:
    return math.inf if sizes.n_ctx is None else sizes.n_ctx


def measured_roles(
    models: Mapping[Checkpoint, HookedModel], sequences: Sequence[Batch], weights: Sequence[str], folder: Path
) -> tuple[dict[str, ProbeResult], str]:
    """Measure the roles of the heads of base and tuned model, in parts that are kept.

    Args:
        models: base and tuned model.
        sequences: tokens.
        weights: strings that identify the weights of both.
        folder: folder of parts.

    Returns:
        ``HeadRoles`` by the model's role, and ``""``; or nothing, and why attention cannot be measured.
    """
    probe = HeadRoles(n_permutations=0)
    tokens = [batch.tokens for batch in sequences]
    parts = {}
    for (checkpoint, model), of_weights in zip(models.items(), weights, strict=True):
        path = part_path(folder, checkpoint.role, [of_weights, repr(probe)], tokens)
        parts[checkpoint.role] = MeasurementPart(path, "roles of heads", partial(run, model, sequences, probe))
    remove_others(folder, {part.path for part in parts.values()})
    try:
        roles = {role: part.found() for role, part in parts.items()}
    except InputError as error:
        return {}, first_line(error)
    if roles["base"]["role"].shape != roles["tuned"]["role"].shape:
        return {}, "the models have different heads"
    return roles, ""


def role_table(roles: Mapping[str, ProbeResult]) -> pd.DataFrame:
    """Return one row per head with different roles in base and tuned model, the most changed first.

    The columns are ``layer, head, name, base_role, tuned_role``. Of these roles, ``role`` is the one whose attention
    above chance changed most, with its ``excess`` and 95% interval in each model. ``changed`` is whether the intervals
    do not overlap.

    Args:
        roles: of ``HeadRoles``, by ``"base"`` and ``"tuned"``.
    """
    import pandas as pd

    base = roles["base"]
    differences = (roles["tuned"]["excess"] - base["excess"]).abs()
    layers = [base.layers[site] for site in base.coords["site"]]
    rows = []
    for i, head in (roles["tuned"]["role"] != base["role"]).nonzero().tolist():
        places = [int(roles[model]["role"][i, head]) for model in ("base", "tuned")]
        k = max((place - 1 for place in places if place), key=differences[i, head].tolist().__getitem__)
        names = [HEAD_ROLES[place] for place in places]
        row = dict(zip(_COLUMNS, [layers[i], head, head_name(layers[i], head), *names, HEAD_ROLES[k + 1]], strict=True))
        for model, of_model in roles.items():
            row |= {f"{model}_{measure}": float(of_model[measure][i, head, k]) for measure in _MEASURES}
        above = row["tuned_excess_low"] > row["base_excess_high"]
        rows.append({**row, "changed": above or row["tuned_excess_high"] < row["base_excess_low"]})
    measures = [f"{model}_{measure}" for model in roles for measure in _MEASURES]
    table = pd.DataFrame(rows, columns=[*_COLUMNS, *measures, "changed"])
    size = (table["tuned_excess"] - table["base_excess"]).abs()
    return table.loc[size.sort_values(ascending=False, kind="stable").index].reset_index(drop=True)


def role_readings(roles: Mapping[str, ProbeResult], table: pd.DataFrame) -> Iterator[Reading]:
    """Yield the heads whose role changed.

    Args:
        roles: see ``role_table``.
        table: see ``role_table``.
    """
    heads = []
    for row in table[table["changed"]].itertuples():
        change = f"{row.base_excess:z.2f} to {row.tuned_excess:z.2f}"
        heads.append(f"{row.name} {row.base_role} to {row.tuned_role} ({row.role} {change})")
    n = f"{len(heads)} of {roles['base']['role'].numel()}"
    yield Reading(
        "Heads whose role changed",
        f"{n}: {first_few(heads)}" if heads else n,
        "repeated random tokens",
        verdict="In brackets: attention above chance to the role's tokens, whose 95% intervals do not overlap.",
    )
