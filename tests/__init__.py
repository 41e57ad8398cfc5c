"""The tests."""

from tests import shapes  # noqa: F401 - for the option --jaxtyping-packages
