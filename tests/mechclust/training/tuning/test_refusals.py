"""What cannot be trained is one sentence, before work starts or where it ends, and does no harm."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from mechclust.models.adapters import check_adapter
from mechclust.models.instruction_format import FormattedExample
from mechclust.training.diverged import DivergedError
from mechclust.training.tuning import TuneConfig, adapter, tune_adapter, tuned_adapter_at
from mechclust.training.tuning.adapter import tuned_adapter_digest
from mechclust.training.tuning.checkpoints import saving_checkpoint
from tasks import InputError
from tests.faults.disks import _small, mounts
from tests.faults.process import python, run, sentence
from tests.mechclust.training.tuning.small import examples, language_model, settings


def tune(folder: Path, config: TuneConfig | None = None, **changes: Any) -> Any:
    given = {"model": language_model(), "given": examples(), "base": "b", **changes}
    return tune_adapter(
        given["model"], given["given"], config or settings(), folder, base=given["base"], name="control-x"
    )


def killed(*_: Any) -> None:
    raise KeyboardInterrupt


def refused(folder: Path, config: TuneConfig | None = None, **changes: Any) -> str:
    with pytest.raises(InputError) as error:
        tune(folder, config, **changes)
    assert "\n" not in str(error.value)
    return str(error.value)


class TestBeforeWork:
    def test_no_examples(self, tmp_path: Path) -> None:
        said = refused(tmp_path / "a", given=[])
        assert said == "control-x has no examples to train on; give some, or leave it out"
        assert not (tmp_path / "a").exists()

    def test_examples_of_another_model(self, tmp_path: Path) -> None:
        assert refused(tmp_path / "a", given=[FormattedExample([1] * 65, 3)]) == (
            "an example of control-x has 65 tokens with its answer, but the model takes 64; give --cutoff 64"
        )
        assert refused(tmp_path / "a", given=[FormattedExample([1, 99], 1)]) == (
            "an example of control-x has the token 99, but the model's vocabulary has 40 tokens; give the tokenizer of "
            "this model"
        )
        assert not (tmp_path / "a").exists()

    def test_modules_that_are_not_there(self, tmp_path: Path) -> None:
        """Also one of several, which peft takes."""
        linear = "down_proj, gate_proj, k_proj, lm_head, o_proj, q_proj, up_proj, v_proj"
        for modules in (("query_proj",), ("q_proj", "query_proj")):
            assert refused(tmp_path / "a", settings(modules=modules)) == (
                f"LlamaForCausalLM has no linear layer 'query_proj' (it has {linear}); did you mean 'q_proj'?; name "
                "some with --tuning.modules"
            )
        said = refused(tmp_path / "a", settings(modules=("input_layernorm",)))
        assert said.startswith(
            "peft cannot put an adapter beside input_layernorm of LlamaForCausalLM (Target module Llama"
        )
        assert said.endswith("; name linear layers with --tuning.modules")
        assert not (tmp_path / "a").exists()
        tune(tmp_path / "a", settings(modules=("q_proj",)))  # the way out, in the same folder

    @pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors", "checkpoints/mine"])
    def test_a_folder_of_another_program(self, file: str, tmp_path: Path) -> None:
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
        assert refused(tmp_path) == (
            f"{str(tmp_path)!r} holds a {file.partition('/')[0]!r} that control-x would replace; give another folder"
        )
        assert path.read_text() == "mine"

    def test_too_long_a_warmup(self, tmp_path: Path) -> None:
        assert refused(tmp_path / "a", settings(warmup=2, steps=2)) == (
            "tuning.warmup is 2, and control-x is trained for 2 steps; give fewer, or train for more"
        )
        tune(tmp_path / "a", settings(warmup=1, steps=2))

    def test_what_was_trained_otherwise(self, tmp_path: Path) -> None:
        tune(tmp_path)
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        end = "; give the same, or another folder with --out"
        begin = f"control-x in {str(tmp_path)!r} was trained "
        assert refused(tmp_path, base="c") == f"{begin}for another base{end}"
        assert refused(tmp_path, given=examples(12)) == f"{begin}on other data{end}"
        assert refused(tmp_path, settings(seed=1)) == f"{begin}with other settings{end}"
        moved = [FormattedExample(e.tokens, e.start + 1) if len(e.tokens) > e.start + 1 else e for e in examples()]
        assert refused(tmp_path, given=moved) == f"{begin}on other data{end}"
        (tmp_path / "subject.json").write_text("damaged")  # the record says it too
        assert refused(tmp_path, settings(seed=1)) == f"{begin}with other settings{end}"
        (tmp_path / "subject.json").write_bytes(before["subject.json"])
        (tmp_path / "tuning.json").unlink()  # and what is being trained
        assert refused(tmp_path, settings(seed=1)) == f"{begin}with other settings{end}"
        (tmp_path / "tuning.json").write_bytes(before["tuning.json"])
        assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def test_a_folder_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        assert refused(tmp_path / "file" / "a") == (
            f"cannot write {str(tmp_path / 'file' / 'a')!r} (Not a directory); give another folder, or make this one "
            "writable"
        )
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "diverged.json").write_text("{}")  # of an earlier training
        (tmp_path / "b" / "checkpoints").write_text("")
        assert refused(tmp_path / "b") == (
            f"cannot write {str(tmp_path / 'b' / 'checkpoints')!r} (File exists); give another folder, or make this "
            "one writable"
        )


class TestLibraries:
    @pytest.mark.parametrize("library", ["peft", "accelerate"])
    def test_that_are_missing(self, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import peft  # noqa: F401 - which imports accelerate

        monkeypatch.setitem(sys.modules, library, None)
        assert refused(tmp_path / "a") == (
            f"training an adapter needs {library}; install it with: pip install 'mechclust[llm]'"
        )

    def test_reading_needs_less(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "peft", None)
        (tmp_path / "adapter_config.json").write_text("{}")
        with pytest.raises(InputError) as error:
            check_adapter(tmp_path)
        assert str(error.value) == ("reading an adapter needs peft; install it with: pip install 'mechclust[adapters]'")

    def test_one_that_is_broken_says_why(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "peft.py").write_text("from math import no_such_name")
        monkeypatch.delitem(sys.modules, "peft", raising=False)
        monkeypatch.syspath_prepend(str(tmp_path))
        said = refused(tmp_path / "a")
        assert said.startswith("training an adapter needs peft, which cannot be imported (ImportError: cannot import")
        assert "no_such_name" in said
        assert said.endswith("; install it with: pip install 'mechclust[llm]'")


class TestDiverged:
    def test_of_an_absurd_rate(self, tmp_path: Path) -> None:
        with pytest.raises(DivergedError) as error:
            tune(tmp_path, settings(lr=1e38, clip=1e38))
        said = r"the loss of control-x is (nan|inf) at step [23]; lower --tuning.lr, or look for damaged examples"
        assert re.fullmatch(said, str(error.value))
        tune(tmp_path)  # the way out, in the same folder

    def test_of_a_weight_that_is_no_number(self, tmp_path: Path) -> None:
        model = language_model()
        with torch.no_grad():
            model.model.layers[1].mlp.up_proj.weight[0, 0] = torch.nan
        said = refused(tmp_path, model=model)
        assert said == "the loss of control-x is nan at step 1; lower --tuning.lr, or look for damaged examples"
        assert [path.name for path in tmp_path.iterdir()] == ["diverged.json"]
        assert all(weight.requires_grad for weight in model.parameters())

    def test_in_the_last_step(self, tmp_path: Path) -> None:
        """After which there is no loss."""
        said = refused(tmp_path, settings(lr=1e39, steps=1))
        assert said == "the weights of control-x are not finite after step 1; lower --tuning.lr"
        assert [path.name for path in tmp_path.iterdir()] == ["diverged.json"]

    def test_in_the_last_step_of_a_run_that_was_killed_before_it_was_seen(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = settings(lr=1e39, steps=1)
        with monkeypatch.context() as patch:
            patch.setattr("mechclust.training.tuning.adapter._check_finite", killed)
            with pytest.raises(KeyboardInterrupt):
                tune(tmp_path, config)
        assert refused(tmp_path, config) == "the weights of control-x are not finite after step 1; lower --tuning.lr"

    def test_the_same_call_says_it_again_without_training(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also after a checkpoint; other settings, another base and other examples are trained, and so is what a
        damaged record says."""
        config = settings(lr=1e38, clip=1e38, save_every=1)
        said = refused(tmp_path, config)
        assert [path.name for path in tmp_path.iterdir()] == ["diverged.json"]
        trained: list[Any] = []

        def train(*args: Any, **_: Any) -> float:
            trained.append(args)
            raise DivergedError("again")

        with monkeypatch.context() as patch:
            patch.setattr(adapter, "train_lora", train)
            assert refused(tmp_path, config) == said
            assert not trained
            assert refused(tmp_path, config, base="another") == "again"
            assert refused(tmp_path, config, base="another", given=examples(5)) == "again"
            (tmp_path / "diverged.json").write_text("{}")
            assert refused(tmp_path, config) == "again"
            assert len(trained) == 3
        tune(tmp_path)
        assert not (tmp_path / "diverged.json").exists()


