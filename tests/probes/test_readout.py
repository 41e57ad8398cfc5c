from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from probes import all_tokens, first_token, last_token, mean, token_at
from probes.engine.readout import Readout, check_readout
from tasks import Batch, InputError

LENGTHS, LONGEST = [3, 5, 1, 4], 5


def batch_padded_on(side: str) -> Batch:
    pos = torch.arange(LONGEST)
    length = torch.tensor(LENGTHS)[:, None]
    mask = pos < length if side == "right" else pos >= LONGEST - length
    first = torch.zeros(4, dtype=torch.int64) if side == "right" else LONGEST - length[:, 0]
    return Batch(
        tokens=torch.arange(4 * LONGEST).reshape(4, LONGEST),
        attention_mask=None if side == "none" else mask,
        positions={"second": first + torch.tensor([1, 1, 0, 1])},
        index=torch.tensor([40, 30, 20, 10]),
    )


def real_positions(batch: Batch) -> list[list[int]]:
    if batch.attention_mask is None:
        return [list(range(LONGEST))] * 4
    return [[p for p in range(LONGEST) if batch.attention_mask[i, p]] for i in range(4)]


@pytest.fixture(params=["left", "right", "none"])
def batch(request: pytest.FixtureRequest) -> Batch:
    return batch_padded_on(request.param)


@pytest.fixture(params=[(), (2, 3)], ids=["scalars", "heads"])
def activation(request: pytest.FixtureRequest) -> Tensor:
    return torch.randn(4, LONGEST, *request.param, generator=torch.Generator().manual_seed(0))


def test_readouts_of_one_position(batch: Batch, activation: Tensor) -> None:
    real, second = real_positions(batch), batch.positions["second"].tolist()
    for readout, at in (
        (last_token(), [positions[-1] for positions in real]),
        (first_token(), [positions[0] for positions in real]),
        (token_at("second"), second),
    ):
        assert torch.equal(readout(activation, batch), torch.stack([activation[i, at[i]] for i in range(4)]))
    assert all_tokens()(activation, batch) is activation


@pytest.mark.parametrize("readout", [last_token(), first_token(), mean()])
def test_an_example_without_a_real_token_is_refused(readout: Readout) -> None:
    batch = batch_padded_on("right")
    assert batch.attention_mask is not None
    batch.attention_mask[2] = False
    message = re.escape("example index 20 has no real token (its attention mask is all 0); leave it out")
    with pytest.raises(InputError, match=f"^{message}$"):
        readout(torch.zeros(4, LONGEST, 6), batch)


@pytest.mark.parametrize(("side", "place"), [("right", 4), ("left", 0), ("none", 5), ("none", -1), ("right", 99)])
def test_a_position_without_a_real_token_is_refused(side: str, place: int) -> None:
    batch = batch_padded_on(side)
    batch.positions["second"][3] = place
    message = re.escape(
        f"position 'second' of example index 10 is {place}, where there is no real token (5 positions, padding "
        "included); give a token's position, from 0"
    )
    with pytest.raises(InputError, match=f"^{message}$"):
        token_at("second")(torch.zeros(4, LONGEST, 6), batch)


def test_mean(batch: Batch, activation: Tensor) -> None:
    expected = torch.stack(
        [sum(activation[i, p].double() for p in ps) / len(ps) for i, ps in enumerate(real_positions(batch))]  # type: ignore[misc]
    )
    torch.testing.assert_close(mean()(activation, batch).double(), expected, rtol=1e-6, atol=1e-6)


def test_mean_does_not_look_at_padding(activation: Tensor) -> None:
    batch = batch_padded_on("left")
    assert batch.attention_mask is not None
    spoilt = activation.clone()
    spoilt[~batch.attention_mask] = torch.nan
    assert torch.equal(mean()(spoilt, batch), mean()(activation, batch))


def test_an_unknown_position_is_told() -> None:
    with pytest.raises(InputError, match=r"no position 'input' in this batch \(it has 'second'\)"):
        token_at("input")(torch.zeros(4, LONGEST), batch_padded_on("none"))


@pytest.mark.parametrize("readout", [last_token(), first_token(), token_at("second"), mean(), all_tokens()])
def test_readouts_are_values_whose_repr_rebuilds_them(readout: Readout) -> None:
    names = {
        "last_token": last_token,
        "first_token": first_token,
        "token_at": token_at,
        "mean": mean,
        "all_tokens": all_tokens,
    }
    rebuilt = eval(repr(readout), names)
    assert rebuilt == readout
    assert hash(rebuilt) == hash(readout)
    assert token_at("first") != token_at("second")


