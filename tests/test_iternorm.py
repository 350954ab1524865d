"""IterNorm: the layer computes what the published module computes, and takes its checkpoints.

``Published`` is written from the formulas of *Iterative Normalization* (Huang et al., CVPR 2019)
and from the names and shapes of its module's state, in plain differentiable operations: a group at
a time, the uncoupled iteration, gradients by autograd.
"""

import copy

import pytest
import torch
from cases import correlated
from torch import nn

import whitenorm
from whitenorm import ITERNORM, DecorrelatedBatchNorm2d, IterNorm, iternorm_state_dict


def newton(S, T):
    """P_T / sqrt(tr S), P_0 = I, P_{k+1} = (3 P_k - P_k^3 S / tr S) / 2."""
    P = torch.eye(len(S), dtype=S.dtype)
    for _ in range(T):
        P = 1.5 * P - 0.5 * P @ P @ P @ S / S.trace()
    return P / S.trace().sqrt()


class Published(nn.Module):
    """One mean (d, 1) and one matrix (d, d) a group, as the published module averages them."""

    def __init__(self, sizes, T=5, eps=1e-5, momentum=0.1, affine=True, dim=4, sigma=False):
        super().__init__()
        self.sizes, self.T, self.eps, self.momentum = sizes, T, eps, momentum
        self.sigma = sigma  # averages covariances with eps instead of whitening matrices
        shape = (1, sum(sizes), *[1] * (dim - 2))
        self.weight = nn.Parameter(torch.rand(shape) + 0.5) if affine else None
        self.bias = nn.Parameter(torch.randn(shape)) if affine else None
        self.make_buffers()

    def make_buffers(self):
        count, size = len(self.sizes), self.sizes[0]
        self.register_buffer("running_mean", torch.zeros(count, size, 1))
        self.register_buffer("running_wm", torch.eye(size).repeat(count, 1, 1))

    def group(self, index):
        return self.running_mean[index], self.running_wm[index]

    def forward(self, x):
        outputs = []
        for index, part in enumerate(x.split(self.sizes, 1)):
            X = part.movedim(1, 0).flatten(1)
            mean, matrix = self.group(index)
            if self.training:
                batch_mean = X.mean(1, keepdim=True)
                centred = X - batch_mean
                S = centred @ centred.T / X.shape[1] + self.eps * torch.eye(len(X), dtype=X.dtype)
                W = newton(S, self.T)
                with torch.no_grad():
                    for running, new in ((mean, batch_mean), (matrix, S if self.sigma else W)):
                        running.copy_(self.momentum * new + (1 - self.momentum) * running)
            else:
                centred, W = X - mean, newton(matrix, self.T) if self.sigma else matrix
            y = (W @ centred).unflatten(1, (len(x), *x.shape[2:])).movedim(0, 1)
            outputs.append(y)
        y = torch.cat(outputs, 1)
        return y if self.weight is None else y * self.weight + self.bias


class Part(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(size, 1))
        self.register_buffer("running_wm", torch.eye(size))


class PublishedWithAList(Published):
    """The variant whose groups are modules of a list, the last possibly smaller."""

    def make_buffers(self):
        self.iterNorm_Groups = nn.ModuleList(Part(size) for size in self.sizes)

    def group(self, index):
        part = self.iterNorm_Groups[index]
        return part.running_mean, part.running_wm


def network(norm, last):
    torch.manual_seed(0)
    before = (nn.Conv2d(3, 12, 3), norm, nn.ReLU(), nn.BatchNorm2d(12))
    return nn.Sequential(*before, nn.Flatten(), nn.Linear(108, 8), last).double()


def trained(model, steps=4):
    for seed in range(steps):
        model(correlated((10, 3, 5, 5), seed=seed))
    return model


