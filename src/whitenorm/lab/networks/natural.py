r"""Natural Neural Networks (Desjardins et al., NeurIPS 2015): linear layers of whitened inputs."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whitenorm.precision import algebra_dtype


class WhitenedLinear(nn.Module):
    r"""The linear layer of Natural Neural Networks, :math:`y = V U (x - c) + d`.

    :math:`V` and :math:`d`, those of ``linear``, are learned; :math:`c` and :math:`U`, the buffers
    ``mean`` and ``whitening``, change only when :meth:`reparameterize` estimates them. At first
    c = 0 and U = I.
    """

    mean: Tensor
    whitening: Tensor

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.register_buffer("mean", torch.zeros(in_features))
        self.register_buffer("whitening", torch.eye(in_features))

    def forward(self, input: Tensor) -> Tensor:
        centred = input - self.mean
        if torch.is_grad_enabled():
            # V U first: with more examples than outputs, that is far less to multiply.
            return F.linear(centred, self.linear.weight @ self.whitening, self.linear.bias)
        # Through the inner layer, so that hooks on it see the whitened input.
        output: Tensor = self.linear(centred @ self.whitening.mT)
        return output

    @torch.no_grad()
    def reparameterize(self, sample: Tensor, eps: float) -> None:
        r"""New :math:`c` and :math:`U` from a sample of inputs; the function stays the same.

        :math:`W = V U`, :math:`b = d - W c`; then, with the sample's mean :math:`c` and
        :math:`S + \epsilon I = D L D^\top`: :math:`U = L^{-1/2} D^\top`, :math:`V = W U^{-1}`,
        :math:`d = b + W c`.
        """
        algebra = algebra_dtype(sample)
        x, V, d = (t.to(algebra) for t in (sample, self.linear.weight, self.linear.bias))
        W = V @ self.whitening.to(algebra)
        b = d - W @ self.mean.to(algebra)
        mean = x.mean(0)
        centred = x - mean
        S = centred.mT @ centred / len(x)
        S.diagonal().add_(eps)
        eigenvalues, D = torch.linalg.eigh(S)
        root = eigenvalues.clamp(min=eps).sqrt()
        self.mean.copy_(mean)
        self.whitening.copy_((D / root).mT)
        self.linear.weight.copy_(W @ (D * root))
        self.linear.bias.copy_(b + W @ mean)


@torch.no_grad()
def reparameterize(model: nn.Module, inputs: Tensor, eps: float) -> None:
    """Re-parameterizes every :class:`WhitenedLinear` of a model from one forward pass."""
    samples: dict[WhitenedLinear, Tensor] = {}
    handles = [
        layer.register_forward_pre_hook(lambda layer, args: samples.update({layer: args[0]}))
        for layer in model.modules()
        if isinstance(layer, WhitenedLinear)
    ]
    try:
        model(inputs)
    finally:
        for handle in handles:
            handle.remove()
    for layer, sample in samples.items():
        layer.reparameterize(sample, eps)