def test_only_readouts_are_readouts() -> None:
    assert check_readout(mean()) == mean()
    for wrong in ("last", last_token, type(last_token())):
        with pytest.raises(InputError, match=r"expected last_token\(\), first_token\(\), token_at\("):
            check_readout(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("make", [last_token, mean, all_tokens])
def test_the_first_example_that_is_not_finite_is_found(make: Callable[[], Readout], bad: float) -> None:
    batch, x = batch_padded_on("right"), torch.zeros(4, LONGEST, 2)
    assert make().check(make()(x, batch), batch) is None
    x[1, 4, 1] = x[3, 3, 0] = bad
    assert make().check(make()(x, batch), batch) == 30


def test_opposite_infinities_do_not_cancel() -> None:
    x = torch.zeros(4, LONGEST, 2)
    x[2, 0] = torch.tensor([torch.inf, -torch.inf])
    assert all_tokens().check(x, batch_padded_on("none")) == 20


def test_large_values_are_finite() -> None:
    x = torch.full((4, LONGEST, 2), torch.finfo(torch.float64).max, dtype=torch.float64)
    assert all_tokens().check(x, batch_padded_on("none")) is None
    assert last_token().check(x[:, 0], batch_padded_on("none")) is None


@pytest.mark.parametrize("side", ["none", "right"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_means_of_half_precision_are_float32_and_do_not_overflow(side: str, dtype: torch.dtype) -> None:
    tokens = torch.zeros(2, 600, dtype=torch.long)
    mask = torch.ones(2, 600, dtype=torch.bool)
    mask[1, 599] = False
    x = torch.full((2, 600, 1), 300.0, dtype=dtype)
    found = mean()(x, Batch(tokens, None if side == "none" else mask))
    assert found.dtype == torch.float32
    assert found.tolist() == [[300.0], [300.0]]


def test_all_tokens_forgives_what_stands_at_padding() -> None:
    batch, x = batch_padded_on("right"), torch.zeros(4, LONGEST, 2)
    x[0, 4] = torch.nan
    assert all_tokens().check(x, batch) is None
    x[0, 2] = torch.nan
    assert all_tokens().check(x, batch) == 40


def test_all_tokens_forgives_patterns_of_padded_queries_only() -> None:
    batch, pattern = batch_padded_on("left"), torch.zeros(4, 2, LONGEST, LONGEST)
    pattern[0, :, :2, :2] = torch.nan  # a padded query has nothing to attend to
    assert all_tokens().check(pattern, batch) is None
    pattern[0, 1, 3, 3] = torch.nan
    assert all_tokens().check(pattern, batch) == 40


def test_all_tokens_forgives_outputs_of_heads_at_padding() -> None:
    batch, z = batch_padded_on("right"), torch.zeros(4, LONGEST, 3, 2)  # [batch pos head d_head]
    z[0, 4] = torch.nan
    assert all_tokens().check(z, batch) is None
    z[0, 2] = torch.nan
    assert all_tokens().check(z, batch) == 40


def test_all_tokens_checks_pooled_values_and_single_numbers() -> None:
    batch = Batch(torch.ones(2, 3).long(), torch.tensor([[1, 1, 1], [1, 1, 0]]), index=torch.tensor([7, 8]))
    for shape in ((2,), (2, 5), (2, 1, 5)):
        x = torch.zeros(shape)
        assert all_tokens().check(x, batch) is None
        x[1] = torch.nan
        assert all_tokens().check(x, batch) == 8
    assert last_token().check(torch.tensor([0.0, torch.inf]), batch) == 8


def test_the_last_token_of_a_pooled_sequence_is_its_one_position():
    pooled = torch.arange(6.0).reshape(3, 1, 2)
    batch = Batch(torch.zeros(3, 5, dtype=torch.int64))
    assert torch.equal(last_token()(pooled, batch), pooled[:, 0])


@pytest.mark.parametrize("shape", [(2, 5, 2), (3, 6, 2), (15, 2), (3,)], ids=["examples", "positions", "flat", "one"])
@pytest.mark.parametrize("readout", [last_token(), first_token(), token_at("x"), mean()], ids=repr)
def test_an_activation_of_other_positions_than_the_batch_is_refused(readout: Readout, shape: tuple[int, ...]) -> None:
    batch = Batch(torch.zeros(3, 5, dtype=torch.int64), positions={"x": torch.zeros(3, dtype=torch.int64)})
    with pytest.raises(InputError, match=rf"shape {re.escape(str(shape))}, but the batch has 3 sequences of 5 tokens"):
        readout(torch.zeros(shape), batch)
