"""The command line: what it prints, and one sentence and exit code 2 for what it cannot use."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from mechclust.cli import main
from mechclust.jobs import Ray
from mechclust.report import Analysis
from mechclust.studies import RegisteredStudy, registered_studies
from tasks import LabelledPrompts
from tests.faults.process import command, run
from tests.mechclust.small_run import SMALL

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
HELP_OF_SETTINGS = [  # what their docstrings say
    *("--seeds", "optimiser steps", "k-means starts"),
    "--task.n-tasks INT number of tasks. (default: 20)",
    "--device STR where to train, such as cpu or cuda. (default: cpu)",
    "--workers INT number of processes, with one thread each; by default one per core",
    "--address STR address of the Ray cluster",
]
SMOKE = ["run", "task-clusters", "--preset", "smoke", "--workers", "1"]


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    records = [{"prompt": f"w{i} w{4 + i} w{10 + k}", "task": t} for k, t in enumerate("abc") for i in range(4)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def clusters(gpt2, prompts, tmp_path):
    """A quick ``clusters`` command that works."""
    fast = ["--n-init", "1", "--n-permutations", "9", "--n-resamples", "20", "--n-shuffles", "9"]
    fast += ["--tokens-per-batch", "30"]
    return ["clusters", str(gpt2), "--prompts", str(prompts), "--out", str(tmp_path / "out"), *fast]


@pytest.fixture
def refused(capsys):
    """Runs a command that must be refused with one sentence; gives the sentence."""

    def run(*argv):
        assert main([str(a) for a in argv]) == 2
        out, err = capsys.readouterr()
        sentence = [line for line in err.splitlines() if line.startswith("mechclust: ")]
        assert len(sentence) == 1, err
        assert err.endswith(sentence[0] + "\n")
        assert "Traceback" not in out + err
        return sentence[0].removeprefix("mechclust: ")

    return run


@pytest.fixture
def refused_option(capsys):
    """Runs a command whose options do not parse; gives all that was said, without the frame."""

    def run(*argv):
        try:
            code = main([str(a) for a in argv])
        except SystemExit as end:
            code = end.code
        out, err = capsys.readouterr()
        assert code == 2
        assert "Traceback" not in out + err
        return " ".join(re.sub("[╭╮╰╯│─]", " ", out + err).split())

    return run


@pytest.fixture
def never_trains(monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("started to work")

    monkeypatch.setattr("mechclust.studies.task_clusters.run.train", never)


class TestProcess:
    def test_bad_input(self, tmp_path):
        ended = run(command("clusters", "gpt2", "--prompts", str(tmp_path / "none.jsonl")), tmp_path)
        assert (ended.code, ended.out) == (2, b"")
        assert ended.err.decode() == (
            f"mechclust: no prompts file {str(tmp_path / 'none.jsonl')!r}; give the path of a JSONL, CSV or parquet "
            "file\n"
        )
        assert not list(tmp_path.iterdir())


class TestPlain:
    def test_list(self, capsys):
        assert main(["list"]) == 0
        said = capsys.readouterr().out
        assert said.startswith("Studies: mechclust run STUDY\n  cluster-factors: What hidden states cluster by")
        assert "\n  clustering-heads: Clustering heads: " in said
        assert "presets: smoke, quick, paper, gpt2" in said
        assert "\n  NDims: Number of principal directions" in said
        assert "\n  TopicAttention; needs topics: Attention between words" in said

    @pytest.mark.parametrize(
        ("command", "names", "words"),
        [
            ("check", "MODEL", []),
            ("clusters", "MODEL", ["--prompts", "--too-long", "--untrained", "JSONL (one object per line)"]),
            ("topics", "[MODEL]", []),
            ("heads", "MODEL", []),
            ("compare", "BASE TUNED", []),
            ("mossa", "BASE", []),
            ("run", "STUDY", ["published experiment", "--preset"]),
            ("report", "RUN-FOLDER", ["the --out folder of a run"]),
            ("sandbox", "RUN-FOLDER", []),
            ("run task-clusters", "", HELP_OF_SETTINGS),
            ("run mossa", "", []),
        ],
    )
    def test_help_is_for_readers(self, command, names, words, capsys):
        """What is to be given has its name, and nothing shows of docstrings' mark-up or of Python."""
        with pytest.raises(SystemExit) as end:
            main([*command.split(), "--help"])
        assert end.value.code in (0, None)
        said = capsys.readouterr().out
        plain = " ".join(re.sub("[╭╮╰╯│─]", " ", said).split())
        assert [word for word in words if word not in plain] == []
        usage = said.partition("\n")[0].split()
        assert [word for word in usage if word.strip("[]").replace("-", "").isupper() and word in names.split()] == (
            names.split()
        )
        assert not [odd for odd in ("``", "STR STR", "(default: )") if odd in said]
        if not command.startswith("run "):
            assert not [odd for odd in ("{None}", "(default: None)") if odd in said]

    def test_interruption_anywhere_is_130(self, monkeypatch, capsys):
        def stop():
            raise KeyboardInterrupt

        monkeypatch.setattr("mechclust.cli_commands.list.registered_studies", stop)
        assert main(["list"]) == 130
        assert capsys.readouterr().err == "\nmechclust: interrupted\n"

    def test_list_shows_what_other_packages_register_and_what_is_broken(self, monkeypatch, capsys):
        ours = next(found for found in registered_studies() if found.name == "mossa")
        broken = RegisteredStudy("odd", "odd-studies 1.2", None, "odd:STUDY: ImportError: no torch")
        monkeypatch.setattr("mechclust.cli_commands.list.registered_studies", lambda: [ours, broken])
        assert main(["list"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[1].startswith("  mossa: MOSSA: ")
        assert lines[3] == "    presets: smoke, quick, paper, lora, layer-decay, equal-steps"
        assert lines[4:6] == ["  odd (odd-studies 1.2): broken: odd:STUDY: ImportError: no torch", ""]


class TestRun:
    def test_prints_the_findings_and_the_report(self, finished):
        printed, out = finished
        rows = [line for line in printed.splitlines() if re.match(r"T\d", line)]
        findings, checks = ("T2", "T4", "T10"), ("T1", "T5", "T8")
        assert [row.split()[0] for row in rows] == [*findings, *checks]
        assert all("– not tested" in row for row in rows)
        assert printed.endswith(f"\nreport: {out / 'report.html'}\n")

    def test_report_writes_a_run_anew(self, finished, undrawn, tmp_path, capsys):
        out = shutil.copytree(finished[1], tmp_path / "run")
        (out / "report.html").unlink()
        assert main(["report", str(out), "--markdown"]) == 0
        printed = capsys.readouterr().out
        assert printed.count("\n| T") == 6
        assert (out / "report.html").exists()

    def test_report_records_a_run(self, finished, undrawn, tmp_path, capsys):
        out = shutil.copytree(finished[1], tmp_path / "run")
        assert main(["report", str(out), "--record", str(tmp_path / "kept")]) == 0
        printed = capsys.readouterr().out
        assert printed.endswith(f"\nrecord: {tmp_path / 'kept'}\n\nreport: {out / 'report.html'}\n")
        assert (tmp_path / "kept" / "findings.json").read_bytes() == (out / "findings.json").read_bytes()

    def test_settings_of_the_command_line_reach_the_run(self, tmp_path, capsys, monkeypatch):
        seen = []
        monkeypatch.setattr(
            "mechclust.cli_commands.run.run_study", lambda *a, **on: seen.append((*a, on)) or Analysis(findings=[])
        )
        assert main([*SMOKE, "--seeds", "3", "4", "--d-model", "16", "--no-tsne", "--out", str(tmp_path / "o")]) == 0
        (_, config, out, workers, probes, on), *_ = seen
        assert on == {"engine": "local", "timeout": None, "yes": False, "print_figures": False}
        assert (config.seeds, config.d_model, config.tsne, workers, probes) == ((3, 4), 16, False, 1, ())
        assert out == tmp_path / "o"
        assert config.training.steps == 20

    def test_so_does_where_it_runs(self, tmp_path, capsys, monkeypatch):
        seen = []
        monkeypatch.setattr(
            "mechclust.cli_commands.run.run_study", lambda *a, **on: seen.append(on) or Analysis(findings=[])
        )
        ray = ["--engine", "ray", "--address", "head:6379", "--gpus-per-job", "0.5", "--job-timeout", "60"]
        for options in (ray, ["--job-timeout", "60"]):
            assert main(["run", "task-clusters", "--preset", "smoke", "--out", str(tmp_path), *options]) == 0
        assert [(on["engine"], on["timeout"]) for on in seen] == [(Ray("head:6379", 0.5), 60), ("local", 60)]

    @pytest.mark.parametrize(
        "option", [("--task.seed", "3"), ("--task.outputs", "shared"), ("--task.split-by", "instruction")]
    )
    def test_an_option_that_the_run_would_overwrite_is_refused(self, refused_option, never_trains, tmp_path, option):
        said = refused_option(*SMOKE, *option, "--out", tmp_path / "o")
        assert "is set by each run, from seeds and arms" in " ".join(said.split())


class TestRunRefusals:
    def test_unknown_study(self, refused):
        assert refused("run", "task-cluster") == (
            "no study 'task-cluster' (it has cluster-factors, clustering-heads, heads-in-models, induction-heads, "
            "mossa, planted-layers, task-clusters, topic-structure); "
            "did you mean 'task-clusters'?"
        )

    def test_a_cluster_without_the_engine(self, refused):
        assert refused(*SMOKE, "--address", "auto") == (
            "--address is for a Ray cluster; add --engine ray, or leave it out"
        )

    def test_unknown_preset(self, refused):
        assert refused("run", "task-clusters", "--preset", "smoky") == (
            "task-clusters has no preset 'smoky' (it has smoke, quick, paper, gpt2); did you mean 'smoke'?"
        )
        assert "has no preset 'huge'" in refused("run", "task-clusters", "--preset=huge")

    def test_unknown_option(self, refused):
        assert refused(*SMOKE, "--sedes", "1") == (
            "task-clusters has no option '--sedes' (see mechclust run task-clusters --help); did you mean '--seeds'?"
        )
        assert refused(*SMOKE, "stray") == (
            "task-clusters has no option 'stray' (see mechclust run task-clusters --help)"
        )

    @pytest.mark.parametrize("typed", ["--step", "--n-mapping", "--training.step"])
    def test_what_is_suggested_exists(self, refused, capsys, typed):
        suggested = re.search(r"did you mean '(--[\w.-]+)'\?", refused(*SMOKE, typed, "5"))
        assert suggested is not None
        with pytest.raises(SystemExit):
            main([*SMOKE, "--help"])
        assert re.search(rf"{re.escape(suggested[1])}[ ,]", capsys.readouterr().out)

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (["--d-model", "wide"], "--d-model"),
            (["--n-init"], "--n-init"),
            (["--seeds"], "seeds is empty; expected at least one seed, such as --seeds 0"),
            (
                ["--arms", "private", "public"],
                "arms is 'public'; expected 'private', 'instruction', 'shared', 'five' or 'expressions'",
            ),
        ],
    )
    def test_value_of_another_type(self, refused_option, options, said):
        assert said in refused_option(*SMOKE, *options)

    def test_settings_that_nothing_can_be_trained_with(self, refused_option, tmp_path):
        assert "expected a multiple of n_heads (3)" in refused_option(*SMOKE, "--n-heads", 3, "--out", tmp_path / "o")

    @pytest.mark.parametrize(
        "options",
        [
            ["--seeds", "-1"],
            ["--n-init", "0"],
            ["--shared-outputs", "0"],
            ["--n-permutations", str(10**20)],
            ["--training.batch-size", "0"],
        ],
    )
    def test_numbers_out_of_range(self, refused_option, never_trains, tmp_path, options):
        said = refused_option(*SMOKE, *options, "--out", tmp_path / "o")
        assert f"{options[0][2:].split('.')[-1].replace('-', '_')}" in said.replace("-", "_")
        assert "expected" in said

    def test_a_learning_rate_of_0(self, refused):
        assert refused("run", "clustering-heads", "--lr", 0) == "lr is 0.0; expected above 0"

    def test_no_such_device(self, refused, never_trains, tmp_path):
        assert refused(*SMOKE, "--device", "warp", "--out", tmp_path / "o") == (
            "no device 'warp'; expected cpu, cuda, cuda:1 or mps"
        )

    def test_another_run_in_the_folder(self, refused, never_trains, finished):
        before = {p: p.read_bytes() for p in finished[1].rglob("*") if p.is_file()}
        assert refused(*SMALL, "--seeds", 1, "--out", finished[1]) == (
            f"{str(finished[1])!r} holds another run (seeds = [0], not [1]; seeds can only be added after these); "
            "choose another folder with --out, "
            "or the same settings to continue"
        )
        assert {p: p.read_bytes() for p in before} == before

    def test_report_of_no_run(self, refused, tmp_path):
        assert refused("report", tmp_path) == (
            f"{str(tmp_path)!r} holds no run (no readable config.json); give the --out folder of a run"
        )

    def test_figures_of_a_record(self, refused, tmp_path):
        (tmp_path / "results.tar.xz").touch()
        assert refused("report", tmp_path, "--print-figures") == (
            f"{str(tmp_path)!r} is a record, whose figures stay as they are; leave --print-figures out"
        )

    def test_report_of_a_run_that_has_not_ended(self, refused, finished, tmp_path):
        out = tmp_path / "run"
        out.mkdir()
        shutil.copy(finished[1] / "config.json", out)
        assert "start the study again with the same --out" in refused("report", out)

    def test_unknown_command(self, refused_option):
        assert "clustres" in refused_option("clustres")


