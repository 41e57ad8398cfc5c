"""The error of training that diverged."""

from __future__ import annotations

from tasks import InputError


class DivergedError(InputError):
    """Training came to a loss that is not finite."""
