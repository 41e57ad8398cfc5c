"""Patching the tuned model's residual stream into the base says which layers matter to the output."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mechclust.commands.compare import compare_models
from mechclust.commands.compare.output_verdict import OutputVerdict
from mechclust.commands.compare.patching import batches_to_patch, patch_batch, patching_result, why_not_patched
from mechclust.commands.sampling import drawn_of_each
from mechclust.models import load_pretrained
from mechclust.models.next_token import predicts_next_token
from mechclust.models.patching import can_be_patched, patched_forward, patched_outputs, patching_points
from probes import ProbeResult, load_result
from tasks import Batch
from tests.mechclust.commands.compare.cases import TASKS, found, write_prompts
from tests.mechclust.commands.refusals import refusal

DEPTH, ALTERED = 4, 2  # the altered layer, counted from the embedding


def shake_parts(names, model):
    draw = torch.Generator().manual_seed(0)
    for name in names:
        for weight in model.get_submodule(name).parameters():
            weight += 0.3 * torch.randn(weight.shape, generator=draw)


def write_tuned(write_checkpoint, tmp_path_factory, *names, **fields):
    folder = tmp_path_factory.mktemp("tuned")
    return write_checkpoint(folder, n_layer=DEPTH, change=partial(shake_parts, names), **fields)


@pytest.fixture(scope="module")
def tuned(write_checkpoint, tmp_path_factory):
    """A function that writes a model with other weights in some parts; read only."""
    return partial(write_tuned, write_checkpoint, tmp_path_factory)


@pytest.fixture(scope="module")
def base(tuned):
    return tuned()


@pytest.fixture(scope="module")
def planted(tuned):
    """Only the second block is another."""
    return tuned(f"transformer.h.{ALTERED - 1}")


@pytest.fixture(scope="module")
def settings(measured):
    off = {"top_pc": False, "map_prompts": 0}
    return replace(measured.config, n_permutations=0, **off)


@pytest.fixture(scope="module")
def compared(base, planted, settings, tmp_path_factory):
    """Result and folder; read only."""
    out = tmp_path_factory.mktemp("compared")
    return compare_models(str(base), str(planted), settings, out), out


def matters(result, label="(all)"):
    return np.flatnonzero(result.output_verdicts[label].matters).tolist()


class TestPlanted:
    def test_only_the_altered_block_matters(self, compared):
        result, _ = compared
        for label in ("(all)", *TASKS):
            assert matters(result, label) == [ALTERED]
            restored = result.patching["restored"][:, result.patching.coords["label"].index(label)]
            assert restored.tolist() == pytest.approx([0, 0, 1, 1, 1], abs=1e-4)
        verdict = result.output_verdicts["(all)"]
        assert verdict.first == verdict.last == (ALTERED, ALTERED, ALTERED)
        assert "Layers whose blocks changed: 2 of 0-4. Layers that matter to the output: 2. " in result.headline
        assert len(result.headline.split()) <= 25

    def test_the_stream_of_another_prompt_restores_less(self, compared):
        patching = compared[0].patching
        assert (patching["chance"][ALTERED:] < patching["restored"][ALTERED:] - 0.02).all()
        assert (patching["chance"][:ALTERED] < 0).all()

    def test_values_are_those_of_the_models(self, compared, base, planted, settings):
        """Computed with Hugging Face's own models, prompt by prompt."""
        patching = compared[0].patching
        models = [AutoModelForCausalLM.from_pretrained(path) for path in (base, planted)]
        tokenizer = AutoTokenizer.from_pretrained(base)
        totals = torch.zeros(2, dtype=torch.float64)
        for prompt in settings.read_prompts().prompts:
            tokens = tokenizer(prompt, return_tensors="pt")["input_ids"]
            totals += divergences(*models, tokens, ALTERED)
        before, after = totals.tolist()
        site = f"blocks.{ALTERED - 1}.hook_resid_post"
        assert float(patching.sel("divergence", label="(all)")) == pytest.approx(before / 36, rel=1e-4)
        assert float(patching.sel("restored", site=site, label="(all)")) == pytest.approx(1 - after / before, abs=1e-4)

    def test_readings(self, compared, tmp_path, undrawn):
        result, _ = compared
        readings = {reading.what: reading for reading in result.readings}
        assert readings["Layers that matter to the output"].value == "2"
        for which in ("First", "Last"):
            reading = readings[f"{which} layer that matters: share restored"]
            assert (reading.where, reading.value) == ("layer 2", "1.00 (1.00 to 1.00)")
            assert float(reading.chance) < 0.98
        assert "layer by layer, on 36 prompts (12 of a task)" in " ".join(result.caveats)
        page = result.write(tmp_path).read_text()
        assert page.index('id="changed_and_restored"') < page.index('id="cka_by_layer"')

    def test_tables_and_results(self, compared):
        result, out = compared
        table = result.to_dataframe()
        assert table["restored"].tolist() == result.patching["restored"].T.flatten().tolist()
        assert set(table.loc[table["matters"].astype(bool), "layer"]) == {ALTERED}
        assert set(result.summary()["output_layers"]) == {"2"}
        saved = load_result(out / "results" / "patching.safetensors")
        assert torch.equal(saved["rise_low"], result.patching["rise_low"])