def assert_same_training(model, other):
    """Two updates from here on give the same losses, gradients, inference and averages."""
    losses, gradients, inferences = [], [], []
    for net in (model, other):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for seed in (20, 21):
            loss = net.train()(correlated((10, 3, 5, 5), seed=seed)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        gradients.append([p.grad.flatten() for p in net.parameters()])
        inferences.append(net.eval()(correlated((10, 3, 5, 5), seed=22)))
    torch.testing.assert_close(losses[:2], losses[2:])
    torch.testing.assert_close(*gradients)
    torch.testing.assert_close(*inferences)


@pytest.mark.parametrize("T", [1, 5, 9])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("shape", [(30, 12), (8, 12, 5), (4, 12, 3, 4)], ids=["NC", "NCL", "NCHW"])
def test_training_and_inference_are_the_published_modules(shape, groups, T):
    sizes = [12 // groups] * groups
    published = Published(sizes, T, eps=1e-3, momentum=0.3, dim=len(shape)).double()
    layer = IterNorm(12, groups, T=T, dim=len(shape), eps=1e-3, momentum=0.3, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(published.weight.flatten())
        layer.bias.copy_(published.bias.flatten())
    for seed in range(3):
        x = correlated(shape, seed=seed).requires_grad_()
        dy = torch.randn(shape, dtype=torch.float64)
        results = []
        for module in (published, layer):
            y = module(x)
            inputs = (x, module.weight, module.bias)
            results.append([y, *(g.squeeze() for g in torch.autograd.grad(y, inputs, dy))])
        torch.testing.assert_close(*results)
    torch.testing.assert_close(layer.running_mean, published.running_mean.flatten())
    torch.testing.assert_close(layer.running_whitening, published.running_wm)
    x = correlated(shape, seed=9)
    torch.testing.assert_close(layer.eval()(x), published.eval()(x))


@pytest.mark.parametrize(
    ("features", "groups", "channels", "size"),
    [(64, 1, None, 64), (64, 8, None, 8), (64, 1, 16, 16), (64, 8, 16, 16), (16, 1, 64, 16)],
)
def test_groups_are_the_published_modules(features, groups, channels, size):
    assert IterNorm(features, groups, channels).group_size == size


@pytest.mark.parametrize(
    ("features", "groups", "channels", "size"),
    [(64, 3, None, 2), (10, 1, 4, 2), (48, 1, 64, 16), (7, 2, None, 1)],
)
def test_a_size_that_does_not_divide_is_halved_and_said_so(features, groups, channels, size):
    with pytest.warns(UserWarning, match=rf"don't divide {features} channels: .* to {size};"):
        layer = IterNorm(features, groups, channels)
    assert layer.group_size == size


@pytest.mark.parametrize("name", ["num_features", "num_groups", "num_channels"])
def test_what_is_no_number_of_channels_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be a positive integer, got 0"):
        IterNorm(**{"num_features": 8, name: 0})


def test_a_checkpoint_of_a_whole_network_goes_on_exactly():
    published = trained(network(Published([4] * 3), Published([8], affine=False, dim=2)))
    model = network(IterNorm(12, num_channels=4), IterNorm(8, affine=False, dim=2))
    state = published.state_dict()
    names = list(state)
    converted = iternorm_state_dict(model, state)
    assert list(state) == names
    assert converted._metadata == state._metadata
    model.load_state_dict(converted)
    x = correlated((10, 3, 5, 5), seed=9)
    torch.testing.assert_close(model.eval()(x), published.eval()(x))
    assert_same_training(model, published)


def test_a_checkpoint_with_a_list_of_groups_goes_on_exactly():
    published = trained(network(PublishedWithAList([5, 5, 2]), PublishedWithAList([8], dim=2)))
    norm = DecorrelatedBatchNorm2d(12, group_size=5, **ITERNORM)
    model = network(norm, IterNorm(8))
    model.load_state_dict(iternorm_state_dict(model, published.state_dict()))
    x = correlated((10, 3, 5, 5), seed=9)
    torch.testing.assert_close(model.eval()(x), published.eval()(x))
    assert_same_training(model, published)


def test_more_than_nine_groups_of_a_list_keep_their_order():
    published = PublishedWithAList([1] * 12)
    for index in range(12):
        published.group(index)[0].fill_(index)
    layer = IterNorm(12, 12)
    layer.load_state_dict(iternorm_state_dict(layer, published.state_dict()))
    assert layer.running_mean.tolist() == list(range(12))


def test_a_checkpoint_of_averaged_covariances_gives_the_same_inference():
    published = trained(network(PublishedWithAList([5, 5, 2], sigma=True), nn.Identity()))
    settings = {**ITERNORM, "running": "covariance"}
    model = network(DecorrelatedBatchNorm2d(12, group_size=5, **settings), nn.Identity())
    model.load_state_dict(iternorm_state_dict(model, published.state_dict(), "covariance"))
    x = correlated((10, 3, 5, 5), seed=9)
    torch.testing.assert_close(model.eval()(x), published.eval()(x))


def test_buffers_that_repeat_one_matrix_in_memory_are_loaded():
    """As the published module makes them: its own training stops at writing into these."""
    published = {
        "weight": torch.ones(1, 8, 1, 1),
        "bias": torch.zeros(1, 8, 1, 1),
        "running_mean": torch.zeros(2, 4, 1),
        "running_wm": torch.eye(4).expand(2, 4, 4),
    }
    layer = IterNorm(8, 2)
    layer.load_state_dict(iternorm_state_dict(layer, published))
    layer(torch.randn(4, 8, 3, 3))
    assert not torch.equal(layer.running_whitening[0], layer.running_whitening[1])


def test_a_layer_that_is_used_twice_is_loaded_by_both_names():
    norm = IterNorm(8, 2, affine=False)
    model = nn.Sequential(norm, norm)
    statistics = Published([4, 4], affine=False).state_dict()
    state = {f"{i}.{name}": value for i in range(2) for name, value in statistics.items()}
    model.load_state_dict(iternorm_state_dict(model, state))


def test_concept_whitenings_rotation_is_a_convolution_behind_the_layer():
    """As docs/family.md has it: y = R W (x - mean) in each group."""
    published = trained(nn.Sequential(Published([3], affine=False)).double())[0].eval()
    R = torch.linalg.qr(torch.randn(1, 3, 3, dtype=torch.float64)).Q
    state = {**published.state_dict(), "running_rot": R, "sum_G": R, "counter": R[0, 0]}
    layer = IterNorm(3, affine=False, dtype=torch.float64)
    with pytest.raises(ValueError, match="IterNorm: the state is Concept Whitening's"):
        iternorm_state_dict(layer, state)
    whitening = {name: state[name] for name in ("running_mean", "running_wm")}
    layer.load_state_dict(iternorm_state_dict(layer, whitening))
    rotation = nn.Conv2d(3, 3, 1, bias=False).double()
    with torch.no_grad():
        rotation.weight.copy_(R.reshape(3, 3, 1, 1))
    x = correlated((4, 3, 5, 5))
    expected = torch.einsum("bchw,dc->bdhw", published(x), R[0])
    torch.testing.assert_close(rotation(layer.eval()(x)), expected)


STATE = Published([4, 4]).state_dict()


@pytest.mark.parametrize(
    ("model", "state", "message"),
    [
        (IterNorm(8, 4), STATE, "2 groups, of 4 channels .* build it with 8 .* group_size=4"),
        (IterNorm(16, 4), STATE, "2 groups, of 4 channels .* build it with 8 .* group_size=4"),
        (DecorrelatedBatchNorm2d(8, group_size=4), STATE, "build it with running='whitening'"),
        (
            DecorrelatedBatchNorm2d(8, group_size=4, track_running_stats=False, **ITERNORM),
            STATE,
            "the layer has none: build it .* track_running_stats=True",
        ),
        (
            IterNorm(8, 2, affine=False),
            STATE,
            "weight has 8 elements, and the layer's none: build the layer with affine=True",
        ),
        (
            IterNorm(8, 2),
            Published([4, 4], affine=False).state_dict(),
            "weight has no elements, and the layer's 8: build the layer with affine=False",
        ),
        (nn.BatchNorm2d(8), STATE, "at '', where the model has BatchNorm2d: put"),
        (
            nn.Sequential(IterNorm(8, 2)),
            {f"module.0.{name}": value for name, value in STATE.items()},
            "at 'module.0', where the model has no layer: put .* strip a prefix such as 'module.'",
        ),
        (IterNorm(8, 2), nn.BatchNorm2d(8).state_dict(), "it has no 'running_wm'"),
        (IterNorm(8, 2), {"state_dict": STATE}, "it has no 'running_wm'; give the state_dict"),
    ],
)
def test_a_state_that_does_not_fit_says_what_to_do(model, state, message):
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=message):
        iternorm_state_dict(model, state)
    for name, value in model.state_dict().items():
        assert torch.equal(before[name], value)


def test_what_the_matrices_are_is_one_of_two():
    with pytest.raises(ValueError, match="averaged must be one of 'whitening', 'covariance', got"):
        iternorm_state_dict(IterNorm(8, 2), STATE, "sigma")


@pytest.mark.parametrize("published", [Published([4, 4]), PublishedWithAList([4, 4])])
def test_loading_it_without_conversion_says_what_to_do(published):
    model = nn.Sequential(IterNorm(8, 2))
    with pytest.raises(RuntimeError, match=r"0: the state is IterNorm's; load what .*_state_dict"):
        model.load_state_dict(nn.Sequential(published).state_dict())


def test_it_is_a_dbn_layer_in_everything_else():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), IterNorm(8, 2)).eval()
    again = copy.deepcopy(model)
    again.load_state_dict(model.state_dict())
    x = torch.randn(4, 3, 6, 6)
    torch.testing.assert_close(whitenorm.fold(again)(x), model(x))
    assert "group_size=4, whitening='newton', running='whitening'" in repr(model[1])
