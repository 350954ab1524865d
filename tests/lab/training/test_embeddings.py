"""Self-supervised learning of embeddings, as a run does it."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from whitenorm import whitening_mse
from whitenorm.lab.data.for_run import load
from whitenorm.lab.execution.jobs import TASKS
from whitenorm.lab.records.run import Run
from whitenorm.lab.training.embeddings import FEATURES, learn_embeddings, measure, plain_mse

RUN = Run(
    {"name": "digits"},
    {"name": "mlp", "hidden": [32]},
    {"name": "plain"},
    {"name": "adam", "lr": 0.003},
    iterations=30,
    evaluate_every=15,
    batch_size=128,
    subset={"train": 500, "test": 200},
)


def learned(task, changes=()):
    run = RUN.changed({"task": task, **dict(changes)})
    return TASKS[run.task](run, load(run))


def test_without_whitening_embeddings_collapse_and_with_it_they_do_not():
    plain, whitened = learned("embed-mse"), learned("embed-whitening-mse")
    assert plain.history["iteration"] == whitened.history["iteration"] == [0, 15, 30]
    spreads = [outcome.history["spread"] for outcome in (plain, whitened)]
    assert spreads[0][0] == spreads[1][0]  # the same initial weights
    assert spreads[0][-1] < 0.4 * spreads[0][0]
    assert spreads[1][-1] > 0.8 * spreads[1][0]
    assert plain.final["distance"] < 0.1 < whitened.final["distance"]
    assert plain.final["effective_rank"] < whitened.final["effective_rank"] <= FEATURES


def test_a_run_is_its_seed_and_its_settings():
    first, again, other = (
        learned("embed-whitening-mse", {"iterations": 3, "seed": seed}) for seed in (0, 0, 1)
    )
    assert first.history == again.history != other.history


def test_at_a_learning_rate_of_0_nothing_changes():
    outcome = learned("embed-mse", {"optimiser.lr": 0, "iterations": 1})
    for name in ("spread", "effective_rank", "neighbour_error"):
        assert outcome.history[name][0] == outcome.history[name][-1] == outcome.final[name]


def test_views_of_an_example_are_augmented_and_noised_apart():
    seen = []

    def keep(*views):
        seen.append(views)
        return plain_mse(*views)

    data, marked = load(RUN), []

    def augment(x, random):
        marked.append(float(torch.rand(1, generator=random)))
        return x

    learn_embeddings(RUN.changed({"iterations": 2}), replace(data, augment=augment), loss=keep)
    assert len({*marked}) == 4
    assert all(a.shape == b.shape == (128, FEATURES) and not a.equal(b) for a, b in seen)


def test_the_plain_loss_is_the_distance_of_normalized_embeddings():
    a, b = torch.randn(2, 9, 4, dtype=torch.float64)
    cosine = F.cosine_similarity(a, b)
    torch.testing.assert_close(plain_mse(a, b), (2 - 2 * cosine).mean())
    # Whitened before, it is W-MSE.
    white = [
        torch.linalg.solve_triangular(factor(z), (z - z.mean(0)).T, upper=False).T for z in (a, b)
    ]
    expected = whitening_mse(a, b, eps=1e-12)
    torch.testing.assert_close(plain_mse(*white), expected)


def factor(z):
    return torch.linalg.cholesky(z.T.cov(correction=0))


def test_what_is_measured_of_known_embeddings():
    data = load(RUN)
    classes = F.one_hot(data.test_y, 10).float(), F.one_hot(data.train_y, 10).float()
    data = replace(data, test_x=classes[0], train_x=classes[1])
    told = measure(nn.Identity(), data)
    assert told["neighbour_error"] == 0
    shares = classes[0].mean(0)
    assert told["spread"] == pytest.approx(math.sqrt((shares - shares**2).sum()), rel=1e-4)
    nothing = measure(nn.Identity(), replace(data, test_x=torch.ones(200, 10)))
    assert nothing["spread"] < 1e-6
    assert nothing["effective_rank"] == 0
    assert nothing["neighbour_error"] > 50


def test_a_loss_that_is_no_number_ends_the_run():
    outcome = learn_embeddings(RUN, load(RUN), loss=lambda a, b: plain_mse(a, b) * float("nan"))
    assert (outcome.status, outcome.final["spread"]) == ("diverged", None)
    assert outcome.reason == "the loss was no number at update 1"
