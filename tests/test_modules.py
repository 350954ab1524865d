"""The layers: state, modes, drop-in behaviour, errors."""

import copy
import io
import pickle
import warnings

import pytest
import reference
import torch
from cases import SHAPES, WHITENINGS, colouring, correlated, covariance, some
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import whitenorm
from whitenorm import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d, TranslatedReLU

LAYERS = pytest.mark.parametrize(("cls", "shape"), list(SHAPES.values()), ids=list(SHAPES))
RUNNING = pytest.mark.parametrize("running", ["whitening", "covariance"])


# --- as BatchNorm -------------------------------------------------------------------------------


def batch_norm(layer):
    return getattr(nn, type(layer).__name__.replace("Decorrelated", ""))


@LAYERS
def test_group_size_one_is_batch_norm(cls, shape):
    """In training, and with a running covariance in inference too."""
    ours = cls(shape[1], group_size=1, running="covariance").double()
    theirs = batch_norm(ours)(shape[1]).double()
    with torch.no_grad():
        for name in ("weight", "bias"):
            getattr(ours, name).copy_(correlated((2, shape[1]))[0])
            getattr(theirs, name).copy_(getattr(ours, name))
    for step in range(3):
        x = correlated(shape, step).requires_grad_()
        z = x.detach().clone().requires_grad_()
        dy = correlated(shape, step + 10)
        ours(x).backward(dy)
        theirs(z).backward(dy)
        torch.testing.assert_close(ours(x.detach()), theirs(z.detach()))
        torch.testing.assert_close(x.grad, z.grad)
        torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
        torch.testing.assert_close(ours.bias.grad, theirs.bias.grad)
    x = correlated(shape, 99)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))


def test_the_arguments_are_batch_norms_in_their_order():
    ours = DecorrelatedBatchNorm2d(8, 1e-3, 0.2, False, False, "cpu", torch.float64)
    assert (ours.eps, ours.momentum, ours.affine, ours.track_running_stats) == (
        1e-3,
        0.2,
        False,
        False,
    )
    assert (
        DecorrelatedBatchNorm2d(8, device="cpu", dtype=torch.float64).weight.dtype == torch.float64
    )
    with pytest.raises(TypeError):
        DecorrelatedBatchNorm2d(8, 1e-3, 0.2, True, True, None, None, 4)


