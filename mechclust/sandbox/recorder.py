"""Record any model with hooks at the checkpoints of its training, for the sandbox."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Shaped
from numpy.typing import ArrayLike
from torch import Tensor

from mechclust.sandbox.curves import Curves
from mechclust.sandbox.drawn_planes import DrawnPlane, PlaneName, fit_drawn_plane
from mechclust.sandbox.examples import Examples
from mechclust.sandbox.frames import choose_frames
from mechclust.sandbox.panels import SandboxPanel, probability_panel, sandbox_curve_panels, sandbox_panel_of_place
from mechclust.sandbox.places import Place, find_places
from mechclust.sandbox.run import SandboxRun
from probes.engine.devices import device_of
from probes.engine.hooked_model import HookedModel, evaluation_mode, forward
from probes.engine.readout import Readout, last_token
from probes.engine.record import record
from tasks import Batch, InputError

Frame = dict[str, Shaped[np.ndarray, "..."]]
Checkpoints = Iterable[tuple[int, HookedModel]]
PlaneChoice = PlaneName | Mapping[str, PlaneName | ArrayLike]
_FOLLOWED = "sequences followed"


class SandboxRecorder:
    """Records a model for the sandbox each time it is called: a callback for ``mechclust.train``.

    In your training loop, call ``recorder(step, model)`` whenever you want a frame. The model may be anything with
    TransformerLens's hook protocol. Each call runs it once on the recorded sequences, in evaluation mode.

    Memory: O(calls x sequences x (heads d_head + layers d_model + length)), in float32.

    Args:
        batches: the examples to follow: a batch, or several.
        label: the label, one value per example, that colours the sequences. ``None``: the right answer colours them.
        answer: the label with the token id that is the right answer. ``None``: the batch's ``targets``, if any, at the
            position being read.
        layers: of the residual stream, 0 for the embedding and ``l + 1`` for ``blocks.l``. ``None``: the output of
            every block, or six evenly spaced ones if there are more.
        heads: heads such as ``["L0H1", "L1H0"]``, of which the outputs and the attention from the position read are
            drawn. ``None``: all, or none if there are more than eight.
        sites: further hook points ``[batch pos d]`` to draw, such as ``"blocks.0.hook_mlp_out"``.
        readout: the position to read: ``last_token()``, ``first_token()`` or ``token_at(...)``.
        vocab: the string of a token id, as a list or a function. ``None``: the number.
        label_names: names of the values of ``label``, by value. ``None``: ``"task 0"`` and so on.
        max_sequences: maximum number of examples to follow, spread evenly over the values of ``label``.

    Raises:
        InputError: for a label or position that the batches do not have, and a readout of several positions. When
            called, for a layer, head or site that the model does not have, and values that are not finite.

    Example:
        >>> from mechclust import ModelConfig, TrainConfig, build_model, train
        >>> from tasks import InstructionFollowing
        >>> task = InstructionFollowing(n_tasks=2, n_symbols=8, n_eval=16)
        >>> model = build_model(ModelConfig(d_vocab=task.d_vocab, n_ctx=task.n_ctx, n_layers=2, d_model=16, n_heads=2))
        >>> recorder = SandboxRecorder(list(task.batches("validation_subset")), label="task", vocab=task.vocab)
        >>> _ = train(model, task, TrainConfig(steps=4, batch_size=8, checkpoint_every=2), callbacks=[recorder])
        >>> recorder.run()
        SandboxRun('2 layers, 2 heads, d_model 16', steps 0-4, 3 of 3 steps kept)
    """

    def __init__(
        self,
        batches: Batch | Iterable[Batch],
        *,
        label: str | None = None,
        answer: str | None = None,
        layers: Sequence[int] | None = None,
        heads: Sequence[str] | None = None,
        sites: Sequence[str] = (),
        readout: Readout = last_token(),
        vocab: Sequence[str] | Callable[[int], str] | None = None,
        label_names: Sequence[str] | None = None,
        max_sequences: int = 64,
    ) -> None:
        self.layers = layers
        self.heads = heads
        self.sites = sites
        self.readout = readout
        self.examples = Examples(batches, label, answer, readout, vocab, label_names, max_sequences)
        self.places: list[Place] = []
        self._title = ""
        self._frames: dict[int, Frame] = {}

    def __call__(self, step: int, model: HookedModel) -> None:
        """Record the model in its current state, as the frame of ``step``."""
        if not self._frames:
            self.places = find_places(model, self.layers, self.heads, self.sites, len(self.examples.token_ids))
            cfg = model.cfg
            self._title = f"{cfg.n_layers} layers, {cfg.n_heads} heads, d_model {cfg.d_model}"
        frame = self._look(model)
        for name, values in frame.items():
            if name != "loss" and not np.isfinite(values).all():
                raise InputError(f"step {step} has NaN or infinity in {name!r}; leave this step out")
        self._frames[int(step)] = frame

    @torch.no_grad()
    def _look(self, model: HookedModel) -> Frame:
        examples = self.examples
        batch = examples.batch.to(device_of(model))
        sites = dict.fromkeys(place.site for place in self.places)
        with evaluation_mode(model), record(model, sites) as recorded:
            logits = forward(model, batch)
        self.places = [place for place in self.places if place.needed or recorded[place.site]]
        frame = {}
        for place in self.places:
            try:
                (activation,) = recorded[place.site]
            except ValueError:
                raise InputError(
                    f"{place.site!r} fired {len(recorded[place.site])} times in a forward pass; choose a hook point "
                    "that fires once"
                ) from None
            frame[place.name] = place.read(activation, batch, self.readout, examples).float().cpu().numpy()
        if examples.answers is not None:
            frame |= examples.scores(self._at_position(logits, batch).float().cpu())
        return frame

    def _at_position(self, logits: Any, batch: Batch) -> Float[Tensor, "sequence d_vocab"]:
        """Return the logits at the position read."""
        if not isinstance(logits, Tensor) or logits.ndim not in (2, 3):
            raise InputError(
                "the model gives no logits [batch pos d_vocab] or [batch d_vocab], so its answers are not known; "
                "leave targets and the answer label out"
            )
        return logits if logits.ndim == 2 else self.readout(logits, batch)

    def run(
        self,
        *,
        planes: PlaneChoice = "pca",
        max_frames: int = 300,
        curves: Curves | None = None,
        title: str | None = None,
        unit: str = "step",
    ) -> SandboxRun:
        """Return the recorded frames, ready for ``sandbox_figure``, ``sandbox_film`` and ``sandbox_page``.

        Args:
            planes: how points of more than two dimensions are drawn: in the principal plane of all frames together
                (``"pca"``), of the last frame (``"last"``), or of the cluster means in the last frame (``"classes"``).
                A mapping by panel name may also give two directions ``[2 d]``. Panels that it does not name use
                ``"pca"``. The plane of a panel is fixed over all frames.
            max_frames: maximum number of frames to keep: the first, the last, those around spikes of ``curves``, and
                others evenly spaced.
            curves: numbers measured during training. ``None``: loss and accuracy on the sequences followed.
            title: the title. ``None``: the model's size.
            unit: unit of the steps, ``"step"`` or ``"epoch"``.

        Raises:
            InputError: for fewer than two frames, an unknown panel or plane, or two directions along one line.
        """
        steps = sorted(self._frames)
        events = [] if curves is None else [step for step, _ in curves.spikes]
        shown = [steps[i] for i in choose_frames(steps, max_frames, around=events)]
        raw = {name: np.stack([self._frames[step][name] for step in shown]) for name in self._frames[shown[0]]}
        drawn = [place for place in self.places if place.kind == "plane"]
        fitted = _fit(drawn, raw, planes, self.examples)
        values: Frame = {}
        variance: Frame = {}
        panels: dict[str, SandboxPanel] = {}
        for place in self.places:
            panels[place.name] = sandbox_panel_of_place(place, self.examples, flat=raw[place.name].shape[-1] <= 2)
            values[place.name] = raw[place.name]
            plane = fitted.get(place.name)
            if plane is not None:
                values[place.name] = plane.flatten(raw[place.name])
                if raw[place.name].shape[-1] > 2:
                    variance[place.name] = plane.variance(raw[place.name])
        if self.examples.answers is not None:
            values |= {name: raw[name] for name in ("probabilities", "predicted")}
            panels["probabilities"] = probability_panel(self.examples)
            if curves is None:
                measured = {"loss": {_FOLLOWED: raw["loss"]}, "accuracy": {_FOLLOWED: raw["accuracy"]}}
                curves = Curves(shown, measured)
        curves = Curves(shown) if curves is None else curves
        panels |= sandbox_curve_panels(curves)
        return SandboxRun(
            title=self._title if title is None else title,
            epochs=shown,
            available=len(steps),
            panels=panels,
            sequences=self.examples.followed,
            answers=self.examples.answer_names,
            n_right=max(0, len(self.examples.answer_names) - 1),
            values=values,
            curves=curves,
            unit=unit,
            variance=variance,
        )


def record_sandbox(
    checkpoints: Checkpoints,
    batches: Batch | Iterable[Batch],
    *,
    planes: PlaneChoice = "pca",
    max_frames: int = 300,
    curves: Curves | None = None,
    title: str | None = None,
    unit: str = "step",
    **which: Any,
) -> SandboxRun:
    """Record a model at the checkpoints of its training, to be drawn as a figure, a film or a page.

    Args:
        checkpoints: step and model, in any order. A generator that loads one after the other keeps one in memory.
        batches: the examples to follow: a batch, or several.
        planes, max_frames, curves, title, unit: as in ``SandboxRecorder.run``.
        which: ``label``, ``answer``, ``layers``, ``heads``, ``sites``, ``readout``, ``vocab``, ``label_names``,
            ``max_sequences``, as in ``SandboxRecorder``.

    Raises:
        InputError: as ``SandboxRecorder`` does.

    Example:
        >>> from mechclust import ModelConfig, build_model
        >>> models = [build_model(ModelConfig(9, 4, n_layers=2, d_model=16, n_heads=2, seed=seed)) for seed in (0, 1)]
        >>> batch = Batch(torch.arange(24).reshape(6, 4) % 9, labels={"last": torch.tensor([3, 7, 2, 6, 1, 5])})
        >>> record_sandbox(enumerate(models), batch, answer="last", heads=["L1H0"])
        SandboxRun('2 layers, 2 heads, d_model 16', steps 0-1, 2 of 2 steps kept)
    """
    recorder = SandboxRecorder(batches, **which)
    for step, model in checkpoints:
        recorder(step, model)
    return recorder.run(planes=planes, max_frames=max_frames, curves=curves, title=title, unit=unit)


def _fit(places: Sequence[Place], raw: Frame, planes: PlaneChoice, examples: Examples) -> dict[str, DrawnPlane]:
    names = [place.name for place in places]
    choice = planes if isinstance(planes, Mapping) else dict.fromkeys(names, planes)
    for name in choice:
        if name not in names:
            raise InputError(f"planes has {name!r}, which is not drawn; expected some of {', '.join(names)}")
    fitted = {}
    for place in places:
        name = place.name
        points = raw[name]
        how = choice.get(name, "pca")
        if isinstance(how, str) and points.shape[-1] == 2:
            fitted[name] = DrawnPlane(np.eye(2), np.zeros(2))  # drawn as they are
            continue
        of_sequences = place.what in ("stream", "output")  # whose classes are known
        fitted[name] = fit_drawn_plane(points, how, examples.followed.clusters if of_sequences else None)
    return fitted
