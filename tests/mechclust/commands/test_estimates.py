"""What commands say before they begin: operations, memory, disk and time, from sizes that all differ."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mechclust.commands.clusters import estimate as clusters
from mechclust.commands.clusters.config import MAX_QUERIES, ClustersConfig
from mechclust.commands.compare import estimate as compare
from mechclust.commands.compare.config import CompareConfig
from mechclust.commands.compare.inputs import Inputs
from mechclust.commands.cost import Cost, cka_cost
from mechclust.commands.heads import estimate as heads
from mechclust.commands.heads.config import HeadsConfig
from mechclust.commands.history import estimate as history
from mechclust.commands.history.config import HistoryConfig
from mechclust.commands.mossa import estimate as mossa
from mechclust.commands.saved_rows import Checkpoint
from mechclust.models.resolved import ResolvedModel
from mechclust.models.sizes import Sizes
from probes.functional.linear_decodability import ALPHAS
from tasks import Batch, InputError
from tests.mechclust.commands.refusals import refusal

SIZES = Sizes(n_layers=3, d_model=10, d_vocab=100, n_ctx=16, block_weights=700, n_heads=5)
DRAWING = Cost(7.0, 2**20)
UNKNOWN = Sizes(n_layers=None, d_model=None, d_vocab=None, n_ctx=None)


def batches() -> list[Batch]:
    """Two batches: 3 texts of at most 4 tokens, of which 7 are padding; 2 of 6. Token 1 is in a text 2 or 3 times."""
    short = torch.tensor([[1, 1, 2, 3], [1, 1, 0, 0], [4, 0, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]])
    long = torch.tensor([[1, 2, 1, 3, 1, 4], [5, 6, 7, 8, 9, 5]])
    return [
        Batch(tokens=short, attention_mask=mask, index=torch.arange(3)),
        Batch(tokens=long, index=torch.arange(3, 5)),
    ]


class Prompts(SimpleNamespace):
    def __len__(self) -> int:
        return 5


def test_units_take_kernel_matrices():
    alone, together = (cka_cost(3000, 64, 20, 100, units=units) for units in (False, True))
    assert 6 * 8 * 3000**2 < together.memory - alone.memory < 8 * 8 * 3000**2
    assert 10 * alone.seconds < together.seconds < 100 * alone.seconds


class TestClusters:
    def test_operations_of_each_statistic(self):
        n, d = 50, 20
        k_means = clusters.Statistics([3, 5], n_starts=7, classes=[], labelings=0, folds=0).operations(n, d)
        assert k_means == 2 * 7 * 20 * n * d * (3 + 5)
        wide = clusters.Statistics([], 0, classes=[4, 2], labelings=11, folds=6)
        assert wide.operations(n, d) == 6 * (10 * d**3 + 2 * n * d * d + 4 * n * d * 6 * 11 * len(ALPHAS))
        assert wide.operations(d, n) == 6 * (10 * d**3 + 2 * n * d * d + 4 * d * d * 6 * 11 * len(ALPHAS))
        nearest = clusters.Statistics([], 0, [], 0, 0, searches=2)
        assert nearest.operations(3 * MAX_QUERIES, d) == 2 * 2 * MAX_QUERIES * 3 * MAX_QUERIES * d
        all_of = clusters.Statistics([3, 5], 7, [4, 2], 11, 6, 2)
        assert all_of.operations(n, d) == k_means + wide.operations(n, d) + nearest.operations(n, d)

    def test_what_all_models_take(self):
        labels = {"task": list("aabbc")}
        inputs: Any = Prompts(batches=batches(), sizes=SIZES, labels=labels, held_out=None)
        config = ClustersConfig(Path("prompts.jsonl"), untrained=2, dtype="bfloat16")
        found = clusters.Estimate.from_inputs(inputs, config)
        assert (found.n_prompts, found.n_models, found.tokens, found.positions) == (5, 3, 19, 24)
        assert found.disk == 3 * 4 * 5 * 10 * 2
        assert found.layer == 5 * 10 * 64 + 128 * 2**20
        assert found.operations == 2 * 3 * 24 * 3 * 700
        each = clusters.Statistics.from_inputs(inputs, config).operations(5, 10)
        assert found.measuring == 3 * 4 * each

    def test_drawing_is_of_relabellings_of_all_models_shuffles_and_halves(self, monkeypatch):
        monkeypatch.setattr(clusters, "relabelling_seconds", lambda n, width: 1.0)
        monkeypatch.setattr(clusters, "HALF_CLUSTERING_OVERHEAD_S", 1000.0)
        inputs: Any = Prompts(batches=batches(), sizes=SIZES, labels={"task": list("aabbc")}, held_out=None)
        few = {"n_permutations": 7, "n_shuffles": 5, "n_resamples": 3}
        config = ClustersConfig(Path("prompts.jsonl"), untrained=2, given="none", **few)
        drawing = clusters.Estimate.from_inputs(inputs, config).drawing
        assert drawing == Cost(4 * (3 * 7 + 5 + 3 * 1000), 8 * (5 * 3 + 7))
        inputs.held_out = "template"  # their neighbours are relabelled as often as the clusters
        drawing = clusters.Estimate.from_inputs(inputs, config).drawing
        assert drawing == Cost(4 * (3 * 2 * 7 + 5 + 3 * 1000), 8 * (5 * 3 + 7))

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_smaller_states_are_advised_if_there_are_any(self, monkeypatch, tmp_path, dtype):
        """A model in memory keeps its own dtype."""
        inputs: Any = Prompts(batches=batches(), sizes=SIZES, labels={"task": list("aabbc")}, held_out=None)
        monkeypatch.setattr(clusters, "free_disk_bytes", lambda folder: 0)
        config = ClustersConfig(Path("prompts.jsonl"), untrained=0, dtype=dtype)
        for model in (None, torch.nn.Linear(1, 1, dtype=torch.float64)):
            found = clusters.Estimate.from_inputs(inputs, config, model)
            size = 8 if model is not None else 4 if dtype == "float32" else 2
            assert found.disk == 4 * 5 * 10 * size
            assert ("--dtype bfloat16" in refusal(found.check, 1.0, tmp_path, tmp_path)) == (size == 4)

    def test_what_is_not_known_is_not_said(self):
        inputs: Any = Prompts(batches=batches(), sizes=UNKNOWN, labels={"task": list("aabbc")}, held_out=None)
        found = clusters.Estimate.from_inputs(inputs, ClustersConfig(Path("prompts.jsonl"), untrained=0))
        assert found.text(1e9, 1e9, shared=False) == "5 prompts of 19 tokens (21% padding)"
        assert found.seconds(1e9, 1e9) == found.drawing.seconds

    def test_seconds_and_words(self):
        found = clusters.Estimate(
            40, 3, 75, 100, disk=2**20, layer=3 * 2**20, operations=600, measuring=5000, drawing=DRAWING
        )
        assert found.seconds(10, 100) == 60 + 50 + 7
        assert (found.seconds(None, 100), found.seconds(10, None)) == (50 + 7, 60 + 7)
        parts = found.text(10, 100, shared=True).split("; ")
        assert parts[:2] == ["40 prompts of 75 tokens (25% padding)", "3 models"]
        assert parts[2].startswith("hidden states: ")
        assert [part.split(":")[0] for part in parts[3:5]] == ["forward passes", "measuring"]
        assert parts[5] == "times are for one worker"
        assert "worker" not in found.text(10, 100)
        assert "worker" not in found.text(None, None, shared=True)
        assert "forward" not in found.text(None, 100)
        assert "measuring" not in found.text(10)

    @pytest.mark.parametrize(("at_once", "said"), [(1, "a layer takes about 3 GiB"), (2, "2 layers at once takes")])
    def test_a_layer_must_fit_in_memory(self, tmp_path, at_once, said):
        found = clusters.Estimate(
            40, 1, 75, 100, disk=None, layer=3 * 2**30, operations=None, measuring=None, drawing=DRAWING
        )
        found.check(3.0 * at_once, tmp_path, tmp_path, at_once)
        with pytest.raises(InputError, match=said):
            found.check(3.0 * at_once - 0.01, tmp_path, tmp_path, at_once)

    @pytest.mark.parametrize(("free", "kept", "fits"), [(164, 0, True), (163, 0, False), (114, 50, True)])
    def test_hidden_states_that_are_kept_need_no_room(self, monkeypatch, tmp_path, free, kept, fits):
        monkeypatch.setattr(clusters, "free_disk_bytes", lambda folder: free * 2**20)
        monkeypatch.setattr(clusters, "safetensors_bytes", lambda folder: kept * 2**20)
        found = clusters.Estimate(
            40, 2, 75, 100, disk=100 * 2**20, layer=None, operations=None, measuring=None, drawing=DRAWING
        )
        if fits:
            found.check(1.0, tmp_path, tmp_path)
        else:
            with pytest.raises(InputError, match="the hidden states of 2 models"):
                found.check(1.0, tmp_path, tmp_path)


class TestHeads:
    def test_what_all_models_take(self, monkeypatch):
        monkeypatch.setattr(heads, "forward_seconds", lambda config, sizes, positions: positions)
        texts = {"a": batches()[:1], "b": batches()[1:]}
        config = HeadsConfig(untrained=2, n_permutations=9)
        inputs: Any = SimpleNamespace(batches=texts, sizes=SIZES)
        n_kept = 3 * 4 * 4  # patterns of the batch of 3; that of 2 keeps sums, for 2 roles and 9 draws
        additions = 2 * 15 * 9 * (1 + 1 + 3 + 1)  # pairs of positions with the same token
        assert heads.cost_of(inputs, config) == Cost(3 * 24 + additions / 2e8, 8 * 15 * (n_kept + 2 * 2 * 9))
        unknown: Any = SimpleNamespace(batches=texts, sizes=UNKNOWN)
        assert heads.cost_of(unknown, config) == Cost(3 * 24, 0)

    def test_permutations_by_default_are_enough_for_all_heads(self):
        few, many = (heads.n_permutations(HeadsConfig(), n) for n in (10, 100))
        assert 40 * many / 4 > few > 2 * 10 / 0.05
        assert heads.n_permutations(HeadsConfig(n_permutations=0), 100) == 0


class TestCompare:
    def test_blocks_are_of_some_prompts_and_each_model_has_its_device(self, monkeypatch):
        """Of 4 and 1 prompts, 2 and 1 are measured in blocks, and one of each task is patched."""
        speeds = {("cpu", "bfloat16"): 1.0, ("cuda", "bfloat16"): 100.0}
        monkeypatch.setattr(
            compare,
            "forward_seconds",
            lambda settings, sizes, positions: positions * speeds[settings.device, settings.dtype],
        )
        monkeypatch.setattr(compare, "cka_cost", lambda n, *draws, units: Cost(1000.0 * n, n))
        pair = (
            Checkpoint("base", ResolvedModel("base"), "cpu", "bfloat16"),
            Checkpoint("tuned", ResolvedModel("tuned"), "cuda", "bfloat16"),
        )
        tasks = ([0, 0, 0], [0, 1])
        labelled = [
            replace(batch, labels={"task": torch.tensor(task)}) for batch, task in zip(batches(), tasks, strict=True)
        ]
        unused: Any = None
        inputs = Inputs(pair, "ab", labelled, unused, (), {}, unused, dict.fromkeys(pair, SIZES))

        def cost(**changes: Any) -> Cost:
            return compare.cost_of(inputs, CompareConfig(Path("prompts.jsonl"), **{"n_patched": 0, **changes}))

        assert cost(blocks=False) == Cost(24 * (1 + 100) + 4 * 1000 * (5 + 4 + 1), 5)
        assert cost(blocks_prompts=None) == Cost(24 * (3 + 200) + 2 * 4 * 1000 * (5 + 4 + 1), 5)
        assert cost(blocks_prompts=2) == Cost(pytest.approx(24 * (2.2 + 160) + 4 * 1000 * (10 + 3 + 2 + 1)), 5)
        assert cost(blocks=False, n_patched=1).seconds == pytest.approx(24 * (1 + 2.4 + 100) + 4 * 1000 * 10)


class TestHistory:
    def test_each_measure_takes_its_own_time_and_memory(self, monkeypatch):
        monkeypatch.setattr(history, "forward_seconds", lambda config, sizes, positions: positions)
        monkeypatch.setattr(history, "relabelling_seconds", lambda n, width: 1.0)
        monkeypatch.setattr(history, "half_clustering_seconds", lambda n, width, n_clusters: 10.0)
        monkeypatch.setattr(history, "cka_cost", lambda *sizes, units: Cost(300.0 if units else 100.0, 5.0))
        prompts = Prompts(classes={"task": ["a", "b"]})
        inputs: Any = SimpleNamespace(prompts=prompts, batches=batches(), corpus=None)

        def cost(probe: str, units: str = "none") -> Cost:
            config = HistoryConfig(Path("prompts.jsonl"), probes=(probe,), units=units, n_permutations=7, n_resamples=3)
            return history.cost_of(inputs, SIZES, 2, config)

        assert cost("clusters") == Cost(2 * (24 + 4 * (7 + 3 * 10)), 8 * 5 * 3)
        assert cost("cka") == Cost(2 * (24 + 4 * 3 * 100), 5)
        assert cost("cka", "template") == Cost(2 * (24 + 4 * 3 * 300), 5)
        assert cost("heads") == Cost(2 * (24 + 4 * 7), 8 * 7 * 4 * 5)


class TestMossa:
    PLAN = mossa.Plan(
        training={"a": mossa.ModelTraining(30, 4000.4, 1000), "b": mossa.ModelTraining(12, 1000, 200)},
        unfinished=["a", "b"],
        measured=700,
        operations=500,
        adapter=2**20,
        at_once=1,
        rows=3 * 2**20,
        layer=7,
        weights=800,
        beside=0,
        halves=DRAWING,
    )

    @pytest.mark.parametrize(("at_once", "states"), [(1, 9), (2, 18), (3, 18)])
    def test_disk_is_that_of_rows_adapters_checkpoints_and_the_report(self, tmp_path, at_once, states):
        """A checkpoint has the weights and two moments of each. Of every adapter in training there may be three."""
        assert replace(self.PLAN, at_once=at_once).lacking(tmp_path) == (3 + 2 + states + 64) * 2**20

    @pytest.mark.parametrize(("rows", "kept"), [(500, 500), (3 * 2**20, 3 * 2**20), (4 * 2**20, 3 * 2**20)])
    def test_what_is_kept_needs_no_room(self, monkeypatch, tmp_path, rows, kept):
        sizes = {"a": 1000, "rows": rows}
        monkeypatch.setattr(mossa, "safetensors_bytes", lambda folder: sizes.get(folder.name, 0))
        assert self.PLAN.lacking(tmp_path) == (3 + 2 + 9 + 64) * 2**20 - 1000 - kept

    def test_words(self, tmp_path):
        parts = self.PLAN.text(tmp_path).split("; ")
        assert parts[:2] == ["2 adapters, 42 steps on about 5,000 tokens", "measuring: about 700 tokens"]
        assert [part.split(":")[0] for part in parts[2:]] == ["disk", "memory"]
        bare = replace(self.PLAN, training={}, unfinished=[], weights=0).text(tmp_path)
        assert [part.split(":")[0] for part in bare.split("; ")] == ["measuring", "disk"]

    def test_time_is_that_of_passes_steps_and_halves(self):
        assert self.PLAN.cost(100, 10) == Cost(pytest.approx(12 + 50 + 0.042 + 7), 2**20)
        assert self.PLAN.cost(None, None) == Cost(pytest.approx(0.042 + 7), DRAWING.memory)

    def test_finished_adapters_take_no_time_and_no_room(self, tmp_path):
        plan = replace(self.PLAN, unfinished=["b"])
        assert plan.cost(100, None) == Cost(pytest.approx(2 + 0.012 + 7), DRAWING.memory)
        assert plan.lacking(tmp_path) == (3 + 1 + 9 + 64) * 2**20
