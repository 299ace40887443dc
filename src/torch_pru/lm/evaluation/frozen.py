"""A PRU layer with constant weights: everything that depends on the weights alone is computed once."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torch_pru.ops import backends
from torch_pru.ops.folding import dense_matrix
from torch_pru.ops.gates import gate_linear, is_unit_major
from torch_pru.ops.operators import is_eager
from torch_pru.ops.spec import LayerCall, LayerSpec, LayerWeights, RecurrenceCall, TransformSpec


class FrozenLayer(nn.Module):
    """A layer in one direction, for steps of one token or a few.

    Args:
        spec: the structure of the layer.
        weights: its weights, in full precision.
        dtype: of the products.

    Attributes:
        input: (1, 4, M, N), the input transform as one matrix; None if it is not linear. On a GPU the gates
            of a unit are adjacent in memory.
        context: (G, 4, D, D), in the layout that the backend reads; None if the context is not linear.
        bias: (4, M) or None; as wide as the sums it is added to, whatever the products are in.
    """

    def __init__(self, spec: LayerSpec, weights: LayerWeights, dtype: torch.dtype) -> None:
        super().__init__()
        self.spec = spec
        self.input: Tensor | None = None
        self.context: Tensor | None = None
        wide = torch.promote_types(dtype, torch.float32)
        bias = weights.bias
        self.bias = None if bias is None else bias.detach().to(wide).view(4, -1)
        if spec.input.is_linear:
            matrix = dense_matrix(weights.input, spec.input).detach().to(dtype)
            self.input = matrix.view(1, 4, -1, spec.input_size)
            if is_unit_major(matrix):
                self.input = self.input.transpose(1, 2).contiguous().transpose(1, 2)
        if spec.context.is_linear:
            matrix = (
                dense_matrix(weights.context, spec.context) if spec.context.levels > 1 else weights.context[0]
            )
            by_gate = matrix.detach().to(dtype).view(4, spec.context.groups, -1, matrix.shape[1])
            self.context = by_gate.transpose(0, 1)
            gates = matrix.new_empty(1, 1, 4, spec.hidden_size, dtype=dtype)
            call = RecurrenceCall(gates, self.context, self.bias, None, None, None)
            self.backend = backends.choose("recurrence", call).name
            if not getattr(backends.module(self.backend), "GATE_MAJOR", False):
                self.context = self.context.contiguous()  # copied once, not for every token

        def converted(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return tuple(tensor.detach().to(dtype) for tensor in tensors)

        self.weights = LayerWeights(
            converted(weights.input),
            converted(weights.context),
            () if self.bias is None else (self.bias.flatten(),),
            converted(weights.input_kernels),
            converted(weights.context_kernels),
        )

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (T, B, N) and the states (B, M) to the output (T, B, M) and the next states."""
        if self.input is None or self.context is None:
            y, h, c = backends.run("layer", LayerCall(x, self.weights, h, c, None, self.spec))
            return y, h.squeeze(0), c.squeeze(0)
        residual, eager = self.spec.residual, is_eager((x,))
        gates = gate_linear(x, self.input, residual, backend=self.backend, eager=eager)
        return backends.run("recurrence", RecurrenceCall(gates, self.context, self.bias, h, c, None))

    def dense(self) -> tuple[LayerSpec, LayerWeights] | None:
        """The layer with one matrix for its input, for the piece ``token_model``; None if there is none."""
        if self.input is None or self.context is None:
            return None
        context = self.context.transpose(0, 1).reshape(-1, self.context.shape[-1])
        biases = () if self.bias is None else (self.bias.flatten(),)
        hidden = self.spec.hidden_size
        spec = LayerSpec(
            TransformSpec(self.spec.input_size, (hidden,)),
            TransformSpec(hidden, (hidden,), groups=len(self.context)),
            self.spec.residual,
        )
        return spec, LayerWeights((self.input.flatten(0, 2),), (context,), biases)
