"""Pure functions behind the probes: arrays in, numbers out; no hooks, no state."""

from probes.functional.ari import adjusted_rand_null, adjusted_rand_score, contingency

__all__ = ["adjusted_rand_null", "adjusted_rand_score", "contingency"]
