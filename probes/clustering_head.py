"""Heads that map equivalent inputs to one point (Odonnat, Bouaziz & Cabannes, arXiv 2410.24050)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from probes.engine.hooked_model import HookPoints
from probes.engine.labelled_rows import check_max_labelled_rows
from probes.engine.probe import Probe
from probes.engine.readout import Readout, all_tokens, at_position, check_row_readout, last_token, mean
from probes.engine.repeats import notes_on_repeats
from probes.engine.result import ProbeResult
from probes.engine.sites import Site, Sites, head_output
from probes.engine.state import Rows, Sum
from probes.functional.attention_entropy import entropy_of_rows
from probes.functional.holm import holm_over_heads
from probes.functional.integer_weights import (
    IntegerWeights,
    check_integer_weight_digits,
    check_weight_support,
    integer_weights,
)
from probes.functional.permutation_test import enough_permutations
from probes.functional.planar_lattice import PlanarLattice, planar_lattice
from probes.functional.relabelling import relabelling_measures, relabelling_of
from probes.functional.strata import check_strata_labels
from probes.functional.units import check_units
from probes.functional.within_ratio import nearest_centroid_accuracy, within_ratio, within_ratio_chance
from tasks import Batch, InputError
from tasks.settings import check_count

HEAD_VERDICTS = ("none", "integer-weight", "textbook")
TEXTBOOK_WITHIN_RATIO = 0.05  # a textbook head is below
_TEXTBOOK_NEAREST_CENTROID = 0.99  # a textbook head is above
INTEGER_DEVIATION = 0.25  # an integer-weight head is below
INTEGER_NEAREST_CENTROID = 0.95  # an integer-weight head has at least this accuracy

_AXES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("variance", "support_mass", "entropy", "verdict"), ("site", "head")),
    **dict.fromkeys(("rank_two", "planar_deviation", "planar_match", "planar_accuracy"), ("site", "head")),
    **dict.fromkeys(("rank_one", "integer_deviation", "integer_match"), ("site", "head")),
    **dict.fromkeys(("integer_accuracy", "integer_head"), ("site", "head")),
    "integer_weights": ("site", "head", "position", "digit"),
    **dict.fromkeys(("within_ratio", "nearest_centroid", "p_value", "p_holm"), ("site", "head", "equivalence")),
    **dict.fromkeys(("within_ratio_chance", "clusters"), ("equivalence",)),
    **dict.fromkeys(("best_within_ratio", "best_p_value"), ("site", "equivalence")),
    **dict.fromkeys(("best_within_ratio_null_low", "best_within_ratio_null_high"), ("site", "equivalence")),
}


class ClusteringHead(Probe):
    """Clusters of head outputs by equivalence of inputs, and their fit to integer sums of digits.

    A head's output is its ``hook_z`` at the query position: one point per example. A *textbook* clustering head maps
    each class of equivalent examples to one separate point. An *integer-weight* head maps examples to points on a line:
    a sum of integer weights with the residues that addition modulo ``modulus`` needs. A class may then be several
    points.

    Measures:
        ``within_ratio``, ``nearest_centroid`` (site, head, equivalence): within-cluster over total sum of
            squares, and share of examples nearest to their own class's centroid.
        ``within_ratio_chance`` (equivalence): the ratio's mean over random labels.
        ``clusters`` (equivalence): number of classes.
        ``variance`` (site, head): variance of the output, summed over its dimensions.
        ``support_mass``, ``entropy`` (site, head): attention on the support, and entropy in nats of the attention at
            the query, means over examples. Not evidence of a clustering head by themselves.
        ``integer_weights`` (site, head, position, digit), ``integer_deviation``, ``rank_one``,
            ``integer_match`` (site, head): see ``functional.integer_weights``. The match is 1 or 0.
        ``integer_accuracy`` (site, head): nearest-centroid accuracy for the integer sum's classes.
        ``integer_head`` (site, head): 1 if the residues match, the deviation is below 0.25 and ``integer_accuracy`` is
            at least 0.95.
        ``planar_deviation``, ``rank_two``, ``planar_match``, ``planar_accuracy`` (site, head): likewise for weights on
            a planar lattice, see ``functional.planar_lattice``. Weights that are small off the support match by chance.
        ``p_value``, ``p_holm`` (site, head, equivalence), with ``permutations``: p-value of the within-ratio under
            relabelling (``functional.relabelling_p_values``), and with Holm's correction over all heads. NaN with fewer
            than 20 different relabellings.
        ``best_within_ratio``, ``best_within_ratio_null_low``, ``best_within_ratio_null_high``, ``best_p_value``
            (site, equivalence), with ``permutations``: the smallest ratio of the heads, with the central 95% and
            p-value of this smallest ratio under relabelling.
        ``verdict`` (site, head): place in ``HEAD_VERDICTS``. 2, textbook: ``within_ratio`` of the first equivalence
            below 0.05 and ``nearest_centroid`` above 0.99, unless chance is below 0.05 as well. 1, integer-weight:
            ``integer_head`` and not textbook. 0, none.

    Memory: ``examples x (sites x heads x (d_head + 2) + positions)`` numbers, or ``max_rows`` examples. While a batch
    is measured, its patterns and head outputs of all sites are also held. Cost: for p-values, ``permutations x classes
    x examples x heads x d_head`` multiplications per site.

    Source: the heads are Odonnat, Bouaziz & Cabannes's (arXiv 2410.24050, 2501.02362). The verdict's criteria and
    thresholds are from a replication on 40 seeds of their network of 198 weights, and mean little in other networks.
    There, read ``p_holm`` with ``within_ratio``, and ``interchange``, which tests whether the model uses the outputs.

    Args:
        equivalence: the label whose classes are equivalent, one value per example, or several such labels. The first
            gives the verdict. ``()``: none is known, for example because ``interchange`` is to discover one. Measures
            per equivalence are then left out.
        support: the positions that matter, equal in all examples, or ``None``.
        modulus: ``p``, if tokens are digits 0 to ``p - 1`` and the task adds them. ``None``: the integer measures are
            NaN.
        at: head outputs. Their attention patterns are measured too, if the model has them.
        query: which query position, ``last_token()`` or ``token_at(...)``. A head output with one query
            position, as in the pooling transformer, is used whole.
        max_rows: keep at most this many examples, chosen by their index.
        permutations: number of relabellings for the p-values (0: none). ``None``: as many as Holm's correction over all
            heads needs to reach significance, at least 999.
        units: a label that says which examples belong together, such as the template of prompts, because they are not
            independent. Units of one class exchange labels as a whole. In the others, examples exchange them within the
            unit. ``head_attribution`` and ``interchange`` relabel likewise.

    Raises:
        InputError: for a support outside the sequence or with padding, a label given per token or with one class,
            tokens that are not digits below ``modulus``, or a model without head outputs.

    Example:
        >>> probe = ClusteringHead(("multiset", "sum"), support=(0, 1, 2, 3, 4), modulus=2)
        >>> probe
        ClusteringHead(equivalence=('multiset', 'sum'), support=(0, 1, 2, 3, 4), modulus=2, at=head_output(), \
query=last_token(), max_rows=None, permutations=0, units=None)
    """

    readout = all_tokens()

    points = Rows(cap="max_rows")
    attention = Rows(cap="max_rows")
    classes = Rows(cap="max_rows")
    digits = Rows(cap="max_rows")
    lengths = Sum(torch.int64)

    def __init__(
        self,
        equivalence: str | Sequence[str] = "multiset",
        support: Sequence[int] | None = None,
        modulus: int | None = None,
        at: Sites = head_output(),
        query: Readout = last_token(),
        max_rows: int | None = None,
        permutations: int | None = 0,
        units: str | None = None,
    ) -> None:
        _check_equivalence(equivalence, units)
        _check_digit_sums(support, modulus)
        if check_row_readout(query) == mean():
            raise InputError("query is mean(); expected one position per example: last_token() or token_at(...)")
        check_max_labelled_rows(max_rows)
        if permutations is not None:
            check_count(permutations=(permutations, 0))
        check_units(units, {"permutations": permutations is None or permutations})
        self.equivalence = equivalence
        self.support = support
        self.modulus = modulus
        self.at = at
        self.query = query
        self.max_rows = max_rows
        self.permutations = permutations
        self.units = units

    @property
    def labels(self) -> list[str]:
        """The names of the equivalence labels."""
        return [self.equivalence] if isinstance(self.equivalence, str) else list(self.equivalence)

    # ---- sites ----

    def _sites_in(self, model: HookPoints) -> list[Site]:
        """Return the head outputs, and the attention patterns that their blocks have."""
        hooks = getattr(model, "hook_dict", None)
        if hooks is not None and not any(_is_output(name) for name in hooks):
            raise InputError(
                f"a {type(model).__name__} has no head outputs (no hook point ends in attn.hook_z), so no clustering "
                "head can be found in it; give a model built by mechclust.build_model or TransformerLens"
            )
        sites = super()._sites_in(model)
        outputs = [site for site in sites if _is_output(site.name)]
        for site in sites:
            if site not in outputs and not (outputs and site.name.endswith("hook_pattern")):
                raise InputError(f"{site.name!r} is not a head output (attn.hook_z); give at=head_output()")
        patterns = [Site(_pattern_of(site.name), site.layer) for site in outputs]
        return outputs + [site for site in patterns if site.name in model.hook_dict]

    @property
    def outputs(self) -> list[str]:
        """Hook names of the head outputs, in order."""
        return [name for name in self.site_names if _is_output(name)]

    def query_positions(self, batch: Batch) -> Int[Tensor, "batch"]:
        """Return the query position of each example."""
        n, length = batch.tokens.shape
        return self.query(torch.arange(length, device=batch.tokens.device).expand(n, -1), batch)

    # ---- state ----

    def update(self, activations: Mapping[str, Float[Tensor, "batch ..."]], batch: Batch) -> None:
        """Keep each example's labels, its head outputs, and how its heads attend."""
        length = batch.tokens.shape[1]
        if self.support is not None:
            self._check_positions(batch, self.support)
        labels = {name: batch.label(name, per="example") for name in self.labels}
        where = self.query_positions(batch)
        for site, x in activations.items():
            if _is_output(site):
                self.points.add(site, batch.index, at_position(x, where))
                continue
            keys = at_position(x.transpose(1, 2), where).cpu().double()  # [batch head key]
            mass = keys[..., list(self.support or ())].sum(-1)
            self.attention.add(site, batch.index, torch.stack([mass, entropy_of_rows(keys)], dim=-1))
        if self.units is not None:
            labels[self.units] = batch.label(self.units, per="example")
        for name, label in labels.items():
            self.classes.add(name, batch.index, label)
        if self.support is not None:
            self.lengths.add(str(length), len(batch))
        if self.modulus is not None:
            self.digits.add("digits", batch.index, batch.tokens)

    def _check_positions(self, batch: Batch, support: Sequence[int]) -> None:
        """Refuse sequences in which the support's positions mean different things, or hold no digits."""
        length = batch.tokens.shape[1]
        check_weight_support(support, length)
        is_padded = batch.attention_mask is not None and not bool(batch.attention_mask.all())
        if is_padded or any(key != str(length) for key in self.lengths):
            raise InputError(
                "support was given, but the sequences have different lengths, where a position means different "
                "things; give sequences of one length without padding, or support=None"
            )
        if self.modulus is not None:
            check_integer_weight_digits(batch.tokens, support, self.modulus)

    def head_outputs(self, site: str) -> tuple[Int[Tensor, "n"], Float[Tensor, "n head d_head"]]:
        """Return the index of the examples, ascending, and the outputs kept at a site."""
        if site not in self.points:
            raise InputError(
                f"no head outputs of {site!r} were kept (of {', '.join(self.points) or 'none'}); run the probe"
            )
        return self.points.get(site)

    @property
    def unit_of_examples(self) -> Int[Tensor, "n"] | None:
        """The unit of each example, in the order of the index, or ``None`` without ``units``."""
        return None if self.units is None else self.classes.get(self.units)[1]

    def integer_fit(self, site: str, head: int) -> IntegerWeights:
        """Return ``functional.integer_weights`` of one head, ``classes`` in the order of the index.

        Raises:
            InputError: if the probe has no ``modulus`` or was not run there.
        """
        return integer_weights(self.head_outputs(site)[1][:, head], *self._digit_sums("integer sums"))

    def planar_fit(self, site: str, head: int) -> PlanarLattice:
        """Return ``functional.planar_lattice`` of one head, ``classes`` in the order of the index.

        Raises:
            InputError: as ``integer_fit``.
        """
        return planar_lattice(self.head_outputs(site)[1][:, head], *self._digit_sums("planar lattice"))

    def _digit_sums(self, what: str) -> tuple[Int[Tensor, "n position"], Sequence[int], int]:
        """Return the digits of the examples, the positions whose digits are added, and the modulus."""
        if self.support is None or self.modulus is None:
            raise InputError(f"this ClusteringHead has no modulus, so no {what}; give it support and modulus")
        return self.digits.get("digits")[1], self.support, self.modulus

    def partition(self, site: str, head: int) -> tuple[Int[Tensor, "n"], Int[Tensor, "n"]]:
        """Return the index of the examples and their clusters in an integer-weight head, which are its integer sums.

        Raises:
            InputError: as ``integer_fit``, and if the weights are undefined.
        """
        fit = self.integer_fit(site, head)
        if bool(fit.deviation.isnan()):
            raise InputError(f"the integer weights of head {head} at {site!r} are undefined; see integer_weights")
        return self.head_outputs(site)[0], fit.classes

    # ---- result ----

    def compute(self) -> ProbeResult:
        """Return every measure of each head, over all examples so far."""
        if len(self.lengths) > 1:
            raise InputError(
                f"merged states hold sequences of {' and of '.join(sorted(self.lengths))} tokens, where a position of "
                "the support means different things; merge states of sequences of one length"
            )
        labels = self._labels_with_classes()
        n_heads = self._heads_per_site()
        values = {**self._of_heads(labels), **self._of_attention(n_heads), **_of_labels(labels)}
        if self.permutations != 0 and labels:
            values |= self._p_values(labels, len(self.outputs) * n_heads)
        values["verdict"] = _verdicts(values)
        n_positions, n_digits = values["integer_weights"].shape[2:]
        result = self.result(
            values,
            {name: _AXES[name] for name in values},
            {
                "site": self.outputs,
                "head": [str(head) for head in range(n_heads)],
                "equivalence": self.labels,
                "position": [str(position) for position in range(n_positions)],
                "digit": [str(digit + 1) for digit in range(n_digits)],
            },
            metadata={"n": len(self.head_outputs(self.outputs[0])[1]), "verdicts": list(HEAD_VERDICTS)},
            notes=[*self._notes(values), *self._relabelling_notes(labels)],
        )
        return replace(result, layers={site: result.layers[site] for site in result.layers if site in self.outputs})

    def _labels_with_classes(self) -> dict[str, Int[Tensor, "n"]]:
        """Return the class of each example by label."""
        labels = {name: self.classes.get(name)[1] for name in self.labels}
        for name, label in labels.items():
            if len(torch.unique(label)) < 2:
                raise InputError(f"label {name!r} has one class only; clusters need examples of at least 2 classes")
        return labels

    def _heads_per_site(self) -> int:
        heads = {site: self.head_outputs(site)[1].shape[1] for site in self.outputs}
        if len(set(heads.values())) > 1:
            raise InputError(f"the sites have different numbers of heads {heads}; measure each with its own probe")
        return heads[self.outputs[0]]

    def _p_values(self, labels: Mapping[str, Int[Tensor, "n"]], tests: int) -> dict[str, Float[Tensor, "site ..."]]:
        """Return the measures of relabelling, with Holm's correction over so many tests' heads."""
        draws = enough_permutations(tests) if self.permutations is None else self.permutations
        by_site = []
        for site in self.outputs:
            points = self.head_outputs(site)[1]
            by_label = [relabelling_measures(points, label, draws, self.unit_of_examples) for label in labels.values()]
            by_site.append(_stacked(by_label, dim=-1))
        values = _stacked(by_site)
        values["p_holm"] = holm_over_heads(values["p_value"])
        return values

    def _relabelling_notes(self, labels: Mapping[str, Int[Tensor, "n"]]) -> list[str]:
        if self.permutations == 0 or not labels:
            return []
        units = self.unit_of_examples
        notes = [
            relabelling_of(label, units=units).too_few(name, named=False, units=self.units)
            for name, label in labels.items()
        ]
        if units is None:
            outputs = torch.cat([self.head_outputs(site)[1].flatten(1) for site in self.outputs], dim=1)
            notes += notes_on_repeats({"head outputs": outputs}, {})
        return [note for note in notes if note]

    def _of_heads(self, labels: Mapping[str, Int[Tensor, "n"]]) -> dict[str, Shaped[Tensor, "site head ..."]]:
        """Return the measures of each head's points."""
        by_site = []
        for site in self.outputs:
            heads = self.head_outputs(site)[1].unbind(dim=1)
            by_site.append(_stacked([self._of_head(points, labels) for points in heads]))
        return _stacked(by_site)

    def _of_head(
        self, points: Float[Tensor, "n d_head"], labels: Mapping[str, Int[Tensor, "n"]]
    ) -> dict[str, Shaped[Tensor, "..."]]:
        ratios = [within_ratio(points, label) for label in labels.values()]
        accuracies = [nearest_centroid_accuracy(points, label) for label in labels.values()]
        return {
            "variance": (points.double() - points[:1].double()).var(dim=0, correction=0).sum(),
            "within_ratio": torch.tensor(ratios, dtype=torch.float64),
            "nearest_centroid": torch.tensor(accuracies, dtype=torch.float64),
            **self._of_planar_lattice(points),
            **self._of_integer_weights(points),
        }

    def _of_planar_lattice(self, points: Float[Tensor, "n d_head"]) -> dict[str, Shaped[Tensor, ""]]:
        if self.modulus is None:
            nan = torch.tensor(torch.nan, dtype=torch.float64)
            return {"rank_two": nan, "planar_deviation": nan, "planar_match": torch.tensor(0), "planar_accuracy": nan}
        lattice = planar_lattice(points, *self._digit_sums("planar lattice"))
        return {
            "rank_two": lattice.rank_two,
            "planar_deviation": lattice.deviation,
            "planar_match": lattice.matches.long(),
            "planar_accuracy": nearest_centroid_accuracy(points, lattice.classes),
        }

    def _of_integer_weights(self, points: Float[Tensor, "n d_head"]) -> dict[str, Shaped[Tensor, "..."]]:
        if self.modulus is None:
            nan = torch.tensor(torch.nan, dtype=torch.float64)
            fit = IntegerWeights(nan.new_empty(0, 0), nan, nan, nan, torch.tensor(False), nan)
            accuracy = nan
        else:
            fit = integer_weights(points, *self._digit_sums("integer sums"))
            accuracy = nearest_centroid_accuracy(points, fit.classes)
        is_integer = fit.matches & (fit.deviation < INTEGER_DEVIATION) & (accuracy >= INTEGER_NEAREST_CENTROID)
        return {
            "integer_weights": fit.weights,
            "integer_deviation": fit.deviation,
            "rank_one": fit.rank_one,
            "integer_match": fit.matches.long(),
            "integer_accuracy": accuracy,
            "integer_head": is_integer.long(),
        }

    def _of_attention(self, n_heads: int) -> dict[str, Float[Tensor, "site head"]]:
        """Return each head's mean mass on the support and mean entropy. NaN if no pattern was measured."""
        means = torch.full((len(self.outputs), n_heads, 2), torch.nan, dtype=torch.float64)
        for place, site in enumerate(self.outputs):
            if _pattern_of(site) in self.attention:
                means[place] = self.attention.get(_pattern_of(site))[1].mean(dim=0)
        if self.support is None:
            means[..., 0] = torch.nan
        return {"support_mass": means[..., 0], "entropy": means[..., 1]}

    def _notes(self, values: Mapping[str, Shaped[Tensor, "..."]]) -> list[str]:
        sites = self.outputs
        unseen = [site for site in sites if _pattern_of(site) not in self.attention]
        notes = [f"{site}: no attention pattern was measured, so support_mass and entropy are NaN" for site in unseen]
        if self.support is None:
            notes.append("no support was given, so support_mass is NaN")
        if self.modulus is None:
            notes.append(
                "no modulus was given, so integer and planar measures are NaN, integer_match, integer_head and "
                "planar_match are 0, and a verdict of 0 only says that the head is no textbook head"
            )
        notes += [
            f"{name!r}: most examples are alone in their class, so a within-ratio near 0 is chance, no sign of a head"
            for name, chance in zip(self.labels, values["within_ratio_chance"].tolist(), strict=True)
            if chance < TEXTBOOK_WITHIN_RATIO
        ]
        undefined = values["integer_deviation"].isnan() & (self.modulus is not None)
        for site, head in (values["variance"] == 0).nonzero().tolist():
            notes.append(f"{sites[site]} head {head}: all examples give one output, so its measures are NaN")
        for site, head in (undefined & (values["variance"] != 0)).nonzero().tolist():
            notes.append(
                f"{sites[site]} head {head}: no integer weights, as the examples do not determine all of them "
                "or the median weight of the support is 0"
            )
        on_a_line = values["planar_deviation"].isnan() & ~values["rank_two"].isnan()
        for site, head in on_a_line.nonzero().tolist():
            notes.append(f"{sites[site]} head {head}: its fitted points lie on a line, so planar measures are NaN")
        return notes


