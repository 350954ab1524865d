"""Random streams: each is a function of seed, purpose and position, and stays what it was."""

import pytest
import torch

from whitenorm.lab.randomness import derive, generator


@pytest.mark.parametrize(
    ("purpose", "expected"),
    [
        ((0, "initialisation"), 1952974914541233639),
        ((0, "order", 1), 4489457307835839548),
        ((3, "crop", 2, 5), 5350500040383212515),
    ],
)
def test_streams_are_those_that_the_records_were_made_with(purpose, expected):
    assert derive(*purpose) == expected


def test_streams_of_other_seeds_purposes_and_positions_differ():
    purposes = [(0, "order", 1), (1, "order", 1), (0, "crop", 1), (0, "order", 2)]
    assert len({torch.rand((), generator=generator(*purpose)).item() for purpose in purposes}) == 4


def test_a_stream_does_not_depend_on_other_draws():
    first = torch.rand(3, generator=generator(0, "order", 1))
    torch.rand(5)
    torch.rand(5, generator=generator(0, "order", 0))
    assert torch.equal(first, torch.rand(3, generator=generator(0, "order", 1)))
