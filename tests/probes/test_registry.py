"""Probes by name, with those that other packages register by a real entry point."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import probes
from probes import Probe, find_probe, get_probe, list_probes
from tasks import InputError
from tests import fake_package

MODULE = """
import torch
from probes import Probe, Sum, last_token, residual

class MeanNorm(Probe):
    '''Mean Euclidean norm at each site.

    More of it.
    '''
    total, count = Sum(), Sum(torch.int64)
    def __init__(self, at=residual(), readout=last_token()):
        self.at, self.readout = at, readout
    def update(self, activations, batch):
        for site, x in activations.items():
            self.total.add(site, x.norm(dim=-1).sum(dtype=torch.float64))
            self.count.add(site, len(x))
    def compute(self):
        return self.result({"norm": torch.stack([self.total[s] / self.count[s] for s in self.site_names])},
                           {"norm": ("site",)})

def embedding_norm():
    '''Only at the embedding.'''
    return MeanNorm(at="hook_embed")

def no_probe():
    return 3

class Unrelated: ...

class Abstract(Probe): ...

def raises():
    raise RuntimeError("no light")

NUMBER = 3
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts a package with these entry points where Python finds it."""

    def put(source: str = MODULE, package: str = "other-probes", **points: str) -> None:
        fake_package.install(tmp_path, monkeypatch, "mechclust.probes", source, package, points)

    return put


def test_every_probe_of_ours_is_listed() -> None:
    classes = {
        name for name in probes.__all__ if isinstance(c := getattr(probes, name), type) and issubclass(c, Probe)
    } - {"Probe"}
    ours = {probe.name: probe for probe in list_probes() if probe.package.startswith("mechclust ")}
    assert set(ours) == classes
    assert all(probe.summary and probe.summary.endswith((".", "?")) for probe in ours.values())
    assert ours["TopicAttention"].needs == ["topics"]
    assert ours["CKA"].needs == []


SETTINGS = {
    "AttentionEntropy": "at=attention(), query=None",
    "CKA": "at=residual(), readout=last_token(), label=None, pairs='diagonal', form='auto', precision='float64', "
    "n_resamples=0, n_permutations=0, max_memory=8.0, device=None, seed=0, remove_top=0, units=None, keep_halves=False",
    "ClusteringHead": "equivalence='multiset', support=None, modulus=None, at=head_output(), query=last_token(), "
    "max_rows=None, permutations=0, units=None",
    "DistanceMatchedTopicAttention": "at=attention(), words=None, max_distance=256, n_resamples=199, units=None, "
    "seed=0",
    "HeadRoles": "at=attention(), max_offset=8, n_permutations=None, exclude_bos=False, exclude_current_token=False, "
    "seed=0",
    "LinearDecodability": "label='task', at=residual(), readout=last_token(), also=(), given=None, units=None, "
    "folds=5, n_shuffles=100, max_rows=None, device=None, seed=0",
    "LogitLens": "answer=None, tokens=None, at=residual(), readout=last_token()",
    "NDims": "at=residual(), readout=last_token(), label=None, variance=0.99, form='auto', max_memory=8.0, device=None",
    "NeighbourPurity": "at=residual(), readout=last_token(), label='task', k=10, max_memory=8.0, max_rows=None, "
    "device=None, units=None, within=None, n_permutations=0, seed=0",
    "NormJacobian": "at='blocks.0.hook_resid_mid', readout=last_token()",
    "Projection": "label='task', at=residual(), readout=token_at('input'), method='tsne', max_rows=500, seed=0",
    "RBFCKA": "at=residual(), readout=last_token(), label=None, pairs='diagonal', fraction=0.5, max_memory=8.0, "
    "device=None",
    "SVCCA": "at=residual(), readout=last_token(), label=None, pairs='diagonal', variance=0.99, max_memory=8.0",
    "TaskClusterARI": "label='task', at=residual(), readout=token_at('input'), also=(), n_clusters=None, given=None, "
    "within=None, units=None, preprocess=Preprocess(drop_outliers=None, standardise=False, pca=None, cosine=False), "
    "reduce=None, n_init=10, n_permutations=1000, n_resamples=0, max_rows=None, device=None, keep_clusters=False, "
    "keep_halves=False, seed=0",
    "TopicAttention": "at=attention(), words=None, n_permutations=99, seed=0, n_resamples=0, units=None",
    "TopicEmbedding": "at=embedding(), words=None, self_pairs=False, n_permutations=99, seed=0",
}


def ours() -> dict[str, Probe]:
    """Every probe of ours with its default settings."""
    registered = [probe for probe in list_probes() if probe.package.startswith("mechclust ")]
    topics = torch.tensor([0, 0, 1, 1])
    return {probe.name: getattr(probes, probe.name)(**dict.fromkeys(probe.needs, topics)) for probe in registered}


def test_settings_that_nobody_gives_are_these() -> None:
    """Scripts and saved results rely on them."""
    found = {name: re.sub(r"topics=.*?int64\), ", "", repr(probe)) for name, probe in ours().items()}
    assert found == {name: f"{name}({settings})" for name, settings in SETTINGS.items()}


def test_a_registered_probe_is_found_and_made(install: Callable[..., None]) -> None:
    install(mean_norm="other_probes:MeanNorm", embedding_norm="other_probes:embedding_norm")
    found = find_probe("mean-norm")
    assert (found.package, found.summary, found.error) == ("other-probes 1.2", "Mean Euclidean norm at each site.", "")
    assert repr(get_probe("mean-norm")) == "MeanNorm(at=residual(), readout=last_token())"
    assert get_probe("embedding-norm").at == "hook_embed"
    assert [probe.name for probe in list_probes()][-2:] == ["embedding-norm", "mean-norm"]


def test_a_broken_one_is_listed_with_its_reason_and_leaves_the_others(install: Callable[..., None]) -> None:
    install("import no_such_package", package="broken-probes", missing="broken_probes:Probe")
    install(
        fine="other_probes:MeanNorm",
        typo="other_probes:MeanNrom",
        class_="other_probes:Unrelated",
        abstract="other_probes:Abstract",
        builtin="builtins:max",
        number="other_probes:NUMBER",
    )
    found = {probe.name: probe for probe in list_probes()}
    assert found["missing"].error == "broken_probes:Probe: ModuleNotFoundError: No module named 'no_such_package'"
    assert found["typo"].error.startswith("other_probes:MeanNrom: AttributeError: ")
    assert found["class-"].error == (
        "other_probes:Unrelated is class Unrelated; expected a subclass of probes.Probe, or a function"
    )
    assert found["number"].error == "other_probes:NUMBER is 3; expected a subclass of probes.Probe, or a function"
    assert found["abstract"].error == "other_probes:Abstract lacks compute and update; write what Probe leaves open"
    assert found["builtin"].error.startswith("builtins:max: ValueError: ")
    assert all(found[name].make is None for name in ("missing", "typo", "class-", "number"))
    assert get_probe("fine").at
    with pytest.raises(InputError, match=r"^probe 'missing' of broken-probes 1\.2 is broken: broken_probes:Probe: Mod"):
        get_probe("missing")


@pytest.mark.parametrize("source", ["import sys; sys.exit('go away')", "raise GeneratorExit", "def broken(:"])
def test_whatever_an_import_does_the_others_are_listed(install: Callable[..., None], source: str) -> None:
    install(source, package="broken-probes", broken="broken_probes:Probe")
    install(fine="other_probes:MeanNorm")
    found = {probe.name: probe for probe in list_probes()}
    assert found["broken"].make is None
    assert "\n" not in found["broken"].error
    assert found["fine"].error == ""


def test_two_of_one_name_are_both_broken(install: Callable[..., None]) -> None:
    install(mean_norm="other_probes:MeanNorm", CKA="other_probes:MeanNorm")
    install(package="more-probes", mean_norm="more_probes:MeanNorm")
    found = [probe for probe in list_probes() if probe.name in ("mean-norm", "CKA")]
    assert [probe.error for probe in found] == [
        "",
        "another probe is called 'CKA'; rename one",
        "another probe is called 'mean-norm'; rename one",
        "another probe is called 'mean-norm'; rename one",
    ]
    assert isinstance(get_probe("CKA"), probes.CKA)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NDim", "no probe 'NDim' (it has AttentionEntropy, CKA, "),
        ("NDim", "; did you mean 'NDims'?"),
        (
            "TopicAttention",
            "probe 'TopicAttention' needs topics, so its name alone is not enough; use it in a script",
        ),
        ("raises", "probe 'raises' of other-probes 1.2 cannot be made: RuntimeError: no light"),
        ("three", "'three' of other-probes 1.2 returns a int; expected a Probe"),
    ],
)
def test_what_cannot_be_made_is_refused(install: Callable[..., None], name: str, message: str) -> None:
    install(three="other_probes:no_probe", raises="other_probes:raises")
    with pytest.raises(InputError, match=re.escape(message)):
        get_probe(name)


def test_compute_before_any_data() -> None:
    """Refused with what to do first, by every probe."""
    for probe in ours().values():
        with pytest.raises(InputError, match=r"yet; give (the probe|it) to run\(\) or attach\(\)$"):
            probe.compute()
