"""A convolution that whitens patches: its definition, the published weights, what is refused."""

import pytest
import torch
from cases import correlated, covariance
from torch import nn

from whitenorm import patches, whiten_convolution_


def assert_close(found, expected, tolerance=1e-10):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


PICTURES = correlated((60, 3, 9, 8)).cumsum(2).cumsum(3) / 9 + 0.5


CONVOLUTIONS = {
    "plain": (nn.Conv2d(3, 12, 2), PICTURES),
    "stride": (nn.Conv2d(3, 12, 2, stride=2), PICTURES),
    "dilation": (nn.Conv2d(3, 18, (2, 3), stride=(1, 2), dilation=(3, 1)), PICTURES),
    "1d": (nn.Conv1d(3, 12, 4, dilation=2), correlated((60, 3, 20))),
    "3d": (nn.Conv3d(3, 24, 2), correlated((30, 3, 4, 5, 4))),
}


@pytest.mark.parametrize(("conv", "pictures"), CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_outputs_of_a_whitened_convolution_have_mean_zero_and_the_identity_as_covariance(
    conv, pictures
):
    assert whiten_convolution_(conv.double(), pictures, eps=0.0) is conv
    y = conv(pictures)
    assert_close(y.movedim(1, 0).flatten(1).mean(1), torch.zeros(y.shape[1]).double(), 1e-8)
    assert_close(covariance(y), torch.eye(y.shape[1]).double(), 1e-8)


@pytest.mark.parametrize("outputs", [5, 12, 20, 24])
def test_the_weights_are_the_published_ones(outputs):
    """Eigenvectors of the patches' covariance over sqrt(eigenvalue + eps), then negated."""
    conv = whiten_convolution_(nn.Conv2d(3, outputs, 2, bias=False).double(), PICTURES)
    seen = PICTURES.unfold(2, 2, 1).unfold(3, 2, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 12)
    values, vectors = [t.flip(-1) for t in torch.linalg.eigh(covariance(seen))]
    expected = (vectors / (values + 5e-4).sqrt()).T
    expected = torch.cat([expected, -expected])[:outputs].view_as(conv.weight)
    signs = (conv.weight * expected).sum((1, 2, 3), keepdim=True).sign()
    assert_close(conv.weight.detach(), expected * signs)
    assert torch.equal(conv.weight[12:], -conv.weight[: max(outputs - 12, 0)])


def test_only_the_weights_and_the_bias_change():
    conv = nn.Conv2d(3, 24, 2)
    conv.weight.requires_grad_(False)
    weight, bias = conv.weight, conv.bias
    whiten_convolution_(conv, PICTURES.float())
    assert conv.weight is weight
    assert conv.bias is bias
    assert (weight.requires_grad, bias.requires_grad) == (False, True)
    assert_close(bias[:12], -bias[12:], 1e-6)


def test_patches_in_the_padding_do_not_count():
    plain = whiten_convolution_(nn.Conv2d(3, 12, 2).double(), PICTURES)
    padded = whiten_convolution_(nn.Conv2d(3, 12, 2, padding=1).double(), PICTURES)
    assert torch.equal(plain.weight, padded.weight)


def test_pictures_may_come_in_batches(monkeypatch):
    expected = whiten_convolution_(nn.Conv2d(3, 12, 2).double(), PICTURES)
    batches = [(x, None) for x in PICTURES.split([17, 0, 43])]
    found = whiten_convolution_(nn.Conv2d(3, 12, 2).double(), iter(batches))
    assert_close(found.weight, expected.weight)
    monkeypatch.setattr(patches, "_HELD", 12 * 72 * 7)
    found = whiten_convolution_(nn.Conv2d(3, 12, 2).double(), PICTURES)
    assert_close(found.weight, expected.weight)
    assert_close(found.bias, expected.bias)


def test_a_convolution_in_half_precision_is_whitened():
    conv = whiten_convolution_(nn.Conv2d(3, 12, 2).half(), PICTURES.half())
    expected = whiten_convolution_(nn.Conv2d(3, 12, 2).double(), PICTURES.half().double())
    assert conv.weight.dtype == torch.float16
    assert_close(conv.weight.double(), expected.weight, 2e-3)


@pytest.mark.parametrize(
    ("conv", "pictures", "message"),
    [
        (nn.Linear(3, 3), PICTURES, "expected a Conv1d, Conv2d or Conv3d, got Linear"),
        (nn.ConvTranspose2d(3, 3, 2), PICTURES, "Conv3d, got ConvTranspose2d"),
        (nn.Conv2d(3, 6, 2, groups=3), PICTURES, "expected groups=1, got 3"),
        (nn.Conv2d(3, 25, 2), PICTURES, "of 25 outputs: use 24 or fewer"),
        (nn.Conv2d(4, 6, 2), PICTURES, r"shape \(N, 4, H, W\) for Conv2d, got shape \(60, 3, 9"),
        (nn.Conv2d(3, 6, 2), PICTURES[0], r"shape \(N, 3, H, W\) for Conv2d, got shape \(3, 9"),
        (nn.Conv1d(3, 6, 2), PICTURES, r"shape \(N, 3, W\) for Conv1d"),
        (nn.Conv2d(3, 6, 9), PICTURES, r"\(9, 8\) pixels are smaller .* patches of \(9, 9\)"),
        (nn.Conv2d(3, 6, 2), (PICTURES * 255).byte(), "floating-point input, got torch.uint8"),
        (nn.Conv2d(3, 6, 2), [], "batches is empty"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_convolution_that_cannot_be_whitened_is_an_error_that_says_why(conv, pictures, message):
    with pytest.raises((ValueError, TypeError), match=message):
        whiten_convolution_(conv, pictures)
