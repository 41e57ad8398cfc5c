from __future__ import annotations

import json
import random
import re
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from probes import (
    CKA,
    ProbeResult,
    TaskClusterARI,
    all_tokens,
    attention_pattern,
    embedding,
    head_output,
    last_token,
    mean,
    record,
    residual,
    rows_from,
    run,
    run_stores,
    token_at,
)
from probes.engine.fingerprint import fingerprint
from probes.engine.hooked_model import evaluation_mode
from probes.engine.run import run_by_steps, run_results
from tasks import Batch, InputError

TOKENS = torch.tensor([[1, 2], [3, 0], [2, 2], [4, 1], [0, 3]])


def planted(vocab: int = 5, layers: int = 3) -> list[torch.Tensor]:
    return [torch.randn(vocab, 4, generator=torch.Generator().manual_seed(i)) for i in range(layers)]


# ---- what it measures ----


def test_equals_a_run_with_cache_loop(model: Any, batch: Batch, keep: Any) -> None:
    sites = [residual(final_norm=True), head_output(), "hook_pos_embed"]
    probes = [keep(sites, readout) for readout in (last_token(), mean(), token_at("input"))]
    probes.append(keep([*sites, attention_pattern()], all_tokens()))
    parts = list(batch.split(5))
    results = run(model, parts, probes)
    assert [r.probe for r in results] == ["Keep"] * 4
    expected: dict[tuple[int, str], list[torch.Tensor]] = {}
    for part in parts:
        with torch.no_grad():
            _, cache = model.run_with_cache(part.tokens, attention_mask=part.attention_mask.long())  # type: ignore[union-attr]
        for k, probe in enumerate(probes):
            for site in probe.site_names:
                expected.setdefault((k, site), []).append(probe.readout(cache[site], part))
    for (k, site), rows in expected.items():
        order = batch.index.argsort()
        assert torch.equal(probes[k].kept(site), torch.cat(rows)[order]), site


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_padding_changes_nothing(tiny_model: Any, keep: Any, tl_major: int, side: str, attention: str) -> None:
    model = tiny_model(attention=attention)
    short, probes = torch.tensor([[1, 2, 3]]), (keep(), keep())
    run(model, Batch(short), probes[0])
    padding = torch.zeros(1, 2, dtype=torch.int64)
    row = [short, padding] if side == "right" else [padding, short]
    padded = torch.cat([torch.cat(row, dim=1), torch.tensor([[1, 2, 3, 4, 5]])])
    mask = torch.ones_like(padded, dtype=torch.bool)
    mask[0, slice(3, 5) if side == "right" else slice(0, 2)] = False
    if (tl_major, attention) == (3, "bidirectional"):
        with pytest.raises(InputError, match=r"3\.9 ignores the attention mask of a bidirectional model; use"):
            run(model, Batch(padded, mask), probes[1])
        return
    run(model, Batch(padded, mask), probes[1])
    for site in probes[0].site_names:
        torch.testing.assert_close(probes[1].kept(site)[:1], probes[0].kept(site), rtol=1e-4, atol=1e-5)


def test_one_forward_pass_serves_all_probes(fake_model: Any, keep: Any) -> None:
    model = fake_model(*planted())
    results = run(model, Batch(TOKENS), [keep(), keep(embedding(), mean()), keep(residual(1), all_tokens())])
    assert model.calls.count("hook_embed") == 1
    assert [len(r.coords["site"]) for r in results] == [3, 1, 1]


def test_one_probe_gives_one_result_and_a_list_a_list(fake_model: Any, keep: Any) -> None:
    model = fake_model(*planted())
    assert run(model, Batch(TOKENS), keep()).coords["example"] == ["0", "1", "2", "3", "4"]
    assert isinstance(run(model, Batch(TOKENS), [keep()]), list)
    assert run(model, Batch(TOKENS), keep(), progress=True).probe == "Keep"


# ---- how it measures ----


def test_a_probe_given_twice_is_refused_before_work(fake_model: Any, keep: Any) -> None:
    model = fake_model(torch.ones(5, 2), torch.ones(5, 2))
    probe = keep()
    tokens = torch.tensor([[1], [2]])
    with pytest.raises(InputError, match=r"^a probe is given twice; give each once$"):
        run(model, tokens, [probe, keep(), probe])
    assert not model.calls
    assert len(run(model, tokens, [probe, probe.clone()])) == 2


