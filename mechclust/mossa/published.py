"""Names and layer groups of the MOSSA paper: Llama-2-7B, with 32 layers.

Zhao, Ziser & Cohen, "Layer by Layer: Uncovering Where Multi-Task Learning Happens in Instruction-Tuned Large Language
Models" (EMNLP 2024, arXiv 2410.20008).
"""

from __future__ import annotations

from collections.abc import Mapping

N_LAYERS = 32
GROUPS: Mapping[str, tuple[int, int]] = {"shared": (1, 9), "transition": (10, 15), "refinement": (16, 32)}
FLESCH_KINCAID = "Flesch-Kincaid grade"
COLEMAN_LIAU = "Coleman-Liau index"
DATA_SIZE = "number of training examples"
