from __future__ import annotations

import pytest
import torch

from probes.functional.products import check_product_precision, full_float32_products, product
from tasks import InputError


def test_products_in_float32_are_added_up_in_float64() -> None:
    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randn(5000, d, generator=draw, dtype=torch.float64) for d in (6, 4))
    exact = x.T @ y
    assert torch.equal(product(x, y), exact)
    found = product(x, y, "float32")
    assert found.dtype == torch.float64
    assert 0 < float((found - exact).abs().max()) < 2e-8 * 5000
    far = torch.cat([torch.full((1024, 1), 2.0**12), torch.ones(1024, 1)]).double()  # lost, if added up in float32
    assert float(product(far, far, "float32")) == 1024 * 2**24 + 1024


def test_what_the_caller_set_comes_back() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with full_float32_products():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_another_precision_is_refused() -> None:
    with pytest.raises(InputError, match="precision is 'half'; expected 'float64' or 'float32'"):
        check_product_precision("half")  # type: ignore[arg-type]
