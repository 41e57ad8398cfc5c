"""What tuning changed is found, task by task, and nothing where nothing changed."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from mechclust.commands.compare import compare_models
from mechclust.commands.compare.inputs import read_inputs
from probes import CKA, RowStore, mean
from tests.mechclust.commands.compare.cases import TASKS, records, write_prompts
from tests.mechclust.commands.refusals import refusal


class TestMeasure:
    def test_equals_the_probe_on_both_models_at_once(self, measured, together):
        expected = together(CKA(label="task", n_resamples=20, n_permutations=9))
        assert measured.cka.coords == {**expected.coords, "label": ["(all)", *TASKS]}
        for measure in ("cka", "debiased_cka", "debiased_cka_low", "debiased_cka_null_high"):
            torch.testing.assert_close(measured.cka[measure], expected[measure], rtol=0, atol=1e-5, equal_nan=True)
        assert measured.cka["n"].tolist() == [36, 12, 12, 12]

    def test_table(self, measured):
        table = measured.to_dataframe()
        assert list(table.columns) == [
            "layer", "site", "task", "n", "d_tuned", "d_base", "cka", "debiased_cka", "low", "high", "null_high",
            "without_top_pc", "block_cka", "block_low", "block_high", "restored", "restored_low",
            "restored_high", "rise", "rise_low", "rise_high", "chance_restored", "matters", "change", "changed",
            "stands_out",
        ]  # fmt: skip
        assert table["layer"].tolist() == 4 * [0, 1, 2]
        assert table["task"].tolist() == [t for t in ("(all)", *TASKS) for _ in range(3)]
        same, other = (table[(table["layer"] == layer) & (table["task"] != "(all)")] for layer in (1, 2))
        assert same["debiased_cka"].tolist() == pytest.approx([1, 1, 1])
        assert not same["changed"].any()
        assert other["changed"].all()
        assert (other["low"] <= other["debiased_cka"]).all()
        assert (other["change"] == 1 - other["debiased_cka"]).all()
        assert (table["null_high"].dropna() < 0.9).all()

    def test_which_layer_changed(self, measured):
        assert measured.summary()["changed_layers"].tolist() == ["2", "2", "2"]
        assert measured.summary()["at_layer"].tolist() == [2, 2, 2]
        layers = measured.by_layer()
        assert layers["layer"].tolist() == [1, 2]  # no CKA at layer 0
        assert layers["changed"].tolist() == [0, 3]
        assert layers["change"][0] == pytest.approx(0)
        assert layers["most"][1] == pytest.approx(measured.summary()["largest"].max())
        assert measured.headline == (
            "Layers whose blocks changed: 2 of 0-2. Layers that matter to the output: 2. Tasks that stand out: none."
        )
        assert measured.readings[0].value == "all prompts together, a, b and c"
        assert measured.readings[0].where == "layer 2"
        assert measured.readings[1].value == "2"
        assert measured.readings[2].value == "2"
        assert measured.readings[3].where == "layer 2"
        together = measured.to_dataframe().set_index(["task", "layer"]).loc["(all)", "changed"]
        assert together.tolist() == [False, False, True]

    def test_only_one_task_was_altered(self, write_checkpoint, tmp_path, least, out):
        """Its words have other embeddings. At layer 0 there are the three that end its prompts, two of them rare: a
        half-sample that misses these has no CKA, and so there is no interval there."""
        rows = []
        for task, first in {"sentence": 0, "word": 5, "sum": 5, "list": 5}.items():
            for i in range(24):
                last = 10 + max(0, (i - 12) // 5) if task == "sentence" else 13 + i % 3
                context = f"w{first + i % 4} w{first + 3 + i // 4 % 2} w{first + i // 8}"
                rows.append({"prompt": f"{context} w{last}", "task": task})
        write_prompts(least.prompts, rows)

        def attentive(model):
            for name, weight in model.named_parameters():
                weight *= 5 if "attn" in name else 1

        def alter(model):
            attentive(model)
            draw = torch.Generator().manual_seed(5)
            for at in (slice(2, 7), slice(12, 15)):
                model.transformer.wte.weight[at] += 0.4 * torch.randn(at.stop - at.start, 16, generator=draw)

        base = write_checkpoint(tmp_path / "base", change=attentive)
        tuned = write_checkpoint(tmp_path / "tuned", change=alter)
        result = compare_models(str(base), str(tuned), least, out)
        table = result.summary().set_index("task")
        assert result.change[0, result.tasks.index("sentence")] > 0.01
        assert table["no_interval_layers"].to_dict() == {"sentence": "0", "word": "", "sum": "", "list": ""}
        assert table["stands_out"].to_dict() == {"sentence": True, "word": False, "sum": False, "list": False}
        said = " ".join(result.sentences)
        assert re.search(r"Stands out, layers 1-2: sentence [\d.]+ \(", said)
        assert re.search(r"No interval, layer 0: sentence .* 24 prompts: too few, or too alike", said)

    def test_identical_checkpoints(self, gpt2, plain, out, undrawn):
        copy = str(shutil.copytree(gpt2, out.parent / "copy"))
        result = compare_models(str(gpt2), copy, plain, out)
        assert "Base and tuned model are the same: their weights and configurations are identical." in result.notes
        assert not result.changed.any()
        assert not result.stands_out.any()
        assert np.nanmax(np.abs(result.change)) < 1e-12
        assert not result.summary()["stands_out"].any()
        assert result.headline.startswith(
            "No layer is known to have changed: the 95% interval of 1 - block CKA reaches down"
        )
        assert result.headline.endswith("Layers that matter to the output: none, as the outputs do not differ.")
        assert result.patching["restored"].isnan().all()
        assert result.to_dataframe()["matters"].eq(False).all()
        assert any(reading.what == "No CKA" and reading.where == "layer 0" for reading in result.readings)
        assert not any(reading.what == "Change begins" for reading in result.readings)
        assert result.write(out).exists()

    def test_bfloat16_against_float32(self, gpt2, least, out):
        config = replace(least, tuned_dtype="bfloat16", tuned_device="cpu")
        result = compare_models(str(gpt2), str(gpt2), config, out)
        assert not result.changed.any()
        assert 0 < np.nanmax(np.abs(result.change)) < 0.01
        rows = RowStore(out / "rows" / "tuned").take(torch.arange(3), ["rows/hook_embed"])
        assert rows["rows/hook_embed"].dtype == torch.bfloat16

    def test_another_width(self, gpt2, write_checkpoint, tmp_path, least, out):
        wide = write_checkpoint(tmp_path / "wide", n_embd=24)
        result = compare_models(str(gpt2), str(wide), least, out)
        assert set(zip(result.to_dataframe()["d_tuned"], result.to_dataframe()["d_base"], strict=True)) == {(24, 16)}
        assert "d = 24 (tuned) and 16 (base)" in result.caveats[0]

    def test_constant_states_have_no_cka(self, measured):
        table = measured.to_dataframe()
        assert table[table["layer"] == 0].set_index("task")["debiased_cka"].isna().to_dict() == {
            "(all)": False, "a": True, "b": True, "c": True,
        }  # fmt: skip
        said = measured.caveats
        assert any(sentence.startswith("No CKA, layer 0: a, b and c. 12 prompts") for sentence in measured.sentences)
        assert "n = 36 prompts of 3 tasks (12 each), hidden state at the last prompt token" in said[0]
        assert any("n is below 10 d for every label: there the biased form" in note for note in said)
        both = measured.to_dataframe().dropna()
        row = both.loc[(both["without_top_pc"] - both["debiased_cka"]).abs().idxmax()]
        (opinion,) = (reading for reading in measured.readings if reading.what == "Second opinion without_top_pc")
        assert opinion.where == f"layer 2, {row['task']}"
        assert opinion.value == f"{row['without_top_pc']:.2f}, debiased_cka {row['debiased_cka']:.2f}"

    def test_mean_over_tokens(self, gpt2, shaken, least, out, together):
        result = compare_models(str(gpt2), str(shaken), replace(least, position="mean"), out)
        expected = together(CKA(readout=mean(), label="task"))["debiased_cka"]
        torch.testing.assert_close(result.cka["debiased_cka"], expected, rtol=0, atol=1e-5)  # other kernels

    def test_at_most_so_many_of_a_task(self, gpt2, shaken, apart, out):
        """Which are drawn does not depend on the other tasks, and the index is the place in the file."""
        config = replace(apart, max_per_task=8)
        result = compare_models(str(gpt2), str(shaken), config, out)
        assert result.cka["n"].tolist() == [24, 8, 8, 8]
        drawn = RowStore(out / "rows" / "base").index.tolist()
        assert [sum(12 * k <= i < 12 * k + 12 for i in drawn) for k in range(3)] == [8, 8, 8]
        write_prompts(config.prompts, [*records("ab"), *records(["c"], 9)])
        fewer = read_inputs(str(gpt2), str(shaken), config, out / "fewer").of_task()
        assert torch.cat([fewer["a"], fewer["b"]]).tolist() == drawn[:16]
        assert fewer["c"].tolist() != drawn[16:]

    def test_the_tuned_models_chat_template_is_for_both(self, gpt2, shaken, config, tmp_path, out):
        from transformers import AutoTokenizer

        path = shutil.copytree(shaken, tmp_path / "chat")
        tokenizer = AutoTokenizer.from_pretrained(path)
        tokenizer.chat_template = "{% for m in messages %}w18 {{ m['content'] }}{% endfor %} w19"
        tokenizer.save_pretrained(path)
        chat = read_inputs(str(gpt2), str(path), replace(config, chat=True), out).batches
        write_prompts(config.prompts, [{**row, "prompt": f"w18 {row['prompt']} w19"} for row in records()])
        by_hand = read_inputs(str(gpt2), str(path), config, out).batches  # the same tokens: not refused
        assert all(torch.equal(one.tokens, other.tokens) for one, other in zip(chat, by_hand, strict=True))
        assert chat[0].tokens[0].tolist() == [20, 2, 6, 12, 21]


def test_activations_that_are_not_finite(gpt2, write_checkpoint, tmp_path, config, out):
    def spoil(model):
        model.transformer.wte.weight[13] = float("nan")  # w11, the last word of task b

    bad = write_checkpoint(tmp_path / "bad", change=spoil)
    assert refusal(compare_models, str(gpt2), str(bad), config, out) == (
        f"tuned {str(bad)!r}: NaN or infinity in the activations at 'hook_embed' for example index 12; "
        "find its cause in the model or leave the example out"
    )
