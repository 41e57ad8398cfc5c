"""Tasks by name, as saved runs find them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from tasks import (
    InputError,
    InstructionFollowing,
    RepeatedTokens,
    SkillSuite,
    SparseModularAddition,
    Task,
    TopicDocuments,
)


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        (
            InstructionFollowing(),
            "n_tasks=50, outputs='private', n_outputs=2, overlap=0.0, n_inputs=10, n_mappings=5, n_symbols=20, "
            "n_distributions=1, variants=152, variants_spread=0.3, regex_elements=(3, 4), split_by='instance', "
            "validation_share=0.1, loss_on='all', n_eval_tasks=20, n_eval=1000, seed=0",
        ),
        (RepeatedTokens(), "n_symbols=64, length=48, periods=(8, 20), bos=None, n_test=256, seed=0"),
        (
            SkillSuite(),
            "stream='tuning', skills=(), seen=('copy-0', 'copy-3', 'swap-0', 'swap-1', 'translate-1', 'translate-2', "
            "'type-2', 'type-3', 'classify-0', 'classify-3', 'sentiment-0', 'sentiment-1'), "
            "encoded=('copy', 'swap'), encoded_share=0.5, pair_share=0.2, label_share=0.15, n_symbols=12, "
            "length=8, walk_share=0.5, n_arguments=4, synonyms=3, argument_synonyms=2, n_fillers=6, "
            "n_eval=1000, seed=0, stream_seed=0",
        ),
        (
            SparseModularAddition(),
            "p=2, length=12, support=None, n_support=5, n_embeddings=3, n_train=2048, n_test=2048, seed=0",
        ),
        (
            TopicDocuments(),
            "n_topics=10, words_per_topic=10, sampler='dirichlet', concentration=0.1, topics_per_document=2, "
            "topic_std=3.0, topic_correlation=0.0, overlap=0, zipf=0.0, lengths=(100, 150), n_documents=10000, "
            "selected_share=0.15, correct_share=0.1, random_share=0.1, exact_shares=False, masking='static', "
            "boundaries=True, objective='cross-entropy', seed=0",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_settings_that_nobody_gives_are_these(task: Task, settings: str) -> None:
    """A saved run has those of its time, a script those of today."""
    assert repr(task) == f"{type(task).__name__}({settings})"


@pytest.mark.parametrize(
    "task", [InstructionFollowing(), RepeatedTokens(), SkillSuite(), SparseModularAddition(), TopicDocuments()]
)
def test_a_batch_without_examples_is_refused(task: Task) -> None:
    with pytest.raises(InputError, match="batch_size is 0"):
        task.train_batch(0, 0)
    with pytest.raises(InputError, match="step is -1; expected at least 0"):
        task.train_batch(-1, 1)


def test_a_task_that_inherits_a_name_does_not_replace_the_other() -> None:
    message = "has the name 'repeated-tokens' of RepeatedTokens, so saved runs of either would be opened as the other"
    with pytest.raises(InputError, match=re.escape(message)):

        @dataclass(frozen=True)
        class Variant(RepeatedTokens):
            """A task of one's own."""

    task = RepeatedTokens()
    assert type(Task.from_config(task.to_config())) is RepeatedTokens
