"""Labelled data: synthetic tasks and labelled texts. Imports torch and numpy, and no other package of ours."""

from tasks.garbage_collection import paused_collection

with paused_collection():  # torch is imported here
    from tasks.batch import Batch
    from tasks.errors import InputError
    from tasks.instructions import InstructionFollowing
    from tasks.modular_addition import SparseModularAddition
    from tasks.repeated_tokens import RepeatedTokens
    from tasks.skills import SkillSuite
    from tasks.task import Task
    from tasks.text.corpus import Corpus
    from tasks.text.encoded_corpus import EncodedCorpus
    from tasks.text.prompts import LabelledPrompts
    from tasks.text.streams.corpus_stream import CorpusStream
    from tasks.text.topic_model import TopicModel, fit_topics
    from tasks.topic_documents import TopicDocuments

__all__ = [
    "Batch",
    "Corpus",
    "CorpusStream",
    "EncodedCorpus",
    "InputError",
    "InstructionFollowing",
    "LabelledPrompts",
    "RepeatedTokens",
    "SkillSuite",
    "SparseModularAddition",
    "Task",
    "TopicDocuments",
    "TopicModel",
    "fit_topics",
]
