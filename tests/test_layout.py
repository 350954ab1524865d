"""Channels in groups and positions as samples, and back."""

import pytest
import torch
from cases import correlated

from whitenorm.layout import (
    Span,
    diagonal_matrices,
    grouped,
    is_channels_last,
    joined_matrices,
    new_output,
    of_groups,
    spans_of,
    ungrouped,
)

FORMATS = {
    "rows": correlated((7, 6)),
    "maps": correlated((3, 6, 4, 5)),
    "channels last": correlated((3, 6, 4, 5)).contiguous(memory_format=torch.channels_last),
    "volumes": correlated((3, 6, 2, 4, 5)),
}
EACH_FORMAT = pytest.mark.parametrize("x", FORMATS.values(), ids=FORMATS)


@pytest.mark.parametrize("channels", range(1, 12))
@pytest.mark.parametrize("group_size", [1, 3, 4, 20])
def test_spans_cover_every_channel_and_group_once(channels, group_size):
    spans = spans_of(channels, group_size)
    assert [c for s in spans for c in range(channels)[s.channels]] == list(range(channels))
    count = -(-channels // spans[0].size)
    sizes = [s.size for s in spans for _ in range(count)[s.groups]]
    assert sum(sizes) == channels
    assert all(size == min(group_size, channels) for size in sizes[:-1])


def test_a_remainder_is_a_span_of_its_own():
    assert spans_of(42, 16) == (
        Span(slice(0, 32), slice(0, 2), 16),
        Span(slice(32, 42), slice(2, 3), 10),
    )


@EACH_FORMAT
def test_grouping_is_a_view_and_can_be_undone(x):
    rows = is_channels_last(x)
    view = grouped(x, 3, rows)
    assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert view.shape[1:3] == (2, 3)
    assert torch.equal(ungrouped(view, x, rows), x)


@EACH_FORMAT
def test_a_group_holds_its_channels(x):
    view = grouped(x, 3, is_channels_last(x))
    for channel in range(6):
        found = view[:, channel // 3, channel % 3].flatten()
        assert torch.equal(found.sort().values, x[:, channel].flatten().sort().values)


@EACH_FORMAT
def test_a_new_output_has_the_inputs_format_and_is_no_view(x):
    out = new_output(x, is_channels_last(x))
    assert out.stride() == x.stride()
    assert out._base is None


def test_joined_matrices_end_in_an_identity():
    whole, rest = correlated((2, 3, 3)), correlated((1, 2, 2))
    joined = joined_matrices([whole, rest])
    assert torch.equal(joined[:2], whole)
    assert torch.equal(joined[2, :2, :2], rest[0])
    assert joined[2, 2].tolist() == joined[2, :, 2].tolist() == [0, 0, 1]
    assert not joined_matrices([whole, rest], 0.0)[2, 2].any()
    for span, part in zip(spans_of(8, 3), (whole, rest), strict=True):
        assert torch.equal(of_groups(joined, span), part)


def test_diagonal_matrices_hold_a_value_for_each_channel_and_end_in_ones():
    values = correlated((1, 8))[0]
    matrices = diagonal_matrices(values, 3)
    assert matrices.shape == (3, 3, 3)
    assert torch.equal(torch.block_diag(*matrices)[:8, :8], torch.diag(values))
    assert matrices[2, 2].tolist() == [0, 0, 1]
