"""What is refused, and what is noted of prompts that say little."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch
from transformers import AutoTokenizer

from mechclust.commands.clusters import measure_clusters
from mechclust.commands.clusters.inputs import read_inputs
from mechclust.models.resolved import resolve_model
from probes import save_rows
from tasks import InputError
from tests.mechclust.commands.clusters.cases import TASKS, write_prompts
from tests.mechclust.commands.refusals import refusal


class TestRefusals:
    @pytest.fixture(autouse=True)
    def no_model(self, monkeypatch):
        """All of these are refused before a model is loaded."""

        def never(*args, **kwargs):
            raise AssertionError("loaded a model")

        monkeypatch.setattr("mechclust.commands.settings.load_pretrained", never)

    def refused(self, config, **changes):
        return refusal(measure_clusters, "somewhere", replace(config, **changes))

    def test_unknown_label(self, config):
        assert self.refused(config, also=("language",)) == (
            f"{config.prompts} has no label 'language' (it has task, first)"
        )

    def test_one_task_only(self, config):
        config.prompts.write_text('{"prompt": "w1", "task": "sort"}\n{"prompt": "w2", "task": "sort"}\n')
        assert self.refused(config) == f"{config.prompts} has one task only ('sort'); clustering needs at least 2"

    def test_fewer_prompts_than_classes(self, config):
        assert self.refused(config, max_rows=2) == (
            f"{config.prompts} has fewer prompts than classes of 'task' (3); give several of each, or raise "
            "--max-rows (now 2)"
        )

    def test_one_prompt_per_class(self, config):
        """Any model clusters these perfectly, an untrained one too: 1.000 with a p of 1."""
        config.prompts.write_text('{"prompt": "w1", "task": "sort"}\n{"prompt": "w2", "task": "count"}\n')
        assert self.refused(config) == (
            f"{config.prompts} has 2 prompts for 2 classes of 'task', so that each prompt would be its own "
            "cluster, in any model; give several of each"
        )
        records = [{"prompt": f"w{i}", "task": "ab"[i % 2], "id": i} for i in range(6)]
        write_prompts(config.prompts, records)
        assert "has 6 prompts for 6 classes of 'id'" in self.refused(config, also=("id",))
        assert "has 2 prompts for 2 classes of 'task'" in self.refused(config, max_rows=2)

    def test_given_that_is_not_there(self, config):
        assert self.refused(config, given="frist") == (
            f"{config.prompts} has no label 'frist', and surface features are last word, first word, last token, first "
            "token and length; did you mean 'first'?"
        )

    def test_given_that_tells_the_task(self, config):
        assert self.refused(config, given="task") == (
            f"given is 'task', which determines the task in {config.prompts}: no value of it has two tasks, so "
            "nothing is left to compare; choose another, or --given none"
        )
        assert self.refused(config, given="last word").startswith("given is 'last word', which determines the task in ")

    def test_given_that_is_the_same_for_all(self, config):
        records = [{"prompt": f"w{i} w1", "task": "ab"[i % 2], "same": 1} for i in range(10)]
        write_prompts(config.prompts, records)
        for given in ("same", "last word"):
            assert self.refused(config, given=given) == (
                f"given is {given!r}, which is the same for every prompt of {config.prompts}; choose another"
            )

    def test_within(self, config):
        assert self.refused(config, within="inptu").startswith(f"{config.prompts} has no label 'inptu' (it has ")
        assert self.refused(config, within="task") == (
            "within is 'task', which is itself compared with the clusters; choose another label, or leave out --within"
        )
        records = [{"prompt": f"w{i} w1", "task": "ab"[i % 2], "id": i} for i in range(10)]
        write_prompts(config.prompts, records)
        assert self.refused(config, within="id") == (
            f"within each 'id', the prompts of {config.prompts} have only one 'task', so labels cannot be permuted; "
            "choose another label, or leave out --within"
        )

    def test_given_and_within_that_tell_the_task_together(self, config):
        records = [
            {"prompt": f"w{i}", "task": "ab"[(i + i // 2) % 2], "one": i % 2, "two": i // 2 % 2} for i in range(20)
        ]
        write_prompts(config.prompts, records)
        assert self.refused(config, given="one", within="two") == (
            f"given is 'one' and within 'two', which together determine the task in {config.prompts}, so labels "
            "cannot be permuted; leave out one of them"
        )

    def test_more_clusters_than_prompts(self, config):
        assert self.refused(config, n_clusters=27) == (
            "27 prompts cannot be split into 27 clusters; give fewer with --n-clusters"
        )
        assert self.refused(config, n_clusters=12, max_rows=9).startswith("9 prompts cannot be split into 12 clusters")

    @pytest.mark.parametrize(
        "changes",
        [
            {"n_init": 0},
            {"n_permutations": 0},
            {"max_rows": 0},
            {"n_shuffles": 0},
        ],
    )
    def test_numbers_that_nothing_can_be_measured_with(self, config, changes):
        (name, value), *_ = changes.items()
        assert f"{name} is {value}; expected at least" in self.refused(config, **changes)


class TestMoreRefusals:
    def test_no_chat_template(self, gpt2, config):
        with pytest.raises(InputError, match=r"^this model's tokenizer has no chat template; leave out --chat$"):
            measure_clusters(str(gpt2), replace(config, chat=True))

    @pytest.mark.parametrize("units", ["style", "auto"])
    def test_a_further_label_that_is_the_units(self, shallow, config, units):
        """It was said to be open whether clusters follow it, which they may do by far."""
        records = [
            {"prompt": f"w{k} w{3 + style} w{given}", "task": TASKS[k], "input": f"w{given}", "style": f"{k} {style}"}
            for k in range(2)
            for style in range(5)
            for given in range(10, 14)
        ]
        write_prompts(config.prompts, records)
        assert refusal(read_inputs, resolve_model(shallow), replace(config, also=("style",), units=units)) == (
            "also has 'style', which is the units themselves; the clusters are compared with it anyway: leave it out "
            "of --also, or give --units none"
        )
        assert read_inputs(resolve_model(shallow), replace(config, also=("input",), units=units)).units.label

    def test_within_of_which_each_drawn_prompt_has_a_value_of_its_own(self, shallow, config):
        records = [{"prompt": f"w{i % 20} w{20 + k}", "task": TASKS[k], "id": i} for i in range(300) for k in range(2)]
        write_prompts(config.prompts, records)
        assert refusal(read_inputs, resolve_model(shallow), replace(config, within="id", max_rows=6)) == (
            f"within each 'id', no two of the 6 prompts of {config.prompts} can exchange their tasks; choose another "
            "label, raise --max-rows, or leave out --within"
        )

    def test_units_that_have_no_inputs_in_common_within_these(self, shallow, config):
        """Every style has inputs of its own, so that none can exchange its task with another."""
        records = [
            {"prompt": f"w{given} w{20 + k}", "task": TASKS[k], "style": f"{k} {style}", "input": f"w{given}"}
            for k in range(2)
            for style in range(5)
            for given in range(style + 5 * k, style + 5 * k + 4)
        ]
        write_prompts(config.prompts, records)
        assert refusal(read_inputs, resolve_model(shallow), replace(config, within="input", units="style")) == (
            f"within each 'input', no two units ('style') of the 40 prompts of {config.prompts} can exchange their "
            "tasks; give other --units, or leave out --within"
        )


class TestTooLong:
    @pytest.fixture
    def long(self, config):
        """Twenty words for a context of sixteen; the task is in the last word."""
        records = [{"prompt": f"w{i} " * 19 + f"w{10 + k}", "task": t} for k, t in enumerate(TASKS) for i in (1, 2)]
        write_prompts(config.prompts, records)
        return config

    def test_is_refused(self, gpt2, long):
        assert refusal(measure_clusters, str(gpt2), long) == (
            f"{long.prompts}: prompt 1 has 20 tokens, more than the model's context of 16; shorten it, "
            "or choose too_long='truncate' (--too-long truncate) to keep its end"
        )

    def kept(self, path, config):
        """Return the prompts that the model would read."""
        inputs, tokenizer = read_inputs(resolve_model(path), config), AutoTokenizer.from_pretrained(path)
        return [tokenizer.decode(row) for batch in inputs.batches for row in batch.tokens]

    def test_is_truncated_from_the_left_when_asked(self, gpt2, long):
        assert self.kept(gpt2, replace(long, too_long="truncate")) == [
            f"w{i} " * 15 + f"w{k}" for k in (10, 11, 12) for i in (1, 2)
        ]

    def test_of_roberta_counts_its_position_offset(self, write_checkpoint, tmp_path, long, tl_major):
        if tl_major >= 4:  # 18 positions, of which two are set aside
            path = write_checkpoint(tmp_path / "roberta", "roberta", num_hidden_layers=1)
            with pytest.raises(InputError, match="more than the model's context of 16"):
                measure_clusters(str(path), long)
            found = measure_clusters(str(path), replace(long, too_long="truncate", untrained=0))
            assert found.to_dataframe()["ari"][0] == 1.0


class TestFewPrompts:
    def test_are_noted(self, shallow, trained):
        records = [{"prompt": f"w1 w{10 + k}", "task": t} for k, t in enumerate("aabb")]
        write_prompts(trained.prompts, records)
        notes = measure_clusters(str(shallow), trained).caveats
        assert notes[0] == (
            "4 prompts are too few for 'task': clusters that are exactly its classes arise by chance with p = "
            "0.33; give more."
        )
        records = [{"prompt": f"w1 w{10 + k}", "task": t} for k, t in enumerate("aaaaabbbbbcd")]
        write_prompts(trained.prompts, records)
        notes = read_inputs(resolve_model(shallow), trained).notes
        assert notes[0] == "Of 4 classes of 'task', 2 classes have a single prompt, which cannot form a cluster."
        assert "too few" not in " ".join(notes)

    def test_one_in_twenty_is_not_noted(self, shallow, trained):
        """A class of 19 prompts and one of a single prompt can be relabelled in 20 ways."""
        write_prompts(trained.prompts, [{"prompt": f"w1 w{k}", "task": "a" if k else "b"} for k in range(20)])
        assert "too few" not in " ".join(read_inputs(resolve_model(shallow), trained).notes)


class TestTokens:
    def test_unknown_words_and_repeated_prompts_are_told(self, shallow, config):
        rows = [{"prompt": f"what is w{i}", "task": task} for i in (1, 2, 3) for task in "ab"]
        config.prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
        notes = read_inputs(resolve_model(shallow), config).notes
        assert any(note.startswith("67% of the tokens are <unk>: the tokenizer does not know these") for note in notes)
        assert any(note.startswith("3 prompts repeat an earlier one word for word, and intervals") for note in notes)

    def test_classes_of_which_nothing_was_drawn_are_told(self, shallow, trained, alone):
        found = measure_clusters(str(shallow), replace(trained, max_rows=4))
        assert found.trained.raw.metadata["n"] == len(found.values["task"]) == 4
        for result, lost in ((found, 1), (alone[0], 0)):
            notes = result.caveats
            told = [note for note in notes if "Of 3 classes of 'task', the prompts that were drawn have" in note]
            assert len(told) == lost
            assert any("clusters: 3 for 'task'" in note for note in notes) == (not lost)

    def test_truncation_keeps_what_stands_before_a_text(self, write_checkpoint, tmp_path, config, monkeypatch, states):
        """A beginning of sequence that was asked for stays."""
        path = write_checkpoint(tmp_path / "m", n_positions=4, n_layer=1)
        tokenizer = AutoTokenizer.from_pretrained(path)
        tokenizer.bos_token = "w0"
        tokenizer.save_pretrained(path)
        config.prompts.write_text(
            '{"prompt": "w1 w2 w3 w4 w5", "task": "a"}\n{"prompt": "w1 w2 w3 w4 w6", "task": "b"}\n'
            '{"prompt": "w7 w2 w3 w4 w5", "task": "a"}\n{"prompt": "w7 w2 w3 w4 w6", "task": "b"}\n'
        )
        seen = []
        monkeypatch.setattr(
            "mechclust.commands.saved_rows.save_rows",
            lambda model, batches, *rest, **options: (
                seen.extend(batches) or save_rows(model, batches, *rest, **options)
            ),
        )
        config = replace(config, bos="yes", too_long="truncate", untrained=0)
        states(str(path), config)
        assert [tokenizer.decode(row) for row in seen[0].tokens[:2]] == ["w0 w3 w4 w5", "w0 w3 w4 w6"]

    def test_a_pad_token_beyond_the_embedding(self, shallow, tmp_path, trained, states):
        """As where a padding token was added to the tokenizer and not to the model."""
        path = shutil.copytree(shallow, tmp_path / "m")
        tokenizer = AutoTokenizer.from_pretrained(path)
        tokenizer.add_special_tokens({"pad_token": "[ADDED]"})
        tokenizer.save_pretrained(path)
        records = [{"prompt": f"w1 w2 w{10 + k}"[3 * i :], "task": t} for k, t in enumerate("ab") for i in range(2)]
        write_prompts(trained.prompts, records)
        padded, plain = (states(str(p), trained) for p in (path, shallow))
        name = "rows/blocks.0.hook_resid_post"
        assert torch.equal(*(store.take(store.index, [name])[name] for store in (padded, plain)))

    def test_a_tokenizer_of_another_model(self, write_checkpoint, tmp_path, config):
        path = write_checkpoint(tmp_path / "m", "gpt2", vocab_size=13)
        assert refusal(measure_clusters, str(path), config) == (
            f"{config.prompts}: prompt 10 has token id 13, but the model has 13 token embeddings; save the model's "
            "own tokenizer"
        )
