"""The backend ``loop``: PyTorch calls with a hand-written backward, on any device.

It is fast because every buffer is allocated once and written in place, the context product is one batched
product per step, only gate activations and cell states are saved for the backward pass, and the gradient of
the context weight is one product per group after the loop.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_pru.ops import dropping
from torch_pru.ops.gates import transform as input_gates
from torch_pru.ops.layer import run_layer, run_recurrence, unsupported_context
from torch_pru.ops.reference import drop as drop_kernel
from torch_pru.ops.reference import valid_steps
from torch_pru.ops.spec import Outputs, RecurrenceCall, SavedRecurrence, cell_dtype

__all__ = ["drop", "drop_kernel", "input_gates", "layer", "recurrence", "unsupported_reason"]

aten = torch.ops.aten


def unsupported_reason(piece: str, *arguments: Any, **options: Any) -> str | None:
    """Only a context that is not linear cannot be run."""
    return unsupported_context(arguments[0].spec) if piece == "layer" else None


def recurrence(call: RecurrenceCall, *, eager: bool) -> Outputs:
    """See :func:`torch_pru.ops.recurrence`."""
    gates, weight, bias, h0, c0, lengths, reverse = call
    dtype, (_, batch, _, hidden) = gates.dtype, gates.shape
    bias, h0 = (None if x is None else x.to(dtype) for x in (bias, h0))
    h0, c0 = (gates.new_zeros(batch, hidden) if state is None else state for state in (h0, c0))
    call = RecurrenceCall(gates, weight.to(dtype), bias, h0, c0, lengths, reverse)
    return run_recurrence(call, "loop", eager)


layer = functools.partial(run_layer, recurrence, "loop")


def drop(values: Tensor, mask: Tensor, keep: float, dtype: torch.dtype, *, eager: bool) -> Tensor:
    """As :func:`torch_pru.ops.reference.drop`; keeps nothing but the mask for the backward pass."""
    return dropping.operator(values, mask, keep, dtype, "loop", eager=eager)


def saved_like(gates: Tensor, save: bool, slots: int | None = None) -> tuple[Tensor, Tensor]:
    """Unwritten buffers for activations (T, B, 4, M) and cells (T, B, M); empty unless ``save``."""
    steps, batch, _, hidden = gates.shape
    slots = (steps if save else 0) if slots is None else slots
    cells = gates.new_empty(slots, batch, hidden, dtype=cell_dtype(gates.dtype))
    return gates.new_empty(slots, batch, 4, hidden), cells


def forward(call: RecurrenceCall, save: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """All steps; both states are given.

    Returns:
        out (T, B, M), hn (B, M), cn (B, M), and for the backward pass the gate activations
        (T, B, 4, M) and the cell states (T, B, M); these two are empty unless ``save``.
    """
    gates, weight, bias, h0, c0, lengths, reverse = call
    assert h0 is not None
    assert c0 is not None
    steps, batch, _, hidden = gates.shape
    slots = steps if save else 2  # without a backward pass only the previous step is needed
    activations, cells = saved_like(gates, save, slots)
    out = gates.new_empty(steps, batch, hidden)
    scratch = gates.new_empty(batch, hidden)
    add_context = _context_adder(weight, bias, batch)
    valid = None if lengths is None else valid_steps(steps, lengths.to(gates.device))

    h, c = h0, c0.to(cells.dtype)
    for t in reversed(range(steps)) if reverse else range(steps):
        z, c_next = activations[t % slots], cells[t % slots]
        add_context(gates[t], h, z)
        _gate_in_place(z, c, c_next, out[t], scratch)
        if valid is not None:  # a finished column keeps its state, and its output is zero
            c_next.copy_(torch.where(valid[t], c_next, c))
            h = torch.where(valid[t], out[t], h)
            out[t].masked_fill_(~valid[t], 0)  # not a product: padding may hold anything
        else:
            h = out[t]
        c = c_next
    if not save:
        activations, cells = saved_like(gates, save)
    return out, h.clone(), c.to(c0.dtype, copy=True), activations, cells


def _context_adder(
    weight: Tensor, bias: Tensor | None, batch: int
) -> Callable[[Tensor, Tensor, Tensor], None]:
    """A function of gates (B, 4, M), h (B, M) and z (B, 4, M) that sets z = gates + W·h + bias."""
    groups, _, width, _ = weight.shape
    weight = weight.reshape(groups, 4 * width, width).transpose(1, 2)  # (G, D, 4D)
    bias = None if bias is None else bias.reshape(4, groups, width)
    product = weight.new_empty(groups, batch, 4 * width)
    product_by_gate = product.view(groups, batch, 4, width).permute(1, 2, 0, 3)  # (B, 4, G, D)

    def add_context(gates: Tensor, h: Tensor, z: Tensor) -> None:
        torch.bmm(_by_group(h, groups), weight, out=product)
        z = z.view(batch, 4, groups, width)
        torch.add(gates.unflatten(-1, (groups, width)), product_by_gate, out=z)
        if bias is not None:
            z.add_(bias)

    return add_context


def _by_group(h: Tensor, groups: int) -> Tensor:
    """(…, M) with one leading dimension, seen as (G, …, D)."""
    return h.unflatten(-1, (groups, -1)).transpose(0, 1)


def _gate_in_place(z: Tensor, c: Tensor, c_next: Tensor, h_next: Tensor, scratch: Tensor) -> None:
    """Turn pre-activations z (B, 4, M) into activations; write the states after the step."""
    z[:, :2].sigmoid_()
    z[:, 2].tanh_()
    z[:, 3].sigmoid_()
    i, f, g, o = z.unbind(dim=1)
    torch.mul(f, c, out=c_next)
    c_next.addcmul_(i, g)
    torch.tanh(c_next, out=scratch)
    torch.mul(o, scratch, out=h_next)


def gradients_like(out: Tensor) -> tuple[Tensor, Tensor]:
    """Unwritten gradients of gates (T, B, 4, M) and bias (4, M)."""
    steps, batch, hidden = out.shape
    return out.new_empty(steps, batch, 4, hidden), out.new_empty(4, hidden)


def weight_gradient_like(weight: Tensor) -> Tensor:
    """Unwritten gradient of weight (G, 4, D, D)."""
    return torch.empty_like(weight, memory_format=torch.contiguous_format)


def state_gradients_like(out: Tensor, h0: Tensor, c0: Tensor) -> tuple[Tensor, Tensor]:
    """Unwritten gradients of h0 and c0 (B, M)."""
    h, c = (torch.empty_like(state, memory_format=torch.contiguous_format) for state in (h0, c0))
    return h, c


def backward(
    grad_out: Tensor | None,
    grad_hn: Tensor | None,
    grad_cn: Tensor | None,
    saved: SavedRecurrence,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients from what :func:`forward` saved; None stands for a gradient that is zero.

    Returns:
        Gradients of gates (T, B, 4, M), weight (G, 4, D, D), bias (4, M), h0 and c0 (B, M).
    """
    weight, h0, c0, out, activations, cells, lengths, reverse = saved
    assert h0 is not None
    assert c0 is not None
    steps, batch, _, hidden = activations.shape
    groups, _, width, _ = weight.shape
    grad_gates, _ = gradients_like(out)
    by_group = weight.reshape(groups, 4 * width, width)  # (G, 4D, D)
    grad_z_by_group = out.new_empty(groups, batch, 4, width)
    grad_h_by_group = out.new_empty(groups, batch, width)
    scratch = out.new_empty(2, batch, hidden)
    valid = None if lengths is None else valid_steps(steps, lengths.to(out.device))

    grad_h = torch.zeros_like(h0) if grad_hn is None else grad_hn
    grad_c = torch.zeros_like(c0) if grad_cn is None else grad_cn
    grad_c = grad_c.to(cells.dtype, copy=True)
    order = range(steps) if reverse else reversed(range(steps))
    for t in order:
        before = t + 1 if reverse else t - 1
        c_before = cells[before] if 0 <= before < steps else c0
        grad_h_here = grad_h if grad_out is None else grad_h + grad_out[t]
        if valid is not None:  # a finished column passes its gradients on unchanged
            passed_h, passed_c = grad_h * ~valid[t], grad_c * ~valid[t]
            grad_h_here, grad_c = grad_h_here * valid[t], grad_c * valid[t]
        _gate_backward(activations[t], cells[t], c_before, grad_h_here, grad_c, grad_gates[t], scratch)
        if valid is not None:
            grad_gates[t].masked_fill_(~valid[t].unsqueeze(-1), 0)
        grad_z_by_group.copy_(grad_gates[t].view(batch, 4, groups, width).permute(2, 0, 1, 3))
        torch.bmm(grad_z_by_group.view(groups, batch, 4 * width), by_group, out=grad_h_by_group)
        grad_h = grad_h_by_group.transpose(0, 1).reshape(batch, hidden)
        if valid is not None:
            grad_h, grad_c = grad_h + passed_h, torch.where(valid[t], grad_c, passed_c)
    grad_weight = _weight_gradient(grad_gates, out, h0, groups, lengths, reverse)
    return (
        grad_gates,
        grad_weight,
        grad_gates.sum((0, 1)),
        grad_h.clone(memory_format=torch.contiguous_format),
        grad_c.to(c0.dtype, copy=True),
    )


