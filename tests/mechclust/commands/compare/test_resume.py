"""An interrupted comparison goes on, and rows of other models or prompts are never mixed in."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import mechclust.commands.parts
from mechclust.cli import main
from mechclust.commands.compare import compare_models, patching
from mechclust.commands.compare.inputs import check_same_prompts, prompts_file, read_inputs
from mechclust.report.folder import claim_folder
from probes.engine.run import RunStep
from probes.store.files import read_json
from tests.mechclust.commands.compare.cases import records, write_prompts


class TestResume:
    @pytest.fixture(autouse=True)
    def small_shards(self, monkeypatch):
        monkeypatch.setattr(mechclust.commands.parts, "MIN_SHARD_ROWS", 8)

    def test_an_interrupted_comparison_goes_on(self, gpt2, shaken, measured, out, monkeypatch):
        """Killed while the tuned model's rows were written, while what its blocks add was, and while it was patched."""
        passed: list[int] = []
        patched: list[int] = []
        limits = {"rows": 7, "patched": 2}

        def counted(name, found, n, go_on):
            if len(found) == limits[name]:
                raise KeyboardInterrupt
            found.append(n)
            return go_on()

        step, patch = RunStep.__call__, patching.patch_batch
        monkeypatch.setattr(
            RunStep, "__call__", lambda self, batch: counted("rows", passed, len(batch), lambda: step(self, batch))
        )
        monkeypatch.setattr(
            patching,
            "patch_batch",
            lambda *given: counted("patched", patched, len(given[2]), lambda: patch(*given)),
        )

        def compare(**changes):
            return compare_models(str(gpt2), str(shaken), replace(measured.config, **changes), out)

        for limits["rows"], rows in ((7, 36 + 2 * 8), (17, 3 * 36 + 2 * 8), (-1, 4 * 36)):
            with pytest.raises(KeyboardInterrupt):
                compare()
            assert sum(passed) == rows
        limits["patched"] = -1
        resumed = compare()
        again = compare(n_resamples=20, tolerance=0.02)
        assert sum(passed) == 4 * 36  # no prompt twice: both models, alone and together
        assert patched == [8, 8, 8, 8, 4]
        for name in ("cka", "blocks", "patching"):
            for measure, values in getattr(resumed, name).values.items():
                expected = getattr(measured, name)[measure]
                torch.testing.assert_close(values, expected, rtol=0, atol=1e-5, equal_nan=True)
        assert torch.equal(again.cka["cka"].nan_to_num(9), resumed.cka["cka"].nan_to_num(9))

    def test_interrupted_command(self, monkeypatch, capsys, tmp_path):
        def stopped(*args, **kwargs):
            raise KeyboardInterrupt

        monkeypatch.setattr("mechclust.cli_commands.compare.compare_models", stopped)
        out = tmp_path / "out"
        (out / "rows").mkdir(parents=True)
        assert main(["compare", "x", "y", "--prompts", "p.jsonl", "--out", str(out)]) == 130
        assert capsys.readouterr().err == (
            f"\nmechclust: interrupted; what was measured so far is in {out}; run the same command again to resume\n"
        )

    def test_other_prompts_may_come_before_any_rows(self, gpt2, shaken, config, out):
        """As after a first run that stopped while it loaded a model."""
        claim_folder(out, "compare")
        check_same_prompts(read_inputs(str(gpt2), str(shaken), config, out), out)
        write_prompts(config.prompts, records()[1:])
        inputs = read_inputs(str(gpt2), str(shaken), config, out)
        check_same_prompts(inputs, out)
        assert read_json(prompts_file(out)) == {"prompts": inputs.digest()}
