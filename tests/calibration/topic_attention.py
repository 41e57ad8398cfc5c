"""How often the probes of topics in attention call something where attention ignores topics."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor

from probes import DistanceMatchedTopicAttention, ProbeResult, TopicAttention
from tasks import Batch

ALPHA = 0.05
N_TOPICS = 6
WORDS_PER_TOPIC = 8
SITE = "blocks.0.attn.hook_pattern"


@dataclass(frozen=True)
class Case:
    """Documents, attention that ignores their topics, and the probe that looks for topics in it.

    Attributes:
        documents: kinds of documents: how many, words in each, and topics in each.
        attention: ``"random"``: scores drawn anew for every pair of positions; ``"words"``: a word attracts the same
            attention wherever it stands, plus a little noise; ``"pairs"``: the score depends on the two words alone,
            as in a network with random weights and no positions.
        matched: call by the interval of ``DistanceMatchedTopicAttention``, which is no test, instead of the p-value of
            ``TopicAttention``.
    """

    documents: tuple[tuple[int, int, int], ...]
    attention: str = "random"
    matched: bool = False


_EQUAL = ((30, 20, 3),)
_NUMBERS = ((15, 20, 1), (15, 20, 4))
_LENGTHS = ((15, 10, 3), (15, 40, 3))
_SHORT_HAVE_TWO = ((15, 10, 2), (15, 40, 3))
_SHORT_HAVE_ONE = ((15, 10, 1), (15, 40, 4))
_LONG_HAVE_ONE = ((15, 40, 1), (15, 10, 4))
CASES = {
    "equal documents": Case(_EQUAL),
    "1 and 4 topics": Case(_NUMBERS),
    "10 and 40 words": Case(_LENGTHS),
    "2 topics in 10 words, 3 in 40": Case(_SHORT_HAVE_TWO),
    "1 topic in 10 words, 4 in 40": Case(_SHORT_HAVE_ONE),
    "4 topics in 10 words, 1 in 40": Case(_LONG_HAVE_ONE),
    "equal documents, attention by words": Case(_EQUAL, "words"),
    "1 topic in 10 words, 4 in 40, attention by words": Case(_SHORT_HAVE_ONE, "words"),
    "equal documents, attention by pairs of words": Case(_EQUAL, "pairs"),
    "1 topic in 10 words, 4 in 40, attention by pairs of words": Case(_SHORT_HAVE_ONE, "pairs"),
    "matched: equal documents": Case(_EQUAL, matched=True),
    "matched: 1 topic in 10 words, 4 in 40": Case(_SHORT_HAVE_ONE, matched=True),
    "matched: equal documents, attention by words": Case(_EQUAL, "words", matched=True),
    "matched: equal documents, attention by pairs of words": Case(_EQUAL, "pairs", matched=True),
}


def false_positive_rate(draws: int, seed: int, case: str) -> tuple[int, int]:
    """Return in how many of ``draws`` the probe of a case in ``CASES`` calls attention topical, and ``draws``."""
    calls = 0
    for draw in range(draws):
        result = measure(CASES[case], seed=seed * 1_000_003 + draw)
        if CASES[case].matched:
            calls += not float(result["overall_ratio_low"]) <= 1 <= float(result["overall_ratio_high"])
        else:
            calls += float(result["overall_p_value"]) <= ALPHA
    return calls, draws


def measure(case: Case, seed: int) -> ProbeResult:
    """Draw documents and attention, and measure them."""
    generator = torch.Generator().manual_seed(seed)
    words = draw_documents(case.documents, generator)
    pattern = draw_attention(words, case.attention, generator)
    topics = torch.arange(N_TOPICS * WORDS_PER_TOPIC) // WORDS_PER_TOPIC
    probe: TopicAttention | DistanceMatchedTopicAttention = TopicAttention(topics, at=SITE, seed=seed)
    if case.matched:
        probe = DistanceMatchedTopicAttention(topics, at=SITE, max_distance=words.shape[1], n_resamples=99, seed=seed)
    probe.bind(SimpleNamespace(hook_dict={SITE: None}))
    batch = Batch(words.clamp(min=0), words >= 0)
    probe.observe({SITE: probe.readout(pattern, batch)}, batch)
    return probe.compute()


def draw_documents(kinds: tuple[tuple[int, int, int], ...], generator: torch.Generator) -> Tensor:
    """Return ``[document pos]`` words, -1 after a document's end; each document has some of the topics at random."""
    longest = max(length for _, length, _ in kinds)
    parts = []
    for number, length, n_topics in kinds:
        topics = torch.rand(number, N_TOPICS, generator=generator).argsort(dim=1)[:, :n_topics]
        topic = topics.gather(1, torch.randint(n_topics, (number, length), generator=generator))
        word = topic * WORDS_PER_TOPIC + torch.randint(WORDS_PER_TOPIC, (number, length), generator=generator)
        parts.append(torch.nn.functional.pad(word, (0, longest - length), value=-1))
    return torch.cat(parts)


def draw_attention(words: Tensor, kind: str, generator: torch.Generator) -> Tensor:
    """Return ``[document 1 query key]`` attention among the words of each document, by the kinds of ``Case``."""
    n_words = N_TOPICS * WORDS_PER_TOPIC
    known = words.clamp(min=0)
    noise = torch.randn(*words.shape, words.shape[1], generator=generator)
    if kind == "words":
        scores = torch.randn(n_words, generator=generator)[known][:, None, :] + 0.3 * noise
    elif kind == "pairs":
        scores = 1.5 * torch.randn(n_words, n_words, generator=generator)[known[:, :, None], known[:, None, :]]
    else:
        scores = noise
    return scores.masked_fill((words < 0)[:, None, :], -torch.inf).softmax(dim=-1)[:, None]
