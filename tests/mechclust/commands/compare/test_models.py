"""Which models can be compared: by name, in memory, and adapters on a base."""

from __future__ import annotations

import json
import shutil
import weakref
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mechclust.commands.compare import compare_models
from mechclust.commands.compare.inputs import read_inputs
from mechclust.models import load_pretrained
from probes import RowStore
from probes.engine.run import RunStep
from tasks import InputError
from tests.mechclust.commands.compare.cases import write_prompts
from tests.mechclust.commands.refusals import refusal


def states(found, out, model, layer=2):
    """Hidden states that were kept."""
    store = RowStore(out / "rows" / model)
    name = f"rows/{store.sites[layer]}"
    return store.take(store.index, [name])[name]


@pytest.fixture(scope="session")
def adapters(gpt2, tmp_path_factory):
    """Folders ``one`` and ``two``: adapters on ``gpt2``, on its fused query, key and value matrix, the first in the
    second block alone; and ``one merged`` and ``two merged``: each as a model of its own. Read only."""
    peft = pytest.importorskip("peft")
    folder = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(("one", "two")):
        config = peft.LoraConfig(r=2, target_modules=["c_attn"], init_lora_weights=False, fan_in_fan_out=True)
        config.layers_to_transform = [1] if name == "one" else None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(gpt2), config)
            with torch.no_grad():
                for key, weight in model.named_parameters():
                    if "lora" in key:
                        weight += 0.5 * torch.randn(weight.shape)
        model.save_pretrained(folder / name)
        model.merge_and_unload().save_pretrained(folder / f"{name} merged")
        AutoTokenizer.from_pretrained(gpt2).save_pretrained(folder / f"{name} merged")
    return folder


