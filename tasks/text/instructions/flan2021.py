"""The tasks of FLAN 2021 in their clusters, and the names that exports of them go by."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

FLAN2021: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "summarization": (
            "aeslc",
            "cnn_dailymail",
            "gigaword",
            "multi_news",
            "newsroom",
            "samsum",
            "xsum",
            "ag_news_subset",
            "opinion_abstracts_rotten_tomatoes",
            "opinion_abstracts_idebate",
            "wiki_lingua_english_en",
        ),
        "struct_to_text": ("web_nlg_en", "common_gen", "e2e_nlg", "dart"),
        "reading_comprehension": ("squad_v1", "squad_v2", "drop", "multirc", "openbookqa", "bool_q"),
        "closed_book_qa": ("trivia_qa", "natural_questions", "arc_challenge", "arc_easy"),
        "paraphrase": ("glue_mrpc", "glue_qqp", "paws_wiki", "stsb"),
        "sentiment": ("imdb_reviews", "sentiment140", "yelp_polarity_reviews", "sst2"),
        "commonsense": ("copa", "hellaswag", "story_cloze", "piqa"),
        "translation": (
            "para_crawl_enes",
            "wmt14_enfr",
            "wmt16_deen",
            "wmt16_tren",
            "wmt16_csen",
            "wmt16_fien",
            "wmt16_roen",
            "wmt16_ruen",
        ),
        "coreference": ("definite_pronoun_resolution", "winogrande", "wsc"),
        "nli": (
            "anli_r1",
            "anli_r2",
            "anli_r3",
            "cb",
            "rte",
            "mnli_matched",
            "mnli_mismatched",
            "qnli",
            "wnli",
            "snli",
        ),
        "read_comp_with_commonsense": ("record", "cosmos_qa"),
        "misc": (
            "fix_punct",
            "true_case",
            "word_segment",
            "math_dataset",
            "quac",
            "coqa",
            "wic",
            "cola",
            "trec",
        ),
    }
)
"""Cluster to the names of its tasks: 60 tasks in 11 clusters, and 9 more of ``"misc"``, which the figures leave out.

Each round of ANLI, each part of ARC, both sides of MNLI and each pair of languages counts as a task. Source: Wei et
al., arXiv 2109.01652, by the names of its code; in the clusters of Zhao, Ziser and Cohen (MOSSA).
"""

MISC = "misc"
"""The tasks that belong to no cluster of alike tasks."""

# Some exports do not say which round, part or side.
_CLUSTERS = {"anli": "nli", "mnli": "nli", "ai2_arc": "closed_book_qa", "arc": "closed_book_qa"}
for _cluster, _tasks in FLAN2021.items():
    _CLUSTERS.update(dict.fromkeys(_tasks, _cluster))
_COLLECTION = re.compile(r"^(super_glue_|glue_|gem_|ai2_arc_|huggingface:)")  # a file's name has no slash
_ENDING = re.compile(r"(:\d+(\.\d+)*|_\d+templates|_type_\d+)$")
_ALIASES = {
    "wmt14_fren": "wmt14_enfr",
    "squad_v1.1": "squad_v1",
    "squad_v2.0": "squad_v2",
    "natural_questions_open": "natural_questions",
    "trivia_qa_rc": "trivia_qa",
    "wsc.fixed": "wsc",
    "wsc273": "wsc",
    "imdb_reviews_plain_text": "imdb_reviews",
    "paws_wiki_labeled": "paws_wiki",
    "para_crawl_enes_plain_text": "para_crawl_enes",
    "story_cloze_2016": "story_cloze",
    "math_dataset_algebra__linear_1d": "math_dataset",
}


def flan2021_cluster(task: str) -> str | None:
    """Return the cluster in ``FLAN2021`` of a task under any of its names, or ``None``.

    Exports call one task ``rte``, ``rte_10templates``, ``super_glue/rte:1.0.2`` or ``super_glue_rte:1.0.2``.

    Example:
        >>> flan2021_cluster("super_glue/copa:1.0.2"), flan2021_cluster("glue/mnli:2.0.0")
        ('commonsense', 'nli')
    """
    return next((_CLUSTERS[name] for name in _forms(task) if name in _CLUSTERS), None)


def _forms(task: str) -> list[str]:
    """Return names that a task may have in ``FLAN2021``."""
    name = _ENDING.sub("", task.strip()).lower()
    if name.startswith(("wmt14_translate", "wmt16_translate")):
        name = name.replace("_translate", "").replace("-", "")
    whole = name.replace("/", "_")
    forms = [form.replace("-", "_") for form in (whole, name.rsplit("/", 1)[-1], _COLLECTION.sub("", whole))]
    return [_ALIASES.get(form, form) for form in forms]