class TestClusters:
    @pytest.mark.parametrize(
        ("option", "value", "expected"),
        [
            ("seed", 2**32, "at most 4294967295"),
            ("n_permutations", 10**8, "at most 10000000"),
            ("n_permutations", 10**20, "an integer that fits into 64 bits"),
        ],
    )
    def test_numbers_that_are_too_large(self, refused, clusters, tmp_path, option, value, expected):
        said = refused(*clusters, f"--{option.replace('_', '-')}", value)
        assert said == f"{option} is {value}; expected {expected}"
        assert not (tmp_path / "out").exists()

    def test_prints_the_table_and_writes_everything(self, clusters, tmp_path, capsys):
        assert main(clusters) == 0
        headline, _, *printed = capsys.readouterr().out.splitlines()
        assert headline.startswith("The clusters ")
        assert re.split(r"\s+", printed[0].strip()) == [
            *("layer", "site", "label", "ari", "null", "low", "null", "high", "p", "value", "untrained", "accuracy"),
            *("linear", "p", "untrained", "accuracy"),
        ]
        assert printed[1].split()[:4] == ["0", "embed", "task", "1.000"]
        assert printed[4] == ""
        sentences = [line for line in printed if line.startswith("- ")]
        assert re.match(
            r"- Clusters by task, layer 0: adjusted Rand index 1\.000 \(0\.\d+ to 1\.000\), chance ", sentences[1]
        )
        too_few = "With 9 relabellings no p is below 0.1, too much for 3 layers: give --n-permutations 1000."
        assert sentences[1].endswith(f"Open, too few relabellings to tell. {too_few}")
        assert any(line.startswith("- 12 prompts, hidden state at the last prompt token") for line in sentences)
        assert any(line.startswith("- Texts are read with ") for line in sentences)
        assert printed[-1] == f"report: {tmp_path / 'out' / 'report.html'}"
        found = [p for p in (tmp_path / "out").rglob("*") if p.is_file() and "rows" not in p.parts]
        files = sorted(str(p.relative_to(tmp_path / "out")) for p in found)
        models = ("trained", "untrained-seed0", "untrained-seed1", "untrained-seed2")
        assert files == [
            ".mechclust.lock",
            "clusters.csv",
            "features.csv",
            "figures/curves_by_layer.png",
            "figures/what_clusters_follow.png",
            "mechclust.json",
            "report.html",
            *(f"results/{x}/{y}.safetensors" for x in models for y in ("clusters", "linear")),
        ]
        assert "untrained" in (tmp_path / "out" / "clusters.csv").read_text().splitlines()[0]

    def test_the_shipped_prompts_are_accepted(self):
        """Eight tasks or more, twenty-five prompts each, with inputs shared between tasks."""
        path = Path(__file__).parents[2] / "examples" / "prompts" / "instructions.jsonl"
        prompts = LabelledPrompts.from_file(path)
        counts = {task: list(prompts.labels["task"]).count(task) for task in prompts.classes["task"]}
        assert len(counts) >= 8
        assert min(counts.values()) >= 25
        assert len(set(prompts.prompts)) == len(prompts)


