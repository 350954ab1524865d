import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from cases import WHITENINGS, some
from torch import fx, nn
from torch.export import Dim
from transformers import ResNetConfig, ResNetForImageClassification

from whitenorm import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d, decorrelated_batch_norm
from whitenorm.convert import convert_batchnorm
from whitenorm.folding import ChannelAffine, fold
from whitenorm.modules import DecorrelatedBatchNorm

# What the tools of others warn of when they are used as their documentation says.
pytestmark = [
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated"),
    pytest.mark.filterwarnings(r"ignore:`torch\.jit\.\w+` is deprecated"),
    pytest.mark.filterwarnings(r"ignore:.*should not be instantiated:DeprecationWarning"),
]

# torch.jit.trace warns of every Python condition on a shape, in models of others too.
SHAPE_CHECKS = pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
TOOLS = pytest.mark.parametrize("tool", ["export", "trace", "compile"])

DECOMPOSITIONS = ("linalg", "cholesky", "svd", "_WhiteningMatrix")


class Logits(nn.Module):
    """A model of transformers as a function from tensor to tensor."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x).logits


def mlp(running):
    layers = []
    for width in (12, 40):
        layers += [nn.Linear(width, 40), DecorrelatedBatchNorm1d(40, running=running), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(40, 5)), (12,)


def resnet(running):
    """A residual network with DBN-L1: the first normalization whitens."""
    config = ResNetConfig(
        embedding_size=24, hidden_sizes=[24, 32], depths=[1, 2], layer_type="basic", num_labels=5
    )
    model = Logits(ResNetForImageClassification(config))
    return convert_batchnorm(model, where="first", running=running), (3, 32, 32)


def vgg(running):
    """VGG-A, narrow, with a DBN after each of the 8 convolutions; one has a remainder."""
    layers, channels = [], 3
    for width in (8, "pool", 20, "pool", 32, 32, "pool", 32, 32, "pool", 32, 32, "pool"):
        if width == "pool":
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [
                nn.Conv2d(channels, width, 3, padding=1, bias=False),
                DecorrelatedBatchNorm2d(width, running=running),
                nn.ReLU(inplace=True),
            ]
            channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 5)), (3, 32, 32)


def pre_activation(running):
    """DBN before the convolution, so that nothing can be folded."""
    norms = [DecorrelatedBatchNorm2d(20, group_size=8, running=running) for _ in range(2)]
    return nn.Sequential(
        nn.AvgPool2d(2), norms[0], nn.ReLU(), nn.Conv2d(20, 20, 3), nn.ReLU(), norms[1]
    ), (20, 8, 8)


def coloured(running):
    """Matrices for scales: after a convolution, with a remainder, and where nothing is before."""
    model = nn.Sequential(
        DecorrelatedBatchNorm2d(6, group_size=4, affine="matrix", running=running),
        nn.Conv2d(6, 20, 3),
        DecorrelatedBatchNorm2d(20, group_size=8, affine="matrix", running=running),
    )
    for norm in (model[0], model[2]):
        nn.init.normal_(norm.weight)
    return model, (6, 8, 8)


MODELS = {
    "mlp": mlp,
    "resnet": resnet,
    "vgg": vgg,
    "pre-activation": pre_activation,
    "coloured": coloured,
}
FOLDED = {"mlp": 2, "resnet": 8, "vgg": 8, "pre-activation": 0, "coloured": 1}
AFFINE = {"pre-activation": 2, "coloured": 1}

CASES = [(name, running, False) for name in MODELS for running in ("whitening", "covariance")]
CASES += [(name, "whitening", True) for name in MODELS]
QUICK = [("mlp", "whitening", False), ("pre-activation", "whitening", False)]
QUICK += [(name, "covariance", False) for name in ("mlp", "resnet", "vgg")]
QUICK += [(name, "whitening", True) for name in ("vgg", "pre-activation")]
COMPILED = [("mlp", "whitening", False), ("mlp", "covariance", False), ("vgg", "whitening", False)]
COMPILED += [("resnet", "covariance", False), ("pre-activation", "whitening", True)]
COMPILED += [("coloured", "covariance", False)]


@pytest.fixture(
    params=some(QUICK, CASES), ids=lambda c: f"{c[0]}-{c[1]}{'-folded' if c[2] else ''}"
)
def case(request):
    """A model that has seen some batches, in inference mode, folded or not, and two inputs."""
    name, running, folded = request.param
    torch.manual_seed(0)
    model, shape = MODELS[name](running)
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(64, *shape) * 2 + 1)
    model.eval()
    if folded:
        model = fold(model)
        assert len(model.fold_report.folded) == FOLDED[name]
        assert not any(isinstance(m, DecorrelatedBatchNorm) for m in model.modules())
        affine = sum(isinstance(m, ChannelAffine) for m in model.modules())
        assert affine == AFFINE.get(name, 0)
    return model, torch.randn(4, *shape), torch.randn(7, *shape)


def operations(tool, model, *inputs):
    """All that a tool's graph of a model does, in the subgraphs too."""
    if tool == "export":
        graphs = torch.export.export(model, inputs).graph_module.modules()
        return [str(node.target) for g in graphs for node in g.graph.nodes if "call" in node.op]
    if tool == "trace":
        return str(torch.jit.trace(model, inputs).inlined_graph).splitlines()
    found = []

    def backend(graph, example_inputs):
        graphs = [m for m in graph.modules() if isinstance(m, fx.GraphModule)]
        found.extend(str(node.target) for g in graphs for node in g.graph.nodes)
        return graph.forward

    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(model, fullgraph=True, backend=backend)(*inputs)
    return found


