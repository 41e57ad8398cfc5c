"""The logit lens: the layer at which the answer appears."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.engine.final_readout import FinalReadout
from probes.engine.hooked_model import HookPoints, Models
from probes.engine.probe import Probe
from probes.engine.readout import Readout, check_row_readout, last_token
from probes.engine.result import ProbeResult
from probes.engine.sites import Site, Sites, residual, resolve
from probes.engine.state import Rows, Sum
from probes.functional.answer_scores import answer_scores
from probes.functional.interval_from_sums import interval_from_sums
from probes.functional.wilson_interval import wilson_interval
from tasks import Batch, InputError

_STREAM = ("hook_embed", "hook_resid_pre", "hook_resid_mid", "hook_resid_post", "unembed.hook_in")


class LogitLens(Probe):
    """Rank and probability of the answer when the final norm and unembedding are applied at every layer.

    The hidden states of each layer go through the model's final norm and unembedding, just as the last layer's do. The
    result is the answer of a model that stops at that layer.

    Measures (axis site):
        ``probability``: probability of the answer, mean over examples.
        ``probability_low``, ``probability_high``: 95% interval of that mean (Student's t). NaN for one example.
        ``probability_chance``: the expected value if each example's hidden state is exchanged for another example's.
            The frequencies of the answers alone give this, whatever the prompt.
        ``rank``: rank of the answer among all tokens, 1 for the most probable, median over examples. Equal logits share
            their mean rank.
        ``rank_low``, ``rank_high``: 95% interval of that median (order statistics). NaN below 6 examples.
        ``rank_chance`` (no axis): the mean rank of a random token, ``(d_vocab + 1) / 2``.
        ``top``: share of examples whose most probable token is the answer.
        ``top_low``, ``top_high``: its 95% interval (Wilson).
        ``top_chance``: the expected share under this exchange.

    Memory: three numbers per example and site, and ``sites x d_vocab`` numbers. Cost: one unembedding per example and
    site, one example at a time, so the numbers do not depend on the batches.

    Source: nostalgebraist (2020), "interpreting GPT: the logit lens".

    Args:
        answer: the label that holds each example's answer. ``None``: the token that the model itself ranks first after
            its last block, which is then measured too.
        tokens: token id of each class of that label, in the order of its classes. ``None``: the label's values are
            token ids.
        at: sites in the residual stream. After the final norm (``unembed.hook_in``) only the unembedding is applied.
        readout: the position at which the answer is predicted.

    Raises:
        InputError: for a model without final norm and unembedding, or whose logits these do not give (BERT), sites
            outside the residual stream, or answers that are not token ids.

    Example:
        >>> LogitLens()
        LogitLens(answer=None, tokens=None, at=residual(), readout=last_token())
    """

    scores = Rows()
    answers = Rows()
    spread = Sum()

    def __init__(
        self,
        answer: str | None = None,
        tokens: Sequence[int] | None = None,
        at: Sites = residual(),
        readout: Readout = last_token(),
    ) -> None:
        if tokens is not None and answer is None:
            raise InputError("tokens was given without answer; give the label whose classes they are the tokens of")
        super().__init__(at, check_row_readout(readout))
        self.answer = answer
        self.tokens = tokens

    def bind(self, model: Models) -> list[Site]:
        """Resolve the sites, and keep the model's final norm and unembedding."""
        if isinstance(model, Mapping):
            raise InputError(f"LogitLens measures one model at a time, and was given {len(model)}; run it on each")
        sites = super().bind(model)
        self._lens = FinalReadout(model)  # type: ignore[arg-type]  # which refuses anything but a model
        return sites

    def _sites_in(self, model: HookPoints) -> list[Site]:
        sites = super()._sites_in(model)
        for site in sites:
            if not site.name.endswith(_STREAM):
                raise InputError(f"{site.name!r} is not in the residual stream; give at=residual()")
        if self.answer is None:
            (last,) = resolve(model, residual(-1))
            self._last = last.name
            if last not in sites:
                sites.append(last)
        return sites

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lens"}  # processes bind their own model

    # ---- state ----

    def update(self, activations: Mapping[str, Float[Tensor, "batch d_model"]], batch: Batch) -> None:
        """Keep the answer of each example, and its scores at each site."""
        if not hasattr(self, "_lens"):
            raise InputError("this LogitLens has no model; give it to run() or attach()")
        names = self.site_names
        is_normed = torch.tensor([name == "unembed.hook_in" for name in names])
        labels = None if self.answer is None else self._answers(batch)
        answers = []
        scores = torch.zeros(len(names), len(batch), 3, dtype=torch.float64)
        for i in range(len(batch)):  # one by one: a matrix product's rounding depends on its number of rows
            logits = self._lens(torch.stack([activations[name][i] for name in names]), is_normed)
            answer = logits[names.index(self._last)].argmax() if labels is None else labels[i].to(logits.device)
            of_answer = answer_scores(logits, answer.expand(len(names)))
            scores[:, i] = torch.stack([of_answer.probability, of_answer.rank, of_answer.top.double()], dim=1).cpu()
            answers.append(int(answer))
            probabilities = torch.softmax(logits.double(), dim=1).cpu()
            for name, at_site in zip(names, probabilities, strict=True):
                self.spread.add(name, at_site)
        for name, at_site in zip(names, scores, strict=True):
            self.scores.add(name, batch.index, at_site)
        self.answers.add("answer", batch.index, torch.tensor(answers, dtype=torch.int64))

    def _answers(self, batch: Batch) -> Int[Tensor, "batch"]:
        """Return the token ids of the answers that the label gives."""
        assert self.answer is not None
        classes = batch.label(self.answer, per="example").long()
        if self.tokens is None:
            return classes
        tokens = torch.tensor([int(token) for token in self.tokens], device=classes.device)
        unknown = classes[(classes < 0) | (classes >= len(tokens))]
        if len(unknown):
            raise InputError(
                f"label {self.answer!r} has the class {int(unknown[0])}, but tokens has {len(tokens)} token ids; give "
                "one per class"
            )
        return tokens[classes]

    # ---- result ----

    def compute(self) -> ProbeResult:
        """Return the scores of the answers at each site, with intervals and chance."""
        answers = self.answers.get("answer")[1]
        n = len(answers)
        sites = [self._measured(name, answers) for name in self.site_names]
        d_vocab = len(self.spread[self.site_names[0]])
        values = {measure: torch.tensor([site[measure] for site in sites], dtype=torch.float64) for measure in sites[0]}
        values["rank_chance"] = torch.tensor((d_vocab + 1) / 2, dtype=torch.float64)
        notes = []
        if n < 6:
            notes.append(f"{n} examples are too few for an interval of the median rank (6 are enough)")
        if n < 2:
            notes.append("there is one example, so its probability has no interval, and nothing to exchange it for")
        elif len(torch.unique(answers)) == 1:
            notes.append(
                "all examples have one answer, which is as probable after an exchange: probability_chance says nothing"
            )
        return self.result(
            values,
            {**dict.fromkeys(values, ("site",)), "rank_chance": ()},
            metadata={"n": n, "answers": len(torch.unique(answers))},
            notes=notes,
        )

    def _measured(self, site: str, answers: Int[Tensor, "example"]) -> dict[str, float]:
        """Return every measure of a site."""
        probability, rank, top = self.scores.get(site)[1].unbind(dim=1)
        n = len(answers)
        d_vocab = len(self.spread[site])
        is_right = (top.long() == answers).double()
        low, high = interval_from_sums(probability.sum(), probability.square().sum(), n)
        rank_low, rank_high = _median_interval(rank)
        top_low, top_high = wilson_interval(int(is_right.sum()), n)
        if n > 1:  # expectation over exchanges, each for one of the other examples
            frequency = torch.bincount(top.long(), minlength=d_vocab)[answers].double()
            probability_chance = float(((self.spread[site][answers] - probability) / (n - 1)).mean())
            top_chance = float(((frequency - is_right) / (n - 1)).mean())
        else:
            probability_chance = math.nan
            top_chance = math.nan
        return {
            "probability": float(probability.mean()),
            "probability_low": float(low),
            "probability_high": float(high),
            "probability_chance": probability_chance,
            "rank": float(rank.quantile(0.5)),
            "top": float(is_right.mean()),
            "top_low": top_low,
            "top_high": top_high,
            "top_chance": top_chance,
            "rank_low": rank_low,
            "rank_high": rank_high,
        }


def _median_interval(values: Float[Tensor, "example"]) -> tuple[float, float]:
    """Return a 95% interval of the median: the order statistics with at least that coverage, or NaN."""
    from scipy.stats import binom

    n = len(values)
    below = int(binom.ppf(0.025, n, 0.5))  # P(fewer than this many lie below the median) <= .025
    if below < 1:
        return math.nan, math.nan
    ordered = values.sort().values
    return float(ordered[below - 1]), float(ordered[n - below])
