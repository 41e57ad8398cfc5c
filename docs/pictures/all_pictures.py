"""Fills the registry."""


def known() -> None:
    """Import the modules whose functions draw."""
    import docs.pictures.probe_pictures  # noqa: F401
