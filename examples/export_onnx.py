"""Exports a whitened network to ONNX, folded and not, and runs it in onnxruntime."""

import collections
import logging
import tempfile
import warnings
from pathlib import Path

import onnx
import onnxruntime
import torch
from torch import nn

import whitenorm

logging.getLogger("torch.onnx").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", category=FutureWarning, module="copyreg")  # torch's own
torch.manual_seed(0)

model = nn.Sequential(
    nn.Conv2d(3, 32, 3), whitenorm.DecorrelatedBatchNorm2d(32), nn.ReLU(),
    nn.Flatten(), nn.Linear(32 * 6 * 6, 64), whitenorm.DecorrelatedBatchNorm1d(64), nn.ReLU(),
    nn.Linear(64, 10),
)  # fmt: skip
with torch.no_grad():
    model(torch.randn(256, 3, 8, 8))  # in place of training
model.eval()

batch = torch.export.Dim("batch")
x = torch.randn(5, 3, 8, 8)
for name, network in {"as it is": model, "folded": whitenorm.fold(model)}.items():
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.onnx"
        torch.onnx.export(
            network, (x[:2],), path, dynamo=True, dynamic_shapes=({0: batch},), verbose=False
        )
        operations = collections.Counter(node.op_type for node in onnx.load(path).graph.node)
        session = onnxruntime.InferenceSession(path)
        (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    difference = (torch.from_numpy(y) - network(x)).abs().max().item()
    print(f"{name}: {dict(operations)}, outputs differ by at most {difference:.1e}")
