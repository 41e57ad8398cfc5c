"""Import peft, or say in one sentence how to install it."""

from __future__ import annotations

from typing import Any

from mechclust.models.installed import check_installed
from mechclust.models.quiet_transformers import quiet_transformers
from tasks import InputError
from tasks.errors import error_line


def import_peft(work: str, extra: str) -> Any:
    """Import peft, without the advice that it and bitsandbytes print.

    Args:
        work: the task that needs it, for errors.
        extra: our extra that installs it.

    Raises:
        InputError: if it is not installed, or cannot be imported, with the reason.
    """
    check_installed("peft", work, extra)
    try:
        with quiet_transformers():
            import peft
    except ImportError as error:
        raise InputError(
            f"{work} needs peft, which cannot be imported ({error_line(error)}); install it with: pip install "
            f"'mechclust[{extra}]'"
        ) from None
    return peft
