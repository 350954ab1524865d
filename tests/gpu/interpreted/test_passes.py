"""Triton's passes under algebra that isn't Triton's: other whitenings, and replicas."""

import pytest
import torch
import triton_jobs
from accuracy import forward_backward, worst_channel
from cases import WHITENINGS, correlated, some
from replicas import run_replicas

from whitenorm.gpu import gate, launch


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("layout", some(["channels last"], ["maps", "channels last"]))
@pytest.mark.parametrize("whitening", some(["cholesky", "zca"], WHITENINGS))
def test_other_whitenings_take_the_passes(monkeypatch, whitening, layout):
    noted = []
    for name in ("moments", "sums", "apply", "whitening"):
        original = getattr(launch, name)
        monkeypatch.setattr(launch, name, lambda *a, n=name, f=original: noted.append(n) or f(*a))
    x, dy = correlated((4, 7, 3, 5)) + 20, correlated((4, 7, 3, 5), 1)
    if layout == "channels last":
        x = x.contiguous(memory_format=torch.channels_last)
    found = forward_backward(x, dy, group_size=4, whitening=whitening)
    if whitening == "zca":
        assert "whitening" in noted  # all of it
    else:
        assert noted == [*["moments"] * 2, *["apply"] * 2, *["sums"] * 2, *["apply"] * 2]
    gate.disable()
    expected = forward_backward(x, dy, group_size=4, whitening=whitening)
    assert max(worst_channel(a, b) for a, b in zip(found, expected, strict=True)) <= 1e-9
    assert found[0].stride() == x.stride()


def test_replicas_take_the_passes_and_compute_what_they_did():
    ours, theirs = (run_replicas(triton_jobs.one_layer, 2, [5, 11], on) for on in (True, False))
    for found, expected in zip(ours, theirs, strict=True):
        assert found.pop("kinds") > expected.pop("kinds") == 0
        assert found.pop("collectives") == expected.pop("collectives")
        for name in expected:
            torch.testing.assert_close(found[name], expected[name], rtol=1e-9, atol=1e-9)
