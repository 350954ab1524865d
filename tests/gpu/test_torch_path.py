"""The torch path where values can't be looked at and copies are dear: as on a GPU, on the CPU."""

import pytest
import torch
from accuracy import compare_with_float64, worst_channel
from cases import WHITENINGS, correlated
from functorch.compile import make_boxed_func
from reference import samples
from torch._dynamo.backends.common import aot_autograd
from torch.utils._python_dispatch import TorchDispatchMode

from whitenorm import (
    DecorrelatedBatchNorm1d,
    DecorrelatedBatchNorm2d,
    functional,
    passes,
    whitening,
)
from whitenorm.precision import off_cpu

# What a device is waited for in: values that Python looks at, sizes that depend on values.
WAITS = ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "masked_select", "_linalg_eigh")


@pytest.fixture
def elsewhere(monkeypatch):
    """Tensors of the CPU are taken for tensors of a GPU, and few samples for many."""
    for module in (passes, functional, whitening):
        for name, answer in (("off_cpu", True), ("may_read_values", False), ("PIECE", 0)):
            if hasattr(module, name):
                value = answer if name == "PIECE" else lambda *_, answer=answer: answer
                monkeypatch.setattr(module, name, 0 if name == "PIECE" else value)
    monkeypatch.setattr(whitening, "surely_finite", lambda S: False)
    monkeypatch.setattr(functional, "surely_finite", lambda S: False)


class Operations(TorchDispatchMode):
    """The names of what is called, and the sizes of what comes out."""

    def __init__(self):
        super().__init__()
        self.done = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        size = result.numel() if isinstance(result, torch.Tensor) else 0
        self.done.append((function.overloadpacket.__name__, size, function.is_view))
        return result

    def launches(self):
        hollow = (
            "empty",
            "new_empty",
            "new_empty_strided",
            "empty_like",
            "_unsafe_view",
            "promote_types",
            "detach",
        )
        return [n for n, _, is_view in self.done if not is_view and n not in hollow]


def far(x, deviations):
    mean, std = (s.view(-1, *[1] * (x.dim() - 2)) for s in (samples(x).mean(1), samples(x).std(1)))
    return ((x - mean) / std + deviations).float()


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("layout", ["rows", "maps", "small maps", "channels last"])
@pytest.mark.parametrize("deviations", [0.0, 3.9, 100.0, 1000.0])
def test_float32_is_as_accurate_as_promised_wherever_the_mean_is(layout, deviations):
    shape = {"rows": (4096, 20), "small maps": (256, 20, 3, 3)}.get(layout, (16, 20, 16, 16))
    x, dy = far(correlated(shape), deviations), correlated(shape, 1).float() + 0.3
    if layout == "channels last":
        x, dy = (t.contiguous(memory_format=torch.channels_last) for t in (x, dy))
    assert max(compare_with_float64(x, dy)) <= (1e-5 if deviations < 100 else 1e-4)


def passes_of(layer, x):
    dy = torch.ones_like(x)
    with Operations() as forward:
        y = layer(x)
    with Operations() as backward:
        torch.autograd.grad(y, [x, *layer.parameters()], dy)
    return forward, backward


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("whitening", WHITENINGS)
def test_the_input_is_copied_once_forward_and_once_backward(whitening):
    layer = DecorrelatedBatchNorm2d(32, whitening=whitening)
    forward, backward = passes_of(layer, torch.randn(32, 32, 16, 16, requires_grad=True))
    for operations in (forward, backward):
        large = [n for n, size, is_view in operations.done if size >= 32**2 * 256 and not is_view]
        products = {"new_empty", "copy_", "baddbmm_"}  # the output: allocated, constant, products
        assert [name for name in large if name not in products] == ["sub"]


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    ("whitening", "most"), [("zca", (43, 42)), ("cholesky", (43, 40)), ("newton", (67, 133))]
)
def test_small_calls_are_no_more_than_documented(whitening, most):
    paper = {"running": "whitening", "shrinkage": 0.0}
    layer = DecorrelatedBatchNorm2d(32, whitening=whitening, **paper)
    operations = passes_of(layer, torch.randn(32, 32, 16, 16, requires_grad=True))
    assert [len(each.launches()) <= most[i] for i, each in enumerate(operations)] == [True, True]


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("running", ["whitening", "covariance"])
@pytest.mark.parametrize(
    ("whitening", "waits"), [("newton", set()), ("cholesky", set()), ("zca", {"_linalg_eigh"})]
)
def test_nothing_is_waited_for_but_eigh(whitening, waits, running, momentum):
    layer = DecorrelatedBatchNorm2d(32, whitening=whitening, running=running, momentum=momentum)
    operations = passes_of(layer, torch.randn(32, 32, 16, 16, requires_grad=True))
    found = {name for each in operations for name, _, _ in each.done}
    assert found & set(WAITS) == waits


