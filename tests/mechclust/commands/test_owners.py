"""Whose a command's folder is: named by what is measured, with one owner at a time, and of one model and data."""

from __future__ import annotations

import os
import shutil
import sys
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

import mechclust.commands.parts
from mechclust.cli import main
from mechclust.commands.clusters import ClustersConfig, measure_clusters
from mechclust.commands.compare import CompareConfig, compare_models
from mechclust.commands.folder import default_folder
from mechclust.commands.topics import TopicsConfig, measure_topics
from mechclust.report.table_text import table_as_csv
from probes import load_result, run_stores
from probes.store.locks import locked_folder
from probes.store.temporary_files import temporary_file_of
from tests.mechclust.commands.compare.cases import records, shake, write_prompts
from tests.mechclust.commands.refusals import refusal
from tests.mechclust.commands.topics.cases import write_planted_corpus


def hold(command, gate, argv):
    """Run a command that waits, once it has measured everything, for a file before it writes the first result."""
    module = import_module(f"mechclust.commands.{command}.measure")
    save = module.save_folder_results

    def wait(*args):
        (gate / "measured").touch()
        while not (gate / "go").exists():
            time.sleep(0.05)
        save(*args)

    module.save_folder_results = wait
    sys.exit(main([command, *argv]))


@pytest.fixture(scope="module")
def shaken(write_checkpoint, tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("shaken"), change=shake)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    return write_prompts(tmp_path_factory.mktemp("prompts") / "prompts.jsonl", records())


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_planted_corpus(tmp_path_factory.mktemp("corpus"), 30)


@pytest.fixture(scope="module")
def argv(gpt2, shaken, prompts, corpus):
    """Each command, quickly; without its folder."""
    few = ["--n-init", "2", "--n-permutations", "19", "--n-shuffles", "19", "--untrained", "0", "--given", "none"]
    compare = ["--min-per-task", "8", "--n-resamples", "20", "--n-permutations", "0"]
    topics = ["--n-topics", "3", "--no-below", "1", "--no-above", "1", "--thresholds", "0.1", "--untrained", "0"]
    return {
        "clusters": [str(gpt2), "--prompts", str(prompts), *few],
        "compare": [str(gpt2), str(shaken), "--prompts", str(prompts), *compare],
        "topics": [str(gpt2), "--corpus", str(corpus), *topics, "--resamples", "20"],
    }


@pytest.fixture(scope="module")
def compared(gpt2, shaken, prompts, tmp_path_factory):
    """As ``argv`` compares, without a report: settings, folder, result; read only."""
    config = CompareConfig(prompts, min_per_task=8, n_resamples=20, n_permutations=0)
    out = tmp_path_factory.mktemp("compared")
    return config, out, compare_models(str(gpt2), str(shaken), config, out)


