"""Curves of encoders as they were published, with little noise, and a suite of two tiny encoders."""

from __future__ import annotations

import numpy as np
import torch

from mechclust.commands.topics.suite.published import RANDOM, THRESHOLDS, published_ratio
from probes import ProbeResult

ROWS = {"BERT": "b", "ALBERT": "a", "BART": "c", "ELECTRA": "e", "RoBERTa": "r"}  # published row: name in the suite


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
