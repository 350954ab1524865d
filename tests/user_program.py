"""A user's program, as a type checker sees it: `tests/test_package.py` runs mypy on it."""

from functools import partial

import torch
from torch import Tensor, nn

import whitenorm
from whitenorm import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d, TranslatedReLU
from whitenorm.diagnostics import condition_number, covariance_spectrum, mean_correlation


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = DecorrelatedBatchNorm2d(channels, eps=1e-5, momentum=None, group_size=8)
        self.act = TranslatedReLU(channels)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.act(self.norm(self.conv(x)))
        return y


norm_layer = partial(DecorrelatedBatchNorm1d, group_size=4, whitening="newton", iterations=7)
model: nn.Sequential = nn.Sequential(nn.Linear(8, 8), norm_layer(8))
model = whitenorm.synchronize(model)
coloured = DecorrelatedBatchNorm2d(16, affine="matrix")
samplewise = nn.Sequential(
    whitenorm.GroupWhitening(4, 16, eps=1e-5, affine=True),
    whitenorm.InstanceWhitening2d(16, affine="matrix", group_size=8),
)
converted: nn.Module = whitenorm.convert_batchnorm(nn.BatchNorm2d(16), where="all", group_size=4)
deployed: nn.Module = whitenorm.fold(model.eval())
report: whitenorm.FoldReport = deployed.fold_report  # type: ignore[assignment]

x = torch.randn(64, 8)
y: Tensor = whitenorm.decorrelated_batch_norm(x, training=True, group_size=8)
W: Tensor = whitenorm.whitening_matrix(x.T.cov(), eps=1e-3, whitening="cholesky")
spread: float = condition_number(covariance_spectrum(y), at=0.9) + mean_correlation(y)
groups: int = DecorrelatedBatchNorm1d(8, group_size=3).num_groups
fitted: whitenorm.FittedWhitening = whitenorm.fit_whitening([x], whitening="pca", components=2)
back: Tensor = fitted.inverse()(fitted(x))
first: nn.Conv2d = whitenorm.whiten_convolution_(nn.Conv2d(3, 12, 2), torch.rand(9, 3, 8, 8))
loss: Tensor = whitenorm.whitening_mse(x, whitenorm.whiten(y, axis=1), slices=2)
