"""One checkpoint in memory at a time, each loaded once, whatever interrupts the series or is added to it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from mechclust import measure_history
from mechclust.commands.history.checkpoint_job import CheckpointJob
from mechclust.commands.history.inputs import read_inputs
from mechclust.commands.history.series import find_series
from tests.mechclust.commands.history.walk import STEPS, loads

NAMES = [f"checkpoint-{step}" for step in STEPS]


def assert_same_bits(one, other, names):
    """These results of probes."""
    for name in names:
        ours, theirs = one.results[name], other.results[name]
        assert ours.coords == theirs.coords
        assert sorted(ours) == sorted(theirs)
        for key in ours:
            assert torch.equal(torch.nan_to_num(ours[key], 7), torch.nan_to_num(theirs[key], 7)), (name, key)


def test_one_checkpoint_is_in_memory_at_a_time(walked):
    assert walked[2] == [(name, 0) for name in NAMES]


def test_prompts_are_tokenized_once_for_all_checkpoints(series, quick, monkeypatch, tmp_path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(series / NAMES[0])
    read, call = [], type(tokenizer).__call__

    def counted(self, text, *args, **options):
        read.extend([text] if isinstance(text, str) else text)
        return call(self, text, *args, **options)

    monkeypatch.setattr(type(tokenizer), "__call__", counted)
    config = replace(quick, checkpoints=tuple(series / name for name in NAMES[:2]), probes=("cka",))
    measure_history(series, config, tokenizer=tokenizer)
    prompts = quick.read_prompts().prompts
    assert sorted(text for text in read if text in prompts) == sorted(prompts)


def test_an_interrupted_series_goes_on_with_the_checkpoint_it_had_reached(series, quick, walked, tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    def interrupt_third(source, model):
        if source.endswith(NAMES[2]):
            embedding = next(module for module in model.modules() if isinstance(module, nn.Embedding))
            embedding.register_forward_pre_hook(interrupt)

    config = replace(quick, checkpoints=tuple(series / name for name in NAMES[:3]))
    with loads(interrupt_third) as found, pytest.raises(KeyboardInterrupt):
        measure_history(series, config, tmp_path / "out")
    assert [name for name, _ in found] == NAMES[:3]
    with loads() as found:
        again = measure_history(series, config, tmp_path / "out")
    assert [name for name, _ in found] == [NAMES[2]]
    of_itself = {f"{kind}/{name}" for kind in ("clusters", "cka_first", "cka_previous") for name in NAMES[:3]}
    assert_same_bits(again, walked[0], of_itself - {f"cka_previous/{NAMES[0]}"})
    for one, other in zip(again.attention, walked[0].attention[:3], strict=True):
        assert torch.equal(one[0], other[0])


def test_tasks_corrected_after_an_interruption_are_clustered_anew(series, quick, walked, tmp_path, monkeypatch):
    """The first run is interrupted when the clusters of a layer are found."""
    config = replace(quick, checkpoints=(series / NAMES[0], series / NAMES[1]), probes=("clusters",))
    lines = [json.loads(line) for line in config.prompts.read_text().splitlines()]
    wrong = tmp_path / "wrong.jsonl"
    tasks = sorted({line["task"] for line in lines})
    swapped = [{**line, "task": tasks[i % len(tasks)]} for i, line in enumerate(lines)]
    wrong.write_text("".join(json.dumps(line) + "\n" for line in swapped))

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("mechclust.commands.history.measure.check_series", interrupt)
        with pytest.raises(KeyboardInterrupt):
            measure_history(series, replace(config, prompts=wrong), tmp_path / "out")
    again = measure_history(series, config, tmp_path / "out")
    assert_same_bits(again, walked[0], again.results)


def test_units_that_were_corrected_are_counted_anew(series, quick, tmp_path):
    lines = [json.loads(line) for line in quick.prompts.read_text().splitlines()]
    prompts = tmp_path / "prompts.jsonl"

    def measured(out, prompts_of_unit):
        """Two checkpoints with units of so many prompts of a task each."""
        ordered = sorted(lines, key=lambda line: line["task"])
        grouped = [{**line, "group": f"{line['task']} {i // prompts_of_unit}"} for i, line in enumerate(ordered)]
        prompts.write_text("".join(json.dumps(line) + "\n" for line in grouped))
        checkpoints = (series / NAMES[0], series / NAMES[1])
        config = replace(quick, prompts=prompts, checkpoints=checkpoints, probes=("clusters",), units="group")
        return measure_history(series, config, tmp_path / out)

    before = measured("out", 2)
    again = measured("out", 3)
    fresh = measured("fresh", 3)
    assert_same_bits(again, fresh, again.results)
    name = f"clusters/{NAMES[1]}"
    assert not torch.equal(before.results[name]["p_value"], fresh.results[name]["p_value"])


def test_attention_that_is_not_asked_for_again_is_gone(series, quick, walked, undrawn, tmp_path):
    config = replace(quick, checkpoints=(series / NAMES[0], series / NAMES[1]), probes=("clusters",))
    assert walked[0].attention[0]
    shutil.copytree(walked[1], tmp_path / "out")
    again = measure_history(series, replace(config, attention_prompts=()), tmp_path / "out")
    assert again.attention == [{}, {}]
    again.write(tmp_path / "out")


def test_an_adapter_that_was_trained_again_is_another(series, quick, tmp_path):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    save_file({"weight": torch.zeros(2)}, adapter / "adapter_model.safetensors")
    config = replace(quick, checkpoints=(series / NAMES[0], series / NAMES[1]), adapter=adapter)
    found = find_series(series, config)
    inputs = read_inputs(series, found, replace(config, adapter=None))

    def key():
        return CheckpointJob(found[0], tmp_path, inputs, config, True).key

    before = key()
    assert key() == before
    save_file({"weight": torch.ones(2)}, adapter / "adapter_model.safetensors")
    assert key() != before


def test_tokenizers_are_compared_after_a_run_with_a_given_one(series, quick, tmp_path):
    config = replace(quick, checkpoints=(series / NAMES[0], series / NAMES[1]), probes=("cka",))
    found = find_series(series, config)
    inputs = read_inputs(series, found, config)
    CheckpointJob(found[0], tmp_path, inputs, config, False).run()
    job = CheckpointJob(found[0], tmp_path, inputs, config, True)
    job.run()
    assert job.identity.tokenizer is not None


def test_prompts_are_the_same_in_other_batches(series, quick):
    config = replace(quick, checkpoints=(series / NAMES[0], series / NAMES[1]))
    one, other = (
        read_inputs(series, find_series(series, c), c) for c in (config, replace(config, tokens_per_batch=40))
    )
    assert len(one.batches) != len(other.batches)
    assert one.prompts_digest == other.prompts_digest


def test_a_checkpoint_that_is_added_is_loaded_alone(series, walk, write_step, quick, walked, tmp_path):
    result, out, _ = walked
    shutil.copytree(out, tmp_path / "out")
    between = {name: (walk[2][name] + walk[3][name]) / 2 for name in walk[2]}
    added = write_step(tmp_path / "checkpoint-35", between)
    config = replace(quick, checkpoints=(*(series / name for name in NAMES), added))
    with loads() as found:
        again = measure_history(series, config, tmp_path / "out")
    assert [name for name, _ in found] == ["checkpoint-35"]
    assert again.names == [*NAMES[:3], "checkpoint-35", *NAMES[3:]]
    assert again.findings == []
    kinds = ("clusters", "cka_last", "cka_first", "cka_previous")
    assert set(again.results) - set(result.results) == {f"{kind}/checkpoint-35" for kind in kinds}
    assert_same_bits(again, result, set(result.results) - {f"cka_previous/{NAMES[3]}"})
