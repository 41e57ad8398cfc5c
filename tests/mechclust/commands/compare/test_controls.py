"""Models tuned on one task alone."""

from __future__ import annotations

import shutil
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mechclust.commands.compare import CompareConfig, compare_models
from mechclust.commands.compare.checkpoints import find_checkpoints
from mechclust.commands.compare.inputs import read_inputs
from mechclust.models import load_pretrained
from probes import RowStore, load_result
from tasks import InputError
from tests.mechclust.commands.compare.cases import records, write_prompts


class TestControls:
    def test_controls_that_are_one_of_the_models(self, gpt2, shaken, config, tmp_path, out, monkeypatch):
        """And one model is in memory at a time."""
        load_pretrained(gpt2, attention="sdpa")  # what is imported now may log an error, which holds who imported it
        alive: list[weakref.ref] = []

        def loading(path, **options):
            assert not [model for model in alive if model() is not None]
            model = load_pretrained(path, **options)
            alive.append(weakref.ref(model))
            return model

        monkeypatch.setattr("mechclust.commands.settings.load_pretrained", loading)
        named = shutil.copytree(shaken, tmp_path / "c")
        config = replace(config, controls=(f"a={gpt2}", str(named)))
        result = compare_models(str(gpt2), str(shaken), config, out)
        assert len(alive) == 3  # one control is the base itself
        table = result.control_table()
        assert table["task"].tolist() == 3 * ["a"] + 3 * ["c"]
        assert table["n"].tolist() == 6 * [12]
        at = table.set_index(["task", "layer"])
        assert at.loc[("a", 2), "control_base"] == pytest.approx(1)
        assert at.loc[("c", 2), "control_tuned"] == pytest.approx(1)
        overall = result.to_dataframe().set_index(["task", "layer"])["debiased_cka"]
        assert at.loc[("a", 2), "control_tuned"] == pytest.approx(overall["a", 2])  # over its own task's prompts only
        assert at.loc[("c", 2), "control_base"] == pytest.approx(overall["c", 2])
        assert at.loc[("c", 2), "gain"] == pytest.approx(1 - overall["c", 2])
        assert (at["control_tuned_low"].dropna() <= at["control_tuned_high"].dropna()).all()
        gain = [at.loc[(task, 2), "gain"] for task in "ac"]
        assert np.median(gain) < 0
        gains = [reading for reading in result.readings if "median gain" in reading.what]
        assert [(x.value, x.where) for x in gains] == [
            ("0.00 (n = 2)", "layer 1"),
            (f"{np.median(gain):.2f} (n = 2)", "layer 2"),
        ]
        assert (
            "Layer groups: not named. Reason: tasks with a control: 2, and medians and their spread need at least "
            in (" ".join(result.sentences))
        )
        page = result.write(out).read_text()
        assert 'id="controls"' in page
        assert "layer_groups" not in page
        assert (out / "controls.csv").exists()
        found = load_result(out / "results" / "control-c-tuned.safetensors")
        assert found.coords["label"] == ["c"]
        assert RowStore(out / "rows" / "control-c").index.tolist() == list(range(24, 36))

    def test_a_task_with_an_odd_name(self, gpt2, shaken, config, out):
        write_prompts(config.prompts, records(["../x", "b"]))
        inputs = read_inputs(str(gpt2), str(shaken), replace(config, controls=(f"../x={gpt2}",)), out)
        assert [model.name for model in inputs.checkpoints] == ["base", "tuned", "control-%2E.%2Fx"]

    @pytest.mark.parametrize(
        ("control", "task", "model"),
        [
            ("a=b=m", "a=b", "m"),
            ("a=m", "a", "m"),
            ("a=m=n", "a", "m=n"),
            ("../x = y=runs/lr=0.1", "../x = y", "runs/lr=0.1"),
            ("runs/lr=0.1/b", "b", "runs/lr=0.1/b"),
            ("=1+2=m", "=1+2", "m"),
        ],
    )
    def test_a_task_or_a_model_with_an_equals_sign(self, control, task, model):
        tasks = ["a", "a=b", "b", "../x = y", "=1+2"]
        *_, found = find_checkpoints("m", "n", CompareConfig(Path("p.jsonl"), controls=(control,)), tasks)
        assert (found.task, found.model.source) == (task, model)

    def test_no_task_fits(self):
        config = CompareConfig(Path("p.jsonl"), controls=("c=b=m",))
        with pytest.raises(InputError, match=r"no task of the prompts for the control 'c=b=m' \(they have a, b\)"):
            find_checkpoints("m", "n", config, ["a", "b"])
