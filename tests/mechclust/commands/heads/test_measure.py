"""Roles that were planted are found, random weights play none, and what was measured is not measured again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mechclust.commands.heads.measure
from mechclust.commands.heads import HeadsConfig, HeadsResult, measure_heads
from mechclust.commands.heads.inputs import read_inputs
from mechclust.models import load_pretrained
from mechclust.models.repeated_tokens import repeated_tokens
from mechclust.models.resolved import resolve_model
from mechclust.models.sizes import Sizes
from probes import HeadRoles, run
from probes.head_roles import HEAD_ROLES
from tasks import InputError
from tests.mechclust.commands.heads.planted import PLANTED_CONFIG, SMALL, planted, words_tokenizer
from tests.probes.planted_roles import PLANTED


@pytest.fixture(scope="module")
def found() -> HeadsResult:
    return measure_heads(planted(), PLANTED_CONFIG)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("".join(" ".join(f"w{i}" for i in draw.integers(0, 20, 9)) + "\n" for _ in range(12)))
    return path


@pytest.fixture
def of_texts(texts: Path) -> HeadsConfig:
    return replace(SMALL, corpus=(texts,), split="line")


class TestRoles:
    def test_planted_roles_are_found(self, found: HeadsResult) -> None:
        table = found.by_head()
        assert table["role"].tolist() == [role for layer in PLANTED for role in layer]
        assert table["name"].tolist()[:9] == [*(f"L0H{i}" for i in range(8)), "L1H0"]
        by_role = found.by_role().set_index("role")
        assert by_role["heads"].to_dict() == {
            "previous": 2, "offset": 2, "duplicate": 2, "induction": 2, "first": 1, "itself": 1, "local": 1,
        }  # fmt: skip
        assert by_role.loc["induction", "strongest"] in ("L1H0", "L1H1")
        assert (by_role["score"] > by_role["chance"] + 0.2).all()

    def test_headline_and_readings(self, found: HeadsResult) -> None:
        assert found.headline == (
            "On repeated random tokens, 11 of 16 heads play a role: 2 induction, 2 duplicate token, 2 previous token, "
            "5 others."
        )
        reading = found.readings[0]
        assert (reading.what, reading.random_weights, reading.verdict) == ("Induction", "", "")
        assert reading.value.startswith("2 heads, attention up to 0.")
        assert len(found.readings) == 7

    def test_random_weights_are_compared(self, found: HeadsResult) -> None:
        weak = replace(found.trained, roles={text: _weaker(roles) for text, roles in found.trained.roles.items()})
        above = replace(found, untrained=[weak])
        assert {reading.verdict for reading in above.readings} == {"More than random weights."}
        alike = replace(found, untrained=[weak, found.trained])
        assert {reading.verdict for reading in alike.readings} == {"No more than random weights."}
        assert alike.headline.endswith("Random weights: 11.")
        near = {text: _weaker(roles, 0.999) for text, roles in found.trained.roles.items()}  # within the intervals
        unclear = replace(found, untrained=[replace(found.trained, roles=near)])
        assert {reading.verdict for reading in unclear.readings} == {"Not clearly more than random weights."}

    def test_roles_that_too_few_permutations_leave_open_are_unknown(self) -> None:
        """Of 16 heads, 639 are enough."""
        result = measure_heads(planted(), replace(PLANTED_CONFIG, n_permutations=99))
        assert result.headline == (
            "On repeated random tokens, 7 of 16 heads play a role: 2 previous token, 2 fixed offset, 1 first token, 2 "
            "others. Not testable with so few permutations: induction and duplicate token."
        )
        unknown = [reading for reading in result.readings if reading.value.startswith("unknown, attention up to ")]
        assert [reading.what for reading in unknown] == ["Induction", "Duplicate token"]
        assert {reading.verdict for reading in unknown} == {"Too few permutations to tell (--n-permutations)."}
        assert any("is 99, too few for any p_holm of at most 0.05" in note for note in result.caveats)
        enough = replace(result, config=replace(PLANTED_CONFIG, n_permutations=639))
        assert enough.untested == ()

    def test_a_role_that_no_head_plays_most_may_be_played(self, found: HeadsResult) -> None:
        """The two previous-token heads are local too."""
        roles = found.trained.roles["repeated tokens"]
        only_local = roles["role"] == HEAD_ROLES.index("local")
        called = roles["called"] * ~only_local[..., None]
        changed = replace(roles, values={**roles.values, "role": roles["role"] * ~only_local, "called": called})
        shown = replace(found, trained=replace(found.trained, roles={"repeated tokens": changed}))
        (local,) = [reading for reading in shown.readings if reading.what == "Local"]
        assert local.value.startswith("no head, ")
        assert local.verdict == "Played only by heads that have another role (2)."

    def test_without_permutations_no_p_is_said_to_decide(self, found: HeadsResult) -> None:
        assert any("corrected for all heads (Holm)" in note for note in found.caveats)
        without = replace(found, config=replace(PLANTED_CONFIG, n_permutations=0))
        assert not any("Holm" in note for note in without.caveats)

    def test_equals_the_probe_run_by_hand(self, gpt2: Path, of_texts: HeadsConfig) -> None:
        result = measure_heads(str(gpt2), of_texts)
        inputs = read_inputs(resolve_model(gpt2), of_texts)
        for text in ("repeated tokens", "text"):
            probe = HeadRoles(max_offset=2, n_permutations=19)
            expected = run(load_pretrained(gpt2, attention="sdpa"), inputs.batches[text], probe)
            measured = result.trained.roles[text]
            for name, values in expected.values.items():
                torch.testing.assert_close(measured[name], values, equal_nan=True)

    @pytest.mark.parametrize("family", ["llama", "bert"])
    def test_other_families(self, write_checkpoint: Any, tmp_path: Path, family: str, of_texts: HeadsConfig) -> None:
        result = measure_heads(str(write_checkpoint(tmp_path / family, family)), of_texts)
        assert result.n_heads == 4
        assert result.by_role()["score"].notna().all()

    def test_the_table_has_every_number(self, gpt2: Path, of_texts: HeadsConfig) -> None:
        table = measure_heads(str(gpt2), replace(of_texts, untrained=2)).to_dataframe()
        assert len(table) == 3 * 2 * 4 * 7  # models, texts, heads, roles
        assert table.columns[:7].tolist() == ["model", "text", "layer", "site", "head", "name", "role"]
        assert table.loc[table["model"] != "trained", "p_value"].isna().all()


def _weaker(roles: Any, share: float = 0.5) -> Any:
    """Return a result with a share of each excess, and no role."""
    values = {**roles.values, "excess": roles["excess"] * share, "role": 0 * roles["role"]}
    return replace(roles, values=values)


class TestTexts:
    def test_tokens_repeat_between_special_ones(self, encoder_with_special_tokens: Path) -> None:
        inputs = read_inputs(resolve_model(encoder_with_special_tokens), SMALL)
        (batch,) = inputs.batches["repeated tokens"]
        for tokens, period in zip(batch.tokens.tolist(), batch.labels["period"].tolist(), strict=True):
            first, *random, last = tokens
            assert (first, last) == (2, 3)
            assert random[period:] == random[:-period]
            assert min(random) > 3
        assert len(inputs.shown["repeated tokens"]) == 16

    def test_the_longest_period_repeats_and_every_token_has_an_embedding(self) -> None:
        sizes = Sizes(n_layers=2, d_model=8, d_vocab=15, n_ctx=16)
        (batch,) = repeated_tokens(words_tokenizer(20), sizes, 64, 4096, length=40, periods=(4, 14))
        assert batch.tokens.shape == (64, 16)
        assert int(batch.labels["period"].max()) == int(batch.tokens.max()) == 14

    def test_the_sequence_that_is_shown_repeats_soonest_of_all_batches(self, gpt2: Path) -> None:
        inputs = read_inputs(resolve_model(gpt2), replace(SMALL, n_sequences=12, tokens_per_batch=16))
        batches = inputs.batches["repeated tokens"]
        of_period = {int(batch.labels["period"][0]): batch.tokens[0] for batch in reversed(batches)}
        assert (len(batches), len(of_period) > 1) == (12, True)
        assert torch.equal(inputs.shown["repeated tokens"], of_period[min(of_period)])

    def test_documents_begin_at_their_beginning(self, gpt2: Path, of_texts: HeadsConfig, tmp_path: Path) -> None:
        (tmp_path / "long.txt").write_text(" ".join(f"w{i % 20}" for i in range(90)) + "\nw3 w4 w5\n")
        inputs = read_inputs(resolve_model(gpt2), replace(of_texts, corpus=(tmp_path / "long.txt",)))
        lengths = [length for batch in inputs.batches["text"] for length in batch.lengths().tolist()]
        assert sorted(lengths) == [3, 12]


@pytest.fixture
def encoder_with_special_tokens(write_checkpoint: Any, tmp_path: Path) -> Path:
    from tests.mechclust.commands.topics.cases import wordpiece

    return wordpiece(write_checkpoint(tmp_path / "bert", "bert"), [f"w{i}" for i in range(18)])


class TestInterrupted:
    def test_what_was_measured_is_not_measured_again(
        self, gpt2: Path, of_texts: HeadsConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ran: list[int] = []

        def counting(*args: Any) -> Any:
            if len(ran) == 3:
                raise KeyboardInterrupt
            ran.append(1)
            return run(*args)

        monkeypatch.setattr(mechclust.commands.heads.measure, "run", counting)
        with pytest.raises(KeyboardInterrupt):
            measure_heads(str(gpt2), of_texts, tmp_path / "out")
        ran.clear()
        resumed = measure_heads(str(gpt2), of_texts, tmp_path / "out")
        assert len(ran) == 1
        monkeypatch.undo()
        monkeypatch.setattr("mechclust.commands.settings.load_pretrained", None)
        again = measure_heads(str(gpt2), of_texts, tmp_path / "out")
        assert again.to_dataframe().equals(resumed.to_dataframe())

    def test_more_permutations_measure_the_trained_model_alone(
        self, gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        measure_heads(str(gpt2), SMALL, tmp_path / "out")
        ran: list[Any] = []

        def counting(model: Any, batches: Any, probe: HeadRoles) -> Any:
            ran.append(probe.n_permutations)
            return run(model, batches, probe)

        monkeypatch.setattr(mechclust.commands.heads.measure, "run", counting)
        monkeypatch.setattr(mechclust.commands.heads.measure, "attention_view", None)
        measure_heads(str(gpt2), replace(SMALL, n_permutations=29), tmp_path / "out")
        assert ran == [29]

    def test_other_weights_in_the_same_folder_are_refused(
        self, write_checkpoint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Before random weights are measured. What was measured of the first weights stays."""
        measure_heads(str(write_checkpoint(tmp_path / "m")), SMALL, tmp_path / "out")
        before = set((tmp_path / "out" / "roles").iterdir())
        write_checkpoint(tmp_path / "m", seed=8)
        ran: list[Any] = []

        def counting(*args: Any) -> Any:
            ran.append(args)
            return run(*args)

        monkeypatch.setattr(mechclust.commands.heads.measure, "run", counting)
        with pytest.raises(InputError, match="holds what was measured of other weights of this model"):
            measure_heads(str(tmp_path / "m"), SMALL, tmp_path / "out")
        assert len(ran) == 1
        assert before <= set((tmp_path / "out" / "roles").iterdir())


@pytest.mark.slow
def test_workers_find_the_same(gpt2: Path, of_texts: HeadsConfig, fork_server: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("mechclust.jobs.local._CONTEXT", fork_server)
    expected = measure_heads(str(gpt2), of_texts).to_dataframe()
    assert measure_heads(str(gpt2), replace(of_texts, workers=2)).to_dataframe().equals(expected)
