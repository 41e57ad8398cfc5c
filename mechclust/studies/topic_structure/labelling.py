"""Which topic each token has: rightly, as the published table seems to have it, and at random."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from tasks import TopicDocuments
from tasks.topic_documents import N_SPECIAL

RIGHT = "right labels"
SHIFTED = "shifted labels"
RANDOM = "random labels"


def topics_by_labelling(task: TopicDocuments) -> dict[str, Int[Tensor, "d_vocab"]]:
    """Return the topic of each token, -1 for none, by how it is assigned. Special tokens never have one.

    Shifted by the special tokens: the topic that a token would have if words began at token 0. The first topic then
    lacks as many words as there are special tokens, and so many of the last words have no topic. Random: the right
    topics in a random order of the words.
    """
    right = task.token_topics
    token = torch.arange(task.d_vocab)
    shifted = token // task.words_per_topic
    shifted[(token < N_SPECIAL) | (shifted >= task.n_topics)] = -1
    order = torch.randperm(task.n_words, generator=torch.Generator().manual_seed(0))
    random = torch.cat([right[:N_SPECIAL], right[N_SPECIAL:][order]])
    return {RIGHT: right, SHIFTED: shifted, RANDOM: random}
