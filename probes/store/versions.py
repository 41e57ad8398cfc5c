"""Versions of the packages that numbers depend on."""

from __future__ import annotations

from functools import cache


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that numbers depend on, for metadata."""
    return dict(_versions())


@cache
def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    installed = {}
    for package in ("mechclust", "torch", "transformer-lens", "scikit-learn", "numpy"):
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            continue
    return installed
