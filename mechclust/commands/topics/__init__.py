"""``mechclust topics``: do a model's attention and embeddings keep words of a topic together?"""

from mechclust.commands.topics.config import TopicsConfig as TopicsConfig
from mechclust.commands.topics.measure import measure_topics as measure_topics
from mechclust.commands.topics.result import TopicsResult as TopicsResult
