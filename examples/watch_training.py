"""Watch a training run: when, and at which layers, do hidden states come to cluster by task?

If it is stopped and started again, it resumes where it stopped: results and weights are files in runs/watch_training.
"""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch

from mechclust import ProbeCallback, TrainConfig, build_model, load_result, model_for, train
from probes import NDims, TaskClusterARI, attach, residual, token_at
from tasks import InstructionFollowing

out = Path("runs/watch_training")
task = InstructionFollowing(n_tasks=8, variants=60, n_eval=300)
model = build_model(model_for(task, n_layers=3, d_model=64))
settings = TrainConfig(steps=150, batch_size=64, lr=2e-3, n_checkpoints=8)  # checkpoints at log-spaced steps
batches = {"validation": list(task.batches("validation_subset"))}
watch = ProbeCallback(out, batches, {"ari": TaskClusterARI(label="task", at=residual())})
train(model, task, settings, out / "state", [watch], progress=True)

steps = settings.checkpoint_steps
results = {step: load_result(out / f"step-{step:06d}.validation.ari.safetensors") for step in steps}
rows = pd.concat([result.to_dataframe().assign(step=step) for step, result in results.items()])
table = rows[rows.measure == "ari"].pivot(index="step", columns="layer", values="value")
print("Adjusted Rand index between clusters of hidden states and the task, by layer: 1 for the tasks, 0 by chance")
print(table.round(3).to_string())

axes = table.plot(marker=".", logx="sym", xlabel="training step", ylabel="ARI with the task", grid=True)
chance = rows.groupby(["measure", "step"]).value.mean()
axes.fill_between(steps, chance["null_low"], chance["null_high"], color="0.7", label="chance")
axes.legend(title="layer")
axes.figure.savefig(out / "ari.png", dpi=150)
print(f"drawn in {out / 'ari.png'}")

# In a training loop of your own, attach a probe: it sees the forward passes made inside on(batch), and no others.
probe = NDims(residual(), token_at("input"))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
with attach(model, probe) as attached:
    for step in range(8):
        batch = task.train_batch(step, batch_size=64)
        batch = replace(batch, index=64 * step + torch.arange(64))  # the same example may occur again
        with attached.on(batch):
            loss = task.loss(model(batch.tokens), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
dims = probe.compute()["n_dims"].flatten().int().tolist()
print(f"during 8 more steps: {dims} dimensions hold 99% of the variance of layers 0 to {len(dims) - 1}")
