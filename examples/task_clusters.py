"""Train a small transformer to follow instructions, and ask which layers cluster by task."""

from mechclust import TrainConfig, build_model, model_for, train
from probes import TaskClusterARI, residual, run
from tasks import InstructionFollowing

task = InstructionFollowing(n_tasks=8, variants=60, n_eval=300)
model = build_model(model_for(task, n_layers=4, d_model=64))
# Many k-means starts: with the default, 10, the best of them can still be poor (0.68 at layer 4).
probe = TaskClusterARI(label="task", at=residual(), also=("output",), n_init=100)
before = run(model, task.batches("validation_subset"), probe)
train(model, task, TrainConfig(steps=200, batch_size=64, lr=1.5e-3), progress=True)
after = run(model, task.batches("validation_subset"), probe)

print("Adjusted Rand index of clusters of hidden states: 1 if they are the classes of the label, 0 by chance")
print(f"{'layer':>5} {'task, untrained':>16} {'task, trained':>14} {'by chance':>18} {'output, trained':>16}")
for i, site in enumerate(after.coords["site"]):
    untrained, trained = (float(result.sel("ari", label="task")[i]) for result in (before, after))
    chance = " to ".join(f"{float(after.sel(end, label='task')[i]):.3f}" for end in ("null_low", "null_high"))
    output = float(after.sel("ari", label="output")[i])
    print(f"{after.layers[site]:>5} {untrained:>16.3f} {trained:>14.3f} {chance:>18} {output:>16.3f}")
print(f"{after.metadata['n']} examples; clusters: {after.metadata['n_clusters']}")
