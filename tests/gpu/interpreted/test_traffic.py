"""Launches and traffic as they are, against those that the page computes with."""

import pytest
import torch
from accuracy import forward_backward
from cases import correlated

from whitenorm import DecorrelatedBatchNorm2d
from whitenorm.gpu import kernels
from whitenorm.lab.bench.traffic import LAUNCHES, PASSES

WRITTEN = "y"  # the one parameter of a kernel that is written and as large as the input


class Noted:
    """A kernel that notes its launches: its name, and the large tensors it reads and writes."""

    def __init__(self, name, size, log):
        self.kernel, self.name, self.size, self.log = getattr(kernels, name), name, size, log

    def __getitem__(self, grid):
        def launch(*arguments, **options):
            names = self.kernel.arg_names[: len(arguments)]
            pairs = zip(names, arguments, strict=True)
            large = [n for n, a in pairs if isinstance(a, torch.Tensor) and a.numel() >= self.size]
            name = "apply2" if self.name == "apply" and "g" in large else self.name
            written = large.count(WRITTEN)
            self.log.append((name, len(large) - written, written))
            return self.kernel[grid](*arguments, **options)

        return launch


@pytest.mark.usefixtures("interpreted")
def test_launches_and_traffic_are_those_of_the_table(monkeypatch):
    x, dy = correlated((9, 4, 4, 16)).float(), correlated((9, 4, 4, 16), 1).float()
    log = []
    for name in ("moments", "combine", "matrix", "apply", "running", "sums", "vjp"):
        monkeypatch.setattr(kernels, name, Noted(name, x.numel(), log))
    layer = DecorrelatedBatchNorm2d(4, group_size=4)
    layer(x.requires_grad_()).backward(dy)
    assert [name for name, _, _ in log] == [n for names in LAUNCHES.values() for n in names]
    for name, reads, writes in log:
        expected = PASSES.get(name)
        assert (reads, writes) == ((expected.reads, expected.writes) if expected else (0, 0)), name
    forward_backward(x.detach(), dy, group_size=4)  # without running statistics
    assert len(log) == 2 * len([n for names in LAUNCHES.values() for n in names]) - 1
