"""How often the rule of the study of heads in models calls a head for the sum in an untrained network that adds."""

from __future__ import annotations

from dataclasses import replace

from mechclust.studies import get_study
from mechclust.studies.heads_in_models.config import addition_arm, clustered_by_attention, task_of
from mechclust.studies.heads_in_models.heads import heads_from
from mechclust.studies.heads_in_models.measure import measure_heads
from mechclust.studies.heads_in_models.run import build_network, examples_of
from mechclust.studies.study import Job

CASES: dict[str, int] = {f"p = {p}, {label}": p for p in (2, 3, 4) for label in ("sum", "answer")}


def false_positive_rate(draws: int, seed: int, case: str) -> tuple[int, int]:
    """Count the networks in which some head is called, and those tested: none if the rule refuses the label."""
    config, arm = get_study("heads-in-models").preset("paper"), addition_arm(CASES[case])
    label = case.partition(", ")[2]
    if clustered_by_attention(config, arm, label):
        return 0, 0
    called = 0
    for i in range(draws):
        job = Job(arm, 1_000_000 * (seed + 1) + i)
        task = task_of(config, job)
        measured = measure_heads(
            build_network(config, job),
            examples_of(replace(config, n_measured=128), task),
            [label],
            task.accuracy,
            tested=config.n_layers * config.n_heads,
            recipients=config.recipients,
            tolerance=config.tolerance,
            seed=job.seed,
        )
        called += bool(heads_from(measured, (label,)).called(config, label).any())
    return called, draws
