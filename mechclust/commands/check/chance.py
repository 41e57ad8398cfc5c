"""Do probes find nothing where there is nothing? Random tokens, random labels, an untrained model, noise.

Every test here is exact: labels are drawn independently of the examples, so that its p-value under ``n`` relabellings
is the smallest possible, ``a = 1 / (n + 1)``, in at most that share of models. A test fails when that happens in two
independent draws of tokens and labels. So ``m`` tests raise a false alarm in at most ``m a^2`` of models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechclust.commands.check.inputs import EXAMPLES, CheckedModel
from mechclust.commands.check.result import NotTried
from mechclust.report.text import counted
from probes import CKA, Probe, ProbeResult, TaskClusterARI, TopicAttention, last_token, run
from probes.functional import cka_null, linear_cka
from probes.functional.permutation_test import permutation_p_value
from probes.rows.collect import RowCollector
from tasks import Batch

_N_RELABELLINGS = 499
N_PAIRINGS = 99  # random ones behind the chance level of CKA, which costs more
_N_BATCHES = 6
_N_WORDS = 24
_N_FEATURES = 64  # dimensions of random features
_MAX_SELF_DIFFERENCE = 1e-6  # of a model's CKA with itself from 1
_LABELS = {"random": "labels drawn at random", "batch": "the batch an example was measured in"}
_CAUSES = {"random": "labels reach what is measured", "batch": "the forward pass keeps state from batch to batch"}


class ChanceTest(NamedTuple):
    """A number, and the share of relabellings at least as high, counting itself."""

    value: float
    p: float


_Tests = Mapping[str, ChanceTest]
Build = Callable[..., Any]  # seed=... -> an untrained model


class Chance:
    """Tests of a model's states of random tokens: one draw, and a second where something looks odd.

    Args:
        checked: the model, its hook points found.
    """

    def __init__(self, checked: CheckedModel) -> None:
        self.checked = checked
        self._draws: dict[int, _Draw] = {}

    def draw(self, number: int) -> _Draw:
        """Return a draw of tokens and labels, made once."""
        if number not in self._draws:
            self._draws[number] = _Draw(self.checked, number)
        return self._draws[number]

    def odd(self, kind: str, n: int) -> str:
        """Return the name of a test with the smallest p-value in both draws; ``""`` if there is none."""
        smallest = 1 / (1 + n)
        first: _Tests = getattr(self.draw(0), kind)
        odd_once = [name for name, test in first.items() if test.p <= smallest]
        second: _Tests = getattr(self.draw(1), kind) if odd_once else {}
        return next((name for name in odd_once if name in second and second[name].p <= smallest), "")

    def clusters(self) -> tuple[bool, str]:
        """Check that states cluster neither by random labels nor by the batch they were measured in."""
        tests: _Tests = self.draw(0).clusters
        odd = self.odd("clusters", _N_RELABELLINGS)
        if odd:
            site, label = odd.split(" by ")
            return False, (
                f"states at {site!r} cluster by {_LABELS[label]} ({_shown(tests[odd], 'ARI')}, twice): "
                f"{_CAUSES[label]}, and clusters found in this model may be of that kind; {self._again}"
            )
        name, largest = _largest(tests)
        return True, (
            f"largest {_shown(largest, 'ARI')} at {name}, of {len(tests)} tests on {_N_BATCHES * EXAMPLES} random "
            f"sequences with {' and '.join(_LABELS.values())}; {_risk(len(tests), _N_RELABELLINGS)}"
        )

    def topics(self) -> tuple[bool, str]:
        """Check that attention does not prefer pairs of words that share a random topic."""
        tests: _Tests = self.draw(0).topics
        ratio = _shown(tests["ratio"], "attention ratio")
        if self.odd("topics", _N_RELABELLINGS):
            return False, (
                f"attention prefers words of the same topic where topics are random ({ratio}, twice), and a ratio "
                f"found in this model may be of that kind; {self._again}"
            )
        return True, f"{ratio} of same over different topic, topics drawn at random; {_risk(1, _N_RELABELLINGS)}"

    def cka(self) -> tuple[bool, str]:
        """Check that CKA is 1 between the model and itself, and at chance between it and random features."""
        draw = self.draw(0)
        same = run({"once": self.checked.model, "again": self.checked.model}, draw.batches[:2], CKA(at=draw.names))
        for measure in ("cka", "debiased_cka"):
            difference = float(torch.nan_to_num(same[measure] - 1).abs().max())
            if difference > _MAX_SELF_DIFFERENCE:
                return False, (
                    f"{measure} of the model with itself differs from 1 by {difference:.2g}: values differ from pass "
                    "to pass, and no similarity to another model means anything; turn dropout or state off for "
                    "evaluation"
                )
        tests: _Tests = draw.noise
        odd = self.odd("noise", N_PAIRINGS)
        if odd:
            return False, (
                f"states at {odd!r} are like {_N_FEATURES} random features ({_shown(tests[odd], 'debiased CKA')}, "
                f"twice), and a similarity found in this model may be of that kind; {self._again}"
            )
        if not tests:
            return True, "compared neither with itself nor with random features, since all states are the same"
        n_sites = int(same["cka"].isfinite().sum())
        name, largest = _largest(tests)
        return True, (
            f"1 with itself at {counted(n_sites, 'site')}; with {_N_FEATURES} random features at most "
            f"{_shown(largest, 'debiased CKA')} at {name}, where the biased form is {draw.biased[name]:.2f} by chance; "
            f"{_risk(len(tests), N_PAIRINGS)}"
        )

    @property
    def _again(self) -> str:
        return (
            f"check again with another seed (--seed {self.checked.seed + 1}), and if it fails again, do not trust any "
            "number until you know why"
        )


class _Draw:
    """One draw of tokens and labels, and the probes' measures of it, by the name of the test."""

    def __init__(self, checked: CheckedModel, number: int) -> None:
        self.checked = checked
        self.number = number
        self.names = checked.working("residual")
        words = checked.random("words", number).permutation(checked.ids)[:_N_WORDS]
        self.n_words = len(words)
        draw = checked.random("chance", number)
        word = draw.integers(len(words), size=(_N_BATCHES * EXAMPLES, checked.length))
        batch = np.repeat(np.arange(_N_BATCHES), EXAMPLES)
        labels = {"random": draw.permutation(batch), "batch": batch, "word": word}
        examples = Batch(
            torch.from_numpy(words[word]).long(),
            labels={name: torch.from_numpy(values).long() for name, values in labels.items()},
        )
        self.batches = list(examples.split(EXAMPLES))

    @cached_property
    def _measured(self) -> tuple[dict[str, Float[Tensor, "example d"]], list[ProbeResult]]:
        """States by site, and the results of the clusters and, if they can be tried, of topics."""
        options: dict[str, Any] = {"n_permutations": _N_RELABELLINGS, "seed": self.number}
        states = RowCollector(self.names, last_token())
        clusters = TaskClusterARI("random", self.names, last_token(), ("batch",), n_init=2, **options)
        probes: list[Probe] = [states, clusters]
        if not self._no_topics:
            topics = np.arange(self.n_words) % max(2, self.n_words // 4)
            shuffled = torch.from_numpy(self.checked.random("topics", self.number).permutation(topics))
            probes.append(TopicAttention(shuffled, self.checked.sites["attention_pattern"], "word", **options))
        _, *results = run(self.checked.model, self.batches, probes)
        return states.by_site(), results

    @property
    def clusters(self) -> _Tests:
        """Adjusted Rand index of each site and label."""
        clusters = self._measured[1][0]
        tests = {}
        for site in self.names:
            for label in clusters.coords["label"]:
                value = float(clusters.sel("ari", site=site, label=label))
                tests[f"{site} by {label}"] = ChanceTest(value, float(clusters.sel("p_value", site=site, label=label)))
        return tests

    @property
    def topics(self) -> _Tests:
        """Ratio of attention within random topics and between them.

        Raises:
            NotTried: if it cannot be measured.
        """
        if self._no_topics:
            raise NotTried(self._no_topics)
        topics = self._measured[1][1]
        test = ChanceTest(float(topics["overall_ratio"]), float(topics["overall_p_value"]))
        if not np.isfinite(test.p):
            raise NotTried(f"the ratio is undefined here: {'; '.join(topics.notes)}")
        return {"ratio": test}

    @property
    def _no_topics(self) -> str:
        """Why topics in attention cannot be tried; ``""`` if they can."""
        names = self.checked.sites.get("attention_pattern")
        if not names:
            return "attention_pattern() does not work (its check says why)"
        patterns = [self.checked.seen[name] for name in names if name in self.checked.seen]
        if any(pattern.shape[2] != self.checked.length for pattern in patterns):
            return "one query reads the whole sequence, so words do not attend to words"
        return "" if self.n_words > 2 else f"{counted(self.n_words, 'ordinary token')}; topics need at least 3"

    @cached_property
    def noise(self) -> _Tests:
        """Debiased CKA with random features, at the first, middle and last site."""
        tests = {}
        self.biased: dict[str, float] = {}
        draw = torch.Generator().manual_seed(int(self.checked.random("noise", self.number).integers(2**31)))
        states = self._measured[0]
        for site in dict.fromkeys([self.names[0], self.names[len(self.names) // 2], self.names[-1]]):
            rows = states[site].cpu().double()
            features = torch.randn(len(rows), _N_FEATURES, dtype=torch.float64, generator=draw)
            value = float(linear_cka(rows, features, debiased=True))
            if np.isfinite(value):
                null = cka_null(rows, features, N_PAIRINGS, debiased=True, seed=self.number)
                tests[site] = ChanceTest(value, float(permutation_p_value(value, null)))
                self.biased[site] = float(linear_cka(rows, features))
        return tests


def chance_of_untrained(build: Build | None, checked: CheckedModel) -> tuple[bool, str]:
    """Check clusters and topics in an untrained model of this architecture."""
    if build is None:
        raise NotTried("it is not known how to draw this model's weights; give its name or directory instead")
    untrained = CheckedModel(build(seed=checked.seed), checked.tokenizer, checked.seed, checked.sites)
    for known in ("length", "seen"):  # known already, from a model that may be gone
        if known in vars(checked):
            vars(untrained)[known] = vars(checked)[known]
    chance = Chance(untrained)
    passed, clusters = chance.clusters()
    if not passed:
        return False, clusters
    try:
        passed, topics = chance.topics()
    except NotTried:
        return True, clusters
    return passed, f"{clusters}; {topics}" if passed else topics


def _largest(tests: _Tests) -> tuple[str, ChanceTest]:
    values = {name: test.value for name, test in tests.items()}
    name = max(values, key=values.__getitem__)
    return name, tests[name]


def _shown(test: ChanceTest, measure: str) -> str:
    return f"{measure} {test.value:.2f} (p {test.p:.2g})"


def _risk(n_tests: int, n: int) -> str:
    return f"a sound model fails here with probability {n_tests / (1 + n) ** 2:.0e}"
