"""Train two layers of attention on repeated random tokens, and see which heads become induction heads."""

from pathlib import Path

from mechclust import TrainConfig, accuracy, build_model, model_for, train
from probes import HeadRoles, run
from tasks import RepeatedTokens

task = RepeatedTokens(n_symbols=16, length=24, periods=(4, 9), n_test=64)
model = build_model(model_for(task, n_layers=2, d_model=32, n_heads=4))
probe = HeadRoles()

untrained = run(model, task.batches("test"), probe)
train(model, task, TrainConfig(steps=300, batch_size=64, lr=3e-3))
trained = run(model, task.batches("test"), probe)
print(f"repeated tokens predicted: {accuracy(model, task, 'test')[0]:.0%}")

names = trained.metadata["categories"]["role"]  # of the places in the measure role
for layer, roles in enumerate(trained["role"].tolist()):
    print(f"layer {layer}: {', '.join(names[place] for place in roles)}")
best = trained.top_heads("score", 1, role="induction")[0]
before = float(untrained.sel("score", role="induction", layer=best.layer, head=best.head))
chance = float(trained.sel("chance", role="induction", layer=best.layer, head=best.head))
print(f"{best.name} attends to what followed its token before: {before:.2f} before training, {best.value:.2f} after")
print(f"by chance, with token ids permuted: {chance:.2f}")

out = Path("runs/head_roles.png")
out.parent.mkdir(exist_ok=True)
trained.plot().figure.savefig(out, dpi=150)
print(f"drawn in {out}")
