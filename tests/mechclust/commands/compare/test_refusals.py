"""What is refused before any weights are loaded, each in one sentence."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mechclust.commands.compare import compare_models
from mechclust.commands.compare.inputs import read_inputs
from mechclust.models import save_model
from mechclust.models.tokenizers import check_tokenizers_alike
from tasks import InputError
from tests.mechclust.commands.compare.cases import records, write_prompts
from tests.mechclust.commands.refusals import refusal


class TestRefusals:
    @pytest.fixture(autouse=True)
    def no_model(self, monkeypatch):
        """All of these are refused before any weights are loaded."""

        def never(*args, **kwargs):
            raise AssertionError("loaded a model")

        monkeypatch.setattr("mechclust.commands.settings.load_pretrained", never)

    @pytest.fixture
    def refused(self, gpt2, shaken, config, out):
        def run(base=None, tuned=None, **changes):
            return refusal(compare_models, str(base or gpt2), str(tuned or shaken), replace(config, **changes), out)

        return run

    def test_one_task_only(self, refused, prompts):
        write_prompts(prompts, records("a"))
        assert refused() == (f"{prompts} has one task only ('a'); comparing tasks needs at least 2")

    def test_too_few_prompts(self, refused, prompts):
        assert refused(min_per_task=20) == (
            f"{prompts} has fewer than 20 prompts of 'a' (n = 12), 'b' (n = 12), 'c' (n = 12); give more, leave the "
            "task out, or lower --min-per-task"
        )
        write_prompts(prompts, [*records("ab"), *records("c", 3)])
        assert refused(min_per_task=4) == (
            f"{prompts} has fewer than 4 prompts of 'c' (n = 3); give more, leave the task out"
        )

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (
                {"min_per_task": 3},
                "min_per_task is 3; expected at least 4",
            ),
            ({"max_per_task": 5}, "max_per_task is 5, below min_per_task = 8"),
            ({"n_resamples": 5}, "n_resamples is 5; expected at least 20"),
            ({"n_permutations": -1}, "n_permutations is -1; expected at least 0"),
            ({"blocks_prompts": 3}, "blocks_prompts is 3; expected at least 4"),
            ({"n_patched": -1}, "n_patched is -1; expected at least 0"),
            ({"tolerance": 0.0}, "tolerance is 0.0; expected above 0"),
            ({"factor": 1.0}, "factor is 1.0; expected above 1"),
            ({"tuned_device": "warp"}, "no device 'warp'; expected cpu, cuda, cuda:1 or mps"),
            (
                {"device_map": "auto", "tuned_device": "cpu"},
                "tuned_device is 'cpu' and device_map 'auto'; give one of them",
            ),
        ],
    )
    def test_settings(self, refused, change, said):
        assert refused(**change) == said

    def test_a_task_called_as_all_prompts_are(self, refused, tmp_path):
        write_prompts(tmp_path / "all.jsonl", [{**record, "task": "(all)"} for record in records()[:1]] + records())
        assert "has a task '(all)', as all prompts together are called; rename it" in refused(
            prompts=tmp_path / "all.jsonl"
        )

    def test_another_depth(self, refused, write_checkpoint, tmp_path, gpt2):
        deep = write_checkpoint(tmp_path / "deep", n_layer=3)
        assert refused(tuned=deep) == (
            f"tuned {str(deep)!r} has 3 layers, but base {str(gpt2)!r} 2; give a model tuned from this base. From "
            "Python, the probe CKA(pairs='all') compares every layer with every other"
        )

    def test_no_such_model(self, refused, tmp_path):
        none = tmp_path / "none"
        assert refused(tuned=none) == (
            f"no model directory {str(none)!r}; give a local directory or a hub name such as 'gpt2'"
        )

    def test_a_model_of_ours_has_no_tokenizer(self, refused, model, tmp_path):
        save_model(model, tmp_path / "ours.safetensors")
        assert refused(base=tmp_path / "ours.safetensors") == (
            f"{str(tmp_path / 'ours.safetensors')!r} has no tokenizer to read prompts; give a Hugging Face checkpoint"
        )

    def test_no_chat_template(self, refused, shaken):
        assert refused(chat=True) == f"the tokenizer of tuned {str(shaken)!r} has no chat template; leave out --chat"

    def test_a_prompt_over_the_shorter_context(self, refused, write_checkpoint, tmp_path, prompts):
        short = write_checkpoint(tmp_path / "short", n_positions=2)
        assert refused(tuned=short) == (
            f"{prompts}: prompt 1 has 3 tokens, more than the model's context of 2; shorten it, "
            "or choose too_long='truncate' (--too-long truncate) to keep its end"
        )

    def test_a_prompt_over_a_context_without_position_embeddings(self, refused, write_checkpoint, tmp_path, prompts):
        """Llama would read on, where it was never trained."""
        llamas = [write_checkpoint(tmp_path / name, "llama", max_position_embeddings=2) for name in ("one", "two")]
        assert refused(*llamas).startswith(f"{prompts}: prompt 1 has 3 tokens, more than the model's context of 2; ")

    def test_fewer_embeddings_than_tokens(self, refused, write_checkpoint, tmp_path):
        small = write_checkpoint(tmp_path / "small", vocab_size=12)
        assert refused(tuned=small) == (
            f"tuned {str(small)!r} has 12 token embeddings, but its tokenizer gives id 14; "
            "save the tokenizer that belongs to the model"
        )

    def test_a_padding_token_needs_no_embedding(self, gpt2, shaken, config, out, tmp_path, prompts):
        folders = [shutil.copytree(folder, tmp_path / name) for name, folder in (("base", gpt2), ("tuned", shaken))]
        for folder in folders:
            tokenizer = AutoTokenizer.from_pretrained(folder)
            tokenizer.add_special_tokens({"pad_token": "[PAD]"})
            tokenizer.save_pretrained(folder)
        n_embeddings = json.loads((folders[0] / "config.json").read_text())["vocab_size"]
        assert tokenizer.pad_token_id >= n_embeddings
        write_prompts(prompts, [*records("ab"), {"prompt": "w4", "task": "a"}])
        inputs = read_inputs(*map(str, folders), config, out)
        assert max(int(batch.tokens.max()) for batch in inputs.batches) < n_embeddings

    def test_memory(self, refused):
        assert refused(max_memory=1e-6, dtype="bfloat16").startswith(
            "comparing a layer takes 2.15e-06 GiB (36 prompts x "
        )
        assert refused(max_memory=1e-6) == (
            "comparing a layer takes 4.29e-06 GiB (36 prompts x 16 and 16 dimensions), more than max_memory = 1e-06; "
            "give fewer prompts (--max-per-task) or raise --max-memory"
        )

    def test_memory_of_models_in_memory_is_by_their_own_dtype(self, gpt2, shaken, config, out):
        base, tuned = (AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16) for path in (gpt2, shaken))
        tokenizer = AutoTokenizer.from_pretrained(gpt2)
        read_inputs(base, tuned, replace(config, max_memory=3e-6), out, tokenizer)
        with pytest.raises(InputError, match=r"^comparing a layer takes 2\.15e-06 GiB"):
            read_inputs(base, tuned, replace(config, max_memory=2e-6), out, tokenizer)

    def test_disk(self, refused, out, monkeypatch):
        """Blocks are not measured in models of different dtypes."""
        usage = namedtuple("usage", "free")
        monkeypatch.setattr("shutil.disk_usage", lambda path: usage(10_000))
        assert refused(tuned_dtype="bfloat16") == (
            "the hidden states of 2 models take 9.66e-06 GiB on disk (36 prompts x 3 layers x 16 dimensions), but "
            f"{str(out)!r} has 9.31e-06 GiB free; give fewer prompts (--max-per-task), or another folder with --out"
        )

    def test_disk_for_blocks(self, refused, out, monkeypatch):
        usage = namedtuple("usage", "free")
        monkeypatch.setattr("shutil.disk_usage", lambda path: usage(2 * 36 * 3 * 16 * 4))
        assert refused(blocks_prompts=10) == (
            "the hidden states of 2 models take 2e-05 GiB on disk (36 prompts x 3 layers, and 30 x 2 blocks, x 16 "
            f"dimensions), but {str(out)!r} has 1.29e-05 GiB free; give fewer prompts (--max-per-task, "
            "--blocks-prompts), or another folder with --out"
        )

    def test_a_folder_that_cannot_be_written(self, gpt2, shaken, config, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match=r"cannot write to .* \(Not a directory\)"):
            compare_models(str(gpt2), str(shaken), config, tmp_path / "file" / "out")


class TestTokenizers:
    def retokenized(self, path, change):
        """A checkpoint whose tokenizer has another vocabulary."""
        file = path / "tokenizer.json"
        content = json.loads(file.read_text())
        change(content["model"]["vocab"])
        file.write_text(json.dumps(content))
        return path

    @pytest.fixture
    def other(self, shaken, tmp_path):
        return shutil.copytree(shaken, tmp_path / "other")

    @pytest.fixture
    def refused(self, gpt2, other, config, out, monkeypatch):
        def run():
            monkeypatch.setattr("mechclust.commands.settings.load_pretrained", None)  # no weights are loaded
            return refusal(compare_models, str(gpt2), str(other), config, out)

        return run

    def test_other_ids(self, gpt2, other, prompts, refused):
        def swap(words):
            words["w3"], words["w10"] = words["w10"], words["w3"]

        self.retokenized(other, swap)
        assert refused() == (
            f"{prompts}: prompt 1 is read as different tokens by base {str(gpt2)!r} and tuned {str(other)!r} "
            "(token 3 is "
            "'w10', id 12, and 'w10', id 5); compare models with one tokenizer"
        )

    def test_the_same_ids_for_other_tokens(self, gpt2, other, prompts, refused):
        def rename(words):
            del words["w6"]
            words["v6"] = 8

        self.retokenized(other, rename)
        assert refused() == (
            f"{prompts}: prompt 9 is read as different tokens by base {str(gpt2)!r} and tuned {str(other)!r} "
            "(token 2 is "
            "'w6', id 8, and '<unk>', id 1); compare models with one tokenizer"
        )

    def test_the_first_prompt_that_differs_is_named(self):
        class Fake:
            def __init__(self, names):
                self.names = names

            def __len__(self):
                return len(self.names)

            def convert_ids_to_tokens(self, i):
                return self.names[i]

            def get_vocab(self):
                return {name: i for i, name in enumerate(self.names)}

        def encode(texts):
            return [[len(word) - 1 for word in text.split()] for text in texts]

        readers = {"base 'x'": (Fake("abc"), encode), "tuned 'y'": (Fake("abd"), encode)}
        assert refusal(check_tokenizers_alike, {"prompt 1": "v vv", "prompt 2": "v vvv"}, readers) == (
            "prompt 2 is read as different tokens by base 'x' and tuned 'y' (token 2 is 'c', id 2, and 'd', id 2); "
            "compare models with one tokenizer"
        )
        readers["tuned 'y'"] = (Fake("abc"), lambda texts: [ids[:1] for ids in encode(texts)])
        with pytest.raises(InputError, match=r"prompt 1 is read as .* \(2 and 1 tokens\); compare"):
            check_tokenizers_alike({"prompt 1": "v vv"}, readers)

    def test_tokens_that_no_prompt_uses_may_differ(self, gpt2, other, config, out):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(other)
        tokenizer.add_tokens(["<user>", "<model>"])
        tokenizer.save_pretrained(other)
        assert read_inputs(str(gpt2), str(other), config, out).notes[0] == (
            f"The vocabularies of base {str(gpt2)!r} and tuned {str(other)!r} differ in 2 tokens, which none of "
            "the compared prompts uses."
        )
