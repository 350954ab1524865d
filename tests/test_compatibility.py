"""Training loops that people have: BatchNorm is swapped, the loop stays, and it works."""

import copy

import pytest
import replica_jobs as jobs
import torch
import transformers
from replicas import run_replicas
from sklearn.datasets import load_digits
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.ao.quantization import get_default_qconfig_mapping, quantize_dynamic
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import whitenorm
from whitenorm import DecorrelatedBatchNorm, DecorrelatedBatchNorm2d

NORMS = {
    "BatchNorm": nn.BatchNorm2d,
    "default": DecorrelatedBatchNorm2d,
    "whitening": lambda c: DecorrelatedBatchNorm2d(c, group_size=8, running="whitening"),
    "covariance": lambda c: DecorrelatedBatchNorm2d(c, group_size=8, running="covariance"),
}
EACH = pytest.mark.parametrize("norm", NORMS)


@pytest.fixture(scope="module")
def digits():
    """1500 pictures to learn from and 297 to test, as batches of 60."""
    pictures, labels = load_digits(return_X_y=True)
    x = torch.tensor(pictures, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], torch.tensor(labels)[order]
    batches = list(zip(x[:1500].split(60), y[:1500].split(60), strict=True))
    return batches, (x[1500:], y[1500:])


def network(norm):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        NORMS[norm](16),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 24, 3, padding=1, bias=False),
        NORMS[norm](24),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(24 * 16, 10),
    )


def train(model, batches, epochs=2, after=lambda: None, lr=0.05):
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    for _ in range(epochs):
        for x, y in batches:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
            after()
    return model


@torch.no_grad()
def accuracy(model, test):
    x, y = test
    return (model.eval()(x).argmax(1) == y).float().mean().item()


# --- swap and train -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_the_default_evaluates_well_where_16_channels_see_9_pixels(seed, digits):
    """Each covariance is singular, however many samples there are."""
    batches, test = digits
    found = {}
    for norm in (nn.BatchNorm2d, DecorrelatedBatchNorm2d):
        torch.manual_seed(seed)
        parts = nn.Conv2d(1, 32, 3), norm(32), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 36, 10)
        model = nn.Sequential(*parts)
        found[norm] = [accuracy(train(model, batches, epochs=1), test) for _ in range(3)]
    assert min(found[DecorrelatedBatchNorm2d]) > min(found[nn.BatchNorm2d]) - 0.05


def test_the_default_evaluates_well_where_a_batch_is_smaller_than_a_group(digits):
    batches, test = digits
    few = [(x[:8], y[:8]) for x, y in batches]
    found = {}
    for norm in (nn.BatchNorm1d, whitenorm.DecorrelatedBatchNorm1d):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 64), norm(64), nn.ReLU(), nn.Linear(64, 10)
        )
        found[norm] = accuracy(train(model.train(), few, epochs=8), test)
    assert found[whitenorm.DecorrelatedBatchNorm1d] > found[nn.BatchNorm1d] - 0.05


def test_a_converted_transformer_evaluates_within_bounds_after_one_step():
    """LeViT on four pictures: with averages of whitening matrices its outputs are 1e29."""
    torch.manual_seed(0)
    config = transformers.LevitConfig(image_size=64, num_labels=3)
    model = whitenorm.convert_batchnorm(transformers.LevitForImageClassification(config))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    pictures, labels = torch.randn(4, 3, 64, 64), torch.tensor([0, 1, 2, 0])
    model.train()(pictures, labels=labels).loss.backward()
    optimizer.step()
    with torch.no_grad():
        assert model.eval()(pictures).logits.abs().max() < 100


# --- averages of weights ------------------------------------------------------------------------


@EACH
@pytest.mark.parametrize("use_buffers", [True, False], ids=["buffers averaged", "buffers copied"])
def test_an_exponential_moving_average_evaluates_well(norm, use_buffers, digits):
    batches, test = digits
    model = network(norm)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=use_buffers)
    average.eval()(test[0])  # looked at before it is updated, and never put into another mode

    def update():
        average.update_parameters(model)

    train(model, batches, 3, update)
    with torch.no_grad():
        right = (average(test[0]).argmax(1) == test[1]).float().mean()
    assert right >= 0.9


@EACH
def test_an_average_made_from_state_dicts_evaluates_well(norm, digits):
    batches, test = digits
    model = network(norm)
    average = copy.deepcopy(model).eval()

    @torch.no_grad()
    def update():
        for mean, value in zip(
            average.state_dict().values(), model.state_dict().values(), strict=True
        ):
            if mean.is_floating_point():
                mean.data.mul_(0.9).add_(value.data, alpha=0.1)
            else:
                mean.data.copy_(value.data)

    train(model, batches, 3, update)
    assert accuracy(average, test) >= 0.9


@EACH
def test_a_stochastic_weight_average_evaluates_well_after_recalibration(norm, digits):
    batches, test = digits
    model = network(norm)
    average = AveragedModel(model)
    train(model, batches, 2)
    train(model, batches, 2, lambda: average.update_parameters(model))
    whitenorm.recalibrate(average, batches)
    assert accuracy(average, test) >= 0.9


def test_update_bn_passes_over_the_layer(digits):
    """Torch looks for its own class, so the page says to call recalibrate."""
    batches, _ = digits
    model = network("covariance")
    before = model[1].running_covariance.clone()
    update_bn(batches, model)
    assert torch.equal(model[1].running_covariance, before)


# --- loops --------------------------------------------------------------------------------------


