r"""What whitening is for, measured: correlation, conditioning, Fisher matrix, isometry, noise.

The measures take tensors. Those that take a model leave it as it was, buffers, gradients and
random numbers included, so that they can be taken in the middle of a training;
:class:`ActivationRecorder` takes the first kind during the training's own forward passes.
"""

from whitenorm.diagnostics.activations import (
    condition_number,
    correlation,
    covariance,
    covariance_spectrum,
    effective_rank,
    mean_correlation,
)
from whitenorm.diagnostics.axis_swapping import (
    AxisSwapping,
    axis_swapping,
    whitening_axis_swapping,
)
from whitenorm.diagnostics.disturbance import normalization_disturbance
from whitenorm.diagnostics.fisher import (
    FisherConditioning,
    fisher_condition_numbers,
    fisher_last_layer,
    fisher_of_model,
)
from whitenorm.diagnostics.isometry import jacobian_singular_values, undisturbed
from whitenorm.diagnostics.recorder import MEASURES, ActivationRecorder

__all__ = [
    "MEASURES",
    "ActivationRecorder",
    "AxisSwapping",
    "FisherConditioning",
    "axis_swapping",
    "condition_number",
    "correlation",
    "covariance",
    "covariance_spectrum",
    "effective_rank",
    "fisher_condition_numbers",
    "fisher_last_layer",
    "fisher_of_model",
    "jacobian_singular_values",
    "mean_correlation",
    "normalization_disturbance",
    "undisturbed",
    "whitening_axis_swapping",
]
