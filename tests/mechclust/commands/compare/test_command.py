"""The command on a model that was truly tuned, on two tasks of four."""

from __future__ import annotations

import copy
import csv
import json
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import torch

from mechclust.cli import main
from probes import load_result
from probes.functional import linear_cka
from tests.mechclust.commands.compare.cases import write_prompts

SYMBOLS, ORDINALS = 8, ("first", "second", "third", "fourth")
WORDS = ["<pad>", "<unk>", *ORDINALS, *(f"s{i}" for i in range(SYMBOLS))]


def examples(draw, task, n):
    """Four symbols and the instruction, which of them to repeat; and the symbols' numbers."""
    symbols = torch.randint(SYMBOLS, (n, 4), generator=draw)
    return torch.cat([symbols + 2 + len(ORDINALS), torch.full((n, 1), 2 + task)], dim=1), symbols


def fit(model, answer, steps, lr, seed):
    draw, optimizer = torch.Generator().manual_seed(seed), torch.optim.AdamW(model.parameters(), lr=lr)
    for _ in range(steps):
        parts = [examples(draw, task, 16) for task in range(4)]
        wanted = torch.cat([2 + len(ORDINALS) + symbols[:, answer[k]] for k, (_, symbols) in enumerate(parts)])
        logits = model(torch.cat([tokens for tokens, _ in parts])).logits[:, -1]
        loss = torch.nn.functional.cross_entropy(logits, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@pytest.fixture(scope="session")
def tuned_on_two_of_four(tmp_path_factory):
    """A base that repeats the symbol asked for, and the same tuned to new answers in two tasks: ``first`` and
    ``second`` are swapped. The other two are rehearsed, as they are where a model must not forget."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("two of four")
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", pad_token="<pad>")
    shape = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 8, "bos_token_id": 0, "eos_token_id": 0}
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        base = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=len(WORDS), **shape, **dropout))
    assert fit(base, (0, 1, 2, 3), 150, 5e-3, 1) < 0.1
    tuned = copy.deepcopy(base)
    assert fit(tuned, (1, 0, 2, 3), 120, 2e-3, 2) < 0.1
    for name, model in (("base", base), ("tuned", tuned)):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    draw = torch.Generator().manual_seed(99)
    rows = [
        {"prompt": " ".join(WORDS[i] for i in tokens), "task": name}
        for task, name in enumerate(ORDINALS)
        for tokens in examples(draw, task, 30)[0].tolist()
    ]
    write_prompts(folder / "prompts.jsonl", rows)
    return folder


@pytest.fixture(scope="session")
def command(tuned_on_two_of_four):
    """The command as a user gives it, in this process: what it printed, on both streams, and its folder."""
    argv = ["compare", "base", "tuned", "--prompts", "prompts.jsonl", "--n-resamples", "20", "--n-permutations", "5"]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        patch.chdir(tuned_on_two_of_four)
        assert main(argv) == 0
    return (out.getvalue(), err.getvalue()), tuned_on_two_of_four / "runs" / "compare-base-tuned-prompts"


class TestCommand:
    def test_finds_the_two_tasks_that_were_tuned(self, command):
        with (command[1] / "tasks.csv").open() as file:
            found = {row["task"]: row for row in csv.DictReader(file)}
        assert {task for task, row in found.items() if row["stands_out"] == "True"} == {"first", "second"}
        assert all(found[task]["stands_out_layers"] == "1-2" for task in ("first", "second"))
        assert all(found[task]["stands_out_layers"] == "" for task in ("third", "fourth"))
        assert min(float(found[task]["change"]) for task in ("first", "second")) > 0.4
        assert max(float(found[task]["change"]) for task in ("third", "fourth")) < 0.15

    def test_what_it_prints(self, command):
        printed = command[0][0]
        headline, _, *lines = printed.splitlines()
        assert headline.startswith("Layers whose blocks changed: ")
        assert lines[0].split()[:7] == ["task", "n", "change", "low", "high", "stands", "out"]
        assert {line.split()[0] for line in lines[1:3]} == {"first", "second"}
        assert {line.split(": ")[1].split()[0] for line in lines if line.startswith("- Stands out, layers 1-2: ")} == {
            "first", "second",
        }  # fmt: skip
        assert lines[-1] == f"report: {Path('runs/compare-base-tuned-prompts/report.html')}"
        assert "Layer 0 is hook_embed, and layer l is blocks.{l - 1}.hook_resid_post." in printed

    def test_it_prints_what_to_know(self, command):
        printed = command[0][0]
        assert "- n = 120 prompts of 4 tasks" in printed
        assert "no special tokens are added" in printed
        assert "- CKA compares geometry among the prompts" in printed

    def test_bars(self, command):
        bars = ("base: hidden states", "tuned: hidden states", "comparing layers")
        assert all(bar in command[0][1] for bar in bars)

    def test_values_are_those_of_the_states(self, command, tuned_on_two_of_four):
        """Against Hugging Face's own hidden states."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        folder = tuned_on_two_of_four
        rows = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]
        texts = [row["prompt"] for row in rows if row["task"] == "third"]
        states = []
        for name in ("tuned", "base"):
            tokens = AutoTokenizer.from_pretrained(folder / name)(texts, return_tensors="pt")["input_ids"]
            model = AutoModelForCausalLM.from_pretrained(folder / name)
            with torch.no_grad():
                states.append(model(tokens, output_hidden_states=True).hidden_states[1][:, -1])
        result = load_result(command[1] / "results" / "cka.safetensors")
        found = result.sel("debiased_cka", site="blocks.0.hook_resid_post", label="third")
        assert float(found) == pytest.approx(float(linear_cka(*states, debiased=True)), abs=1e-5)
