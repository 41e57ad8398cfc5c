"""Measure how much of a change reaches the output, by patching the tuned model's residual stream into the base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechclust.commands.compare.by_layer import ALL
from mechclust.commands.parts import MeasurementPart, part_path
from mechclust.evidence.intervals import ratio_interval
from mechclust.models.next_token import predicts_next_token
from mechclust.models.patching import (
    ActivationsByHook,
    Logits,
    patched_forward,
    patched_outputs,
    patching_points,
)
from probes import ProbeResult
from probes.engine.hooked_model import HookedModel
from probes.store.versions import package_versions
from tasks import Batch
from tasks.batch_rows import token_batch_rows


def why_not_patched(base: HookedModel, tuned: HookedModel) -> str:
    """Return why outputs cannot be compared after a patch, or ``""`` if they can. Hooks of both models can write."""
    if base.cfg.d_vocab != tuned.cfg.d_vocab:
        return f"the models have outputs of {base.cfg.d_vocab} and {tuned.cfg.d_vocab} tokens"
    if not (predicts_next_token(base) and predicts_next_token(tuned)):
        return "models of this kind do not predict the next token"
    return ""


class PromptsToPatch(NamedTuple):
    """Prompts whose outputs are patched together.

    Attributes:
        prompts: the prompts.
        partners: another prompt of the task of each, or the prompt itself if it is the only one.
    """

    prompts: Batch
    partners: Batch


def batches_to_patch(
    batches: Sequence[Batch], of_task: Mapping[str, Int[Tensor, "_"]], tokens_per_batch: int
) -> list[PromptsToPatch]:
    """Return only these prompts, in new batches of prompts of similar length. Partners do not depend on the batches."""
    chosen = torch.cat([*of_task.values()])
    longest = max(batch.tokens.shape[1] for batch in batches)
    parts = [batch.select(torch.isin(batch.index, chosen).nonzero()[:, 0]) for batch in batches]
    whole = Batch.concat([part.padded_to(longest) for part in parts])
    whole = whole.select(whole.index.argsort())
    partners = whole.select(_partners(whole.label("task")))
    longer = torch.maximum(whole.lengths(), partners.lengths()).tolist()
    places = [torch.from_numpy(rows) for rows in token_batch_rows(longer, tokens_per_batch, str)]
    return [
        PromptsToPatch(_without_padding(whole.select(rows)), _without_padding(partners.select(rows))) for rows in places
    ]


def _partners(task: Int[Tensor, "prompt"]) -> Int[Tensor, "prompt"]:
    """Return the place of another prompt with each prompt's task, or its own if there is no other."""
    partner = torch.arange(len(task))
    for number in torch.unique(task).tolist():
        members = (task == number).nonzero()[:, 0]
        partner[members] = members.roll(1)
    return partner


def _without_padding(batch: Batch) -> Batch:
    """Cut off the positions that are padding in every prompt."""
    lengths = batch.lengths()
    n = int(lengths.max())
    return replace(batch, tokens=batch.tokens[:, :n], attention_mask=torch.arange(n) < lengths[:, None])


def patching_part(
    base: HookedModel, tuned: HookedModel, batch: PromptsToPatch, models: Sequence[str], folder: Path
) -> MeasurementPart:
    """Return the part that patches one batch.

    Args:
        base: hooked model whose hooks can write.
        tuned: a model of the same shape.
        batch: prompts with their partners.
        models: strings that identify the weights of both.
        folder: folder of parts.
    """
    arrays = [array for prompts in batch for array in (prompts.tokens, prompts.lengths(), prompts.index)]
    path = part_path(folder, "patching", [*models], arrays)
    return MeasurementPart(path, "patching", partial(patch_batch, base, tuned, *batch))


def patch_batch(base: HookedModel, tuned: HookedModel, batch: Batch, partners: Batch) -> ProbeResult:
    """Measure how far the base's next-token distribution is from the tuned model's, as it is and patched.

    Measures, in nats, of the distribution after the last token of each prompt:
        ``base`` (prompt): KL divergence of the base's distribution from the tuned model's.
        ``patched`` (site, prompt): this divergence with the tuned model's residual stream written into the base there,
            at all positions.
        ``shuffled`` (site, prompt): this divergence with the stream of the prompt's partner, aligned at the last token.
            NaN for a prompt that is its own partner.

    Cost: two forward passes of the tuned model and ``3 + 2 x layers`` of the base.
    Memory: the tuned model's residual stream of the batch at every layer, twice.

    Args:
        base: hooked model whose hooks can write.
        tuned: a model of the same shape.
        batch: prompts.
        partners: of each prompt another one of its task.
    """
    sites = patching_points(base)
    logits, states = patched_forward(tuned, batch, sites)
    wanted = _log_probabilities(logits, batch)
    logits, _ = patched_forward(base, batch, [])
    of_base = _divergence(wanted, logits, batch)
    patched = [_divergence(wanted, logits, batch) for _, logits in patched_outputs(base, batch, states)]
    shuffled = torch.full((len(sites), len(batch)), torch.nan, dtype=torch.float64)
    has_partner = partners.index != batch.index
    if bool(has_partner.any()):
        _, states = patched_forward(tuned, partners, sites)
        others = _of_partners(states, batch.lengths(), partners.lengths())
        for i, (_, logits) in enumerate(patched_outputs(base, batch, others)):
            shuffled[i, has_partner] = _divergence(wanted, logits, batch)[has_partner]
    by_site = ("site", "prompt")
    return ProbeResult(
        "PatchedPrompts",
        {"base": of_base, "patched": torch.stack(patched), "shuffled": shuffled},
        {"base": ("prompt",), "patched": by_site, "shuffled": by_site},
        {"site": sites, "prompt": [str(i) for i in batch.index.tolist()]},
        {site: layer for layer, site in enumerate(sites)},
    )


