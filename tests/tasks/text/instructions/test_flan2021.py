from __future__ import annotations

import pytest

from tasks.text.instructions import FLAN2021, flan2021_cluster, flan2021_name


def test_sixty_tasks_in_eleven_clusters_and_nine_more() -> None:
    assert {cluster: len(tasks) for cluster, tasks in FLAN2021.items()} == {
        "summarization": 11,
        "struct_to_text": 4,
        "reading_comprehension": 6,
        "closed_book_qa": 4,
        "paraphrase": 4,
        "sentiment": 4,
        "commonsense": 4,
        "translation": 8,
        "coreference": 3,
        "nli": 10,
        "read_comp_with_commonsense": 2,
        "misc": 9,
    }
    names = [name for tasks in FLAN2021.values() for name in tasks]
    assert len(set(names)) == len(names) == 69


def test_every_task_is_known_by_its_own_name_and_as_exports_call_it() -> None:
    for cluster, tasks in FLAN2021.items():
        for task in tasks:
            for name in (task, f"{task}_10templates", f"{task}_type_3", f"{task}:1.0.0", task.upper()):
                assert (flan2021_name(name), flan2021_cluster(name)) == (task, cluster)


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("wmt16_translate_csen_10templates", "wmt16_csen"),
        ("wmt16_translate/de-en:1.0.0", "wmt16_deen"),
        ("wmt14_translate/fr-en:1.0.0", "wmt14_enfr"),
        ("super_glue/copa:1.0.2", "copa"),
        ("super_glue/wsc.fixed:1.0.2", "wsc"),
        ("glue/mrpc:2.0.0", "glue_mrpc"),
        ("glue/sst2:2.0.0", "sst2"),
        ("gem/e2e_nlg:1.1.0", "e2e_nlg"),
        ("anli/r2:0.1.0", "anli_r2"),
        ("ai2_arc/ARC-Challenge:1.0.0", "arc_challenge"),
        ("squad/v2.0:3.0.0", "squad_v2"),
        ("trivia_qa/rc:1.1.0", "trivia_qa"),
        ("natural_questions_open:1.0.0", "natural_questions"),
        ("gsm8k", None),
        ("copa_hard", None),
        ("misc", None),
        ("", None),
    ],
)
def test_other_names_of_tasks(name: str, task: str | None) -> None:
    assert flan2021_name(name) == task


def test_a_task_of_several_is_of_their_cluster_and_none_of_them() -> None:
    assert flan2021_name("glue/mnli:2.0.0") is None
    assert flan2021_cluster("glue/mnli:2.0.0") == "nli"
