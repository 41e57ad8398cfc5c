"""The same text is the same tokens to every command: those that Hugging Face's own tokenizer gives."""

from __future__ import annotations

import importlib
import json
from itertools import permutations

import pytest

from mechclust import ClustersConfig, CompareConfig, TopicsConfig, measure_clusters, measure_topics
from mechclust.commands.compare.inputs import read_inputs

WORDS = ("ab", "cd", "ef", "gh")
TEXTS = [" ".join(words) for n in (2, 3) for words in permutations(WORDS, n)]  # 36


def gpt2_tokenizer(folder):
    """GPT-2's own: bytes and merges, and a beginning that it has but does not put."""
    from tokenizers import pre_tokenizers

    merges = [f"{w[0]} {w[1]}" for w in WORDS] + [f"Ġ {w}" for w in WORDS]
    pieces = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), *(m.replace(" ", "") for m in merges)]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2TokenizerFast"}))


def word_tokenizer(folder, template, **names):
    """Words, and the special tokens that a template puts round them."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    pieces = {piece: i for i, piece in enumerate(["<pad>", "<unk>", *names.values(), *WORDS])}
    words = Tokenizer(models.WordLevel(pieces, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[(token, pieces[token]) for token in names.values()]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", pad_token="<pad>", model_input_names=["input_ids"], **names
    ).save_pretrained(folder)


def llama_tokenizer(folder):
    word_tokenizer(folder, "<s> $A", bos_token="<s>")


def bert_tokenizer(folder):
    word_tokenizer(folder, "[CLS] $A [SEP]", cls_token="[CLS]", sep_token="[SEP]")


@pytest.fixture(scope="module", params=["gpt2", "llama", "bert"])
def checkpoint(request, write_checkpoint, tmp_path_factory):
    """A model of a family with its kind of tokenizer, and what that should add to a text, by ``bos``."""
    folder = tmp_path_factory.mktemp(request.param)
    write_checkpoint(folder, request.param, vocab_size=300)
    for file in folder.glob("*token*"):
        file.unlink()
    {"gpt2": gpt2_tokenizer, "llama": llama_tokenizer, "bert": bert_tokenizer}[request.param](folder)
    begin, end, own = {"gpt2": ([0], [], False), "llama": ([2], [], True), "bert": ([2], [3], True)}[request.param]
    return folder, {"model": (begin * own, end), "yes": (begin, end), "no": ([], end)}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """The same texts as prompts and as a corpus, a line each."""
    folder = tmp_path_factory.mktemp("texts")
    rows = [{"prompt": text, "task": "ab"[i % 2]} for i, text in enumerate(TEXTS)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "corpus.txt").write_text("\n".join(TEXTS))
    return folder


def rows_of(batches):
    """Token ids by the batch's index, without padding."""
    return {
        index: tokens[:length].tolist()
        for batch in batches
        for index, length, tokens in zip(batch.index.tolist(), batch.lengths().tolist(), batch.tokens, strict=True)
    }


@pytest.mark.parametrize("bos", ["model", "yes", "no"])
def test_every_command_reads_the_same_tokens(checkpoint, texts, bos, tmp_path, monkeypatch):
    from transformers import AutoTokenizer

    folder, added = checkpoint
    tokenizer = AutoTokenizer.from_pretrained(folder)
    before, after = added[bos]
    expected = [[*before, *tokenizer(text, add_special_tokens=False)["input_ids"], *after] for text in TEXTS]
    assert [len(ids) - len(before) - len(after) for ids in expected] == [len(text.split()) for text in TEXTS]
    if bos == "model":
        assert expected == [tokenizer(text)["input_ids"] for text in TEXTS]

    seen = {}
    for command, name in (("clusters", "save_rows"), ("topics", "run")):
        module = importlib.import_module(f"mechclust.commands.{command}.measure")

        def spy(model, batches, *rest, run=getattr(module, name), command=command, **options):
            batches = list(batches)
            seen[command] = rows_of(batches)
            return run(model, batches, *rest, **options)

        monkeypatch.setattr(module, name, spy)
    shared = {"bos": bos, "tokens_per_batch": 300}
    clusters = measure_clusters(
        str(folder), ClustersConfig(texts / "prompts.jsonl", n_init=1, n_permutations=9, untrained=0, **shared)
    )
    topics = measure_topics(
        str(folder),
        TopicsConfig(
            (texts / "corpus.txt",), split="line", n_topics=2, passes=1, min_documents=1, max_share=1.0,
            thresholds=(0.3,), n_permutations=0, untrained=0, stop_words="none", **shared,
        ),
    )  # fmt: skip
    compare = read_inputs(
        str(folder), str(folder), CompareConfig(texts / "prompts.jsonl", min_per_task=4, **shared), tmp_path / "compare"
    )
    seen["compare"] = rows_of(compare.batches)
    for command, rows in seen.items():
        assert [rows[i] for i in range(len(TEXTS))] == expected, command
    assert {len(window) for window in topics.encoded.windows} == {len(ids) for ids in expected}

    recorded = clusters.trained.raw.metadata["tokenization"]
    assert recorded["bos"] == bos
    names = [" ".join(tokenizer.convert_ids_to_tokens(part)) for part in (before, after)]
    assert recorded["adds"] == (
        ", ".join(f"{n} {where}" for n, where in zip(names, ("before", "after"), strict=True) if n) or "none"
    )
    some = next(found for found in topics.trained.embedding if found is not None)
    assert some.metadata["tokenization"] == recorded
    for notes in (clusters.notes, topics.notes):
        (said,) = [note for note in notes if note.startswith("Texts are read with ")]
        assert ("no special tokens are added" in said) == (recorded["adds"] == "none")
        assert (f"(--bos {bos})" in said) == (bos != "model")
