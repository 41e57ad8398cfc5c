"""Labelled data: synthetic tasks and labelled texts. Knows torch and numpy, nothing else of ours."""

from tasks.batch import Batch
from tasks.errors import InputError
from tasks.instructions import InstructionFollowing
from tasks.task import Task
from tasks.text.prompts import LabelledPrompts

__all__ = ["Batch", "InputError", "InstructionFollowing", "LabelledPrompts", "Task"]