@pytest.mark.slow
class TestOwners:
    @pytest.fixture
    def begin(self, argv, tmp_path, fork_server):
        """``begin(command)``: a real process that measured, and owns the folder until ``gate / "go"`` is there."""
        begun = []

        def start(command):
            gate = tmp_path / "gate"
            gate.mkdir()
            given = [*argv[command], "--out", str(tmp_path / "out")]
            process = fork_server.Process(target=hold, args=(command, gate, given))
            process.start()
            begun.append(process)
            while not (gate / "measured").exists():
                assert process.is_alive(), process.exitcode
                time.sleep(0.05)
            return process

        yield start
        for process in begun:
            process.kill()
            process.join()

    def refused(self, argv, out, capsys):
        assert main([*argv, "--out", str(out)]) == 2
        assert capsys.readouterr().err.splitlines()[-1] == (
            f"mechclust: {str(out)!r} is in use by another process; wait until it is done, or give another folder with "
            "--out"
        )

    @pytest.mark.parametrize("command", ["clusters", "compare", "topics"])
    def test_every_command(self, command, argv, tmp_path, capsys):
        with locked_folder(tmp_path):
            self.refused([command, *argv[command]], tmp_path, capsys)

    def test_the_second_is_refused_and_the_first_is_whole(self, argv, begin, tmp_path, capsys, compared):
        first, out = begin("compare"), tmp_path / "out"
        self.refused(["compare", *argv["compare"]], out, capsys)
        (tmp_path / "gate" / "go").touch()
        first.join()
        assert first.exitcode == 0
        assert (out / "report.html").exists()
        assert (out / "compare.csv").read_bytes() == table_as_csv(compared[2].to_dataframe())

    def test_the_lock_dies_with_its_owner_and_a_run_after_it_heals(self, argv, begin, tmp_path, capsys):
        first, out = begin("topics"), tmp_path / "out"
        self.refused(["topics", *argv["topics"]], out, capsys)
        first.kill()
        first.join()
        ours = temporary_file_of(out / "results" / "x")
        left = ours.with_name(ours.name.replace(f".{os.getpid()}.", f".{first.pid}."))
        left.parent.mkdir(exist_ok=True)
        left.write_bytes(b"half")  # as it would have left it
        assert main(["topics", *argv["topics"], "--out", str(out)]) == 0
        assert not left.exists()
        assert (out / "report.html").exists()


