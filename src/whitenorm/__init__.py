"""Normalization that whitens: Decorrelated Batch Normalization for PyTorch."""

from whitenorm.convert import convert_batchnorm
from whitenorm.distributed import synchronize
from whitenorm.folding import ChannelAffine, FoldReport, fold, fold_weights
from whitenorm.functional import decorrelated_batch_norm
from whitenorm.modules import (
    DecorrelatedBatchNorm,
    DecorrelatedBatchNorm1d,
    DecorrelatedBatchNorm2d,
    DecorrelatedBatchNorm3d,
    TranslatedReLU,
)
from whitenorm.recalibration import recalibrate
from whitenorm.samplewise import GroupWhitening, InstanceWhitening2d
from whitenorm.whitening import whitening_matrix

__version__ = "0.1.0"

__all__ = [
    "ChannelAffine",
    "DecorrelatedBatchNorm",
    "DecorrelatedBatchNorm1d",
    "DecorrelatedBatchNorm2d",
    "DecorrelatedBatchNorm3d",
    "FoldReport",
    "GroupWhitening",
    "InstanceWhitening2d",
    "TranslatedReLU",
    "convert_batchnorm",
    "decorrelated_batch_norm",
    "fold",
    "fold_weights",
    "recalibrate",
    "synchronize",
    "whitening_matrix",
]
