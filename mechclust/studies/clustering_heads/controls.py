"""What the findings of this study share: their sources, and controls that may not have been run."""

from __future__ import annotations

from mechclust.evidence import Control, Part

FIRST_PAPER = "Odonnat et al., arXiv 2410.24050"
SECOND_PAPER = "Odonnat et al., arXiv 2501.02362"


def control_of(name: str, parts: tuple[Part, ...]) -> Control | None:
    """Return the control, or ``None`` if the run holds no values for it."""
    return Control(name, parts) if parts and all(part.values for part in parts) else None
