"""What the command concludes from curves of the paper's kind that were made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mechclust.commands.mossa.models import CONTROL, TUNED, Model
from tests.frozen import check_frozen, said_by
from tests.mechclust.commands.mossa.made import made_result


def of_eleven_tasks() -> dict[str, Any]:
    result = made_result(n_layers=7, n_answers=20, svcca=True)
    failed = {Model(CONTROL, "gsm8k"): "its loss is not finite"}
    return said_by(replace(result, failed=failed, n_train=[*result.n_train[:-1], float("nan")]))


def of_few_tasks() -> dict[str, Any]:
    """No clusters, nothing held out, no answers, no ceilings, and models from elsewhere."""
    return said_by(made_result({None: ["a", "b", "c"]}, (), 4, n=12, n_answers=0, ceilings=0, trained=False))


def of_one_cluster() -> dict[str, Any]:
    """Twelve tasks of two sizes of cluster, none of which is learnt, and a tuned model without answers."""
    clusters = {"many": [f"m{i}" for i in range(10)], "few": ["f0", "f1"]}
    result = made_result(clusters, ("m3", "f1"), 5, n=40, learnt=(), ceilings=2, seed=3)
    unscored = {name: of for name, of in result.of_task["m0"].items() if name != "tuned.answers"}
    trained = {model: of for model, of in result.trained.items() if model.kind != TUNED}
    return said_by(replace(result, of_task={**result.of_task, "m0": unscored}, trained=trained, unmeasured=("x",)))


CASES = {"mossa-command": of_eleven_tasks, "mossa-command few": of_few_tasks, "mossa-command unlearnt": of_one_cluster}


@pytest.mark.parametrize("name", CASES)
def test_conclusions_are_the_recorded_ones(name: str) -> None:
    check_frozen(name, CASES[name])
