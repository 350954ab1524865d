"""What the kernels compute, in Triton's interpreter, against the float64 oracle."""

import pytest
import reference
import torch
from accuracy import forward_backward, worst_channel
from cases import correlated, tied

from whitenorm import DecorrelatedBatchNorm2d, decorrelated_batch_norm
from whitenorm.gpu import gate, launch

pytestmark = pytest.mark.usefixtures("interpreted")

FORMATS = {
    "rows": (45, 11),
    "maps": (4, 11, 3, 5),
    "one image": (1, 11, 7, 6),
    "channels last": (4, 11, 3, 5),
    "volumes": (3, 11, 2, 3, 2),
}
DTYPES = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}


def example(name, dtype=torch.float32):
    shape = FORMATS[name]
    x, dy = correlated(shape).to(dtype), correlated(shape, 1).to(dtype)
    if name == "channels last":
        x, dy = (t.contiguous(memory_format=torch.channels_last) for t in (x, dy))
    return x, dy


def errors(x, dy, group_size, eps=1e-5):
    """Of output and gradient, against the paper's algorithms in float64."""
    y, gradient = forward_backward(x, dy, group_size=group_size, eps=eps)
    assert y.dtype == gradient.dtype == x.dtype
    assert y.stride() == gradient.stride() == x.stride()
    expected, _, _ = reference.dbn(x, group_size, eps)
    expected_gradient = reference.dbn_gradient(x, dy, group_size, eps)
    return worst_channel(y, expected), worst_channel(gradient, expected_gradient)


def errors_at_ties(x, dy, group_size, eps=1e-5):
    """Where the paper's Algorithm 2 divides by zero: against torch's path in float64."""
    found = forward_backward(x, dy, group_size=group_size, eps=eps)
    gate.disable()
    expected = forward_backward(x.double(), dy.double(), group_size=group_size, eps=eps)
    gate.enable()
    scales = [e.norm() / e.shape[1] ** 0.5 for e in expected]  # some channels are zero throughout
    return [
        ((a.double() - b).transpose(0, 1).flatten(1).norm(dim=1).max() / scale).item()
        for a, b, scale in zip(found, expected, scales, strict=True)
    ]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_layout_and_dtype(name, dtype):
    x, dy = example(name, dtype)
    assert max(errors(x, dy, 4)) <= DTYPES[dtype]


SOME = (1, 2, 3, 8, 16, 23, 32)


@pytest.mark.parametrize(
    "k", [k if k in SOME else pytest.param(k, marks=pytest.mark.slow) for k in range(1, 33)]
)
def test_every_group_size_with_a_remainder(k):
    shape = (3 * k + 20, k + (k + 1) // 2 if k > 1 else 3)
    assert max(errors(correlated(shape).float(), correlated(shape, 1).float(), k)) <= 1e-5
