"""The diagnostics against brute force, autograd and what the definitions promise."""

import itertools
import math

import pytest
import torch
from torch import nn
from torch.autograd.functional import jacobian

from whitenorm import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d, whitening_matrix
from whitenorm.axes import _assignment
from whitenorm.diagnostics import (
    ActivationRecorder,
    axis_swapping,
    condition_number,
    correlation,
    covariance_spectrum,
    fisher_condition_numbers,
    fisher_last_layer,
    fisher_of_model,
    jacobian_singular_values,
    mean_correlation,
    whitening_axis_swapping,
)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def state(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_same_state(before, model):
    for name, tensor in model.state_dict().items():
        assert torch.equal(before[name], tensor), name


# --- activations --------------------------------------------------------------------------------


def test_spectrum_of_whitened_groups_is_one():
    x = torch.randn(512, 10, dtype=torch.float64).cumsum(1)
    norm = DecorrelatedBatchNorm1d(10, eps=0.0, affine=False, dtype=torch.float64, group_size=4)
    torch.testing.assert_close(covariance_spectrum(norm(x), group_size=4), torch.ones(10).double())
    assert covariance_spectrum(norm(x)).max() > 1.1  # between the groups correlation is left


def test_spectrum_counts_positions_as_samples_and_uses_one_over_m():
    x = torch.randn(6, 3, 5, 4)
    rows = x.permute(0, 2, 3, 1).reshape(-1, 3).double()
    expected = torch.linalg.eigvalsh(rows.T.cov(correction=0)).flip(0)
    torch.testing.assert_close(covariance_spectrum(x), expected)


def test_correlation_is_pearsons():
    x = torch.randn(50, 4).cumsum(1)
    torch.testing.assert_close(correlation(x), x.double().T.corrcoef())


def test_mean_correlation_leaves_constant_channels_out():
    x = torch.randn(100, 3, dtype=torch.float64)
    x[:, 1] = -x[:, 0]
    expected = (1 + 2 * abs(float(x.T.corrcoef()[0, 2]))) / 3
    assert mean_correlation(x) == pytest.approx(expected)
    x = torch.cat([x, torch.full((100, 1), 0.1, dtype=torch.float64)], 1)  # 0.1 has no exact mean
    assert correlation(x)[3].isnan().all()
    assert mean_correlation(x) == pytest.approx(expected)


@pytest.mark.parametrize(("at", "expected"), [(1.0, 10.0), (0.9, 9.0), (0.2, 2.0), (0.01, 1.0)])
def test_condition_number_at_a_fraction_of_the_spectrum(at, expected):
    eigenvalues = torch.tensor([10.0, 9, 8, 7, 6, 5, 4, 3, 2, 1]).reciprocal() * 10
    assert condition_number(eigenvalues, at) == pytest.approx(expected)
    rotation = torch.linalg.qr(torch.randn(10, 10)).Q
    matrix = rotation @ eigenvalues.diag() @ rotation.T
    assert condition_number(matrix, at) == pytest.approx(expected, rel=1e-4)


def test_condition_number_of_a_singular_matrix_is_infinite_despite_rounding():
    x = torch.randn(5, 3, dtype=torch.float64)
    assert condition_number(x @ x.T) == math.inf
    assert condition_number(x @ x.T, at=0.6) < 100


@pytest.mark.parametrize("at", [0.0, 1.1])
def test_condition_number_refuses_a_fraction_outside_the_spectrum(at):
    with pytest.raises(ValueError, match=r"at must be in \(0, 1\], got"):
        condition_number(torch.eye(2), at)


def test_condition_number_refuses_what_is_no_spectrum():
    with pytest.raises(ValueError, match=r"square matrix .* \(2, 3\)"):
        condition_number(torch.zeros(2, 3))


# --- Fisher information -------------------------------------------------------------------------


def network(dtype=torch.float64):
    return nn.Sequential(
        nn.Linear(7, 6, dtype=dtype), nn.Tanh(), nn.Linear(6, 4, dtype=dtype)
    ), torch.randn(40, 7, dtype=dtype)


def brute_force_fisher(model, x, bias):
    """Per-sample, per-class gradients; their outer products summed with p(y)."""
    layer = model[-1]
    total = 0
    for sample in x:
        log_p = model(sample[None]).log_softmax(1)[0]
        for y in range(len(log_p)):
            parameters = (layer.weight, layer.bias)
            weight, shift = torch.autograd.grad(log_p[y], parameters, retain_graph=True)
            g = torch.cat([weight, shift[:, None]], 1) if bias else weight
            total = total + log_p[y].exp().detach() * g.flatten().outer(g.flatten())
    return total / len(x)


@pytest.mark.parametrize("bias", [False, True])
def test_fisher_is_that_of_per_sample_per_class_gradients(bias):
    model, x = network()
    expected = brute_force_fisher(model, x, bias)
    torch.testing.assert_close(fisher_last_layer(model(x), model[:-1](x), bias), expected)
    torch.testing.assert_close(fisher_of_model(model, x, bias=bias), expected)
    assert expected.abs().max() > 1e-2  # the mistake not to repeat gives 1e-18


def test_fisher_in_parts_equals_fisher_at_once():
    logits, hidden = torch.randn(5000, 3), torch.randn(5000, 2)
    halves = [fisher_last_layer(logits[s], hidden[s]) for s in (slice(0, 1000), slice(1000, 5000))]
    expected = halves[0] * 0.2 + halves[1] * 0.8
    torch.testing.assert_close(fisher_last_layer(logits, hidden), expected)


def test_fisher_condition_numbers_leave_out_what_softmax_ignores():
    model, x = network()
    fisher = fisher_of_model(model, x)
    shift = torch.ones(4).double().repeat_interleave(6).diag() @ torch.eye(6).double().repeat(4, 1)
    assert (fisher @ shift).abs().max() < 1e-12  # 1 (x) e_d for the 6 elements of h
    numbers = fisher_condition_numbers(fisher, num_classes=4)
    eigenvalues = torch.linalg.eigvalsh(fisher).flip(0)
    assert eigenvalues[18:].abs().max() < 1e-12 < eigenvalues[17]
    assert numbers.at_smallest == pytest.approx(float(eigenvalues[0] / eigenvalues[17]))
    assert numbers.at_90_percent == pytest.approx(float(eigenvalues[0] / eigenvalues[15]))
    torch.testing.assert_close(numbers.eigenvalues, eigenvalues)


def test_a_dead_unit_makes_the_fisher_matrix_singular():
    model, x = network()
    with torch.no_grad():
        model[0].weight[2], model[0].bias[2] = 0, 0
    numbers = fisher_condition_numbers(fisher_of_model(model, x), num_classes=4)
    assert numbers.at_smallest == math.inf


def test_fisher_of_the_whitened_layer_is_where_its_parameters_are():
    """A linear map before the last linear layer: its output counts as the layer's input."""
    model, x = network()
    U = torch.randn(6, 6, dtype=torch.float64)
    whitened = nn.Sequential(model[0], nn.Tanh(), nn.Linear(6, 6, bias=False), model[2]).double()
    with torch.no_grad():
        whitened[2].weight.copy_(U)
    hidden = torch.tanh(model[0](x)) @ U.T
    torch.testing.assert_close(
        fisher_of_model(whitened, x), fisher_last_layer(model[2](hidden), hidden)
    )


def test_fisher_of_a_model_in_training_leaves_it_as_it_was():
    model = nn.Sequential(
        nn.Linear(5, 8),
        DecorrelatedBatchNorm1d(8),
        nn.BatchNorm1d(8),
        nn.Dropout(),
        nn.Linear(8, 3),
    )
    x = torch.randn(32, 5)
    before, random = state(model), torch.get_rng_state()
    in_train = fisher_of_model(model, x)
    assert_same_state(before, model)
    assert torch.equal(random, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not torch.allclose(in_train, fisher_of_model(model.eval(), x))


def test_fisher_errors_say_what_was_expected():
    with pytest.raises(ValueError, match=r"same N samples, got \(3, 2\) and \(4, 5\)"):
        fisher_last_layer(torch.zeros(3, 2), torch.zeros(4, 5))
    with pytest.raises(ValueError, match=r"4 classes .* shape \(6, 6\)"):
        fisher_condition_numbers(torch.eye(6), 4)
    model, x = network()
    with pytest.raises(ValueError, match=r"nn.Linear \(0, 2\), got 'classifier'"):
        fisher_of_model(model, x, layer="classifier")


# --- Jacobian -----------------------------------------------------------------------------------


def singular_values(function, x):
    """Of the diagonal blocks of autograd's Jacobian of the whole batch."""
    full = jacobian(function, x)  # [N, K, N, D]
    blocks = torch.stack([full[i, :, i] for i in range(len(x))])
    return torch.linalg.svdvals(blocks), full


def test_jacobian_of_a_network_without_normalisation_is_autograds():
    model, x = network()
    expected, _ = singular_values(model, x)
    torch.testing.assert_close(jacobian_singular_values(model, x), expected)


def norms():
    yield "bn", nn.BatchNorm1d(6, dtype=torch.float64)
    yield "bn without running statistics", nn.BatchNorm1d(6, track_running_stats=False).double()
    for whitening, running in itertools.product(("zca", "newton"), ("whitening", "covariance")):
        options = {"group_size": 4, "whitening": whitening, "running": running}
        yield f"{whitening} {running}", DecorrelatedBatchNorm1d(6, dtype=torch.float64, **options)


NORMS = list(norms())


def normalised(norm):
    model = nn.Sequential(nn.Linear(7, 6), norm, nn.ReLU(inplace=True), nn.Linear(6, 4)).double()
    x = torch.randn(20, 7, dtype=torch.float64)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2) if norm.weight is not None else None
    return model, x


@pytest.mark.parametrize("norm", [n for _, n in NORMS], ids=[name for name, _ in NORMS])
def test_jacobian_in_train_mode_holds_the_batch_statistics_fixed(norm):
    model, x = normalised(norm)
    z = model[0](x).detach()
    y = norm(z).detach()
    # The affine map that the batch made of the layer, found from its inputs and outputs alone.
    ones = torch.ones(len(z), 1).double()
    A = torch.linalg.lstsq(torch.cat([z, ones], 1), y).solution

    def held(x):
        return model[3](torch.relu(model[0](x) @ A[:-1] + A[-1]))

    before = state(model)
    expected, _ = singular_values(held, x)
    torch.testing.assert_close(jacobian_singular_values(model, x), expected)
    assert_same_state(before, model)


@pytest.mark.parametrize("norm", [n for name, n in NORMS if "without" not in name])
def test_jacobian_in_eval_mode_is_that_of_inference(norm):
    model, x = normalised(norm)
    for _ in range(3):
        model(torch.randn(20, 7, dtype=torch.float64))
    expected, full = singular_values(model.eval(), x)
    assert full[0, :, 1].abs().max() == 0
    torch.testing.assert_close(jacobian_singular_values(model, x), expected)


def test_what_the_held_statistics_leave_out_shrinks_with_the_batch():
    def error(n):
        model = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
        x = torch.randn(n, 5, dtype=torch.float64)
        expected, _ = singular_values(model, x)
        return (jacobian_singular_values(model, x) - expected).abs().max()

    assert error(160) < error(10) / 4


def test_jacobian_of_a_convolutional_network():
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), DecorrelatedBatchNorm2d(4), nn.Flatten(), nn.Linear(64, 3)
    )
    x = torch.randn(9, 1, 6, 6)
    model(x)
    expected = torch.linalg.svdvals(
        torch.stack([jacobian(model.eval(), x[i : i + 1]).reshape(3, 36) for i in range(9)])
    )
    torch.testing.assert_close(jacobian_singular_values(model, x).float(), expected)


