"""The map of prompts in the report of a comparison."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mechclust.commands.compare import compare_models
from mechclust.commands.compare.planes import prompt_planes
from mechclust.commands.sampling import draw_prompts
from probes import RowStore
from probes.functional.planes import aligned_planes
from tasks import LabelledPrompts
from tests.mechclust.commands.compare.cases import records

SITES = ["hook_embed", "blocks.0.hook_resid_post", "blocks.1.hook_resid_post"]


def stores(result):
    return {model: RowStore(result.config.prompts.parent / "out" / "rows" / model) for model in ("base", "tuned")}


def rows(result, model):
    """Each layer's rows from the store, in the order of the prompts' file."""
    store = stores(result)[model]
    return [store.take(torch.arange(36), [f"rows/{site}"])[f"rows/{site}"] for site in SITES]


class TestPlanes:
    def test_prompts_and_labels_stand_beside_their_points(self, measured):
        planes = measured.planes
        assert planes.texts == [row["prompt"] for row in records()]
        assert planes.labels == {"task": [row["task"] for row in records()]}
        assert planes.layers == {"base": [0, 1, 2], "tuned": [0, 1, 2]}
        expected = aligned_planes(rows(measured, "base"))
        np.testing.assert_allclose(planes.xy["base"], expected.xy, atol=1e-9)
        np.testing.assert_allclose(planes.variance["base"], expected.variance)

    def test_the_tuned_planes_fit_the_base_ones(self, measured):
        """Layers that tuning left alone are the same; of the other, no turn would bring the points nearer."""
        base, tuned = measured.planes.xy["base"], measured.planes.xy["tuned"]
        np.testing.assert_allclose(tuned[:2], base[:2], atol=1e-6)
        assert np.abs(tuned[2] - base[2]).max() > 0.05
        product = tuned[2].T @ base[2]  # of the best rotation: symmetric without negative eigenvalues
        np.testing.assert_allclose(product, product.T, atol=1e-9)
        assert np.linalg.eigvalsh(product).min() >= 0
        own = aligned_planes(rows(measured, "tuned")[2:]).xy[0]
        np.testing.assert_allclose(own @ own.T, tuned[2] @ tuned[2].T, atol=1e-9)  # turned, no more

    def test_other_labels_come_after_the_task(self, measured):
        prompts = measured.config.read_prompts()
        labels = {"first": [text.split()[0] for text in prompts.prompts], **prompts.labels}
        planes = prompt_planes(stores(measured), SimpleNamespace(prompts=LabelledPrompts(prompts.prompts, labels)), 10)
        assert list(planes.labels) == ["task", "first"]
        assert planes.labels["first"] == [text.split()[0] for text in planes.texts]

    def test_what_is_drawn_depends_on_the_index_alone(self):
        index = torch.arange(10_000)
        some = draw_prompts(index, 100)
        assert len(some) == 100
        assert torch.equal(some, draw_prompts(index.flip(0), 100))
        assert torch.equal(some[some < 5_000], draw_prompts(index[:5_000], int((some < 5_000).sum())))
        assert 3_500 < some.double().mean() < 6_500  # from the whole file
        assert draw_prompts(index[:50], 100).tolist() == list(range(50))

    def test_fewer_prompts(self, gpt2, shaken, apart, undrawn, out):
        result = compare_models(str(gpt2), str(shaken), replace(apart, map_prompts=10), out)
        assert result.planes.xy["base"].shape == result.planes.xy["tuned"].shape == (3, 10, 2)
        shown = draw_prompts(torch.arange(36), 10).tolist()
        assert result.planes.texts == [records()[i]["prompt"] for i in shown]
        page = result.write(out).read_text()
        assert 'id="prompt-map-' in page
        assert "10 of 36 prompts, drawn at random." in page

    def test_none_are_drawn_if_all_are_shown(self, measured):
        assert len(measured.planes.texts) == measured.planes.n
        assert "drawn at random" not in measured.planes.html()

    def test_one_layer_is_read_at_a_time(self, measured, monkeypatch):
        asked = []
        take = RowStore.take

        def watched(store, index, names):
            asked.append(names)
            return take(store, index, names)

        monkeypatch.setattr(RowStore, "take", watched)
        prompt_planes(stores(measured), SimpleNamespace(prompts=measured.config.read_prompts()), 36)
        assert asked == [[f"rows/{site}"] for _ in ("base", "tuned") for site in SITES]


@pytest.mark.browser
def test_in_the_report_base_and_tuned_stand_side_by_side(measured, tmp_path, open_page, undrawn):
    page = open_page(measured.write(tmp_path))
    assert page.locator("h2", has_text="Base and tuned").count() == 1
    assert page.locator(".mechclust-map .model").all_inner_texts() == ["base", "tuned"]
    assert page.locator(".mechclust-map input.layer").count() == 1
    assert page.locator(".mechclust-map .legend .name").all_inner_texts() == ["a", "b", "c"]
    page.locator(".mechclust-map .search").fill("w10")
    assert page.locator(".mechclust-map .found").inner_text() == "12 of 36 prompts"
    page.keyboard.press("Enter")
    assert page.locator(".mechclust-map .pinned .text").inner_text() == "w0 w4 w10"
    assert page.locator(".mechclust-map .ring.pin:visible").count() == 2
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=f"{folder}/compare.png", full_page=True)
