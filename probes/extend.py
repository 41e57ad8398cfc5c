"""Write probes of your own: ``check_probe`` tests a new class against the contract of ``Probe``."""

from probes.checks.check_probe import check_probe

__all__ = ["check_probe"]
