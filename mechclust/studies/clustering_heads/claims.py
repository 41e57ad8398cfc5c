"""Sources of this study's findings, and the joining of notes."""

from __future__ import annotations

FIRST_PAPER = "Odonnat et al., arXiv 2410.24050"
SECOND_PAPER = "Odonnat et al., arXiv 2501.02362"


def joined_notes(*notes: str) -> str:
    """Return the notes that say something, as one."""
    return "; ".join(note for note in notes if note)