def _check_equivalence(equivalence: str | Sequence[str], units: str | None) -> None:
    labels = [equivalence] if isinstance(equivalence, str) else equivalence
    if not isinstance(labels, Collection) or "" in labels or len(set(labels)) < len(labels):
        raise InputError(
            f"equivalence is {equivalence!r}; expected a label name, several different ones, or () for none"
        )
    for name in labels:
        check_strata_labels(name, units=units)


def _check_digit_sums(support: Sequence[int] | None, modulus: int | None) -> None:
    if support is not None:
        check_weight_support(support)
    if modulus is not None:
        check_count(modulus=(modulus, 2))
        if support is None:
            raise InputError(
                f"modulus is {modulus}, but support is None; give the positions whose digits are added, or modulus=None"
            )


def _stacked(tables: Sequence[Mapping[str, Shaped[Tensor, "..."]]], dim: int = 0) -> dict[str, Shaped[Tensor, "..."]]:
    """Return the tensors of each name stacked along a new axis."""
    return {name: torch.stack([table[name] for table in tables], dim=dim) for name in tables[0]}


def _of_labels(labels: Mapping[str, Int[Tensor, "n"]]) -> dict[str, Shaped[Tensor, "equivalence"]]:
    chances = [within_ratio_chance(label) for label in labels.values()]
    return {
        "within_ratio_chance": torch.tensor(chances, dtype=torch.float64),
        "clusters": torch.tensor([len(torch.unique(label)) for label in labels.values()]),
    }


def _verdicts(values: Mapping[str, Shaped[Tensor, "..."]]) -> Int[Tensor, "site head"]:
    """Return the places in ``HEAD_VERDICTS``. Textbook heads are judged by the first label, if there is one."""
    textbook = values["within_ratio"][..., :1] < TEXTBOOK_WITHIN_RATIO
    textbook &= values["nearest_centroid"][..., :1] > _TEXTBOOK_NEAREST_CENTROID
    textbook &= values["within_ratio_chance"][:1] >= TEXTBOOK_WITHIN_RATIO
    return torch.where(textbook.any(dim=-1), 2, values["integer_head"])


def _is_output(name: str) -> bool:
    """Return whether a hook point is a block's head outputs."""
    return name.endswith("attn.hook_z")


def _pattern_of(output: str) -> str:
    """Return the hook name of the attention pattern in a head output's block."""
    return output.removesuffix("hook_z") + "hook_pattern"
