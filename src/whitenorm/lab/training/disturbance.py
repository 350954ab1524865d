r"""How noisy batches make a normalization, in a hidden layer as it is initialized."""

from typing import Any

from whitenorm.diagnostics import normalization_disturbance
from whitenorm.lab.data.datasets import Dataset
from whitenorm.lab.networks.methods import make_method
from whitenorm.lab.randomness import generator
from whitenorm.lab.records.run import Run
from whitenorm.lab.training.axis_swapping import first_activations
from whitenorm.lab.training.trainer import Outcome


def measure_disturbance(run: Run, dataset: Dataset, **_: Any) -> Outcome:
    """SND of the method in the first hidden layer, from ``run.iterations`` rounds.

    In batches of twice as many examples as the layer has channels, of twice as many as these, and
    so on up to ``run.batch_size``. Runs of one seed see the same batches.
    """
    activations = first_activations(run, dataset)
    norm = make_method(**run.method).norm
    if norm is None:
        raise ValueError(f"method {run.method['name']!r} has no normalization to measure")
    layer = norm(activations.shape[1], 0)
    largest = run.batch_size or len(activations)
    size, random = min(2 * activations.shape[1], largest), generator(run.seed, "batches")
    history: dict[str, list[float | None]] = {"batch_size": [], "snd": []}
    while size <= largest:
        rounds = max(run.iterations or 0, 2)
        history["batch_size"].append(size)
        history["snd"].append(normalization_disturbance(layer, activations, size, rounds, random))
        size *= 2
    final = {"snd_small": history["snd"][0], "snd_large": history["snd"][-1]}
    return Outcome("finished", final, history)
