"""Instruction tasks with answers, clusters and held-out tasks, as tuned models are trained and measured on them."""

from tasks.text.instructions.collection import TaskCollection
from tasks.text.instructions.example import Example
from tasks.text.instructions.flan2021 import FLAN2021, MISC, flan2021_cluster
from tasks.text.instructions.folder import read_task_folder
from tasks.text.instructions.held_out import choose_held_out
from tasks.text.instructions.instruction_task import InstructionTask
from tasks.text.instructions.splits import split_of_instruction

__all__ = [  # noqa: RUF022 - which would put names in capitals first
    "Example",
    "FLAN2021",
    "InstructionTask",
    "MISC",
    "TaskCollection",
    "choose_held_out",
    "flan2021_cluster",
    "read_task_folder",
    "split_of_instruction",
]