@contextmanager
def counted_loads():
    """What is loaded in the block, one after the other."""
    found = []

    def loading(model, **options):
        found.append(str(model))
        return load_pretrained(model, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mechclust.commands.settings.load_pretrained", loading)
        yield found


@pytest.fixture
def loads():
    with counted_loads() as found:
        yield found


@pytest.fixture(scope="module")
def adapted(gpt2, adapters, measured, tmp_path_factory):
    """``gpt2`` and the same with the first adapter: result, folder and loads; read only."""
    config, out = replace(measured.config, n_permutations=0, top_pc=False, map_prompts=0), tmp_path_factory.mktemp("a")
    with counted_loads() as found:
        return compare_models(str(gpt2), str(adapters / "one"), config, out), out, found


class TestNotTheSameKind:
    def test_another_family_was_not_tuned(self, gpt2, write_checkpoint, plain, out, tmp_path):
        llama = write_checkpoint(tmp_path / "llama", "llama")
        found = compare_models(str(gpt2), str(llama), plain, out)
        assert found.headline.startswith("The models are of different families (gpt2 and llama), so neither was tuned")
        assert found.title.startswith("How ")
        assert found.why_no_blocks == "the models are of different families"

    def test_one_family_may_be_tuned(self, measured):
        assert "families" not in measured.headline

    @pytest.mark.parametrize(
        ("families", "differ"),
        [(("a", "b"), True), (("a", "a"), False), ((None, "b"), False), (("a", None), False), ((None, None), False)],
    )
    def test_a_family_that_is_not_known_may_be_the_same(self, gpt2, shaken, config, out, families, differ):
        inputs = read_inputs(str(gpt2), str(shaken), config, out)
        named = zip(inputs.sizes.items(), families, strict=True)
        sizes = {checkpoint: replace(size, family=family) for (checkpoint, size), family in named}
        assert replace(inputs, sizes=sizes).families == (families if differ else ())


class TestNothingVaries:
    """CKA is undefined at every layer, in the model that has the same states for all prompts or in both."""

    def test_weights_of_zero(self, gpt2, write_checkpoint, least, out, tmp_path):
        zeroed = write_checkpoint(tmp_path / "zeroed", change=lambda model: [w.zero_() for w in model.parameters()])
        found = compare_models(str(gpt2), str(zeroed), least, out)
        assert np.isnan(found.change).all()
        assert "undefined at every layer" in found.sentences[0]
        assert "No layer changed" not in " ".join(found.sentences)

    def test_prompts_that_are_all_alike(self, gpt2, shaken, plain, out):
        write_prompts(plain.prompts, [{"prompt": "w1 w2", "task": task} for task in "ab" for _ in range(12)])
        found = compare_models(str(gpt2), str(shaken), plain, out)
        assert "undefined at every layer" in found.sentences[0]


class TestInMemory:
    @pytest.fixture
    def models(self, gpt2, shaken):
        return [AutoModelForCausalLM.from_pretrained(path) for path in (gpt2, shaken)]

    def test_the_same_as_by_name(self, models, gpt2, measured, out, undrawn):
        tokenizer = AutoTokenizer.from_pretrained(gpt2)
        before = [{name: weight.clone() for name, weight in model.state_dict().items()} for model in models]
        state = torch.get_rng_state()
        found = compare_models(*models, measured.config, out, tokenizer=tokenizer)
        assert torch.equal(torch.get_rng_state(), state)
        assert found.to_dataframe().equals(measured.to_dataframe())
        for model, weights in zip(models, before, strict=True):
            assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())
            assert not any(module._forward_hooks for module in model.modules())
        assert found.base == str(gpt2)
        assert "What tuning changed" in found.write(out).read_text()

    def test_with_hooks_already(self, gpt2, shaken, least, out, measured):
        models = [load_pretrained(path) for path in (gpt2, shaken)]
        found = compare_models(*models, least, out)
        torch.testing.assert_close(
            found.cka["debiased_cka"], measured.cka["debiased_cka"], rtol=0, atol=1e-5, equal_nan=True
        )

    def test_beside_one_by_name(self, gpt2, least, out):
        """Layer 0 is GPT-2's embedding without positions in both kinds of model."""
        rows = [{"prompt": f"{'w1 ' * (1 + i % 5)}w{i % 7}", "task": task} for task in "ab" for i in range(24)]
        write_prompts(least.prompts, rows)
        found = compare_models(load_pretrained(gpt2), str(gpt2), least, out)
        assert np.nanmax(np.abs(found.change)) < 1e-6

    def test_with_an_adapter_in_it(self, gpt2, adapters, least, out):
        model = load_pretrained(gpt2, adapter=adapters / "one")
        assert refusal(compare_models, str(gpt2), model, replace(least, adapter=adapters / "two"), out).endswith(
            f"the adapter {str(adapters / 'one')!r} is in the model already; take it out with set_adapter(model, None)"
        )
        assert compare_models(str(gpt2), model, least, out).changed.any()  # it is measured as it is

    def test_with_the_same_adapter_in_the_base(self, gpt2, adapters, config, out):
        """It would be there twice in one of them, and no change would be seen."""
        model = load_pretrained(gpt2, adapter=adapters / "one")
        with pytest.raises(InputError, match="is in the model already; take it out with set_adapter"):
            compare_models(model, str(adapters / "one"), config, out)

    def test_without_a_tokenizer(self, models, gpt2, config, out):
        said = refusal(compare_models, gpt2, models[1], config, out)
        assert said.startswith("tuned ")
        assert said.endswith(
            " (in memory) has no tokenizer to read prompts; give a Hugging Face checkpoint, or tokenizer="
        )

    def test_what_is_no_model(self, gpt2, config, out):
        tokenizer = AutoTokenizer.from_pretrained(gpt2)
        with pytest.raises(
            InputError, match="a dict is not a model; give a hub name, a directory, or a model in memory"
        ):
            compare_models(gpt2, {}, config, out, tokenizer=tokenizer)


