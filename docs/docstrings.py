"""How the docstrings of the packages become API pages; a griffe extension, see mkdocs.yml.

The docstrings are Google style with a few headings of our own: ``Measures`` lists what a probe gives, and ``Memory``,
``Cost``, ``Source`` and ``Numerics`` are a paragraph each.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any

import griffe

_LIST = re.compile(r"(?m)^(?P<title>Measures\b.*|Hook points\b.*|Raises \(when applied\)):\n(?P<body>(?: {4}.*\n?)+)")
_LABEL = re.compile(r"(?m)^(Memory|Disk|Cost|Source|Numerics|Undefined)(: )")


class OwnHeadings(griffe.Extension):
    """Gives the headings of our own a form that Markdown has."""

    def on_package(self, *, pkg: griffe.Module, loader: Any, **kwargs: Any) -> None:
        _functions_before_modules(pkg)

    def on_object(self, *, obj: griffe.Object, loader: Any, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = readable(obj.docstring.value)


def _functions_before_modules(package: griffe.Module) -> None:
    """A public function in a file of its own name hides that file, as it does in Python (``probes.run``)."""
    members = list(package.members.items())
    for _, member in members:
        if member.is_alias:
            with contextlib.suppress(griffe.AliasResolutionError):
                member.resolve_target()  # by way of the file, before it is hidden
    for name, member in members:
        if isinstance(member, griffe.Module):
            _functions_before_modules(member)
            if name in (package.exports or ()) and name in member.members:
                package.members[name] = griffe.Alias(name, member.members[name], parent=package)


def readable(docstring: str) -> str:
    """``Example`` as the section that shows code, lists as lists, labels in bold."""
    docstring = re.sub(r"(?m)^Example:$", "Examples:", docstring)
    docstring = _LABEL.sub(r"**\1**\2", docstring)
    return _LIST.sub(lambda found: f"**{found['title']}**:\n\n{_items(found['body'])}\n", docstring)


def _items(body: str) -> str:
    """A list item for each line that is indented once; lines that are indented further continue it."""
    return "\n".join(f"- {line[4:]}" if line[4:5].strip() else line[4:] for line in body.rstrip().split("\n"))
