"""The sandbox of any model with hooks: what is recorded, in which planes, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from mechclust import ModelConfig, TrainConfig, build_model, train
from mechclust.models import load_pretrained
from mechclust.models.weights import get_weights, set_weights
from mechclust.sandbox import Curves, SandboxRecorder, record_sandbox, sandbox_figure, sandbox_film, sandbox_page
from mechclust.sandbox.drawn_planes import fit_drawn_plane
from mechclust.sandbox.examples import Examples
from mechclust.sandbox.legend import legend_of
from probes.engine.readout import last_token, mean, token_at
from tasks import Batch, InputError, SparseModularAddition

TASK = SparseModularAddition(p=2, length=5, n_support=2, n_embeddings=3, n_train=64, n_test=64)
CONFIG = ModelConfig(d_vocab=3, n_ctx=5, n_layers=2, d_model=16, n_heads=2, init_std=0.3)


class Checkpoints:
    """A model trained for twelve steps, as it was at each even one."""

    def __init__(self):
        self.kept = {}
        self.model = build_model(CONFIG)
        settings = TrainConfig(steps=12, batch_size=32, lr=0.01, checkpoint_every=2)
        train(self.model, TASK, settings, callbacks=[self._keep])

    def _keep(self, step, model):
        self.kept[step] = {name: values.clone() for name, values in get_weights(model).items()}

    def at(self, step):
        set_weights(self.model, self.kept[step])
        return self.model

    def __iter__(self):
        return ((step, self.at(step)) for step in self.kept)


@pytest.fixture(scope="module")
def checkpoints():
    return Checkpoints()


@pytest.fixture(scope="module")
def batch():
    return next(TASK.batches("test"))


@pytest.fixture(scope="module")
def run(checkpoints, batch):
    return record_sandbox(checkpoints, batch, label="sum", vocab=TASK.vocab, max_sequences=40)


def activations(model, tokens, names):
    kept = {}
    hooks = [(name, lambda x, hook, name=name: kept.update({name: x.detach().clone()})) for name in names]
    with torch.no_grad(), model.hooks(fwd_hooks=hooks):
        logits = model(tokens)
    return kept, logits


def followed(run):
    return torch.from_numpy(run.sequences.tokens)


def all_points(run, checkpoints, site, take):
    found = []
    for step in run.epochs:
        kept, _ = activations(checkpoints.at(step), followed(run), [site])
        found.append(take(kept[site]).numpy())
    return np.stack(found).astype(np.float64)


def test_the_panels_are_the_layers_and_heads_of_the_model(run):
    heads = [f"{what}_L{block}H{h}" for block in (0, 1) for h in (0, 1) for what in ("attention", "output")]
    assert list(run.panels) == [
        "token_embeddings", "position_embeddings", *heads[:4], "residual_1", *heads[4:], "residual_2",
        "probabilities", "loss", "accuracy",
    ]  # fmt: skip
    assert repr(run) == "SandboxRun('2 layers, 2 heads, d_model 16', steps 0-12, 7 of 7 steps kept)"
    blocks = [block for block in ("block 0", "block 1") for _ in range(5)]
    assert [panel.group for panel in run.panels.values()] == [
        *(["embeddings"] * 2), *blocks, "answers", "curves", "curves",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("panel", "site", "take"),
    [
        ("residual_1", "blocks.0.hook_resid_post", lambda x: x[:, -1]),
        ("residual_2", "blocks.1.hook_resid_post", lambda x: x[:, -1]),
        ("output_L1H0", "blocks.1.attn.hook_z", lambda x: x[:, -1, 0]),
        ("output_L0H1", "blocks.0.attn.hook_z", lambda x: x[:, -1, 1]),
    ],
)
def test_points_lie_in_the_principal_plane_of_all_frames(run, checkpoints, panel, site, take):
    points = all_points(run, checkpoints, site, take)
    fitted = PCA(2, svd_solver="full").fit(points.reshape(-1, points.shape[-1]))
    expected = fitted.transform(points.reshape(-1, points.shape[-1])).reshape(*points.shape[:2], 2)
    found = run.values[panel]
    signs = np.sign((found * expected).sum(axis=(0, 1)))
    np.testing.assert_allclose(found, expected * signs, atol=1e-4 * np.abs(expected).max())
    apart = points - points.mean(axis=1, keepdims=True)
    inside = expected - expected.mean(axis=1, keepdims=True)
    shares = (inside**2).sum(axis=(1, 2)) / (apart**2).sum(axis=(1, 2))
    np.testing.assert_allclose(run.variance[panel], shares, atol=1e-4)
    assert (run.variance[panel] <= 1 + 1e-9).all()


def test_attention_embeddings_and_answers_are_those_of_the_model(run, checkpoints):
    model, tokens = checkpoints.at(8), followed(run)
    sites = ["blocks.1.attn.hook_pattern", "hook_embed", "hook_pos_embed"]
    kept, logits = activations(model, tokens, sites)
    frame = run.epochs.index(8)
    np.testing.assert_allclose(run.values["attention_L1H1"][frame], kept[sites[0]][:, 1, -1], atol=1e-5)
    p = logits[:, -1].softmax(-1).numpy()
    np.testing.assert_allclose(run.values["probabilities"][frame][:, :2], p[:, :2], atol=1e-5)
    np.testing.assert_allclose(run.values["probabilities"][frame][:, 2], p[:, 2], atol=1e-5)
    answers = tokens[:, :2].sum(1) % 2
    np.testing.assert_array_equal(run.sequences.answers, answers)
    assert run.curves.panels["accuracy"]["sequences followed"][frame] == pytest.approx(
        (p.argmax(-1) == answers.numpy()).mean()
    )
    losses = -np.log(p[np.arange(len(p)), answers])
    assert run.curves.panels["loss"]["sequences followed"][frame] == pytest.approx(losses.mean(), rel=1e-4)
    assert run.values["token_embeddings"].shape == (7, 2, 2)  # the third token stands in no sequence
    apart = np.linalg.norm(np.diff(run.values["token_embeddings"][frame], axis=0))
    expected = float((model.W_E[0] - model.W_E[1]).norm().detach())
    assert expected * 0.5 < apart <= expected * 1.001  # the plane holds most of what two points differ in
    assert run.values["position_embeddings"].shape == (7, 5, 2)


def test_the_likeliest_token_is_said_though_all_others_together_are_likelier():
    batch = Batch(torch.tensor([[0, 1], [1, 0]]), labels={"answer": torch.tensor([3, 5])})
    examples = Examples(batch, None, "answer", last_token(), None, None, 10)
    p = torch.full((2, 8), 0.1)
    p[0, 3] = p[1, 7] = 0.3
    scores = examples.scores(p.log())
    assert scores["probabilities"].argmax(axis=1).tolist() == [2, 2]  # of the others together
    assert scores["predicted"].tolist() == [0, 2]
    assert scores["accuracy"] == 0.5


def test_classes_are_of_sequences_also_where_as_many_are_followed_as_there_are_positions(checkpoints, batch):
    followed = {"label": "sum", "heads": [], "max_sequences": CONFIG.n_ctx}
    classes, last = (record_sandbox(checkpoints, batch, planes=planes, **followed) for planes in ("classes", "last"))
    assert len(classes.sequences.clusters) == CONFIG.n_ctx
    np.testing.assert_array_equal(*(run.values["position_embeddings"] for run in (classes, last)))
    assert not np.array_equal(*(run.values["residual_2"] for run in (classes, last)))


def test_the_plane_of_two_classes_is_completed_along_the_first_axis():
    generator = np.random.default_rng(0)
    points, classes = generator.normal(size=(1, 8, 5)).astype(np.float32), np.arange(8) % 2
    between = points[0, classes == 1].mean(axis=0) - points[0, classes == 0].mean(axis=0)
    directions = fit_drawn_plane(points, "classes", classes).directions
    expected = np.linalg.qr(np.stack([between, np.eye(5)[0]]).T)[0].T
    np.testing.assert_allclose(np.abs(directions), np.abs(expected), atol=1e-5)


def test_planes_of_ones_own(checkpoints, batch):
    own = np.zeros((2, 16))
    own[0, 3], own[1, [3, 5]] = 2, 1
    planes = {"residual_2": own, "residual_1": "classes"}
    run = record_sandbox(checkpoints, batch, label="sum", heads=[], planes=planes, max_sequences=12)
    points = all_points(run, checkpoints, "blocks.1.hook_resid_post", lambda x: x[:, -1])
    np.testing.assert_allclose(run.values["residual_2"], points[..., [3, 5]], atol=1e-5)  # made orthonormal
    points = all_points(run, checkpoints, "blocks.0.hook_resid_post", lambda x: x[:, -1])[-1]
    clusters = run.sequences.clusters
    means = np.stack([points[clusters == c].mean(axis=0) for c in range(3)])
    flat = np.stack([run.values["residual_1"][-1][clusters == c].mean(axis=0) for c in range(3)])
    for i, j in ((0, 1), (0, 2), (1, 2)):  # three means lie in their plane, at their distances
        assert np.linalg.norm(flat[i] - flat[j]) == pytest.approx(np.linalg.norm(means[i] - means[j]), rel=1e-3)


def test_layers_heads_and_sites_are_chosen(checkpoints, batch):
    chosen = {"layers": [0, 2], "heads": ["L1H1"], "sites": ["blocks.0.hook_mlp_out"], "max_sequences": 8}
    run = record_sandbox(iter(list(checkpoints)[:2]), batch, title="mine", unit="epoch", **chosen)
    names = {"residual_0", "residual_2", "attention_L1H1", "output_L1H1", "blocks.0.hook_mlp_out"}
    others = {"token_embeddings", "position_embeddings", "probabilities", "loss", "accuracy"}
    assert set(run.panels) == names | others
    assert repr(run) == "SandboxRun('mine', epochs 0-2, 2 of 2 epochs kept)"
    groups = {"residual_0": "embeddings", "blocks.0.hook_mlp_out": "sites"}
    assert {name: run.panels[name].group for name in groups} == groups


def test_of_deep_models_with_many_heads_and_tokens_few_places_are_drawn():
    def panels(n_layers, n_heads, n_tokens):
        model = build_model(ModelConfig(n_tokens, n_tokens, n_layers=n_layers, d_model=8, n_heads=n_heads))
        examples = Batch(torch.stack([torch.arange(n_tokens), torch.arange(n_tokens).flip(0)]))
        return list(record_sandbox([(0, model), (1, model)], examples).panels)

    shown = panels(n_layers=6, n_heads=1, n_tokens=100)
    assert "token_embeddings" in shown
    assert [name for name in shown if "residual" in name] == [f"residual_{layer}" for layer in range(1, 7)]
    assert len([name for name in panels(2, 4, 2) if "output" in name]) == 8
    shown = panels(n_layers=9, n_heads=1, n_tokens=101)
    assert "token_embeddings" not in shown
    assert [name for name in shown if "residual" in name] == [f"residual_{i}" for i in (1, 3, 4, 6, 7, 9)]
    assert not [name for name in shown if "output" in name]


def test_models_without_position_embeddings_are_drawn_without(encoder_checkpoint):
    model = load_pretrained(encoder_checkpoint("llama", "ForCausalLM"))
    run = record_sandbox([(0, model), (1, model)], Batch(torch.tensor([[2, 9, 4], [5, 12, 8]])), heads=[])
    assert list(run.panels) == ["token_embeddings", "residual_1", "residual_2"]


def test_the_first_examples_of_each_class_are_followed():
    batch = Batch(torch.arange(60)[:, None] % 8, labels={"sum": torch.arange(60) % 3})
    examples = Examples(batch, "sum", None, last_token(), None, None, 20)
    assert examples.batch.index.tolist() == [*range(0, 21, 3), *range(1, 21, 3), *range(2, 18, 3)]
    assert examples.followed.notes[:2] == ["example 0", "example 3"]


def test_sequences_are_taken_evenly_and_stand_by_cluster(run):
    assert (np.diff(run.sequences.clusters) >= 0).all()
    assert np.bincount(run.sequences.clusters).min() >= 40 // 3 - 1
    assert run.sequences.cluster_names == ["sum 0", "sum 1", "sum 2"]
    assert run.sequences.cluster_answers == [0, 1, 0]
    assert [run.answers[a] for a in range(3)] == ["0", "1", "others"]


def test_the_recorder_is_a_callback_and_leaves_the_model_alone(batch):
    recorder = SandboxRecorder(batch, heads=["L0H0"], max_sequences=8)
    weights = []
    for callbacks in ([], [recorder]):
        model = build_model(CONFIG)
        train(model, TASK, TrainConfig(steps=3, batch_size=8, checkpoint_every=1), callbacks=callbacks)
        assert all(not module._forward_hooks for module in model.modules())
        weights.append(get_weights(model))
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    loss = {"loss": {"train": [3, 2, 1, 0.5]}}
    curves = Curves([0, 1, 2, 3], loss, spikes=[(2, "why")], small_spikes=[(3, "small")])
    run = recorder.run(curves=curves, max_frames=3)
    assert (run.epochs[0], run.epochs[-1], len(run.epochs)) == (0, 3, 3)
    assert "accuracy" not in run.panels
    with pytest.raises(
        InputError, match=r"^no panel of curves 'los' \(there are loss, accuracy, .*did you mean 'loss'"
    ):
        recorder.run(curves=Curves([0, 1], {"los": {"train": [3, 2]}}))
    assert [key.text for key in legend_of(run, list(run.panels.values()))] == [
        "answer 0", "answer 1", "loss spike", "rise of the loss below the floor of spikes",
    ]  # fmt: skip


def test_clusters_with_several_answers_have_colours_of_their_own(checkpoints, batch):
    labels = {**batch.labels, "positive": (batch.labels["sum"] > 0).long()}  # answers: 0, and 0 or 1
    run = record_sandbox(checkpoints, Batch(batch.tokens, targets=batch.targets, labels=labels), label="positive",
                         label_names=["no", "yes"], heads=[], max_sequences=16)  # fmt: skip
    assert run.sequences.cluster_answers is None
    keys = legend_of(run, list(run.panels.values()))
    assert [key.text for key in keys] == ["no", "yes"]
    assert len({color for key in keys for color in key.colors}) == 2


def test_long_names_are_cut(checkpoints, batch):
    names = {"vocab": lambda token: f"{token}{30 * 'x'}", "label": "sum", "label_names": ["y" * 30] * 3}
    run = record_sandbox(checkpoints, batch, **names, heads=[], max_sequences=8)
    assert run.sequences.token_names[0] == f"0{23 * 'x'}"
    assert run.sequences.cluster_names == ["y" * 24] * 3


def test_without_answers_there_is_no_loss(checkpoints, batch):
    run = record_sandbox(checkpoints, Batch(batch.tokens), heads=[])
    assert "probabilities" not in run.values
    assert {"loss", "accuracy", "probabilities"}.isdisjoint(run.panels)
    assert (run.answers, run.sequences.cluster_names) == ([], ["sequences"])
    sandbox_figure(run, 0).draw_without_rendering()
    partly = torch.arange(len(batch))[:, None].expand_as(batch.tokens) > 0  # of the first the answer is not learned
    targets = {"targets": torch.zeros_like(batch.tokens), "loss_mask": partly}
    assert Examples(Batch(batch.tokens, **targets), None, None, last_token(), None, None, 9).answers is None


def test_a_loss_that_hardly_falls_has_plain_numbers_on_its_axis(run):
    figure = sandbox_figure(run, 12, ["loss"])
    figure.canvas.draw()
    axis = figure.axes[0].yaxis
    low, high = axis.get_view_interval()
    assert high < 10 * low
    labels = [label.get_text() for minor in (False, True) for label in axis.get_ticklabels(minor=minor)]
    assert any(labels)
    assert all(float(label) > 0 for label in labels if label)


def test_batches_of_several_widths_are_padded(checkpoints):
    short, long = torch.tensor([[0, 1, 1]]), torch.tensor([[1, 0, 1, 1, 0]])
    batches = [Batch(short, index=torch.tensor([1])), Batch(long, index=torch.tensor([0]))]
    run = record_sandbox(checkpoints, batches, heads=["L0H0"])
    assert run.sequences.tokens.tolist() == [[0, 1, 1, -1, -1], [1, 0, 1, 1, 0]]
    kept, _ = activations(checkpoints.at(12), short, ["blocks.0.attn.hook_pattern"])
    expected = [*kept["blocks.0.attn.hook_pattern"][0, 0, -1].tolist(), 0, 0]
    np.testing.assert_allclose(run.values["attention_L0H0"][-1][0], expected, atol=1e-5)


def test_positions_are_those_of_the_tokens_whichever_side_is_padded(checkpoints):
    mask = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]], dtype=torch.bool)
    examples = Batch(torch.ones(2, 5, dtype=torch.int64), mask)
    run = record_sandbox(checkpoints, examples, heads=[], planes={"position_embeddings": np.eye(2, 16)})
    expected = checkpoints.at(12).W_pos[:4, :2].detach()
    np.testing.assert_allclose(run.values["position_embeddings"][-1], expected, atol=1e-6)


def test_heads_of_one_dimension_are_drawn_on_a_line():
    models = [build_model(ModelConfig(3, 5, n_layers=1, d_model=4, n_heads=4, seed=seed)) for seed in (0, 1)]
    run = record_sandbox(enumerate(models), Batch(torch.tensor([[0, 1, 2], [2, 1, 0]])))
    z, _ = activations(models[1], torch.tensor([[0, 1, 2], [2, 1, 0]]), ["blocks.0.attn.hook_z"])
    np.testing.assert_allclose(run.values["output_L0H2"][1, :, 0], z["blocks.0.attn.hook_z"][:, -1, 2, 0], atol=1e-6)
    assert (run.values["output_L0H2"][..., 1] == 0).all()


def test_figure_film_and_page(run, tmp_path):
    figure = sandbox_figure(run, 12)
    figure.draw_without_rendering()
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["answer 0", "answer 1"]
    share = run.variance["residual_1"][-1]
    axis = figure.axes[list(run.panels).index("residual_1")]
    assert f"{share:.0%} of variance" in [text.get_text() for text in axis.texts]
    film = sandbox_film(run, tmp_path / "run.gif", panels=["residual_2"], dpi=30, epochs=run.epochs[:2])
    assert film.read_bytes()[:4] == b"GIF8"
    assert sandbox_page(run, tmp_path / "run.html").stat().st_size < 7e6


class TestRefusals:
    @pytest.mark.parametrize(
        ("what", "text"),
        [
            ({"heads": ["L2H0"]}, r"^no head 'L2H0' in this model \(it has L0H0 to L1H1\)$"),
            ({"heads": ["L0H2"]}, r"^no head 'L0H2' in this model \(it has L0H0 to L1H1\)$"),
            ({"heads": [], "layers": [7]}, r"^no layer 7 "),
            ({"sites": ["blocks.0.hook_mlp_outt"]}, r"^no hook point 'blocks\.0\.hook_mlp_outt' in this model"),
            ({"label": "topic"}, r"^no label 'topic' in this batch"),
            ({"label": "sum", "label_names": ["even"]}, r"^label_names has 1 names, but there is a value 1; give"),
            ({"vocab": ["0"]}, r"^vocab has 1 names, but there is a value 1; give a name for each, from 0$"),
            ({"answer": "multiset", "max_sequences": 9}, r"^the right answers go from 0 to 3, but the model gives 3 "),
            ({"max_sequences": 1}, r"^max_sequences is 1; expected at least 2$"),
            ({"max_sequences": 2.5}, r"^max_sequences is 2.5; expected an integer of at least 2$"),
            ({"planes": "umap"}, r"^plane is 'umap'; expected 'pca', 'last', 'classes', or two directions \[2 \d+\]$"),
            ({"planes": {"residual_9": "pca"}}, r"^planes has 'residual_9', which is not drawn; expected some of "),
            ({"planes": {"residual_1": np.ones((2, 3))}}, r"directions have shape \(2, 3\); expected \(2, 16\), two"),
            ({"planes": {"residual_1": np.ones((2, 16))}}, r"^the plane's two directions lie along one line; give two"),
            (
                {"readout": mean()},
                r"^readout mean\(\) reads no one position; choose last_token\(\), first_token\(\)",
            ),
            ({"readout": token_at("x")}, r"^no position 'x' in this batch"),
        ],
    )
    def test_what_is_not_there(self, checkpoints, batch, what, text):
        with pytest.raises(InputError, match=text):
            record_sandbox(checkpoints, batch, **what)

    def test_too_little_to_show(self, checkpoints, batch):
        with pytest.raises(InputError, match=r"^there is 1 epoch to show; a sandbox needs at least 2"):
            record_sandbox([(0, checkpoints.at(0))], batch)
        with pytest.raises(InputError, match=r"^there is 1 example to follow; a sandbox needs at least 2$"):
            Examples(Batch(batch.tokens[:1]), None, None, last_token(), None, None, 64)

    def test_labels_and_answers_of_another_kind(self):
        labels = {"word": torch.ones(2, 2, dtype=torch.int64), "answer": torch.tensor([-1, 3])}
        batch = Batch(torch.tensor([[0, 1], [1, 0]]), labels=labels)
        for label, answer in (("word", None), (None, "word")):
            with pytest.raises(InputError, match="label 'word' is per token; give a label with one value per example"):
                Examples(batch, label, answer, last_token(), None, None, 9)
        with pytest.raises(InputError, match=r"^the right answers go from -1 to 3, but the model gives 8 logits"):
            Examples(batch, None, "answer", last_token(), None, None, 9).scores(torch.zeros(2, 8))
