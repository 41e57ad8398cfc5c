"""Transformers of one shape at once: each as `train` trains it alone, in float64, where rounding hides nothing."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch

from mechclust.models import build_model, model_for
from mechclust.models.weights import get_weights, set_weights
from mechclust.training import LowRank, Member, TrainConfig, stack, train, train_ensemble
from tasks import InputError, InstructionFollowing, SkillSuite, SparseModularAddition, TopicDocuments
from tasks.skills import OPERATIONS
from tests.mechclust.training.test_ensemble import assert_identical, interrupt

SEEN = tuple(f"{operation}-{i % 2}" for i, operation in enumerate(OPERATIONS))
SUITE = SkillSuite(n_eval=4, n_arguments=2, length=4, seen=SEEN)
SHAPE = {"n_layers": 1, "d_model": 8, "n_heads": 2, "init_std": 0.3}
CONFIG = TrainConfig(steps=4, batch_size=8, lr=1e-2, save_every=2)  # clipped, annealed, AdamW
CLIP = 1.95  # below the gradient norm of some members alone
EXACT = {"atol": 1e-10, "rtol": 0}


@pytest.fixture
def double(monkeypatch):
    monkeypatch.setattr(stack, "build_model", lambda config: build_model(config).double())


def member(seed, skill=None, shape=SHAPE, **fields):
    task = replace(SUITE, seed=seed, skills=() if skill is None else (skill,))
    return Member(model_for(task, seed=seed, **shape), task, **fields)


MEMBERS = [member(0, "copy-0"), member(4)]
DEEPER = [replace(one, model=replace(one.model, n_layers=2)) for one in MEMBERS]


known = {}


def alone(one, config):
    """Losses and weights of ``train``; those of ``MEMBERS`` are kept."""
    if not any(one is each for each in MEMBERS):
        return trained_alone(one, config)
    if (one.model.seed, config) not in known:
        known[one.model.seed, config] = trained_alone(one, config)
    return known[one.model.seed, config]


def trained_alone(one, config):
    model = build_model(one.model).double()
    if one.weights is not None:
        set_weights(model, dict(one.weights))
    losses = train(model, one.task, config)
    return losses, {name: values.clone() for name, values in get_weights(model).items()}


def assert_equal_train(members, config, out, **options):
    found = train_ensemble(members, config, out, **options)
    for i, one in enumerate(members):
        losses, weights = alone(one, config)
        torch.testing.assert_close(found.losses()[:, i].float(), losses, atol=1e-6, rtol=0)
        end = found.at(config.steps)
        assert end.keys() == weights.keys()
        for name, values in weights.items():
            torch.testing.assert_close(end[name][i], values, **EXACT, msg=f"{name} of member {i}")
    return found


SETTINGS = {
    "clip": CONFIG,
    "clipped in some members": replace(CONFIG, clip=CLIP),
    "layer_decay": replace(CONFIG, layer_decay=0.5),
    "late drop": replace(CONFIG, schedule="late-drop"),
}


@pytest.mark.usefixtures("double")
class TestEqualsTrain:
    @pytest.mark.parametrize("settings", list(SETTINGS))
    def test_at_all_settings(self, tmp_path, settings):
        members = DEEPER if settings == "layer_decay" else MEMBERS
        assert_equal_train(members, SETTINGS[settings], tmp_path)

    def test_in_turn(self, tmp_path):
        assert assert_equal_train(MEMBERS, CONFIG, tmp_path, backend="loop").backend == "loop"

    def test_tied_embeddings(self, tmp_path, tl_major):
        if tl_major < 4:
            pytest.skip("needs TransformerLens 4")
        shape = {**SHAPE, "tied": True}
        assert_equal_train([member(0, "copy-0", shape), member(3, "type-1", shape)], CONFIG, tmp_path)

    def test_settings_do_something(self):
        """Else the comparisons say nothing."""
        name = "blocks.0.mlp.W_in"
        ends = [torch.cat([alone(one, config)[1][name] for one in MEMBERS]) for config in SETTINGS.values()]
        start = torch.cat([get_weights(build_model(one.model).double())[name] for one in MEMBERS])
        for i, end in enumerate(ends):
            assert float((end - start).abs().max()) > 1e-3
            assert all(float((end - other).abs().max()) > 1e-6 for other in ends[:i])

    def test_some_members_are_clipped_and_others_are_not(self):
        norms = []
        for one in MEMBERS:
            model = build_model(one.model)
            batch = one.task.train_batch(0, 8)
            one.task.loss(model(batch.tokens), batch).backward()
            norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)))
        assert min(norms) < CLIP < max(norms)

    def test_on_the_pretraining_stream_from_other_weights(self, tmp_path):
        weights = alone(MEMBERS[0], CONFIG)[1]
        members = [replace(one, task=replace(one.task, stream="pretraining"), weights=weights) for one in MEMBERS]
        found = assert_equal_train(members, CONFIG, tmp_path)
        assert all(torch.equal(found.at(0)[name][1], values) for name, values in weights.items())

    def test_bidirectional_models_of_padded_sequences(self, tmp_path):
        shape = {**SHAPE, "attention": "bidirectional"}
        lengths = [member(s, None, shape).task.train_batch(0, 8).lengths() for s in (0, 1)]
        assert all(len(set(each.tolist())) > 1 for each in lengths)  # there is padding
        members = [member(0, None, shape), member(1, None, shape)]
        try:
            alone(members[0], CONFIG)
        except InputError as error:  # TransformerLens 3.9
            pytest.skip(str(error))
        assert_equal_train(members, CONFIG, tmp_path / "both")
        assert_equal_train([member(0, "copy-0", shape), members[1]], CONFIG, tmp_path / "one")  # of one length

    def test_sequences_of_other_lengths_are_padded(self, tmp_path):
        task = replace(SUITE, length=5)
        members = [replace(m, model=replace(m.model, n_ctx=12)) for m in (MEMBERS[0], replace(MEMBERS[1], task=task))]
        assert_equal_train(members, CONFIG, tmp_path)

    def test_other_tasks(self, tmp_path):
        sums = SparseModularAddition(length=5, n_support=2, n_train=70, n_test=8)
        for i, task in enumerate((InstructionFollowing(n_tasks=4), sums)):
            members = [Member(model_for(replace(task, seed=s), seed=s, **SHAPE), replace(task, seed=s)) for s in (0, 1)]
            assert_equal_train(members, CONFIG, tmp_path / str(i))

    def test_examples_longer_than_the_context(self, tmp_path):
        short = replace(MEMBERS[1], model=replace(MEMBERS[1].model, n_ctx=SUITE.n_ctx - 1))
        with pytest.raises(InputError, match=f"examples of {SUITE.n_ctx} tokens, but the model's n_ctx is"):
            train_ensemble([short], CONFIG, tmp_path)

    def test_rates_of_a_block_are_not_those_of_a_later_one(self, tmp_path):
        eleven = member(0, shape={**SHAPE, "n_layers": 11}, rates={"blocks.1": 0.0})
        found = train_ensemble([eleven], CONFIG, tmp_path)
        stayed = {name for name, values in found.at(4).items() if torch.equal(values, found.at(0)[name])}
        assert {name for name in stayed if name.startswith("blocks.")} == {
            name for name in found.at(4) if name.startswith("blocks.1.")
        }


class TestFolder:
    def test_an_interruption_leaves_no_trace(self, tmp_path):
        options = {"members": MEMBERS, "config": CONFIG, "low_rank": LowRank(rank=2)}
        interrupt(tmp_path / "a", after=3, backend="auto", **options)
        for out in ("a", "b"):
            train_ensemble(**options, out=tmp_path / out)
        assert_identical(tmp_path / "a", tmp_path / "b")


@pytest.mark.usefixtures("double")
class TestLowRank:
    PLAN = LowRank(rank=2, alpha=6.0, parts=("attn.W_Q", "attn.W_V"))

    def test_changes_of_that_rank_to_those_matrices_alone(self, tmp_path):
        found = train_ensemble(MEMBERS, CONFIG, tmp_path, low_rank=self.PLAN)
        start, end = found.at(0), found.at(4)
        for i, one in enumerate(MEMBERS):
            assert all(torch.equal(start[k][i], v) for k, v in get_weights(build_model(one.model).double()).items())
        for name, values in end.items():
            change = values - start[name]
            if name.endswith((".attn.W_Q", ".attn.W_V")):
                matrices = change.permute(0, 1, 3, 2).reshape(len(MEMBERS), -1, 8)  # [member (head out) in]
                assert torch.linalg.matrix_rank(matrices, tol=1e-12).tolist() == [2, 2]
            else:
                assert not change.any()

    def test_begins_as_in_peft(self):
        """At 0, with one factor uniform up to one through the root of its inputs."""
        factors = LowRank(rank=50).factors([(0, {"blocks.0.attn.W_Q": torch.ones(12, 16)})])
        down, up = (factors[f"blocks.0.attn.W_Q.{name}"] for name in ("down", "up"))
        assert not up.any()
        assert float(down.min()) == pytest.approx(-0.25, abs=0.01)
        assert float(down.max()) == pytest.approx(0.25, abs=0.01)
        assert float(down.std()) == pytest.approx(0.25 / 3**0.5, rel=0.05)

    def test_equals_peft(self, tmp_path):
        """The same factors in peft's layers, trained by PyTorch alone."""
        peft = pytest.importorskip("peft")
        config, one = CONFIG, MEMBERS[1]
        model = build_model(one.model).double()
        attention = {name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
        targets = sorted(n for n in attention if ".attn." in n and (".q." in n or ".v." in n) and "blocks" not in n)
        if not targets:
            pytest.skip("this TransformerLens has no linear layers for peft to adapt")
        settings = peft.LoraConfig(r=2, lora_alpha=6, lora_dropout=0.0, target_modules=targets)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            peft.inject_adapter_in_model(settings, model)
        drawn = self.PLAN.factors([(one.model.seed, stack.trainable_weights(build_model(one.model).double()))])
        own = [p for name, p in model.named_parameters() if "lora_" in name]
        order = [f"blocks.0.attn.W_{k}{end}" for k in "QV" for end in (".down", ".up")]
        with torch.no_grad():
            for parameter, name in zip(own, order, strict=True):
                parameter.copy_(drawn[name][0])
        optimizer = torch.optim.AdamW(own, lr=config.lr, weight_decay=config.weight_decay, betas=config.betas)
        for step in range(config.steps):
            for group in optimizer.param_groups:
                group["lr"] = config.lr_at(step)
            batch = one.task.train_batch(step, config.batch_size)
            optimizer.zero_grad()
            one.task.loss(model(batch.tokens), batch).backward()
            torch.nn.utils.clip_grad_norm_(own, config.clip)
            optimizer.step()
        batch = one.task.train_batch(99, 8)
        found = train_ensemble([one, MEMBERS[0]], config, tmp_path, low_rank=self.PLAN)
        merged = build_model(one.model).double()
        set_weights(merged, {name: values[0] for name, values in found.at(4).items()})
        torch.testing.assert_close(merged(batch.tokens), model(batch.tokens), **EXACT)
        assert float((merged(batch.tokens) - build_model(one.model).double()(batch.tokens)).abs().max()) > 1e-3

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"rank": 0}, "rank is 0; expected at least 1"),
            ({"alpha": 0.0}, "alpha is 0.0; expected above 0"),
            ({"parts": ("mlp.W_in",)}, "parts is ('mlp.W_in',); expected some of attn.W_Q, attn.W_K, attn.W_V"),
        ],
    )
    def test_refusals(self, fields, message):
        with pytest.raises(InputError) as refused:
            LowRank(**fields)
        assert str(refused.value) == message

    @pytest.mark.parametrize("fields", [{"freeze": ("embed",)}, {"layer_decay": 0.5}], ids=str)
    def test_nothing_else_is_trained(self, tmp_path, fields):
        with pytest.raises(InputError) as refused:
            train_ensemble(MEMBERS, replace(CONFIG, **fields), tmp_path, low_rank=self.PLAN)
        assert str(refused.value) == "low_rank trains nothing else; leave out freeze and layer_decay"

    def test_another_rank_in_the_same_folder(self, tmp_path):
        train_ensemble(MEMBERS, CONFIG, tmp_path, low_rank=self.PLAN)
        with pytest.raises(InputError, match="holds a run with training low_rank = "):
            train_ensemble(MEMBERS, CONFIG, tmp_path, low_rank=replace(self.PLAN, rank=3))