class TestNames:
    @pytest.mark.parametrize(
        ("parts", "name"),
        [
            (("gpt2", "./tuned/", "data/prompts.jsonl"), "compare-gpt2-tuned-prompts"),
            (("meta-llama/Llama-3.2-1B", None, Path("p.v2.jsonl")), "compare-Llama-3.2-1B-p.v2"),
            (("a b", "x" * 50, "提示.jsonl"), "compare-a-b-19d57fc4-" + "x" * 40 + "-64cde3ee-4103ec26"),
        ],
    )
    def test_by_what_is_measured(self, parts, name):
        assert default_folder("compare", *parts) == Path("runs") / name

    def test_always_a_file_name_of_its_own(self, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        given = ["..", "../../..", "a/b\0c", "\ud800", "x" * 5000, "-", "a\nb", "x.jsonl", "", "~"]
        found = [default_folder("clusters", part) for part in given]
        assert len(set(found)) >= len(given) - 2  # ".", ".." and "" are what they stand for
        for folder in found:
            assert folder.parent == Path("runs")
            assert len(folder.name) < 80
            folder.mkdir(parents=True, exist_ok=True)


class TestAnother:
    """A folder that was begun with something else is refused, with the way out."""

    def test_clusters(self, gpt2, shaken, prompts, tmp_path, monkeypatch):
        config = ClustersConfig(prompts, n_init=1, n_permutations=19, n_shuffles=19, untrained=0, given="none")
        measure_clusters(str(gpt2), config, tmp_path)
        changed = write_prompts(tmp_path / "other.jsonl", [{**records()[0], "prompt": "w1 w2"}, *records()[1:]])
        rows = tmp_path / "rows"
        for model, changes, said in (
            (shaken, {}, f"{str(rows / 'trained')!r} holds rows of another model"),
            (gpt2, {"dtype": "float16"}, f"{str(rows / 'trained')!r} holds rows of another model or dtype"),
        ):
            self.check(said, tmp_path, measure_clusters, str(model), replace(config, **changes))
        with monkeypatch.context() as unloaded:
            unloaded.setattr("mechclust.commands.settings.load_pretrained", None)
            for changes, kind in (
                ({"position": "mean"}, "at another --position"),
                ({"prompts": changed}, "of other prompts or tokens"),
                ({"max_rows": 20}, "of other prompts or tokens"),
            ):
                said = f"{str(tmp_path)!r} holds hidden states {kind}; give the same, or another folder with --out"
                self.check(said, tmp_path, measure_clusters, str(gpt2), replace(config, **changes))
        rows.rename(tmp_path / "rows away")  # then the record of the report tells
        said = f"{str(tmp_path)!r} holds what was measured of the model {str(gpt2)!r}, and this is {str(shaken)!r}"
        self.check(said, tmp_path, measure_clusters, str(shaken), config)

    def test_compare(self, gpt2, shaken, compared, tmp_path, monkeypatch):
        config, out, _ = compared
        shutil.copytree(out, tmp_path, dirs_exist_ok=True)
        rows = tmp_path / "rows"
        renamed = write_prompts(tmp_path / "renamed.jsonl", [{**r, "task": f"new {r['task']}"} for r in records()])
        changed = write_prompts(tmp_path / "changed.jsonl", [{**records()[0], "prompt": "w1 w2 w3"}, *records()[1:]])
        for pair, changes, said in (
            ((shaken, shaken), {}, f"base {str(shaken)!r}: {str(rows / 'base')!r} holds rows of another model"),
            ((gpt2, shaken), {"position": "first"}, f"{str(rows / 'base')!r} holds rows of another readout"),
            ((gpt2, shaken), {"tuned_dtype": "float16"}, f"{str(rows / 'tuned')!r} holds rows of another model"),
        ):
            self.check(said, tmp_path, compare_models, *map(str, pair), replace(config, **changes))
        monkeypatch.setattr("mechclust.commands.settings.load_pretrained", None)
        said = f"{str(tmp_path)!r} holds hidden states of other prompts, tasks or tokens; give the same, or another fol"
        for changes in ({"max_per_task": 8}, {"prompts": renamed}, {"prompts": changed}):
            self.check(said, tmp_path, compare_models, str(gpt2), str(shaken), replace(config, **changes))

    def test_topics(self, gpt2, shaken, corpus, tmp_path):
        few = {"n_topics": 3, "no_below": 1, "no_above": 1.0, "thresholds": (0.1,), "topic_seeds": (0,)}
        config = TopicsConfig((corpus,), **few, resamples=20, untrained=0)
        measure_topics(str(gpt2), config, tmp_path)
        other = write_planted_corpus(tmp_path / "other", 29)
        held = f"{str(tmp_path)!r} holds what was measured of "
        for model, changes, said in (
            (shaken, {}, f"{held}{gpt2}, which is not asked for; name it too, or give"),
            (gpt2, {"corpus": (other,)}, f"{held}another corpus"),
        ):
            self.check(said, tmp_path, measure_topics, str(model), replace(config, **changes))
        assert len(measure_topics([str(shaken), str(gpt2)], config, tmp_path).trained) == 2  # models may be added

    def check(self, expected, out, measure, *arguments):
        """Refused, and the folder still says whose it is."""
        whose = (out / "mechclust.json").read_bytes()
        said = refusal(measure, *arguments, out)
        assert expected in said
        assert "with --out" in said
        assert (out / "mechclust.json").read_bytes() == whose


def test_a_failing_figure_loses_nothing(gpt2, shaken, compared, tmp_path, monkeypatch, undrawn):
    def fails(result, tables):
        raise ValueError("no picture")

    config, out, result = compared
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    with monkeypatch.context() as broken:
        broken.setattr("mechclust.commands.compare.figures.compare_panels", fails)
        with pytest.raises(ValueError, match="no picture"):
            result.write(tmp_path)
    measures = {"blocks", "cka", "patching", "without_top_pc"}
    assert {path.stem for path in (tmp_path / "results").iterdir()} == measures
    kept = load_result(tmp_path / "results/cka.safetensors")["debiased_cka"]
    assert kept.nan_to_num(9).equal(result.cka["debiased_cka"].nan_to_num(9))
    ran = []
    monkeypatch.setattr(
        mechclust.commands.compare.by_layer, "run_stores", lambda *given: ran.append(given) or run_stores(*given)
    )
    again = compare_models(str(gpt2), str(shaken), config, tmp_path)
    assert not ran
    assert again.to_dataframe().equals(result.to_dataframe())
    assert again.write(tmp_path).exists()
    compare_models(str(gpt2), str(shaken), replace(config, n_resamples=21), tmp_path)
    assert ran
