"""A small topic task, shared by the tests of the topic probes."""

from tasks import TopicDocuments

TASK = TopicDocuments(n_topics=4, words_per_topic=3, lengths=(5, 9), n_documents=12)
TOPICS = TASK.token_topics
