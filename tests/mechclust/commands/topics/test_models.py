"""Suite files: what is read, and what is refused before any model is."""

from __future__ import annotations

import pytest

from mechclust.commands.topics import TopicsModel, read_suite
from mechclust.commands.topics.models import topics_models
from tests.mechclust.commands.refusals import refusal

EXPECTED = 'expected a TOML file with a table [[model]] for each, such as model = "bert-base-uncased"'


def test_models_come_in_the_files_order(tmp_path):
    path = tmp_path / "suite.toml"
    path.write_text(
        '[[model]]\nmodel = "bert-base-uncased"\nname = "B"\npublished = "BERT"\ntwins = 2\n'
        '[[model]]\nmodel = "./my"\n[[model]]\nmodel = "x"\ntwins = 0\n'
    )
    assert read_suite(path) == [
        TopicsModel("bert-base-uncased", "B", 2, "BERT"),
        TopicsModel("./my", "./my", None, ""),
        TopicsModel("x", "x", 0),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[model]", " is not TOML ("),
        ("", f" names no models; {EXPECTED}"),
        ("model = 3", f" names no models; {EXPECTED}"),
        ("model = []", f" names no models; {EXPECTED}"),
        ("seed = 3", f" has 'seed' outside of its models; {EXPECTED}"),
        ("[[model]]\nname = 'a'", ', model 1 has no model; give a hub name or a directory, such as model = "bert'),
        ("[[model]]\nmodel = 'a'\ntwin = 1", ", model 1 has a key 'twin' (it has model, name, twins, published); did "),
        ("[[model]]\nmodel = 'a'\ntwins = true", ", model 1: twins is True; expected an integer"),
        ("[[model]]\nmodel = 'a'\ntwins = -1", ", model 1: twins is -1; expected at least 0"),
        ("[[model]]\nmodel = 7", ", model 1: model is 7; expected a string"),
        (
            "[[model]]\nmodel = 'a'\npublished = 'GPT'",
            ", model 1: published is 'GPT'; expected one of BERT, ALBERT, BART, ELECTRA, RoBERTa, or leave it out",
        ),
        (
            "[[model]]\nmodel = 'a'\n[[model]]\nmodel = 'b'\n[[model]]\nmodel = 'a'\nname = 'c'",
            ", model 3: the model 'a' is that of model 1 too; name each model once",
        ),
        (
            "[[model]]\nmodel = '.'\n[[model]]\nmodel = './'",
            ", model 2: the model './' is that of model 1 too; name each model once",
        ),
        (
            "[[model]]\nmodel = 'a'\n[[model]]\nmodel = 'b'\nname = 'a'",
            ", model 2: the name 'a' is that of model 1 too; name each model once",
        ),
        (
            "[[model]]\nmodel = 'a'\npublished = 'BERT'\n[[model]]\nmodel = 'b'\npublished = 'BERT'",
            ", model 2: the published 'BERT' is that of model 1 too; name each model once",
        ),
    ],
)
def test_what_is_refused(tmp_path, text, message):
    path = tmp_path / "suite.toml"
    path.write_text(text)
    assert refusal(read_suite, path).startswith(f"{str(path)!r}{message}")


def test_a_file_that_is_missing(tmp_path):
    assert refusal(read_suite, tmp_path / "none.toml").startswith(
        f"no suite file '{tmp_path}/none.toml'; give the path of a TOML file"
    )


@pytest.mark.parametrize(
    ("given", "adapter", "message"),
    [
        (["a", "b", "a"], None, "the model 'a' is given twice; name each model once"),
        ([".", "./"], None, "the model './' is given twice; name each model once"),
        (
            ["a", "b.toml"],
            None,
            "'b.toml' is a suite file and no model; give it alone: --suite b.toml, in Python read_suite('b.toml')",
        ),
        (
            [],
            None,
            "no models are given; give hub names or directories, or a suite file (--suite FILE.toml, in Python "
            "read_suite(FILE))",
        ),
        (
            [TopicsModel("a", "x"), TopicsModel("b", "x")],
            None,
            "two models are called 'x'; give one another name: TopicsModel(model, name=...)",
        ),
        (["a", TopicsModel("b", twins=-1)], None, "model 2: twins is -1; expected at least 0"),
        (
            TopicsModel("a", published="GPT"),
            None,
            "model 1: published is 'GPT'; expected one of BERT, ALBERT, BART, ELECTRA, RoBERTa, or leave it out",
        ),
        (
            [TopicsModel("a", published="BERT"), TopicsModel("b", published="BERT")],
            None,
            "model 2: the published 'BERT' is that of model 1 too; name each model once",
        ),
        (["a", "b"], "x", "--adapter is for one model, and several are given; name the adapter's folder as a model"),
    ],
)
def test_models_that_are_refused(given, adapter, message):
    assert refusal(topics_models, given, adapter) == message


def test_one_model_or_several(tmp_path):
    assert topics_models("a") == topics_models(["a"]) == [TopicsModel("a", "a")]
    asked = topics_models(["a", TopicsModel("b", twins=0)], None, 2)
    assert [model.twins for model in asked] == [2, 0]  # a model's own number goes first
    assert topics_models([tmp_path, TopicsModel("a", "b", 3)]) == [
        TopicsModel(str(tmp_path), str(tmp_path)),
        TopicsModel("a", "b", 3),
    ]