def _gate_backward(
    activations: Tensor,
    c: Tensor,
    c_before: Tensor,
    grad_h: Tensor,
    grad_c: Tensor,
    grad_z: Tensor,
    scratch: Tensor,
) -> None:
    """Backward of one step's gating: writes ``grad_z`` (B, 4, M), moves ``grad_c`` one step back."""
    i, f, g, o = activations.unbind(dim=1)
    grad_i, grad_f, grad_g, grad_o = grad_z.unbind(dim=1)
    tanh_c, product = scratch.unbind(dim=0)
    torch.tanh(c, out=tanh_c)
    aten.sigmoid_backward.grad_input(torch.mul(grad_h, tanh_c, out=product), o, grad_input=grad_o)
    torch.mul(grad_h, o, out=product)
    grad_c.add_(aten.tanh_backward.grad_input(product, tanh_c, grad_input=product))
    aten.sigmoid_backward.grad_input(torch.mul(grad_c, g, out=product), i, grad_input=grad_i)
    aten.sigmoid_backward.grad_input(torch.mul(grad_c, c_before, out=product), f, grad_input=grad_f)
    aten.tanh_backward.grad_input(torch.mul(grad_c, i, out=product), g, grad_input=grad_g)
    grad_c.mul_(f)


def _weight_gradient(
    grad_gates: Tensor, out: Tensor, h0: Tensor, groups: int, lengths: Tensor | None, reverse: bool
) -> Tensor:
    """Sum over all steps of grad_z · hᵀ, where h is the state *before* the step: (G, 4, D, D)."""
    batch, width = h0.shape[0], h0.shape[1] // groups
    later, before = (grad_gates[:-1], out[1:]) if reverse else (grad_gates[1:], out[:-1])
    first = _at_first_step(grad_gates, lengths, reverse)
    grad_weight = out.new_empty(groups, 4, width, width)
    for j in range(groups):
        mine = slice(j * width, (j + 1) * width)
        total = grad_weight[j].view(4 * width, width)
        torch.mm(first[..., mine].reshape(batch, 4 * width).t(), h0[:, mine], out=total)
        total.addmm_(later[..., mine].reshape(-1, 4 * width).t(), before[..., mine].reshape(-1, width))
    return grad_weight


def _at_first_step(grad_gates: Tensor, lengths: Tensor | None, reverse: bool) -> Tensor:
    """The gradient (B, 4, M) at the step of each column that started from h0."""
    if not reverse:
        return grad_gates[0]
    if lengths is None:
        return grad_gates[-1]
    columns = torch.arange(grad_gates.shape[1], device=grad_gates.device)
    return grad_gates[lengths.to(grad_gates.device) - 1, columns]
