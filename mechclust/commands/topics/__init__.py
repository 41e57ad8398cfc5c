"""``mechclust topics``: do a model's attention and embeddings keep words of a topic together?"""

from mechclust.commands.topics.config import TopicsConfig as TopicsConfig
from mechclust.commands.topics.measure import measure_topics as measure_topics
from mechclust.commands.topics.report import shown_measures as shown_measures
from mechclust.commands.topics.report import write_topics_report as write_topics_report
from mechclust.commands.topics.result import TopicsResult as TopicsResult
