"""The whole command on a series that the Trainer made, with a planted stale checkpoint."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mechclust import HistoryConfig, measure_history, write_history_report
from mechclust.cli import main
from tasks import InputError


@pytest.fixture(scope="module")
def config(history_prompts):
    return HistoryConfig(
        history_prompts,
        probes=("clusters", "cka", "heads"),
        n_init=2,
        n_permutations=199,
        cka_permutations=19,
        attention_prompts=(0, 3),
    )


@pytest.fixture(scope="module")
def measured(spoilt_series, config, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "run"
    return measure_history(spoilt_series, config, out), out


def test_the_stale_checkpoint_is_found_and_left_out(measured):
    result, _ = measured
    assert [(finding.kind, finding.checkpoints) for finding in result.findings] == [("last", (1,))]
    assert result.lead[0] == (
        "Integrity: 1 of 6 checkpoints are not what their names say ('checkpoint-16'); what follows is of the other 5."
    )
    assert "'checkpoint-16' has the weights of the last checkpoint." in result.sentences
    assert "checkpoint-16" not in set(result.crossings["crosses_at"].dropna())
    flagged = result.to_dataframe().query("flagged")
    assert set(flagged["checkpoint"]) == {"checkpoint-16"}


def test_training_is_seen(measured):
    result, _ = measured
    ari, last = result.curves["clusters"], result.curves["cka_last"]
    assert result.names == [f"checkpoint-{step}" for step in (8, 16, 24, 32, 40, 48)]
    assert ari.layers == [0, 1, 2]
    assert ari.value[-1].max() > ari.high[-1].max()  # the task's word is in the middle, and attention brings it
    assert last.value[-1] == pytest.approx(np.ones(3))
    assert last.value[1] == pytest.approx(np.ones(3))
    assert last.value[0, -1] < last.value[4, -1]
    assert np.isnan(result.curves["cka_previous"].value[0]).all()
    assert (result.curves["heads"].n[0], ari.n[0]) == (36, 36)


def test_measures_equal_those_of_single_models(measured, spoilt_series, config):
    from mechclust import load_pretrained
    from probes import CKA, last_token, run
    from tasks import LabelledPrompts

    result, _ = measured
    one, other = (load_pretrained(spoilt_series / f"checkpoint-{step}") for step in (8, 48))
    batches = list(LabelledPrompts.from_jsonl(config.prompts).batches(one.tokenizer))
    found = run({"one": one, "other": other}, batches, CKA(readout=last_token()))
    assert result.curves["cka_last"].value[0] == pytest.approx(found["debiased_cka"][:, 0].numpy(), abs=1e-5)


def test_a_second_call_loads_no_model(measured, spoilt_series, config, monkeypatch):
    result, out = measured
    monkeypatch.setattr(HistoryConfig, "load", lambda *_, **__: pytest.fail("a model was loaded"))
    again = measure_history(spoilt_series, config, out)
    assert again.to_dataframe().equals(result.to_dataframe())


def test_the_report(measured):
    result, out = measured
    page = write_history_report(result, out).read_text()
    assert page.index("Integrity: 1 of 6") < page.index("Figures")
    assert (out / "history.csv").exists()
    assert (out / "crossings.csv").exists()
    for name in ("clusters_map", "clusters_by_checkpoint", "cka_previous_map", "heads_by_layer"):
        assert (out / "figures" / f"{name}.png").exists()


@pytest.mark.browser
def test_the_slider(measured, browser):
    result, out = measured
    path = write_history_report(result, out)
    context = browser.new_context(offline=True, viewport={"width": 1200, "height": 1000})
    page, trouble = context.new_page(), []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("console", lambda message: trouble.append(message.text) if message.type == "error" else None)
    page.goto(path.as_uri())
    page.wait_for_selector(".history canvas")
    assert page.inner_text(".history .step") == "checkpoint-48 (6 of 6)"
    before = page.evaluate("document.querySelector('.history .maps canvas:last-of-type').toDataURL()")
    page.locator(".history input[type=range]").fill("1")
    assert page.inner_text(".history .step") == "checkpoint-16 (2 of 6)"
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
    page.locator("select[aria-label=Head]").select_option("1")
    context.close()
    assert trouble == []


def test_the_command(trained_series, history_prompts, tmp_path, capsys):
    folders = [str(trained_series / f"checkpoint-{step}") for step in (48, 8)]
    out = tmp_path / "out"
    given = ["--prompts", str(history_prompts), "--checkpoints", *folders, "--n-permutations", "19", "--n-init", "1"]
    assert main(["history", str(trained_series), *given, "--probes", "clusters", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert said.index("checkpoint-8 ") < said.index("checkpoint-48 ")
    assert "Integrity: the 2 checkpoints" in said
    assert "With 19 relabellings a single layer at a single checkpoint cannot be above chance, of 6 looked at" in said
    assert "--n-permutations 119 lets it" in said
    assert (out / "report.html").exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"revisions": ("step0", "step1")}, "is a folder, which has no revisions"),
        ({"checkpoints": ("nowhere/checkpoint-*",)}, "no folder 'nowhere/checkpoint-*'; give the folders of"),
        ({"probes": ("topics",)}, "--probes topics needs text; give --corpus, or leave topics out"),
        ({"probes": ("cka", "cka")}, "probes is cka cka; name each once"),
        ({"map_layers": (9,)}, "map_layers has 9, and the model has the layers 0 to 2"),
        ({"attention_prompts": (99,)}, "attention_prompts has 99, and"),
        ({"position": "mean", "probes": ("heads",)}, "--probes heads reads one position per prompt"),
    ],
)
def test_refusals(trained_series, history_prompts, tmp_path, changed, said):
    from pathlib import Path

    if "checkpoints" in changed:
        changed = {"checkpoints": tuple(map(Path, changed["checkpoints"]))}
    config = HistoryConfig(history_prompts, **({"probes": ("cka",), "cka_permutations": 0} | changed))
    with pytest.raises(InputError) as caught:
        measure_history(trained_series, config, tmp_path / "out")
    assert said in str(caught.value)


def test_topics_and_a_clean_series(trained_series, history_prompts, tmp_path):
    drawn = np.random.default_rng(0)
    words = [[f"w{i}" for i in range(6)], [f"w{i}" for i in range(6, 12)], [f"w{i}" for i in range(12, 20)]]
    texts = [" ".join(drawn.choice(words[k % 3], 110)) for k in range(60)]
    (tmp_path / "corpus.txt").write_text("\n\n".join(texts))
    config = HistoryConfig(
        history_prompts,
        checkpoints=tuple(trained_series / f"checkpoint-{step}" for step in (48, 8, 24)),
        corpus=(tmp_path / "corpus.txt",),
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
    assert result.findings == []
    assert result.lead[0].startswith("Integrity: the 3 checkpoints have different weights, one configuration")
    assert result.names == ["checkpoint-8", "checkpoint-24", "checkpoint-48"]
    topics = result.curves["topics"]
    assert topics.layers == [0, 1]
    assert np.isfinite(topics.value).all()
    assert torch.tensor(topics.value).min() > 0


def test_prompts_of_another_format_and_fields(trained_series, history_prompts, tmp_path):
    import csv

    from mechclust.commands.history.inputs import read_inputs
    from mechclust.commands.history.series import find_series
    from tasks import LabelledPrompts

    prompts = LabelledPrompts.from_jsonl(history_prompts)
    with open(tmp_path / "prompts.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["question", "kind"])
        rows.writerows(zip(prompts.prompts, prompts.labels["task"], strict=True))
    config = HistoryConfig(tmp_path / "prompts.csv", prompt_field="question", task_field="kind", probes=("cka",))
    found = read_inputs(trained_series, find_series(trained_series, config), config).prompts
    assert (found.prompts, found.labels["task"]) == (prompts.prompts, prompts.labels["task"])
