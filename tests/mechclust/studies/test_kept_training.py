"""Networks that cannot be built, trained or measured are refused before anything of a run is written."""

import pytest

from mechclust.studies import get_study, run_study
from tasks import InputError
from tasks.settings import configure

TRAINED = ("task-clusters", "cluster-factors", "heads-in-models", "induction-heads", "planted-layers", "mossa")
TRAINING = {"mossa": "tuning", "planted-layers": "tuning"}


def _refused(name, out, expected, **changes):
    study = get_study(name)
    config = study.preset("smoke")
    with pytest.raises(InputError, match=expected):
        run_study(study, configure(config, **changes), out, workers=1)
    assert not out.exists()


@pytest.mark.parametrize("name", TRAINED)
def test_heads_that_do_not_divide_the_width(name, tmp_path):
    _refused(name, tmp_path / "run", "n_heads", n_heads=5)


@pytest.mark.parametrize("name", TRAINED)
def test_freezing_what_is_not_there(name, tmp_path):
    of_its_own = name == "planted-layers"  # refuses every other freeze than the study's
    said = "tuning.freeze is nothing; expected embed" if of_its_own else "freeze has 'nothing'"
    _refused(name, tmp_path / "run", said, **{f"{TRAINING.get(name, 'training')}.freeze": ("nothing",)})


def test_freezing_everything(tmp_path):
    whole = ("embed", "pos_embed", "blocks", "ln_final", "unembed")
    _refused("task-clusters", tmp_path / "run", "nothing to train", **{"training.freeze": whole})


def test_more_recipients_than_examples(tmp_path):
    _refused("heads-in-models", tmp_path / "run", "recipients", recipients=10**6)


def test_more_recipients_than_held_out_instructions_give(tmp_path):
    said = "recipients is 40, more than the 30 examples of instructions-seed0; give fewer"
    _refused("heads-in-models", tmp_path / "run", said, recipients=40)


@pytest.mark.parametrize(
    ("name", "expected", "changes"),
    [
        ("task-clusters", "arm 'private': label 'task' has one class only", {"task.n_eval_tasks": 1}),
        ("task-clusters", "arm 'instruction': label 'task' has one class within each", {"task.n_eval": 8}),
        ("cluster-factors", "label 'output' is determined by 'task'", {"task.n_mappings": 1}),
        (
            "cluster-factors",
            "label 'output' is determined by 'task'",
            {"arms": ("overlap-0", "overlap-1"), "task.n_outputs": 1},
        ),
        ("cluster-factors", "label 'task' has one class only", {"task.n_eval_tasks": 1}),
        ("cluster-factors", "label 'task' has one example per class", {"task.n_eval": 3}),
        ("cluster-factors", "every class has fewer examples than the 5 folds", {"task.n_eval": 8}),
        ("heads-in-models", "label 'task' has one class only", {"instructions.n_tasks": 1}),
        (
            "heads-in-models",
            "too many multisets of 32 digits below 4 to number",
            {"moduli": (4,), "addition.length": 64, "addition.n_support": 32},
        ),
    ],
)
def test_data_that_cannot_be_measured(name, expected, changes, tmp_path):
    _refused(name, tmp_path / "run", expected, **changes)


@pytest.mark.parametrize("name", TRAINED)
def test_presets_can_be_trained(name):
    study = get_study(name)
    for name_of_preset, preset in study.presets.items():
        if getattr(preset, "model", None) is None and name_of_preset != "gpt2":  # of the paper's data
            study.check(configure(preset, device="cpu"))
