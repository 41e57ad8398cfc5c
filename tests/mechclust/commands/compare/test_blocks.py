"""What each block adds to the base's residual stream says which layers changed, and not which inherit change."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mechclust.commands.compare import both_models, compare_models
from mechclust.commands.compare.inputs import read_inputs
from mechclust.commands.sampling import drawn_of_each
from mechclust.models import load_pretrained
from mechclust.models.same_input import same_input
from probes import RowStore, load_result, record
from probes.functional import linear_cka
from tests.mechclust.commands.compare.cases import TASKS

DEPTH, ALTERED = 4, 2  # the altered layer, counted from the embedding


def alter(block):
    def change(model):
        draw = torch.Generator().manual_seed(0)
        for weight in model.transformer.h[block].parameters():
            weight += 0.5 * torch.randn(weight.shape, generator=draw)

    return change


@pytest.fixture(scope="module")
def planted(write_checkpoint, tmp_path_factory):
    """A base, and the same with another block in the middle; read only."""
    folder = tmp_path_factory.mktemp("planted")
    base = write_checkpoint(folder / "base", n_layer=DEPTH)
    return base, write_checkpoint(folder / "tuned", n_layer=DEPTH, change=alter(ALTERED - 1))


@pytest.fixture(scope="module")
def settings(measured):
    off = {"top_pc": False, "n_patched": 0, "map_prompts": 0}
    return replace(measured.config, n_permutations=9, **off)


@pytest.fixture(scope="module")
def compared(planted, settings, tmp_path_factory):
    """Result and folder; read only."""
    out = tmp_path_factory.mktemp("compared")
    return compare_models(*map(str, planted), settings, out), out


@pytest.fixture(scope="module")
def without(planted, settings, tmp_path_factory):
    """The same with ``--no-blocks``."""
    out = tmp_path_factory.mktemp("without")
    return compare_models(*map(str, planted), replace(settings, blocks=False), out), out


class TestPlanted:
    def test_only_the_altered_block_changed(self, compared):
        result, _ = compared
        layers = [layer == ALTERED for layer in range(DEPTH + 1)]
        assert result.changed_together.tolist() == layers
        for k in range(len(TASKS)):
            assert result.changed[1:, k].tolist() == layers[1:]  # the embedding of the last token is one
        assert result.headline.startswith("Layers whose blocks changed: 2 of 0-4. Tasks that stand out: ")
        assert len(result.headline.split()) <= 25
        assert (result.patching, result.why_no_patching) == (None, "--n-patched 0 was given")
        summary = result.summary()
        assert summary["begins_at"].tolist() == [2, 2, 2]
        assert set(summary["changed_layers"]) == {"2"}
        assert result.by_layer()["changed"].tolist() == [0, 3, 0, 0]
        assert result.sentences[1].startswith("Change begins, layer 2: ")

    def test_the_residual_stream_calls_later_layers_too(self, compared, without):
        """Change begins behind that block, wherever it is largest."""
        without, _ = without
        assert without.summary()["begins_at"].tolist() == [2, 2, 2]
        assert set(without.summary()["changed_layers"]) == {"2-4"}
        assert without.headline.startswith("Layers that changed: 2-4 of 0-4.")
        assert without.sentences[1].startswith("Change begins, layer 2: ")
        assert compared[0].residual_verdict.changed[:, 1:].tolist() == without.changed.tolist()
        assert np.array_equal(compared[0].change, without.change, equal_nan=True)
        assert compared[0].stands_out.tolist() == without.stands_out.tolist()

    def test_readings(self, compared, tmp_path, undrawn):
        readings = {reading.what: reading for reading in compared[0].readings}
        changed = readings["Layers whose blocks changed for at least one task"]
        assert changed.value == "2"
        assert "inherits no change" in changed.verdict
        inherited = readings["Layers after which the residual stream differs"]
        assert inherited.value == "2-4"
        assert "Later layers are computed from earlier ones and inherit their change" in inherited.verdict
        assert not any("inherit their change" in r.verdict for r in readings.values() if r is not inherited)
        said = " ".join(compared[0].caveats)
        assert "Which layers changed is decided on 36 prompts (12 of a task)" in said
        assert "was not compared" not in said
        page = compared[0].write(tmp_path).read_text()
        assert "the 95% interval of 1 - debiased CKA between what its block adds in both models" in page

    def test_table(self, compared):
        table = compared[0].to_dataframe()
        blocks = table[table["layer"] > 0]
        result = compared[0].blocks
        assert blocks["block_cka"].tolist() == result["debiased_cka"].T.flatten().tolist()
        decided = blocks["changed"].astype(bool)
        assert (decided == (1 - blocks["block_high"] > 0.01)).all()
        assert blocks.loc[~decided, "block_cka"].tolist() == pytest.approx([1] * int((~decided).sum()))
        assert (blocks.loc[decided, "block_low"] <= blocks.loc[decided, "block_cka"]).all()
        embedding = table[table["layer"] == 0]
        assert embedding["block_cka"].equals(embedding["debiased_cka"].rename("block_cka"))
        assert embedding["block_high"].equals(embedding["high"].rename("block_high"))

    def test_results(self, compared):
        result, out = compared
        saved = load_result(out / "results" / "blocks.safetensors")
        assert saved.coords == {**result.cka.coords, "site": result.cka.coords["site"][1:]}
        assert torch.equal(saved["debiased_cka"], result.blocks["debiased_cka"])
        assert "debiased_cka_null_high" in saved.values
        assert saved.metadata["tokenization"]["adds"] == "none"

    def test_values_are_those_of_the_models(self, compared, planted, settings):
        """Computed from both models at once, without rows on disk."""
        base, tuned = map(load_pretrained, planted)
        prompts = settings.read_prompts()
        tokens = torch.tensor(base.tokenizer(prompts.prompts)["input_ids"])
        site = f"blocks.{ALTERED - 1}.hook_resid_post"
        rows = []
        for model in (tuned, base):
            with same_input(base, model) as blocks, record(blocks, [site]) as seen, torch.no_grad():
                blocks(tokens)
            rows.append(seen[site][0][:, -1])
        expected = float(linear_cka(*rows, debiased=True))
        found = float(compared[0].blocks.sel("debiased_cka", site=site, label="(all)"))
        assert found == pytest.approx(expected, abs=1e-5)


class TestPrompts:
    def test_at_most_so_many_of_a_task(self, planted, settings, compared, tmp_path):
        """They are drawn by a hash of their index; these are too few for an interval: neither changed nor unchanged.

        What was measured of all of them, in an earlier run, has no part in it.
        """
        shutil.copytree(compared[1], tmp_path, dirs_exist_ok=True)
        result = compare_models(*map(str, planted), replace(settings, blocks_prompts=4), tmp_path)
        assert result.blocks["n"].tolist() == [12, 4, 4, 4]
        assert result.cka["n"].tolist() == [36, 12, 12, 12]
        of_task = {task: torch.arange(12 * k, 12 * k + 12) for k, task in enumerate(TASKS)}
        drawn = torch.cat([*drawn_of_each(of_task, 4).values()])
        rows = []
        for model in ("base", "tuned"):
            store = RowStore(tmp_path / "rows" / f"blocks-{model}")
            assert store.index.tolist() == drawn.tolist()
            rows += store.take(drawn, [f"rows/{store.sites[ALTERED - 1]}"]).values()
        found = float(result.blocks["debiased_cka"][ALTERED - 1, 0])
        assert found == pytest.approx(float(linear_cka(*rows, debiased=True)), abs=1e-5)
        assert "decided on 12 prompts (4 of a task)" in " ".join(result.caveats)
        assert result.changed.mask.all()
        assert result.maybe_changed[ALTERED].any()
        assert not result.maybe_changed[ALTERED + 1 :].any()
        lacking = [reading for reading in result.readings if reading.what == "No block interval"]
        assert lacking
        assert all("4 prompts" in reading.verdict for reading in lacking)
        assert all(reading.verdict.endswith("It is not known whether they changed.") for reading in lacking)
        assert "Stands out" in {reading.what for reading in result.readings}


class ReadOnlyModel(SimpleNamespace):
    """A stub of a model whose hooks can only read."""


def loaded_model(kind=SimpleNamespace, *, d_model=16, dtype=torch.float32):
    """A stub of what ``load_pretrained`` gives."""
    return kind(cfg=SimpleNamespace(d_model=d_model), parameters=lambda: iter([torch.zeros(1, dtype=dtype)]))


class TestNotPossible:
    """The verdict comes from the residual stream, and it is said why."""

    @staticmethod
    def said(result):
        assert result.blocks is None
        assert "block_cka" not in result.to_dataframe()
        assert "blocks" not in result.results
        assert result.headline.startswith(("Layers that changed: ", "No layer "))
        (sentence,) = (note for note in result.caveats if "was not compared" in note)
        assert sentence.startswith("Which layers changed is decided by the residual stream, in which later layers")
        return sentence.split("was not compared: ")[1]

    def test_switched_off(self, without):
        assert self.said(without[0]) == "--no-blocks was given."
        assert not (without[1] / "rows" / "blocks-base").exists()

    def test_models_that_cannot_be_loaded_together(self, gpt2, shaken, settings, tmp_path, monkeypatch):
        def load(model, **options):
            if options.get("attention") == "eager":
                raise torch.OutOfMemoryError("out of memory\nand so on")
            return load_pretrained(model, **options)

        monkeypatch.setattr("mechclust.commands.settings.load_pretrained", load)
        result = compare_models(str(gpt2), str(shaken), settings, tmp_path)
        assert self.said(result).startswith("the models cannot be loaded together, with hooks that write (OutOfMemory")

    def test_before_loading(self, gpt2, shaken, settings, write_checkpoint, tmp_path, monkeypatch):
        def reason(base, tuned, tokenizer=None, **changes):
            config = replace(settings, **changes)
            return both_models._reason_before_loading(
                read_inputs(base, tuned, config, tmp_path / "out", tokenizer), config
            )

        assert reason(str(gpt2), str(shaken)) == ""
        other_dtype = "the models have different dtypes (float32 and bfloat16), whose rounding would count as change"
        assert reason(str(gpt2), str(gpt2), tuned_dtype="bfloat16") == other_dtype
        llama = write_checkpoint(tmp_path / "llama", "llama")
        assert reason(str(gpt2), str(llama)) == "the models are of different families"
        model = AutoModelForCausalLM.from_pretrained(gpt2)
        tokenizer = AutoTokenizer.from_pretrained(gpt2)
        for tuned in (model, load_pretrained(model, tokenizer=tokenizer)):  # which share their weights
            assert reason(model, tuned, tokenizer).startswith("base and tuned model are one model in memory")
        monkeypatch.setattr(both_models, "free_device_memory", lambda device: 2**10)
        too_large = r"their weights take .* GiB or more, and cpu has 9.54e-07 GiB free"
        assert re.fullmatch(too_large, reason(str(gpt2), str(shaken)))

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({}, ""),
            ({"kind": ReadOnlyModel}, "the hooks of models of this kind can only read"),
            ({"d_model": 24}, "the models have different widths"),
            ({"dtype": torch.bfloat16}, "the models have different dtypes (torch.float32 and torch.bfloat16), whose "),
        ],
    )
    def test_loaded_models(self, changes, said):
        reason = both_models._reason(loaded_model(), loaded_model(**changes))
        assert reason.startswith(said)
        assert bool(reason) == bool(said)


class TestModels:
    def test_another_pair_is_not_mixed_in(self, shaken, write_checkpoint, settings, measured, tmp_path):
        """Rows of blocks belong to both models."""
        first = RowStore(measured.config.prompts.parent / "out" / "rows" / "blocks-tuned").model
        other = write_checkpoint(tmp_path / "other", seed=8)
        compare_models(str(other), str(shaken), settings, tmp_path / "other out")
        assert RowStore(tmp_path / "other out" / "rows" / "blocks-tuned").model != first
