"""Conclusions on the clusters: one headline, a table of readings, and caveats on the numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from mechclust.commands.clusters.features import MIN_PROMPTS
from mechclust.commands.clusters.follow import MOSTLY, PARTLY, TIE
from mechclust.commands.clusters.measurements import Measurements
from mechclust.commands.clusters.verdicts import JudgedCurve, LabelVerdict
from mechclust.commands.units import TEMPLATE
from mechclust.evidence.intervals import value_with_interval
from mechclust.evidence.p_values import CHANCE_LEVEL, least_permutations_for_p_values
from mechclust.models.tokenizers import tokenization_in_words
from mechclust.report.reading import Reading
from mechclust.report.text import first_few, layers_text, list_text, ranges_text
from tasks.text.visible import quoted, shortened

_SHOWN = (LabelVerdict.MORE, LabelVerdict.NOT_COMPARED)


class Measure(NamedTuple):
    """Name and number format of a measure, and the option for its relabellings.

    Attributes:
        name: of its value.
        number: format of its value.
        option: option with the number of its relabellings.
    """

    name: str
    number: str
    option: str


_INDEX = Measure("adjusted Rand index", ".3f", "--n-permutations")
_ACCURACY = Measure("accuracy", ".2f", "--n-shuffles")
_SAME_TASK = Measure("same task", ".2f", "--n-permutations")

# ---- the conclusion ----


def headline(result: Measurements) -> str:
    """Return the label or feature that the clusters follow, and whether other measures show the task."""
    if result.judged["task"].clusters is None:
        followed = "The clusters could not be compared with the task."
    else:
        followed = _what_is_followed(result)
    return f"{followed} {_other_measures(result)}".strip()


def _what_is_followed(result: Measurements) -> str:
    untested = result.followed.untested_best(result.labels)
    if untested is not None:
        name = result.followed.called(untested)
        return f"The clusters agree most with {name}: open, too few relabellings to tell this from chance."
    best = result.followed.best(result.labels)
    if best is None:
        task = result.judged["task"].clusters
        if task is not None and task.verdict in _SHOWN and task.value >= PARTLY:
            where = f"layer {task.layer} the task (ARI {task.value:.2f})"
            return f"The clusters follow nothing on average over layers, but {where}."
        return "The clusters follow no label or surface feature that was looked at."
    name = _name_of_followed(result, best)
    verdict = _verdict_on_followed(result, best)
    if verdict == LabelVerdict.NO_MORE:
        return f"The clusters agree with {name} no more than random weights do."
    if verdict == LabelVerdict.MORE:
        return f"The clusters follow {name}, more than random weights do."
    if verdict == LabelVerdict.NOT_COMPARED:
        return f"The clusters follow {name} (not compared with random weights)."
    return f"The clusters follow {name}."


def _name_of_followed(result: Measurements, best: str) -> str:
    in_part = "" if result.followed.means[best] >= MOSTLY else " in part"
    return f"{result.followed.called(best)}{in_part}"


def _verdict_on_followed(result: Measurements, best: str) -> LabelVerdict:
    """Return the verdict on the index of a compared label, or on the mean agreement with another candidate."""
    judged = result.judged.get(best)
    if judged is not None and judged.clusters is not None:
        return judged.clusters.verdict
    if np.isnan(result.followed.highest_of_random[best]):
        return LabelVerdict.NOT_COMPARED
    return LabelVerdict.NO_MORE if result.followed.no_more_than_random(best) else LabelVerdict.MORE


def _other_measures(result: Measurements) -> str:
    """Return whether measures other than the raw clusters show the task.

    If the clusters follow it, only doubts are given.
    """
    if result.inseparable is not None:
        name = result.followed.called(result.inseparable)
        name = f"{name[0].upper()}{name[1:]}"
        if result.config.within is None:
            return f"{name} determines the task, so the two cannot be separated."
        return f"{name} and {quoted(result.config.within)} together determine the task, so they cannot be separated."
    task = result.judged["task"]
    if result.followed.best(result.labels) == "task" and result.followed.untested_best(result.labels) is None:
        return _on_wording(result)
    verdicts = {curve.verdict for curve in (task.given, task.linear, task.held_out) if curve is not None}
    if not verdicts:
        return "No other measure of the task could be taken."
    if not verdicts.isdisjoint(_SHOWN):
        return "Other measures still show the task."
    if LabelVerdict.NO_MORE in verdicts:
        return "Other measures show the task no more than random weights do."
    if LabelVerdict.TOO_FEW in verdicts:
        return "Whether other measures show the task is open."
    return "Other measures do not show the task."


def _on_wording(result: Measurements) -> str:
    """Return why clusters that follow the task may follow the wording of its prompts.

    It is empty without such a reason.
    """
    task = result.judged["task"]
    if task.clusters is None or task.clusters.verdict not in _SHOWN:
        return ""
    unit = unit_name(result)
    if result.one_template and set(result.one_template) == set(result.values["task"]):
        return f"Each task has one {unit} only, so wording is not ruled out."
    if task.held_out is None:
        return ""
    if task.held_out.verdict == LabelVerdict.NOT_SHOWN:
        return f"Nearest neighbours of another {unit} do not show it."
    if task.held_out.verdict == LabelVerdict.NO_MORE:
        return f"Nearest neighbours of another {unit} show it no more than random weights do."
    return ""


def unit_name(result: Measurements) -> str:
    """Return the held-out unit: a template, or a label that was given for it."""
    label = result.config.unit_label
    return TEMPLATE if label in (None, TEMPLATE) else quoted(label)


def readings(result: Measurements) -> list[Reading]:
    """Return the readings: the labels that the clusters follow, then the measures of each label."""
    rows = [*_followed_readings(result)]
    for label in result.labels:
        rows += _label_readings(result, label)
    return [*rows, *_agreement_reading(result)]


def _followed_readings(result: Measurements) -> Iterator[Reading]:
    followed = result.followed
    best = followed.best(result.labels)
    where = f"mean over {layers_text(ranges_text(followed.layers))}"
    untested = followed.untested_best(result.labels)
    if untested is not None:
        value = f"{followed.called(untested)} ({_agreement(result, untested)})"
        verdict = f"{LabelVerdict.TOO_FEW.capitalize()}."
        yield Reading("Clusters agree most with", value, where, "0", _of_random_weights(result, untested), verdict)
    if best is None and untested is None:
        rule = f"Followed in part: adjusted mutual information from {PARTLY:g}, above chance at some layer."
        yield Reading("Clusters follow", "no label or surface feature", where, verdict=rule)
    if best is not None:
        verdicts = [f"{_verdict_on_followed(result, best).capitalize()}."]
        for what, names in (("Nearly the same in these prompts", followed.same_as(best)),
                            ("As much", followed.as_much_as(best))):  # fmt: skip
            if names:
                verdicts.append(f"{what}: {list_text(followed.called(name) for name in names)}.")
        yield Reading(
            "Clusters follow",
            f"{_name_of_followed(result, best)} ({_agreement(result, best)})",
            where,
            chance="0",
            random_weights=_of_random_weights(result, best),
            verdict=" ".join(verdicts),
        )


def _of_random_weights(result: Measurements, name: str) -> str:
    """Return the mean agreement of clusters of random weights with a candidate, empty without such models."""
    random = result.followed.highest_of_random[name]
    return "" if np.isnan(random) else f"{random:z.2f}"


def _agreement(result: Measurements, name: str) -> str:
    """Return the mean and the highest agreement of the clusters with a candidate."""
    table = result.followed.table
    table = table[(table["name"] == name) & table["layer"].isin(result.followed.layers)]
    highest = table.loc[table["ami"].idxmax()]
    mean = f"adjusted mutual information {result.followed.means[name]:z.2f}"
    return mean if len(table) == 1 else f"{mean}; {highest['ami']:z.2f} at layer {highest['layer']}"


def _agreement_reading(result: Measurements) -> Iterator[Reading]:
    """Yield the mean agreement of the clusters with the labels and features that they agree with most."""
    followed = result.followed
    if followed.means:
        means = [f"{shortened(name)} {mean:z.2f}" for name, mean in followed.means.items()]
        where = f"mean over {layers_text(ranges_text(followed.layers))}"
        yield Reading(
            "Clusters agree with", first_few(means, most=5), where, "0", verdict="Adjusted mutual information."
        )


def _label_readings(result: Measurements, label: str) -> Iterator[Reading]:
    """Yield the readings of a label: clusters, clusters given the followed label, and the linear classifier."""
    judged = result.judged[label]
    name = "task" if label == "task" else quoted(label)
    by_label = f"Clusters by {name}"
    if judged.clusters is None:
        yield Reading(by_label, "no index at any layer", verdict="The notes say why.")
    else:
        yield _curve_reading(by_label, judged.clusters, _INDEX)
    if judged.given is not None and result.given is not None:
        yield _curve_reading(f"{by_label}, given {result.followed.called(result.given)}", judged.given, _INDEX)
    if judged.linear is not None:
        yield _curve_reading(f"Linear classifier of {name}", judged.linear, _ACCURACY)
    if label == "task":
        yield from _held_out_reading(result, judged.held_out)


def _held_out_reading(result: Measurements, held_out: JudgedCurve | None) -> Iterator[Reading]:
    """Yield how many prompts have a nearest neighbour of another template with their task, if templates are known."""
    what = f"Nearest neighbour of another {unit_name(result)}"
    if result.one_template:
        one = f"with one {unit_name(result)} only: {first_few(result.one_template, most=3)}"
        yield Reading(what, "undefined", verdict=f"Tasks {one}. Their wording cannot be held out.")
    if held_out is not None:
        reading = _curve_reading(what, held_out, _SAME_TASK)
        table = result.of_label("task").set_index("layer")
        yield replace(reading, value=f"{reading.value}; among all prompts {table.loc[held_out.layer, 'nearest']:.2f}")


def _curve_reading(what: str, curve: JudgedCurve, measure: Measure) -> Reading:
    """Return the highest value of a curve, with chance and random weights."""
    number = f"{{:z{measure.number}}}".format
    chance = "" if np.isnan(curve.low) else f"{number(curve.low)} to {number(curve.high)}"
    if chance and np.isfinite(curve.p):
        chance += f" (p = {curve.p:.2g})"
    below = f" Below chance at {layers_text(ranges_text(curve.below))}." if curve.below else ""
    random_weights = ""
    if curve.untrained is not None and curve.untrained_best is not None:
        random_weights = number(curve.untrained)
        highest = number(curve.untrained_best[0])
        if highest != random_weights:
            random_weights += f", at most {highest} at layer {curve.untrained_best[1]}"
    return Reading(
        what,
        f"{measure.name} {value_with_interval(curve.value, curve.interval, measure.number)}",
        f"layer {curve.layer}",
        chance,
        random_weights,
        f"{curve.verdict.capitalize()}. {_on_chance(curve, measure)}{below}",
    )


def _on_chance(curve: JudgedCurve, measure: Measure) -> str:
    """Return at which layers a curve is above chance, or how far it is from that."""
    n_layers = len(curve.layers)
    if curve.above:
        return f"Above chance at {curve.where}."
    if np.isnan(curve.least_p):
        return "It was not tested, and the notes say why."
    if curve.too_few:
        too_few = f"With {curve.n_relabellings} relabellings no p is below {1 / (1 + curve.n_relabellings):.2g}"
        if measure is _ACCURACY:  # its p is that of all layers together, which as many relabellings can test as one
            return f"{too_few}: give {measure.option} 100."
        needed = max(least_permutations_for_p_values(n_layers), 1000)
        return f"{too_few}, too much for {n_layers} layers: give {measure.option} {needed}."
    return f"The smallest p, corrected for the number of layers ({n_layers}), is {curve.least_p:.2g}."


# ---- caveats ----


def caveats(result: Measurements) -> list[str]:
    """Return the caveats on the numbers."""
    config = result.config
    metadata = result.trained.raw.metadata
    after = ", after t-SNE" if config.tsne else ""
    clusters = ", ".join(f"{n} for {quoted(label)}" for label, n in metadata["n_clusters"].items())
    exchanged = config.sampled
    same = "" if config.within is None else f" with the same {quoted(config.within)}"
    return [
        *result.input_notes,
        f"{metadata['n']} prompts, hidden state at {config.states}{after}; clusters: {clusters}.",
        *([tokenization_in_words(metadata["tokenization"])] if "tokenization" in metadata else []),
        *_on_given(result),
        f"Chance: 95% of the indices when labels are permuted among the {exchanged}{same}; p: the share of "
        f"{config.n_permutations} such permutations at least as high. Above chance: p of at most "
        f"{CHANCE_LEVEL:g}, corrected for the number of layers looked at (Benjamini-Hochberg: of the layers "
        "named, at most 5% are there by chance, on average). Below chance, as 2.5% of layers are by chance alone: it "
        "may be the trace of another label that moves the states more and is spread evenly over the classes.",
        f"In brackets after a value: its 95% interval over {exchanged}. That of an index is from {config.n_resamples} "
        f"random halves of the {exchanged}, each clustered anew.",
        *_on_classifier(result),
        *_on_held_out(result),
        *_on_random_weights(result),
        f"Surface features are read from a prompt's text and tokens; values of fewer than {MIN_PROMPTS} prompts count "
        f"as one. Clusters follow what they agree with most: adjusted mutual information of at least {MOSTLY:g} on "
        f"average over layers, partly from {PARTLY:g}, above chance at some layer (corrected for all "
        "layers, labels and features). What they agree with most is open if too few relabellings can test it.",
        *_probe_notes(result),
    ]


def _on_given(result: Measurements) -> Iterator[str]:
    given = result.given
    if given is None or result.trained.given is None:
        return
    name = result.followed.called(given)
    within = result.config.within
    also = "" if within is None else f" and the same {quoted(within)}"
    exchanged = f"{result.config.sampled} with the same value{also}"
    chance = f"labels are permuted among {exchanged}"
    if result.given_is_untested:
        chance = f"there is neither a test nor an interval: tasks of {exchanged} can be permuted in too few ways"
    yield (
        f"Given {name}: the mean state of each of its {len(set(result.values[given]))} values is subtracted before "
        f"clustering, and {chance}."
    )
    for label in result.labels:
        if label not in result.trained.given.coords["label"]:
            determined = f"{name} determines it"
            if within is not None:
                determined = f"{name} and {quoted(within)} together determine it"
            yield f"Nothing is left of {quoted(label)} in these prompts: {determined}."


def _on_classifier(result: Measurements) -> Iterator[str]:
    linear = result.trained.linear
    if linear is None:
        return
    shares = []
    for label in linear.coords["label"]:
        shares.append(f"{float(linear.sel('majority', label=label)):.2f} for {quoted(label)}")
    yield (
        "Linear: held-out accuracy of a ridge classifier on the states, with nothing subtracted; "
        f"chance: the same with {result.config.n_shuffles} shuffles of the labels. Above "
        f"chance: at most {CHANCE_LEVEL:g} of the shuffles have a layer as high (Westfall & Young 1993). Always "
        f"predicting the commonest class gives {', '.join(shares)}. What a classifier reads may be the prompts' "
        f"wording: compare with random weights.{_on_units_of_classifier(result)}"
    )


def _on_units_of_classifier(result: Measurements) -> str:
    """Return how the classifier uses the classes of ``within``, which it takes as its units."""
    within = result.config.within
    if within is None:
        return ""
    return (
        f" Prompts with the same {quoted(within)} are left out together, exchange labels with each other, and are one "
        "unit for its interval."
    )


def _on_held_out(result: Measurements) -> Iterator[str]:
    unit = unit_name(result)
    if result.trained.held_out is not None:
        yield (
            f"Nearest neighbour of another {unit}: share of prompts whose nearest neighbour (Euclidean distance, with "
            f"nothing subtracted) among prompts with another {unit} has their task; and the same among all prompts. "
            f"States that show each {unit} alone are at chance, for which whole {unit}s exchange their tasks. "
            "Templates that differ in one word count as two; --units LABEL groups them by a label of the file."
        )


def _on_random_weights(result: Measurements) -> Iterator[str]:
    if not result.untrained:
        yield "Nothing was compared with random weights, because none were asked for (--untrained 0)."
        return
    yield (
        f"{LabelVerdict.NO_MORE.capitalize()}: the lower end of the highest value's interval (of an index without one, "
        "the value less half the width of the chance range) is not above the highest value of any model with random "
        "weights at any layer. Of surface features, and of labels that are not given with --also: the mean agreement "
        f"is not above the highest of random weights by more than {TIE:g}."
    )
    if len(result.untrained) == 1:
        yield "One model with random weights may be far from the next: give --untrained 3 or more."


def _probe_notes(result: Measurements) -> Iterator[str]:
    """Yield the probes' notes, merging notes that are alike at several layers."""
    layers_of: dict[tuple[str, str], set[int]] = {}  # by prefix and note
    for prefix, note in _distinct_notes(result):
        site, _, rest = note.partition(" ")
        layer = result.trained.raw.layers.get(site.rstrip(":"))
        if layer is None:
            layers_of.setdefault((prefix, note), set())
        else:
            layers_of.setdefault((prefix, rest), set()).add(layer)
    for (prefix, note), layers in layers_of.items():
        text = f"{prefix}{_layers_of(layers)}: {note}" if layers else f"{prefix}{note}"
        yield f"{text[0].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def _distinct_notes(result: Measurements) -> Iterator[tuple[str, str]]:
    """Yield each note of the probes once, after a prefix that names its measure."""
    held_out = f"Nearest neighbour of another {unit_name(result)}: "
    prefixes = {"clusters": "", "given": "Given: ", "linear": "Linear: ", "held_out": held_out}
    seen: set[str] = set()
    for name, measure in result.trained.by_name.items():
        if name not in prefixes:  # neighbours among all prompts: their interval is not reported
            continue
        for note in measure.notes:
            if note not in seen:
                yield prefixes[name], note
            seen.add(note)


def _layers_of(layers: set[int]) -> str:
    text = layers_text(ranges_text(sorted(layers)))
    return f"{text[0].upper()}{text[1:]}"
