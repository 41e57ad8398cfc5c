"""Probes by their registered name at every checkpoint."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from mechclust import HistoryConfig, load_pretrained, measure_history
from mechclust.commands.history.curves import other_curves
from probes import AttentionEntropy, HeadRoles, LinearDecodability, ProbeResult, first_token, run
from tasks import InputError, LabelledPrompts
from tests.mechclust.commands.history.made import made_curve, made_result

NAMES = ("AttentionEntropy", "LinearDecodability", "CKA", "NeighbourPurity")


@pytest.fixture(scope="module")
def measured(trained_series, history_prompts, tmp_path_factory):
    folders = tuple(trained_series / f"checkpoint-{step}" for step in (8, 48))
    config = HistoryConfig(history_prompts, checkpoints=folders, probes=NAMES, position="first", map_prompts=0)
    out = tmp_path_factory.mktemp("others") / "run"
    return measure_history(trained_series, config, out), out, config


def test_curves_are_those_of_the_probes_with_the_readout_of_the_run(measured):
    result, _, config = measured
    model = load_pretrained(config.checkpoints[1])
    batches = list(LabelledPrompts.from_file(config.prompts).batches(model.tokenizer))
    entropy, linear = run(model, batches, [AttentionEntropy(), LinearDecodability(readout=first_token())])
    curve = result.curves["AttentionEntropy_entropy"]
    assert curve.value[1] == pytest.approx(entropy["entropy"].mean(dim=1).numpy(), abs=1e-5)
    assert (curve.place, curve.layers) == ("block", [0, 1])
    accuracy = result.curves["LinearDecodability_accuracy"]
    assert accuracy.value[1] == pytest.approx(linear.sel("accuracy", label="task").numpy(), abs=1e-5)
    assert accuracy.title == "LinearDecodability accuracy"
    assert (accuracy.place, accuracy.layers) == ("layer", [0, 1, 2])
    for ours, theirs in ((accuracy.low, "null_low"), (accuracy.high, "null_high")):
        assert ours[1] == pytest.approx(linear.sel(theirs, label="task").numpy(), abs=1e-5)
    assert [name for name in result.curves if name.startswith("Linear")] == ["LinearDecodability_accuracy"]


def test_they_are_in_tables_figures_and_results(measured, undrawn):
    result, out, _ = measured
    page = result.write(out).read_text()
    assert "LinearDecodability accuracy" in page
    assert (out / "figures" / "LinearDecodability_accuracy_map.png").exists()
    rows = result.to_dataframe().query("measure == 'LinearDecodability_accuracy'")
    assert len(rows) == 2 * 3
    assert np.isfinite(rows["value"]).all()
    assert "LinearDecodability_accuracy" in result.shown_table
    assert "LinearDecodability accuracy" in str(result)


def test_a_probe_without_a_number_per_layer_says_so(measured):
    result, _, _ = measured
    assert not any(name.startswith("CKA_") for name in result.curves)
    assert "CKA has no measure with one number per layer or head; all it found is in results." in result.caveats
    assert "CKA/checkpoint-8" in result.results


@pytest.mark.parametrize(("units", "n_told"), [("template", 1), ("none", 0)])
def test_their_intervals_are_not_those_of_the_series(units, n_told):
    """They are drawn over prompts and from other draws, whatever the units and halves of clusters and CKA."""
    p = np.full((2, 2), 0.5)
    curves = [made_curve(p, "LinearDecodability_accuracy", value_low=p), made_curve(p, "Other_score", high=p * np.nan)]
    result = made_result(curves)
    probes = ("LinearDecodability", "Other")
    result = replace(result, config=replace(result.config, probes=probes, units=units, n_resamples=0))
    told = [note for note in result.caveats if "take prompts as independent" in note]
    assert len(told) == n_told
    assert all(note.startswith("LinearDecodability has its default settings, without units") for note in told)
    assert not [note for note in result.caveats if "random halves" in note]


def test_a_probe_that_counts_examples_by_class(measured, history_prompts):
    curve = measured[0].curves["NeighbourPurity_neighbour_purity"]
    n_prompts = len(LabelledPrompts.from_file(history_prompts).prompts)
    assert curve.n == [n_prompts, n_prompts]


def test_of_the_roles_of_heads_there_is_a_curve_for_each(trained_series, history_prompts):
    folders = tuple(trained_series / f"checkpoint-{step}" for step in (8, 48))
    config = HistoryConfig(history_prompts, checkpoints=folders, probes=("HeadRoles",), map_prompts=0)
    result = measure_history(trained_series, config)
    model = load_pretrained(folders[1])
    roles = run(model, list(LabelledPrompts.from_file(history_prompts).batches(model.tokenizer)), HeadRoles())
    assert list(result.curves) == [f"HeadRoles_best_{role}" for role in roles.coords["role"]]
    best = roles.sel("score", role="previous").amax(dim=1)
    assert result.curves["HeadRoles_best_previous"].value[1] == pytest.approx(best.numpy(), abs=1e-5)


@pytest.mark.parametrize(("labels", "value"), [(["a", "b"], 0.5), (["all", "b"], 0.2), (["a", "task"], 0.8)])
def test_of_numbers_per_class_the_curve_is_the_mean(labels, value):
    """Also of a probe of one's own, which counts no examples. It used to be the first class."""
    values = {"score": torch.tensor([[0.2, 0.8]]), "score_low": torch.tensor([[0.1, 0.7]])}
    coords = {"site": ["hook_embed"], "label": labels}
    axes = dict.fromkeys(values, ("site", "label"))
    result = ProbeResult("Own", values, axes, coords, {"hook_embed": 0}, {"examples": "40-0a1b"})
    (curve,) = other_curves("Own", {0: result}, 1)
    assert (curve.value.item(), curve.n) == (pytest.approx(value), [40])
    assert np.isnan(curve.value_low.item()) == (labels == ["a", "b"])


def test_a_second_call_loads_no_model(measured, trained_series, monkeypatch):
    result, out, config = measured
    monkeypatch.setattr(HistoryConfig, "load", lambda *_, **__: pytest.fail("a model was loaded"))
    assert measure_history(trained_series, config, out).to_dataframe().equals(result.to_dataframe())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("AttentionEntrpy", "or a probe that mechclust list names; did you mean 'AttentionEntropy'?"),
        ("clustrs", "expected clusters, cka, heads, topics, or a probe that mechclust list names; did you mean 'clu"),
        ("TopicEmbedding", "probe 'TopicEmbedding' needs topics, so its name alone is not enough"),
        ("ClusteringHead", "--probes ClusteringHead does not fit these prompts: "),
        ("CKA", "--probes CKA gives no number per layer or head; add another, such as clusters or cka"),
    ],
)
def test_names_are_refused_before_work(history_prompts, trained_series, tmp_path, name, said):
    with pytest.raises(InputError, match=re.escape(said)):
        measure_history(trained_series, HistoryConfig(history_prompts, probes=(name,)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("probes", "expected"),
    [
        (("HeadRoles", "clusters"), True),
        (("AttentionEntropy",), True),
        (("clusters", "cka"), True),
        (("HeadRoles", "heads"), False),  # which reads head outputs
        (("HeadRoles", "LogitLens"), False),  # which reads the unembedding
    ],
)
def test_models_are_loaded_without_patterns_if_nothing_measured_needs_them(history_prompts, probes, expected):
    assert HistoryConfig(history_prompts, probes=probes).needs_no_patterns is expected
