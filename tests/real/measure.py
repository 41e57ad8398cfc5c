"""What is measured on a real checkpoint beside the commands' own numbers: that it is what it says, and hidden states at
a position of choice, clustered with several seeds."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mechclust import load_pretrained
from mechclust.commands.clusters import ClustersConfig, measure_clusters
from mechclust.commands.topics.variants import kept_words
from mechclust.models.chat_templates import templated_tokenizer
from mechclust.models.pretrained import AnyModel
from probes import (
    CKA,
    Readout,
    RowStore,
    TaskClusterARI,
    TopicAttention,
    attention,
    first_token,
    residual,
    run,
    run_stores,
    save_rows,
)
from tasks import CorpusStream, LabelledPrompts, fit_topics

CLS = first_token()
UNTRAINED = 3  # models with random weights
SEEDS = 5  # of k-means


def states(folder: Path, prompts: LabelledPrompts, readout: Readout, *, untrained: int | None = None) -> RowStore:
    """Hidden states of a checkpoint, or of the same architecture with the random weights of seed ``untrained``."""
    options: dict[str, Any] = {} if untrained is None else {"untrained": True, "seed": untrained}
    model = load_pretrained(folder, attention="sdpa", **options)
    batches = prompts.batches(templated_tokenizer(model.tokenizer), max_length=model.cfg.n_ctx)
    rows = tempfile.mkdtemp(prefix="mechclust-real-")
    return save_rows(model, batches, rows, readout=readout, labels=("task",))


def ari(store: RowStore, readout: Readout, seeds: int) -> tuple[np.ndarray, float]:
    """``[seed layer]`` ARI of k-means clusters and tasks, and the highest end of a layer's chance interval."""
    found, chance = [], float("nan")
    for seed in range(seeds):
        probe = TaskClusterARI(readout=readout, seed=seed, n_permutations=1 if seed else 1000)
        result = run_stores(store, probe)
        found.append(result["ari"][:, 0].numpy())
        if not seed:
            chance = float(result["null_high"].max())
    return np.array(found), chance


def clusters(model: AnyModel, prompts: Path, out: Path | None, seed: int, chat: bool = False) -> dict[str, list[float]]:
    """Return by layer what ``mechclust clusters`` finds with another seed.

    Args:
        model: a checkpoint's folder, or a loaded model.
        prompts: to cluster the states of.
        out: with hidden states to use again, if it has any.
        seed: of k-means and of the classifier's folds.
        chat: give the prompts in the model's chat template.

    Returns:
        The index of the task, raw and given what the clusters follow, the accuracy, and the index of the prompts' last
        word.
    """
    config = ClustersConfig(
        prompts, units="none", untrained=0, n_shuffles=1, seed=seed, chat=chat
    )  # as R20 was bounded
    found = measure_clusters(model, config, out)
    table = found.to_dataframe()
    table = table[table["label"] == "task"]
    words = found.features[found.features["name"] == "last word"]
    columns = {"raw": table["ari"], "given": table["given_ari"], "accuracy": table["accuracy"], "word": words["ari"]}
    return {name: column.tolist() for name, column in columns.items()}


def cka(first: RowStore, second: RowStore, readout: Readout, parts: int = 1) -> np.ndarray:
    """``[part layer]`` debiased CKA of two models' states, over disjoint parts of the prompts drawn at random."""
    order = first.index[torch.randperm(len(first), generator=torch.Generator().manual_seed(0))]
    pairs = [{"tuned": second.select(i), "base": first.select(i)} for i in order.chunk(parts)]
    return np.array([run_stores(p, CKA(residual(), readout))["debiased_cka"][:, 0].numpy() for p in pairs])