def test_jacobian_leaves_random_numbers_and_gradients_alone():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(), nn.Linear(6, 2))
    random = torch.get_rng_state()
    jacobian_singular_values(model, torch.zeros(8, 4) + torch.arange(8.0)[:, None])
    assert torch.equal(random, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_jacobian_refuses_a_layer_that_mixes_samples():
    class Mixing(nn.Module):
        def forward(self, x):
            return x - x.mean(0)

    with pytest.raises(ValueError, match="depends on other samples"):
        jacobian_singular_values(Mixing(), torch.randn(4, 3))


def test_a_diverged_model_gives_nan_and_no_error():
    model, x = network()
    x[3] = torch.nan
    numbers = fisher_condition_numbers(fisher_of_model(model, x), num_classes=4)
    assert math.isnan(numbers.at_90_percent)
    assert math.isnan(numbers.at_smallest)
    assert math.isnan(condition_number(covariance_spectrum(model(x))))
    values = jacobian_singular_values(model, x)
    assert values[3].isnan().all()
    assert values[:3].isfinite().all()
    with torch.no_grad():
        model[0].weight.fill_(torch.inf)
    assert jacobian_singular_values(model, x).isnan().all()


# --- axis swapping ------------------------------------------------------------------------------


def figure_2():
    """Two batches that share most points; the others make another direction the longest."""
    angle = math.pi / 6
    D = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    shared = torch.randn(200, 2) * torch.tensor([1.0, 0.9])
    along = torch.tensor([[6.0, 0.0], [-6.0, 0.0]]).repeat(4, 1)
    return (shared @ D.T).double(), [
        (torch.cat([shared, extra]) @ D.T).double() for extra in (along, along.flip(1))
    ]


def whitenings(whitening):
    shared, batches = figure_2()
    matrices = [whitening_matrix(b.T.cov(correction=0), 0.0, whitening) for b in batches]
    return matrices, [(shared - b.mean(0)) @ W.T for b, W in zip(batches, matrices, strict=True)]


def test_pca_swaps_the_axes_of_figure_2_and_zca_does_not():
    _, (first, second) = whitenings("pca")
    pca = axis_swapping(first, second)
    assert pca.swapped == 1
    assert pca.permutation.tolist() == [1, 0]
    assert pca.agreement > 0.95  # it is a permutation
    assert pca.drift > 0.4
    _, (first, second) = whitenings("zca")
    zca = axis_swapping(first, second)
    assert zca.swapped == 0
    assert zca.agreement > 0.9
    assert zca.drift < 0.05


@pytest.mark.parametrize("whitening", ["pca", "zca"])
def test_axis_swapping_of_matrices_agrees_with_that_of_points(whitening):
    (W1, W2), (first, second) = whitenings(whitening)
    shared, _ = figure_2()
    points = axis_swapping(first, second)
    shared = torch.linalg.lstsq(W1, (first - first.mean(0)).T).solution  # the centred points
    matrices = whitening_axis_swapping(W1, W2, shared @ shared.T / shared.shape[1])
    assert matrices[:3] == pytest.approx(points[:3])
    assert torch.equal(matrices.permutation, points.permutation)
    assert whitening_axis_swapping(W1, W2).swapped == points.swapped


def test_an_exact_permutation_with_a_change_of_sign_is_found():
    x = torch.randn(100, 12, dtype=torch.float64)
    permutation = torch.randperm(12)
    moved = torch.empty_like(x)
    moved[:, permutation] = -x
    found = axis_swapping(x, moved)
    assert torch.equal(found.permutation, permutation)
    assert found.agreement == pytest.approx(1)
    assert found.swapped == pytest.approx(float((permutation != torch.arange(12)).double().mean()))


def test_no_change_is_no_swapping_and_a_change_of_every_sign_is_all_drift():
    x = torch.randn(50, 5)
    assert axis_swapping(x, x)[:3] == pytest.approx((0, 1, 0))
    assert axis_swapping(x, -x)[:3] == pytest.approx((0, 1, 1))


@pytest.mark.parametrize("n", [1, 2, 5, 30])
def test_the_assignment_is_the_best_there_is(n):
    from scipy.optimize import linear_sum_assignment

    for kind in (torch.rand(n, n), torch.randint(3, (n, n)).double(), -torch.rand(n, n)):
        rows, columns = linear_sum_assignment(kind.numpy())
        found = _assignment(kind)
        assert sorted(found.tolist()) == list(range(n))
        best = float(kind[rows, columns].sum())
        assert float(kind[torch.arange(n), found].sum()) == pytest.approx(best)


def test_axis_swapping_refuses_different_points():
    with pytest.raises(ValueError, match=r"same points twice, .* got \(4, 2\) and \(5, 2\)"):
        axis_swapping(torch.zeros(4, 2), torch.zeros(5, 2))


# --- recorder -----------------------------------------------------------------------------------


def train(model, recorder_options=None):
    torch.manual_seed(1)
    model.load_state_dict(state(model))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(64, 5), torch.randint(3, (64,))
    losses = []

    def loop():
        for _ in range(7):
            loss = nn.functional.cross_entropy(model(x), y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
            model.eval()
            model(x)
            model.train()

    if recorder_options is None:
        loop()
        return losses, None
    with ActivationRecorder(model, **recorder_options) as recorder:
        loop()
    return losses, recorder


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(5, 4), DecorrelatedBatchNorm1d(4), nn.ReLU(inplace=True), nn.Linear(4, 3)
    )


def test_recorder_measures_a_training_without_changing_it():
    plain, _ = train(small_model())
    watched, recorder = train(small_model(), {"layers": ["0", "1"], "every": 3})
    assert plain == watched
    assert [(r["layer"], r["step"]) for r in recorder.records] == [
        ("0", 0), ("1", 0), ("0", 3), ("1", 3), ("0", 6), ("1", 6)
    ]  # fmt: skip
    for record in recorder.records:
        if record["layer"] == "1":  # affine moves scale and shift, which correlation ignores
            assert record["mean_correlation"] < 1e-2
        else:
            assert record["mean_correlation"] > 0.05
            assert record["condition_number"] >= record["condition_number_90"] > 1


def test_recorder_lets_go_of_the_model():
    model = small_model()
    _, recorder = train(model, {"layers": ["1"]})
    count = len(recorder.records)
    model(torch.randn(8, 5))
    assert len(recorder.records) == count == 7


def test_recorder_takes_other_measures_and_says_which_layers_there_are():
    model = small_model()
    with ActivationRecorder(model, ["3"], {"largest": lambda y: float(y.max())}) as recorder:
        y = model(torch.randn(8, 5)).detach()
    assert recorder.records == [{"layer": "3", "step": 0, "largest": float(y.max())}]
    with pytest.raises(ValueError, match=r"no layer 'conv1'; it has '0', '1', '2', '3'"):
        ActivationRecorder(model, ["conv1"])