class TestClustersRefusals:
    def test_no_prompts_given(self, refused_option, gpt2):
        assert "--prompts" in refused_option("clusters", gpt2)

    def test_no_prompts_file(self, refused, clusters, tmp_path):
        path = tmp_path / "none.jsonl"
        assert refused(*clusters, "--prompts", path) == (
            f"no prompts file {str(path)!r}; give the path of a JSONL, CSV or parquet file"
        )

    def test_a_mistyped_command(self, refused):
        message = refused("cluster", "model")
        assert message.startswith("no command 'cluster' (it has run, list, ")
        assert message.endswith("; did you mean 'clusters'?")

    def test_two_prompts(self, refused, clusters, prompts):
        prompts.write_text('{"prompt": "w1", "task": "a"}\n{"prompt": "w2", "task": "b"}\n')
        assert refused(*clusters) == (
            f"{prompts} has 2 prompts for 2 classes of 'task', so that each prompt would be its own cluster, in "
            "any model; give several of each"
        )

    def test_no_beginning_to_put(self, refused, clusters):
        assert refused(*clusters, "--bos", "yes") == (
            "this model's tokenizer has no beginning-of-sequence token, so --bos yes has none to add; leave out --bos"
        )

    def test_a_line_without_a_task(self, refused, clusters, prompts):
        prompts.write_text('{"prompt": "w1", "task": "a"}\n{"prompt": "w2"}\n')
        assert refused(*clusters) == (
            f'{prompts}, line 2 has no "task" (it has prompt); add it, or name the field that has it: --task-field'
        )

    def test_a_truncated_checkpoint(self, refused, clusters, gpt2, tmp_path):
        path = shutil.copytree(gpt2, tmp_path / "model")
        data = (path / "model.safetensors").read_bytes()
        (path / "model.safetensors").write_bytes(data[: len(data) // 2])
        assert refused("clusters", path, *clusters[2:]).startswith(
            f"trained {str(path)!r}: cannot load a model from the directory {str(path)!r}: "
        )

    def test_unknown_option(self, refused_option, clusters):
        assert "--bach-size" in refused_option(*clusters, "--bach-size", 3)

    def test_it_is_refused_before_the_model_is_loaded(self, refused, clusters, tmp_path, monkeypatch):
        def never(*args, **kwargs):
            raise AssertionError("loaded a model")

        monkeypatch.setattr("mechclust.commands.settings.load_pretrained", never)
        (tmp_path / "file").write_text("")
        assert "cannot write to" in refused(*clusters, "--out", tmp_path / "file" / "out")


def test_the_command_to_go_on_can_be_pasted(tmp_path, capsys, monkeypatch):
    """Also where a path has a space in it."""

    def stop(*args, **on):
        raise KeyboardInterrupt

    monkeypatch.setattr("mechclust.cli_commands.run.run_study", stop)
    argv = [*SMOKE, "--out", str(tmp_path / "my run")]
    assert main(argv) == 130
    assert shlex.split(capsys.readouterr().err.split("to resume: ")[1]) == ["mechclust", *argv]


def _interrupted(process):
    """Press Ctrl-C, and again where a library caught the interrupt and went on; return what was printed and said."""
    while True:
        os.killpg(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=60)


@pytest.mark.slow
def test_ctrl_c_leaves_a_run_that_goes_on(tmp_path, capsys):
    """Ctrl-C reaches every process of the terminal's group; the command it prints finishes the run.

    However late it comes, the run is still there: it waits before its report.
    """
    held = (
        "import sys, time\n"
        "from mechclust import cli\n"
        "from mechclust.studies import study\n"
        "study.report_run = lambda *_, **__: time.sleep(500)\n"
        "sys.exit(cli.main())"
    )
    out = tmp_path / "run"
    options = ["--preset", "smoke", "--workers", "2", "--seeds", "0", "--arms", "private", "shared"]
    argv = ["run", "task-clusters", *options, "--n-init", "1", "--no-tsne", "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-c", held, *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        start_new_session=True,
    )
    try:
        while not list(out.glob("results/*/*")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        printed, said = _interrupted(process)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130, said
    assert printed == ""
    assert "Traceback" not in said
    message = said.strip().splitlines()[-1]
    start = f"mechclust: interrupted; everything measured so far is in {out}; to resume: mechclust "
    assert message.startswith(start)
    assert not (out / "findings.json").exists()
    kept = {p: p.read_bytes() for p in out.rglob("step-*.safetensors")}
    kept[out / "config.json"] = (out / "config.json").read_bytes()

    again = shlex.split(message.removeprefix(start))
    assert again == argv
    assert main([*again, "--workers", "1"]) == 0  # in this process: two more would take their time to start
    assert f"report: {out / 'report.html'}" in capsys.readouterr().out
    assert {p: p.read_bytes() for p in kept} == kept
    assert len(json.loads((out / "findings.json").read_text())) == 10
