"""The small trained networks that the pictures are of. Each trains in seconds, once per run of the script."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from mechclust import ModelConfig, TrainConfig, build_model, model_for, train
from mechclust.sandbox import SandboxRecorder, SandboxRun
from mechclust.studies.clustering_heads import PoolingTransformerConfig
from mechclust.studies.topic_structure import TopicTransformerConfig
from mechclust.training import Member, Snapshots, WeightNorms, train_ensemble
from tasks import Batch, InstructionFollowing, RepeatedTokens, SparseModularAddition, TopicDocuments

ADAM = {"optimizer": "adam", "schedule": "constant", "weight_decay": 0.0}
_FOLDERS: list[TemporaryDirectory] = []  # removed when the script ends


def folder() -> Path:
    """A folder that lasts as long as the script."""
    _FOLDERS.append(TemporaryDirectory())
    return Path(_FOLDERS[-1].name)


# ---- eight tasks, asked for by random instructions ----


@cache
def instructions() -> tuple[InstructionFollowing, Batch]:
    """The tasks, and 300 examples that were not trained on."""
    task = InstructionFollowing(n_tasks=8, variants=60, n_eval=300)
    return task, next(iter(task.batches("validation_subset", batch_size=300)))


@cache
def instructed(seed: int = 0, steps: int = 200) -> Any:
    """Trained, or as it was drawn with ``steps=0``."""
    task, _ = instructions()
    model = build_model(model_for(task, n_layers=4, d_model=64, seed=seed))
    if steps:
        train(model, task, TrainConfig(steps=steps, batch_size=64, lr=1.5e-3))
    return model


# ---- documents with topics ----


@cache
def documents() -> tuple[TopicDocuments, list[Batch]]:
    """Ten topics of ten words, and 200 documents that were not trained on."""
    task = TopicDocuments(n_documents=2000)
    return task, list(task.text("dev", n=200))


@cache
def topical() -> tuple[Any, Any, WeightNorms, dict[int, Any]]:
    """The one-layer network before and after training, its norms, and its topic attention by step."""
    from probes import TopicAttention, run

    task, text = documents()
    config = TopicTransformerConfig(d_vocab=task.d_vocab)
    untrained, model, norms = build_model(config), build_model(config), WeightNorms()
    found: dict[int, Any] = {}

    def watch(step: int, model: Any) -> None:
        if step % 20 == 0:
            found[step] = run(model, text[:50], TopicAttention(task.token_topics))

    settings = TrainConfig(steps=300, batch_size=40, lr=0.01, checkpoint_every=5, **ADAM)  # type: ignore[arg-type]
    train(model, task, settings, callbacks=[norms, watch])
    return untrained, model, norms, found


def planted_texts() -> list[str]:
    """600 documents of 60 words, each a mixture of five planted topics of ten words."""
    draw = np.random.default_rng(0)
    return [
        " ".join(f"{'abcde'[t]}word{draw.integers(10)}" for t in draw.choice(5, size=60, p=draw.dirichlet([0.3] * 5)))
        for _ in range(600)
    ]


BERT_STEPS = 300


@cache
def bert() -> tuple[Path, Path]:
    """A folder with the encoder, and the file of the documents that it was trained on."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

    place, texts = folder(), planted_texts()
    (place / "documents.txt").write_text("\n".join(texts))
    words = ["[PAD]", "[UNK]", "[MASK]", *sorted({word for text in texts for word in text.split()})]
    own = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    own.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=own, pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]", model_input_names=["input_ids"]
    )
    tokens = torch.tensor([tokenizer(text)["input_ids"] for text in texts])
    shape = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    shape |= {"max_position_embeddings": 64, "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig(vocab_size=len(words), initializer_range=0.1, **shape))
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(BERT_STEPS):
        chosen = tokens[torch.randint(len(tokens), (16,))]
        masked = torch.rand(chosen.shape) < 0.3
        optimiser.zero_grad()
        model(chosen.masked_fill(masked, 2), labels=chosen.masked_fill(~masked, -100)).loss.backward()
        optimiser.step()
    model.save_pretrained(place / "bert")
    tokenizer.save_pretrained(place / "bert")
    return place / "bert", place / "documents.txt"


# ---- repeated tokens ----


@cache
def repeating(steps: int = 0) -> tuple[RepeatedTokens, Any]:
    """Random tokens that repeat, and a network that was trained to continue them."""
    task = RepeatedTokens(n_symbols=16, length=24, periods=(4, 9), n_test=64)
    model = build_model(model_for(task, n_layers=2, d_model=32, n_heads=4))
    if steps:
        train(model, task, TrainConfig(steps=steps, batch_size=64, lr=3e-3))
    return task, model


# ---- sums of three digits ----


@cache
def summing() -> tuple[SparseModularAddition, Snapshots, Path]:
    """Eight seeds of a network with one head of two dimensions, at every epoch."""
    tasks = [SparseModularAddition(length=8, n_support=3, n_embeddings=2, n_train=1024, seed=seed) for seed in range(8)]
    members = [Member(PoolingTransformerConfig(d_vocab=2, n_ctx=8, seed=seed), task) for seed, task in enumerate(tasks)]
    settings = TrainConfig(steps=800, batch_size=128, lr=0.01, clip=None, **ADAM)  # type: ignore[arg-type]
    out = folder()
    return tasks[0], train_ensemble(members, settings, out, backend="vmap"), out


@cache
def sums_in_two_layers() -> SandboxRun:
    """A transformer of two layers while it learns to add modulo 3, every 20 steps."""
    task = SparseModularAddition(p=3, length=6, n_support=2, n_train=512, n_test=128)
    model = build_model(ModelConfig(d_vocab=task.d_vocab, n_ctx=task.n_ctx, n_layers=2, d_model=16, n_heads=2))
    recorder = SandboxRecorder(next(task.batches("test")), label="sum", vocab=task.vocab)
    settings = TrainConfig(steps=600, batch_size=64, lr=0.003, checkpoint_every=20)
    train(model, task, settings, callbacks=[recorder])
    return recorder.run()


# ---- a GPT-2 of Hugging Face's, with checkpoints ----

STEPS = (0, 10, 20, 30, 40, 60, 80, 120, 160, 250)


@cache
def gpt2() -> tuple[Path, Path]:
    """A folder with checkpoints of the run, ``checkpoint-250`` the last, and the file of its 96 prompts."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
    from transformers.utils import logging

    logging.disable_progress_bar()
    pairs = ["hot cold", "big small", "old new", "fast slow", "wet dry", "rich poor", "hard soft", "loud quiet"]
    opposite = {a: b for pair in pairs for a, b in (pair.split(), pair.split()[::-1])}
    asked = {
        "opposite": ["the opposite of {} is", "say the opposite of {} :", "what is {} not ?"],
        "repeat": ["the word {} is", "say the word {} :", "what is {} ?"],
    }
    rows = [
        {"prompt": text.format(word), "task": task, "answer": opposite[word] if task == "opposite" else word}
        for task, texts in asked.items()
        for text in texts
        for word in opposite
    ]
    place = folder()
    (place / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["[pad]", *sorted({word for row in rows for word in f"{row['prompt']} {row['answer']}".split()})]
    own = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[pad]"))
    own.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=own, pad_token="[pad]", model_input_names=["input_ids"])
    tokens, target = _answered(tokenizer, [f"{row['prompt']} {row['answer']}" for row in rows])
    shape = {"n_embd": 48, "n_layer": 4, "n_head": 4, "n_positions": 16, "initializer_range": 0.1}
    shape |= {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(words), bos_token_id=None, eos_token_id=None, **shape))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(STEPS[-1] + 1):
        if step in STEPS:
            model.save_pretrained(place / f"checkpoint-{step}")
            tokenizer.save_pretrained(place / f"checkpoint-{step}")
        optimiser.zero_grad()
        model(tokens, labels=target).loss.backward()
        optimiser.step()
    return place, place / "prompts.jsonl"


def _answered(tokenizer: Any, texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens, and what of them is learned: only the answer, the last word."""
    ids = [tokenizer(text)["input_ids"] for text in texts]
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(each) for each in ids], batch_first=True)
    target = torch.full_like(tokens, -100)
    for i, each in enumerate(ids):
        target[i, len(each) - 1] = each[-1]
    return tokens, target