@pytest.mark.usefixtures("elsewhere")
def test_a_batch_with_nan_spoils_its_group_alone():
    layer = DecorrelatedBatchNorm2d(8, group_size=4)
    x = correlated((8, 8, 6, 6)).float()
    expected = layer(x)
    before = [buffer.clone() for buffer in layer.buffers()]
    x[2, 5, 1, 1] = torch.inf
    y = layer(x)
    assert y[:, 4:].isnan().all()
    assert torch.equal(y[:, :4], expected[:, :4])
    assert all(torch.equal(a, b) for a, b in zip(layer.buffers(), before, strict=True))


def trained_graphs(layer, x):
    """What torch.compile's graphs of forward and backward call."""
    found = []

    def noted(graph, example_inputs):
        found.extend(node for node in graph.graph.nodes if node.op == "call_function")
        return make_boxed_func(graph.forward)

    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend=aot_autograd(fw_compiler=noted))
    compiled(x).square().sum().backward()
    return found


def exported_graph(layer, x):
    """What the exported training graph calls."""
    graph = torch.export.export(layer, (x,)).graph_module
    modules = [m for m in graph.modules() if hasattr(m, "graph")]
    return [n for m in modules for n in m.graph.nodes if n.op == "call_function"]


def moves(node):
    """Whether a node copies to another device."""
    return "device" in node.kwargs and node.kwargs["device"] not in (None, torch.device("meta"))


@pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated")
@pytest.mark.filterwarnings(r"ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("graphs", [trained_graphs, exported_graph])
@pytest.mark.parametrize(
    ("whitening", "decomposes"), [("newton", False), ("cholesky", False), ("zca", True)]
)
def test_training_graphs_of_newton_and_cholesky_wait_for_nothing(graphs, whitening, decomposes):
    """On the device meta, every copy to the host would name another device."""
    options = {"whitening": whitening, "iterations": 2, "device": "meta"}
    layer = DecorrelatedBatchNorm1d(8, group_size=8, **options)
    nodes = graphs(layer, torch.empty(32, 8, device="meta", requires_grad=True))
    names = {str(node.target).split(".")[-2] for node in nodes if "." in str(node.target)}
    assert "bmm" in names
    assert names & {*WAITS, "linalg_eigh"} <= {"linalg_eigh", "_linalg_eigh"}
    assert any("eigh" in name for name in names) == decomposes
    assert not [node for node in nodes if moves(node)]


def lacking(error):
    def eigh(S):
        if S.dtype == torch.float32:  # as on a device that has no float64 either
            raise NotImplementedError(error)
        return torch.linalg.eigh(S)

    return lambda S, eps, _: (lambda values, D: (D @ torch.diag_embed(values.rsqrt()) @ D.mT, D))(
        *eigh(S)
    )


@pytest.mark.usefixtures("elsewhere")
def test_a_device_that_lacks_an_operation_uses_the_cpu_and_says_so_once(monkeypatch, recwarn):
    row = whitening.WHITENINGS["zca"]
    monkeypatch.setitem(whitening.WHITENINGS, "zca", row._replace(matrix=lacking("no eigh\nlong")))
    monkeypatch.setattr(whitening, "_LACKING", set())
    S = correlated((40, 4)).float().T.cov().unsqueeze(0)
    with pytest.warns(UserWarning, match=r"lacks an operation on cpu .*\(no eigh\); its small"):
        W, F = whitening.decompose(S, 1e-5, "zca", 5)
    assert W.dtype == F.dtype == torch.float32
    assert torch.allclose(W @ S @ W.mT, torch.eye(4), atol=1e-4)
    recwarn.clear()
    whitening.decompose(S, 1e-5, "zca", 5)
    assert not recwarn.list


def test_the_cpu_is_the_cpu():
    assert not off_cpu(torch.ones(1))
    assert off_cpu(torch.ones(1, device="meta"))
    assert worst_channel(torch.ones(2, 2), torch.ones(2, 2)) == 0
