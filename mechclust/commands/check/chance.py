"""Do probes find nothing where there is nothing? Random tokens, random labels, an untrained model, noise.

Every test here is exact: labels are drawn apart from the examples, so that its p-value under ``n``
relabellings is the smallest possible, ``a = 1 / (n + 1)``, in at most that share of models. A test
fails when that happens in two independent draws of tokens and labels; so ``m`` tests raise a false
alarm in at most ``m a^2`` of models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from mechclust.commands.check.inputs import EXAMPLES, CheckedModel, counted
from mechclust.commands.check.result import NotTried
from probes import CKA, Probe, TaskClusterARI, TopicAttention, last_token, run
from probes.functional import cka_null, linear_cka
from probes.rows.collect import Gather
from tasks import Batch

_RELABELLINGS = 499
_PAIRINGS = 99  # random ones behind the chance level of CKA, which costs more
_BATCHES = 6
_WORDS = 24
_NOISE = 64  # dimensions of random features
_LABELS = {"random": "labels drawn at random", "batch": "the batch an example was measured in"}


class Found(NamedTuple):
    """A number, and the share of relabellings at least as high, counting itself."""

    value: float
    p: float


Tests = Mapping[str, Found]
Build = Callable[..., Any]  # seed=... -> an untrained model


class Chance:
    """What probes find in a model's states of random tokens: one draw, and a second where something looks odd.

    Args:
        checked: the model, its hook points found.
    """

    def __init__(self, checked: CheckedModel) -> None:
        self.checked = checked
        self._draws: dict[int, _Draw] = {}

    def draw(self, number: int) -> _Draw:
        if number not in self._draws:
            self._draws[number] = _Draw(self.checked, number)
        return self._draws[number]

    def odd(self, kind: str, n: int) -> str:
        """The name of a test that finds something in both draws, or nothing."""
        least = 1 / (1 + n)
        names = [name for name, test in getattr(self.draw(0), kind).items() if test.p <= least]
        again: Tests = getattr(self.draw(1), kind) if names else {}
        return next((name for name in names if name in again and again[name].p <= least), "")

    def clusters(self) -> tuple[bool, str]:
        """States cluster neither by random labels nor by the batch they were measured in."""
        tests: Tests = self.draw(0).clusters
        if odd := self.odd("clusters", _RELABELLINGS):
            site, label = odd.split(" by ")
            why = {
                "batch": "the forward pass keeps state from batch to batch",
                "random": "labels reach what is measured",
            }[label]
            return False, (
                f"states at {site!r} cluster by {_LABELS[label]} ({_shown(tests[odd], 'ARI')}, twice): {why}, and "
                f"clusters found in this model may be of that kind; {self._again}"
            )
        name = max(tests, key=lambda k: tests[k].value)
        return True, (
            f"largest {_shown(tests[name], 'ARI')} at {name}, of {len(tests)} tests on {_BATCHES * EXAMPLES} random "
            f"sequences with {' and '.join(_LABELS.values())}; {_risk(len(tests), _RELABELLINGS)}"
        )

    def topics(self) -> tuple[bool, str]:
        """Attention does not prefer pairs of words that share a random topic."""
        tests: Tests = self.draw(0).topics
        shown = _shown(tests["ratio"], "attention ratio")
        if self.odd("topics", _RELABELLINGS):
            return False, (
                f"attention prefers words of the same topic where topics are random ({shown}, twice), and a ratio "
                f"found in this model may be of that kind; {self._again}"
            )
        return True, f"{shown} of same over different topic, topics drawn at random; {_risk(1, _RELABELLINGS)}"

    def cka(self) -> tuple[bool, str]:
        """CKA is 1 between the model and itself, and at chance between the model and random features."""
        draw = self.draw(0)
        same = run({"once": self.checked.model, "again": self.checked.model}, draw.batches[:2], CKA(at=draw.names))
        off = {m: float(torch.nan_to_num(same[m] - 1).abs().max()) for m in ("cka", "debiased_cka")}
        if worst := next((m for m in off if off[m] > 1e-6), ""):
            return False, (
                f"{worst} of the model with itself differs from 1 by {off[worst]:.2g}: values differ from pass "
                "to pass, and no similarity to another model means anything; turn dropout or state off for evaluation"
            )
        tests: Tests = draw.noise
        if odd := self.odd("noise", _PAIRINGS):
            return False, (
                f"states at {odd!r} are like {_NOISE} random features ({_shown(tests[odd], 'debiased CKA')}, twice), "
                f"and a similarity found in this model may be of that kind; {self._again}"
            )
        if not tests:
            return True, "compared neither with itself nor with random features, since all states are the same"
        itself = f"1 with itself at {counted(int(same['cka'].isfinite().sum()), 'site')}"
        name = max(tests, key=lambda k: tests[k].value)
        return True, (
            f"{itself}; with {_NOISE} random features at most {_shown(tests[name], 'debiased CKA')} at {name}, where "
            f"the biased form is {draw.biased[name]:.2f} by chance; {_risk(len(tests), _PAIRINGS)}"
        )

    @property
    def _again(self) -> str:
        return (
            f"check again with another seed (--seed {self.checked.seed + 1}), and if it fails again, do not trust any "
            "number until you know why"
        )


class _Draw:
    """One draw of tokens and labels, and what probes find in it, by the name of the test."""

    def __init__(self, checked: CheckedModel, number: int) -> None:
        self.checked, self.number, self.names = checked, number, checked.working("residual")
        words = checked.random("words", number).permutation(checked.ids)[:_WORDS]
        draw, n = checked.random("chance", number), _BATCHES * EXAMPLES
        word = draw.integers(len(words), size=(n, checked.length))
        which = np.repeat(np.arange(_BATCHES), EXAMPLES)
        labels: dict[str, Any] = {"random": draw.permutation(which), "batch": which, "word": word}
        whole = Batch(
            torch.from_numpy(words[word]).long(),
            labels={name: torch.from_numpy(value).long() for name, value in labels.items()},
        )
        self.batches, self.n_words = list(whole.split(EXAMPLES)), len(words)

    @cached_property
    def _measured(self) -> tuple[Gather, list[Any]]:
        n, seed = _RELABELLINGS, self.number
        clusters = TaskClusterARI("random", self.names, last_token(), ("batch",), n_init=2, n_permutations=n, seed=seed)
        states = Gather(self.names, last_token())
        probes: list[Probe] = [states, clusters]
        if not self._no_topics:
            topics = self.checked.random("topics", seed).permutation(
                np.arange(self.n_words) % max(2, self.n_words // 4)
            )
            at = self.checked.sites["attention_pattern"]
            probes.append(TopicAttention(torch.from_numpy(topics), at, "word", n_permutations=n, seed=seed))
        _, *found = run(self.checked.model, self.batches, probes)
        return states, found

    @property
    def clusters(self) -> Tests:
        _, (result, *_) = self._measured
        return {
            f"{site} by {label}": Found(float(result["ari"][i, j]), float(result["p_value"][i, j]))
            for i, site in enumerate(self.names)
            for j, label in enumerate(result.coords["label"])
        }

    @property
    def topics(self) -> Tests:
        if self._no_topics:
            raise NotTried(self._no_topics)
        _, (_, result) = self._measured
        test = Found(float(result["overall_ratio"]), float(result["overall_p_value"]))
        if not np.isfinite(test.p):
            raise NotTried(f"the ratio is undefined here: {'; '.join(result.notes)}")
        return {"ratio": test}

    @property
    def _no_topics(self) -> str:
        """Why topics in attention cannot be tried, or nothing."""
        if not (names := self.checked.sites.get("attention_pattern")):
            return "attention_pattern() does not work (its check says why)"
        if any(self.checked.seen[name].shape[2] != self.checked.length for name in names if name in self.checked.seen):
            return "one query reads the whole sequence, so words do not attend to words"
        return "" if self.n_words > 2 else f"{counted(self.n_words, 'ordinary token')}; topics need at least 3"

    @cached_property
    def noise(self) -> Tests:
        """Debiased CKA with random features, at the first, middle and last site."""
        found, self.biased = {}, {}
        draw = torch.Generator().manual_seed(int(self.checked.random("noise", self.number).integers(2**31)))
        states = self._measured[0].by_site()
        for site in dict.fromkeys([self.names[0], self.names[len(self.names) // 2], self.names[-1]]):
            rows = states[site].cpu().double()
            features = torch.randn(len(rows), _NOISE, dtype=torch.float64, generator=draw)
            value = float(linear_cka(rows, features, debiased=True))
            if np.isfinite(value):
                null = cka_null(rows, features, _PAIRINGS, debiased=True, seed=self.number)
                found[site] = Found(value, (1 + int((null >= value).sum())) / (1 + _PAIRINGS))
                self.biased[site] = float(linear_cka(rows, features))
        return found


def chance_of_untrained(build: Build | None, checked: CheckedModel) -> tuple[bool, str]:
    """Clusters and topics in an untrained model of the same architecture."""
    if build is None:
        raise NotTried("it is not known how to draw this model's weights; give its name or directory instead")
    other = CheckedModel(build(seed=checked.seed), checked.tokenizer, checked.seed, checked.sites)
    vars(other).update({k: v for k, v in vars(checked).items() if k in ("length", "seen")})  # as found out already
    chance = Chance(other)
    passed, detail = chance.clusters()
    try:
        also, topics = chance.topics() if passed else (passed, "")
    except NotTried:
        return passed, detail
    return also, f"{detail}; {topics}" if also else topics or detail


def _shown(test: Found, what: str) -> str:
    return f"{what} {test.value:.2f} (p {test.p:.2g})"


def _risk(tests: int, n: int) -> str:
    return f"a sound model fails here with probability {tests / (1 + n) ** 2:.0e}"
