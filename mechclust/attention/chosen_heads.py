"""Choose the heads of an attention view before a model runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from numbers import Integral
from typing import Any, NamedTuple, TypeAlias

from probes import Head, HookedModel, ProbeResult, Site, attention, resolve
from probes.engine.head_names import head_name
from probes.head_roles import HEAD_ROLES
from tasks import InputError

HeadChoice: TypeAlias = int | Sequence[int] | Sequence[tuple[int, int]] | Sequence[Head]
_HEADS_PER_ROLE = 4


class ChosenHead(NamedTuple):
    """A head to look at: the hook point of its layer, its number, and a measure's value when it was chosen by one."""

    site: str
    layer: int
    head: int
    value: float | None

    @property
    def name(self) -> str:
        """The layer and head, such as ``"L0H3"``."""
        return head_name(self.layer, self.head)


def choose_heads_by_role(
    roles: ProbeResult | None, layers: int | Sequence[int] | None, heads: HeadChoice | None
) -> dict[Head, str]:
    """Return the heads with the largest excess of each role that any plays, up to four, with the role.

    Args:
        roles: of ``HeadRoles``; none are returned without it.
        layers: as in ``attention_view``, must be ``None`` with roles.
        heads: as ``layers``.
    """
    if roles is None:
        return {}
    if layers is not None or heads is not None:
        raise InputError("roles chooses the heads; leave out layers and heads")
    if roles.probe != "HeadRoles":
        raise InputError(f"roles is a result of {roles.probe}; give one of HeadRoles")
    site_of = {layer: site for site, layer in roles.layers.items()}
    role_of: dict[Head, str] = {}
    for place, role in enumerate(HEAD_ROLES[1:], start=1):
        ranked = roles.top_heads("excess", int(roles["role"].numel()), role=role)
        played = [head for head in ranked if roles.sel("role", site=site_of[head.layer], head=head.head) == place]
        role_of |= dict.fromkeys(played[:_HEADS_PER_ROLE], role)
    if not role_of:
        raise InputError("no head of roles plays a role; choose heads yourself")
    return role_of


def choose_heads(
    models: Mapping[str, HookedModel],
    layers: int | Sequence[int] | None,
    heads: HeadChoice | None,
    count: Callable[[HookedModel], int],
) -> list[ChosenHead]:
    """Return the chosen heads, identical in every model.

    Args:
        models: by name. The name of a single one may be ``""``, and is then left out of messages.
        layers: as in ``probes.attention``.
        heads: head numbers in each of these layers, or ``(layer, head)`` pairs. ``None`` for all.
        count: returns the number of heads in each layer of a model.

    Raises:
        InputError: for a missing head, or models that differ in the chosen heads.
    """
    choice: list[Any] | None = None
    if heads is not None:
        try:
            choice = list(heads)  # type: ignore[arg-type]
        except TypeError:  # of one number
            choice = [heads]
        _check_choice(choice, layers)
    if isinstance(layers, Sized) and not len(layers):
        raise InputError("layers is empty; expected at least one layer, or None for all of them")
    chosen: dict[str, list[ChosenHead]] = {}
    for name, model in models.items():
        try:
            chosen[name] = _in_model(model, layers, choice, count(model))
        except InputError as error:
            raise InputError(f"model {name!r}: {error}") if name else error from None
    first, *others = chosen
    for other in others:
        if [head.name for head in chosen[first]] != [head.name for head in chosen[other]]:
            raise InputError(
                f"these are heads {_span(chosen[first])} in model {first!r} and {_span(chosen[other])} in model "
                f"{other!r}; expected the same in both; choose heads that both have, such as heads=[(0, 0), (0, 1)]"
            )
    return chosen[first]


def _check_choice(choice: Sequence[Any], layers: object) -> None:
    if not choice:
        raise InputError("heads is empty; expected at least one head, or None for all of them")
    if all(map(_is_pair, choice)):
        if layers is None:
            return
        raise InputError(
            f"layers is {layers!r}, but heads has (layer, head) pairs; leave out layers, or give heads as numbers"
        )
    if not all(isinstance(head, Integral) for head in choice):
        raise InputError(
            f"heads is {repr(choice)[:60]}; expected head numbers, or (layer, head) pairs such as those of "
            "result.top_heads"
        )


def _is_pair(head: object) -> bool:
    return isinstance(head, tuple) and len(head) in (2, 3) and all(isinstance(part, Integral) for part in head[:2])


def _in_model(
    model: HookedModel, layers: int | Sequence[int] | None, choice: Sequence[Any] | None, n_heads: int
) -> list[ChosenHead]:
    wanted: list[tuple[Site, int, float | None]] = []
    if choice is None or isinstance(choice[0], Integral):
        for site in resolve(model, attention(layers)):
            wanted += [(site, head, None) for head in (range(n_heads) if choice is None else choice)]
    else:
        for layer, head, *value in choice:
            (site,) = resolve(model, attention(int(layer)))
            wanted.append((site, head, value[0] if value else None))
    for site, head, _ in wanted:
        if not -n_heads <= head < n_heads:
            raise InputError(
                f"no head {head} in layer {site.layer}, blocks.{site.layer} (it has heads 0-{n_heads - 1})"
            )
    return [ChosenHead(site.name, site.layer, int(head) % n_heads, value) for site, head, value in wanted]


def _span(heads: Sequence[ChosenHead]) -> str:
    return heads[0].name if len(heads) == 1 else f"{heads[0].name} to {heads[-1].name}"
