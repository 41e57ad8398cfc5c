from __future__ import annotations

import pytest

from tasks.text.instructions import FLAN2021, flan2021_cluster


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
                assert flan2021_cluster(name) == cluster, name


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
        ("story_cloze/2016:1.0.0", "story_cloze"),
        ("math_dataset/algebra__linear_1d:1.0.0", "math_dataset"),
        ("gsm8k", None),
        ("copa_hard", None),
        ("misc", None),
        ("", None),
    ],
)
def test_other_names_of_tasks(name: str, task: str | None) -> None:
    assert flan2021_cluster(name) == (None if task is None else flan2021_cluster(task))


UNDERSCORED = {
    "glue_stsb": "stsb",
    "glue_sst2": "sst2",
    "glue_wnli": "wnli",
    "glue_qnli": "qnli",
    "glue_cola": "cola",
    "glue_mrpc": "glue_mrpc",
    "glue_qqp": "glue_qqp",
    "glue_mnli_matched": "mnli_matched",
    "glue_mnli_mismatched": "mnli_mismatched",
    "super_glue_cb": "cb",
    "super_glue_copa": "copa",
    "super_glue_multirc": "multirc",
    "super_glue_record": "record",
    "super_glue_rte": "rte",
    "super_glue_wic": "wic",
    "super_glue_wsc.fixed": "wsc",
    "gem_e2e_nlg": "e2e_nlg",
    "gem_web_nlg_en": "web_nlg_en",
    "gem_dart": "dart",
    "gem_common_gen": "common_gen",
    "gem_wiki_lingua_english_en": "wiki_lingua_english_en",
    "ai2_arc_ARC-Challenge": "arc_challenge",
    "ai2_arc_ARC-Easy": "arc_easy",
    "story_cloze_2016": "story_cloze",
    "huggingface:xsum": "xsum",
    "math_dataset_algebra__linear_1d": "math_dataset",
}


@pytest.mark.parametrize("ending", ["", ":1.0.0", ":2.0.0", "_10templates"])
def test_names_with_underscores_where_a_file_has_no_slash(ending: str) -> None:
    for name, task in UNDERSCORED.items():
        assert flan2021_cluster(name + ending) == flan2021_cluster(task) is not None, name


def test_a_name_that_does_not_say_which_round_or_side_is_of_their_cluster() -> None:
    assert flan2021_cluster("glue/mnli:2.0.0") == "nli"
    assert flan2021_cluster("glue_mnli:2.0.0") == flan2021_cluster("glue_mnli") == "nli"
