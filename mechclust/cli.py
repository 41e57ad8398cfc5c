"""The command line: thin, over what the packages offer."""

from __future__ import annotations

import argparse
import dataclasses
import io
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from mechclust.cli_settings import (
    BASE,
    MOSSA,
    MOSSA_OUT,
    MOSSA_PRESETS,
    NO_VERIFY,
    PRESET_SETTINGS,
    SETTINGS,
    Perhaps,
    is_suite,
    nearest_options,
    option_paths,
    suite_arguments,
    verifying,
)
from mechclust.commands.check import check_model
from mechclust.commands.clusters import ClustersConfig, measure_clusters, write_clusters_report
from mechclust.commands.compare import CompareConfig, compare_models, write_compare_report
from mechclust.commands.compare.report import what_to_know
from mechclust.commands.folder import default_folder, goes_on
from mechclust.commands.history import HistoryConfig, measure_history, write_history_report
from mechclust.commands.mossa import MossaConfig, presets, run_mossa, write_mossa_report
from mechclust.commands.mossa.sentences import lead_of, notes_of
from mechclust.commands.mossa.tables import groups_table
from mechclust.commands.sandbox import View, check_new, check_output, open_sandbox, write_sandbox
from mechclust.commands.settings import Dtype, EngineSettings
from mechclust.commands.topics import TopicsConfig, measure_topics, shown_measures, write_topics_report
from mechclust.commands.topics.suite import run_suite, write_suite_report
from mechclust.commands.topics.suite.sentences import lead_of as suite_lead
from mechclust.commands.topics.suite.sentences import notes_of as suite_notes
from mechclust.jobs import close_bars, one_interrupt
from mechclust.jobs.interrupts import telling_what_is_kept
from mechclust.report.claims import markdown_table, text_table
from mechclust.report.text import LAYERS, table_text
from mechclust.studies import get_study, open_run, registered_studies, report_run, run_study
from mechclust.studies.record import is_record, judge_again, record_run
from probes import list_probes
from tasks import InputError
from tasks.errors import nearest, suggest
from tasks.text.visible import quoted, short, visible

app = tyro.extras.SubcommandApp()

