"""Models that were trained elsewhere: what fits, what is left out and said, and how often they are loaded."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from mechclust.commands.mossa.config import N_PERMUTATIONS
from mechclust.commands.mossa.inputs import read_inputs
from mechclust.commands.mossa.states import READOUT, block_sites
from mechclust.commands.settings import ModelSettings
from mechclust.models.adapters import with_adapter
from mechclust.mossa.published import DATA_SIZE
from probes import CKA, RowStore, run_stores
from tasks import InputError
from tests.mechclust.commands.mossa import tiny
from tests.mechclust.commands.refusals import refusal


@pytest.fixture
def loads(monkeypatch):
    """Count how often each model is loaded, by the name of its folder."""
    counted = Counter()
    whole = ModelSettings.load

    def load(self, model, *args, **options):
        counted[Path(str(model)).name] += 1
        return whole(self, model, *args, **options)

    monkeypatch.setattr(ModelSettings, "load", load)
    return counted


pytestmark = pytest.mark.usefixtures("unpictured")
LEAST = {"n_resamples": 0, "n_answers": 0, "nulls": 0, "rbf": False, "without_top": False}


def adapters(out, names=tuple(tiny.TASKS), **changes):
    """The adapters of a run as options, and little to measure."""
    folder = out / "adapters"
    known = {
        "experimental": str(folder / "tuned"),
        "without_held_out": str(folder / "without-held-out"),
        "controls": tuple(f"{name}={folder / f'control-{name}'}" for name in names),
    }
    return {**LEAST, **known, **changes}


def test_models_that_were_trained_elsewhere(result, base, tasks, out, tmp_path):
    """Adapters given by name measure the same."""
    run = tiny.run(base, tasks, tmp_path / "run", **adapters(out))
    for role in ("base", "tuned", "all-tasks"):
        np.testing.assert_array_equal(run.values(role), result.values(role))
    assert not run.trained
    assert not (tmp_path / "run" / "adapters").exists()
    assert np.isnan(run.covariates[DATA_SIZE]).all()  # it is not known what the controls saw


def test_tasks_that_are_left_out_are_told(result, base, tasks, out, tmp_path):
    """Tasks without a control, and held-out ones without a model that did not see them; another base is named too.

    An adapter whose scale is changed then is measured again: its weights are the same, and only its configuration says
    what they add.
    """
    copied = shutil.copytree(out / "adapters" / "control-copy", tmp_path / "copy")
    renamed = shutil.copytree(out / "adapters" / "tuned", tmp_path / "renamed")
    config = json.loads((renamed / "adapter_config.json").read_text())
    (renamed / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": "meta/other"}))
    few = adapters(out, ("count", "first", "last"), experimental=str(renamed), without_held_out=None)
    few["controls"] = (*few["controls"], str(copied))
    run = tiny.run(base, tasks, tmp_path / "run", **few)
    assert sorted(run.tasks) == ["copy", "count", "first"]
    assert "No control was given for swap: not measured" in run.notes
    assert (
        "No model that was trained without the held-out tasks was given (--without-held-out): last is not measured"
        in run.notes
    )
    assert run.unmeasured == ["last"]
    assert any(sentence.startswith("Held out and not measured: last. Nothing") for sentence in run.sentences)
    assert not any(reading.what == "Held-out tasks" for reading in run.readings)
    assert [note for note in run.notes if "trained for" in note] == [
        f"The adapter {str(renamed)!r} says that it was trained for 'meta/other', and is measured on {str(base)!r}: "
        "the weights fit, but only you can know whether the base is the same."
    ]
    config = json.loads((copied / "adapter_config.json").read_text())
    (copied / "adapter_config.json").write_text(json.dumps({**config, "lora_alpha": 4 * config["lora_alpha"]}))
    after = tiny.run(base, tasks, tmp_path / "run", **few)
    place = run.tasks.index("copy")
    assert (run.values("base")[place] != after.values("base")[place]).any()


def test_a_model_that_may_have_seen_every_task(result, base, tasks, out, tmp_path):
    """No tasks are drawn as held out of a model that was trained elsewhere."""
    given = adapters(out, without_held_out=None, n_held_out=2, clusters=tmp_path / "clusters.toml")
    (tmp_path / "clusters.toml").write_text('[clusters]\nwhole = ["copy", "swap"]\n')
    assert not read_inputs(str(base), tiny.settings(tasks, **given)).collection.held_out
    assert refusal(
        tiny.run, base, tasks, tmp_path / "other", **{**given, "without_held_out": str(out / "adapters" / "tuned")}
    ) == (
        "--without-held-out is given, but no task is held out; name those that it was not trained on (--held-out, or "
        "held_out in clusters.toml)"
    )


def test_too_few_controls_are_refused_before_work(result, base, tasks, out, tmp_path, loads):
    for names, message in ((("copy", "count", "last"), "2 of the tasks"), (("copy",), "1 of the tasks")):
        said = refusal(tiny.run, base, tasks, tmp_path / "run", **adapters(out, names))
        has = "has" if message.startswith("1") else "have"
        assert said == (
            f"{message} that are not held out {has} a control and 4 test prompts or more; expected at least 3: give "
            "more --controls"
        )
    assert not loads
    assert not (tmp_path / "run").exists()


def test_an_adapter_for_another_base_is_refused_before_work(result, tasks, out, tmp_path, loads):
    """Also one of several."""
    wide = tiny.write_base(tmp_path / "wide", hidden_size=32)
    said = refusal(tiny.run, wide, tasks, tmp_path / "run", **adapters(out))
    assert said.startswith(f"the adapter {str(out / 'adapters' / 'tuned')!r} does not fit this base (LlamaForCausalLM)")
    assert "self_attn.q_proj.lora_A.default.weight' has the shape [2, 16], not [2, 32]; give the base" in said
    assert not loads
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("few", [True, False])
def test_an_adapter_for_a_deeper_base_is_refused_before_work(result, tasks, out, tmp_path, loads, few):
    """Its weights have the same shapes."""
    other = tiny.write_base(tmp_path / "other", num_hidden_layers=2 if few else 4)
    said = refusal(tiny.run, other, tasks, tmp_path / "run", **adapters(out))
    given = out / "adapters" / "tuned"
    assert said.startswith(f"the adapter {str(given)!r} {'has' if few else 'lacks'} the weights ")
    assert f".layers.{2 if few else 3}.self_attn.q_proj" in said
    assert not loads
    assert not (tmp_path / "run").exists()


def test_an_adapter_for_layers_of_other_names_is_refused_before_work(result, base, tasks, out, tmp_path, loads):
    """The names are those of another kind of model. Norms and the like are no reason."""
    renamed = shutil.copytree(out / "adapters" / "tuned", tmp_path / "renamed")
    weights = load_file(renamed / "adapter_model.safetensors")
    names = {name: name.replace(".q_proj", ".query") for name in weights}
    save_file({names[name]: weight for name, weight in weights.items()}, renamed / "adapter_model.safetensors")
    with pytest.raises(InputError, match=r"has the weights .*self_attn\.query.* has no place; give the base"):
        tiny.run(base, tasks, tmp_path / "run", **adapters(out, experimental=str(renamed)))
    assert not loads


def test_a_whole_checkpoint_of_another_depth_is_refused_before_work(result, base, tasks, out, tmp_path, loads):
    deep = tiny.write_base(tmp_path / "deep", num_hidden_layers=4)
    with pytest.raises(InputError, match="has 4 layers, but the base 3; give models tuned from the same base"):
        tiny.run(base, tasks, tmp_path / "run", **adapters(out, experimental=str(deep)))
    assert not loads
    assert not (tmp_path / "run").exists()


def test_whole_checkpoints_are_loaded_once_a_task(result, base, tasks, out, tmp_path, loads):
    """And once for what tells them from others: answers are scored by the model that is in, and where everything is
    measured none is loaded for a task."""
    import transformers

    for name in ("tuned", "control-copy"):
        plain = transformers.AutoModelForCausalLM.from_pretrained(base)
        with_adapter(plain, out / "adapters" / name).merge_and_unload().save_pretrained(tmp_path / name)
        transformers.AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / name)
    controls = adapters(out, ("count", "first"))["controls"]
    given = adapters(
        out,
        nulls=1,
        n_answers=4,
        experimental=str(tmp_path / "tuned"),
        without_held_out=None,
        controls=(f"copy={tmp_path / 'control-copy'}", *controls),
    )
    run = tiny.run(base, tasks, tmp_path / "run", **given)
    # one for its fingerprint; of three tasks and of all together; of its own and as a control of two others
    assert loads == {"base": 1, "tuned": 1 + 3 + 1, "control-copy": 1 + 1 + 2}
    copy = run.tasks.index("copy")
    place = result.tasks.index("copy")
    for role in ("base", "tuned"):
        np.testing.assert_allclose(run.values(role)[copy], result.values(role)[place], atol=1e-5)
    loads.clear()
    again = tiny.run(base, tasks, tmp_path / "run", **given)
    assert loads == {"base": 1, "tuned": 1, "control-copy": 1}
    np.testing.assert_array_equal(again.values("tuned"), run.values("tuned"))


class TestUnits:
    """A field of the examples says which of them share a template."""

    @pytest.fixture
    def templated(self, tasks, tmp_path):
        folder = shutil.copytree(tasks, tmp_path / "templated")
        for path in folder.glob("*.jsonl"):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            path.write_text(
                "".join(json.dumps({**x, "template": f"t{i // 3}", "same": "t"}) + "\n" for i, x in enumerate(lines))
            )
        return folder

    def test_whatever_is_compared_is_estimated_over_units(self, result, base, templated, out, tmp_path):
        """No role's similarity is that of other pairs of prompts, and chance levels pair whole units."""
        given = adapters(out, ("copy", "count", "first"), without_held_out=None, experimental=str(base))
        given |= {"without_top": True, "units": "template", "keep_rows": True}
        run = tiny.run(base, templated, tmp_path / "run", **given)
        found = run.of_task["copy"]
        for measure in ("cka", "without-top"):
            before, after = (found[f"{role}.{measure}"]["debiased_cka"] for role in ("base", "tuned"))
            torch.testing.assert_close(before, after, equal_nan=True)
        assert any("one template as one unit" in note for note in run.notes)
        assert any("independent" in note for note in result.notes)
        known = result.of_task["copy"]["base.cka"]
        torch.testing.assert_close(found["base.cka"]["cka"], known["cka"])
        assert not torch.allclose(found["base.cka"]["debiased_cka"], known["debiased_cka"], equal_nan=True)
        pair = {role: RowStore(tmp_path / "run" / "rows" / "copy" / role) for role in ("tuned", "control")}
        for units in ("unit", None):
            probe = CKA(at=block_sites(3), readout=READOUT, form="rows", units=units, n_permutations=N_PERMUTATIONS)
            expected = run_stores(pair, probe)["cka_null_high"]
            assert torch.equal(found["tuned.cka"]["cka_null_high"], expected) == (units is not None)

    def test_too_few_units_are_refused(self, result, base, templated, out, tmp_path):
        with pytest.raises(InputError, match=r"of them, and CKA needs 4; give another field, or leave out --units"):
            tiny.run(base, templated, tmp_path / "run", **adapters(out), units="same")

    def test_an_example_without_the_field_is_named(self, base, tasks, tmp_path):
        with pytest.raises(InputError, match=r'line 1 has no "template"; add it, or leave out --units'):
            tiny.run(base, tasks, tmp_path / "run", units="template")
