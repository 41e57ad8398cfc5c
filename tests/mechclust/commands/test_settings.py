"""What the commands' settings share: options with their help, positions, checks, a model that reads."""

from __future__ import annotations

import math
import re
from dataclasses import MISSING, fields, replace
from pathlib import Path

import pytest

from mechclust import ClustersConfig, CompareConfig, TopicsConfig
from mechclust.cli import main
from mechclust.commands.settings import EngineSettings, ModelSettings, PromptSettings, stamps_of
from mechclust.models import save_model
from mechclust.models.resolved import resolve_model
from tasks import InputError
from tests.mechclust.commands.refusals import refusal

CONFIGS = {
    "clusters": ClustersConfig(Path("prompts.jsonl")),
    "compare": CompareConfig(Path("prompts.jsonl")),
    "topics": TopicsConfig((Path("corpus"),)),
}


def about(config, name):
    """What the nearest class that documents a setting says of it, its first line, without mark-up."""
    found = (re.search(rf"\n        {name}: (.+)", cls.__doc__ or "") for cls in type(config).__mro__)
    return next(match[1] for match in found if match).replace("``", "")


@pytest.mark.parametrize("command", CONFIGS)
def test_help_has_every_setting_with_what_it_says_and_the_required_one_first(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    said = " ".join(re.sub("[╭╮╰╯│─]", " ", capsys.readouterr().out.partition("config options")[2]).split())
    names = [field.name for field in fields(CONFIGS[command])]
    options = [said.index(f"--{name.replace('_', '-')}") for name in names]
    assert [field.name for field in fields(CONFIGS[command]) if field.default is MISSING] == names[:1]
    assert min(options) == options[0]
    assert [name for name in names if about(CONFIGS[command], name)[:40].strip() not in said] == []


@pytest.mark.parametrize("command", CONFIGS)
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"device": "warp"}, "no device 'warp'; expected cpu, cuda, cuda:1 or mps"),
        ({"tokens_per_batch": 0}, "tokens_per_batch is 0; expected at least 1"),
        ({"seed": -1}, "seed is -1; expected at least 0"),
        ({"untrained": -1}, "untrained is -1; expected at least 0"),
        (
            {"engine": "ray", "address": "localhost:999999"},
            "address is 'localhost:999999'; expected a port from 1 to 65535",
        ),
        (
            {"engine": "ray", "gpus_per_job": 1.5},
            "gpus_per_job (--gpus-per-job) is 1.5; expected 0, a part of one GPU (at least 0.0001) or a whole number",
        ),
    ],
)
def test_shared_settings_are_checked_alike(command, changes, said):
    config = CONFIGS[command]
    if not all(hasattr(config, name) for name in changes):
        pytest.skip("compare has no untrained models")
    assert refusal(type(config)(getattr(config, fields(config)[0].name), **changes).check) == said


def test_the_address_of_the_environment_is_checked_where_it_counts(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    EngineSettings().check()
    EngineSettings(engine="ray", address="auto").check()
    assert refusal(EngineSettings(engine="ray").check) == (
        "RAY_ADDRESS is 'ray://head:10001'; expected HOST:PORT (6379 on the head node), auto or local"
    )


def test_only_the_first_setting_may_stand_without_its_name():
    with pytest.raises(TypeError):
        ClustersConfig(Path("prompts.jsonl"), "mean")


def test_where_a_prompt_is_read():
    last, first, mean = (PromptSettings(Path("p"), position=position) for position in ("last", "first", "mean"))
    assert (repr(last.readout), last.states) == ("last_token()", "the last prompt token")
    assert (repr(first.readout), first.states) == ("first_token()", "the first prompt token")
    assert (repr(mean.readout), mean.states) == ("mean()", "the mean over prompt tokens")


def test_a_model_that_reads(gpt2, model, tmp_path):
    assert ModelSettings(dtype="bfloat16").load(resolve_model(str(gpt2)), "prompts").tokenizer is not None
    save_model(model, tmp_path / "ours.safetensors")
    with pytest.raises(InputError, match=r"ours.safetensors' has no tokenizer to read text; give a Hugging Face"):
        ModelSettings().load(resolve_model(tmp_path / "ours.safetensors"), "text")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("clusters", "max_memory"),
        ("compare", "max_memory"),
        ("compare", "factor"),
        ("topics", "job_timeout"),
    ],
)
def test_numbers_are_finite(command, name, bad):
    with pytest.raises(InputError, match=f"{name} is {bad}; expected a finite number"):
        replace(CONFIGS[command], **{name: bad}).check()


def test_memory_for_a_comparison_is_above_0():
    with pytest.raises(InputError, match=r"max_memory is 0\.0; expected above 0"):
        replace(CONFIGS["compare"], max_memory=0.0).check()


def test_another_commit_of_a_repository_is_another_model(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--me--model"
    (repository / "refs").mkdir(parents=True)
    stamps = [stamps_of("me/model")]
    for commit in ("a" * 40, "b" * 40):
        (repository / "snapshots" / commit).mkdir(parents=True)
        (repository / "snapshots" / commit / "config.json").write_text("{}")
        (repository / "refs" / "main").write_text(commit)
        stamps.append(stamps_of("me/model"))
    assert stamps == [[], [("a" * 40, 0, 0)], [("b" * 40, 0, 0)]]
    assert stamps_of("me/model@" + "a" * 40) == stamps[1]
    assert stamps_of("/no/such/model") == []
