"""JSON as a user wrote it: objects, or one sentence that says where and why not."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from tasks.errors import InputError
from tasks.text.visible import short

_LONGEST = 60  # characters of a line in a message


def parse_object(text: str, where: str, expected: str) -> dict[str, Any]:
    """One JSON object.

    Args:
        text: of a line, or of a file.
        where: it stands, for messages.
        expected: what the object should hold, such as ``'"prompt" and "task"'``.

    Raises:
        InputError: for what is not JSON, or no object.

    Example:
        >>> parse_object('{"prompt": "Sort: b a"}', "prompts.jsonl, line 1", expected='"prompt"')
        {'prompt': 'Sort: b a'}
    """
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        line = text.split("\n")[error.lineno - 1]
        place = f"line {error.lineno}, column {error.colno}" if "\n" in text else f"column {error.colno}"
        raise InputError(f"{where} is not JSON ({error.msg} at {place}): {line[:_LONGEST]!r}") from None
    except RecursionError:
        raise InputError(f"{where} is nested too deeply; give an object of strings, integers and booleans") from None
    except ValueError:  # Python reads no integer of more digits
        raise InputError(
            f"{where} has an integer of more than {sys.get_int_max_str_digits():,} digits; give the label as a string"
        ) from None
    if not isinstance(found, dict):
        raise InputError(f"{where} is a JSON {type(found).__name__}; expected an object with {expected}")
    return found


def check_field(record: Mapping[str, Any], field: str, where: str, way_out: str = "add it") -> None:
    """Refuse an object without a field.

    Raises:
        InputError: naming the fields that it has.
    """
    if field not in record:
        raise InputError(
            f'{where} has no "{short(field)}" (it has {", ".join(map(short, record)) or "nothing"}); {way_out}'
        )
