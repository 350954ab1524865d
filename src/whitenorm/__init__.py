"""Normalization that whitens: Decorrelated Batch Normalization for PyTorch."""

from whitenorm.distributed import synchronize
from whitenorm.functional import decorrelated_batch_norm
from whitenorm.modules import (
    DecorrelatedBatchNorm1d,
    DecorrelatedBatchNorm2d,
    DecorrelatedBatchNorm3d,
    TranslatedReLU,
)
from whitenorm.whitening import whitening_matrix

__version__ = "0.1.0.dev0"

__all__ = [
    "DecorrelatedBatchNorm1d",
    "DecorrelatedBatchNorm2d",
    "DecorrelatedBatchNorm3d",
    "TranslatedReLU",
    "decorrelated_batch_norm",
    "synchronize",
    "whitening_matrix",
]
