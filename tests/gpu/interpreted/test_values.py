"""What the kernels compute, in Triton's interpreter, against the float64 oracle."""

import pytest
import reference
import torch
from accuracy import forward_backward, worst_channel
from cases import correlated, some, tied

from whitenorm import DecorrelatedBatchNorm2d, decorrelated_batch_norm
from whitenorm.gpu import gate, launch

pytestmark = pytest.mark.usefixtures("interpreted")

FORMATS = {
    "rows": (45, 7),
    "maps": (4, 7, 3, 5),
    "one image": (1, 7, 7, 6),
    "channels last": (4, 7, 3, 5),
    "volumes": (3, 7, 2, 3, 2),
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


def errors_at_ties(x, dy, group_size, eps=1e-5, on=True):
    """Where the paper's Algorithm 2 divides by zero: against torch's path in float64."""
    with gate.switched(on):
        found = forward_backward(x, dy, group_size=group_size, eps=eps)
    with gate.switched(False):
        expected = forward_backward(x.double(), dy.double(), group_size=group_size, eps=eps)
    # Some channels are zero throughout.
    scales = [(e.norm() / e.shape[1] ** 0.5).clamp(min=1e-300) for e in expected]
    return [
        ((a.double() - b).transpose(0, 1).flatten(1).norm(dim=1).max() / scale).item()
        for a, b, scale in zip(found, expected, scales, strict=True)
    ]


@pytest.mark.parametrize("name", some(["rows", "maps", "channels last"], FORMATS))
def test_every_layout(name):
    assert max(errors(*example(name), 4)) <= DTYPES[torch.float32]


@pytest.mark.parametrize("name", some(["maps"], FORMATS))
@pytest.mark.parametrize("dtype", some([torch.float64, torch.bfloat16], DTYPES), ids=str)
def test_every_dtype(name, dtype):
    assert max(errors(*example(name, dtype), 4)) <= DTYPES[dtype]


@pytest.mark.parametrize("k", some((1, 23), range(1, 33)))
def test_every_group_size_with_a_remainder(k):
    shape = (3 * k + 20, k + (k + 1) // 2 if k > 1 else 3)
    assert max(errors(correlated(shape).float(), correlated(shape, 1).float(), k)) <= 1e-5


def test_gradients_of_another_layout_than_the_input():
    x, dy = example("maps")
    last = dy.contiguous(memory_format=torch.channels_last)
    for given in (last, dy[:, :, :1, :1].expand_as(dy)):
        assert max(errors(x, given.detach(), 4)) <= 2e-6


def test_an_input_that_is_part_of_another():
    x = correlated((8, 10, 3, 5)).float()
    for part in (x[::2, :7], x[:4, 3:, :, :4]):
        dy = correlated(part.shape, 1).float()
        y, gradient = forward_backward(part, dy, group_size=4)
        expected, _, _ = reference.dbn(part, 4, 1e-5)
        assert worst_channel(y, expected) <= 2e-6
        assert worst_channel(gradient, reference.dbn_gradient(part, dy, 4, 1e-5)) <= 2e-6


def dead(x):
    x[:, 1] = 0.5
    x[:, 6] = 0.0
    return x


AT_TIES = {
    "equal eigenvalues": lambda: tied(16, 8),
    "dead channels": lambda: dead(correlated((25, 8))),
    "duplicated channels": lambda: correlated((25, 4)).repeat(1, 2),
    "fewer samples than channels": lambda: correlated((5, 8)),
    "two samples": lambda: correlated((2, 8)),
    "nothing but zeros": lambda: torch.zeros(9, 8, dtype=torch.float64),
}


@pytest.mark.parametrize("name", some(list(AT_TIES)[:4], AT_TIES))
def test_ties_in_float64(name):
    x = AT_TIES[name]()
    assert max(errors_at_ties(x, correlated(x.shape, 1), 8)) <= 1e-9


@pytest.mark.parametrize("name", some(["dead channels"], AT_TIES))
def test_ties_in_float32(name):
    """Two samples lose more in float32, on any path: no more here than on torch's."""
    x = AT_TIES[name]().float()
    dy = correlated(x.shape, 1).float()
    ours, theirs = (errors_at_ties(x, dy, 8, on=on) for on in (True, False))
    assert max(ours) <= max(1e-4, *theirs)


@pytest.fixture(params=[True, False], ids=["few samples", "many samples"])
def few(request, monkeypatch):
    """Few samples are added up in float64; ``many`` is a matter of a threshold."""
    if not request.param:
        monkeypatch.setattr(launch, "PIECE", 0)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("name", some(["maps"], ["maps", "channels last"]))
def test_a_mean_of_a_thousand_deviations(name):
    x, dy = example(name, torch.float64)
    mean, std = (
        s.view(-1, 1, 1) for s in (reference.samples(x).mean(1), reference.samples(x).std(1))
    )
    x = ((x - mean) / std + 1000).float()
    assert max(errors(x, dy.float(), 4)) <= 2e-6


def conditioned(number, k=8, m=200):
    generator = torch.Generator().manual_seed(0)
    Q, _ = torch.linalg.qr(torch.randn(k, k, generator=generator, dtype=torch.float64))
    z, _ = torch.linalg.qr(torch.randn(m, k, generator=generator, dtype=torch.float64))
    scales = torch.logspace(0, -torch.tensor(number).log10() / 2, k, dtype=torch.float64)
    return m**0.5 * z * scales @ Q.T + 0.1


def test_a_condition_number_of_a_million():
    x, dy = conditioned(1e6), correlated((200, 8), 1)
    assert max(errors(x, dy, 8, eps=1e-9)) <= 1e-9
    assert max(errors(x.float(), dy.float(), 8, eps=1e-9)) <= 1e-4


@pytest.mark.parametrize(
    "weight_dtype",
    some([torch.bfloat16], [torch.float32, torch.float64, torch.bfloat16]),
    ids=str,
)
def test_scale_and_shift_and_their_gradients(weight_dtype):
    x, dy = example("maps")
    weight, bias = (correlated((2, 7), seed)[0].to(weight_dtype) for seed in (3, 4))
    inputs = [t.clone().requires_grad_() for t in (x, weight, bias)]
    y = decorrelated_batch_norm(inputs[0], None, None, *inputs[1:], True, group_size=4)
    assert "whiten" in str(y.grad_fn)
    found = torch.autograd.grad(y, inputs, dy)
    shape = (1, 7, 1, 1)
    white, _, _ = reference.dbn(x, 4, 1e-5)
    tolerance = max(2e-6, torch.finfo(weight_dtype).eps)
    expected = white * weight.double().view(shape) + bias.double().view(shape)
    assert worst_channel(y.detach(), expected) <= 2e-6
    scaled = dy.double() * weight.double().view(shape)
    assert worst_channel(found[0], reference.dbn_gradient(x, scaled, 4, 1e-5)) <= 2e-6
    for gradient, expected in zip(
        found[1:], ((dy * white).sum((0, 2, 3)), dy.double().sum((0, 2, 3))), strict=True
    ):
        assert gradient.dtype == weight_dtype
        assert (gradient - expected).norm() / expected.norm() <= tolerance


@pytest.mark.parametrize("running", ["whitening", "covariance"])
@pytest.mark.parametrize("momentum", some([0.1], [0.1, None]))
def test_running_statistics_are_those_of_the_torch_path(running, momentum):
    layers = [
        DecorrelatedBatchNorm2d(7, group_size=4, running=running, momentum=momentum)
        for _ in range(2)
    ]
    for seed in range(2):
        x = correlated((4, 7, 3, 5), seed).float()
        layers[0](x)
        gate.disable()
        layers[1](x)
        gate.enable()
    for (name, found), expected in zip(
        layers[0].named_buffers(), layers[1].buffers(), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, in the interpreter
@pytest.mark.parametrize("bad", some([torch.inf], [torch.nan, torch.inf]))
def test_a_batch_with_nan_or_inf_spoils_its_groups_and_no_running_statistics(bad):
    layer = DecorrelatedBatchNorm2d(7, group_size=4)
    x = correlated((4, 7, 3, 5)).float()
    expected = layer(x)
    before = [buffer.clone() for buffer in layer.buffers()]
    x[2, 5, 1, 1] = bad
    x.requires_grad_()
    y = layer(x)
    y.backward(torch.ones_like(y))
    assert y[:, 4:].isnan().all()
    assert torch.equal(y[:, :4], expected[:, :4])
    assert x.grad[:, :4].isfinite().all()
    assert all(torch.equal(a, b) for a, b in zip(layer.buffers(), before, strict=True))


@pytest.mark.parametrize("shrinkage", some(["bounded"], ["auto", "bounded", 0.3]))
def test_shrinkage_is_that_of_the_torch_path(shrinkage):
    x, dy = example("maps", torch.float64)
    options = {"group_size": 4, "shrinkage": shrinkage}
    layers = [DecorrelatedBatchNorm2d(7, running="covariance", **options) for _ in range(2)]
    found = (*forward_backward(x, dy, **options), layers[0](x))
    gate.disable()
    expected = (*forward_backward(x, dy, **options), layers[1](x))
    for a, b in zip(
        (*found, *layers[0].buffers()), (*expected, *layers[1].buffers()), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_only_the_wanted_gradients_are_computed():
    x, dy = example("maps")
    weight = torch.ones(7, requires_grad=True)
    y = decorrelated_batch_norm(x, None, None, weight, None, True, group_size=4)
    (gradient,) = torch.autograd.grad(y, weight, dy)
    white, _, _ = reference.dbn(x, 4, 1e-5)
    torch.testing.assert_close(
        gradient.double(), (dy * white).sum((0, 2, 3)), rtol=1e-5, atol=1e-5
    )


def test_the_same_result_every_time():
    x, dy = example("maps")
    first, second = (forward_backward(x, dy, group_size=4) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
