"""The clustering-head study's arms are the specification's, and what cannot run is refused."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from mechclust.studies import get_study, run_study
from mechclust.studies.clustering_heads.ablations import Ablations
from mechclust.studies.clustering_heads.config import (
    ABLATIONS,
    ClusteringHeadsConfig,
    Curriculum,
    EnsembleJob,
    FullBatch,
    PoolingTransformerConfig,
    Starts,
    arms,
    jobs,
    member_of,
    training_of,
)
from tasks import InputError, SparseModularAddition

PAPER = ClusteringHeadsConfig()


class TestArms:
    def test_are_those_of_the_specification(self):
        known = arms(PAPER)
        assert {"base", "larger eps", "slower feed-forward", "late smaller rate", "scratch"} < set(known)
        count = {
            kind: sum(name.startswith(f"{kind} ") for name in known)
            for kind in ("lr", "discount", "batch", "width", "dropout")
        }
        assert count == {"lr": 20, "discount": 20, "batch": 12, "width": 20, "dropout": 10}
        ablated = {name: len(arm.seeds) for name, arm in known.items() if name.split(" ")[0] in ABLATIONS}
        assert {name for name, seeds in ablated.items() if seeds != 100} == {
            *(f"batch {size}" for size in (1, 2, 4)),
            *(f"width {width}" for width in PAPER.ablations.widths if width > 127),
            *(f"dropout {k / 10}" for k in range(1, 10)),
        }
        assert set(ablated.values()) == {100, 25}
        assert known["start ideal positions"].ideal == "positions"
        assert known["bias 0"].training["freeze"] == ("blocks.0.mlp.b_in", "blocks.0.mlp.b_out")
        assert (known["second stage"].ideal, known["second stage"].measure) == ("head", "losses")
        assert known["base"].seeds == tuple(range(300, 400))
        assert (known["base"].p, known["scratch"].p) == (2, 3)

    def test_every_network_is_in_one_job(self):
        known = arms(PAPER)
        found = [(arm, seed) for job in jobs(PAPER) for arm in job.arms if arm in known for seed in job.seeds]
        assert sorted(found) == sorted((arm.name, seed) for arm in known.values() for seed in arm.seeds)
        groups = [job.seeds for job in jobs(PAPER) if job.arms == ("curriculum",)]
        assert groups == [tuple(range(start, start + 10)) for start in range(300, 340, 10)]
        names = [job.name for job in jobs(PAPER)]
        assert len(set(names)) == len(names)

    def test_the_base_comes_first_and_arms_of_one_shape_train_together(self):
        every = jobs(PAPER)
        assert every[0] == EnsembleJob(("base",), tuple(range(300, 350)))
        assert len(next(job for job in every if job.arms[0].startswith("lr")).arms) == 20
        assert {len(job.seeds) for job in every if job.arms[0].split(" ")[0] in ABLATIONS} == {25}
        narrow = next(job for job in every if job.arms[0] == "width 10")
        assert len(narrow.arms) == 8  # 10 to 127 train together

    def test_members_differ_as_their_arms_say(self):
        known = arms(PAPER)
        base = member_of(PAPER, known["base"], 203, None)
        assert base.model == PoolingTransformerConfig(seed=203)
        assert base.task == SparseModularAddition(seed=203)
        assert member_of(PAPER, known["lr 0.0001"], 200, None).rate == pytest.approx(1e-4 / 3e-3)
        assert member_of(PAPER, known["discount 0.01"], 200, None).rates == {"blocks.0.mlp": 0.01}
        assert member_of(PAPER, known["width 10"], 200, None).model.d_mlp == 10
        assert member_of(PAPER, known["dropout 0.3"], 200, None).model.dropout == 0.3
        assert member_of(PAPER, known["larger eps"], 200, None).model.eps_mlp == 0.1
        assert member_of(PAPER, known["scratch"], 200, None).task == SparseModularAddition(p=3, seed=200)

    def test_the_full_batch_is_all_sequences(self):
        arm = arms(PAPER)["full batch"]
        training = training_of(PAPER, arm)
        assert (training.batch_size, training.steps, training.lr, arm.every) == (2048, 10_000, 3e-3, 10)
        assert arm.seeds == tuple(range(300, 325))
        curved = arms(PAPER)["plateaus"]
        assert training_of(PAPER, curved) == training
        assert curved.seeds == tuple(range(400, 425))
        assert training_of(PAPER, arms(PAPER)["base"]).steps == 64_000

    def test_every_seed_is_mitigated_and_no_confirmatory_seed_was_seen(self):
        known = arms(PAPER)
        for name in ("larger eps", "slower feed-forward", "late smaller rate"):
            assert known[name].seeds == PAPER.seeds
        assert not set(PAPER.seeds) & {*range(40), *range(200, 300)}

    def test_the_paper_has_no_ablations_which_have_a_preset_of_their_own(self):
        study = get_study("clustering-heads")
        assert not any(
            job.arms[0].startswith(("lr", "width", "batch", "discount")) for job in jobs(study.preset("paper"))
        )
        ablations = jobs(study.preset("ablations"))
        assert len({arm for job in ablations for arm in job.arms if arm != "base"}) == 83
        assert len(ablations) == 1 + 24 + 4 * 14  # the base, 24 costly values, and 14 groups of values of 100 seeds

    def test_a_wide_network_trains_without_hessians(self):
        assert ClusteringHeadsConfig(d_mlp=4096, full_batch=FullBatch(curvature_seeds=())).d_mlp == 4096

    def test_quick_is_the_base_alone(self):
        quick = get_study("clustering-heads").preset("quick")
        assert {job.arms for job in jobs(quick)} == {("base",)}

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"costly": 0}, "ablations.costly is 0; expected at least 1"),
            ({"group": 0}, "ablations.group is 0; expected at least 1"),
            ({"batch_sizes": (2, 0)}, "ablations.batch_sizes[1] is 0; expected at least 1"),
            ({"lrs": (0.1, -1.0)}, "ablations.lrs[1] is -1.0; expected above 0"),
            ({"lrs": (float("nan"),)}, "ablations.lrs[0] is nan; expected a finite number"),
            ({"widths": (0,)}, "ablations.widths[0] is 0; expected at least 1"),
            ({"discounts": (float("inf"),)}, "ablations.discounts[0] is inf; expected a finite number"),
            ({"discounts": (0.0, 0.1)}, "ablations.discounts[0] is 0.0; expected above 0"),
            ({"dropouts": (1.0,)}, "ablations.dropouts[0] is 1.0; expected below 1"),
        ],
    )
    def test_what_ablations_are_refused(self, fields, message):
        with pytest.raises(InputError, match=re.escape(message)):
            Ablations(**fields)

    def test_a_device_that_is_not_here_is_refused_before_training(self, tmp_path):
        with pytest.raises(InputError, match="no device 'nowhere'; expected cpu"):
            run_study(get_study("clustering-heads"), replace(PAPER, device="nowhere"), tmp_path / "run")
        assert not (tmp_path / "run").exists()
        assert jobs(replace(PAPER, device="cuda"))  # what another machine trained can be reported on here

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"seeds": ()}, r"seeds is empty; expected at least one seed, such as --seeds 0"),
            ({"epochs": 0}, "epochs is 0; expected at least 1"),
            ({"group": 0}, "group is 0; expected at least 1"),
            ({"task": SparseModularAddition(seed=1)}, "task.seed is set by each network, from seeds; leave it out"),
            ({"full_batch": FullBatch(every=0)}, "full_batch.every is 0; expected at least 1"),
            ({"full_batch": FullBatch(curvature=0)}, "full_batch.curvature is 0; expected at least 1"),
            ({"curriculum": Curriculum(first_steps=0)}, "curriculum.first_steps is 0; expected at least 1"),
            ({"mitigations": -1}, "mitigations is -1; expected at least 0"),
            ({"full_batch": FullBatch(seeds=(1, 1))}, "full_batch.seeds has 1 twice; give it once"),
            ({"full_batch": FullBatch(curvature_seeds=(1, 1))}, "full_batch.curvature_seeds has 1 twice; give it once"),
            ({"curriculum": Curriculum(seeds=(-2,))}, r"curriculum.seeds\[0\] is -2; expected at least 0"),
            ({"curriculum": Curriculum(lr=-1.0)}, "^curriculum.lr is -1.0; expected above 0"),
            ({"curriculum": Curriculum(d_model=0)}, "^curriculum.d_model is 0; expected at least 1"),
            ({"curriculum": Curriculum(group=0)}, "curriculum.group is 0; expected at least 1"),
            ({"lr": 0.0}, "^lr is 0.0; expected above 0"),
            ({"eps": 1e-5}, "^eps is 1e-05; expected above 1e-05"),
            ({"eps": float("nan")}, "eps is nan; expected a finite number"),
            ({"starts": Starts(beta=float("inf"))}, "starts.beta is inf; expected a finite number"),
            ({"starts": Starts(beta=0.0)}, "starts.beta is 0.0; expected above 0"),
            ({"discount": -1.0}, "discount is -1.0; expected at least 0"),
            ({"discount": 1.0}, "discount is 1.0; expected below 1"),
            ({"curriculum": Curriculum(p=2)}, "curriculum.p is 2; expected at least 3"),
            ({"batch_size": 0}, "batch_size is 0; expected at least 1"),
            (
                {"task": SparseModularAddition(n_train=1000)},
                "^ablations.batch_sizes has 2048; expected at most the 1000 training sequences",
            ),
            (
                {"task": SparseModularAddition(n_train=1000), "batch_size": 1024, "ablations": Ablations(seeds=())},
                "^batch_size is 1024; expected 1 to the 1000 training sequences",
            ),
            (
                {"ablations": Ablations(lrs=(0.1, 0.1000000001))},
                "the ablation 'lr 0.1' is given twice; expected values",
            ),
            (
                {"task": SparseModularAddition(n_embeddings=2)},
                r"task.n_embeddings is 2; expected at least 3, the digits that transfer continues with \(or transfer",
            ),
            (
                {"task": SparseModularAddition(p=10, length=24, n_support=20, n_embeddings=11)},
                "task has 20 digits below 10 in its support, too many to number their multisets; choose a smaller",
            ),
            (
                {"d_mlp": 4096},
                r"full_batch.curvature_seeds need the Hessian of 20,518 weights; expected at most 5,000",
            ),
            (
                {"curriculum": Curriculum(first_steps=9_999)},
                r"curriculum.first_steps is 9999; expected at least 2 fewer than its steps \(10000\)",
            ),
        ],
    )
    def test_what_is_refused(self, fields, message):
        with pytest.raises(InputError, match=message):
            ClusteringHeadsConfig(**fields)
