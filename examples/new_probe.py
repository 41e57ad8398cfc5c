"""Write a new probe, check that it satisfies the contract of all probes, and run it.

To make it available to `mechclust list` and `mechclust run STUDY --probes anisotropy`, put the class in a module of
your own package and add two lines to the package's pyproject.toml:

    [project.entry-points."mechclust.probes"]
    anisotropy = "my_package.my_module:Anisotropy"
"""

import torch

from mechclust import TrainConfig, build_model, model_for, train
from probes import Probe, Sum, last_token, residual, run, token_at
from probes.extend import check_probe
from tasks import InstructionFollowing


class Anisotropy(Probe):
    """Mean cosine between the states of different examples, per site: 0 if they point in all directions equally."""

    total, count = Sum(), Sum(torch.int64)

    def __init__(self, at=residual(), readout=last_token()):
        self.at, self.readout = at, readout

    def update(self, activations, batch):
        for site, x in activations.items():
            directions = torch.nn.functional.normalize(x.double(), dim=-1)
            self.total.add(site, directions.sum(dim=0))
            self.count.add(site, len(x))

    def compute(self):
        n = int(self.count[self.site_names[0]])
        # The squared length of a sum of n unit vectors is n plus the cosines of all ordered pairs.
        lengths = torch.stack([self.total[site].square().sum() for site in self.site_names])
        cosine = (lengths - n) / (n * (n - 1)) if n > 1 else torch.full_like(lengths, torch.nan)
        notes = [] if n > 1 else ["one example has no pair, so the mean cosine is NaN"]
        return self.result({"cosine": cosine}, {"cosine": ("site",)}, metadata={"n": n}, notes=notes)


task = InstructionFollowing(n_tasks=8, variants=60, n_eval=300)
model = build_model(model_for(task, n_layers=3, d_model=64))
probe = Anisotropy(readout=token_at("input"))

check_probe(probe, model, next(task.batches("validation_subset", batch_size=24)))  # raises if a clause is broken
print(f"{type(probe).__name__} satisfies the contract: any split, order, merge or saved state gives the same numbers")

before = run(model, task.batches("validation_subset"), probe)
train(model, task, TrainConfig(steps=100, batch_size=64, lr=2e-3), progress=True)
after = run(model, task.batches("validation_subset"), probe)
table = after.to_dataframe()[["layer", "site"]].assign(untrained=before["cosine"], trained=after["cosine"])
print(f"mean cosine between the states of two of {after.metadata['n']} examples at their input token:")
print(table.round(3).to_string(index=False))
