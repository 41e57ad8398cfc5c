"""Teach a small transformer two new skills, and use CKA to see which layers changed, and for which skills."""

from dataclasses import replace

from mechclust import TrainConfig, accuracy, build_model, load_model, model_for, save_model, train
from probes import CKA, SVCCA, residual, run, token_at
from tasks import SkillSuite

every = tuple(f"{skill}-0" for skill in ("copy", "swap", "translate", "type", "classify", "sentiment"))
# One pair of symbols per prompt: easy, so that this takes seconds. The base model learns to copy and to swap it.
suite = SkillSuite(n_symbols=8, length=2, n_arguments=1, walk_share=0.0, encoded_share=0.9, seen=every, n_eval=250)
base = build_model(model_for(suite, n_layers=4, d_model=64, init_std=0.125))
settings = TrainConfig(steps=160, batch_size=32, lr=3e-3, warmup=25)
train(base, replace(suite, stream="pretraining"), settings, progress=True)
save_model(base, "runs/compare_models/base.safetensors")

tuned = load_model("runs/compare_models/base.safetensors")
skills = ["copy-0", "swap-0", "type-0", "classify-0"]  # two that it knows already, and two new ones
settings = TrainConfig(steps=150, batch_size=32, lr=2e-3, layer_decay=0.5, freeze=("embed", "pos_embed", "unembed"))
train(tuned, replace(suite, skills=tuple(skills)), settings, progress=True)

batches = list(suite.batches("test", tasks=skills))  # the same prompts for both models
at, readout = residual([1, 2, 3, 4]), token_at("answer")  # the last token of every prompt
cka, svcca = run(
    {"tuned": tuned, "base": base},
    batches,
    [CKA(at, readout, label="task", n_resamples=50), SVCCA(at, readout, label="task")],
)

print("Debiased CKA of tuned and base with a 95% interval over prompts; in square brackets SVCCA, a second opinion")
print(f"{'skill':12}{'accuracy':>12}" + "".join(f"{f'layer {layer}':>26}" for layer in (1, 2, 3, 4)))
for skill in skills:
    label = str(suite.task_names.index(skill))
    values, low, high = (cka.sel(f"debiased_cka{part}", label=label) for part in ("", "_low", "_high"))
    other = svcca.sel("svcca", label=label)
    cells = [f"{v:.2f} ({lo:.2f}-{hi:.2f}) [{o:.2f}]" for v, lo, hi, o in zip(values, low, high, other, strict=True)]
    before, after = (accuracy(model, suite, "test", tasks=[skill])[0] for model in (base, tuned))
    print(f"{skill:12}{f'{before:.2f} > {after:.2f}':>12}" + "".join(f"{cell:>26}" for cell in cells))
n = int(cka.sel("n", label=str(suite.task_names.index("type-0"))))
print(f"n = {n} prompts per skill, d = {base.cfg.d_model}. CKA is 1 if a layer did not change.")

layers = run(tuned, batches, CKA(at, readout))  # every pair of layers of one model
print("\nDebiased CKA of every pair of layers of the tuned model")
for site, row in zip(layers.coords["site"], layers.sel("debiased_cka", label="all"), strict=True):
    print(f"{site:26}" + "".join(f"{float(value):8.3f}" for value in row))
