"""The random order that controls take."""

import numpy as np

from mechclust.evidence.random_order import random_order


def test_a_random_order_is_another_order():
    for n in range(2, 40):
        order = random_order(n).tolist()
        assert order != list(range(n))
        assert sorted(order) == list(range(n))


def test_a_random_order_of_three_or_more_places_is_the_first_drawn():
    assert all(np.array_equal(random_order(n), np.random.default_rng(0).permutation(n)) for n in range(3, 40))
