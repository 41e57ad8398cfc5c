"""Train a small transformer to add a few digits modulo 2, and find heads that map equivalent inputs to one point."""

from mechclust import TrainConfig, build_model, model_for, train
from probes import ClusteringHead, causal_checks, run
from tasks import SparseModularAddition

task = SparseModularAddition(length=8, n_support=3, n_embeddings=2)  # only the first 3 of 8 digits count
config = model_for(task, n_layers=2, d_model=32, n_heads=2, init_std=0.1)
probe = ClusteringHead(equivalence="multiset", support=task.positions)  # the same digits there, in any order
before = run(build_model(config), task.batches("test"), probe)

model = build_model(config)
train(model, task, TrainConfig(steps=400, batch_size=128, lr=3e-3), progress=True)
after = run(model, task.batches("test"), probe)
checks = causal_checks(model, task.batches("test"), probe, task.accuracy, influence=False)

print("Head outputs: scatter within clusters (0 = one point each, 1 = no clusters), before training in brackets,")
print("share nearest to their own cluster's centre, and the model's accuracy with the output replaced")
print("head          within   nearest  support |  the mean  own centre  wrong centre")
for best in after.top_heads("within_ratio", k=4, smallest=True, equivalence="multiset"):
    at = {"site": f"blocks.{best.layer}.attn.hook_z", "head": str(best.head)}
    untrained = float(before.sel("within_ratio", equivalence="multiset", **at))
    nearest, mass = float(after.sel("nearest_centroid", equivalence="multiset", **at)), after.sel("support_mass", **at)
    mean = float(checks.sel("ablated_accuracy", **at))
    own, wrong = (float(checks.sel(f"{k}_accuracy", partition="multiset", **at)) for k in ("centroid", "misplaced"))
    measured = f"{best.value:.2f} ({untrained:.2f}) {nearest:9.2f} {float(mass):8.2f}"
    print(f"{best.name:<11}   {measured} | {mean:9.2f} {own:11.2f} {wrong:13.2f}")
print(f"by chance {float(after['within_ratio_chance']):.2f} within; {int(after['clusters'])} clusters")
print("accuracy on test sequences, of which training has nearly all (there are 256):")
print(f"the model {float(checks['accuracy']):.3f}, a constant answer {checks['majority_accuracy']:.3f}")
