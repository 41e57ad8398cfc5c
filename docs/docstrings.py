"""How the docstrings of the packages become API pages; a griffe extension, see mkdocs.yml.

The docstrings are Google style with a few headings of our own: ``Measures`` lists what a probe gives, and ``Memory``,
``Cost``, ``Source`` and ``Numerics`` are a paragraph each.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_LIST = re.compile(r"(?m)^(?P<title>Measures\b.*|Hook points\b.*|Raises \(when applied\)):\n(?P<body>(?: {4}.*\n?)+)")
_LABEL = re.compile(r"(?m)^(Memory|Disk|Cost|Source|Numerics|Undefined)(: )")


class OwnHeadings(griffe.Extension):
    """Gives the headings of our own a form that Markdown has."""

    def on_object(self, *, obj: griffe.Object, loader: Any, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = readable(obj.docstring.value)


def readable(docstring: str) -> str:
    """``Example`` as the section that shows code, lists as lists, labels in bold."""
    docstring = re.sub(r"(?m)^Example:$", "Examples:", docstring)
    docstring = _LABEL.sub(r"**\1**\2", docstring)
    return _LIST.sub(lambda found: f"**{found['title']}**:\n\n{_items(found['body'])}\n", docstring)


def _items(body: str) -> str:
    """A list item for each line that is indented once; lines that are indented further go on with it."""
    return "\n".join(f"- {line[4:]}" if line[4:5].strip() else line[4:] for line in body.rstrip().split("\n"))
