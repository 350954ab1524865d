r"""The precision and memory layout that a run computes in, and its losses on the test set."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whitenorm.lab.lookup import look_up
from whitenorm.lab.records.run import Run
from whitenorm.lab.training.replicas import Replicas

PRECISIONS = {"float32": torch.float32, "float64": torch.float64, "bf16": torch.float32}


class Arithmetic:
    """In which precision and memory layout a run computes on a device."""

    def __init__(self, run: Run, device: torch.device) -> None:
        self.device = device
        self.dtype = look_up(PRECISIONS, "precision", run.precision)
        self.bf16 = run.precision == "bf16"
        self.layout = torch.channels_last if run.channels_last else torch.preserve_format

    def place(self, model: nn.Module) -> nn.Module:
        """Moves a model there."""
        model.to(self.device, self.dtype)
        model.to(memory_format=self.layout)  # type: ignore[call-overload]
        return model

    def prepare(self, x: Tensor) -> Tensor:
        """A batch, ready for the model."""
        return x.to(self.dtype, memory_format=self.layout)

    def autocast(self) -> torch.autocast:
        """For the forward pass."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16)


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    arithmetic: Arithmetic,
    replicas: Replicas,
) -> dict[str, float | None]:
    """Loss and errors (%) in eval mode over the batches of all replicas; empty without examples.

    The model is left in train mode.
    """
    sums = torch.zeros(4, dtype=torch.float64)  # of loss, wrong, wrong among five, examples
    replicas.share_buffers(model)
    model.eval()
    for x, y in batches:
        with arithmetic.autocast():
            logits = model(arithmetic.prepare(x))
        loss = F.cross_entropy(logits.to(arithmetic.dtype), y, reduction="sum")
        best = logits.topk(min(5, logits.shape[1]), dim=1).indices == y[:, None]
        wrong = [(~best[:, 0]).sum(), (~best.any(1)).sum()]
        sums += torch.tensor([float(loss), *map(int, wrong), len(y)], dtype=torch.float64)
    model.train()
    loss_sum, wrong1, wrong5, examples = replicas.add(sums.to(arithmetic.device)).tolist()
    if examples == 0:
        return {}
    return {
        "test_loss": loss_sum / examples,
        "test_error": 100 * wrong1 / examples,
        "test_top5_error": 100 * wrong5 / examples,
    }