def test_the_forward_stops_after_the_deepest_site(model: Any, batch: Batch, keep: Any) -> None:
    calls = {"blocks.0.hook_resid_pre": 0, "blocks.1.hook_resid_pre": 0}

    def count(name: str) -> Any:
        def hook(*_: Any, **__: Any) -> None:
            calls[name] += 1

        return hook

    handles = [model.hook_dict[name].register_forward_pre_hook(count(name)) for name in calls]
    try:
        run(model, batch.split(3), keep("blocks.0.hook_resid_pre"))
    finally:
        for handle in handles:
            handle.remove()
    # the first batch goes all the way, to find hook points that never fire
    assert calls == {"blocks.0.hook_resid_pre": 4, "blocks.1.hook_resid_pre": 1}


def test_other_peoples_hooks_survive_and_still_act(model: Any, batch: Batch, keep: Any, hooks_of: Any) -> None:
    seen: list[str] = []
    clean = hooks_of(model)
    expected = run(model, batch, keep(residual(1)))
    with model.hooks(fwd_hooks=[("hook_embed", lambda x, hook: seen.append("outer"))]):
        mine = hooks_of(model)
        result = run(model, batch.split(3), keep(residual(1)))
        assert hooks_of(model) == mine != clean
        assert seen == ["outer"] * 4
        model(batch.tokens)
        assert seen == ["outer"] * 5
    assert hooks_of(model) == clean
    torch.testing.assert_close(result["sum"], expected["sum"])


def test_added_hooks_survive_and_interventions_are_measured(tiny_model: Any, keep: Any, hooks_of: Any) -> None:
    model, probe = tiny_model(), keep(embedding())
    model.hook_dict["hook_embed"].add_hook(lambda x, hook: torch.full_like(x, 7.0))
    mine = hooks_of(model)
    for _ in range(2):
        run(model, Batch(TOKENS).split(2), probe)
        assert (probe.kept("hook_embed") == 7).all()
        assert hooks_of(model) == mine


def test_hooks_are_removed_after_an_exception(model: Any, batch: Batch, keep: Any, hooks_of: Any) -> None:
    clean, training = hooks_of(model), [m.training for m in model.modules()]

    def broken() -> Iterator[Batch]:
        yield batch
        raise RuntimeError("no more data")

    failing = keep()
    vars(failing)["update"] = lambda activations, batch: 1 / 0
    for message, batches, probe in (
        ("no more data", broken(), keep()),
        ("division by zero", batch, failing),
        ("no position 'end'", batch, keep(readout=token_at("end"))),  # raised inside the hook
    ):
        with pytest.raises(Exception, match=message):
            run(model, batches, probe)
        assert hooks_of(model) == clean
        assert [m.training for m in model.modules()] == training


def test_hooks_that_the_model_refuses_leave_none_behind(model: Any, batch: Batch, keep: Any, hooks_of: Any) -> None:
    clean = hooks_of(model)
    with pytest.raises(ValueError, match=r"hook_result.*(did not fire|use_attn_result)"):  # per TransformerLens major
        run(model, batch, keep(["hook_embed", "blocks.0.attn.hook_result"]))
    assert hooks_of(model) == clean


def test_every_modules_own_training_flag_comes_back(tiny_model: Any, batch: Batch, keep: Any) -> None:
    model = tiny_model()
    modules = list(model.modules())
    flags = [i % 3 == 0 for i in range(len(modules))]
    for module, flag in zip(modules, flags, strict=True):
        module.training = flag
    inside: list[bool] = []
    with model.hooks(fwd_hooks=[("hook_embed", lambda x, hook: inside.extend(m.training for m in modules))]):
        run(model, batch, keep())
    assert inside
    assert not any(inside)
    assert [m.training for m in modules] == flags
    with pytest.raises(ZeroDivisionError), evaluation_mode(model):
        _ = 1 / 0
    assert [m.training for m in modules] == flags


def test_dropout_is_off_and_the_random_state_untouched(fake_model: Any, keep: Any) -> None:
    states = planted()
    model, probe = fake_model(*states).train(), keep(readout=all_tokens())
    before = torch.get_rng_state(), repr(np.random.get_state(legacy=False)), random.getstate()
    run(model, Batch(TOKENS), probe)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (repr(np.random.get_state(legacy=False)), random.getstate()) == before[1:]
    assert torch.equal(probe.kept("blocks.1.hook_resid_post"), states[2][TOKENS])
    assert model.training


