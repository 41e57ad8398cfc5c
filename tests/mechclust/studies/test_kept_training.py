"""Networks that cannot be built or trained are refused before anything of a run is written."""

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
    _refused(
        name, tmp_path / "run", "freeze has 'nothing'", **{f"{TRAINING.get(name, 'training')}.freeze": ("nothing",)}
    )


def test_freezing_everything(tmp_path):
    whole = ("embed", "pos_embed", "blocks", "ln_final", "unembed")
    _refused("task-clusters", tmp_path / "run", "nothing to train", **{"training.freeze": whole})


def test_more_recipients_than_examples(tmp_path):
    _refused("heads-in-models", tmp_path / "run", "recipients", recipients=10**6)


@pytest.mark.parametrize("name", TRAINED)
def test_presets_can_be_trained(name):
    study = get_study(name)
    for preset in study.presets.values():
        if getattr(preset, "model", None) is None:
            study.check(configure(preset, device="cpu"))
