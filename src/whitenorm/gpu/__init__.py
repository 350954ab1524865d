r"""Training on CUDA devices by Triton's kernels, for those who ask for it.

See :func:`enable`. Nothing here imports Triton before it is used.
"""

from whitenorm.gpu.gate import disable, enable, is_enabled, unmet_requirement

__all__ = ["disable", "enable", "is_enabled", "unmet_requirement"]