def topic_attention(folder: Path, texts: Path, seed: int, n_documents: int, length: int = 256) -> dict[str, float]:
    """Return attention within topics over attention between topics, over all heads, for words of one topic.

    Args:
        folder: a checkpoint.
        texts: of which ten topics are made; each keeps the hundredth of the words that is likeliest.
        seed: of the topic model, the documents that are read and the random topics.
        n_documents: documents that the model reads.
        length: tokens of a window, at most the model's context.

    Returns:
        ``attention``, ``chance`` (97.5% of random topics) and ``untrained`` (the mean over random weights).
    """
    corpus = CorpusStream(texts).read()
    topics = fit_topics(corpus, n_topics=10, seed=seed)
    words, by_variant = kept_words([topics], [0.01, 0.02])
    ratios, chance = [], float("nan")
    for copy in (None, *range(2)):
        options: dict[str, Any] = {} if copy is None else {"untrained": True, "seed": copy}
        model = load_pretrained(folder, attention="sdpa", **options)
        n_ctx = length if model.cfg.n_ctx is None else min(length, model.cfg.n_ctx)
        encoded = corpus.sample(n_documents, seed).encode(model.tokenizer, words, n_ctx)
        n_permutations = 99 if copy is None else 0
        probe = TopicAttention(by_variant[0, 0], attention(), "word", n_permutations=n_permutations, seed=seed)
        (found,) = run(model, encoded.batches(2048), [probe])
        ratios.append(float(found["overall_ratio"]))
        if copy is None:
            chance = float(found["overall_ratio_null_high"])
    return {"attention": ratios[0], "chance": chance, "untrained": float(np.mean(ratios[1:]))}


@torch.inference_mode()
def masked_accuracy(
    folder: Path, texts: Sequence[str], batch_size: int = 32, *, untrained: int | None = None
) -> tuple[list[float], float]:
    """Return for every token, masked alone, whether a masked LM gets it right, and the share of the commonest token.

    Args:
        folder: of the checkpoint.
        texts: whose tokens are masked.
        batch_size: of copies of a text with one token masked.
        untrained: the seed of random weights to use instead of the checkpoint's.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = _masked_lm(folder, untrained)
    right: list[float] = []
    seen = []
    for text in texts:
        ids = tokenizer(text, return_tensors="pt")["input_ids"][0]
        places = torch.arange(1, len(ids) - 1)  # without [CLS] and [SEP]
        masked = ids.repeat(len(places), 1)
        masked[range(len(places)), places] = tokenizer.mask_token_id
        logits = torch.cat([model(input_ids=part).logits for part in masked.split(batch_size)])
        right += (logits[range(len(places)), places].argmax(-1) == ids[places]).double().tolist()
        seen.append(ids[places])
    return right, float(torch.cat(seen).bincount().max() / sum(map(len, seen)))


def _masked_lm(folder: Path, untrained: int | None) -> Any:
    from transformers import AutoConfig, AutoModelForMaskedLM

    if untrained is None:
        return AutoModelForMaskedLM.from_pretrained(folder, local_files_only=True).eval()
    torch.manual_seed(untrained)
    return AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(folder, local_files_only=True)).eval()


@torch.inference_mode()
def nats(folder: Path, texts: Sequence[str], length: int = 256) -> list[float]:
    """A language model's mean negative log likelihood of each text's first ``length`` tokens, in nats a token."""
    tokenizer, model = _language_model(folder)
    found = []
    for text in texts:
        ids = tokenizer(text, return_tensors="pt")["input_ids"][:, :length]
        logits = model(input_ids=ids).logits[0, :-1]
        found.append(float(torch.nn.functional.cross_entropy(logits, ids[0, 1:])))
    return found


@torch.inference_mode()
def next_words(folder: Path, texts: Sequence[str]) -> list[str]:
    """The likeliest next token of each text."""
    tokenizer, model = _language_model(folder)
    best = [int(model(**tokenizer(text, return_tensors="pt")).logits[0, -1].argmax()) for text in texts]
    return [tokenizer.decode([i]).strip() for i in best]


def _language_model(folder: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return tokenizer, AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()


@torch.inference_mode()
def nearest_is_paraphrase(folder: Path, pairs: Sequence[tuple[str, str]]) -> list[bool]:
    """Whether the first sentence of a pair is closer to its second than to any other pair's, by mean-pooled states."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(folder, local_files_only=True).eval()

    def embed(texts: Sequence[str]) -> torch.Tensor:
        read = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0) for text in texts]
        return torch.nn.functional.normalize(torch.stack(read), dim=-1)

    first, second = (embed(texts) for texts in zip(*pairs, strict=True))
    return ((first @ second.T).argmax(1) == torch.arange(len(pairs))).tolist()