def _log_probabilities(logits: Logits, batch: Batch) -> Float[Tensor, "prompt d_vocab"]:
    """Return the log-probabilities of the token after each prompt."""
    rows = torch.arange(len(batch), device=logits.device)
    return logits[rows, batch.last_positions().to(logits.device)].cpu().double().log_softmax(dim=-1)


def _divergence(wanted: Float[Tensor, "prompt d_vocab"], logits: Logits, batch: Batch) -> Float[Tensor, "prompt"]:
    """Return the KL divergence of an output from the wanted distribution, in nats."""
    return (wanted.exp() * (wanted - _log_probabilities(logits, batch))).sum(dim=-1)


def _of_partners(
    states: ActivationsByHook, lengths: Int[Tensor, "prompt"], partner_lengths: Int[Tensor, "prompt"]
) -> dict[str, Float[Tensor, "prompt place dim"]]:
    """Return the states of each prompt's partner, aligned at the prompt's last token.

    Before the partner begins, its first token's states are used.
    """
    longer = (lengths - partner_lengths)[:, None]
    last = (partner_lengths - 1)[:, None]
    position = (torch.arange(int(lengths.max())) - longer).clamp(min=0).minimum(last)
    rows = torch.arange(len(lengths))[:, None]
    return {name: x[rows.to(x.device), position.to(x.device)] for name, x in states.items()}


def patching_result(
    parts: Sequence[ProbeResult], batches: Sequence[Batch], tasks: Sequence[str], unit_label: str | None
) -> ProbeResult:
    """Return how much of the difference between both models' outputs patching restores, by layer and task.

    Measures:
        ``restored`` (site, label): ``1 - patched / base`` of the divergence's mean over prompts. ``_low`` and ``_high``
            are its 95% interval over prompts or units.
        ``rise`` (site, label): ``restored`` minus its value at the site before (0 for the first), with its interval.
        ``chance`` (site, label): ``restored`` if each prompt is given the stream of another one.
        ``divergence`` (label): of the base from the tuned model, in nats, mean over prompts.
        ``n`` (label): number of prompts.

    Args:
        parts: from ``patch_batch``, one of each batch.
        batches: prompts, with their ``task`` and the units.
        tasks: names of the tasks.
        unit_label: label of prompts that belong together, or ``None`` if prompts are independent.
    """
    task = torch.cat([batch.label("task") for batch in batches])
    unit = torch.arange(len(task)) if unit_label is None else torch.cat([batch.label(unit_label) for batch in batches])
    base = torch.cat([part["base"] for part in parts])
    patched = torch.cat([part["patched"] for part in parts], dim=1)
    shuffled = torch.cat([part["shuffled"] for part in parts], dim=1)
    members = {ALL: torch.ones_like(task, dtype=torch.bool), **{name: task == k for k, name in enumerate(tasks)}}
    by_label = [_of_label(base[of], patched[:, of], shuffled[:, of], unit[of]) for of in members.values()]
    values = {name: torch.stack([each[name] for each in by_label], dim=-1) for name in by_label[0]}
    return ProbeResult(
        "Patching",
        values,
        {name: ("site", "label") if values[name].ndim == 2 else ("label",) for name in values},
        {"site": parts[0].coords["site"], "label": list(members)},
        parts[0].layers,
        metadata={"units": unit_label, "versions": package_versions()},
    )


def _of_label(
    base: Float[Tensor, "prompt"],
    patched: Float[Tensor, "site prompt"],
    shuffled: Float[Tensor, "site prompt"],
    unit: Int[Tensor, "prompt"],
) -> dict[str, Float[Tensor, "*site"] | Int[Tensor, ""]]:
    """Return the measures of ``patching_result`` of some prompts."""
    before = torch.cat([base[None], patched[:-1]])
    has_partner = ~shuffled.isnan().any(dim=0)
    chance = (base[has_partner] - shuffled[:, has_partner]).sum(dim=1) / base[has_partner].sum()
    return {
        **_shares("restored", base - patched, base, unit),
        **_shares("rise", before - patched, base, unit),
        "chance": chance,
        "divergence": base.mean(),
        "n": torch.tensor(len(base)),
    }


def _shares(
    name: str, parts: Float[Tensor, "site prompt"], wholes: Float[Tensor, "prompt"], unit: Int[Tensor, "prompt"]
) -> dict[str, Float[Tensor, "site"]]:
    """Return by site the sum of parts over the sum of wholes, with its interval over units."""
    member = torch.unique(unit, return_inverse=True)[1]
    n_units = int(member.max()) + 1
    whole = torch.zeros(n_units, dtype=torch.float64).index_add(0, member, wholes)
    part = torch.zeros(len(parts), n_units, dtype=torch.float64).index_add(1, member, parts)
    nan = (torch.nan, torch.nan)
    ends = torch.tensor([ratio_interval(row, whole.tolist()) or nan for row in part.tolist()], dtype=torch.float64)
    return {name: part.sum(dim=1) / whole.sum(), f"{name}_low": ends[:, 0], f"{name}_high": ends[:, 1]}
