"""``mechclust check``: what it prints, and its exit codes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

import mechclust.commands.check.model
from mechclust.cli import main
from mechclust.commands.check.result import Check, CheckReport
from mechclust.models import save_model


def test_a_sound_model(gpt2, capfd):
    assert main(["check", str(gpt2)]) == 0
    out, _ = capfd.readouterr()
    lines = out.splitlines()
    assert lines[0] == f"{gpt2}: 18 passed, 0 failed, 0 not tried"
    assert [line for line in lines if line.startswith("ok  attention rows ")]
    assert [
        line
        for line in lines
        if " ".join(line.split()).startswith("ok equals Hugging Face the logits of GPT2LMHeadModel (")
    ]
    assert not [line for line in lines if line.startswith(("FAILED", "not tried"))]
    assert max(map(len, lines)) <= 120


def test_a_model_that_fails(write_checkpoint, tmp_path, capfd):
    def spoil(model):
        model.transformer.h[1].mlp.c_fc.bias[3] = torch.inf

    path = write_checkpoint(tmp_path / "m", change=spoil)
    assert main(["check", str(path)]) == 1
    out, _ = capfd.readouterr()
    assert f"{path}: 7 passed, 1 failed, 0 not tried" in out  # no check after it
    (failed,) = [line for line in out.splitlines() if line.startswith("FAILED")]
    assert failed.split()[1:5] == ["finite", "values", "the", "weights"]


def test_a_tokenizer_of_another_model(gpt2, tmp_path, capfd):
    path = shutil.copytree(gpt2, tmp_path / "m")
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.add_tokens(["w100", "w101"])
    tokenizer.save_pretrained(path)
    assert main(["check", str(path)]) == 1
    out, _ = capfd.readouterr()
    assert "FAILED tokenizer 2 tokens without an embedding, the first 'w100', id 22 of 22: " in " ".join(out.split())


def test_a_file_from_save_model(tiny_model, tmp_path, capfd):
    save_model(tiny_model(), tmp_path / "m.safetensors")
    assert main(["check", str(tmp_path / "m.safetensors")]) == 0
    out = " ".join(capfd.readouterr().out.split())
    assert "not tried tokenizer the model has no tokenizer; text commands need" in out


def test_options_reach_the_check(monkeypatch, capfd):
    asked = []

    def check(model, **options):
        asked.append((model, options))
        return CheckReport(model, [Check("all", True, "well")])

    monkeypatch.setattr("mechclust.cli_commands.check.check_model", check)
    assert main(["check", "gpt2", "--device", "cuda:1", "--dtype", "bfloat16", "--seed", "3"]) == 0
    assert main(["check", "gpt2"]) == 0
    assert main(["check", "gpt2", "--adapter", "a", "--device-map", "auto", "--trust-remote-code"]) == 0
    default = {"adapter": None, "device": "cpu", "device_map": None, "dtype": "float32", "trust_remote_code": False}
    default |= {"seed": 0, "progress": True}
    assert asked == [
        ("gpt2", {**default, "device": "cuda:1", "dtype": "bfloat16", "seed": 3}),
        ("gpt2", default),
        ("gpt2", {**default, "adapter": Path("a"), "device": None, "device_map": "auto", "trust_remote_code": True}),
    ]
    assert capfd.readouterr().out.startswith("gpt2: 1 passed, 0 failed, 0 not tried\nok  all  well\n")


class TestBadInput:
    @pytest.fixture(autouse=True)
    def nothing_is_checked(self, monkeypatch):
        def never(*args, **options):
            raise AssertionError("started to work")

        monkeypatch.setattr(mechclust.commands.check.model, "_checks", never)

    def refused(self, capfd, *argv):
        assert main(["check", *map(str, argv)]) == 2
        out, err = capfd.readouterr()
        assert out == ""
        assert err.startswith("mechclust: ")
        assert err.count("\n") == 1
        return err.removeprefix("mechclust: ").strip()

    def test_no_model_there(self, capfd, tmp_path):
        assert self.refused(capfd, tmp_path / "none") == (
            f"no model directory {str(tmp_path / 'none')!r}; give a local directory or a hub name such as 'gpt2'"
        )

    def test_a_directory_without_a_model(self, capfd, tmp_path):
        assert self.refused(capfd, tmp_path).startswith(f"{str(tmp_path)!r} has no config.json; ")

    def test_an_unknown_name(self, capfd):
        assert self.refused(capfd, "nobody/no-such-model").startswith("no directory 'nobody/no-such-model' here, and ")

    def test_a_device_that_is_not_there(self, capfd, gpt2):
        wanted = "device 'mps' is not available on this machine; choose --device cpu"
        if torch.backends.mps.is_available():
            pytest.skip("there is one")
        assert self.refused(capfd, gpt2, "--device", "mps") == wanted
        assert (
            self.refused(capfd, gpt2, "--device", "abacus") == "no device 'abacus'; expected cpu, cuda, cuda:1 or mps"
        )

    def test_a_device_and_a_map_of_devices(self, capfd, gpt2):
        assert self.refused(capfd, gpt2, "--device", "cuda", "--device-map", "auto") == (
            "device is 'cuda' and device_map 'auto'; give one of them"
        )

    def test_a_negative_seed(self, capfd, gpt2):
        assert self.refused(capfd, gpt2, "--seed", "-1") == "seed is -1; expected at least 0"

    def test_an_unknown_dtype(self, capfd, gpt2):
        with pytest.raises(SystemExit) as end:
            main(["check", str(gpt2), "--dtype", "float64"])
        assert end.value.code == 2


def test_help_says_what_the_exit_code_means(capfd):
    with pytest.raises(SystemExit) as end:
        main(["check", "--help"])
    assert end.value.code == 0
    assert "exit code is 0 when no check failed and 1 when one did" in " ".join(capfd.readouterr().out.split())
