"""Calls of the compiled kernels with tensors: float32 on a CPU, without autograd."""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torch_pru.ops.native.library import library

NULL = 0


class Saved(NamedTuple):
    """What the forward pass saves for the backward pass."""

    activations: Tensor  # (T, B, 4, M)
    cells: Tensor  # (T, B, M)


class Gradients(NamedTuple):
    """None for those that are not wanted."""

    x: Tensor | None
    input: list[Tensor] | None
    context: Tensor | None
    bias: Tensor | None
    h0: Tensor | None
    c0: Tensor | None


class Wanted(NamedTuple):
    """Which gradients the backward pass computes."""

    x: bool
    input: bool
    context: bool
    bias: bool
    h0: bool
    c0: bool


class Arguments(NamedTuple):
    """The arguments of a layer, as both passes read them; see ``source/call.h``.

    Attributes:
        x: (T, B, N); without ``input`` matrices, the gates (T, B, 4·M).
        input: one matrix (4·m_k, n_k/g) per level, or none.
        windows: one per level; the first is not used.
        context: (4·M, M/g).
        bias: (4·M,) or None.
        h0, c0: (B, M) or None.
        lengths: (B,) of int64, or None.
        bfloat16: whether factors of products may be rounded to bfloat16.
    """

    x: Tensor
    input: Sequence[Tensor]
    windows: Sequence[int]
    context: Tensor
    bias: Tensor | None
    h0: Tensor | None
    c0: Tensor | None
    lengths: Tensor | None
    residual: bool
    reverse: bool
    bfloat16: bool = False

    def to_float32(self) -> Arguments:
        """The same values in float32, in which the kernels compute."""
        return self._replace(
            x=self.x.float(),
            input=[weight.float() for weight in self.input],
            context=self.context.float(),
            bias=None if self.bias is None else self.bias.float(),
            h0=None if self.h0 is None else self.h0.float(),
            c0=None if self.c0 is None else self.c0.float(),
        )

    def readable(self) -> Arguments:
        """The same values in the layouts that the kernels read: adjacent features, whole matrices."""
        others = (self.context, self.bias, self.h0, self.c0, self.lengths, *self.input)
        if self.x.stride(-1) == 1 and all(tensor is None or tensor.is_contiguous() for tensor in others):
            return self
        return self._replace(
            x=_with_adjacent_features(self.x),
            input=[weight.contiguous() for weight in self.input],
            context=self.context.contiguous(),
            bias=_contiguous(self.bias),
            h0=_contiguous(self.h0),
            c0=_contiguous(self.c0),
            lengths=_contiguous(self.lengths),
        )


def forward(arguments: Arguments, save: bool) -> tuple[Tensor, Tensor, Tensor, Saved | None]:
    """The output (T, B, M), the last states h and c (B, M), and what the backward pass needs."""
    given = arguments.readable()
    x = given.x
    steps, batch, _ = x.shape
    hidden = given.context.shape[0] // 4
    out, hn, cn = _empty((steps, batch, hidden)), _empty((batch, hidden)), _empty((batch, hidden))
    saved = Saved(_empty((steps, batch, 4, hidden)), _empty((steps, batch, hidden))) if save else None
    pointers = (NULL, NULL) if saved is None else (saved.activations.data_ptr(), saved.cells.data_ptr())
    results = (out.data_ptr(), hn.data_ptr(), cn.data_ptr(), *pointers)
    _run(library().forward, given, results, (NULL,) * 10, None)
    return out, hn, cn, saved


def backward(
    arguments: Arguments,
    out: Tensor,
    saved: Saved,
    grad_out: Tensor | None,
    grad_hn: Tensor | None,
    grad_cn: Tensor | None,
    wanted: Wanted,
) -> Gradients:
    """The gradients that are wanted; None stands for a gradient of zeros."""
    given = arguments.readable()
    grad_out = None if grad_out is None else _with_adjacent_features(grad_out)
    grad_hn, grad_cn = _contiguous(grad_hn), _contiguous(grad_cn)
    steps, batch, features = given.x.shape
    hidden = given.context.shape[0] // 4
    grads = Gradients(
        # With gates for an input, the kernel needs a place for their gradients in any case.
        _empty((steps, batch, features)) if wanted.x or not given.input else None,
        [_empty(weight.shape) for weight in given.input] if wanted.input else None,
        _empty(given.context.shape) if wanted.context else None,
        _empty((4 * hidden,)) if wanted.bias else None,
        _empty((batch, hidden)) if wanted.h0 else None,
        _empty((batch, hidden)) if wanted.c0 else None,
    )
    strides = (0, 0) if grad_out is None else grad_out.stride()[:2]
    results = (out.contiguous().data_ptr(), NULL, NULL, saved.activations.data_ptr(), saved.cells.data_ptr())
    gradients = (
        _pointer(grad_out),
        *strides,
        _pointer(grad_hn),
        _pointer(grad_cn),
        _pointer(grads.x),
        _pointer(grads.context),
        _pointer(grads.bias),
        _pointer(grads.h0),
        _pointer(grads.c0),
    )
    _run(library().backward, given, results, gradients, grads.input)
    return grads


def _run(function, given: Arguments, results, gradients, grad_input: list[Tensor] | None) -> None:
    """Pack all arguments into a ``Call`` and run it."""
    x, context = given.x, given.context
    steps, batch, features = x.shape
    rows, group_size = context.shape
    levels: list[int] = []
    for index, weight in enumerate(given.input):
        grad = NULL if grad_input is None else grad_input[index].data_ptr()
        levels += (weight.data_ptr(), grad, weight.shape[0] // 4, given.windows[index])
    step, column, _ = x.stride()
    call = _layout(len(given.input)).pack(
        torch.get_num_threads(),
        steps,
        batch,
        features,
        rows // 4,
        rows // 4 // group_size,
        features // given.input[0].shape[1] if given.input else 1,
        given.residual,
        given.reverse,
        given.bfloat16,
        x.data_ptr(),
        step,
        column,
        context.data_ptr(),
        _pointer(given.bias),
        NULL,
        _pointer(given.h0),
        _pointer(given.c0),
        _pointer(given.lengths),
        *results,
        *gradients,
        len(given.input),
        *levels,
    )
    function(call)


@functools.cache
def _layout(levels: int) -> struct.Struct:
    return struct.Struct(f"{35 + 4 * levels}q")


def _pointer(tensor: Tensor | None) -> int:
    return NULL if tensor is None else tensor.data_ptr()


def _empty(shape: Sequence[int]) -> Tensor:
    return torch.empty(shape, dtype=torch.float32)


def _contiguous(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _with_adjacent_features(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
