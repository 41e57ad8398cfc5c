"""The whole command on a series that the Trainer made, with a planted stale checkpoint."""

from __future__ import annotations

import base64
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mechclust import HistoryConfig, measure_history
from mechclust.cli import main
from mechclust.commands.history.slider import slider
from tasks import Corpus
from tests.mechclust.commands.history.made import rows
from tests.mechclust.commands.hook_columns import check_report
from tests.mechclust.commands.refusals import refusal
from tests.mechclust.small_run import leave_figures_out

# What is said of each cell of the attention that is drawn, when pointed at.
CELLS = """
() => {
  const canvas = document.querySelector("canvas.attention"), box = canvas.getBoundingClientRect(), said = [];
  for (let x = 93; x < canvas.clientWidth; x += 20) for (let y = 93; y < canvas.clientHeight; y += 20) {
    canvas.dispatchEvent(new MouseEvent("mousemove", {clientX: box.left + x, clientY: box.top + y, bubbles: true}));
    said.push([...document.querySelectorAll(".history .said")].pop().textContent);
  }
  return said;
}
"""


@pytest.fixture(scope="module")
def config(history_prompts):
    return HistoryConfig(
        history_prompts,
        probes=("clusters", "cka", "heads"),
        n_init=2,
        n_permutations=199,
        n_resamples=20,
        cka_permutations=19,
        attention_prompts=(0, 3),
    )


@pytest.fixture(scope="module")
def short_series(spoilt_series, tmp_path_factory):
    """Four of its checkpoints; read only."""
    folder = tmp_path_factory.mktemp("short") / "run"
    for step in (8, 16, 24, 48):
        shutil.copytree(spoilt_series / f"checkpoint-{step}", folder / f"checkpoint-{step}")
    return folder


