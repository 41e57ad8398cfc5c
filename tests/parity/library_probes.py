"""Every probe on tiny random models, in float32 and float64, and what stands around probes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.parity.names import Library


def instructions(lib: Library) -> Any:
    """Return a small task whose batches have labels and named positions."""
    return lib.tasks.InstructionFollowing(
        n_tasks=4, variants=6, n_inputs=4, n_mappings=3, n_symbols=8, n_eval_tasks=3, n_eval=40, validation_share=0.25
    )


def model_of(lib: Library, task: Any, seed: int = 0, **fields: Any) -> Any:
    """Return a random model of two layers for a task."""
    shape = {"n_layers": 2, "d_model": 8, "n_heads": 2, "init_std": 0.3}
    return lib.mechclust.build_model(lib.mechclust.model_for(task, **{**shape, "seed": seed, **fields}))


def _of_states(lib: Library) -> list[Any]:
    """Return the probes of one model's hidden states and attention."""
    probes = lib.probes
    last = probes.last_token()
    return [
        probes.AttentionEntropy(),
        probes.AttentionEntropy(query=last),
        probes.CKA(pairs="all", label="task"),
        probes.LinearDecodability(readout=last, n_shuffles=5, folds=3),
        probes.NDims(label="task", variance=0.9),
        probes.NeighbourPurity(k=3),
        probes.NormJacobian(),
        probes.Projection(method="pca"),
        probes.RBFCKA(pairs="all"),
        probes.SVCCA(pairs="all", variance=0.9),
        probes.TaskClusterARI(n_init=2, n_permutations=20),
        probes.TaskClusterARI(
            readout=probes.mean(), n_clusters=(3, 4), n_init=2, n_permutations=20, preprocess=probes.Preprocess(pca=3)
        ),
        probes.LogitLens(),
        probes.LogitLens("task", [1, 2, 3, 4], probes.residual(final_norm=True)),
    ]


def _of_pairs(lib: Library) -> list[Any]:
    """Return the probes that compare two models."""
    probes = lib.probes
    return [
        probes.CKA(label="task", n_resamples=20, n_permutations=20),
        probes.CKA(form="moments"),
        probes.CKA(precision="float32", form="rows"),
        probes.RBFCKA(label="task", fraction=0.7),
        probes.SVCCA(readout=probes.first_token(), variance=0.9),
        probes.NDims(),
        probes.NeighbourPurity(k=3),
    ]


def _named(results: list[Any]) -> dict[str, Any]:
    return {f"{i}-{result.probe}": result for i, result in enumerate(results)}


def _run_all(lib: Library, precision: torch.dtype) -> dict[str, Any]:
    """Run all probes on one model and on two."""
    task = instructions(lib)
    model, base = model_of(lib, task).to(precision), model_of(lib, task, seed=1).to(precision)
    batches = list(task.batches("train_subset", 16))
    alone = lib.probes.run(model, batches, _of_states(lib))
    both = lib.probes.run({"tuned": model, "base": base}, batches, _of_pairs(lib))
    return {"alone": _named(alone), "both": _named(both)}


def probes_float32(lib: Library, inputs: Path) -> Any:
    """Run every probe on weights in float32."""
    return _run_all(lib, torch.float32)


def probes_float64(lib: Library, inputs: Path) -> Any:
    """Run every probe on weights in float64."""
    return {"precision": "float64", **_run_all(lib, torch.float64)}


def topic_probes(lib: Library, inputs: Path) -> Any:
    """Run the probes of topics on documents whose topics are known."""
    task = lib.tasks.TopicDocuments(n_topics=4, words_per_topic=3, lengths=(5, 9), n_documents=24)
    model = model_of(lib, task, attention="bidirectional").double()
    topics = task.token_topics
    probes = [
        lib.probes.TopicAttention(topics, n_permutations=19),
        lib.probes.DistanceMatchedTopicAttention(topics, n_resamples=19),
        lib.probes.TopicEmbedding(topics, n_permutations=19),
    ]
    return {"precision": "float64", "found": _named(lib.probes.run(model, task.batches("dev", 12), probes))}


def head_probes(lib: Library, inputs: Path) -> Any:
    """Measure heads of a model that adds, and intervene on them."""
    task = lib.tasks.SparseModularAddition(p=2, length=6, n_support=3, n_train=64, n_test=64)
    model = model_of(lib, task).double()
    batch = next(task.batches("test", 64))
    probes = lib.probes
    head = probes.ClusteringHead(("multiset", "answer"), task.positions, 2, permutations=19)
    found = {"heads": probes.run(model, batch, head)}
    found["checks"] = probes.causal_checks(model, batch, head, task.accuracy)
    found["attribution"] = probes.head_attribution(model, batch, head, permutations=19)
    found["interchange"] = probes.interchange(model, batch, head, heads=2, recipients=4, permutations=19)
    chosen = [("blocks.0.attn.hook_z", 0), ("blocks.1.attn.hook_z", 1)]
    found["together"] = probes.interchange_together(model, batch, head, heads=chosen, recipients=4, permutations=19)
    outputs = probes.collect_rows(model, batch, probes.head_output(), probes.last_token())
    return {"precision": "float64", "found": found, "outputs": outputs}