def decompositions(operations):
    return [each for each in operations if any(name in each for name in DECOMPOSITIONS)]


def test_onnxruntime_computes_the_same_for_any_batch_size(case, tmp_path):
    model, x, other = case
    path = tmp_path / "model.onnx"
    program = torch.onnx.export(
        model, (x,), dynamo=True, dynamic_shapes=({0: Dim("batch")},), verbose=False
    )
    program.save(path)
    nodes = onnx.load(path).graph.node
    assert {node.domain for node in nodes} == {""}  # the standard's operators alone
    assert not decompositions(node.op_type for node in nodes)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (feed,) = session.get_inputs()
    for batch in (x, other, other[:1]):
        (y,) = session.run(None, {feed.name: batch.numpy()})
        np.testing.assert_allclose(y, model(batch).detach().numpy(), rtol=1e-4, atol=1e-4)


def test_an_exported_program_computes_the_same_for_any_batch_size(case):
    model, x, other = case
    program = torch.export.export(model, (x,), dynamic_shapes=({0: Dim("batch")},))
    for batch in (x, other):
        torch.testing.assert_close(program.module()(batch), model(batch), rtol=1e-4, atol=1e-5)


@SHAPE_CHECKS
def test_a_traced_model_computes_the_same_for_any_batch_size(case):
    model, x, other = case
    traced = torch.jit.trace(model, x)
    for batch in (x, other):
        torch.testing.assert_close(traced(batch), model(batch), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", COMPILED, ids=str, indirect=True)
def test_a_compiled_model_computes_the_same_in_one_graph(case):
    model, x, other = case
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        for batch in (x, other):
            torch.testing.assert_close(compiled(batch), model(batch), rtol=1e-4, atol=1e-5)


@SHAPE_CHECKS
@TOOLS
@pytest.mark.parametrize("whitening", WHITENINGS)
@pytest.mark.parametrize("running", ["whitening", "covariance"])
def test_no_inference_graph_decomposes_a_matrix(tool, whitening, running):
    layer = DecorrelatedBatchNorm2d(6, group_size=4, whitening=whitening, running=running)
    x = torch.randn(8, 6, 3, 3)
    layer(x)
    assert not decompositions(operations(tool, layer.eval(), x))


@SHAPE_CHECKS
@TOOLS
def test_no_inference_graph_decomposes_a_matrix_after_a_checkpoint_is_loaded(tool):
    layer = DecorrelatedBatchNorm2d(6, running="covariance").eval()
    layer.load_state_dict(layer.state_dict())
    assert not decompositions(operations(tool, layer, torch.randn(8, 6, 3, 3)))


class Decomposes(nn.Module):
    @torch.no_grad()
    def forward(self, x):
        mean, covariance = x.mean(0), (x.T @ x).unsqueeze(0)
        return decorrelated_batch_norm(x, mean, covariance, running="covariance")


@SHAPE_CHECKS
@TOOLS
def test_a_decomposition_would_be_seen(tool):
    assert decompositions(operations(tool, Decomposes(), torch.randn(8, 4)))


def test_inference_of_a_folded_network_does_what_a_plain_one_does():
    torch.manual_seed(0)
    model, shape = vgg("whitening")
    plain = nn.Sequential(*[m for m in model if not isinstance(m, DecorrelatedBatchNorm2d)]).eval()
    model, x = model.eval(), torch.randn(2, *shape)
    expected = operations("export", plain, x)
    assert operations("export", fold(model), x) == expected
    assert operations("export", model, x) != expected
