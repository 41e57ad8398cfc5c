"""The folder of a measurement: whose it is, what it has room for, and what an interruption leaves in it."""

from __future__ import annotations

import re
import shutil
from collections import namedtuple
from dataclasses import replace

import pytest

import mechclust.commands.parts
from mechclust.cli import main
from mechclust.commands.clusters import measure_clusters
from mechclust.commands.clusters.inputs import read_inputs
from mechclust.models.resolved import resolve_model
from mechclust.report.folder import check_folder, claim_folder
from probes import load_result, run_stores, save_rows
from tasks import InputError
from tests.mechclust.commands.clusters.cases import last_word_tells_the_task, write_prompts
from tests.mechclust.commands.refusals import refusal

USAGE = namedtuple("USAGE", ["total", "used", "free"])


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def counted(monkeypatch):
    """What ``run_stores`` measured, by the probe's name; raises where it is told."""
    ran, stop = [], []

    def counting(store, probe):
        name = type(probe).__name__
        if name in stop:
            raise KeyboardInterrupt
        ran.append(name)
        return run_stores(store, probe)

    monkeypatch.setattr(mechclust.commands.parts, "run_stores", counting)
    return ran, stop


class TestOneCommandPerFolder:
    def test_another_command_is_refused_before_work(self, gpt2, config, begun, monkeypatch, capsys):
        out = begun
        monkeypatch.setattr("mechclust.commands.settings.load_pretrained", None)
        argv = ["compare", str(gpt2), str(gpt2), "--prompts", str(config.prompts), "--out", str(out)]
        assert main([*argv, "--min-per-task", "4"]) == 2
        refused = f"{str(out)!r} holds a report of mechclust clusters; give another folder with --out"
        assert capsys.readouterr().err == f"mechclust: {refused}\n"
        assert main(["topics", str(gpt2), "--corpus", str(config.prompts), "--out", str(out)]) == 2
        assert capsys.readouterr().err == f"mechclust: {refused}\n"
        claim_folder(out.parent / "other", "compare")
        with pytest.raises(InputError, match="holds a report of mechclust compare; give another folder"):
            measure_clusters(str(gpt2), config, out.parent / "other")

    def test_unrelated_files_and_the_same_command_are_welcome(self, out):
        out.mkdir()
        (out / "notes.txt").write_text("mine")
        check_folder(out, "clusters")
        claim_folder(out, "clusters")
        check_folder(out, "clusters")

    def test_an_earlier_reports_files_are_removed_and_no_others(self, gpt2, measured, tmp_path, undrawn):
        first, out = measured[0], shutil.copytree(measured[1], tmp_path / "out")
        first.write(out)
        (out / "results" / "mine.txt").write_text("mine")
        assert (out / "results/trained/given.safetensors").exists()
        assert (out / "results/untrained-seed0").exists()
        second = measure_clusters(str(gpt2), replace(first.config, given="none", untrained=0), out)
        second.write(out)
        assert not (out / "results/trained/given.safetensors").exists()
        assert not (out / "results/untrained-seed0").exists()
        assert (out / "results/trained/linear.safetensors").exists()
        assert (out / "results" / "mine.txt").read_text() == "mine"


class TestRoom:
    def test_a_disk_that_is_too_small_is_refused_before_the_model_is_loaded(self, gpt2, config, out, monkeypatch):
        monkeypatch.setattr("shutil.disk_usage", lambda path: USAGE(2**40, 0, 2**20))
        monkeypatch.setattr("mechclust.commands.settings.load_pretrained", None)
        said = refusal(measure_clusters, str(gpt2), config, out)
        assert said.startswith("the hidden states of 3 models take ")
        assert f"but {str(out)!r} has 1 MiB free; give fewer prompts (--max-rows), --dtype bfloat16, or another" in said

    def test_a_report_that_cannot_be_written_loses_nothing(self, shallow, config, out, monkeypatch, capsys, undrawn):
        def full(*args):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("mechclust.report.page.replace_folder_files", full)
        argv = ["clusters", str(shallow), "--prompts", str(config.prompts), "--out", str(out), "--untrained", "0"]
        argv += ["--n-permutations", "49", "--n-resamples", "20", "--n-shuffles", "19", "--n-init", "2"]
        assert main(argv) == 2
        found = capsys.readouterr()
        assert re.search(r"layer +site label +ari", found.out)
        assert found.out.startswith("The clusters ")
        assert found.err.splitlines()[-1] == (
            f"mechclust: the report could not be written to {str(out)!r} (No space left on device); free space there, "
            "or give another folder with --out"
        )


