"""A user's JSON as objects, or one sentence that says where and why not."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from tasks.errors import InputError
from tasks.repeated_values import repeated_values
from tasks.text.visible import shortened

Records: TypeAlias = Iterator[tuple[str, Mapping[str, Any]]]
"""Where each record stands, for messages, and the record by field."""

_MAX_LINE_CHARACTERS = 60  # longest line in a message


def parse_lines(lines: Iterable[str], path: Path, expected: str) -> Records:
    """Yield the JSON objects of a file, one per line. Empty lines are skipped.

    Args:
        lines: lines of the file.
        path: path of the file, for messages.
        expected: the expected content of an object, such as ``'"prompt" and "task"'``.

    Raises:
        InputError: for a line that is not JSON, or no object, or with a field given twice.
    """
    for number, line in enumerate(lines, start=1):
        if line.strip():
            where = f"{path}, line {number}"
            value = _parse(line, where)
            if not isinstance(value, dict):
                raise InputError(f"{where} is a JSON {type(value).__name__}; expected an object with {expected}")
            yield where, value


def _parse(line: str, where: str) -> object:
    try:
        return json.loads(line, object_pairs_hook=_object)
    except KeyError as error:
        raise InputError(f"{where} has two fields {error}; rename one") from None
    except json.JSONDecodeError as error:
        shown = line[:_MAX_LINE_CHARACTERS]
        raise InputError(f"{where} is not JSON ({error.msg} at column {error.colno}): {shown!r}") from None
    except RecursionError:
        raise InputError(f"{where} is nested too deeply; give an object of strings, integers and booleans") from None
    except ValueError:  # Python reads no integer of more digits
        raise InputError(
            f"{where} has an integer of more than {sys.get_int_max_str_digits():,} digits; give the label as a string"
        ) from None


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    """Return an object by field.

    Raises:
        KeyError: for the first field that is there twice.
    """
    value = dict(pairs)
    if len(value) < len(pairs):
        raise KeyError(shortened(repeated_values([name for name, _ in pairs])[0]))
    return value


def check_json_field(record: Mapping[str, Any], field: str, where: str, way_out: str = "add it") -> None:
    """Refuse an object without a field.

    Raises:
        InputError: naming the fields that it has.
    """
    if field not in record:
        fields = ", ".join(map(shortened, record)) or "nothing"
        raise InputError(f'{where} has no "{shortened(field)}" (it has {fields}); {way_out}')