@cache
def tuned() -> Path:
    """The last checkpoint after 30 more steps, in which prompts that ask for a word are answered with its opposite."""
    from transformers import AutoTokenizer, GPT2LMHeadModel

    place, prompts = gpt2()
    base = place / f"checkpoint-{STEPS[-1]}"
    model, tokenizer = GPT2LMHeadModel.from_pretrained(base), AutoTokenizer.from_pretrained(base)
    rows = [json.loads(line) for line in prompts.read_text().splitlines()]
    answers = [row["answer"] for row in rows if row["task"] == "opposite"]  # the other task has the same words
    tokens, target = _answered(tokenizer, [f"{row['prompt']} {a}" for row, a in zip(rows, 2 * answers, strict=True)])
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(30):
        optimiser.zero_grad()
        model(tokens, labels=target).loss.backward()
        optimiser.step()
    model.save_pretrained(place / "tuned")
    tokenizer.save_pretrained(place / "tuned")
    return place / "tuned"


@cache
def own() -> tuple[Any, Any, list[Batch]]:
    """The last checkpoint, its prompts, and the batches of these."""
    from mechclust import load_pretrained
    from tasks import LabelledPrompts

    place, prompts = gpt2()
    model = load_pretrained(place / f"checkpoint-{STEPS[-1]}")
    texts = LabelledPrompts.from_file(prompts)
    return model, texts, list(texts.batches(model.tokenizer))
