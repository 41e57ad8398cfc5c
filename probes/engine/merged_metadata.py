"""What two results that are merged were measured with, as one record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tasks import InputError

MERGE_STATES = "merge the probes' states instead (save_state in each job, then load_state, merge and compute)"


def merged_metadata(
    probe: str, axis: str, a: Mapping[str, Any], b: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return both records as one, and notes on what differs without changing what the numbers mean.

    Args:
        probe: name of the probe, for messages.
        axis: along which the results differ.
        a, b: metadata of the two results.

    Raises:
        InputError: for records of different settings, examples or models.
    """
    found: dict[str, Any] = {}
    notes: list[str] = []
    for key in dict.fromkeys([*a, *b]):
        x: Any = a.get(key)
        y: Any = b.get(key)
        if json.dumps(x, sort_keys=True) == json.dumps(y, sort_keys=True):  # lists and tuples are alike, so is NaN
            found[key] = x
        elif key == "versions":
            found[key] = x
            notes.append(f"merged from results of different versions: {x} and {y}")
        elif key == "parameters":
            if changed := [k for k in {**x, **y} if k != "at" and x.get(k) != y.get(k)]:
                raise InputError(
                    f"cannot merge {probe} results with different settings ({changed[0]} = {x.get(changed[0])} and "
                    f"{y.get(changed[0])}); measure both with the same"
                )
            found[key] = {**x, "at": f"{x.get('at')} and {y.get('at')}"}
        elif key in ("examples", "model"):
            if not (x and y):
                notes.append(f"merged without knowing whether both measured the same {key}")
                continue
            if key == "examples" and axis == "label":  # each of its own examples
                notes.append("labels were measured on examples of their own")
                continue
            what = "examples" if key == "examples" else "models"
            way = f"; {MERGE_STATES}" if key == "examples" else "; compare them side by side instead"
            raise InputError(f"cannot merge {probe} results of different {what}{way}")
        elif (
            isinstance(x, Mapping) and isinstance(y, Mapping) and all(x[k] == y[k] for k in x if k in y) and key != "n"
        ):
            found[key] = {**x, **y}
        else:
            raise InputError(
                f"cannot merge {probe} results whose {key!r} differs ({x} and {y}): they did not measure the same "
                f"examples; {MERGE_STATES}"
            )
    return found, notes
