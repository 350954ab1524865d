r"""One training: deterministic given its seed, and resumable from a checkpoint."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.linalg import LinAlgError  # type: ignore[attr-defined]
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from whitenorm.distributed import synchronize
from whitenorm.lab.data.datasets import Dataset
from whitenorm.lab.data.images import Pictures
from whitenorm.lab.lookup import choose
from whitenorm.lab.networks.build import build_model
from whitenorm.lab.networks.methods import make_method
from whitenorm.lab.networks.parts import whiten_first_convolution
from whitenorm.lab.randomness import derive, generator
from whitenorm.lab.records.environment import clock
from whitenorm.lab.records.run import Run
from whitenorm.lab.training import probes
from whitenorm.lab.training.batches import Batches
from whitenorm.lab.training.checkpoints import Checkpoint
from whitenorm.lab.training.evaluation import Arithmetic, evaluate
from whitenorm.lab.training.optim import learning_rate, make_optimiser
from whitenorm.lab.training.replicas import ALONE, Replicas

WHITENED = 2000  # pictures whose patches a whitened first convolution is made from
Columns = Mapping[str, list[float | None]]
Measured = Mapping[str, list[Any]]  # a probe's columns: numbers, or matrices as lists


@dataclass(frozen=True)
class Outcome:
    """What a run leaves: the fields of a record that aren't known beforehand."""

    status: str
    final: Mapping[str, float | None]
    history: Columns = field(default_factory=dict)
    probes: Mapping[str, Measured] = field(default_factory=dict)
    arrays: Mapping[str, Any] = field(default_factory=dict)
    reason: str | None = None


class Interrupted(Exception):
    """A training was asked to stop, and its state is saved."""


