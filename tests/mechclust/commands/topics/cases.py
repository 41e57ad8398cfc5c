"""Documents and a model with planted topics, and curves of encoders as they were published, with little noise."""

from __future__ import annotations

import numpy as np
import torch

from mechclust.commands.topics.published import RANDOM, THRESHOLDS, published_ratio
from probes import ProbeResult

ROWS = {"BERT": "b", "ALBERT": "a", "BART": "c", "ELECTRA": "e", "RoBERTa": "r"}  # published row: name of the model


TOPICS = [[f"w{6 * t + i}" for i in range(6)] for t in range(3)]  # w18 and w19 have none


def write_planted_corpus(folder, n=60):
    """60 documents of 24 words, most of one topic and some of another, so that both kinds of pairs meet."""
    draw = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    for i in range(n):
        first, second = TOPICS[i % 3], TOPICS[(i + 1 + i // 3 % 2) % 3]
        words = [*draw.choice(first, 17), *draw.choice(second, 5), "w18", "w19"]
        (folder / f"{i:02}.txt").write_text(" ".join(draw.permutation(words)))
    return folder


def plant(model):
    """Each topic has a direction that its words' embeddings share, and the first layer attends along it."""
    weight = model.get_input_embeddings().weight
    directions = torch.linalg.qr(torch.randn(16, 3, generator=torch.Generator().manual_seed(0)))[0].T
    for topic, words in enumerate(TOPICS):
        for word in words:
            weight[2 + int(word[1:])] += directions[topic]
    if hasattr(model, "bert"):
        attention = model.bert.encoder.layer[0].attention.self
        attention.query.weight.copy_(torch.eye(16))
        attention.key.weight.copy_(torch.eye(16))


def wordpiece(folder, pieces):
    """Gives a checkpoint a WordPiece tokenizer of these pieces, with [CLS] and [SEP]."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {piece: i for i, piece in enumerate([*special, *pieces])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    return folder


def attention_of(ratios, name, published="", twin=None, noise=0.002, seeds=3, resamples=40, matched=None):
    """A measurement whose overall ratios by overlap and threshold are these."""
    draw = np.random.default_rng([len(name), sum(map(ord, name)), 0 if twin is None else 1 + twin])
    values = np.asarray(ratios)[None] + noise * draw.normal(size=(seeds, len(ratios)))
    drawn = values[..., None] + noise * draw.normal(size=(1, len(ratios), resamples))
    found = {}
    for measure, factor in (("ratio", 1.0), ("matched", 1.0 if matched is None else matched)):
        found[f"overall_{measure}"] = torch.from_numpy(1 + factor * (values - 1))
        found[f"overall_{measure}_resampled"] = torch.from_numpy(1 + factor * (drawn - 1))
    place = ("topic_seed", "variant")
    axes = {k: (*place, "resample") if k.endswith("resampled") else place for k in found}
    coords = {
        "topic_seed": [str(s) for s in range(seeds)],
        "variant": [str(v) for v in range(len(ratios))],
        "resample": [str(r) for r in range(resamples)],
    }
    variants = [[t, overlap] for overlap in (False, True) for t in THRESHOLDS]
    about = {"name": name, "published": published, "twin": twin, "variants": variants}
    return ProbeResult("TopicsSuiteAttention", found, axes, coords, {}, about)


def published_curve(row):
    return np.array([published_ratio(row, "attention", t, o) for o in (False, True) for t in THRESHOLDS])


def as_published(**changed):
    """The five encoders and random BERT; those that are changed have other ratios."""
    curves = {row: changed.get(row, published_curve(row)) for row in ROWS}
    found = [attention_of(curve, ROWS[row], row) for row, curve in curves.items()]
    twin = changed.get("random", published_curve(RANDOM))
    return [*found, attention_of(twin, "b", "BERT", twin=0, noise=0.0005)]
