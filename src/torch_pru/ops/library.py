"""The recurrence as ``torch.library`` operators, so that compilers see one node with known shapes.

``torch_pru::recurrence`` has a differentiable forward; its backward is an operator of its own.
Both take the name of the implementation as an argument: the choice was made before.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from torch_pru.errors import PRUError
from torch_pru.ops import loop


def implementation(backend: str) -> ModuleType:
    """The module with ``forward`` and ``backward`` of a backend, loaded when first asked for."""
    if backend == "cuda":
        from torch_pru.ops import cuda

        return cuda
    return loop


@torch.library.custom_op("torch_pru::recurrence", mutates_args=())
def forward(
    gates: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    h0: Tensor,
    c0: Tensor,
    lengths: Tensor | None,
    reverse: bool,
    save: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See :func:`torch_pru.ops.loop.forward`."""
    return implementation(backend).forward(gates, weight, bias, h0, c0, lengths, reverse, save)


@forward.register_fake
def _(gates, weight, bias, h0, c0, lengths, reverse, save, backend):
    steps, batch, _, hidden = gates.shape
    activations, cells = implementation(backend).saved_like(gates, save)
    return (
        gates.new_empty(steps, batch, hidden),
        torch.empty_like(h0, dtype=gates.dtype, memory_format=torch.contiguous_format),
        torch.empty_like(c0, memory_format=torch.contiguous_format),
        activations,
        cells,
    )


@torch.library.custom_op("torch_pru::recurrence_backward", mutates_args=())
def backward(
    grad_out: Tensor | None,
    grad_hn: Tensor | None,
    grad_cn: Tensor | None,
    weight: Tensor,
    h0: Tensor,
    c0: Tensor,
    out: Tensor,
    activations: Tensor,
    cells: Tensor,
    lengths: Tensor | None,
    reverse: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See :func:`torch_pru.ops.loop.backward`."""
    return implementation(backend).backward(
        grad_out, grad_hn, grad_cn, weight, h0, c0, out, activations, cells, lengths, reverse
    )


@backward.register_fake
def _(grad_out, grad_hn, grad_cn, weight, h0, c0, out, activations, cells, lengths, reverse, backend):
    grad_gates, grad_bias = implementation(backend).gradients_like(out)
    return (
        grad_gates,
        implementation(backend).weight_gradient_like(weight),
        grad_bias,
        torch.empty_like(h0, memory_format=torch.contiguous_format),
        torch.empty_like(c0, memory_format=torch.contiguous_format),
    )


def _setup_context(ctx, inputs, output) -> None:
    _, weight, bias, h0, c0, lengths, ctx.reverse, _, ctx.backend = inputs
    out, _, _, activations, cells = output
    ctx.has_bias = bias is not None
    ctx.set_materialize_grads(False)  # zeros for what nobody asked of would be as large as the gates
    ctx.save_for_backward(weight, h0, c0, out, activations, cells, lengths)


def _differentiate(ctx, grad_out, grad_hn, grad_cn, grad_activations, grad_cells):
    weight, h0, c0, out, activations, cells, lengths = ctx.saved_tensors
    grads = backward(
        grad_out, grad_hn, grad_cn, weight, h0, c0, out, activations, cells, lengths, ctx.reverse, ctx.backend
    )
    grad_gates, grad_weight, grad_bias, grad_h0, grad_c0 = grads
    grad_bias = grad_bias if ctx.has_bias else None
    return grad_gates, grad_weight, grad_bias, grad_h0, grad_c0, None, None, None, None


def _refuse_double_backward(ctx, *grads):
    raise PRUError("double backward through this backend is not possible; use backend='reference'")


forward.register_autograd(_differentiate, setup_context=_setup_context)
backward.register_autograd(_refuse_double_backward)