def train(
    run: Run,
    dataset: Dataset | Pictures,
    *,
    device: torch.device | str = "cpu",
    checkpoint: Checkpoint | None = None,
    watch: Callable[["Trainer"], None] | None = None,
    stop: Callable[[], bool] | None = None,
    replicas: Replicas = ALONE,
) -> Outcome:
    """Trains a run to its end, from its checkpoint if there is one.

    The same run gives the same outcome, times apart, whether it was interrupted or not, on the
    same machine with the same number of threads. After every iteration ``watch`` is called, and
    ``stop`` is asked: if it says True, the state is saved and :class:`Interrupted` is raised.
    Each of several replicas calls this; the main one alone reads and writes the checkpoint.
    """
    device = torch.device(device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        trainer = Trainer(run, dataset, device, replicas)
        if checkpoint is not None:
            saved = checkpoint.load(run, torch.device("cpu")) if replicas.main else None
            if (state := replicas.told(saved)) is not None:
                trainer.load_state_dict(state)

        def save() -> None:
            state = trainer.state_dict()
            if checkpoint is not None and replicas.main:
                checkpoint.save(run, state)

        for _ in trainer.iterations():
            if watch is not None:
                watch(trainer)
            if not trainer.may_ask():
                continue
            due = checkpoint is not None and checkpoint.due()
            answers = replicas.gathered((stop is not None and stop(), due))
            interrupted, due = any(asked for asked, _ in answers), answers[0][1]
            if checkpoint is not None and (interrupted or due):
                save()
            if interrupted:
                where = f"; the state is in {checkpoint.path}" if checkpoint is not None else ""
                count = f"{trainer.iteration} of {trainer.total} updates"
                raise Interrupted(f"stopped after {count}{where}")
        if checkpoint is not None and checkpoint.final:
            save()
        return trainer.outcome()


class Trainer:
    """The state of a training: model, optimizer, position, curve.

    Random numbers of torch's global stream (dropout's) follow ``run.seed``; use within
    ``torch.random.fork_rng`` to leave the caller's alone.
    """

    PLAIN_STATE = ("iteration", "seconds", "reason", "history", "probes")

    def __init__(
        self,
        run: Run,
        dataset: Dataset | Pictures,
        device: torch.device,
        replicas: Replicas = ALONE,
    ) -> None:
        self.run = run
        self.device = device
        self.replicas = replicas
        self.method = make_method(**run.method)
        self._check()
        self.arithmetic = Arithmetic(run, device)
        model = build_model(
            **run.model,
            method=self.method,
            num_classes=dataset.num_classes,
            input_shape=dataset.input_shape,
            generator=generator(run.seed, "initialisation"),
        )
        self._start_first_convolution(model, dataset)
        self.model = self.arithmetic.place(model)
        if run.synchronized:
            synchronize(self.model)
        self.parallel = replicas.wrapped(self.model)
        torch.manual_seed(derive(run.seed, "dropout", *replicas.stream))
        self.optimiser = make_optimiser(run.optimiser, self.model.parameters())
        self.batches = Batches(dataset, run, device, replicas)
        self.total = run.iterations or (run.epochs or 0) * self.batches.iterations_per_epoch
        self.iteration = 0
        self.seconds = 0.0
        self._clock = clock(str(device))[1]
        self.reason: str | None = None
        self.history: dict[str, list[float | None]] = {}
        self.probes: dict[str, dict[str, list[Any]]] = {}
        # Since the last point: sum of losses, wrong answers, examples.
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)

    def _check(self) -> None:
        run, count = self.run, self.replicas.count
        if run.replicas != count:
            raise ValueError(
                f"the run is for {run.replicas} replicas, and there are {count}: start "
                f"it with torchrun --nproc-per-node {run.replicas}"
            )
        if run.synchronized and count == 1:
            raise ValueError("synchronized=True needs several replicas; there is 1")
        if self.method.after_iteration is not None and count > 1:
            raise ValueError(
                f"method {run.method['name']!r} changes weights by what it sees of a batch, which "
                "would differ between replicas; train it in one process"
            )

    def _start_first_convolution(self, model: nn.Module, dataset: Dataset | Pictures) -> None:
        how = choose("first_convolution", self.run.first_convolution, ("drawn", "whitened"))
        if how == "drawn":
            return
        if isinstance(dataset, Pictures):
            raise ValueError("first_convolution='whitened' needs pictures in memory, not a stream")
        whiten_first_convolution(model, dataset.train_x[:WHITENED].cpu())

    def iterations(self) -> Iterator[None]:
        """Trains to the end, and gives control to the caller after every iteration.

        The clock stands still while a point or a probe is taken, and while the caller has control.
        On a GPU it is exact at the points, where the loss is asked for and so waited for.
        """
        self.model.train()
        if self.iteration == 0:
            self._take_probes()
        while self.iteration < self.total and self.reason is None:
            epoch, start = divmod(self.iteration, self.batches.iterations_per_epoch)
            begun = self._clock()
            for x, y in self.batches.epoch(epoch, start):
                self._iterate(self.arithmetic.prepare(x), y)
                self.seconds += self._clock() - begun
                if self.reason is None:
                    if self._point_is_due():
                        self._take_point()
                    self._take_probes()
                yield
                if self.iteration == self.total or self.reason is not None:
                    break
                begun = self._clock()

    def last_point(self) -> dict[str, float | None]:
        """The last values of the curve, by column; None where there is no number."""
        return {name: column[-1] for name, column in self.history.items()}

    def may_ask(self) -> bool:
        """Whether to look at values and other replicas now; always would keep a GPU waiting."""
        return self.device.type == "cpu" or self.iteration % 50 == 0 or self._point_is_due()

    def outcome(self) -> Outcome:
        """What there is to record."""
        final: dict[str, float | None] = {
            name: value if self.reason is None else None
            for name, value in self.last_point().items()
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
        on_gpu = self.device.type == "cuda"
        own = {  # differs between replicas
            "sums": self._sums.cpu(),
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state(self.device) if on_gpu else None,
        }
        return {
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            **{name: getattr(self, name) for name in self.PLAIN_STATE},
            "replicas": self.replicas.gathered(own),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state of the same run."""
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        for name in self.PLAIN_STATE:
            setattr(self, name, state[name])
        own = state["replicas"][self.replicas.rank]
        self._sums = own["sums"].to(self.device)
        torch.set_rng_state(own["rng"])
        if own["cuda_rng"] is not None and self.device.type == "cuda":
            torch.cuda.set_rng_state(own["cuda_rng"], self.device)

    def _iterate(self, x: Tensor, y: Tensor) -> None:
        run, after_iteration = self.run, self.method.after_iteration
        per_epoch = self.batches.iterations_per_epoch
        rate = learning_rate(run.schedule, run.optimiser["lr"], self.iteration, per_epoch)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        if self.batches.full:
            # The last loss on the whole training set is exact; a mean would only lag behind.
            self._sums.zero_()
        try:
            if self.iteration == 0 and after_iteration is not None:
                after_iteration(self.model, x, 0)
            self.optimiser.zero_grad(set_to_none=True)
            self._accumulate_gradient(x, y)
            self.optimiser.step()
            self.iteration += 1
            if self.may_ask() and not math.isfinite(self.replicas.add(self._sums[:1].clone())):
                self.reason = f"the loss was no number at update {self.iteration}"
            elif after_iteration is not None:
                after_iteration(self.model, x, self.iteration)
        except LinAlgError as error:
            if self.replicas.count > 1:  # the others would go on without this one
                raise
            # Activations may overflow, and their decomposition fail, before the loss does.
            self.reason = f"a decomposition failed at update {self.iteration}: {error}"

    def _accumulate_gradient(self, x: Tensor, y: Tensor) -> None:
        parts = list(zip(*(t.tensor_split(self.run.accumulate) for t in (x, y)), strict=True))
        # DDP averages gradients over replicas, whatever their shares of the batch.
        whole = self.batches.batch_size / self.replicas.count
        model = self.parallel
        in_parallel = isinstance(model, DistributedDataParallel)
        no_sync: Any = model.no_sync if in_parallel else contextlib.nullcontext
        for i, (part, target) in enumerate(parts):
            # Gradients are averaged over replicas in the last part, for all of the parts.
            with contextlib.nullcontext() if i + 1 == len(parts) else no_sync():
                with self.arithmetic.autocast():
                    logits = model(part)
                loss = F.cross_entropy(logits.to(self.arithmetic.dtype), target)
                (loss * (len(part) / whole)).backward()
            wrong = (logits.detach().argmax(1) != target).sum()
            sums = [loss.detach() * len(part), wrong, torch.full_like(wrong, len(part))]
            self._sums += torch.stack([value.double() for value in sums])

    @property
    def point_every(self) -> int:
        """Iterations between points of the curve."""
        return self.run.evaluate_every or self.batches.iterations_per_epoch

    def _point_is_due(self) -> bool:
        every = self.point_every
        first = self.iteration == 1 and self.batches.full
        return first or self.iteration % every == 0 or self.iteration == self.total

    def _take_point(self) -> None:
        """Appends to the curve: losses and errors (%), of training since the last point."""
        loss, wrong, examples = self.replicas.add(self._sums.clone()).tolist()
        self._sums.zero_()
        point = {
            "iteration": self.iteration,
            "epoch": self.iteration / self.batches.iterations_per_epoch,
            "seconds": self.seconds,
            "rate": self.optimiser.param_groups[0]["lr"],
            "train_loss": loss / examples,
            "train_error": 100 * wrong / examples,
            **evaluate(self.model, self.batches.test(), self.arithmetic, self.replicas),
        }
        _append(self.history, point)

    def _take_probes(self) -> None:
        for name, options in self.run.probes.items():
            if self.iteration % options["every"] == 0 or self.iteration == self.total:
                rest = {key: value for key, value in options.items() if key != "every"}
                try:
                    values = probes.take(name, self.model, self.batches.dataset, **rest)
                except LinAlgError as error:
                    # The last iteration may have left weights that are no numbers.
                    self.reason = f"probe {name!r} failed at update {self.iteration}: {error}"
                    return
                _append(self.probes.setdefault(name, {}), {"iteration": self.iteration, **values})


def _append(columns: dict[str, list[Any]], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        columns.setdefault(name, []).append(value)