class TestInterrupted:
    def test_what_was_measured_is_not_measured_again(self, gpt2, measured, out, counted):
        ran, stop = counted
        config = replace(measured[0].config, untrained=0)
        stop.append("LinearDecodability")
        with pytest.raises(KeyboardInterrupt):
            measure_clusters(str(gpt2), config, out)
        assert ran == 6 * ["TaskClusterARI"]  # as they are and given, at three layers
        stop.clear()
        ran.clear()
        resumed = measure_clusters(str(gpt2), config, out)
        assert ran == 3 * ["LinearDecodability"]
        expected = measured[0].to_dataframe()
        columns = [name for name in resumed.to_dataframe() if not name.endswith("corrected")]
        assert {"ari", "ari_low", "given_ari", "accuracy"} < set(columns)
        assert resumed.to_dataframe()[columns].equals(expected[columns])
        assert (resumed.shown.clusters == measured[0].shown.clusters).all()

    def test_other_settings_and_labels_are_measured_and_replace_them(self, gpt2, config, begun, counted):
        ran, _ = counted
        out, config = begun, replace(config, given="none", untrained=0)
        kept = set((out / "rows/trained/measured").iterdir())
        measure_clusters(str(gpt2), replace(config, n_shuffles=20), out)
        assert ran == 3 * ["LinearDecodability"]
        assert len(kept - set((out / "rows/trained/measured").iterdir())) == 3
        ran.clear()
        write_prompts(config.prompts, [{**r, "task": r["first"]} for r in last_word_tells_the_task()])
        measure_clusters(str(gpt2), replace(config, n_shuffles=20), out)
        assert len(ran) == 6

    def test_a_damaged_part_is_measured_again(self, gpt2, trained, alone, begun, counted):
        ran, _ = counted
        first, out = alone[0], begun
        part = next((out / "rows/trained/measured").glob("raw-*"))
        part.write_bytes(b"x")
        assert measure_clusters(str(gpt2), trained, out).to_dataframe().equals(first.to_dataframe())
        assert ran == ["TaskClusterARI"]
        assert load_result(part)

    def test_rows_come_in_shards(self, shallow, trained, states, monkeypatch):
        asked = []

        def saved(*args, **options):
            asked.append(options["shard_rows"])
            return save_rows(*args, **options)

        monkeypatch.setattr("mechclust.commands.saved_rows.save_rows", saved)
        states(str(shallow), trained)
        monkeypatch.setattr("mechclust.commands.parts.MIN_SHARD_ROWS", 1)
        monkeypatch.setattr("mechclust.commands.parts.MAX_SHARDS", 9)
        states(str(shallow), trained)
        assert asked == [128, 3]

    def test_the_command_says_what_is_there(self, config, out, monkeypatch, capsys):
        def stopped(*args, **options):
            raise KeyboardInterrupt

        monkeypatch.setattr("mechclust.cli_commands.clusters.measure_clusters", stopped)
        argv = ["clusters", "x", "--prompts", str(config.prompts), "--out", str(out)]
        assert main(argv) == 130
        assert capsys.readouterr().err == (
            "\nmechclust: interrupted; nothing was saved yet; the same command starts again from the beginning\n"
        )
        (out / "rows").mkdir(parents=True)
        assert main(argv) == 130
        assert capsys.readouterr().err == (
            f"\nmechclust: interrupted; what was measured so far is in {out}; run the same command again to resume\n"
        )


class TestInTheCommandsWords:
    def test_damaged_rows(self, gpt2, trained, begun):
        out = begun
        for part in (out / "rows/trained/measured").iterdir():
            part.unlink()
        shard = next((out / "rows/trained").glob("shard-*"))
        rows = shard / "hook_embed.safetensors"
        data = rows.read_bytes()
        rows.write_bytes(data[:-4] + bytes(x ^ 1 for x in data[-4:]))
        said = refusal(measure_clusters, str(gpt2), trained, out)
        assert "save_rows" not in said
        assert f"delete the folder {str(shard)!r} and run the same command again" in said

    def test_a_disk_that_fills_up(self, gpt2, config, out, monkeypatch):
        def full(*args):
            raise InputError("cannot write it") from OSError(28, "No space left on device")

        monkeypatch.setattr("probes.rows.save.write_shard", full)
        with pytest.raises(InputError, match="free space there, and run the same command again to continue"):
            measure_clusters(str(gpt2), config, out)

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"pca": 0}, "pca is 0; expected at least 1"),
            ({"drop_outliers": 1.0}, "drop_outliers is 1.0; expected above 1"),
            ({"n_clusters": 1}, "n_clusters is 1; expected at least 2"),
            (
                {"tsne": True, "pca": 1},
                "pca is 1, and a t-SNE needs 2 dimensions; give 2 or more, or leave out the t-SNE",
            ),
            ({"map_prompts": 1}, "map_prompts is 1; expected 0 for no map, or at least 2"),
        ],
    )
    def test_options(self, config, changes, said):
        assert refusal(replace(config, **changes).check) == said


class TestWithin:
    def test_the_classifier_holds_inputs_apart(self, shallow, config):
        assert config.classifier("hook_embed", ["task"]).units is None
        inputs = replace(config, within="first", untrained=0)
        assert inputs.classifier("hook_embed", ["task"]).units == "first"
        assert inputs.folds({"task": "aabb", "first": "0123"}) == 2
        assert inputs.folds({"task": 9 * "a", "first": "012012012"}) == 3
        found = measure_clusters(str(shallow), inputs).trained.linear.metadata["parameters"]
        assert "first" in str(found["units"])
        assert str(found["folds"]) == "3"

    def test_one_value_is_refused_before_the_model_is_loaded(self, gpt2, config):
        write_prompts(config.prompts, [{**r, "same": "x"} for r in last_word_tells_the_task()])
        with pytest.raises(InputError, match="within is 'same', which has only one value in the 27 prompts of"):
            read_inputs(resolve_model(gpt2), replace(config, within="same"))


def test_no_map(gpt2, trained, begun, tmp_path, undrawn):
    result = measure_clusters(str(gpt2), replace(trained, map_prompts=0), begun)
    assert result.shown is None
    assert "mechclust-map" not in result.write(tmp_path / "report").read_text()


def test_the_map_opens_above_layer_0(alone, tmp_path, monkeypatch, undrawn):
    result = alone[0]
    table = result.followed.table.copy()
    table.loc[table["layer"] == 0, "ami"] = 2.0
    seen = []
    monkeypatch.setattr(
        "mechclust.commands.clusters.figures.prompt_map", lambda *a, **options: seen.append(options["start"]) or ""
    )
    replace(result, followed=replace(result.followed, table=table)).write(tmp_path / "out")
    assert seen[0] > 0
