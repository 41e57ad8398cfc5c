"""Heads with another role in the tuned model."""

from dataclasses import replace

import pytest
import torch

from mechclust.commands.compare import compare_models, estimate
from mechclust.commands.compare.inputs import read_inputs
from mechclust.commands.compare.roles import role_table
from probes import HeadRoles, run
from tasks import InputError, RepeatedTokens
from tests.mechclust.commands.heads.planted import words_tokenizer
from tests.probes.planted_roles import LENGTH, N_SYMBOLS, PlantedRoles

SHAPE = {"n_positions": 128, "n_head": 1, "vocab_size": 64}


def attend_to_itself(model):
    """Give the second block queries that are its keys, so that a token attends to itself by its position."""
    weight = model.transformer.h[1].attn.c_attn.weight
    weight[:, :32] = 6 * torch.cat([torch.eye(16), torch.eye(16)], dim=1)
    model.transformer.wpe.weight *= 50


@pytest.fixture(scope="module")
def result(write_checkpoint, tmp_path_factory, measured):
    folder = tmp_path_factory.mktemp("roles")
    base = write_checkpoint(folder / "base", **SHAPE)
    tuned = write_checkpoint(folder / "tuned", **SHAPE, change=attend_to_itself)
    for model in (base, tuned):
        words_tokenizer(64).save_pretrained(model)
    config = replace(measured.config, n_patched=0, n_resamples=20, n_permutations=0, rbf=False, n_role_sequences=6)
    return compare_models(str(base), str(tuned), config, folder / "out")


def test_a_head_with_a_new_role_is_named(result, tmp_path):
    (row,) = result.tables["head_roles"].itertuples()
    assert (row.name, row.base_role, row.tuned_role, row.changed) == ("L1H0", "none", "itself", True)
    assert row.base_excess_high < 0.2 < row.tuned_excess_low
    (reading,) = [each for each in result.readings if each.what.startswith("Heads")]
    assert reading.value.startswith("1 of 2: L1H0 none to itself (itself ")
    folder = result.write(tmp_path / "report").parent
    assert (folder / "head_roles.csv").read_text().count("\n") == 2
    assert (folder / "figures" / "roles_of_heads.png").exists()


def test_roles_are_those_of_the_probe(result):
    assert set(result.roles) == {"base", "tuned"}
    assert result.roles["base"].probe == "HeadRoles"
    assert result.roles["tuned"].metadata["n"] == 6
    assert result.why_no_roles == ""


def test_the_estimate_counts_the_sequences(result, write_checkpoint, tmp_path, monkeypatch):
    """Each of 6 sequences is 96 tokens, read by both models."""
    monkeypatch.setattr(estimate, "forward_seconds", positions_alone)
    checkpoint = write_checkpoint(tmp_path / "model", **SHAPE)
    words_tokenizer(64).save_pretrained(checkpoint)
    seconds = {}
    for n in (0, 6):
        config = replace(result.config, n_role_sequences=n)
        inputs = read_inputs(str(checkpoint), str(checkpoint), config, tmp_path / "out")
        seconds[n] = estimate.cost_of(inputs, config).seconds
    assert seconds[6] - seconds[0] == pytest.approx(2 * 6 * 96)


def positions_alone(settings, sizes, positions):
    return positions


def test_a_role_that_differs_by_chance_is_not_changed():
    """One of two samples calls a head, at the bound of what is called."""
    task = RepeatedTokens(N_SYMBOLS, LENGTH, (10, 16), n_test=12)
    base = run(PlantedRoles(1), task.batches("test"), HeadRoles(n_permutations=0))
    values = {name: value.clone() for name, value in base.values.items()}
    values["role"][0, 0] = 0
    roles = {"base": base, "tuned": replace(base, values=values)}
    (row,) = role_table(roles).itertuples()
    assert (row.name, row.base_role, row.tuned_role, row.role, row.changed) == (
        "L0H0",
        "previous",
        "none",
        "previous",
        False,
    )


def test_a_role_that_is_lost_and_one_that_is_won():
    task = RepeatedTokens(N_SYMBOLS, LENGTH, (10, 16), n_test=12)
    base = run(PlantedRoles(1), task.batches("test"), HeadRoles(n_permutations=0))
    flipped = {name: value.flip(0) if value.shape[0] == 2 else value for name, value in base.values.items()}
    table = role_table({"base": base, "tuned": replace(base, values=flipped)})
    assert set(table.loc[table["name"] == "L0H0", ["base_role", "tuned_role"]].iloc[0]) == {"previous", "induction"}
    assert table["changed"].all()
    change = (table["tuned_excess"] - table["base_excess"]).abs()
    assert change.is_monotonic_decreasing
    assert len(table) == 2 * int((base["role"][0] != base["role"][1]).sum())


def test_why_roles_are_not_compared(measured, gpt2, shaken, config, out):
    assert measured.roles == {}
    (note,) = [note for note in measured.caveats if note.startswith("Roles of heads were not compared: ")]
    assert "too small" in note
    with pytest.raises(InputError, match="n_role_sequences is 1"):
        compare_models(str(gpt2), str(shaken), replace(config, n_role_sequences=1), out)
