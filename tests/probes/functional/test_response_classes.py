from __future__ import annotations

import pytest
import torch

from probes.functional import response_classes
from tests.probes.two_devices import simulated_cuda


@pytest.mark.parametrize("tolerance", [0.0, 0.5])
def test_classes_are_on_the_device_of_the_answers(tolerance: float) -> None:
    answers = torch.tensor([[5, 5, 7], [1, 1, 2]])
    with simulated_cuda():
        classes = response_classes(answers.to("cuda"), tolerance)
        assert classes.device.type == "cuda"
        assert classes.cpu().tolist() == [0, 0, 1]