def test_batches_are_consumed_once_and_let_go(model: Any, batch: Batch, keep: Any) -> None:
    held: list[weakref.ref] = []
    drawn = []

    def batches() -> Iterator[Batch]:
        for i, part in enumerate(batch.split(2)):
            alive = [k for k, ref in enumerate(held) if ref() is not None]
            assert all(k >= i - 1 for k in alive), f"batches {alive} are still held when batch {i} is drawn"
            fresh = part.select(torch.arange(len(part)))
            held.append(weakref.ref(fresh.tokens))
            drawn.append(i)
            del part
            yield fresh
            del fresh

    activations: list[weakref.ref] = []
    probe = keep(readout=all_tokens())
    update = probe.update

    def watched(given: dict[str, torch.Tensor], part: Batch) -> None:
        assert all(ref() is None for ref in activations), "activations of earlier batches are still held"
        activations.extend(weakref.ref(x) for x in given.values())
        update(given, part)

    vars(probe)["update"] = watched
    run(model, batches(), probe)
    assert drawn == list(range(6))
    assert len(activations) == 6 * 3


def test_what_a_generator_keeps_stays_usable_in_training(model: Any, keep: Any) -> None:
    cache: list[torch.Tensor] = []

    def batches() -> Iterator[Batch]:
        cache.append(torch.tensor([[1, 2, 3]]))  # an inference tensor could not be saved for backward
        yield Batch(cache[-1])

    run(model, batches(), keep())
    model(cache[0]).sum().backward()
    model.zero_grad()


# ---- what it refuses ----


def test_labels_and_positions_that_the_batch_lacks_are_told(model: Any, batch: Batch) -> None:
    with pytest.raises(InputError, match=r"no label 'skill' in this batch \(it has 'task', .*\); add it to Batch"):
        run(model, batch, TaskClusterARI(label="skill"))
    with pytest.raises(
        InputError, match=r"no position 'end' in this batch \(it has 'instruction_end', 'input', 'output'\); add it to"
    ):
        run(model, batch, TaskClusterARI(readout=token_at("end")))


def test_a_hook_point_that_does_not_fire_is_told(fake_model: Any, keep: Any) -> None:
    message = (
        "hook point 'hook_silent' exists but did not fire in this forward pass; choose another hook name, "
        "or run the part of the model it belongs to"
    )
    with pytest.raises(InputError, match=re.escape(message)):
        run(fake_model(*planted()), Batch(TOKENS), keep([residual(), "hook_silent"]))


def test_a_hook_point_that_fires_twice_is_told(fake_model: Any, keep: Any) -> None:
    model = fake_model(*planted())
    model.fire_twice = True
    with pytest.raises(InputError, match=r"hook point 'hook_embed' fired twice in one forward pass \(a shared layer"):
        run(model, Batch(TOKENS), keep())


def test_a_misspelt_hook_point_is_told_before_any_work(fake_model: Any, keep: Any) -> None:
    model = fake_model(*planted())
    with pytest.raises(InputError, match="no hook point 'hook_embd' in this model; did you mean 'hook_embed'"):
        run(model, Batch(TOKENS), keep("hook_embd"))
    with (
        pytest.raises(InputError, match="no hook point 'hook_embd' in this model; did you mean 'hook_embed'"),
        record(model, ["hook_embed", "hook_embd"]),  # the bridge of TransformerLens 3.9 would let it pass
    ):
        model(TOKENS)
    assert not model.calls


def test_a_compiled_model_is_refused(fake_model: Any, keep: Any) -> None:
    message = "this model went through torch.compile, which silently ignores hooks added later; measure the original"
    with pytest.raises(InputError, match=message):
        run(torch.compile(fake_model(*planted()), backend="eager"), Batch(TOKENS), keep())


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_nan_is_told_with_site_and_example(fake_model: Any, keep: Any, bad: float) -> None:
    states = planted()
    states[1][4, 2] = bad  # token 4 stands in example 3 only
    batch = Batch(TOKENS, index=torch.tensor([10, 11, 12, 13, 14]))
    message = (
        "NaN or infinity in the activations at 'blocks.0.hook_resid_post' for example index 13; "
        "find its cause in the model or leave the example out"
    )
    for size in (1, 5):
        with pytest.raises(InputError, match=re.escape(message)):
            run(fake_model(*states), batch.split(size), keep(readout=mean()))
    run(fake_model(*states), batch.split(5), keep(readout=last_token()))  # the position it reads is sound


