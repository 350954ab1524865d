"""The operators as torch sees them: schema, fake tensors, derivatives, whole graphs."""

import pytest
import torch
from cases import HARD, correlated
from torch import nn
from torch.library import opcheck

from whitenorm import DecorrelatedBatchNorm2d, decorrelated_batch_norm
from whitenorm.gpu import gate, operators

pytestmark = pytest.mark.usefixtures("interpreted")

SLOW = pytest.mark.slow


def inputs(rows=False, affine=True):
    x = correlated((4, 5, 2, 3)).float()
    if rows:
        x = x.contiguous(memory_format=torch.channels_last)
    weight, bias = (correlated((2, 5), seed)[0].float() for seed in (1, 2))
    tensors = (x, weight, bias) if affine else (x, None, None)
    return *(t if t is None else t.requires_grad_() for t in tensors), 1e-5, 3, 0.1, False


@SLOW
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("affine", [True, False])
def test_whiten_is_an_operator_by_torchs_own_checks(rows, affine):
    opcheck(operators.whiten, inputs(rows, affine))


@SLOW
@pytest.mark.parametrize("of_input", [True, False])
def test_the_other_operators_are_too(of_input):
    x, weight, bias, eps, group_size, *_ = inputs()
    y, mean, _, W, norm, kept, finite, shift = operators.whiten(*inputs())
    tensors = (torch.ones_like(y), x, weight, bias, mean, W, norm, kept, shift)
    detached = [t.detach() for t in tensors]
    checks = ("test_schema", "test_faketensor")
    arguments = (*detached, eps, group_size, of_input)
    opcheck(operators.whiten_backward, arguments, test_utils=checks)
    running = torch.zeros(5), torch.zeros(2, 3, 3), torch.tensor(0)
    batch = mean.detach(), W.detach(), finite, 1.0
    opcheck(operators.update_running, (*running, *batch, 0.1 if of_input else None))


def whitened(*tensors):
    return decorrelated_batch_norm(tensors[0], None, None, *tensors[1:], training=True)


@pytest.mark.parametrize(
    "name", [n if n == "equal eigenvalues" else pytest.param(n, marks=SLOW) for n in HARD]
)
def test_gradients_are_those_of_finite_differences(name):
    x = HARD[name].clone().requires_grad_()
    affine = [correlated((2, x.shape[1]), s)[0].requires_grad_() for s in (1, 2)]
    # Along a random direction: the interpreter takes its time.
    assert torch.autograd.gradcheck(whitened, (x, *affine), fast_mode=True)


@SLOW
def test_gradients_of_gradients_are_those_of_the_torch_path():
    x = tuple(t for t in (correlated((5, 3)), *correlated((2, 3), 1)))
    results = []
    for on in (True, False):
        gate.enable() if on else gate.disable()
        given = [t.clone().requires_grad_() for t in x]
        first = torch.autograd.grad(whitened(*given).pow(3).sum(), given, create_graph=True)
        results.append(torch.autograd.grad(sum(g.square().sum() for g in first), given))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 5, 3, bias=False),
        DecorrelatedBatchNorm2d(5, group_size=3),
        nn.ReLU(inplace=True),
    )


def trained(model, step, x, steps=2):
    for _ in range(steps):
        loss = step(x).square().sum()
        loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters()), *model.buffers()]


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=SLOW)])
def test_torch_compile_takes_the_layer_whole(backend):
    graphs = []

    def counted(graph, example_inputs):
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return torch._dynamo.lookup_backend(backend)(graph, example_inputs)

    x = torch.randn(4, 3, 5, 5)
    torch.compiler.reset()
    compiled, eager = network(), network()
    step = torch.compile(compiled, fullgraph=True, backend=counted)
    found = trained(compiled, step, x)
    assert len(graphs) == 1
    assert sum("whitenorm.whiten" in name for name in graphs[0]) == 1
    assert sum("update_running" in name for name in graphs[0]) == 1
    gate.disable()
    for a, b in zip(found, trained(eager, eager, x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
