"""``mechclust topics``: do the attention and the embeddings of models keep words of a topic together?

1. ``config`` holds the settings, and ``models`` the models, from names or a suite file.
2. ``texts`` fits the topics and draws the documents, or reads topics from a ``topic_file``. ``variants`` says which
   words have which topics, by threshold, with overlap or without.
3. ``measure`` submits a ``job`` for each model and each copy with random weights, once ``readers`` can read the texts.
   ``vectors`` measures word vectors.
4. ``measurements`` holds the numbers. ``curves`` arranges them by threshold, with intervals from ``spread``.
5. ``findings`` judges P7 and findings on any model, beside the ``published`` tables.
6. ``tables``, ``readings`` and ``caveats`` state the results, ``figures`` and ``head_maps`` draw them, and ``result``
   writes the page.
"""

from mechclust.commands.topics.config import TopicsConfig
from mechclust.commands.topics.findings import judge_folder
from mechclust.commands.topics.measure import measure_topics
from mechclust.commands.topics.models import TopicsModel, read_suite
from mechclust.commands.topics.result import TopicsResult

__all__ = [
    "TopicsConfig",
    "TopicsModel",
    "TopicsResult",
    "judge_folder",
    "measure_topics",
    "read_suite",
]