@pytest.mark.filterwarnings("ignore:A hook on attn.hook_attn_scores")
def test_scores_are_measured_with_their_causal_mask(tiny_model: Any, keep: Any) -> None:
    model = tiny_model()
    site = "blocks.0.attn.hook_attn_scores"
    hidden = torch.ones(2, 2).triu(1).bool()  # as models have them that mask before the hook
    model.add_hook(site, lambda scores, hook: scores.masked_fill(hidden, -torch.inf))
    probe = keep(site, all_tokens())
    run(model, Batch(TOKENS), probe)
    assert bool((probe.kept(site)[..., 0, 1] == -torch.inf).all())
    model.add_hook(site, lambda scores, hook: scores.masked_fill(hidden, torch.nan))
    with pytest.raises(InputError, match=f"NaN or infinity in the activations at '{site}' for example index 0"):
        run(model, Batch(TOKENS), keep(site, all_tokens()))


def test_no_examples_are_told(fake_model: Any, keep: Any) -> None:
    for nothing in ([], iter(()), Batch(TOKENS[:0])):
        with pytest.raises(InputError, match="there are no examples to measure; give at least one non-empty batch"):
            run(fake_model(*planted()), nothing, keep())


@pytest.mark.parametrize("readout", [last_token(), token_at("second"), mean()])
def test_patterns_are_refused_by_readouts_of_positions(tiny_model: Any, keep: Any, readout: Any) -> None:
    batch = Batch(TOKENS, positions={"second": torch.ones(5, dtype=torch.int64)})
    with pytest.raises(InputError, match=r"all_tokens\(\)"):
        run(tiny_model(n_heads=4), batch, keep(attention_pattern(), readout))


def test_a_wrong_readout_is_told(fake_model: Any, keep: Any) -> None:
    with pytest.raises(InputError, match=r"readout is 'last'; expected last_token\(\)"):
        run(fake_model(*planted()), Batch(TOKENS), keep(readout="last"))


# ---- batch by batch ----


def test_measuring_step_by_step_is_a_run(model: Any, batch: Batch, keep: Any, hooks_of: Any) -> None:
    probe, expected, clean = keep(), keep(), hooks_of(model)
    result = run(model, batch.split(5), expected)
    with run_by_steps(model, [probe]) as step:
        for part in batch.split(5):
            step(part)
    assert hooks_of(model) == clean
    assert step.examples.digest == result.metadata["examples"]
    assert run_results([probe], [step.state()], [{"": fingerprint(model)}])[0].metadata == result.metadata
    assert 0 < result.metadata["padding"] < 1
    for site in expected.site_names:
        assert torch.equal(probe.kept(site), expected.kept(site))


def test_shards_are_finished_as_a_run(model: Any, batch: Batch, keep: Any) -> None:
    whole, merged, steps = keep(), keep(), []
    expected = run(model, batch.split(5), whole)
    for part in batch.split(5):
        shard = keep()
        with run_by_steps(model, [shard]) as step:
            step(part)
        steps.append(json.loads(json.dumps(step.state())))
        merged.merge(shard)
    marks = [{"": fingerprint(model)}] * len(steps)
    result = run_results([merged], steps, marks)[0]
    assert result.metadata == expected.metadata
    assert torch.equal(result["sum"], expected["sum"])
    with pytest.raises(InputError, match=r"^there are no examples to measure; give at least one non-empty batch$"):
        run_results([keep()], [], [])


def test_shards_of_different_models_are_refused(keep: Any) -> None:
    state = {"examples": [1, 5], "positions": 3, "real": 3}
    marks = [{"a": "x", "b": "y"}, {"a": "x", "b": "y"}, {"a": "x", "b": "z"}]
    message = (
        "shard 2 was measured on a different model 'b' from shard 0 (their weights or configurations differ); give "
        "every worker the same model and measure again"
    )
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        run_results([keep()], [state] * 3, marks)
    with pytest.raises(InputError, match=r"^shard 1 was measured on a different model from shard 0 "):
        run_results([keep()], [state] * 2, [{"": "x"}, {"": "y"}])
    with pytest.raises(InputError, match=r"^shard 1 was measured on a different model 'b' from shard 0 "):
        run_results([keep()], [state] * 2, [*marks[:1], {"a": "x"}])


