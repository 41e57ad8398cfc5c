"""A witness for a large refactoring: the same calls under old and new code, with every difference listed.

Temporary. ``make parity`` runs it. The code at the commit in ``base.txt`` and the present code are built as wheels,
installed side by side, and put through the calls of ``commands.py`` and ``library.py``. What they give must be the
same, except for what ``differences.toml`` lists.
"""
