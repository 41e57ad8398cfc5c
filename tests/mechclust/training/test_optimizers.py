"""Optimisers, schedules and checkpoints to choose from; models that compute only where the loss counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mechclust.models import ModelConfig, build_model
from mechclust.studies.topic_structure.config import TopicTransformerConfig
from mechclust.training import TrainConfig, train
from probes.engine.hooked_model import forward
from tasks import InputError, TopicDocuments
from tests.mechclust.training.test_train import Stopped, assert_identical, stop_at, weights_of

TASK = TopicDocuments(n_topics=3, words_per_topic=4, lengths=(5, 9), n_documents=40, selected_share=0.4)
CONFIG = TrainConfig(steps=10, batch_size=8, lr=0.02, save_every=3)
KINDS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


def built(**fields):
    return build_model(TopicTransformerConfig(**{"d_vocab": TASK.d_vocab, "init_std": 0.3, **fields}))


class TestOptimizers:
    @pytest.mark.parametrize(("schedule", "objective"), [("cosine", "cross-entropy"), ("constant", "squared")])
    @pytest.mark.parametrize("kind", list(KINDS))
    def test_equal_the_plain_loop(self, kind, schedule, objective):
        """Torch's own, unfused, on the loss of the whole forward pass."""
        task = replace(TASK, objective=objective)
        clip = 0.3 if objective == "cross-entropy" else 0.3 / TASK.d_vocab  # a mean over outputs
        config = replace(
            CONFIG, optimizer=kind, schedule=schedule, weight_decay=0.1, clip=clip, lr=0.05, betas=(0.8, 0.95)
        )
        ours, theirs = built(seed=2), built(seed=2)
        losses = train(ours, task, config)
        betas = {} if kind == "sgd" else {"betas": config.betas}
        optimizer = KINDS[kind](theirs.parameters(), lr=config.lr, weight_decay=0.1, foreach=False, **betas)
        decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        clipped = 0
        for step in range(10):
            batch = task.train_batch(step, 8)
            loss = task.loss(forward(theirs, batch), batch)
            optimizer.zero_grad()
            loss.backward()
            clipped += float(torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip)) > clip
            optimizer.step()
            if schedule == "cosine":
                decay.step()
            torch.testing.assert_close(losses[step], loss.detach(), atol=1e-5, rtol=1e-5)
        assert clipped
        expected = weights_of(theirs)
        for name, value in weights_of(ours).items():
            torch.testing.assert_close(value, expected[name], atol=2e-4, rtol=1e-3, msg=name)

    @pytest.mark.parametrize("kind", ["adam", "sgd"])
    def test_an_interrupted_run_ends_with_the_same_bits(self, kind, tmp_path):
        config = replace(CONFIG, optimizer=kind, schedule="constant", weight_decay=0.1, checkpoint_every=1)
        whole, again = built(), built()
        expected = train(whole, TASK, config)
        with pytest.raises(Stopped):
            train(built(), TASK, config, tmp_path, [stop_at(8)])
        steps = []
        losses = train(again, TASK, config, tmp_path, [lambda step, model: steps.append(step)])
        assert steps[0] == 6  # it went on from the saved state
        assert torch.equal(losses, expected)
        assert_identical(weights_of(again), weights_of(whole))

    def test_other_settings_in_the_same_folder_are_refused(self, tmp_path):
        train(built(), TASK, CONFIG, tmp_path)
        with pytest.raises(InputError, match="holds a run with training checkpoint_every = None, not 4"):
            train(built(), TASK, replace(CONFIG, checkpoint_every=4), tmp_path)
        other = ModelConfig(d_vocab=TASK.d_vocab, n_ctx=TASK.n_ctx, n_layers=1, d_model=8, n_heads=2)
        with pytest.raises(InputError, match="holds a run with model kind = 'topic-transformer', not 'transformer'"):
            train(build_model(other), TASK, CONFIG, tmp_path)


class TestLossWhereItCounts:
    def test_is_asked_for_where_model_and_task_offer_it(self, monkeypatch):
        calls = []
        model = built()
        at_loss = type(model).logits_at_loss
        monkeypatch.setattr(type(model), "logits_at_loss", lambda self, b: calls.append(len(b)) or at_loss(self, b))
        train(model, TASK, replace(CONFIG, steps=2))
        assert calls == [8, 8]

    def test_a_task_without_it_trains_the_topic_transformer(self, task):
        model = build_model(TopicTransformerConfig(d_vocab=task.d_vocab, init_std=0.3))
        losses = train(model, task, replace(CONFIG, steps=30))
        assert float(losses[-5:].mean()) < float(losses[:5].mean()) - 0.1

    @pytest.mark.parametrize("attention", ["causal", "bidirectional"])
    def test_a_transformer_without_it_trains_on_topics(self, attention):
        task = replace(TASK, lengths=(8, 8))
        shape = {"n_layers": 1, "d_model": 16, "n_heads": 2}
        model = build_model(ModelConfig(d_vocab=task.d_vocab, n_ctx=task.n_ctx, attention=attention, **shape))
        losses = train(model, task, replace(CONFIG, steps=20, lr=0.05))
        assert float(losses[-5:].mean()) < float(losses[:5].mean()) - 0.1


class TestFields:
    def test_a_constant_schedule_is_one(self):
        assert {TrainConfig(steps=7, lr=0.3, schedule="constant").lr_at(s) for s in range(8)} == {0.3}

    @pytest.mark.parametrize(
        ("steps", "every", "expected"),
        [(10, 4, [0, 4, 8, 10]), (8, 4, [0, 4, 8]), (3, 1, [0, 1, 2, 3]), (3, 9, [0, 3])],
    )
    def test_checkpoints_come_every_so_many_steps_and_at_the_end(self, steps, every, expected):
        config = TrainConfig(steps=steps, checkpoint_every=every)
        assert config.checkpoint_steps == expected
        calls = []
        train(built(), TASK, replace(config, batch_size=4), callbacks=[lambda step, model: calls.append(step)])
        assert calls == expected
