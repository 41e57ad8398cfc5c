"""Plain text as documents, and which token is a whole word of it."""

from __future__ import annotations

import copy
import os

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"

from tasks import Batch, Corpus, InputError
from tasks.text.words import word_spans, words_of


@pytest.fixture(scope="module")
def tokenizers():
    """A tokenizer of each family, over the same few words. Nothing is downloaded."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    whole = ["cat", "dog", "play", "the", "don"]
    wordpiece = Tokenizer(
        models.WordPiece(
            {t: i for i, t in enumerate([*special, *whole, "##s", "##ing", "'", "t", ",", ".", "é", "a"])},
            unk_token="[UNK]",
        )
    )
    wordpiece.normalizer = normalizers.BertNormalizer(strip_accents=False)
    wordpiece.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    wordpiece.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "c"), ("Ġc", "a"), ("Ġca", "t"), ("c", "a"), ("ca", "t"), ("Ġ", "d"), ("Ġd", "o"), ("Ġdo", "g")]
    merges += [("d", "o"), ("do", "g"), ("C", "a"), ("Ca", "t")]
    vocabulary = {t: i for i, t in enumerate(["<s>", *alphabet, *dict.fromkeys(a + b for a, b in merges)])}
    bytelevel = Tokenizer(models.BPE(vocabulary, merges))
    bytelevel.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytelevel.post_processor = processors.ByteLevel(trim_offsets=False)
    bytelevel.decoder = decoders.ByteLevel()
    pieces = ["<unk>", "▁", "▁cat", "▁dog", "▁the", "s", "▁play", "ing", ",", ".", "é"]
    unigram = Tokenizer(models.Unigram([(piece, -float(i)) for i, piece in enumerate(pieces)], unk_id=0))
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()

    def fast(tokenizer, **names):
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)

    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return {
        "wordpiece": fast(wordpiece, **names),
        "bytelevel": fast(bytelevel, bos_token="<s>"),
        "unigram": fast(unigram, unk_token="<unk>"),
    }


class TestWords:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("The cat, the DOG.", ["The", "cat", "the", "DOG"]),
            ("don't rock'n'roll O’Neil", ["don't", "rock'n'roll", "O’Neil"]),
            ("cat's class’s 'cited' dogs'", ["cat", "class", "cited", "dogs"]),
            ("in 1984 3rd w12 1e5", ["in", "w12"]),
            ("well-known foo_bar a/b", ["well", "known", "foo", "bar", "a", "b"]),
            ("½ cup ② viii x²", ["cup", "viii", "x²"]),
            ("cafe\u0301's dog's_x", ["cafe\u0301", "dog", "x"]),
            ("नमस्ते cafe\u0301 Straße", ["नमस्ते", "cafe\u0301", "Straße"]),
            ("--- 12 %", []),
        ],
    )
    def test_what_a_word_is(self, text, words):
        assert [text[a:b] for a, b in word_spans(text)] == words

    def test_marks_elsewhere_in_a_text_change_nothing(self):
        """A text with combining marks is read by another expression, which finds the same words."""
        text = "Don't été-naïve's O’Neil’s foo_bar 3rd w12 “x’y” привет's ß 1a a1'b2 's ''a"
        for mark in ("नमस्ते", "e\u0301", "\U0001f600 a"):
            assert words_of(f"{text} {mark}")[:-1] == words_of(text)

    def test_are_lower_cased_in_order(self):
        assert Corpus(["The cat the DOG"], ["x"]).words(0) == ["the", "cat", "the", "dog"]


class TestCorpus:
    def test_sample(self):
        corpus = Corpus([f"w{i}" for i in range(50)], ["x"] * 50)
        first, second = corpus.sample(10, seed=1), corpus.sample(10, seed=2)
        assert len(set(first.documents)) == 10
        assert list(first.documents) == sorted(first.documents, key=lambda d: int(d[1:]))
        assert first.documents == corpus.sample(10, seed=1).documents != second.documents
        assert corpus.sample(50) is corpus
        with pytest.raises(InputError, match=r"^n is -1; expected at least 1$"):
            corpus.sample(-1)

    def test_bad_corpora(self):
        with pytest.raises(InputError, match="the corpus holds no documents; give at least one text with words"):
            Corpus([], [])
        with pytest.raises(InputError, match="1 sources for 2 documents; expected one per document"):
            Corpus(["a", "b"], ["x"])
        with pytest.raises(InputError, match="document 2 is None; expected a string"):
            Corpus(["a", None], ["x", "x"])
        with pytest.raises(
            InputError, match=r"document 1 has half a character \('\\ud800'\), which no tokenizer reads"
        ):
            Corpus(["\ud800"], ["x"])


def labelled(tokenizer, text, words, **options):
    """``(token, word)`` of every token of one window."""
    (batch,) = Corpus([text], ["x"]).encode(tokenizer, words, **options).batches()
    names = [None if i < 0 else words[i] for i in batch.labels["word"][0].tolist()]
    return list(zip(tokenizer.convert_ids_to_tokens(batch.tokens[0].tolist()), names, strict=True))


class TestLabels:
    WORDS = ["cat", "dog", "play", "don't", "s"]

    def test_wordpiece(self, tokenizers):
        assert labelled(tokenizers["wordpiece"], "The Cat, playing cats; cat's play. don't", self.WORDS) == [
            ("[CLS]", None),
            ("the", None),
            ("cat", "cat"),
            (",", None),
            ("play", None),
            ("##ing", None),
            ("cat", None),
            ("##s", None),
            ("[UNK]", None),
            ("cat", "cat"),  # of cat's, whose possessive is no part of the word
            ("'", None),
            ("[UNK]", None),
            ("play", "play"),
            (".", None),
            ("don", None),
            ("'", None),
            ("t", None),
            ("[SEP]", None),
        ]

    def test_byte_level(self, tokenizers):
        """White space counts into a token's span there, and a character may be several tokens."""
        found = labelled(tokenizers["bytelevel"], "cat  cat dog\ncat dogé é", ["cat", "dog", "é", "dogé"])
        assert [(t, w) for t, w in found if w] == [("cat", "cat"), ("Ġcat", "cat"), ("Ġdog", "dog"), ("cat", "cat")]

    def test_sentence_piece(self, tokenizers):
        found = labelled(tokenizers["unigram"], "cat the dogs dog, play", ["cat", "dog", "play", "s"])
        assert [(t, w) for t, w in found if w] == [("▁cat", "cat"), ("▁dog", "dog"), ("▁play", "play")]

    def test_counts_what_is_lost(self, tokenizers):
        corpus = Corpus(["cat cats zebra", "dog don't dog"], ["x", "x"])
        encoded = corpus.encode(tokenizers["wordpiece"], ["cat", "cats", "zebra", "dog", "don't"])
        assert (encoded.occurrences, encoded.lost) == (6, 3)  # cats, don't: split; zebra: unknown
        assert encoded.token_of_word.tolist() == [4, -1, -1, 5, -1]
        assert corpus.encode(tokenizers["wordpiece"], ["dog"]).lost == 0

    def test_the_token_of_a_word_is_the_most_frequent(self, tokenizers):
        tokenizer = tokenizers["bytelevel"]
        ids = {t: tokenizer.convert_tokens_to_ids(t) for t in ("cat", "Ġcat", "Cat")}
        for text, token in (("Cat cat cat", "Ġcat"), ("Cat\nCat cat", "Cat"), ("cat", "cat")):
            encoded = Corpus([text], ["x"]).encode(tokenizer, ["cat"])
            assert encoded.token_of_word.tolist() == [ids[token]]


