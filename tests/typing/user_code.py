"""What a user's type checker sees: checked by mypy (``make lint``), not run."""

from collections.abc import Mapping
from typing import assert_type

import torch
from torch import Tensor

from mechclust import ClustersConfig, ModelConfig, build_model, load_pretrained, load_result, measure_clusters
from mechclust.attention import AttentionView, attention_view
from mechclust.evidence import Findings, load_findings
from mechclust.studies import get_study, run_study
from probes import (
    CKA,
    Head,
    HookedModel,
    Probe,
    ProbeResult,
    Readout,
    Sites,
    Sum,
    TaskClusterARI,
    last_token,
    residual,
    run,
)
from probes.extend import check_probe
from probes.functional import linear_cka
from tasks import Batch, InstructionFollowing


class MeanNorm(Probe):
    """A probe as a user writes it, with types."""

    total, count = Sum(), Sum(torch.int64)

    def __init__(self, at: Sites = residual(), readout: Readout = last_token()) -> None:
        self.at, self.readout = at, readout

    def update(self, activations: Mapping[str, Tensor], batch: Batch) -> None:
        for site, x in activations.items():
            self.total.add(site, x.norm(dim=-1).sum(dtype=torch.float64))
            self.count.add(site, len(x))

    def compute(self) -> ProbeResult:
        norms = [self.total[s] / self.count[s] for s in self.site_names]
        return self.result({"norm": torch.stack(norms)}, {"norm": ("site",)})


task = InstructionFollowing(n_tasks=4)
model = build_model(ModelConfig(d_vocab=9, n_ctx=4))
batches = list(task.batches("validation"))

assert_type(model, HookedModel)
assert_type(batches, list[Batch])
assert_type(run(model, batches, MeanNorm()), ProbeResult)
assert_type(run({"tuned": model, "base": model}, batches, [CKA(), TaskClusterARI()]), list[ProbeResult])
assert_type(run(model, batches, MeanNorm())["norm"], Tensor)
assert_type(run(model, batches, MeanNorm()).top_heads("norm"), list[Head])
assert_type(load_result("file"), ProbeResult)
assert_type(load_findings("runs/demo"), Findings)
assert_type(load_findings("runs/demo")[0].measured, float | None)
assert_type(attention_view(model, torch.tensor([1])), AttentionView)
assert_type(linear_cka(torch.eye(4), torch.eye(4)).value, float)
assert_type(Batch.concat(batches), Batch)
check_probe(MeanNorm(), model, batches)
measure_clusters("gpt2", ClustersConfig(prompts="prompts.jsonl"))  # type: ignore[arg-type]  # a Path is wanted
run_study(get_study("mossa"), get_study("mossa").preset("smoke"), "out", probes=["NDims"])
run(load_pretrained("gpt2"), batches, MeanNorm())

run(3, batches, MeanNorm())  # type: ignore[call-overload]
run(model, ["text"], MeanNorm())  # type: ignore[list-item]
TaskClusterARI(labels="task")  # type: ignore[call-arg]
ModelConfig(d_vocab="9", n_ctx=4)  # type: ignore[arg-type]
