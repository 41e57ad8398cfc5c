"""``mechclust topics``: do a model's attention and embeddings keep words of a topic together?

1. ``config`` holds the settings.
2. ``measure`` runs the command: it reads the texts and fits topics, or reads them from a ``topic_file``.
3. ``variants`` says which words have which topics, by threshold, with overlap or without.
4. ``sources`` runs the probes of attention and embeddings on a model, here or in other processes.
5. ``measurements`` holds the numbers, ``tables`` arranges them, and ``readings`` and ``caveats`` interpret them.
6. ``figures`` and ``head_maps`` draw them, and ``result`` writes the page. ``suite`` does this for many encoders.
"""

from mechclust.commands.topics.config import TopicsConfig as TopicsConfig
from mechclust.commands.topics.measure import measure_topics as measure_topics
from mechclust.commands.topics.result import TopicsResult as TopicsResult
