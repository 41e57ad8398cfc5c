"""Read the styles and scripts of interactive views, and put them on a page."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files


@dataclass(frozen=True)
class ViewCode:
    """Style and script of one kind of view.

    Attributes:
        name: how the script's global name begins.
        style: CSS.
        script: JavaScript that defines the function ``show``, which draws a view.
    """

    name: str
    style: str
    script: str

    @property
    def function(self) -> str:
        """Global name of ``show``, with a digest: a notebook may hold the output of another version."""
        return f"{self.name}_{sha256(self.script.encode()).hexdigest()[:8]}"

    @property
    def html(self) -> str:
        """Style and script as HTML. On a page of several views the script is run once."""
        return f"""<style>{self.style}</style>
<script>window.{self.function} ??= (() => {{
{self.script}return show; }})();</script>
"""


@lru_cache
def template_text(package: str, name: str) -> str:
    """Return a style or script of a package's ``templates``."""
    return (files(package) / "templates" / name).read_text(encoding="utf-8")


def with_kit(package: str, *names: str) -> str:
    """Return the kit that all views draw with, and after it these scripts of a package, in this order."""
    return template_text("mechclust.web", "kit.js") + "".join(template_text(package, name) for name in names)
