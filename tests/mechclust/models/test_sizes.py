"""How large a model is before its weights are loaded, and how much memory is free."""

from __future__ import annotations

from transformers import GPT2Config, GPT2LMHeadModel

from mechclust.models.sizes import Sizes
from probes.engine import devices
from probes.engine.devices import free_device_memory


def test_least_weights_are_nearly_all_weights_of_a_model():
    config = GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=3, n_head=2)
    n_weights = sum(weight.numel() for weight in GPT2LMHeadModel(config).parameters())
    assert 0.9 * n_weights < Sizes.from_config(config).least_weights <= n_weights


def test_sizes_that_are_not_known_count_as_nothing():
    assert Sizes(None, None, None, None).least_weights == 0


def test_free_memory_is_what_linux_calls_available(tmp_path, monkeypatch):
    (tmp_path / "meminfo").write_text("MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:    3000 kB\n")
    monkeypatch.setattr(devices, "_MEMINFO", tmp_path / "meminfo")
    assert free_device_memory("cpu") == 3000 * 1024


def test_free_memory_is_not_known_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "_MEMINFO", tmp_path / "missing")
    assert free_device_memory("cpu") is None
    assert free_device_memory("meta") is None
