"""Tools for new probes: ``check_probe`` tests a class against the contract of ``Probe``."""

from probes.checks.check_probe import check_probe

__all__ = ["check_probe"]
