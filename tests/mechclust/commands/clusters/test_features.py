"""What can be told from a prompt's text and tokens."""

from __future__ import annotations

from mechclust.commands.clusters.features import RARE, labels_determine, pool_rare_values, surface_features


def ids_of(texts):
    words = sorted({word for text in texts for word in text.split()})
    return [[words.index(word) for word in text.split()] for text in texts], words.__getitem__


def test_ends_of_text_and_tokens():
    texts = ["Sort b a Answer:", "Count b a Reply:"] * 5
    ids, decode = ids_of(texts)
    found = surface_features(texts, ids, decode)
    assert list(found) == ["last word", "last token", "first word", "first token"]
    assert found["last word"] == found["last token"] == ["Answer:", "Reply:"] * 5
    assert found["first word"] == ["Sort", "Count"] * 5


def test_special_tokens_are_no_first_and_last_token():
    """As [CLS] and [SEP] of BERT: they are the same in every prompt."""
    texts = ["a b", "c d"] * 5
    ids = [[90, *([1, 2] if text == "a b" else [3, 4]), 91] for text in texts]
    found = surface_features(texts, ids, str, special={90, 91})
    assert set(found["first token"]) == {"1", "3"}
    assert set(found["last token"]) == {"2", "4"}
    assert surface_features(texts, [[90]] * 10, str, special={90}).keys() == {"last word", "first word"}


def test_lengths_are_of_tokens_in_up_to_five_bins():
    texts = ["a"] * 100
    found = surface_features(texts, [[0] * (1 + i) for i in range(100)], str)
    assert list(found) == ["length"]
    assert sorted(set(found["length"]), key=lambda x: int(x.split("-")[0])) == [
        "1-20 tokens",
        "21-40 tokens",
        "41-60 tokens",
        "61-80 tokens",
        "81-100 tokens",
    ]
    two = surface_features(texts, [[0] * (3 + i % 2) for i in range(100)], str)
    assert set(two["length"]) == {"3 tokens", "4 tokens"}


def test_rare_values_are_pooled_and_what_is_the_same_for_all_is_left_out():
    texts = [f"Sort w{i} a" for i in range(5)] + [f"Sort w{i} b" for i in range(5)] + ["Sort w c", "Sort w d"]
    found = surface_features(texts, [[1, 2, 3]] * 12, str)
    assert list(found) == ["last word"]
    assert found["last word"] == ["a"] * 5 + ["b"] * 5 + [RARE] * 2
    assert surface_features([f"w{i}" for i in range(12)], [[i] for i in range(12)], str) == {}
    assert pool_rare_values(["a", "a", "b"], least=2) == ["a", "a", RARE]


def test_tokens_of_one_text_and_of_none_are_told_apart():
    names = {1: " ", 2: "x", 3: "x"}
    found = surface_features(["a"] * 15, [[1], [2], [3]] * 5, names.__getitem__)
    assert set(found["last token"]) == {"' ' (id 1)", "'x' (id 2)", "'x' (id 3)"}


def test_what_tells_a_label():
    assert labels_determine(["a", "a", "b"], ["x", "y", "z"])
    assert not labels_determine(["a", "b", "b"], ["x", "x", "y"])
    assert not labels_determine(["a", "b", "a", "b"], ["x", "x", "y", "y"])
    assert labels_determine(["a", "b", "a", "b"], ["x", "x", "y", "y"], ["u", "v", "u", "v"])