@LAYERS
def test_an_in_place_relu_may_follow(cls, shape):
    x = correlated(shape).requires_grad_()
    layer = cls(shape[1], group_size=5).double()
    for norm in (layer.train(), layer.eval()):
        (expected,) = torch.autograd.grad(norm(x).relu().square().sum(), x)
        (gradient,) = torch.autograd.grad(nn.ReLU(inplace=True)(norm(x)).square().sum(), x)
        torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("channels", [32, 42])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize(
    ("shape", "memory_format"),
    [
        ((4, 8, 8), torch.channels_last),
        ((4, 8, 8), torch.contiguous_format),
        ((4, 4, 4, 4), torch.channels_last_3d),
    ],
)
def test_memory_format_is_preserved(channels, training, shape, memory_format):
    n, *positions = shape
    cls = {2: DecorrelatedBatchNorm2d, 3: whitenorm.DecorrelatedBatchNorm3d}[len(positions)]
    layer = cls(channels).train(training)
    x = correlated((n, channels, *positions), dtype=torch.float32)
    formatted = x.clone(memory_format=memory_format).requires_grad_()
    y = layer(formatted)
    assert y.is_contiguous(memory_format=memory_format)
    torch.testing.assert_close(y, copy.deepcopy(layer)(x), rtol=1e-4, atol=1e-4)
    dy = torch.ones_like(x).cumsum(0)  # of the other format
    y.backward(dy)
    assert formatted.grad.is_contiguous(memory_format=memory_format)
    plain = x.clone().requires_grad_()
    layer(plain).backward(dy)
    torch.testing.assert_close(formatted.grad, plain.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("strides", ["transposed", "strided", "expanded"])
def test_any_strides_are_read_rightly(strides):
    x = correlated((6, 8, 5, 7))
    views = {
        "transposed": x.transpose(2, 3).contiguous().transpose(2, 3),
        "strided": torch.stack([x, x], -1)[..., 0],
        "expanded": x[..., :1].expand(6, 8, 5, 7),
    }
    view = views[strides]
    layer = DecorrelatedBatchNorm2d(8, group_size=4).double()
    leaf, plain = view.clone().requires_grad_(), view.contiguous().requires_grad_()
    torch.testing.assert_close(layer(view), layer(view.contiguous()))
    layer(leaf).pow(3).sum().backward()
    layer(plain).pow(3).sum().backward()
    torch.testing.assert_close(leaf.grad, plain.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_one_tensor_of_the_inputs_size_is_kept_for_backward(dtype):
    layer = DecorrelatedBatchNorm2d(32)
    x = correlated((32, 32, 16, 16)).to(dtype).requires_grad_()
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = layer(x)
        del y
    assert sum(kept.values()) <= 1.1 * x.untyped_storage().nbytes()


# --- running statistics -------------------------------------------------------------------------


@LAYERS
@pytest.mark.parametrize("group_size", [4, 5, 64])
@pytest.mark.parametrize("momentum", [0.1, 0.7, None])
def test_running_statistics_follow_algorithm_1(cls, shape, group_size, momentum):
    paper = {"running": "whitening", "shrinkage": 0.0}
    layer = cls(shape[1], momentum=momentum, group_size=group_size, **paper).double()
    sizes = [t.shape[1] for t in reference.split(torch.empty(shape), group_size)]
    mean, matrices = torch.zeros(shape[1]).double(), [torch.eye(k).double() for k in sizes]
    for step in range(4):
        x = correlated(shape, step)
        layer(x)
        rate = momentum if momentum is not None else 1 / (step + 1)
        _, batch_mean, batch_matrices = reference.dbn(x, group_size, layer.eps)
        mean = (1 - rate) * mean + rate * batch_mean
        matrices = [
            (1 - rate) * old + rate * new
            for old, new in zip(matrices, batch_matrices, strict=True)
        ]
    torch.testing.assert_close(layer.running_mean, mean)
    for stored, expected, k in zip(layer.running_whitening, matrices, sizes, strict=True):
        torch.testing.assert_close(stored[:k, :k], expected)
    assert layer.num_batches_tracked == 4

    x = correlated(shape, 50)
    whitened = [
        (part.movedim(1, -1) @ W.T).movedim(-1, 1)
        for part, W in zip(
            reference.split(x - mean.view(-1, *[1] * (x.dim() - 2)), group_size),
            matrices,
            strict=True,
        )
    ]
    torch.testing.assert_close(layer.eval()(x), torch.cat(whitened, 1))


@pytest.mark.parametrize("whitening", WHITENINGS)
def test_a_running_covariance_is_unbiased_and_without_eps(whitening):
    layer = DecorrelatedBatchNorm1d(
        4, eps=0.1, momentum=1.0, whitening=whitening, running="covariance", shrinkage=0.0
    ).double()
    x = correlated((10, 4))
    layer(x)
    unbiased = covariance(x) * 10 / 9
    torch.testing.assert_close(layer.running_covariance[0], unbiased)
    W = whitenorm.whitening_matrix(unbiased, 0.1, whitening)
    torch.testing.assert_close(layer.eval()(x), (x - x.mean(0)) @ W.T)


@LAYERS
@RUNNING
def test_inference_before_any_step_is_the_identity(cls, shape, running):
    layer = cls(
        shape[1], group_size=5, eps=0.0 if running == "covariance" else 0.1, running=running
    )
    layer.double().eval()
    x = correlated(shape)
    torch.testing.assert_close(layer(x), x)
    with torch.no_grad():
        layer.weight.fill_(2.0)
        layer.bias.fill_(3.0)
    torch.testing.assert_close(layer(x), 2 * x + 3)


@RUNNING
def test_statistics_move_in_training_and_freeze_in_inference(running):
    layer = DecorrelatedBatchNorm1d(4, running=running)
    fresh = copy.deepcopy(layer.state_dict())
    layer(correlated((32, 4), dtype=torch.float32))
    moved = copy.deepcopy(layer.state_dict())
    assert all(not torch.equal(fresh[k], moved[k]) for k in fresh if k not in ("weight", "bias"))
    layer.eval()(correlated((32, 4), dtype=torch.float32))
    assert all(torch.equal(moved[k], v) for k, v in layer.state_dict().items())
    layer.train().reset_running_stats()
    assert all(torch.equal(fresh[k], v) for k, v in layer.state_dict().items())


@RUNNING
def test_running_statistics_approach_those_of_the_data(running):
    torch.manual_seed(0)
    mixing = torch.randn(4, 4).double()
    layer = DecorrelatedBatchNorm1d(4, momentum=None, running=running).double()
    for _ in range(50):
        layer(torch.randn(1024, 4).double() @ mixing + 1)
    y = layer.eval()(torch.randn(20000, 4).double() @ mixing + 1)
    torch.testing.assert_close(covariance(y), torch.eye(4).double(), atol=0.05, rtol=0)


def test_inference_follows_the_running_covariance_however_it_changed():
    x = correlated((32, 4))
    layer = DecorrelatedBatchNorm1d(4, running="covariance").double()
    layer(x)
    layer.training = False  # without eval()
    expected = layer(x)
    torch.testing.assert_close(layer.eval()(x), expected)
    loaded = DecorrelatedBatchNorm1d(4, running="covariance").double().eval()
    loaded.load_state_dict(layer.state_dict())
    torch.testing.assert_close(loaded(x), expected)


def test_inference_follows_a_change_of_precision():
    layer = DecorrelatedBatchNorm1d(4, running="covariance")
    layer(correlated((32, 4), dtype=torch.float32))
    layer.eval().double()
    expected = whitenorm.whitening_matrix(layer.running_covariance, layer.eps)
    torch.testing.assert_close(layer.inference_whitening, expected, rtol=1e-12, atol=1e-12)


def moved_covariance(layer):
    """Another covariance, written where an average of models or a loader would write it."""
    layer.running_covariance.copy_(covariance(correlated((64, 6), 5)).float().unsqueeze(0))


def expected_output(layer, x):
    return whitenorm.decorrelated_batch_norm(
        x, layer.running_mean, layer.running_covariance, eps=layer.eps, running="covariance"
    )


@pytest.mark.parametrize("change", ["buffer", "eps", "functional_call", "averaged"])
def test_inference_uses_the_present_buffers_and_eps(change):
    """As after an update of an exponential moving average, which writes in evaluation mode."""
    layer = DecorrelatedBatchNorm1d(6, affine=False, running="covariance")
    x = correlated((32, 6), dtype=torch.float32)
    layer(x)
    layer.eval()(x)
    other = copy.deepcopy(layer)
    if change == "buffer":
        moved_covariance(layer)
    elif change == "eps":
        layer.eps = 0.5
    elif change == "functional_call":
        moved_covariance(other)
        y = torch.func.functional_call(layer, dict(other.state_dict()), x)
        torch.testing.assert_close(y, expected_output(other, x))
    else:
        moved_covariance(other)
        average = torch.optim.swa_utils.AveragedModel(layer, use_buffers=True)
        average.eval()(x)
        average.update_parameters(other)
        torch.testing.assert_close(average(x), expected_output(average.module, x))
    torch.testing.assert_close(layer(x), expected_output(layer, x))


@pytest.mark.parametrize("way", ["data.copy_", "data =", "numpy", "data.copy_ and eval"])
def test_inference_uses_buffers_that_were_written_past_autograd(way):
    """As many averages of models do: the version of the buffer stays what it was."""
    layer = DecorrelatedBatchNorm1d(6, affine=False, running="covariance")
    x = correlated((32, 6), dtype=torch.float32)
    layer(x)
    layer.eval()(x)
    other = covariance(correlated((64, 6), 5)).float().unsqueeze(0)
    if way == "data =":
        layer.running_covariance.data = other
    elif way == "numpy":
        layer.running_covariance.numpy()[...] = other.numpy()
    else:
        layer.running_covariance.data.copy_(other)
    if "eval" in way:  # for graphs that were captured, which can't look
        expected = whitenorm.whitening_matrix(other.double(), layer.eps).float()
        torch.testing.assert_close(layer.eval().inference_whitening, expected)
    torch.testing.assert_close(layer(x), expected_output(layer, x))


@RUNNING
@pytest.mark.parametrize("affine", [True, False, "matrix"])
def test_a_batch_in_training_may_come_between_inference_and_its_backward(running, affine):
    layer = DecorrelatedBatchNorm1d(6, affine=affine, running=running).double()
    x = correlated((32, 6))
    layer(x)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    layer.eval()(a).pow(3).sum().backward()
    y = layer(b).pow(3).sum()
    layer.train()(2 * x)
    y.backward()
    assert torch.equal(a.grad, b.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_nearly_equal_channels_stay_white_in_half_precision(dtype):
    common = correlated((512, 1), 3, dtype=torch.float32)
    x = common + 0.04 * correlated((512, 8), 4, dtype=torch.float32)
    layer = DecorrelatedBatchNorm1d(8, affine=False, momentum=1.0, running="covariance")
    layer(x)
    expected = layer.eval()(x)
    y = layer.to(dtype)(x.to(dtype)).float()
    assert (y.std(0) / expected.std(0) - 1).abs().max() < 0.3
    again = DecorrelatedBatchNorm1d(8, dtype=dtype, affine=False, running="covariance").eval()
    again.load_state_dict(layer.state_dict())
    torch.testing.assert_close(again(x.to(dtype)).float(), y)


def test_gradients_pass_after_eval_under_inference_mode():
    layer = DecorrelatedBatchNorm1d(6, running="covariance")
    x = correlated((32, 6), dtype=torch.float32)
    layer(x)
    with torch.inference_mode():
        layer.eval()(x)
    z = x.clone().requires_grad_()
    layer(z).sum().backward()
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("whitening", WHITENINGS)
def test_a_remainder_is_whitened_by_its_own_covariance_in_inference(whitening):
    layer = DecorrelatedBatchNorm1d(
        6, affine=False, group_size=4, whitening=whitening, running="covariance"
    ).double()
    x = correlated((64, 6))
    layer(x)
    tail = DecorrelatedBatchNorm1d(
        2, affine=False, group_size=4, whitening=whitening, running="covariance"
    ).double()
    tail(x[:, 4:])
    torch.testing.assert_close(layer.eval()(x)[:, 4:], tail.eval()(x[:, 4:]))


def test_a_checkpoint_can_be_assigned_to_a_layer_built_on_meta():
    x = correlated((32, 4), dtype=torch.float32)
    layer = DecorrelatedBatchNorm1d(4, running="covariance")
    layer(x)
    other = DecorrelatedBatchNorm1d(4, device="meta", running="covariance").eval()
    other.load_state_dict(layer.state_dict(), assign=True)
    assert torch.equal(other(x), layer.eval()(x))


def test_without_running_statistics_inference_uses_the_batch():
    layer = DecorrelatedBatchNorm1d(4, track_running_stats=False).double()
    assert set(layer.state_dict()) == {"weight", "bias"}
    x = correlated((32, 4))
    torch.testing.assert_close(layer.eval()(x), layer.train()(x))


@RUNNING
def test_buffers_are_updated_in_place_and_carry_no_graph(running):
    layer = DecorrelatedBatchNorm2d(10, group_size=4, running=running)
    before = {name: (buffer, buffer.data_ptr()) for name, buffer in layer.named_buffers()}
    layer(correlated((8, 10, 3, 3), dtype=torch.float32).requires_grad_()).sum().backward()
    for name, buffer in layer.named_buffers():
        assert buffer is before[name][0]
        assert buffer.data_ptr() == before[name][1]
        assert buffer.grad_fn is None
        assert not buffer.requires_grad


@RUNNING
@pytest.mark.parametrize("way", ["state_dict", "deepcopy", "pickle", "save", "to"])
@pytest.mark.parametrize("affine", [True, "matrix"])
def test_state_survives(way, running, affine):
    options = {"affine": affine, "group_size": 4, "running": running}
    layer = DecorrelatedBatchNorm2d(10, **options)
    nn.init.normal_(layer.weight)
    for step in range(2):
        layer(correlated((8, 10, 3, 3), step, dtype=torch.float32))
    layer.eval()
    if way == "state_dict":
        other = DecorrelatedBatchNorm2d(10, **options).eval()
        other.load_state_dict(layer.state_dict())
    elif way == "deepcopy":
        other = copy.deepcopy(layer)
    elif way == "pickle":
        other = pickle.loads(pickle.dumps(layer))
    elif way == "save":
        torch.save(layer, file := io.BytesIO())
        file.seek(0)
        other = torch.load(file, weights_only=False)
    else:
        other = copy.deepcopy(layer).to(torch.float64).to("cpu").to(torch.float32)
    x = correlated((8, 10, 3, 3), 9, dtype=torch.float32)
    assert torch.equal(other(x), layer(x))
    assert torch.equal(other.num_batches_tracked, torch.tensor(2))


@RUNNING
@pytest.mark.parametrize("affine", [True, "matrix"])
def test_construction_on_meta_then_materialized(running, affine):
    options = {"affine": affine, "group_size": 4, "running": running}
    layer = DecorrelatedBatchNorm2d(10, device="meta", **options)
    assert {t.device.type for t in (*layer.parameters(), *layer.buffers())} == {"meta"}
    assert layer(torch.empty(4, 10, 3, 3, device="meta")).shape == (4, 10, 3, 3)
    layer.to_empty(device="cpu").reset_parameters()
    fresh = DecorrelatedBatchNorm2d(10, **options)
    x = correlated((8, 10, 3, 3), dtype=torch.float32)
    assert torch.equal(layer(x), fresh(x))


def test_an_empty_batch_changes_nothing():
    layer = DecorrelatedBatchNorm2d(4)
    before = copy.deepcopy(layer.state_dict())
    assert layer(torch.empty(0, 4, 3, 3)).shape == (0, 4, 3, 3)
    assert all(torch.equal(before[k], v) for k, v in layer.state_dict().items())


# --- compilation --------------------------------------------------------------------------------

# torch.compile itself makes an instance of every autograd function, and uses its own old code.
COMPILES = pytest.mark.filterwarnings(
    "ignore:.*should not be instantiated:DeprecationWarning",
    "ignore:.*torch.jit.script_method. is deprecated:DeprecationWarning",
    "ignore:.*torch._prims_common.check. is deprecated:FutureWarning",
)


@COMPILES
@pytest.mark.parametrize(
    ("channels", "whitening", "affine"),
    [
        *[(10, whitening, True) for whitening in WHITENINGS],
        (10, "zca", "matrix"),
        *[pytest.param(8, w, True, marks=pytest.mark.slow) for w in WHITENINGS],
        pytest.param(8, "newton", "matrix", marks=pytest.mark.slow),
    ],
)
def test_compiled_training_is_eager_training(channels, whitening, affine):
    torch.compiler.reset()
    options = {"affine": affine, "group_size": 4, "whitening": whitening, "iterations": 2}
    eager = DecorrelatedBatchNorm2d(channels, **options).double()
    nn.init.normal_(eager.weight)
    other = copy.deepcopy(eager)
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
    for step in range(2):
        x = correlated((4, channels, 3, 3), step)
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        ya, yb = eager(a), compiled(b)
        torch.testing.assert_close(ya, yb)
        dy = correlated(x.shape, step + 5)
        ya.backward(dy)
        yb.backward(dy)
        torch.testing.assert_close(a.grad, b.grad)
    for name, buffer in eager.named_buffers():
        torch.testing.assert_close(buffer, dict(other.named_buffers())[name])
    torch.testing.assert_close(eager.weight.grad, other.weight.grad)


@COMPILES
def test_compiled_training_takes_batches_of_any_size_without_compiling_again():
    torch.compiler.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    layer = torch.compile(DecorrelatedBatchNorm2d(8, group_size=4), backend=backend, dynamic=True)
    counts = []
    for samples in (6, 8, 9, 16, 31):
        layer(torch.randn(samples, 8, 7, 7, requires_grad=True)).sum().backward()
        counts.append(len(graphs))
    assert counts[0] > 0
    assert counts[0] == counts[-1]


@COMPILES
def test_compiled_training_without_gradients_is_one_graph():
    """As of encoders that follow by momentum, and where statistics are estimated again."""
    torch.compiler.reset()
    eager = DecorrelatedBatchNorm2d(8, group_size=4).double().requires_grad_(False)
    other = copy.deepcopy(eager)
    x = correlated((4, 8, 3, 3))
    y = torch.compile(other, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(y, eager(x))
    torch.testing.assert_close(other.running_covariance, eager.running_covariance)


@COMPILES
def test_an_in_place_relu_may_follow_in_a_compiled_model():
    torch.compiler.reset()
    model = nn.Sequential(DecorrelatedBatchNorm2d(8, group_size=4), nn.ReLU(inplace=True)).double()
    other, x = copy.deepcopy(model), correlated((4, 8, 3, 3))
    torch.compile(other, fullgraph=True, backend="aot_eager")(x).square().sum().backward()
    model(x).square().sum().backward()
    torch.testing.assert_close(other[0].weight.grad, model[0].weight.grad)


@COMPILES
def test_checkpointing_in_a_compiled_model_counts_a_batch_once():
    torch.compiler.reset()
    layer = DecorrelatedBatchNorm2d(8, group_size=4).double()
    expected, x = copy.deepcopy(layer), correlated((4, 8, 3, 3)).requires_grad_()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(x):
        return checkpoint(layer, x, use_reentrant=False)

    step(x).square().sum().backward()
    expected(x.detach())
    assert layer.num_batches_tracked == 1
    torch.testing.assert_close(layer.running_covariance, expected.running_covariance)


def test_a_layer_is_traced_by_itself():
    layer = DecorrelatedBatchNorm2d(8, group_size=4)
    x = correlated((4, 8, 3, 3), dtype=torch.float32)
    layer(x)
    layer.eval()
    torch.testing.assert_close(torch.fx.symbolic_trace(layer)(x), layer(x))


@RUNNING
def test_a_traced_graph_holds_the_layer_as_one_node_that_follows_the_mode(running):
    norm = DecorrelatedBatchNorm2d(8, group_size=4, running=running)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), norm)
    traced = torch.fx.symbolic_trace(copy.deepcopy(model))
    assert [node.op for node in traced.graph.nodes].count("call_module") == 2
    x = torch.randn(4, 3, 6, 6)
    torch.testing.assert_close(traced(x), model(x))
    traced.eval()
    model.eval()
    torch.testing.assert_close(traced(2 * x), model(2 * x))
    assert traced.get_submodule("1").num_batches_tracked == 1
    traced.train()
    model.train()
    torch.testing.assert_close(traced(2 * x), model(2 * x))


@pytest.mark.filterwarnings(r"ignore:`torch\.jit\.script` is deprecated")
def test_script_is_refused_with_what_to_do_instead():
    with pytest.raises(RuntimeError, match=r"torch\.jit\.script: call whitenorm\.fold.*trace"):
        torch.jit.script(nn.Sequential(DecorrelatedBatchNorm2d(8)).eval())


def test_parameters_can_be_reset_under_another_default_device():
    layer = DecorrelatedBatchNorm1d(4, running="covariance")
    layer(correlated((32, 4), dtype=torch.float32))
    with torch.device("meta"):
        layer.reset_parameters()
    assert torch.equal(layer.running_covariance, torch.eye(4).unsqueeze(0))


def test_tensors_without_values_pass_through():
    """As tools do that measure a training step's memory or operations before it runs."""
    with FakeTensorMode():
        layer = DecorrelatedBatchNorm2d(10, group_size=4)
        x = torch.randn(6, 10, 5, 5, requires_grad=True)
        y = layer(x)
        y.sum().backward()
    assert y.shape == x.grad.shape == x.shape
    assert layer.weight.grad.shape == (10,)


@COMPILES
@pytest.mark.parametrize("running", some(["covariance"], ["whitening", "covariance"]))
def test_compiled_code_of_inductor_gives_eagers_results(running):
    torch.compiler.reset()
    layer = DecorrelatedBatchNorm2d(8, group_size=4, running=running)
    compiled = torch.compile(copy.deepcopy(layer), fullgraph=True)
    x = correlated((4, 8, 3, 3), dtype=torch.float32)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    layer(a).pow(3).sum().backward()
    compiled(b).pow(3).sum().backward()
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)
    layer.eval()
    compiled.eval()
    torch.testing.assert_close(layer(x), compiled(x), rtol=1e-4, atol=1e-4)


@RUNNING
@pytest.mark.parametrize("channels", [8, 10])
@pytest.mark.parametrize("affine", [True, "matrix"])
def test_inference_exports_without_a_decomposition(running, channels, affine):
    layer = DecorrelatedBatchNorm2d(channels, affine=affine, group_size=4, running=running)
    nn.init.normal_(layer.weight)
    x = correlated((4, channels, 3, 3), dtype=torch.float32)
    layer(x)
    batch = torch.export.Dim("batch")
    exported = torch.export.export(layer.eval(), (x,), dynamic_shapes=({0: batch},))
    graphs = [m for m in exported.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    called = {str(node.target) for module in graphs for node in module.graph.nodes}
    assert not [name for name in called if "linalg" in name or "cholesky" in name]
    assert any("matmul" in name for name in called)
    other = correlated((7, channels, 3, 3), 1, dtype=torch.float32)
    torch.testing.assert_close(exported.module()(other), layer(other))


# --- errors and warnings ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "shape", "words"),
    [
        (DecorrelatedBatchNorm1d(4), (4,), r"expected 2D or 3D input \(got 1D input"),
        (DecorrelatedBatchNorm1d(4), (2, 4, 3, 3), r"expected 2D or 3D input \(got 4D input"),
        (DecorrelatedBatchNorm2d(4), (2, 4), r"expected 4D input \(got 2D input"),
        (whitenorm.DecorrelatedBatchNorm3d(4), (2, 4, 3, 3), r"expected 5D input \(got 4D"),
        (
            DecorrelatedBatchNorm2d(4),
            (2, 5, 3, 3),
            r"with 4 channels .*\(got 5 channels, .*2, 5, 3",
        ),
        (DecorrelatedBatchNorm2d(4), (1, 4, 1, 1), "more than 1 value per channel when training"),
    ],
)
def test_a_wrong_input_is_named(layer, shape, words):
    with pytest.raises(ValueError, match=words):
        layer(torch.zeros(shape))


@pytest.mark.parametrize(
    "options",
    [
        {"whitening": "svd"},
        {"running": "variance"},
        {"group_size": 0},
        {"group_size": 1.5},
        {"group_size": True},
        {"eps": -1.0},
        {"iterations": 0},
        {"num_features": 0},
        {"num_features": 2.5},
        {"affine": "matrices"},
        {"affine": "True"},
        {"affine": 1},
        {"affine": None},
    ],
    ids=str,
)
def test_a_wrong_option_is_refused_at_construction(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"{name} must .*got"):
        DecorrelatedBatchNorm2d(**{"num_features": 4, **options})


def test_too_small_a_batch_warns_once_a_layer():
    layer = DecorrelatedBatchNorm1d(32, shrinkage=0.0)
    words = "a batch of 8 samples .* 16 channels.*shrinkage='auto'.*group_size <= 8"
    with pytest.warns(UserWarning, match=words):
        layer(torch.randn(8, 32))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(torch.randn(8, 32))
        DecorrelatedBatchNorm1d(32, group_size=8, shrinkage=0.0)(torch.randn(8, 32))
        DecorrelatedBatchNorm1d(32)(torch.randn(8, 32))
        DecorrelatedBatchNorm2d(32, shrinkage=0.0)(torch.randn(2, 32, 3, 3))
        layer.eval()(torch.randn(8, 32))


def test_repr_names_every_option():
    text = repr(DecorrelatedBatchNorm2d(8, group_size=4, whitening="newton", iterations=7))
    assert text == (
        "DecorrelatedBatchNorm2d(8, eps=1e-05, momentum=0.1, affine=True, "
        "track_running_stats=True, group_size=4, whitening='newton', running='covariance', "
        "shrinkage='bounded', iterations=7)"
    )


def test_repr_names_a_matrix():
    assert ", affine='matrix', " in repr(DecorrelatedBatchNorm2d(8, affine="matrix"))


def test_groups_are_counted_with_the_remainder():
    assert DecorrelatedBatchNorm2d(42).num_groups == 3
    assert DecorrelatedBatchNorm2d(42).running_covariance.shape == (3, 16, 16)
    assert DecorrelatedBatchNorm2d(10, group_size=64).running_covariance.shape == (1, 10, 10)


# --- a matrix instead of a scale ----------------------------------------------------------------


@LAYERS
def test_a_matrix_starts_as_the_identity_and_what_is_not_used_of_it_stays(cls, shape):
    options = {"group_size": 5, "dtype": torch.float64}
    layer, plain = cls(shape[1], affine="matrix", **options), cls(shape[1], **options)
    assert torch.equal(layer.weight, torch.eye(5).double().expand(3, 5, 5))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for step in range(3):
        x = correlated(shape, step)
        if step == 0:
            torch.testing.assert_close(layer(x), plain(x))
        layer(x).tanh().sum().backward()
        optimizer.step()
    identity = torch.eye(5).double()
    assert torch.equal(layer.weight[2, 2:], identity[2:])
    assert torch.equal(layer.weight[2, :, 2:], identity[:, 2:])
    assert (layer.weight[2, :2, :2] - identity[:2, :2]).abs().min() > 1e-4
    assert (layer.weight[:2] - identity).abs().min() > 1e-6
    layer.reset_parameters()
    assert torch.equal(layer.weight, identity.expand(3, 5, 5))


@RUNNING
def test_a_matrix_multiplies_what_inference_whitens(running):
    options = {"group_size": 4, "running": running, "dtype": torch.float64}
    layer = DecorrelatedBatchNorm1d(6, affine="matrix", **options)
    plain = DecorrelatedBatchNorm1d(6, affine=False, **options)
    with torch.no_grad():
        layer.weight.copy_(colouring(6, 4))
        layer.bias.fill_(2.0)
    x = correlated((50, 6))
    for each in (layer, plain):
        each(x)
        each.eval()
    G = torch.block_diag(*layer.weight.detach())[:6, :6]
    torch.testing.assert_close(layer(x), plain(x) @ G.T + 2)


def test_an_orthogonal_matrix_rotates_what_is_white():
    """As of Concept Whitening."""
    layer = DecorrelatedBatchNorm1d(8, affine="matrix", group_size=4, shrinkage=0.0).double()
    layer.weight.data = colouring(8, 4)
    nn.utils.parametrizations.orthogonal(layer)
    y = layer(correlated((200, 8)))
    assert (layer.weight - torch.eye(4)).abs().max() > 0.1
    for group in y.split(4, 1):
        torch.testing.assert_close(covariance(group), torch.eye(4).double(), atol=1e-3, rtol=0)


# --- TReLU --------------------------------------------------------------------------------------


def test_trelu_is_the_maximum_of_input_and_threshold():
    layer = TranslatedReLU(3).double()
    x = correlated((4, 3, 2, 2))
    torch.testing.assert_close(layer(x), x.relu())
    with torch.no_grad():
        layer.threshold.copy_(torch.tensor([-1.0, 0.0, 2.0]))
    expected = torch.stack([x[:, 0].clamp(-1), x[:, 1].clamp(0), x[:, 2].clamp(2)], 1)
    torch.testing.assert_close(layer(x), expected)
    threshold = layer.threshold.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x, a: torch.func.functional_call(layer, {"threshold": a}, x),
        (x.requires_grad_(), threshold),
    )


def test_trelu_keeps_the_inputs_dtype_and_names_a_wrong_shape():
    layer = TranslatedReLU(3, init=0.5)
    assert layer(torch.zeros(2, 3).bfloat16()).dtype == torch.bfloat16
    with pytest.raises(ValueError, match=r"expected input of shape \(N, 3, ...\), got \(2, 4\)"):
        layer(torch.zeros(2, 4))