@pytest.fixture(scope="module")
def measured(short_series, config, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "run"
    return measure_history(short_series, config, out), out


def test_the_stale_checkpoint_is_found_and_left_out(measured):
    result, _ = measured
    assert [(finding.kind, finding.checkpoints) for finding in result.findings] == [("last", (1,))]
    assert result.headline.startswith("1 of 4 checkpoints fails integrity checks.")
    reading = result.readings[0]
    assert (reading.where, reading.value) == ("'checkpoint-16'", "left out of all conclusions")
    assert reading.verdict == "'checkpoint-16' has the weights of the last checkpoint."
    assert "checkpoint-16" not in set(result.crossings["crosses_at"].dropna())
    flagged = result.to_dataframe().query("flagged")
    assert set(flagged["checkpoint"]) == {"checkpoint-16"}


def test_training_is_seen(measured):
    result, _ = measured
    ari, last = result.curves["clusters"], result.curves["cka_last"]
    assert result.names == [f"checkpoint-{step}" for step in (8, 16, 24, 48)]
    assert ari.layers == [0, 1, 2]
    assert ari.value[-1].max() > ari.high[-1].max()  # the task's word is in the middle, and attention brings it
    assert last.value[-1] == pytest.approx(np.ones(3))
    assert last.value[1] == pytest.approx(np.ones(3))
    assert last.value[0, -1] < last.value[2, -1]
    assert np.isnan(result.curves["cka_previous"].value[0]).all()
    assert (result.curves["heads"].n[0], ari.n[0]) == (36, 36)


def test_intervals_are_in_the_table(measured):
    result, _ = measured
    table = result.to_dataframe()
    known = table[table["measure"].isin(["clusters", "cka_first"]) & ~table["flagged"]]
    assert known[["value_low", "value_high"]].notna().all().all()
    assert (known["value_low"] <= known["value"] + 1e-9).all()
    assert (known["value_high"] >= known["value"] - 1e-9).all()
    assert "0.000 (" in result.shown_table["clusters"].iloc[0] or " to " in result.shown_table["clusters"].iloc[0]
    (shown,) = (reading.value for reading in result.readings if reading.what.startswith("CKA with the last"))
    assert " to " in shown.split(" at ")[0]


def test_measures_equal_those_of_single_models(measured, short_series, config):
    from mechclust import load_pretrained
    from probes import CKA, last_token, run
    from tasks import LabelledPrompts

    result, _ = measured
    one, other = (load_pretrained(short_series / f"checkpoint-{step}") for step in (8, 48))
    batches = list(LabelledPrompts.from_file(config.prompts).batches(one.tokenizer))
    found = run({"one": one, "other": other}, batches, CKA(readout=last_token()))
    assert result.curves["cka_last"].value[0] == pytest.approx(found["debiased_cka"][:, 0].numpy(), abs=1e-5)


def test_a_second_call_loads_no_model(measured, short_series, config, monkeypatch):
    result, out = measured
    monkeypatch.setattr(HistoryConfig, "load", lambda *_, **__: pytest.fail("a model was loaded"))
    again = measure_history(short_series, config, out)
    assert again.to_dataframe().equals(result.to_dataframe())


@pytest.fixture(scope="module")
def written(measured):
    """The path of the report, which has no pictures."""
    with pytest.MonkeyPatch.context() as patch:
        leave_figures_out(patch)
        return measured[0].write(measured[1])


def test_the_report(measured, written):
    result, out = measured
    path = written
    check_report(path, result.shown_table)
    page = path.read_text()
    assert page.index("1 of 4 checkpoints fails") < page.index("<figure") < page.index("Step by step")
    assert '"layer 0 (hook_embed)","layer 1 (blocks.0.hook_resid_post)"' in page
    assert '"heads":[["L0H0","L0H1"],["L1H0","L1H1"]]' in page
    assert (out / "history.csv").exists()
    assert (out / "crossings.csv").exists()
    for name in ("clusters_map", "clusters_by_checkpoint", "cka_previous_map", "heads_by_checkpoint"):
        assert (out / "figures" / f"{name}.png").exists()


def attention_of(folder, text):
    """``[block head query key]`` patterns of the model itself, as Hugging Face gives them."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    tokens = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        return torch.cat(model(tokens, output_attentions=True).attentions).numpy()


def test_the_attention_on_the_page_is_the_models(measured, short_series, config):
    result, _ = measured
    shown = json.loads(re.search(r"^show\(.*?\), (\{.*\})\);$", slider(result), re.MULTILINE)[1])
    prompts = config.read_prompts().prompts
    assert shown["names"] == result.names
    assert [each["place"] for each in shown["attention"]] == [0, 3]
    for each in shown["attention"]:
        text = prompts[each["place"]]
        assert each["tokens"] == text.split()
        assert each["blocks"] == ["blocks.0", "blocks.1"]
        assert each["heads"] == [["L0H0", "L0H1"], ["L1H0", "L1H1"]]
        for name, packed in zip(result.names, each["patterns"], strict=True):
            own = attention_of(short_series / name, text)
            numbers = np.frombuffer(base64.b64decode(packed), dtype=np.uint8).reshape(own.shape)
            assert numbers / 255 == pytest.approx(own, abs=0.5 / 255 + 1e-5)
        assert np.abs(own[:, 0] - own[:, 1]).max() > 0.05  # another head would be seen


# Play from the last checkpoint, and point everywhere on a map before the first tick.
POINT_AFTER_PLAY = """() => {
  const play = document.querySelector(".history button");
  const canvas = document.querySelectorAll(".history .maps canvas")[2];
  const { left, top, width } = canvas.getBoundingClientRect();
  play.click();
  for (let x = 1; x < width; x += 4) for (let y = 1; y < width; y += 4)
    canvas.dispatchEvent(new MouseEvent("mousemove", { clientX: left + x, clientY: top + y, bubbles: true }));
  play.click();
  return document.querySelector(".history .step").textContent;
}"""


@pytest.mark.browser
def test_the_slider(written, short_series, config, browser):
    context = browser.new_context(offline=True, viewport={"width": 1200, "height": 1000})
    page, trouble = context.new_page(), []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("console", lambda message: trouble.append(message.text) if message.type == "error" else None)
    page.goto(written.as_uri())
    page.wait_for_selector(".history canvas")
    assert page.inner_text(".history .step") == "checkpoint-48 (4 of 4)"
    before = page.evaluate("document.querySelector('.history .maps canvas:last-of-type').toDataURL()")
    page.locator(".history input[type=range]").fill("1")
    assert page.inner_text(".history .step") == "checkpoint-16 (2 of 4)"
    assert page.inner_text(".history .wrong") == "'checkpoint-16' has the weights of the last checkpoint."
    page.locator(".history input[type=range]").fill("0")
    assert page.evaluate("document.querySelector('.history .maps canvas:last-of-type').toDataURL()") != before
    canvas = page.locator(".history .maps canvas").nth(2)
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    for x in range(5, int(box["width"]), 6):  # somewhere on the way there is a prompt
        page.mouse.move(box["x"] + x, box["y"] + box["height"] / 2)
    shown = page.evaluate(
        """() => { const canvas = document.querySelectorAll(".history .maps canvas")[2], side = canvas.clientWidth;
        for (let x = 1; x < side; x += 4) for (let y = 1; y < side; y += 4) {
          canvas.dispatchEvent(new MouseEvent("mousemove", {clientX: canvas.getBoundingClientRect().left + x,
            clientY: canvas.getBoundingClientRect().top + y, bubbles: true}));
          const said = document.querySelector(".history .said").textContent;
          if (said.startsWith("Prompt ")) return said;
        } return ""; }"""
    )
    assert shown.startswith("Prompt ")
    assert "task: " in shown
    assert page.locator(".history .maps span").all_inner_texts()[1].startswith("layer 1 (blocks.0.hook_resid_post), ")
    head, block = page.locator("select[aria-label=Head]"), page.locator("select[aria-label=Block]")
    assert head.locator("option").all_inner_texts() == ["L1H0", "L1H1"]
    head.select_option("1")
    block.select_option("blocks.0")
    assert head.locator("option:checked").inner_text() == "L0H1"
    page.locator("select[aria-label=Prompt]").select_option("3")
    assert (block.input_value(), head.locator("option:checked").inner_text()) == ("0", "L0H1")
    page.locator("select[aria-label=Prompt]").select_option("0")
    page.locator(".history input[type=range]").fill("3")
    words = config.read_prompts().prompts[0].split()
    own = attention_of(short_series / "checkpoint-48", " ".join(words))
    assert np.abs(own[:, 0] - own[:, 1]).max(axis=(1, 2)).min() > 0.02  # the other head would be seen
    page.locator("canvas.attention").scroll_into_view_if_needed()
    assert "white 0, darkest blue 1" in page.locator(".history .said").last.text_content()
    for block, head in ((1, 1), (1, 0), (0, 1)):
        page.locator("select[aria-label=Block]").select_option(str(block))
        page.locator("select[aria-label=Head]").select_option(str(head))
        weights = dict(said.rsplit(": ") for said in page.evaluate(CELLS))
        assert {place: float(weight) for place, weight in weights.items()} == {
            f"{word} ({row}) attends to {other} ({column})": pytest.approx(own[block, head, row, column], abs=0.0075)
            for row, word in enumerate(words)
            for column, other in enumerate(words)
        }
    assert page.evaluate(POINT_AFTER_PLAY) == "checkpoint-8 (1 of 4)"
    context.close()
    assert trouble == []


def test_the_command(trained_series, history_prompts, tmp_path, capsys):
    folders = [str(trained_series / f"checkpoint-{step}") for step in (48, 8)]
    out = tmp_path / "out"
    given = ["--prompts", str(history_prompts), "--checkpoints", *folders, "--n-permutations", "19", "--n-init", "1"]
    assert main(["history", str(trained_series), *given, "--probes", "clusters", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert said.index("checkpoint-8 ") < said.index("checkpoint-48 ")
    assert "All 2 checkpoints pass integrity checks." in said
    assert "With 19 relabellings, no single one of the 6 tests (layers times checkpoints) can be significant" in said
    assert "unless others are too; --n-permutations 119 is enough" in said
    assert (out / "report.html").exists()
    (picture,) = (out / "figures").glob("clusters_map.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"revisions": ("step0", "step1")}, "is a folder, which has no revisions"),
        ({"checkpoints": ("nowhere/checkpoint-*",)}, "no folder 'nowhere/checkpoint-*'; give the folders of"),
        ({"probes": ("topics",)}, "--probes topics needs text; give --corpus, or leave topics out"),
        ({"probes": ("cka", "cka")}, "probes has 'cka' twice; give it once"),
        ({"map_layers": (9,)}, "map_layers has 9, and the model has the layers 0 to 2"),
        ({"attention_prompts": (99,)}, "attention_prompts has 99, and"),
        ({"position": "mean", "probes": ("heads",)}, "--probes heads reads one position per prompt"),
    ],
)
def test_refusals(trained_series, history_prompts, tmp_path, changed, said):
    if "checkpoints" in changed:
        changed = {"checkpoints": tuple(map(Path, changed["checkpoints"]))}
    config = HistoryConfig(history_prompts, **({"probes": ("cka",), "cka_permutations": 0} | changed))
    assert said in refusal(measure_history, trained_series, config, tmp_path / "out")


def refused(model, config, out):
    said = refusal(measure_history, model, config, out)
    assert not out.exists()
    return said


def test_folders_that_are_no_series(trained_series, history_prompts, tmp_path, monkeypatch):
    """Which a person with the Trainer's folder would try."""
    monkeypatch.chdir(trained_series.parent)
    run, config = Path(trained_series.name), HistoryConfig(history_prompts, probes=("cka",))
    one, out = run / "checkpoint-8", tmp_path / "out"
    assert refused(one, config, out) == (
        f"'{one}' has no folders called checkpoint-*; give the folder in which the Trainer saved them, such as "
        f"'{run}', or the checkpoints themselves with --checkpoints"
    )
    assert refused(run, replace(config, checkpoints=(run,)), out) == (
        f"'{run}' holds checkpoints and is not one itself; give --checkpoints {run}/checkpoint-*"
    )
    assert refused("nowhere", config, out) == (
        "no checkpoints given, and no folder 'nowhere'; give --revisions step0 step1000 ... of a model on the hub, or "
        "--checkpoints run/checkpoint-*"
    )


def test_a_checkpoint_that_is_still_being_written(trained_series, history_prompts, tmp_path, monkeypatch):
    """Found before any other is loaded."""
    for step in (8, 24, 48):
        shutil.copytree(trained_series / f"checkpoint-{step}", tmp_path / "run" / f"checkpoint-{step}")
    (tmp_path / "run" / "checkpoint-24" / "model.safetensors").unlink()
    monkeypatch.setattr(HistoryConfig, "load", lambda *_, **__: pytest.fail("a model was loaded"))
    config = HistoryConfig(history_prompts, probes=("cka",))
    assert refused(tmp_path / "run", config, tmp_path / "out") == (
        f"'{tmp_path / 'run' / 'checkpoint-24'}' has a config.json but no weights (model.safetensors); save the model "
        "there with save_pretrained, or leave this checkpoint out"
    )


def test_checkpoints_without_a_tokenizer(trained_series, history_prompts, gpt2, tmp_path):
    """As the Trainer writes them that is not given one."""
    from mechclust.commands.history.inputs import read_inputs
    from mechclust.commands.history.series import find_series

    run = tmp_path / "run"
    for step in (8, 48):
        shutil.copytree(
            trained_series / f"checkpoint-{step}",
            run / f"checkpoint-{step}",
            ignore=shutil.ignore_patterns("tokenizer*", "vocab*"),
        )
    config = HistoryConfig(history_prompts, probes=("cka",))
    told = "the checkpoints have no tokenizer (the Trainer saves one only if it gets it as processing_class), and "
    way_out = "give the model that was trained as MODEL, and its checkpoints with --checkpoints"
    assert refused(run, config, tmp_path / "out") == f"{told}'{run}' has none either; {way_out}"
    config = replace(config, checkpoints=(run / "checkpoint-*",))
    inputs = read_inputs(str(gpt2), find_series(str(gpt2), config), config)
    assert inputs.tokenizer.get_vocab()["w3"] == 5
    assert any("no special tokens are added" in note for note in inputs.notes)


def test_a_crossing_at_the_first_checkpoint_may_be_earlier(measured):
    result, _ = measured
    ari = result.curves["clusters"]
    early = replace(ari, p=np.full_like(ari.p, 0.001))
    one = np.where(np.arange(3) == 1, 0.001, 1.0)[None].repeat(4, axis=0)
    one[:2] = 1.0

    def crossed(curve, **changed):
        readings = rows(replace(result, curves={"clusters": curve}, **changed), "Crosses chance: clusters")
        return [(where, value.rpartition(", ")[0] or value) for where, value in readings]

    assert crossed(early) == [("layers 0-2", "by 'checkpoint-8'")]
    assert crossed(early, starts_random=True) == [("layers 0-2", "at 'checkpoint-8', with random weights")]
    assert crossed(replace(ari, p=one)) == [("layer 1", "at 'checkpoint-24'"), ("layers 0, 2", "never")]


def test_a_measure_that_is_undefined_everywhere(measured, tmp_path):
    result, _ = measured
    heads = result.curves["heads"]
    none = np.full_like(heads.value, np.nan)
    results = {"heads/checkpoint-48": replace(result.results["heads/checkpoint-48"], notes=["no two words met"])}
    curve = replace(heads, value=none, low=none, high=none, p=none)
    empty = replace(result, curves={"heads": curve}, results=results, planes=None)
    assert empty.headline.endswith("Undefined at every checkpoint: variance between tasks in heads.")
    reading = empty.readings[-1]
    assert reading.what == "Variance between tasks in a head's output, the best head (share)"
    assert (reading.value, reading.verdict) == ("undefined at every checkpoint", "No two words met.")
    assert "No two words met" not in " ".join(result.sentences)
    assert "No two words met" in empty.write(tmp_path / "out").read_text()
    assert not (tmp_path / "out" / "figures").exists()


def test_topics_and_a_clean_series(trained_series, history_prompts, tmp_path, monkeypatch):
    encoded, encode = [], Corpus.encode
    monkeypatch.setattr(Corpus, "encode", lambda *args, **options: encoded.append(1) or encode(*args, **options))
    drawn = np.random.default_rng(0)
    words = [[f"w{i}" for i in range(6)], [f"w{i}" for i in range(6, 12)], [f"w{i}" for i in range(12, 20)]]
    texts = [" ".join(drawn.choice(words[k % 3], 110)) for k in range(60)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(json.dumps({"body": text}) for text in texts))
    config = HistoryConfig(
        history_prompts,
        checkpoints=tuple(trained_series / f"checkpoint-{step}" for step in (48, 8, 24)),
        corpus=(tmp_path / "corpus.jsonl",),
        text_field="body",
        probes=("topics", "cka"),
        cka_permutations=0,
        n_topics=3,
        threshold=0.3,
        min_documents=2,
        max_length=16,
        n_permutations=19,
        map_prompts=0,
    )
    result = measure_history(trained_series, config)
    assert len(encoded) == 1  # for all checkpoints
    assert result.findings == []
    assert result.headline.startswith("All 3 checkpoints pass integrity checks.")
    assert result.readings[0].verdict.startswith("They have different weights and one configuration")
    assert result.names == ["checkpoint-8", "checkpoint-24", "checkpoint-48"]
    topics = result.curves["topics"]
    assert topics.layers == [0, 1]
    assert result.results["topics/checkpoint-8"].metadata["parameters"]["n_permutations"] == 19
    assert np.isfinite(topics.value).all()
    assert torch.tensor(topics.value).min() > 0


def test_prompts_of_another_format_and_fields(trained_series, history_prompts, tmp_path):
    import csv

    from mechclust.commands.history.inputs import read_inputs
    from mechclust.commands.history.series import find_series
    from tasks import LabelledPrompts

    prompts = LabelledPrompts.from_file(history_prompts)
    with open(tmp_path / "prompts.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["question", "kind"])
        rows.writerows(zip(prompts.prompts, prompts.labels["task"], strict=True))
    config = HistoryConfig(tmp_path / "prompts.csv", prompt_field="question", task_field="kind", probes=("cka",))
    found = read_inputs(trained_series, find_series(trained_series, config), config).prompts
    assert (found.prompts, found.labels["task"]) == (prompts.prompts, prompts.labels["task"])
