"""What a command says that refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tasks import InputError


def refusal(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """Return the message of the ``InputError`` with which a call ends."""
    with pytest.raises(InputError) as error:
        call(*arguments, **options)
    return str(error.value)