def divergences(base, tuned, tokens, layer):
    """KL divergence of the base from the tuned model after the last token, as it is and with this layer patched."""
    with torch.no_grad():
        wanted = tuned(tokens, output_hidden_states=True)
        before = base(tokens).logits
        receive = partial(replaced, wanted.hidden_states[layer])
        hook = base.transformer.h[layer - 1].register_forward_hook(receive)
        after = base(tokens).logits
        hook.remove()
    target, *others = (logits[0, -1].double().log_softmax(-1) for logits in (wanted.logits, before, after))
    return torch.stack([(target.exp() * (target - other)).sum() for other in others])


def replaced(stream, module, args, output):
    return (stream, *output[1:]) if isinstance(output, tuple) else stream


def prompts_of_units(folder, label, n_words, n_units):
    """All pairs of words for each task, in units by turns."""
    rows = [
        {"prompt": f"w{i % n_words} w{n_words + i // n_words} w{10 + k}", "task": task, label: str(i % n_units)}
        for k, task in enumerate(TASKS)
        for i in range(n_words**2)
    ]
    return write_prompts(folder / "prompts.jsonl", rows)


class TestWhere:
    def test_two_blocks(self, base, tuned, settings, tmp_path):
        """Prompts of a unit are not independent: the interval is over units."""
        prompts = prompts_of_units(tmp_path, "half", n_words=4, n_units=8)
        config = replace(settings, prompts=prompts, blocks=False, units="half")
        model = tuned("transformer.h.1", "transformer.h.3")
        result = compare_models(str(base), str(model), config, tmp_path / "out")
        assert matters(result) == [2, 4]
        restored = result.patching["restored"][:, 0].tolist()
        assert restored[2] == pytest.approx(restored[3], abs=1e-4)
        verdict = result.output_verdicts["(all)"]
        assert (verdict.first[0], verdict.last[0]) == (2, 4)
        assert "Layers that matter to the output: 2, 4." in result.headline
        assert result.patching.metadata["units"] == "half"

    def test_positions_are_seen_by_patching_alone(self, base, tuned, settings, tmp_path):
        result = compare_models(str(base), str(tuned("transformer.wpe")), settings, tmp_path)
        assert matters(result) == [0]
        assert result.headline.startswith("No layer")
        assert result.headline.endswith("Layers that matter to the output: 0.")

    def test_after_the_last_block(self, base, tuned, settings, compared, tmp_path):
        config = replace(settings, blocks=False)
        result = compare_models(str(base), str(tuned("transformer.ln_f")), config, tmp_path)
        before, after = (
            {path.name for path in (out / "rows" / "patched").iterdir()} for out in (compared[1], tmp_path)
        )
        assert before
        assert before.isdisjoint(after)  # what was patched is of both models
        assert matters(result) == []
        assert "Layers that matter to the output: the unembedding." in result.headline
        (reading,) = (r for r in result.readings if r.where == "after the last block")
        assert reading.value == "1.00 (1.00 to 1.00)"

    def test_outputs_that_differ_by_rounding_only(self, compared):
        result, _ = compared
        assert matters(result) == [ALTERED]
        tiny = {"divergence": torch.full_like(result.patching["divergence"], 1e-6)}
        rounded = replace(result, patching=replace(result.patching, values={**result.patching.values, **tiny}))
        assert matters(rounded) == []
        assert "Layers that matter to the output: none, as the outputs differ by 1e-06 nats." in rounded.headline
        assert not any("share restored" in reading.what for reading in rounded.readings)