def test_an_example_given_twice_is_refused_by_sums_too(model: Any, batch: Batch) -> None:
    probe = CKA(form="moments")
    message = "example index 20 was given twice; give every example an index of its own and every batch once"
    with pytest.raises(InputError, match=message):
        run(model, [batch, batch.select(slice(1, 3))], probe)
    with pytest.raises(InputError, match=message):
        run(model, batch.select(torch.tensor([0, 1, 2, 1])), probe)
    run(model, batch, probe)  # which resets it


def test_a_probe_may_be_reset_between_steps(model: Any, batch: Batch, keep: Any) -> None:
    whole, probe = keep(), keep()
    run(model, batch.split(4), whole)
    run(model, batch, probe)  # what it holds goes on entry
    found: dict[str, list[torch.Tensor]] = {}
    with run_by_steps(model, [probe]) as step:
        for part in batch.split(4):
            step(part)
            for site in probe.site_names:
                found.setdefault(site, []).append(probe.kept(site))
            probe.reset()
    order = batch.index.argsort()
    for site, rows in found.items():
        assert torch.equal(torch.cat(rows)[order], whole.kept(site))


# ---- a device that runs out of memory ----


def without_memory(*_: Any, **__: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def test_no_memory_for_a_batch_is_told(fake_model: Any, keep: Any, hooks_of: Any) -> None:
    for batch, message in (
        (
            Batch(torch.ones(20, 7).long()),
            "device 'cpu' has too little memory for the forward pass of 20 examples of 7 tokens; give batches of at "
            "most 10 (tokens_per_batch=70 for texts and rows), or a device with more",
        ),
        (
            Batch(torch.ones(1, 7).long()),
            "device 'cpu' has too little memory for the forward pass of 1 example of 7 tokens; give shorter texts, or "
            "a device with more",
        ),
    ):
        model = fake_model(*planted())
        model.forward = without_memory
        with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
            run(model, batch, keep())
        assert hooks_of(model) == {}


def test_no_memory_for_what_probes_keep_is_told(fake_model: Any, keep: Any) -> None:
    probe = keep()
    vars(probe)["update"] = without_memory
    message = (
        "device 'cpu' has too little memory for what the probes keep of 5 examples of 2 tokens; give batches of at "
        "most 2 (tokens_per_batch=4 for texts and rows), or a device with more"
    )
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        run(fake_model(*planted()), Batch(TOKENS), probe)


class Greedy(TaskClusterARI):
    """A probe whose sums do not fit on its device."""

    def compute(self) -> ProbeResult:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.mark.parametrize(
    ("options", "of"),
    [
        ({"device": "cpu"}, "5 examples; set max_rows lower, or leave device unset"),
        ({"max_rows": 3}, "3 examples; set max_rows lower, or give device='cpu'"),
    ],
)
def test_no_memory_for_what_a_probe_computes_is_told(fake_model: Any, options: dict[str, Any], of: str) -> None:
    message = f"^device memory is too small for what Greedy computes from {of}$"
    model, rows = fake_model(*planted()), rows_from({"hook_embed": torch.eye(5)}, labels={"task": torch.arange(5) % 2})
    probe = Greedy(at="hook_embed", readout=last_token(), **options)
    with pytest.raises(InputError, match=message):
        run(model, Batch(TOKENS, labels={"task": torch.arange(5) % 2}), probe)
    with pytest.raises(InputError, match=message):
        run_stores(rows, probe.clone())


def test_a_probe_without_a_device_says_to_give_fewer_examples(fake_model: Any, keep: Any) -> None:
    def compute() -> ProbeResult:
        raise torch.OutOfMemoryError("CUDA out of memory")

    probe = keep()
    vars(probe)["compute"] = compute
    message = r"^device memory is too small for what \w+ computes from 5 examples; give fewer examples$"
    with pytest.raises(InputError, match=message):
        run(fake_model(*planted()), Batch(TOKENS), probe)
