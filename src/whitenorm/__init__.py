"""Normalization that whitens: Decorrelated Batch Normalization for PyTorch."""

from whitenorm.convert import convert_batchnorm
from whitenorm.distributed import synchronize
from whitenorm.fitted import FittedWhitening, fit_whitening
from whitenorm.folding import ChannelAffine, FoldReport, fold, fold_weights
from whitenorm.functional import decorrelated_batch_norm
from whitenorm.iternorm import ITERNORM, IterNorm, iternorm_state_dict
from whitenorm.modules import (
    DecorrelatedBatchNorm,
    DecorrelatedBatchNorm1d,
    DecorrelatedBatchNorm2d,
    DecorrelatedBatchNorm3d,
    TranslatedReLU,
)
from whitenorm.patches import whiten_convolution_
from whitenorm.recalibration import recalibrate
from whitenorm.samplewise import GroupWhitening, InstanceWhitening2d
from whitenorm.self_supervised import whiten, whitening_mse
from whitenorm.whitening import whitening_matrix

__version__ = "0.1.0"

__all__ = [
    "ITERNORM",
    "ChannelAffine",
    "DecorrelatedBatchNorm",
    "DecorrelatedBatchNorm1d",
    "DecorrelatedBatchNorm2d",
    "DecorrelatedBatchNorm3d",
    "FittedWhitening",
    "FoldReport",
    "GroupWhitening",
    "InstanceWhitening2d",
    "IterNorm",
    "TranslatedReLU",
    "convert_batchnorm",
    "decorrelated_batch_norm",
    "fit_whitening",
    "fold",
    "fold_weights",
    "iternorm_state_dict",
    "recalibrate",
    "synchronize",
    "whiten",
    "whiten_convolution_",
    "whitening_matrix",
    "whitening_mse",
]