class TestBatches:
    def test_longest_first_padded_on_the_right(self, tokenizers):
        corpus = Corpus(["cat", "cat dog cat", "dog cat"], ["x"] * 3)
        first, second = corpus.encode(tokenizers["wordpiece"], ["cat", "dog"]).batches(tokens_per_batch=12)
        assert isinstance(first, Batch)
        assert [b.index.tolist() for b in (first, second)] == [[1, 2], [0]]
        assert first.tokens.tolist() == [[2, 4, 5, 4, 3], [2, 5, 4, 3, 0]]
        assert first.labels["word"].tolist() == [[-1, 0, 1, 0, -1], [-1, 1, 0, -1, -1]]
        assert first.attention_mask.tolist() == [[True] * 5, [True] * 4 + [False]]
        assert first.tokens.dtype == first.labels["word"].dtype == torch.int64

    def test_a_long_document_is_cut_into_windows(self, tokenizers):
        encoded = Corpus(["cat dog cats cat dog", "dog"], ["x", "x"]).encode(
            tokenizers["wordpiece"], ["cat", "dog", "cats"], max_length=5
        )
        assert (encoded.n_documents, encoded.n_cut, len(encoded.windows)) == (2, 1, 3)
        # the cut goes through "cats": neither piece is the word "cat"
        assert [w.tolist() for w in encoded.windows] == [[2, 4, 5, 4, 3], [2, 9, 4, 5, 3], [2, 5, 3]]
        assert [w.tolist() for w in encoded.labels] == [[-1, 0, 1, -1, -1], [-1, -1, 0, 1, -1], [-1, 1, -1]]
        assert (encoded.occurrences, encoded.lost) == (6, 1)
        assert sorted(i for b in encoded.batches(5) for i in b.index.tolist()) == [0, 1, 2]
        of_window = {
            i: d
            for b in encoded.batches(5)
            for i, d in zip(b.index.tolist(), b.labels["document"].tolist(), strict=True)
        }
        assert of_window == {0: 0, 1: 0, 2: 1}

    def test_windows_begin_with_the_text_whatever_side_the_tokenizer_keeps(self, tokenizers):
        corpus = Corpus(["cat dog the play cat"], ["x"])
        tokenizer = copy.deepcopy(tokenizers["wordpiece"])
        tokenizer.truncation_side = "left"
        encoded = corpus.encode(tokenizer, ["cat"], max_length=4)
        expected = corpus.encode(tokenizers["wordpiece"], ["cat"], max_length=4)
        assert [window.tolist() for window in encoded.windows] == [[2, 4, 5, 3], [2, 7, 6, 3], [2, 4, 3]]
        assert [window.tolist() for window in expected.windows] == [window.tolist() for window in encoded.windows]
        assert tokenizer.truncation_side == "left"

    def test_a_character_cut_in_two_is_no_word(self, tokenizers):
        """Both bytes of é carry its span; apart in two windows, each alone would look like the word."""
        encoded = Corpus(["é"], ["x"]).encode(tokenizers["bytelevel"], ["é"], max_length=1)
        assert [w.tolist() for w in encoded.labels] == [[-1], [-1]]
        assert (encoded.occurrences, encoded.lost) == (1, 1)

    @pytest.mark.parametrize(
        ("family", "bos", "special"), [("bytelevel", "yes", 1), ("bytelevel", "no", 0), ("wordpiece", "no", 1)]
    )
    def test_a_beginning_that_is_put_or_taken(self, tokenizers, family, bos, special):
        """Windows are as long as they may be, and words are found where they were."""
        tokenizer = tokenizers[family]
        text, words = "cat dog cat dog cat dog", ["cat", "dog"]
        asked = Corpus([text], ["x"]).encode(tokenizer, words, max_length=special + 3, bos=bos)
        assert [len(window) for window in asked.windows] == 2 * [special + 3]
        assert [[i for i in row.tolist() if i >= 0] for row in asked.labels] == [[0, 1, 0], [1, 0, 1]]
        starts = {int(window[0]) for window in asked.windows}
        begin = {"bytelevel": tokenizer.bos_token_id, "wordpiece": tokenizer.cls_token_id}[family]
        assert (starts == {begin}) if bos == "yes" else begin not in starts

    def test_a_beginning_that_is_there_stays_one(self, tokenizers):
        corpus, tokenizer = Corpus(["cat dog"], ["x"]), tokenizers["wordpiece"]
        asked, usual = (corpus.encode(tokenizer, ["cat"], bos=bos).windows[0].tolist() for bos in ("yes", "model"))
        assert asked == usual == [2, 4, 5, 3]

    def test_no_beginning_to_put_or_take(self, tokenizers):
        with pytest.raises(InputError) as error:
            Corpus(["cat"], ["x"]).encode(tokenizers["unigram"], ["cat"], bos="yes")
        assert str(error.value) == (
            "this model's tokenizer has no beginning-of-sequence token, so --bos yes has none to add; leave out --bos"
        )
        with pytest.raises(InputError, match="so --bos no has none to remove"):
            Corpus(["cat"], ["x"]).encode(tokenizers["unigram"], ["cat"], bos="no")
        with pytest.raises(InputError, match="bos is 'maybe'; expected 'model', 'yes' or 'no'"):
            Corpus(["cat"], ["x"]).encode(tokenizers["wordpiece"], ["cat"], bos="maybe")

    def test_tokens_the_model_has_no_embedding_for(self, tokenizers):
        corpus = Corpus(["the", "cat dog"], ["x", "y"])
        with pytest.raises(InputError) as error:
            corpus.encode(tokenizers["wordpiece"], ["cat"], d_vocab=5)
        assert str(error.value) == (
            "document 1 has token id 7, but the model has 5 token embeddings; save the model's own tokenizer"
        )
        assert corpus.encode(tokenizers["wordpiece"], ["cat"], d_vocab=8).pad_id == 0

    def test_a_pad_beyond_the_embedding_is_replaced(self, tokenizers):
        from copy import deepcopy

        tokenizer = deepcopy(tokenizers["wordpiece"])
        tokenizer.add_special_tokens({"pad_token": "[ADDED]"})
        corpus = Corpus(["cat", "cat dog"], ["x", "y"])
        assert corpus.encode(tokenizer, ["cat"]).pad_id == tokenizer.pad_token_id > 8
        assert corpus.encode(tokenizer, ["cat"], d_vocab=8).pad_id == 0

    def test_progress_bar(self, tokenizers, capsys):
        Corpus(["cat"], ["x"]).encode(tokenizers["wordpiece"], ["cat"], progress=True)
        assert "tokenizing" in capsys.readouterr().err

    def test_a_slow_tokenizer_is_refused(self):
        class OldTokenizer:
            is_fast = False

        with pytest.raises(InputError) as error:
            Corpus(["a"], ["x"]).encode(OldTokenizer(), ["a"])
        assert str(error.value) == (
            "this model's tokenizer (OldTokenizer) is a slow one, which cannot say where in the text a token is; "
            "save a fast one (tokenizer.json) with the model"
        )

    def test_no_room_for_words(self, tokenizers):
        with pytest.raises(InputError) as error:
            Corpus(["a"], ["x"]).encode(tokenizers["wordpiece"], ["a"], max_length=2)
        assert str(error.value) == "max_length is 2, of which 2 are special tokens; expected at least 3"
        with pytest.raises(InputError, match="tokens_per_batch is 0; expected at least 1"):
            next(Corpus(["a"], ["x"]).encode(tokenizers["wordpiece"], ["a"]).batches(tokens_per_batch=0))