class TestAdapters:
    def test_as_the_tuned_model(self, gpt2, adapters, adapted, plain, tmp_path, loads):
        """The base is loaded once, and twice for what blocks add; the adapter counts as the merged model does."""
        found, out, loads_by_adapter = adapted
        assert loads_by_adapter == 3 * [str(gpt2)]
        merged = compare_models(str(gpt2), str(adapters / "one merged"), plain, tmp_path / "merged")
        assert loads == 2 * [str(gpt2), str(adapters / "one merged")]
        assert found.changed_together.tolist() == [False, False, True]
        torch.testing.assert_close(
            found.cka["debiased_cka"], merged.cka["debiased_cka"], rtol=0, atol=1e-6, equal_nan=True
        )
        torch.testing.assert_close(
            found.blocks["debiased_cka"], merged.blocks["debiased_cka"], rtol=0, atol=1e-5, equal_nan=True
        )
        assert torch.equal(states(found, out, "base"), states(merged, tmp_path / "merged", "base"))
        assert found.tuned == f"{gpt2} with {adapters / 'one'}"

    def test_as_an_option(self, gpt2, adapters, adapted, plain, out, loads):
        config = replace(plain, adapter=adapters / "one", n_patched=0)
        found = compare_models(str(gpt2), str(gpt2), config, out)
        assert loads == 3 * [str(gpt2)]
        for name in ("cka", "blocks"):
            values, expected = (getattr(each, name)["debiased_cka"] for each in (found, adapted[0]))
            assert torch.equal(values.nan_to_num(9), expected.nan_to_num(9))

    def test_as_an_option_on_a_model_in_memory(self, gpt2, adapters, adapted, plain, out):
        """The tuned model's weights are the caller's, and another model's than the base's."""
        model, tokenizer = AutoModelForCausalLM.from_pretrained(gpt2), AutoTokenizer.from_pretrained(gpt2)
        before = {name: weight.clone() for name, weight in model.state_dict().items()}
        config = replace(plain, adapter=adapters / "one", n_patched=0)
        found = compare_models(str(gpt2), model, config, out, tokenizer=tokenizer)
        assert torch.equal(found.blocks["debiased_cka"], adapted[0].blocks["debiased_cka"])
        assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())

    def test_on_another_device_dtype_the_base_is_loaded_again(self, gpt2, adapters, plain, out, loads):
        compare_models(str(gpt2), str(adapters / "one"), replace(plain, tuned_dtype="bfloat16"), out)
        assert loads == [str(gpt2), str(gpt2)]

    def test_in_memory_the_base_is_as_it_was(self, gpt2, adapters, adapted, plain, out):
        model, tokenizer = AutoModelForCausalLM.from_pretrained(gpt2), AutoTokenizer.from_pretrained(gpt2)
        before = {name: weight.clone() for name, weight in model.state_dict().items()}
        found = compare_models(model, str(adapters / "one"), plain, out, tokenizer=tokenizer)
        assert found.blocks is None  # one model in memory cannot have and lack an adapter at once
        for measure, values in found.cka.values.items():
            assert torch.equal(values.nan_to_num(9), adapted[0].cka[measure].nan_to_num(9))
        assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())

    def test_two_adapters_each_with_its_base(self, gpt2, adapters, plain, least, out, tmp_path):
        found = compare_models(str(adapters / "one"), str(adapters / "two"), replace(plain, n_patched=0), out)
        merged = [str(adapters / f"{name} merged") for name in ("one", "two")]
        expected = compare_models(*merged, least, tmp_path / "merged").cka["debiased_cka"]
        torch.testing.assert_close(found.cka["debiased_cka"], expected, rtol=0, atol=1e-6, equal_nan=True)

    def test_rows_are_not_taken_for_another_adapters(self, gpt2, adapters, adapted, config, out):
        shutil.copytree(adapted[1], out)
        for tuned in (adapters / "two", gpt2):
            with pytest.raises(
                InputError, match=r"^tuned .*rows/tuned' holds rows of another model or dtype; give another f"
            ):
                compare_models(str(gpt2), str(tuned), config, out)
        with pytest.raises(
            InputError, match=r"^base .*rows/base' holds rows of another model or dtype; give another folder w"
        ):
            compare_models(str(adapters / "one merged"), str(gpt2), config, out)

    @pytest.mark.slow
    def test_an_interrupted_comparison_goes_on(self, gpt2, adapters, config, out, tmp_path, monkeypatch):
        monkeypatch.setattr("mechclust.commands.parts.MIN_SHARD_ROWS", 8)
        passed, original = [], RunStep.__call__

        def counting(self, batch):
            if len(passed) == limit:
                raise KeyboardInterrupt
            passed.append(len(batch))
            original(self, batch)

        monkeypatch.setattr(RunStep, "__call__", counting)
        limit = 7
        with pytest.raises(KeyboardInterrupt):
            compare_models(str(gpt2), str(adapters / "one"), config, out)
        limit = -1
        resumed = compare_models(str(gpt2), str(adapters / "one"), config, out)
        assert sum(passed) == 4 * 36  # no prompt twice: both models, alone and together
        whole = compare_models(str(gpt2), str(adapters / "one"), config, tmp_path / "whole")
        assert resumed.to_dataframe().equals(whole.to_dataframe())

    @pytest.mark.parametrize("base", ["one", "two"])
    def test_as_models_they_are_checked_too(self, adapters, base, tmp_path, config, out):
        """Before weights are loaded, as an adapter that is given with its base."""
        one = shutil.copytree(adapters / "one", tmp_path / "one")
        models = (str(one), str(adapters / "two"))
        with pytest.raises(InputError, match="cannot be added exactly to 8bit weights; leave out --quantize"):
            read_inputs(*models, replace(config, quantize="8bit"), out)
        (one / "adapter_model.safetensors").unlink()
        with pytest.raises(InputError, match=r"has no weights \(adapter_model.safetensors\)"):
            read_inputs(*(models if base == "one" else reversed(models)), config, out)

    def test_two_on_one_model(self, gpt2, adapters, config, out):
        one, two = adapters / "one", adapters / "two"
        assert refusal(compare_models, str(gpt2), str(one), replace(config, adapter=two), out) == (
            f"the tuned model {str(one)!r} is an adapter, and --adapter gives {str(two)!r} too; give one of them"
        )

    def test_of_another_base(self, adapters, write_checkpoint, tmp_path, config, out):
        wide = write_checkpoint(tmp_path / "wide", n_embd=24)
        assert refusal(compare_models, str(wide), str(adapters / "one"), config, out).startswith(
            f"tuned {str(wide)!r} with the adapter {str(adapters / 'one')!r}: "
        )
        assert not list((out / "rows").glob("*/*.safetensors"))  # no prompt was read

    def test_one_that_names_another_base_is_told(self, gpt2, adapters, tmp_path, config, out):
        renamed = shutil.copytree(adapters / "one", tmp_path / "renamed")
        named = json.loads((renamed / "adapter_config.json").read_text())
        (renamed / "adapter_config.json").write_text(json.dumps({**named, "base_model_name_or_path": "meta/other"}))
        notes = read_inputs(str(gpt2), str(renamed), config, out).notes
        assert [note for note in notes if "trained for" in note] == [
            f"The adapter {str(renamed)!r} says that it was trained for 'meta/other', and is measured on "
            f"{str(gpt2)!r}: the weights fit, but only you can know whether the base is the same."
        ]

    def test_its_chat_template_counts(self, gpt2, adapters, tmp_path, config, out):
        """As the tuned model and as an option. The base has none."""
        chatty = shutil.copytree(adapters / "one", tmp_path / "chatty")
        tokenizer = AutoTokenizer.from_pretrained(gpt2)
        tokenizer.chat_template = "{% for message in messages %}w19 {{ message['content'] }}{% endfor %}"
        tokenizer.save_pretrained(chatty)
        asked = replace(config, chat=True)
        for tuned, config in ((chatty, asked), (gpt2, replace(asked, adapter=chatty))):
            inputs = read_inputs(str(gpt2), str(tuned), config, out)
            assert inputs.batches[0].tokens[0].tolist() == [21, 2, 6, 12]


