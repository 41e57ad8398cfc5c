"""Train a small transformer to follow instructions, and ask which heads map a task's prompts to one point."""

from mechclust import TrainConfig, build_model, model_for, train
from probes import ClusteringHead, causal_checks, run, token_at
from tasks import InstructionFollowing

task = InstructionFollowing(n_tasks=8, variants=60, n_eval=300)
config = model_for(task, n_layers=3, d_model=64)
probe = ClusteringHead(equivalence="task", query=token_at("input"))
before = run(build_model(config), task.batches("validation_subset"), probe)

model = build_model(config)
train(model, task, TrainConfig(steps=200, batch_size=128), progress=True)
after = run(model, task.batches("validation_subset"), probe)
checks = causal_checks(model, task.batches("validation_subset"), probe, task.accuracy)

print("Clusters of head outputs by task; in brackets the untrained model")
print(f"{'site':20} head   within-ratio  nearest centroid   accuracy: ablated  centroid  swapped")
for s, site in enumerate(after.coords["site"]):
    for h, head in enumerate(after.coords["head"]):
        ratio, near = ([float(r[k][s, h]) for r in (after, before)] for k in ("within_ratio", "nearest_centroid"))
        replaced = [float(checks[f"{k}_accuracy"][s, h].squeeze()) for k in ("ablated", "centroid", "swap")]
        numbers = "".join(f"{x:10.3f}" for x in replaced)
        clusters = f"{ratio[0]:.2f} ({ratio[1]:.2f})       {near[0]:.2f} ({near[1]:.2f})"
        print(f"{site:20} {head:>4}    {clusters}       {numbers}")
print(f"within-ratio by chance {float(after['within_ratio_chance']):.2f}")
print(f"accuracy of the model {float(checks['accuracy']):.3f}, of a constant answer {checks['majority_accuracy']:.3f}")
s, h = divmod(int(after["within_ratio"].argmin()), len(after.coords["head"]))
print(f"the tightest clusters are those of {after.coords['site'][s]}, head {h}")