class TestFullDisk:
    WIDE = 512  # a checkpoint of about 200 kB

    def tune(self, folder: Path) -> Any:
        return tune(folder, settings(rank=8, save_every=2, steps=4), model=language_model(hidden_size=self.WIDE))

    @pytest.fixture(scope="class")
    def digest(self, tmp_path_factory: pytest.TempPathFactory) -> str:
        """Of what is trained where there is room."""
        return tuned_adapter_digest(self.tune(tmp_path_factory.mktemp("whole")).folder)

    @pytest.mark.skipif(not mounts(), reason="no file system can be mounted here")
    @pytest.mark.parametrize("room", [100_000, 250_000, 480_000])
    def test_while_training(self, room: int, digest: str, tmp_path: Path) -> None:
        """The first checkpoint's weights, its optimiser, the second checkpoint: what was there is not lost."""
        disk = tmp_path / "disk"
        with _small(disk, room) as (limited, more):
            ended = run(limited(python(lambda: self.tune(disk / "a"))), tmp_path)
            assert sentence(ended) == (
                f"cannot write '{disk}/a/checkpoints' (No space left on device); free space there and run the same "
                "command again (what was already written is kept)"
            )
            assert tuned_adapter_at(disk / "a") is None
            more()
            self.tune(disk / "a")
            assert tuned_adapter_digest(disk / "a") == digest

    @pytest.mark.parametrize(
        ("raised", "said"),
        [
            (OSError(28, "No space left on device"), "No space left on device); free space there"),
            (RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos"), "unexpected pos); give ano"),
            (RuntimeError("basic_ios::clear: iostream error"), "iostream error); give another folder"),
            (RuntimeError("I/O error: File too large (os error 27)"), "File too large); give another folder"),
        ],
    )
    def test_in_words_of_libraries(self, raised: Exception, said: str, tmp_path: Path) -> None:
        with pytest.raises(InputError) as error, saving_checkpoint(tmp_path):
            raise raised
        assert str(error.value).startswith(f"cannot write {str(tmp_path)!r} (")
        assert said in str(error.value)

    def test_another_error_is_raised_as_it_is(self, tmp_path: Path) -> None:
        raised = torch.OutOfMemoryError("CUDA out of memory")
        with pytest.raises(torch.OutOfMemoryError) as error, saving_checkpoint(tmp_path):
            raise raised
        assert error.value is raised