def test_one_model_is_in_memory_at_a_time(gpt2, shaken, plain, out, monkeypatch):
    """But for what blocks add, the base stays when the tuned model is loaded."""
    load_pretrained(gpt2, attention="sdpa")  # what is imported now may log an error, which holds who imported it
    alive: list[weakref.ref] = []

    def loading(path, **options):
        assert len([model for model in alive if model() is not None]) == (len(alive) == 3)
        model = load_pretrained(path, **options)
        alive.append(weakref.ref(model))
        return model

    monkeypatch.setattr("mechclust.commands.settings.load_pretrained", loading)
    compare_models(str(gpt2), str(shaken), replace(plain, n_patched=0), out)
    assert len(alive) == 2 + 2


class TestTokenization:
    def test_it_is_recorded_and_said(self, measured):
        for result in (measured.cka, measured.without_top_pc):
            assert result.metadata["tokenization"]["adds"] == "none"
        assert any("; no special tokens are added." in note for note in measured.caveats)

    def test_bos(self, gpt2, shaken, least, tmp_path, out):
        """Put before each prompt where it is asked for, in both models, and then said."""
        paths = []
        for name, path in (("base", gpt2), ("tuned", shaken)):
            paths.append(str(shutil.copytree(path, tmp_path / name)))
            tokenizer = AutoTokenizer.from_pretrained(path)
            tokenizer.add_special_tokens({"bos_token": "w19"})
            tokenizer.save_pretrained(paths[-1])
        as_it_is = read_inputs(*paths, least, tmp_path / "as it is")
        begun = read_inputs(*paths, replace(least, bos="yes"), tmp_path / "begun")
        assert as_it_is.batches[0].tokens[0].tolist() == [2, 6, 12]
        assert begun.batches[0].tokens[0].tolist() == [21, 2, 6, 12]
        found = compare_models(*paths, replace(least, bos="yes"), out)
        assert any("special tokens: w19 before" in note for note in found.caveats)
        with pytest.raises(InputError, match="holds hidden states of other prompts, tasks or tokens"):
            compare_models(*paths, least, out)
