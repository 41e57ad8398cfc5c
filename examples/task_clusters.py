"""Train a small transformer to follow instructions, and ask which layers cluster by task."""

from mechclust import TrainConfig, build_model, model_for, train
from probes import TaskClusterARI, residual, run
from tasks import InstructionFollowing

task = InstructionFollowing(n_tasks=8, variants=60, n_eval=300)
model = build_model(model_for(task, n_layers=4, d_model=64))
train(model, task, TrainConfig(steps=200, batch_size=128), progress=True)

probe = TaskClusterARI(label="task", at=residual(), also=("output",))
result = run(model, task.batches("validation_subset"), probe)
print(result.to_dataframe().pivot(index=["layer", "site"], columns=["measure", "label"], values="value").round(3))