def readouts_and_sites(lib: Library, inputs: Path) -> Any:
    """Read hidden states at every readout and selector."""
    task, probes = instructions(lib), lib.probes
    model = model_of(lib, task).double()
    batch = next(task.batches("train_subset", 16))
    found: dict[str, Any] = {}
    readouts = (probes.last_token(), probes.first_token(), probes.mean(), probes.token_at("input"))
    for readout in readouts:
        found[repr(readout)] = probes.collect_rows(model, batch, readout=readout)
    for at in (probes.embedding(), probes.residual(1), probes.attention_pattern(0), probes.head_output([1])):
        found[repr(at)] = [list(site) for site in probes.resolve(model, at)]
    with probes.record(model, ["blocks.1.hook_resid_post"]) as seen:
        model(batch.tokens)
    found["recorded"] = seen["blocks.1.hook_resid_post"]
    whole = probes.all_tokens()
    found["all tokens"] = whole(seen["blocks.1.hook_resid_post"][0], batch)
    found["kinds"] = [isinstance(whole, probes.Readout), isinstance(probes.residual(), probes.Selector)]
    found["kinds"] += [isinstance(probes.resolve(model, "hook_embed")[0], probes.Site)]
    found["types"] = [str(type(each).__name__) for each in (probes.HookedModel, probes.HookPoints, probes.RowSource)]
    found["sites"] = probes.Sites is not None
    return {"precision": "float64", "found": found}


def attached(lib: Library, inputs: Path) -> Any:
    """Measure while a loop of one's own runs the model."""
    task, probes = instructions(lib), lib.probes
    model, probe = model_of(lib, task), probes.NDims()
    with probes.attach(model, probe) as hooked:
        for batch in task.batches("train_subset", 16):
            with torch.no_grad(), hooked.on(batch):
                model(batch.tokens, attention_mask=batch.attention_mask)
    return {"result": probe.compute(), "kind": isinstance(hooked, probes.Attached)}


def plugin(lib: Library, inputs: Path) -> Any:
    """Find, check and run a probe of somebody else's package."""
    sys.path.insert(0, str(inputs / "plugin"))
    task, probes = instructions(lib), lib.probes
    model = model_of(lib, task)
    listed = probes.list_probes()
    probe = probes.get_probe("MeanNorm")
    batches = list(task.batches("train_subset", 16))
    lib.package("probes.testing").check_probe(probe, model, batches)
    return {
        "listed": [each.name for each in listed],
        "packages": [each.package for each in listed if each.name == "MeanNorm"],
        "kind": isinstance(probes.find_probe("MeanNorm"), probes.RegisteredProbe),
        "subclass": isinstance(probe, probes.Probe),
        "states": [type(state).__name__ for state in (probes.Sum(), probes.Rows(), probes.Moments())],
        "result": probes.run(model, batches, probe),
    }


def states_and_results(lib: Library, inputs: Path) -> Any:
    """Merge the states of two parts, and save, load, select from and merge results."""
    task, probes = instructions(lib), lib.probes
    model = model_of(lib, task).double()
    batches = list(task.batches("train_subset", 16))
    first, second = probes.TaskClusterARI(n_init=1, n_permutations=9), probes.TaskClusterARI(n_init=1, n_permutations=9)
    probes.run(model, batches[0], first)
    probes.run(model, batches[1:], second)
    first.save_state("state.safetensors")
    again = first.clone()
    again.load_state("state.safetensors")
    again.merge(second)
    result = again.compute()
    result.save("result.safetensors")
    loaded = probes.load_result("result.safetensors")
    entropy = probes.run(model, batches, probes.AttentionEntropy())
    parts = [probes.run(model, batches, probes.NDims(at=probes.residual(layer))) for layer in (0, 1)]
    indices = probes.IndexSet()
    indices.add(torch.arange(5))
    return {
        "precision": "float64",
        "merged": loaded,
        "frame": loaded.to_dataframe(),
        "selected": loaded.sel("ari", label="task"),
        "heads": entropy.top_heads("entropy", 2),
        "kind of heads": isinstance(entropy.top_heads("entropy", 1)[0], probes.Head),
        "joined": parts[0].merge(parts[1]),
        "kind": isinstance(loaded, probes.ProbeResult),
        "indices": len(indices),
        "drawn": type(loaded.plot("ari")).__name__,
    }


CALLS: dict[str, Callable[[Library, Path], Any]] = {
    "probes-float32": probes_float32,
    "probes-float64": probes_float64,
    "probes-of-topics": topic_probes,
    "probes-of-heads": head_probes,
    "readouts-and-sites": readouts_and_sites,
    "attached": attached,
    "plugin": plugin,
    "states-and-results": states_and_results,
}
