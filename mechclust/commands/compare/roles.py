"""Which attention heads play another role in the tuned model than in the base, on repeated random tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mechclust.commands.compare.config import CompareConfig
from mechclust.commands.saved_rows import Checkpoint
from mechclust.models.repeated_tokens import repeated_tokens
from mechclust.models.sizes import Sizes
from mechclust.report.reading import Reading
from mechclust.report.text import first_few
from probes import HeadRoles, ProbeResult, run
from probes.engine.head_names import head_name
from probes.engine.hooked_model import HookedModel
from probes.head_roles import HEAD_ROLES
from tasks import Batch, InputError
from tasks.errors import error_line

if TYPE_CHECKING:
    import pandas as pd

_MEASURES = ("excess", "excess_low", "excess_high")
_COLUMNS = ("name", "base_role", "tuned_role", "role")


def role_sequences(tokenizer: Any, sizes: Sizes, config: CompareConfig) -> list[Batch]:
    """Return sequences of repeated random tokens, none if they are not wanted or a model has no room for them."""
    n = config.n_role_sequences
    with suppress(InputError):
        return repeated_tokens(tokenizer, sizes, n, config.tokens_per_batch, bos=config.bos, seed=config.seed)
    return []


def measured_roles(
    models: Mapping[Checkpoint, HookedModel], sequences: Sequence[Batch]
) -> tuple[dict[str, ProbeResult], str]:
    """Measure the roles of the heads of base and tuned model.

    Returns:
        ``HeadRoles`` by the model's role, and ``""``; or nothing, and why attention cannot be compared.
    """
    try:
        probe = HeadRoles(n_permutations=0)
        roles = {checkpoint.role: run(model, sequences, probe) for checkpoint, model in models.items()}
    except InputError as error:
        return {}, error_line(error)
    if roles["base"]["role"].shape != roles["tuned"]["role"].shape:
        return {}, "the models have different heads"
    return roles, ""


def role_table(roles: Mapping[str, ProbeResult]) -> pd.DataFrame:
    """Return one row per head with different roles in base and tuned model, the most changed first.

    The columns are ``name, base_role, tuned_role``. Of these roles, ``role`` is the one whose attention
    above chance changed most, with its ``excess`` and 95% interval in each model, and the ``change``. ``changed`` is
    whether the intervals do not overlap.

    Args:
        roles: of ``HeadRoles``, by ``"base"`` and ``"tuned"``.
    """
    import pandas as pd

    base = roles["base"]
    tuned = roles["tuned"]
    differences = (tuned["excess"] - base["excess"]).abs()
    layers = [base.layers[site] for site in base.coords["site"]]
    rows = []
    for i, head in (tuned["role"] != base["role"]).nonzero().tolist():
        places = [int(of_model["role"][i, head]) for of_model in (base, tuned)]
        k = max((place - 1 for place in places if place), key=differences[i, head].tolist().__getitem__)
        row: list[Any] = [head_name(layers[i], head), *(HEAD_ROLES[place] for place in (*places, k + 1))]
        for of_model in (base, tuned):
            row += [float(of_model[measure][i, head, k]) for measure in _MEASURES]
        rows.append(row)
    columns = [*(f"base_{measure}" for measure in _MEASURES), *(f"tuned_{measure}" for measure in _MEASURES)]
    table = pd.DataFrame(rows, columns=[*_COLUMNS, *columns])
    table["changed"] = table["tuned_excess_low"] > table["base_excess_high"]
    table["changed"] |= table["tuned_excess_high"] < table["base_excess_low"]
    table["change"] = table["tuned_excess"] - table["base_excess"]
    return table.sort_values("change", key=abs, ascending=False, ignore_index=True)


def role_readings(roles: Mapping[str, ProbeResult], table: pd.DataFrame) -> Iterator[Reading]:
    """Yield the heads whose role changed.

    Args:
        roles: see ``role_table``.
        table: see ``role_table``.
    """
    heads = []
    for row in table[table["changed"]].itertuples():
        values = f"{row.role} {row.base_excess:z.2f} to {row.tuned_excess:z.2f}"
        heads.append(f"{row.name} {row.base_role} to {row.tuned_role} ({values})")
    n = f"{len(heads)} of {roles['base']['role'].numel()}"
    yield Reading(
        "Heads whose role changed",
        f"{n}: {first_few(heads)}" if heads else n,
        "repeated random tokens",
        verdict="In brackets: attention above chance to the role's tokens, whose 95% intervals do not overlap.",
    )