_LONGEST = 2000  # characters of an error


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; bad input gives one sentence on standard error and exit code 2."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # where it cannot write a character, it writes its number
        sys.stdout.reconfigure(errors="backslashreplace")
    if argv == ["--version"]:
        from importlib.metadata import version

        print(f"mechclust {version('mechclust')}")
        return 0
    try:
        if argv and not argv[0].startswith("-") and argv[0] not in _COMMANDS:
            raise InputError(f"no command {argv[0]!r}{suggest(argv[0], _COMMANDS)}")
        with one_interrupt(), verifying(argv, _READERS) as argv:
            if argv[:1] == ["run"] and len(argv) > 1 and not argv[1].startswith("-"):
                _run(argv[1], argv[2:])
                return 0
            if argv[:1] == ["mossa"]:
                _mossa(argv[1:])
                return 0
            if is_suite(argv):
                _suite(argv[1:])
                return 0
            return int(app.cli(prog="mechclust", args=argv or ["--help"], description=_DESCRIPTION, **_HELP) or 0)
    except InputError as error:
        close_bars()
        print(f"mechclust: {_told(error)}", file=sys.stderr)
        return 2
    except SystemExit as end:
        if end.code == 2:  # tyro has said what it did not understand
            _tell_nearest(argv)
        raise
    except KeyboardInterrupt as stop:
        close_bars()
        print(f"\nmechclust: interrupted{visible(str(stop.args[0])) if stop.args else ''}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:  # a name that no file can have, a file that is not ours to read
        if error.filename is None:
            raise  # a defect of ours
        close_bars()
        what = quoted(error.filename, _LONGEST)
        print(f"mechclust: cannot use {what} ({visible(error.strerror or str(error))}); give another", file=sys.stderr)
        return 2


def _tell_nearest(argv: Sequence[str]) -> None:
    """For options that a command does not have, those it may have been meant to be: ``--nperm``."""
    told = io.StringIO()
    with suppress(SystemExit), redirect_stdout(told):
        if argv[0] == "mossa":
            _mossa(["--help"])
        elif is_suite(argv):
            _suite(["--help"])
        else:
            app.cli(prog="mechclust", args=[argv[0], "--help"], **_HELP)
    for word, option in nearest_options(argv[1:], told.getvalue()).items():
        print(f"mechclust: no option {quoted(word)}; did you mean {option!r}?", file=sys.stderr)


def _told(error: InputError) -> str:
    """Its sentence, harmless to a terminal. Of a long one, in which names are long, the beginning and the way out."""
    return short(str(error), _LONGEST)


def _print(text: object) -> None:
    """Print lines in which users' texts may stand."""
    print(visible(str(text), keep="\n"))


_HELP: dict[str, Any] = {
    "config": (tyro.conf.PositionalMetavarFromFieldName, tyro.conf.DisallowNone),
    "registry": SETTINGS,
}
_COMMANDS = ("run", "list", "report", "check", "clusters", "topics", "compare", "history", "mossa", "sandbox")
_READERS = ("run", "report", "clusters", "topics", "compare", "history", "mossa", "sandbox")
_UNVERIFIED = f"{NO_VERIFY}: do not verify the checksums of the files that are read."
_DESCRIPTION = (
    "Where inside a transformer does structure live, and when in training does it appear?\n\n"
    f"{', '.join(_READERS)} also take {_UNVERIFIED}"
)


@app.command(name="run")
def _run_help(study: tyro.conf.Positional[str], preset: str = "quick", out: Perhaps[Path] = None) -> None:
    """Run a published experiment, or resume it: `mechclust run task-clusters --preset quick`.

    Every setting of a study is listed by `mechclust run STUDY --help`.

    Args:
        study: name of the study, as in `mechclust list`.
        preset: `smoke` (seconds), `quick` (minutes), `paper` (full size), or another of the study's presets.
        out: folder of the run; runs/STUDY-PRESET by default.
    """
    _run(study, ["--preset", preset, *([] if out is None else ["--out", str(out)])])  # pragma: no cover - see main


@dataclasses.dataclass(frozen=True, kw_only=True)
class _RunSettings(EngineSettings):
    """Where a study's jobs are done.

    Args:
        workers: number of processes, with one thread each; by default one per core, or, with ray, as many as the
            cluster has room for.
    """

    @property
    def here(self) -> bool:
        """Whether all is done in this process: not where a job may have to be stopped."""
        return super().here and self.workers == 1 and self.job_timeout is None


def _run(name: str, argv: list[str]) -> None:
    study = get_study(name)
    first = argparse.ArgumentParser(prog=f"mechclust run {name}", add_help=False, allow_abbrev=False)
    first.add_argument("--preset", default="quick")
    preset = first.parse_known_args(argv)[0].preset
    config = study.preset(preset)
    arguments = dataclasses.make_dataclass(
        "Arguments",
        [
            ("preset", Annotated[str, tyro.conf.arg(help=f"one of {', '.join(study.presets)}")], "quick"),
            ("out", Annotated[Path, tyro.conf.arg(help="folder of the run")], Path("runs") / f"{name}-{preset}"),
            (
                "probes",
                Annotated[tuple[str, ...], tyro.conf.arg(help="probes to run on the trained models, for the report")],
                (),
            ),
            ("config", Annotated[type(config), tyro.conf.arg(name="")], config),
        ],
        bases=(_RunSettings,),
        frozen=True,
    )
    parsed: Any
    parsed, unknown = tyro.cli(
        arguments,
        args=argv,
        prog=f"mechclust run {name}",
        description=f"{study.title}\n\n{_UNVERIFIED}",
        return_unknown_args=True,
        registry=SETTINGS,
    )
    if unknown:
        known = [
            f"--{path}".replace("_", "-")
            for path in ("preset", "out", "probes", *option_paths(_RunSettings()), *option_paths(config))
        ]
        where = f" (see mechclust run {name} --help)"
        raise InputError(f"{name} has no option {unknown[0]!r}{where}{nearest(unknown[0], known)}")
    again = f"mechclust run {name} {shlex.join(argv)}".strip()
    parsed.check()
    with telling_what_is_kept(lambda: f"; everything measured so far is in {parsed.out}; to resume: {again}"):
        analysis = run_study(
            study,
            parsed.config,
            parsed.out,
            parsed.workers,
            parsed.probes,
            engine=parsed.jobs,
            timeout=parsed.job_timeout,
        )
    _show(text_table(analysis.claims), analysis.lead, lambda: parsed.out / "report.html")


@app.command(name="list")
def _list() -> None:
    """List the studies with their presets, and the probes, including those that other packages register."""
    print("Studies: mechclust run STUDY")
    for found in registered_studies():
        study = found.study
        _print(f"  {found.name}{_origin(found.package)}: {study.title if study else f'broken: {found.error}'}")
        if study:
            _print(f"    {study.source}\n    presets: {', '.join(study.presets)}")
    print("\nProbes: probes.get_probe(NAME), mechclust run STUDY --probes NAME, mechclust history --probes NAME")
    for probe in list_probes():
        needs = f"; needs {', '.join(probe.needs)}" if probe.needs else ""
        about = f"broken: {probe.error}" if probe.make is None else probe.summary
        _print(f"  {probe.name}{_origin(probe.package)}{needs}{about and f': {about}'}")


def _origin(package: str) -> str:
    return "" if package.startswith("mechclust ") else f" ({package})"


@app.command(name="report")
def _report(run_folder: tyro.conf.Positional[Path], markdown: bool = False, record: Perhaps[Path] = None) -> None:
    """Rewrite a run's claims, figures and report from its measurements.

    Args:
        run_folder: the --out folder of a run, or the --record folder of one, whose claims alone are judged again.
        markdown: print the claims as a Markdown table.
        record: also write settings, claims, figures, measurements and command to this folder, for a repository.
    """
    table = markdown_table if markdown else text_table
    if record is None and is_record(run_folder):
        _print(f"{table(judge_again(run_folder))}\n\nclaims: {run_folder / 'claims.json'}")
        return
    found = report_run(*open_run(run_folder), run_folder) if record is None else record_run(run_folder, record)
    below = "" if record is None else f"record: {record}"
    _show(table(found.claims), found.lead, lambda: run_folder / "report.html", below)


def _show(table: str, sentences: Sequence[str], report: Callable[[], Path], below: str = "") -> None:
    """Print what was found, before the report is written: then nothing is lost where that fails."""
    _print(table)
    if sentences:
        _print("\n" + "\n".join(f"- {visible(sentence)}" for sentence in sentences))
    if below:
        _print(f"\n{below}")
    sys.stdout.flush()
    _print(f"\nreport: {report()}")


@app.command(name="clusters")
def _clusters(
    model: tyro.conf.Positional[str],
    config: tyro.conf.OmitArgPrefixes[ClustersConfig],
    out: Perhaps[Path] = None,
) -> None:
    """What a model's hidden states cluster by on your prompts, layer by layer, and how the task compares.

    If interrupted, run the same command again to resume.

    Args:
        model: a hub name, a local directory with model and tokenizer (loaded offline), a .gguf file, or an adapter.
        config: what to measure.
        out: folder of the hidden states and the report; runs/clusters-MODEL-PROMPTS by default.
    """
    folder = out or default_folder("clusters", model, config.adapter, config.prompts)
    with goes_on(folder):
        result = measure_clusters(model, config, folder, progress=True)
        table = table_text(result.shown_table, ".3f")
        _show(table, [*result.sentences, *result.notes], lambda: write_clusters_report(result, folder))


@app.command(name="topics")
def _topics(
    model: tyro.conf.Positional[str],
    config: tyro.conf.OmitArgPrefixes[TopicsConfig],
    out: Perhaps[Path] = None,
) -> None:
    """How far a model's attention and embeddings keep words of the same topic of your corpus together.

    Many encoders with one topic model, beside the published tables: `mechclust topics --suite --help`.

    Args:
        model: a hub name, a local directory with model and tokenizer (loaded offline), a .gguf file, or an adapter.
        config: what to measure.
        out: folder of the report; runs/topics-MODEL-CORPUS by default.
    """
    folder = out or default_folder("topics", model, config.adapter, *config.corpus[:1])
    with goes_on(folder):
        result = measure_topics(model, config, folder, progress=True)
        table = table_text(shown_measures(result), ".3g")
        _show(table, [*result.sentences, *result.notes], lambda: write_topics_report(result, folder))


def _suite(argv: list[str]) -> None:
    parsed = suite_arguments(argv, _UNVERIFIED)
    folder = parsed.out or default_folder("topics-suite", parsed.config.suite[0], *parsed.config.corpus[:1])
    with goes_on(folder):
        result = run_suite(parsed.config, folder, progress=True)
        report = partial(write_suite_report, result, folder)
        _show(result.text, [*suite_lead(result), *suite_notes(result)], report, text_table(result.claims))


@app.command(name="compare")
def _compare(
    base: tyro.conf.Positional[str],
    tuned: tyro.conf.Positional[str],
    config: tyro.conf.OmitArgPrefixes[CompareConfig],
    out: Perhaps[Path] = None,
) -> None:
    """Which layers a tuned model changed, for which of your tasks: CKA with the model it was tuned from.

    Only one model is in memory at a time. If interrupted, run the same command again to resume.

    Args:
        base: a hub name, a local directory with model and tokenizer (loaded offline), or a .gguf file.
        tuned: the same for the tuned model, or the folder of an adapter on the base, as peft saves it.
        config: what to measure.
        out: folder of the hidden states and the report; runs/compare-BASE-TUNED-PROMPTS by default.
    """
    folder = out or default_folder("compare", base, tuned, config.adapter, config.prompts)
    with goes_on(folder):
        result = compare_models(base, tuned, config, folder, progress=True)
        table = table_text(result.shown_table, ".3f")
        _show(table, [*result.sentences, *what_to_know(result)], lambda: write_compare_report(result, folder))


@app.command(name="history")
def _history(
    model: tyro.conf.Positional[str],
    config: tyro.conf.OmitArgPrefixes[HistoryConfig],
    out: Perhaps[Path] = None,
) -> None:
    """When in training structure appears: probes at every checkpoint, after a check that each is what it is called.

    One checkpoint at a time is in memory. If it is interrupted, run the same command again to resume it.

    Args:
        model: the hub name of which --revisions are revisions, or a folder with checkpoint-* folders.
        config: what to measure.
        out: folder of the hidden states and the report; runs/history-MODEL-PROMPTS by default.
    """
    folder = out or default_folder("history", model, config.prompts)
    with goes_on(folder):
        result = measure_history(model, config, folder, progress=True)
        table = table_text(result.shown_table, ".3f")
        _show(table, [*result.sentences, *result.notes], lambda: write_history_report(result, folder))


@app.command(name="mossa")
def _mossa_help(
    base: tyro.conf.Positional[str], tasks: Path, preset: Perhaps[str] = None, out: Perhaps[Path] = None
) -> None:
    """Train a model on many tasks, and one on each alone, and find the layers that hold them.

    Every setting is listed by `mechclust mossa --help`.

    Args:
        base: a hub name, or a local directory with model and tokenizer.
        tasks: folder of the tasks' files.
        preset: flan2021 or small.
        out: folder of the run.
    """
    raise AssertionError("main calls _mossa")  # pragma: no cover


def _mossa(argv: list[str]) -> None:
    """With the defaults of the preset, which is read first."""
    first = argparse.ArgumentParser(prog="mechclust mossa", add_help=False, allow_abbrev=False)
    first.add_argument("--preset")
    name = first.parse_known_args(argv)[0].preset
    known = presets(tyro.MISSING)
    if name is not None and name not in known:
        raise InputError(f"no preset {name!r} of mossa{suggest(name, known)}")
    config = MossaConfig(tasks=tyro.MISSING) if name is None else known[name]
    told = tyro.conf.arg(help=MOSSA_PRESETS, help_behavior_hint="", metavar=f"{{{','.join(known)}}}")
    arguments = dataclasses.make_dataclass(
        "Arguments",
        [
            ("base", Annotated[tyro.conf.Positional[str], tyro.conf.arg(help=BASE)]),
            ("preset", Annotated[str | None, told], None),
            ("out", Annotated[Path | None, tyro.conf.arg(help=MOSSA_OUT, help_behavior_hint="")], None),
            ("config", Annotated[MossaConfig, tyro.conf.arg(name="")], config),
        ],
        frozen=True,
    )
    parsed: Any = tyro.cli(
        arguments,
        args=argv,
        prog="mechclust mossa",
        description=f"{MOSSA}\n\n{_UNVERIFIED}",
        config=(tyro.conf.PositionalMetavarFromFieldName,),
        registry=PRESET_SETTINGS,
    )
    folder = parsed.out or default_folder("mossa", parsed.base, parsed.config.tasks)
    with goes_on(folder):
        result = run_mossa(parsed.base, parsed.config, folder, progress=True)
        sentences = [*lead_of(result), *notes_of(result)]
        report = partial(write_mossa_report, result, folder)
        _show(table_text(groups_table(result), ".3f"), sentences, report, f"{LAYERS}\n\n{text_table(result.claims)}")


@app.command(name="check")
def _check(
    model: tyro.conf.Positional[str],
    adapter: Perhaps[Path] = None,
    device: str = "cpu",
    device_map: Perhaps[str] = None,
    dtype: Dtype = "float32",
    trust_remote_code: bool = False,
    seed: int = 0,
) -> int:
    """Check whether numbers from a model can be trusted: hooks, attention, repeatability, memory, tokenizer, chance.

    The exit code is 0 when no check failed and 1 when one did. Checks that cannot be made are listed with the reason.

    Args:
        model: a hub name, a local directory with model and tokenizer, a .gguf file, an adapter, or a save_model file.
        adapter: folder of an adapter (LoRA or a relative, saved by peft) to add to the model.
        device: device to run on, such as cpu or cuda.
        device_map: auto spreads a model that is too large for one device over several; replaces device.
        dtype: dtype of the model's weights.
        trust_remote_code: run code that comes with a checkpoint. It can do whatever you can do; read it first.
        seed: seed for the random tokens, labels and weights.
    """
    report = check_model(
        model,
        adapter=adapter,
        device=None if device_map else device,
        device_map=device_map,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
        seed=seed,
        progress=True,
    )
    _print(report)
    return 0 if report.passed else 1


@app.command(name="sandbox")
def _sandbox(
    run_folder: tyro.conf.Positional[Path],
    view: tyro.conf.OmitArgPrefixes[View],
    seed: Perhaps[int] = None,
    out: Path = Path("sandbox.html"),
    epoch: Perhaps[int] = None,
    panels: Annotated[tuple[str, ...], tyro.conf.arg(help_behavior_hint="")] = (),
    max_frames: int = 300,
) -> None:
    """Watch a model train: an interactive page (.html), a film (.mp4, .gif) or a figure (.png).

    Args:
        run_folder: the --out folder of `mechclust run clustering-heads` or of train_ensemble, or a folder of
            checkpoints: step-000100.safetensors, as CheckpointCallback writes them into the folder of train, or
            checkpoint-100, as Hugging Face's Trainer does.
        seed: seed of the network to show; the first by default.
        out: new file to write; its suffix decides the format.
        epoch: epoch or step that a figure shows; the last by default.
        panels: panels of a film or figure; all by default.
        max_frames: most epochs or steps to keep.
    """
    check_output(out, epoch, panels)
    check_new(out)
    view.check()
    run = open_sandbox(run_folder, seed, max_frames=max_frames, view=None if view == View() else view)
    _print(f"{write_sandbox(run, out, epoch=epoch, panels=panels)}: {run.title}; {run.kept}")


if __name__ == "__main__":
    sys.exit(main())
