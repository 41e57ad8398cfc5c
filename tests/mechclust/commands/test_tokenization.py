"""The same text is the same tokens through every entry point: those that Hugging Face's own tokenizer gives."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from functools import partial
from itertools import permutations
from unittest.mock import Mock

import pytest
import torch
from transformers import AutoTokenizer

from mechclust import (
    ClustersConfig,
    CompareConfig,
    TopicsConfig,
    load_pretrained,
    measure_clusters,
    measure_topics,
    run_sharded,
    save_rows_sharded,
)
from mechclust.attention import attention_view
from mechclust.commands.compare.inputs import read_inputs
from mechclust.models import load_tokenizer
from mechclust.models.chat_templates import templated_tokenizer
from mechclust.models.instruction_format import InstructionFormat
from mechclust.models.plain_model import plain_model
from mechclust.models.tokenizers import tokenization_in_words, tokenization_of, tokenizer_unknown_token_notes
from mechclust.training import ProbeHook
from probes import NDims, collect_rows, run, run_stores, save_rows
from tasks import Batch, Corpus, InputError, LabelledPrompts

WORDS = ("ab", "cd", "ef", "gh")
SIDES = ("before", "after")
LAYER = {"gpt2": {"n_layer": 1}}  # of other families under another name
TEXTS = [" ".join(words) for n in (2, 3) for words in permutations(WORDS, n)][:20]  # 12 of two words, 8 of three


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
    write_checkpoint(folder, request.param, vocab_size=300, **LAYER.get(request.param, {"num_hidden_layers": 1}))
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


@pytest.mark.parametrize(
    ("checkpoint", "bos"),
    [("gpt2", "yes"), ("llama", "no"), ("bert", "model")],
    indirect=["checkpoint"],
)
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
    for command, place, name in (("clusters", "saved_rows", "save_rows"), ("topics", "topics.job", "run")):
        module = importlib.import_module(f"mechclust.commands.{place}")

        def spy(model, batches, *rest, run=getattr(module, name), command=command, **options):
            batches = list(batches)
            seen[command] = rows_of(batches)
            return run(model, batches, *rest, **options)

        monkeypatch.setattr(module, name, spy)
    shared = {"bos": bos, "tokens_per_batch": 300}
    few = {"n_init": 1, "n_permutations": 9, "n_resamples": 20, "n_shuffles": 9, "untrained": 0, "map_prompts": 0}
    clusters = measure_clusters(str(folder), ClustersConfig(texts / "prompts.jsonl", **few, **shared))
    topics = measure_topics(
        str(folder),
        TopicsConfig(
            (texts / "corpus.txt",), split="line", n_topics=2, passes=1, no_below=1, no_above=1.0,
            thresholds=(0.3,), resamples=20, untrained=0, stop_words="none", topic_seeds=(0,), **shared,
        ),
    )  # fmt: skip
    compare = read_inputs(
        str(folder), str(folder), CompareConfig(texts / "prompts.jsonl", min_per_task=4, **shared), tmp_path / "compare"
    )
    seen["compare"] = rows_of(compare.batches)
    for command, rows in seen.items():
        assert [rows[i] for i in range(len(TEXTS))] == expected, command

    recorded = clusters.trained.raw.metadata["tokenization"]
    assert recorded["bos"] == bos
    names = [" ".join(tokenizer.convert_ids_to_tokens(part)) for part in (before, after)]
    assert recorded["adds"] == (
        ", ".join(f"{n} {where}" for n, where in zip(names, ("before", "after"), strict=True) if n) or "none"
    )
    (measured,) = topics.trained.values()
    assert measured.embedding.metadata["tokenization"] == recorded
    for notes in (clusters.caveats, topics.caveats):
        (said,) = [note for note in notes if "Texts are read with " in note]
        assert ("no special tokens are added" in said) == (recorded["adds"] == "none")
        assert (f"(--bos {bos})" in said) == (bos != "model")


# ---- probes and views, in Python ----


def booted(folder, **options):
    """A model that TransformerLens loads by itself."""
    bridges = pytest.importorskip("transformer_lens.model_bridge")
    return bridges.TransformerBridge.boot_transformers(str(folder), device="cpu", **options)


def booted_in_memory(folder):
    """The same of a model and a tokenizer in memory."""
    return booted(folder, hf_model=plain_model(load_pretrained(folder)), tokenizer=load_tokenizer(folder)[0])


MODELS = {
    "load_pretrained": load_pretrained,
    "read-only": partial(load_pretrained, attention="sdpa"),
    "TransformerLens": booted,
    "TransformerLens, in memory": booted_in_memory,
    "load_pretrained of TransformerLens": lambda folder: load_pretrained(booted(folder)),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request, checkpoint):
    """Read only."""
    return MODELS[request.param](checkpoint[0])


@pytest.fixture(scope="module")
def expected(checkpoint):
    """By ``bos``, the token ids of the texts, and the special tokens that results state."""
    folder, added = checkpoint
    tokenizer = load_tokenizer(folder)[0]
    bare = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    ids = {bos: [[*before, *row, *after] for row in bare] for bos, (before, after) in added.items()}
    names = {
        bos: [
            " ".join([*tokenizer.convert_ids_to_tokens(part), where])
            for part, where in zip(around, SIDES, strict=True)
            if part
        ]
        for bos, around in added.items()
    }
    return ids, {bos: ", ".join(parts) or "none" for bos, parts in names.items()}


@pytest.mark.parametrize("bos", ["model", "yes", "no"])
def test_every_model_reads_the_same_tokens(checkpoint, model, expected, bos):
    """TransformerLens adds a beginning of sequence by default, and leaves out [CLS] and [SEP]."""
    options = {} if bos == "model" else {"bos": bos}  # the default
    ids, adds = expected[0][bos], expected[1][bos]
    of_ids = run(model, {"input_ids": ids}, NDims())
    result = run(model, TEXTS, NDims(), **options)
    assert result.metadata["examples"] == of_ids.metadata["examples"]
    torch.testing.assert_close(result["n_dims"], of_ids["n_dims"])
    assert "tokenization" not in of_ids.metadata
    assert (result.metadata["tokenization"]["bos"], result.metadata["tokenization"]["adds"]) == (bos, adds)

    tokenizer = load_tokenizer(checkpoint[0])[0]
    prompts = LabelledPrompts(TEXTS, {"task": TEXTS})
    assert rows_of(prompts.batches(tokenizer, **options)) == dict(enumerate(ids))
    if type(model).__name__ != "ReadOnlyModel":  # which has no patterns here
        view = attention_view(model, TEXTS[0], **options)
        assert view.patterns.shape[-1] == len(ids[0])
        assert view.str_tokens == tuple(tokenizer.batch_decode([[i] for i in ids[0]]))


def test_rows_on_disk_state_it(checkpoint, expected, tmp_path):
    model = booted(checkpoint[0])
    ids, adds = expected
    rows = collect_rows(model, TEXTS, bos="no")
    of_ids = collect_rows(model, {"input_ids": ids["no"]})
    assert all(torch.equal(rows[site], of_ids[site]) for site in rows)
    store = save_rows(model, TEXTS, tmp_path / "rows", bos="no")
    assert run_stores(store, NDims()).metadata["tokenization"]["adds"] == adds["no"]
    with pytest.raises(InputError, match="tokens"):
        save_rows(model, TEXTS, tmp_path / "rows", bos="yes")


def some_texts():
    return TEXTS[:8]


@pytest.mark.parametrize(("checkpoint", "given"), [("llama", "texts"), ("bert", "functions")], indirect=["checkpoint"])
@pytest.mark.usefixtures("forked")
def test_workers_read_the_same_tokens(checkpoint, expected, given, tmp_path):
    """Those whose texts the driver tokenizes, and those that do it themselves."""
    ids, adds = expected
    of_ids = run(load_pretrained(checkpoint[0]), {"input_ids": ids["no"][:8]}, NDims())
    load = partial(load_pretrained, str(checkpoint[0]))
    if given == "texts":
        batches, options = TEXTS[:8], {"tokenizer": load_tokenizer(checkpoint[0])[0]}
    else:
        batches, options = [some_texts], {}
    result = run_sharded(load, batches, NDims(), workers=1, bos="no", **options)
    assert result.metadata["examples"] == of_ids.metadata["examples"]
    assert result.metadata["tokenization"]["adds"] == adds["no"]
    store = save_rows_sharded(load, batches, tmp_path / "rows", workers=1, bos="no", **options)
    assert store.tokenization == result.metadata["tokenization"]


def test_during_training(checkpoint, expected):
    plain, tokenizer = plain_model(load_pretrained(checkpoint[0])), load_tokenizer(checkpoint[0])[0]
    wanted = run(load_pretrained(plain), {"input_ids": expected[0]["no"]}, NDims()).metadata["examples"]
    for batches in (TEXTS, LabelledPrompts(TEXTS, {"task": TEXTS})):
        hook = ProbeHook(NDims(), batches, tokenizer=tokenizer, bos="no")
        hook(plain, 0)
        assert hook.results[0][0].metadata["examples"] == wanted


@pytest.mark.parametrize("checkpoint", ["bert"], indirect=True)
def test_commands_read_a_model_in_memory_as_its_checkpoint(checkpoint, texts, tmp_path):
    few = {"n_init": 1, "n_permutations": 9, "n_resamples": 20, "n_shuffles": 9, "untrained": 0, "map_prompts": 0}
    config = ClustersConfig(texts / "prompts.jsonl", **few, tokens_per_batch=300)
    by_name = measure_clusters(str(checkpoint[0]), config).trained.raw
    in_memory = measure_clusters(booted(checkpoint[0]), config).trained.raw
    assert in_memory.metadata["examples"].split("-")[1] == by_name.metadata["examples"].split("-")[1]
    assert in_memory.metadata["tokenization"] == by_name.metadata["tokenization"]
    compared = CompareConfig(texts / "prompts.jsonl", min_per_task=4, tokens_per_batch=300)
    inputs = read_inputs(booted(checkpoint[0]), str(checkpoint[0]), compared, tmp_path / "compare")
    assert inputs.tokenization == by_name.metadata["tokenization"]


def test_a_tokenizer_that_is_gone(write_checkpoint, tmp_path, monkeypatch):
    """It cannot be told whether it adds the token, so nothing is guessed, and no network is asked."""
    write_checkpoint(tmp_path / "m", "llama", vocab_size=300)
    llama_tokenizer(tmp_path / "m")
    model, tokenizer = booted(tmp_path / "m"), load_tokenizer(tmp_path / "m")[0]
    shutil.rmtree(tmp_path / "m")
    reader = Mock(side_effect=AutoTokenizer.from_pretrained)
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", reader)
    for read in (partial(run, model, TEXTS, NDims()), partial(attention_view, model, TEXTS[0])):
        with pytest.raises(InputError, match=re.escape("; give tokenizer=, or load the model with load_pretrained")):
            read()
    assert [call.kwargs["local_files_only"] for call in reader.call_args_list] == [True, True]
    assert run(model, TEXTS, NDims(), tokenizer=tokenizer).metadata["tokenization"]["adds"] == "<s> before"


def test_transformer_lens_reads_what_load_pretrained_gives_in_the_same_way(write_checkpoint, tmp_path):
    """Its own methods too: a token that the tokenizer has but does not add is not added."""
    write_checkpoint(tmp_path, "llama", vocab_size=300)
    word_tokenizer(tmp_path, "$A", bos_token="<s>")
    model = load_pretrained(tmp_path)
    if not hasattr(model, "to_tokens"):
        pytest.skip("not a model of TransformerLens")
    (ids,) = model.tokenizer([TEXTS[0]])["input_ids"]
    assert model.to_tokens(TEXTS[0]).tolist() == [ids]
    assert model.to_tokens(TEXTS[0], prepend_bos=True).tolist() == [[2, *ids]]


class TestReportsStateIt:
    """Also of a chat template, which writes special tokens of its own."""

    @pytest.mark.parametrize(("template", "begins"), [("{{ bos_token }}", "<s>"), ("", "none")])
    def test_of_a_chat_template(self, tmp_path, template, begins):
        word_tokenizer(tmp_path, "<s> $A", bos_token="<s>")
        tokenizer = read_tokenizer(tmp_path)
        tokenizer.chat_template = template + "{{ messages[0].content }}"
        (ids,) = templated_tokenizer(tokenizer, chat=True)(["ab"])
        assert ids == [2, 3][begins == "none" :]  # the tokenizer adds none to it
        recorded = tokenization_of(tokenizer, chat=True)
        assert recorded["begins"] == begins
        assert ("<s>" in tokenization_in_words(recorded)) == (begins == "<s>")
        assert tokenization_of(tokenizer, chat=True, bos="yes")["begins"] == "<s>"
        assert tokenization_of(tokenizer, chat=True, bos="no")["begins"] == "none"

    @pytest.mark.parametrize("around", ["<s> $A", "$A"])
    def test_of_prompts_with_answers(self, tmp_path, around):
        word_tokenizer(tmp_path, around, bos_token="<s>", eos_token="</s>")
        tokenizer = read_tokenizer(tmp_path)
        assert ("<s>" in InstructionFormat(tokenizer).beginning) == ("<s>" in around)
        assert "<s>" in InstructionFormat(tokenizer, bos="yes").beginning
        assert "<s>" not in InstructionFormat(tokenizer, bos="no").beginning


class TestTheToken:
    def test_is_never_added_twice(self, tmp_path):
        word_tokenizer(tmp_path, "$A", bos_token="<s>")
        tokenizer, texts = read_tokenizer(tmp_path), ["<s> ab cd", "ab"]
        prompts = LabelledPrompts(texts, {"task": texts})
        assert rows_of(prompts.batches(tokenizer, bos="yes")) == {0: [2, 3, 4], 1: [2, 3]}
        windows = Corpus(texts, texts).encode(tokenizer, ["ab"], 4, bos="yes").windows
        assert [window.tolist() for window in windows] == [[2, 3, 4], [2, 3]]

    def test_is_the_one_that_the_tokenizer_adds(self, tmp_path):
        """Of a tokenizer with both, as TransformerLens gives BERT's a beginning of its own."""
        word_tokenizer(tmp_path, "[CLS] $A", bos_token="<s>", cls_token="[CLS]")
        prompts = LabelledPrompts(["ab"], {"task": ["a"]})
        ids = [rows_of(prompts.batches(read_tokenizer(tmp_path), bos=bos))[0] for bos in ("model", "yes", "no")]
        assert ids == [[3, 4], [3, 4], [4]]

    def test_refused_where_there_is_none(self, tmp_path):
        word_tokenizer(tmp_path, "$A")
        prompts = LabelledPrompts(["ab"], {"task": ["a"]})
        with pytest.raises(InputError, match="no beginning-of-sequence token, so --bos yes has none to add"):
            next(prompts.batches(read_tokenizer(tmp_path), bos="yes"))
        with pytest.raises(InputError, match="bos is 'maybe'; expected 'model', 'yes' or 'no'"):
            next(prompts.batches(read_tokenizer(tmp_path), bos="maybe"))


def read_tokenizer(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize(("n_unknown", "noted"), [(0, False), (1, False), (2, True), (10, True)])
def test_unknown_words_are_noted_above_a_tenth_of_the_tokens(n_unknown, noted):
    tokens = torch.full((2, 6), 7)
    tokens.view(-1)[:n_unknown] = 3
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[1, -2:] = False  # padding, 10 tokens are left
    tokens[~mask] = 3
    tokenizer = Mock(unk_token_id=3, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    notes = tokenizer_unknown_token_notes(tokenizer, [Batch(tokens, mask)])
    assert [note.partition(":")[0] for note in notes] == [f"{n_unknown * 10}% of the tokens are <unk>"] * noted
    tokenizer.eos_token = "<unk>"  # GPT-2's, which means nothing unknown
    assert tokenizer_unknown_token_notes(tokenizer, [Batch(tokens, mask)]) == []
