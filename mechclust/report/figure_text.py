"""Write a user's texts into figures."""

from __future__ import annotations

from unicodedata import east_asian_width

from tasks.text.visible import shortened


def figure_text(text: str, longest: int = 40) -> str:
    r"""Return a user's text for a figure, in which matplotlib reads no formula and which it shows in legends.

    Control characters are written out, and a long text is cut.

    Example:
        >>> figure_text("cost $_$ x")
        'cost \\$_\\$ x'
    """
    wide = any(east_asian_width(character) in "WF" for character in text)
    text = shortened(text, longest // 2 if wide else longest).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text  # matplotlib has no legend for names that begin so
