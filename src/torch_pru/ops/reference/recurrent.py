"""The unit of :mod:`torch_pru.cell` over all steps: readable, differentiable to any order, slow."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torch_pru.ops.spec import LayerCall, Outputs, RecurrenceCall, TransformSpec, cell_dtype, with_layer_axis


def scan(
    gates: Tensor,
    step: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
    h0: Tensor,
    c0: Tensor,
    lengths: Tensor | None = None,
    *,
    reverse: bool = False,
) -> Outputs:
    """Run ``step`` over all steps.

    Args:
        gates: (T, B, 4, M), the contribution of the input to the four gates at every step.
        step: from that of one step, h and c to the next h and c.
        h0, c0: (B, M), the states before the first step; h may have another width.
        lengths: (B,), the number of valid steps of each column; after them the state is frozen and
            the output is zero. If None, every step is valid.
        reverse: run from the last valid step to the first; outputs stay at their positions.

    Returns:
        The outputs, which are the states h of all steps, and the last states h and c.
    """
    steps = range(gates.shape[0])
    valid = None if lengths is None else valid_steps(gates.shape[0], lengths.to(gates.device))
    if valid is not None:
        gates = gates.masked_fill(~valid.unsqueeze(-1), 0)  # padding may hold anything, NaN too
    h, c = h0.to(gates.dtype), c0.to(cell_dtype(gates.dtype))
    outputs: list[Tensor] = []
    for t in reversed(steps) if reverse else steps:
        h_next, c_next = step(gates[t], h, c)
        if valid is None:
            h, c = h_next, c_next
            outputs.append(h)
        else:
            h, c = torch.where(valid[t], h_next, h), torch.where(valid[t], c_next, c)
            outputs.append(h_next * valid[t])
    return torch.stack(outputs[::-1] if reverse else outputs), h, c.to(c0.dtype)


def valid_steps(steps: int, lengths: Tensor) -> Tensor:
    """(T, B, 1) mask of the steps that lie inside each column's length."""
    return (torch.arange(steps, device=lengths.device)[:, None] < lengths)[..., None]


def recurrence(call: RecurrenceCall, *, eager: bool = False) -> Outputs:
    """See :func:`torch_pru.ops.recurrence`."""
    from torch_pru.cell import gate, grouped_linear  # here: the cell imports this package

    gates, weight, bias, h0, c0, lengths, reverse = call
    groups, matrix = len(weight), weight.to(gates.dtype).transpose(0, 1).flatten(0, 2)  # (4·M, D)
    bias = None if bias is None else bias.to(gates.dtype)

    def step(z: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        context = grouped_linear(h, [matrix], groups)
        return gate(z + (context if bias is None else context + bias), c)

    h0, c0 = _or_zeros(gates, h0, c0, gates.shape[-1])
    return scan(gates, step, h0, c0, lengths, reverse=reverse)


def input_gates(
    x: Tensor,
    matrices: Sequence[Tensor],
    kernels: Sequence[Tensor],
    *,
    spec: TransformSpec,
    gates: int = 4,
    residual: bool = False,
    eager: bool = False,
) -> Tensor:
    """A transform of x (…, N), without a bias: (…, gates, M). With ``residual`` x is added to every gate."""
    from torch_pru.cell import transform

    y = transform(x, matrices, spec, kernels, gates)
    return (y + x.unsqueeze(-2)).to(y.dtype) if residual else y


def layer(call: LayerCall, *, eager: bool = False) -> Outputs:
    """A layer computed by the functions of :mod:`torch_pru.cell`; the input's gates all at once."""
    from torch_pru.cell import context_gates, gate, input_gates, project

    x, weights, h0, c0, lengths, spec, reverse = call
    gates = input_gates(x, weights, spec)

    def step(z: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        h, c = gate(z + context_gates(h, weights, spec).to(z.dtype), c)
        return project(h, weights), c

    h0, c0 = _or_zeros(gates, h0, c0, spec.state_size)
    return with_layer_axis(scan(gates, step, h0, c0, lengths, reverse=reverse))


def _or_zeros(gates: Tensor, h0: Tensor | None, c0: Tensor | None, state_size: int) -> tuple[Tensor, Tensor]:
    """States h (B, state_size) and c (B, M) for gates (T, B, 4, M), zero where they were not given."""
    batch, width = gates.shape[1], gates.shape[3]
    h0 = gates.new_zeros(batch, state_size) if h0 is None else h0
    return h0, gates.new_zeros(batch, width) if c0 is None else c0
