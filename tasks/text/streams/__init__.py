"""Corpora larger than the memory, read document by document."""

from tasks.text.streams.corpus_stream import CorpusStream
from tasks.text.streams.reading import Reading

__all__ = ["CorpusStream", "Reading"]