class TestPrompts:
    def test_at_most_so_many_of_a_task(self, base, planted, settings, tmp_path):
        """They are drawn as those of blocks are; too few of a task for an interval are not judged."""
        result = compare_models(str(base), str(planted), replace(settings, n_patched=5, blocks=False), tmp_path)
        assert result.patching["n"].tolist() == [15, 5, 5, 5]
        assert matters(result) == [ALTERED]
        assert matters(result, "a") == []
        assert result.to_dataframe().set_index("task").loc["a", "matters"].isna().all()
        of_task = {task: torch.arange(12 * k, 12 * k + 12) for k, task in enumerate(TASKS)}
        drawn = torch.cat([*drawn_of_each(of_task, 5).values()])
        parts = [load_result(path) for path in (tmp_path / "rows" / "patched").glob("*.safetensors")]
        assert sorted(int(i) for part in parts for i in part.coords["prompt"]) == drawn.tolist()

    def test_of_each_unit(self, base, planted, settings, tmp_path):
        """Of 10 units of a task, two prompts are patched of each, which is enough for an interval."""
        prompts = prompts_of_units(tmp_path, "part", n_words=5, n_units=10)
        config = replace(settings, prompts=prompts, units="part", n_patched=20, blocks=False)
        result = compare_models(str(base), str(planted), config, tmp_path / "out")
        assert all(matters(result, task) == [ALTERED] for task in TASKS)
        parts = [load_result(path) for path in (tmp_path / "out" / "rows" / "patched").glob("*.safetensors")]
        patched = [int(i) for part in parts for i in part.coords["prompt"]]
        n_of_unit = Counter((i // 25, i % 25 % 10) for i in patched)
        assert n_of_unit == dict.fromkeys([(task, unit) for task in range(3) for unit in range(10)], 2)

    def test_padding_does_not_matter(self, base, planted):
        tokens = torch.randint(2, 20, (3, 6), generator=torch.Generator().manual_seed(0))
        mask = torch.arange(6) < torch.tensor([[6], [4], [3]])
        batch = Batch(tokens * mask, attention_mask=mask)
        models = [load_pretrained(path) for path in (base, planted)]
        together = patch_batch(*models, batch, batch.select(torch.tensor([1, 0, 2])))
        lengths = [6, 4, 3]
        for i, partner in enumerate([1, 0, 2]):
            prompt, other = (Batch(tokens[k : k + 1, : lengths[k]], index=torch.tensor([k])) for k in (i, partner))
            alone = patch_batch(*models, prompt, other)
            for name in ("patched", "shuffled"):
                assert torch.allclose(alone[name][:, 0], together[name][:, i], atol=1e-6, equal_nan=True)
        assert together["shuffled"].isnan().all(dim=0).tolist() == [False, False, True]


class TestNotPossible:
    @staticmethod
    def said(result):
        assert result.patching is None
        assert "restored" not in result.to_dataframe()
        assert "Layers that matter" not in result.headline
        (sentence,) = (note for note in result.caveats if note.startswith("What of the change reaches the output was"))
        return sentence.split("was not measured: ")[1]

    def test_hooks_that_only_read(self, encoder_checkpoint):
        assert not can_be_patched(load_pretrained(encoder_checkpoint("electra", "ForPreTraining")))

    def test_models_that_see_later_tokens(self, encoder_checkpoint):
        model = load_pretrained(encoder_checkpoint("bert", "ForMaskedLM"))
        assert not predicts_next_token(model)
        assert why_not_patched(model, model) == "models of this kind do not predict the next token"

    def test_another_vocabulary(self, base, planted, tuned, settings, tmp_path):
        larger = tuned(vocab_size=30)
        result = compare_models(str(base), str(larger), settings, tmp_path)
        assert self.said(result) == "the models have outputs of 22 and 30 tokens."
        assert result.blocks is not None


class TestPatchedOutputs:
    def test_a_model_in_itself_is_as_it_was(self, planted):
        """The controls that hold by construction."""
        model = load_pretrained(planted)
        hooks = sum(len(module._forward_hooks) for module in model.modules())
        batch = Batch(torch.randint(2, 20, (3, 6), generator=torch.Generator().manual_seed(0)))
        expected, states = patched_forward(model, batch, patching_points(model))
        assert len(states) == DEPTH + 1
        for _, logits in patched_outputs(model, batch, states):
            assert torch.equal(logits, expected)
        assert predicts_next_token(model)
        assert sum(len(module._forward_hooks) for module in model.modules()) == hooks

    def test_too_little_memory(self, base, monkeypatch):
        def exhausted(model, batch):
            raise torch.OutOfMemoryError("CUDA out of memory")

        monkeypatch.setattr("mechclust.models.patching.forward", exhausted)
        assert refusal(patched_forward, load_pretrained(base), Batch(torch.ones(4, 6, dtype=torch.long)), []) == (
            "device 'cpu' has too little memory for a patched forward pass of 4 examples of 6 tokens; give batches of "
            "at most 2 (tokens_per_batch=12 for texts and rows), or a device with more"
        )


class TestOutputVerdict:
    def test_what_is_not_sure(self):
        """Layer 1 may matter, layer 2 does, layer 3 has no interval."""
        rise = np.array([0.0, 0.02, 0.5, 0.0])
        low = np.array([0.0, -0.1, 0.4, np.nan])
        high = np.array([0.0, 0.1, 0.6, np.nan])
        verdict = OutputVerdict(rise, low, high, 0.01)
        assert verdict.matters.tolist() == [False, False, True, False]
        assert verdict.first == (1, 1, 2)
        assert verdict.last == (2, 2, 3)

    def test_the_least_share_is_none(self):
        rise = np.array([0.01, -0.01, 0.5])
        verdict = OutputVerdict(rise, rise, rise, 0.01)
        assert verdict.matters.tolist() == verdict.may_matter.tolist() == [False, False, True]
        assert verdict.first == (2, 2, 2)

    def test_what_undoes_matters_too(self):
        rise = np.array([0.0, 1.5, -0.5])
        assert OutputVerdict(rise, rise - 0.1, rise + 0.1, 0.2).matters.tolist() == [False, True, True]

    def test_nothing(self):
        nan = np.full(3, np.nan)
        verdict = OutputVerdict(nan, nan, nan, 0.01)
        assert verdict.first is verdict.last is None


def test_layers_that_changed_for_all_prompts_together_alone_are_told_apart():
    change = np.array([[0, 0], [0, 0], [0.5, 0]])
    together = [[0, 0, 0], [0.639, 0.5, 0.7], [0.6, 0.5, 0.7]]
    result = found(change, change - 0.005, change + 0.005, together=together)
    assert result.headline.startswith("Layers that changed: 1-2 of 0-2 (1 for all prompts together only).")
    values = {reading.what: reading.value for reading in result.readings}
    assert values["Layers that changed for at least one task"] == "2"
    assert values["Layers that changed for all prompts together"] == "1-2"


def patched_prompts(base, patched, shuffled):
    """A part made by hand, of two sites."""
    given = {"base": base, "patched": patched, "shuffled": shuffled}
    values = {name: torch.tensor(x, dtype=torch.float64) for name, x in given.items()}
    sites = ["hook_embed", "blocks.0.hook_resid_post"]
    axes = {"base": ("prompt",), "patched": ("site", "prompt"), "shuffled": ("site", "prompt")}
    coords = {"site": sites, "prompt": [str(i) for i in range(len(base))]}
    return ProbeResult("PatchedPrompts", values, axes, coords, dict(zip(sites, (0, 1), strict=True)))


def labelled(tasks, units, lengths=None, index=None):
    """A batch of prompts of these tasks and units, whose tokens count from 1; padding is 0."""
    lengths = torch.tensor([2] * len(tasks) if lengths is None else lengths)
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    tokens = (1 + torch.arange(int(lengths.max()))).expand(len(tasks), -1) * mask
    labels = {"task": torch.tensor(tasks), "unit": torch.tensor(units)}
    index = torch.arange(len(tasks)) if index is None else torch.tensor(index)
    return Batch(tokens, attention_mask=mask, labels=labels, index=index)


class TestByHand:
    PARTS = (
        patched_prompts([1, 3, 2], [[1, 2, 2], [0, 1, 1]], [[2, 3, torch.nan], [1, 1, torch.nan]]),
        patched_prompts([4, 2], [[4, 1], [1, 0]], [[4, 3], [2, 2]]),
    )
    BATCHES = (labelled([0, 0, 1], [0, 0, 1]), labelled([1, 0], [1, 2]))

    def test_shares_are_of_sums_over_prompts(self):
        result = patching_result(self.PARTS, self.BATCHES, ["a", "b"], None)
        assert result.coords["label"] == ["(all)", "a", "b"]
        assert result["n"].tolist() == [5, 3, 2]
        assert result["divergence"].tolist() == pytest.approx([12 / 5, 2, 3])
        restored = [[1 - 10 / 12, 1 - 4 / 6, 0], [1 - 3 / 12, 1 - 1 / 6, 1 - 2 / 6]]
        assert result["restored"].numpy() == pytest.approx(np.array(restored))
        assert result["rise"].numpy() == pytest.approx(np.diff([[0, 0, 0], *restored], axis=0))
        chance = [[1 - 12 / 10, 1 - 8 / 6, 0], [1 - 6 / 10, 1 - 4 / 6, 1 - 2 / 4]]  # without the one that has no other
        assert result["chance"].numpy() == pytest.approx(np.array(chance))

    def test_intervals_are_over_units(self):
        """Of 20 prompts in 12 units, 4 of which have all prompts of b: too few for an interval."""
        batches = []
        for first in (0, 3, 6, 9):
            batches += [labelled([0, 0, 1], [first, first, first + 1]), labelled([1, 0], [first + 1, first + 2])]
        alone, together = (patching_result(4 * self.PARTS, batches, ["a", "b"], unit) for unit in (None, "unit"))
        assert torch.equal(alone["restored"], together["restored"])
        for name in ("restored", "rise"):
            low, high = (
                torch.stack([result[f"{name}{end}"] for result in (alone, together)]) for end in ("_low", "_high")
            )
            known = ~low.isnan()
            assert known.all(dim=1).tolist() == [[True, True, True], [True, True, False]]
            value = alone[name].expand_as(low)
            assert bool(((low <= value) & (value <= high))[known].all())
            assert not torch.equal(low[0, :, 0], low[1, :, 0])
        assert (alone.metadata["units"], together.metadata["units"]) == (None, "unit")

    def test_prompts_are_chosen_and_lie_with_those_of_like_length(self):
        long = labelled([0] * 4, [0] * 4, lengths=[2, 7, 3, 7], index=[0, 2, 4, 6])
        short = labelled([0] * 3, [0] * 3, lengths=[4, 1, 3], index=[1, 3, 5])
        chosen = {"a": torch.tensor([0, 2, 5]), "b": torch.tensor([1, 6])}
        batches = batches_to_patch([long, short], chosen, 14)
        lengths = {0: 2, 2: 7, 5: 3, 1: 4, 6: 7}
        for batch, partners in batches:
            assert partners.tokens.numel() <= 14
            assert batch.lengths().tolist() == [lengths[i] for i in batch.index.tolist()]
            assert batch.tokens.shape[1] == max(batch.lengths().tolist())
            assert batch.tokens.numel() <= 14
        pairs = [pair for prompts in batches for pair in zip(*(batch.index.tolist() for batch in prompts), strict=True)]
        assert sorted(pairs) == [(0, 6), (1, 0), (2, 1), (5, 2), (6, 5)]  # all are of one task