@EACH
@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
def test_checkpointing_changes_no_gradient_and_counts_as_batchnorm_does(norm, reentrant, digits):
    x, y = digits[0][0]
    model = network(norm)
    plain = copy.deepcopy(model)
    cross_entropy(plain(x), y).backward()
    again = x.clone().requires_grad_()
    cross_entropy(checkpoint(model, again, use_reentrant=reentrant), y).backward()
    torch.testing.assert_close(model[0].weight.grad, plain[0].weight.grad)
    assert model[1].num_batches_tracked == 2  # the forward pass is run again in backward


@EACH
def test_accumulated_gradients_are_the_sum_of_the_parts(norm, digits):
    model = network(norm)
    parts = []
    for x, y in digits[0][:3]:
        single = copy.deepcopy(model)
        cross_entropy(single(x), y).backward()
        parts.append(single[0].weight.grad)
    for x, y in digits[0][:3]:
        cross_entropy(model(x), y).backward()
    torch.testing.assert_close(model[0].weight.grad, sum(parts), rtol=1e-4, atol=1e-6)
    assert model[1].num_batches_tracked == 3


@EACH
def test_one_line_freezes_both_kinds_of_layers(norm, digits):
    batches, test = digits
    model = train(network(norm), batches, 1).train()
    for layer in model.modules():
        if isinstance(layer, (_BatchNorm, DecorrelatedBatchNorm)):
            layer.eval().requires_grad_(False)
    layer = model[1]
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    frozen = layer(torch.ones(2, 16, 4, 4))
    train(model, batches, 1, lr=0.01)
    for name, tensor in layer.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert torch.equal(layer(torch.ones(2, 16, 4, 4)), frozen)
    assert accuracy(model, test) >= 0.9


@EACH
def test_loss_scaling_trains_in_float16(norm, digits):
    batches, _ = digits
    model = network(norm)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu")
    losses = []
    for x, y in batches[:8]:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert scaler.get_scale() == 65536  # no step was skipped
    assert losses[-1] < losses[0]


@EACH
def test_scale_and_shift_are_vectors_as_code_without_weight_decay_expects(norm):
    """Such code takes the parameters of one dimension, or those of the norm layers."""
    model = network(norm)
    vectors = {name for name, p in model.named_parameters() if p.dim() == 1}
    assert vectors == {"1.weight", "1.bias", "5.weight", "5.bias", "8.bias"}
    kinds = (_BatchNorm, DecorrelatedBatchNorm)
    of_norms = [p for m in model.modules() if isinstance(m, kinds) for p in m.parameters()]
    assert [p.shape for p in of_norms] == [(16,), (16,), (24,), (24,)]


@EACH
def test_an_ensemble_by_vmap_is_its_networks_one_by_one(norm, digits):
    x = digits[0][0][0]
    models = [network(norm) for _ in range(3)]
    for i, model in enumerate(models):
        model(x * (i + 1) + i)
        model.eval()
    parameters, buffers = torch.func.stack_module_state(models)

    def call(parameters, buffers):
        return torch.func.functional_call(models[0], (parameters, buffers), x)

    expected = torch.stack([model(x) for model in models])
    torch.testing.assert_close(
        torch.func.vmap(call)(parameters, buffers), expected, rtol=1e-4, atol=1e-4
    )


@EACH
@pytest.mark.filterwarnings(r"ignore:`torch\.jit\.\w+` is deprecated")  # inside torch
def test_forward_mode_passes_through_evaluation(norm, digits):
    x = digits[0][0][0][:4]
    model = network(norm).double().eval()
    x = x.double()
    _, tangent = torch.func.jvp(model, (x,), (x,))
    jacobian = torch.func.jacfwd(model)(x)
    expected = torch.einsum("abnchw,nchw->ab", jacobian, x)
    torch.testing.assert_close(tangent, expected)
    assert torch.func.hessian(lambda x: model(x).square().sum())(x[:1]).isfinite().all()


# --- several processes --------------------------------------------------------------------------


def test_fsdp2_trains_as_one_process_on_each_replicas_batch():
    for result in run_replicas(jobs.fsdp, 2):
        assert result["sharded"]
        for name, value in result["plain"].items():
            torch.testing.assert_close(result["sharded state"][name], value, rtol=1e-9, atol=1e-9)


# --- graphs and numbers -------------------------------------------------------------------------


class Operations(TorchDispatchMode):
    """The names of all operations that are run."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(function.name())
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("whitening", "waits"), [("zca", True), ("pca", True), ("newton", False), ("cholesky", False)]
)
def test_only_the_eigendecomposition_would_wait_for_a_device(whitening, waits):
    """Tensors without values refuse whatever reads one, so nothing else can wait."""
    with FakeTensorMode():
        layer = DecorrelatedBatchNorm2d(10, group_size=4, whitening=whitening)
        x = torch.randn(6, 10, 5, 5, requires_grad=True)
        with Operations() as operations:
            layer(x).sum().backward()
    assert operations.names
    assert any("eigh" in name for name in operations.names) == waits


@EACH
@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning:torch.ao")
@pytest.mark.filterwarnings("ignore:Please use quant_min:UserWarning")
def test_a_folded_network_is_quantized_to_8_bits(norm, digits):
    batches, test = digits
    model = train(network(norm), batches, 3)
    if norm == "BatchNorm":
        model.eval()  # which FX merges itself
    else:
        model = whitenorm.fold(model.eval())
    exact = accuracy(model, test)
    prepared = prepare_fx(copy.deepcopy(model), get_default_qconfig_mapping("x86"), (test[0][:2],))
    for x, _ in batches[:4]:
        prepared(x)
    quantized = convert_fx(prepared)
    assert any("quantized" in type(m).__module__ for m in quantized.modules())
    assert accuracy(quantized, test) >= exact - 0.03
    dynamic = quantize_dynamic(model, {nn.Linear}, torch.qint8)
    assert accuracy(dynamic, test) >= exact - 0.03
