"""Read the styles and scripts of interactive views, and put them and their data on a page."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

import numpy as np

_SCRIPT = re.compile(r"<script\b[^>]*>(.*?)</script", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True)
class ViewScript:
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
def script_text(package: str, name: str) -> str:
    """Return a style or script of a package's ``templates``."""
    return (files(package) / "templates" / name).read_text(encoding="utf-8")


def scripts_with_kit(package: str, *names: str) -> str:
    """Return the kit that all views draw with, and after it these scripts of a package, in this order."""
    return script_text("mechclust.web", "kit.js") + "".join(script_text(package, name) for name in names)


def script_content_policy(*fragments: str, images: str = "data:") -> str:
    """Return a Content-Security-Policy that lets a page run only these fragments' scripts, and load no other resources.

    Args:
        fragments: HTML of ours whose scripts may run.
        images: allowed sources of pictures.
    """
    scripts = dict.fromkeys(_SCRIPT.findall("\n".join(fragments)))
    hashes = [base64.b64encode(sha256(_as_read(script)).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src {images}; base-uri 'none'; "
        "form-action 'none'"
    )


def _as_read(script: str) -> bytes:
    """Return a script as a browser reads it from the page."""
    return script.replace("\r\n", "\n").replace("\r", "\n").encode(errors="backslashreplace")


def script_numbers(values: Any, dtype: str) -> str:
    """Return numbers in base64, as the scripts read them."""
    return base64.b64encode(np.asarray(values).astype(dtype).tobytes()).decode()
