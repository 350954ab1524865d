r"""Self-supervised learning of embeddings: two views of each example, and no labels."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whitenorm.diagnostics import effective_rank
from whitenorm.lab.data.augment import Augmentation
from whitenorm.lab.data.datasets import Dataset
from whitenorm.lab.networks.build import build_model
from whitenorm.lab.networks.methods import make_method
from whitenorm.lab.randomness import generator
from whitenorm.lab.records.run import Run
from whitenorm.lab.training.batches import Batches
from whitenorm.lab.training.optim import learning_rate, make_optimiser
from whitenorm.lab.training.trainer import Outcome

FEATURES = 32  # of an embedding
NOISE = 0.3  # standard deviation of what is added to a view, in units of the pixels' range
NEIGHBOURS = 5


def plain_mse(*views: Tensor) -> Tensor:
    """The mean squared distance of two normalized views: W-MSE without whitening."""
    a, b = (F.normalize(view, dim=1) for view in views)
    return (a - b).square().sum(1).mean()


def learn_embeddings(
    run: Run,
    dataset: Dataset,
    *,
    loss: Callable[..., Tensor],
    device: torch.device | str = "cpu",
    **_: Any,
) -> Outcome:
    """Trains a run's network, with embeddings in place of logits, to give both views the same.

    A view is an example as the data set augments it, with noise. Labels serve measurements alone:
    see :func:`measure`.
    """
    device = torch.device(device)
    model = build_model(
        **run.model,
        method=make_method(**run.method),
        num_classes=FEATURES,
        input_shape=dataset.input_shape,
        generator=generator(run.seed, "initialisation"),
    ).to(device)
    optimiser = make_optimiser(run.optimiser, model.parameters())
    data = dataset.to(device)
    batches = Batches(replace(data, augment=None), run, device)
    per_epoch = batches.iterations_per_epoch
    total = run.iterations or (run.epochs or 0) * per_epoch
    every = run.evaluate_every or per_epoch
    start = {"iteration": 0, "epoch": 0, "distance": None, **measure(model, data)}
    history: dict[str, list[float | None]] = {name: [value] for name, value in start.items()}
    iteration, distances, reason = 0, 0.0, None
    while iteration < total and reason is None:
        epoch = iteration // per_epoch
        for x, _y in batches.epoch(epoch):
            rate = learning_rate(run.schedule, run.optimiser["lr"], iteration, per_epoch)
            for group in optimiser.param_groups:
                group["lr"] = rate
            random = generator(run.seed, "augmentation", iteration)
            distance = loss(*(model(_view(x, data.augment, random)) for _ in range(2)))
            optimiser.zero_grad(set_to_none=True)
            distance.backward()
            optimiser.step()
            iteration += 1
            distances += float(distance.detach())
            if not math.isfinite(distances):
                reason = f"the loss was no number at update {iteration}"
            elif iteration % every == 0 or iteration == total:
                passed = iteration - (history["iteration"][-1] or 0)
                point: dict[str, float | None] = {
                    "iteration": iteration,
                    "epoch": iteration / per_epoch,
                    "distance": distances / passed,
                    **measure(model, data),
                }
                for name, value in point.items():
                    history[name].append(value)
                distances = 0.0
            if iteration == total or reason is not None:
                break
    final = {
        name: column[-1] if reason is None else None
        for name, column in history.items()
        if name not in ("iteration", "epoch")
    }
    final |= {"iterations": iteration, "parameters": sum(p.numel() for p in model.parameters())}
    return Outcome("diverged" if reason else "finished", final, history, reason=reason)


def _view(x: Tensor, augment: Augmentation | None, random: torch.Generator) -> Tensor:
    x = x if augment is None else augment(x, random)
    return x + NOISE * torch.randn(x.shape, generator=random).to(x.device)


@torch.no_grad()
def measure(model: nn.Module, dataset: Dataset) -> dict[str, float | None]:
    r"""What the embeddings of the test set are like.

    - their effective rank;
    - their spread, the root of the summed variances of the normalized embeddings: 0 if all are
      the same, 1 if they lie around the origin evenly;
    - the share (%) of test examples whose label isn't that of most of their nearest training
      examples. The embeddings are normalized, and centred after that, so that it isn't rounding
      which makes close ones indistinguishable.
    """
    model.eval()
    raw = model(dataset.test_x)
    test, train = F.normalize(raw, dim=1), F.normalize(model(dataset.train_x), dim=1)
    model.train()
    spread = test.var(0, correction=0).sum().sqrt()
    centre = train.mean(0)
    nearest = torch.cdist(test - centre, train - centre).topk(NEIGHBOURS, largest=False).indices
    answers = dataset.train_y[nearest].mode(1).values
    wrong = (answers != dataset.test_y).double().mean()
    return {
        "effective_rank": rank if math.isfinite(rank := effective_rank(raw)) else None,
        "spread": float(spread),
        "neighbour_error": 100 * float(wrong),
    }
