r"""The training loop: its state, one iteration after the other, and the curve they make."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from whitenorm.distributed import synchronize
from whitenorm.lab.data.datasets import Dataset
from whitenorm.lab.data.images import Pictures
from whitenorm.lab.networks.build import build_model
from whitenorm.lab.networks.methods import make_method
from whitenorm.lab.randomness import derive, generator
from whitenorm.lab.records.run import Run
from whitenorm.lab.training import probes
from whitenorm.lab.training.batches import make_batches
from whitenorm.lab.training.evaluation import Arithmetic, evaluate
from whitenorm.lab.training.optim import learning_rate, make_optimiser
from whitenorm.lab.training.outcome import Outcome, Point
from whitenorm.lab.training.replicas import Replicas

__all__ = ["Trainer"]


class Trainer:
    """The state of a training: model, optimiser, position, curve.

    Random numbers of torch's global stream (dropout's) follow ``run.seed``; use within
    ``torch.random.fork_rng`` to leave the caller's alone.
    """

    def __init__(
        self,
        run: Run,
        dataset: Dataset | Pictures,
        device: torch.device,
        replicas: Replicas | None = None,
    ) -> None:
        self.replicas = replicas or Replicas()
        _check(run, self.replicas)
        self.run = run
        self.device = device
        self.arithmetic = Arithmetic(run, device)
        self.method = make_method(**run.method)
        model = build_model(
            **run.model,
            method=self.method,
            num_classes=dataset.num_classes,
            input_shape=dataset.input_shape,
            generator=generator(run.seed, "initialisation"),
        )
        self.model = self.arithmetic.place(model)
        if run.synchronized:
            synchronize(self.model)
        if self.replicas.count > 1 and self.method.after_iteration is not None:
            raise ValueError(
                f"method {run.method['name']!r} changes weights by what it sees of a batch, which "
                "would differ between replicas; train it in one process"
            )
        self.parallel = self.replicas.wrapped(self.model)
        others = [self.replicas.rank] if self.replicas.rank else []
        torch.manual_seed(derive(run.seed, "dropout", *others))
        self.optimiser = make_optimiser(run.optimiser, self.model.parameters())
        self.dataset = dataset
        self.batches = make_batches(dataset, run, device, self.replicas)
        self.total = run.iterations or (run.epochs or 0) * self.batches.iterations_per_epoch
        self.iteration = 0
        self.seconds = 0.0
        self.reason: str | None = None
        self.history: dict[str, list[float | None]] = {}
        self.probes: dict[str, dict[str, list[float | None]]] = {}
        # Since the last point: sum of losses, wrong answers, examples.
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)

    def iterations(self) -> Iterator[Point]:
        """Trains to the end; gives the last point of the curve after every iteration.

        The clock stands still while a point or a probe is taken, and while the caller has control.
        On a GPU it is exact at the points, where the loss is asked for and so waited for.
        """
        self.model.train()
        if self.iteration == 0:
            self._take_probes()
        while self.iteration < self.total and self.reason is None:
            epoch, start = divmod(self.iteration, self.batches.iterations_per_epoch)
            begun = time.perf_counter()
            for x, y in self.batches.epoch(epoch, start):
                self._iterate(self.arithmetic.prepare(x), y)
                self.seconds += time.perf_counter() - begun
                if self.reason is None:
                    if self._point_is_due():
                        self._take_point()
                    self._take_probes()
                yield {name: column[-1] for name, column in self.history.items()}
                if self.iteration == self.total or self.reason is not None:
                    break
                begun = time.perf_counter()

    def may_ask(self) -> bool:
        """Whether to look now at values, and at what the other replicas say.

        Asking after every iteration would keep a GPU waiting.
        """
        return self.device.type == "cpu" or self.iteration % 50 == 0 or self._point_is_due()

    def outcome(self) -> Outcome:
        """What there is to record."""
        final: dict[str, float | None] = {
            name: column[-1] if self.reason is None else None
            for name, column in self.history.items()
            if name not in ("iteration", "epoch", "rate")
        }
        final |= {
            "iterations": self.iteration,
            "seconds": self.seconds,
            "seconds_per_iteration": self.seconds / max(self.iteration, 1),
            "parameters": sum(p.numel() for p in self.model.parameters()),
        }
        status = "finished" if self.reason is None else "diverged"
        return Outcome(status, final, self.history, self.probes, reason=self.reason)

    def state_dict(self) -> dict[str, Any]:
        """All that the rest of the training depends on; all replicas have to ask for it."""
        return {
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "iteration": self.iteration,
            "seconds": self.seconds,
            "reason": self.reason,
            "history": self.history,
            "probes": self.probes,
            "replicas": self.replicas.gathered(self._own_state()),
        }

    def _own_state(self) -> dict[str, Any]:
        """What differs between replicas."""
        on_gpu = self.device.type == "cuda"
        return {
            "sums": self._sums.cpu(),
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state(self.device) if on_gpu else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state of the same run."""
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.iteration = state["iteration"]
        self.seconds = state["seconds"]
        self.reason = state["reason"]
        self.history = state["history"]
        self.probes = state["probes"]
        own = state["replicas"][self.replicas.rank]
        self._sums = own["sums"].to(self.device)
        torch.set_rng_state(own["rng"])
        if own["cuda_rng"] is not None and self.device.type == "cuda":
            torch.cuda.set_rng_state(own["cuda_rng"], self.device)

    def _iterate(self, x: Tensor, y: Tensor) -> None:
        self._set_learning_rate()
        if self.batches.full:
            # The last loss on the whole training set is exact; a mean would only lag behind.
            self._sums.zero_()
        try:
            if self.iteration == 0 and self.method.after_iteration is not None:
                self.method.after_iteration(self.model, x, 0)
            self.optimiser.zero_grad(set_to_none=True)
            self._accumulate_gradient(x, y)
            self.optimiser.step()
            self.iteration += 1
            if self.may_ask() and not self._loss_is_finite():
                self.reason = f"the loss was no number at update {self.iteration}"
            elif self.method.after_iteration is not None:
                self.method.after_iteration(self.model, x, self.iteration)
        except LinAlgError as error:
            if self.replicas.count > 1:  # the others would go on without this one
                raise
            # Activations may overflow, and their decomposition fail, before the loss does.
            self.reason = f"a decomposition failed at update {self.iteration}: {error}"

    def _loss_is_finite(self) -> bool:
        return math.isfinite(float(self.replicas.add(self._sums[:1].clone())))

    def _accumulate_gradient(self, x: Tensor, y: Tensor) -> None:
        parts = list(zip(*(t.tensor_split(self.run.accumulate) for t in (x, y)), strict=True))
        # DDP averages gradients over replicas, whatever their shares of the batch.
        whole = self.batches.batch_size / self.replicas.count
        for i, (part, target) in enumerate(parts):
            with self._averaged(i + 1 == len(parts)):
                with self.arithmetic.autocast():
                    logits = self.parallel(part)
                loss = F.cross_entropy(logits.to(self.arithmetic.dtype), target)
                (loss * (len(part) / whole)).backward()
            wrong = (logits.detach().argmax(1) != target).sum()
            sums = [loss.detach() * len(part), wrong, torch.full_like(wrong, len(part))]
            self._sums += torch.stack([value.double() for value in sums])

    def _averaged(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Averages gradients over replicas in the last part of a batch, for all of its parts."""
        if not last and isinstance(self.parallel, DistributedDataParallel):
            return self.parallel.no_sync()
        return contextlib.nullcontext()

    def _set_learning_rate(self) -> None:
        rate = learning_rate(
            self.run.schedule,
            self.run.optimiser["lr"],
            self.iteration,
            self.batches.iterations_per_epoch,
        )
        for group in self.optimiser.param_groups:
            group["lr"] = rate

    def _point_is_due(self) -> bool:
        every = self.run.evaluate_every or self.batches.iterations_per_epoch
        first = self.iteration == 1 and self.batches.full
        return first or self.iteration % every == 0 or self.iteration == self.total

    def _take_point(self) -> None:
        """Appends to the curve: losses and errors (%), of training since the last point."""
        loss, wrong, examples = self.replicas.add(self._sums.clone()).tolist()
        self._sums.zero_()
        point: dict[str, float | None] = {
            "iteration": self.iteration,
            "epoch": self.iteration / self.batches.iterations_per_epoch,
            "seconds": self.seconds,
            "rate": self.optimiser.param_groups[0]["lr"],
            "train_loss": loss / examples,
            "train_error": 100 * wrong / examples,
            **evaluate(self.model, self.batches.test(), self.arithmetic, self.replicas),
        }
        for name, value in point.items():
            self.history.setdefault(name, []).append(value)

    def _take_probes(self) -> None:
        for name, options in self.run.probes.items():
            every = options["every"]
            if self.iteration % every == 0 or self.iteration == self.total:
                rest = {key: value for key, value in options.items() if key != "every"}
                try:
                    values = probes.take(name, self.model, self.dataset, **rest)
                except LinAlgError as error:
                    # The last iteration may have left weights that are no numbers.
                    self.reason = f"probe {name!r} failed at update {self.iteration}: {error}"
                    return
                columns = self.probes.setdefault(name, {})
                for column, value in {"iteration": self.iteration, **values}.items():
                    columns.setdefault(column, []).append(value)


def _check(run: Run, replicas: Replicas) -> None:
    if run.replicas != replicas.count:
        raise ValueError(
            f"the run is for {run.replicas} replicas, and there are {replicas.count}: start "
            f"it with torchrun --nproc-per-node {run.replicas}"
        )
    if run.synchronized and run.replicas == 1:
        raise ValueError("synchronized=True needs several replicas; there is 1")