class TestRefusals:
    def test_batches_of_other_shapes(self, tmp_path):
        sums = SparseModularAddition(length=5, n_support=2, n_train=70, n_test=8)
        with pytest.raises(InputError) as refused:
            train_ensemble([MEMBERS[0], replace(MEMBERS[1], task=sums)], CONFIG, tmp_path)
        assert str(refused.value).startswith("at step 0 member 1 trains on 8 sequences of 5 tokens with ")

    def test_another_loss(self, tmp_path):
        """Each member would be trained with the first one's."""
        topics = TopicDocuments(n_topics=3, words_per_topic=4, lengths=(5, 9), n_documents=40, selected_share=0.4)
        squared = replace(topics, objective="squared")
        members = [Member(model_for(topics, seed=s, **SHAPE), task) for s, task in enumerate((topics, topics, squared))]
        with pytest.raises(InputError) as refused:
            train_ensemble(members, replace(CONFIG, steps=2), tmp_path / "run", backend="loop")
        text = "member 2 has another loss than member 0; train each loss in an ensemble of its own"
        assert str(refused.value) == text
        assert not (tmp_path / "run").exists()
        train_ensemble(members[:2], replace(CONFIG, steps=2), tmp_path / "run", backend="loop")

    def test_a_loss_that_cannot_be_mapped(self, tmp_path):
        """It picks out positions, as many as there are."""
        topics = TopicDocuments(n_topics=3, words_per_topic=4, lengths=(5, 9), n_documents=40, selected_share=0.4)
        members = [Member(model_for(topics, seed=s, **SHAPE), topics) for s in (0, 1)]
        config = replace(CONFIG, steps=2)
        with pytest.raises(InputError, match=r"^torch.func cannot map this training .*; choose backend 'loop'$"):
            train_ensemble(members, config, tmp_path / "a", backend="vmap")
        with pytest.warns(UserWarning, match="members are trained in turn"):
            assert train_ensemble(members, config, tmp_path / "b").backend == "loop"
