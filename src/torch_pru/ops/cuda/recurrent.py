"""The recurrence on the fused kernels: tensors in, tensors out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torch_pru.ops.folding import aligned
from torch_pru.ops.spec import RecurrenceCall, SavedRecurrence

from .launch import at_multiple, device_of, launch_on
from .passes import backward_tail, gradient_scale
from .plan import RESIDUAL, Launch, choose_once, operand_dtype


def saved_dtype(dtype: torch.dtype) -> torch.dtype:
    """Of activations and cells; see recurrence.cu."""
    return torch.float32 if dtype == torch.float32 else torch.float16


def saved_like(gates: Tensor, save: bool) -> tuple[Tensor, Tensor]:
    """Unwritten buffers for activations (T, B, 4, M), a unit's four adjacent, and cells (T, B, M).

    Both are empty, (0,), unless ``save``.
    """
    if not save:
        return gates.new_empty(0), gates.new_empty(0)
    steps, batch, _, width = gates.shape
    dtype = saved_dtype(gates.dtype)
    activations = gates.new_empty(steps, batch, width, 4, dtype=dtype).mT
    return activations, gates.new_empty(steps, batch, width, dtype=dtype)


class Sizes(NamedTuple):
    """Of a recurrence: T, B, G and D."""

    steps: int
    batch: int
    groups: int
    size: int

    @property
    def width(self) -> int:
        """M."""
        return self.groups * self.size


def forward(call: RecurrenceCall, save: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """One launch over all steps: out, hn, cn, activations, cells; the last two are empty unless ``save``.

    Without c0, cn has the dtype of gates.
    """
    gates, weight, bias, h0, c0, lengths, reverse = call
    groups, _, size, _ = weight.shape
    sizes = Sizes(gates.shape[0], gates.shape[1], groups, size)
    rows = at_multiple((gates if gates.dtype == torch.float32 else gates.mT).contiguous(), 8)  # four at once
    given = rows, weight.transpose(0, 1), (bias,), h0, c0, lengths_on(gates.device, lengths)
    out, hn, cn, activations, cells = launch_forward(*given, sizes, reverse, save)
    if activations is None or cells is None:
        activations, cells = saved_like(gates, save)
    return out, hn, cn, activations.mT if save else activations, cells


def launch_forward(
    gates: Tensor,
    weight: Tensor,
    biases: Sequence[Tensor | None],
    h0: Tensor | None,
    c0: Tensor | None,
    lengths: Tensor | None,
    sizes: Sizes,
    reverse: bool,
    save: bool,
    state: tuple[int, ...] = (),
    residual: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """As :func:`forward`; None for what is not saved.

    Args:
        gates: their memory is (T, B, M, 4), or (T, B, 4, M) in float32.
        weight: (4, G, D, D), or (4·M, D).
        biases: at most two of (4, M), which are added.
        state: the shape of hn and cn, if it is not (B, M).
        residual: (T, B, M) in the dtype of gates, to be added to all four gates. Give it only where
            :func:`adds_residual` is true.
    """
    steps, batch, groups, size = sizes
    width, dtype, device = groups * size, gates.dtype, gates.device
    launch = _launch(device, size, batch, groups, dtype, False, steps == 1, residual is not None)
    assert residual is None or RESIDUAL in launch.constants
    of_token = launch.kernel == "forward_token"  # reads each weight once: no time to convert them before
    of_biases, first, second = as_biases(biases, dtype)
    inputs = (
        gates,
        residual,
        as_operand(weight, dtype if of_token else operand_dtype(dtype)),
        first,
        second,
        as_operand(h0, dtype),
        as_operand(c0, read_as(c0, dtype)),
        lengths,
    )
    state = state or (batch, width)
    out, hn = gates.new_empty(steps, batch, width), gates.new_empty(state)
    cn = gates.new_empty(state, dtype=read_as(c0, dtype))
    activations, cells = None, None
    if save:
        kept = saved_dtype(dtype)
        activations = gates.new_empty(steps, batch, width, 4, dtype=kept)
        cells = gates.new_empty(steps, batch, width, dtype=kept)
    exchange = _exchange(launch, device, sizes)
    kinds = (of_biases == dtype, cn.dtype == dtype)
    tensors = (*inputs, out, hn, cn, activations, cells, exchange)
    launch_on(launch, device, tensors, (steps, batch, groups, reverse, *kinds))
    return out, hn, cn if c0 is None or cn.dtype == c0.dtype else cn.to(c0.dtype), activations, cells


def gradients_like(out: Tensor) -> tuple[Tensor, Tensor]:
    """Unwritten gradients of gates (T, B, 4, M) and bias (4, M), float32.

    A unit's four gates are adjacent, but not in float32.
    """
    steps, batch, width = out.shape
    bias = out.new_empty(4, width, dtype=torch.float32)
    if out.dtype == torch.float32:
        return out.new_empty(steps, batch, 4, width), bias
    return out.new_empty(steps, batch, width, 4).mT, bias


def state_gradients_like(out: Tensor, h0: Tensor | None, c0: Tensor | None) -> tuple[Tensor, Tensor]:
    """Unwritten gradients of h0 and c0 (B, M), float32, also where they were not given."""
    _, batch, width = out.shape
    h, c = (out.new_empty(batch, width, dtype=torch.float32) for _ in range(2))
    return h, c


def backward(
    grad_out: Tensor | None,
    grad_hn: Tensor | None,
    grad_cn: Tensor | None,
    saved: SavedRecurrence,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """One launch over all steps, then one product for the weights: dgates, dweight, dbias, dh0, dc0."""
    weight, h0, c0, out, activations, cells, lengths, reverse = saved
    groups, _, size, _ = weight.shape
    sizes = Sizes(out.shape[0], out.shape[1], groups, size)
    lengths = lengths_on(out.device, lengths)
    grads = (grad_out, grad_hn, grad_cn)
    kept = activations.mT.contiguous(), cells
    found = launch_backward(grads, weight.transpose(0, 1), c0, out, *kept, lengths, sizes, reverse)
    before, dbias = backward_tail(out, h0, found.bias_parts, groups, lengths, reverse)
    dweight = weight_gradient(found.dgates, before, weight.dtype, found.down)
    dgates = found.dgates.mT if found.dgates32 is None else found.dgates32
    return dgates, dweight, dbias[0], found.dh0, found.dc0


def adds_residual(device: torch.device, sizes: Sizes, dtype: torch.dtype, backward: bool) -> bool:
    """Whether the kernel of a shape adds a residual itself, or sums its gradient."""
    single_step = sizes.steps == 1 and not backward
    launch = _launch(
        device, sizes.size, sizes.batch, sizes.groups, dtype, backward, single_step, residual=True
    )
    return RESIDUAL in launch.constants


class Launched(NamedTuple):
    """What the backward kernel leaves: of float32 gates also their gradients in float32, and what undoes the
    scale of ``dgates``."""

    dgates: Tensor  # (T, B, M, 4)
    dh0: Tensor
    dc0: Tensor
    bias_parts: Tensor  # (rows, M, 4)
    dresidual: Tensor | None = None  # (T, B, M)
    dgates32: Tensor | None = None  # (T, B, 4, M)
    down: Tensor | None = None  # (1,)


def launch_backward(
    grads: Sequence[Tensor | None],
    weight: Tensor,
    c0: Tensor | None,
    out: Tensor,
    activations: Tensor,
    cells: Tensor,
    lengths: Tensor | None,
    sizes: Sizes,
    reverse: bool,
    residual: bool = False,
) -> Launched:
    """The gradients of the gates and of the states, from those of out, hn and cn; see :func:`launch_forward`.

    With ``residual`` also that of the residual: the sum of the gradients of a unit's gates, rounded once.

    With float32 gates, the factors are scaled into float16's range by a power of two, which the largest of
    the given gradients determines; see recurrence.cu.
    """
    steps, batch, groups, size = sizes
    width, dtype, device = groups * size, out.dtype, out.device
    launch = _launch(device, size, batch, groups, dtype, backward=True, residual=residual)
    assert not residual or RESIDUAL in launch.constants
    of_out, of_hn, of_cn = grads
    grads = as_operand(of_out, dtype), as_operand(of_hn, dtype), as_operand(of_cn, torch.float32)
    inputs = (
        *grads,
        as_operand(weight, operand_dtype(dtype)),
        as_operand(c0, torch.float32),
        activations,
        cells,
        lengths,
    )
    dgates = out.new_empty(steps, batch, width, 4, dtype=operand_dtype(dtype))
    if launch.cooperative:
        dgates.view(torch.int16).fill_(-1)  # the grid variant's "not there yet"
    dresidual = torch.empty_like(out) if residual else None
    dh0, dc0 = state_gradients_like(out, None, None)
    bias_parts = out.new_empty(launch.bias_rows, width, 4, dtype=torch.float32)
    tensors, numbers = (*inputs, dgates, dresidual, dh0, dc0, bias_parts), (steps, batch, groups, reverse)
    if dtype != torch.float32:
        launch_on(launch, device, tensors, numbers)
        return Launched(dgates, dh0, dc0, bias_parts, dresidual)
    largest, down = gradient_scale(grads, device), dh0.new_empty(1)
    dgates32 = out.new_empty(steps, batch, 4, width)
    launch_on(launch, device, (*tensors, largest, dgates32, down), (*numbers, largest.shape[0]))
    return Launched(dgates, dh0, dc0, bias_parts, dresidual, dgates32, down)


def weight_gradient(
    dgates: Tensor, before: Tensor, dtype: torch.dtype, factor: Tensor | None = None
) -> Tensor:
    """All steps' outer products of gate gradients and the h before: one product per group.

    Args:
        dgates: (T, B, M, 4).
        before: (T, B, G, padded), the hidden state each step started from.
        factor: (1,), what the product is multiplied by; 1 where not given.

    Returns:
        (G, 4, D, D) in ``dtype``, a view of the product; see :func:`weight_gradient_like`.
    """
    steps, batch, groups, _ = before.shape
    size = dgates.shape[2] // groups
    left = dgates.view(steps * batch, groups, 4 * size).permute(1, 2, 0)
    right = before.view(steps * batch, groups, -1).transpose(0, 1)
    if before.is_cuda and (dtype == torch.float32 or factor is not None):
        product = torch.bmm(left, right, out_dtype=torch.float32)
    else:
        product = torch.bmm(left, right)
    if factor is not None:
        product = product.float().mul_(factor)
    return _by_gate(product if product.dtype == dtype else product.to(dtype), size)


def weight_gradient_like(weight: Tensor) -> Tensor:
    """Unwritten gradient of weight (G, 4, D, D): a view of (G, D, 4, padded), as the product leaves it."""
    groups, _, size, _ = weight.shape
    return _by_gate(weight.new_empty(groups, 4 * size, aligned(size)), size)


def _by_gate(product: Tensor, size: int) -> Tensor:
    """(G, D·4, padded) as (G, 4, D, D)."""
    return product.view(product.shape[0], size, 4, -1).narrow(3, 0, size).transpose(1, 2)


def _launch(
    device: torch.device,
    size: int,
    batch: int,
    groups: int,
    dtype: torch.dtype,
    backward: bool,
    single_step: bool = False,
    residual: bool = False,
) -> Launch:
    shape = (size, batch, groups, dtype, backward, single_step, residual)
    launch = choose_once(device_of(device.index), *shape)
    if isinstance(launch, str):
        raise ValueError(f"there are no fused kernels for this shape: {launch}")
    return launch


def _exchange(launch: Launch, device: torch.device, sizes: Sizes) -> Tensor | None:
    """Where blocks of the grid variant pass h on: all ones means "not there yet"."""
    if not launch.cooperative:
        return None
    shape = (sizes.steps, sizes.groups, sizes.batch, dict(launch.constants)["PADDED"])
    return torch.full(shape, -1, dtype=torch.int16, device=device)


def as_biases(
    biases: Sequence[Tensor | None], dtype: torch.dtype
) -> tuple[torch.dtype, Tensor | None, Tensor | None]:
    """At most two biases as the kernels read them, and their dtype: that of gates, or float32."""
    kind = dtype if all(bias is None or bias.dtype == dtype for bias in biases) else torch.float32
    first, second = (*(as_operand(bias, kind) for bias in biases), None, None)[:2]
    return kind, first, second


def read_as(tensor: Tensor | None, dtype: torch.dtype) -> torch.dtype:
    """The dtype in which a kernel reads bias or c0: that of gates, or float32."""
    return dtype if tensor is None or tensor.dtype == dtype else torch.float32


def as_operand(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """As the kernels read it: of this dtype, contiguous, at an address that 4 divides."""
    if tensor is None:
        return None
    if tensor.dtype == dtype:
        dense = tensor.contiguous()
    else:  # one copy for both
        dense = tensor.to(dtype, memory_format=torch.contiguous_format)
    return at_multiple(dense, 4)  # 16 bits are read in pairs


def lengths_on(device: torch.device, lengths: Tensor | None) -> Tensor | None:
    """As the kernels read them."""
    return None if lengths is None else lengths.to(device=device, dtype=torch.int64).contiguous()
