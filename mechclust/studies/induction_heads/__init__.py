"""Induction heads (Olsson et al.): they form when the loss on repeated tokens drops, and one layer has none."""

from mechclust.studies.induction_heads.config import InductionHeadsConfig

__all__ = ["InductionHeadsConfig"]
