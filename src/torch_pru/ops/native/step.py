"""One step of a cell in float32, with as little Python around the kernels as possible.

A step of 32 units takes the kernels 3 microseconds: what a layer spends on choosing a backend, on operators
and on states that it returns twice would take ten times as long. Where a compiler, a transform or autocast
is active, and for all tensors but plain contiguous ones, :meth:`Step.run` leaves the call to the layer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from torch_pru.ops import reference
from torch_pru.ops import torch_private as private
from torch_pru.ops.native import unsupported_structure
from torch_pru.ops.native.library import library
from torch_pru.ops.native.operators import layout
from torch_pru.ops.operators import differentiable_gradients
from torch_pru.ops.spec import LayerCall, LayerSpec, LayerWeights

_PLAIN = (Tensor, nn.Parameter)


@functools.cache
def step_of(spec: LayerSpec, bias: bool) -> Step | None:
    """The step of cells with this structure; None if there are no kernels for it."""
    return None if unsupported_structure(spec) is not None else Step(spec, bias)


class Step:
    """The step of a cell: what is known of it before the first call."""

    def __init__(self, spec: LayerSpec, bias: bool) -> None:
        hidden, features = spec.hidden_size, spec.input_size
        self._spec = spec
        shapes = (*spec.input.matrix_shapes(4), *spec.context.matrix_shapes(4))
        self._shapes = (*shapes, *(((4 * hidden,),) * 2 if bias else ()))
        self._levels, self._hidden, self._features = spec.input.levels, hidden, features
        self._sizes = (features, hidden, spec.groups, spec.input.groups, spec.residual, 0, 0)
        self._level_units, self._windows = spec.input.level_sizes, (1, *spec.input.windows)
        self._pack = layout(self._levels).pack

    def run(self, x: Tensor, h: Tensor, c: Tensor, parameters: Sequence[Any]) -> tuple[Tensor, Tensor] | None:
        """The next h and c; None if the call needs what only a layer knows.

        Args:
            x: (B, N) or (N,).
            h, c: (B, M) or (M,).
            parameters: the matrices of the input's levels, of the context, and both biases or none; None
                stands for one that is not a parameter, because it is computed.
        """
        if not self._is_plain(x, h, c, parameters):
            return None
        if torch.is_grad_enabled() and private.any_requires_grad(x, h, c, *parameters):
            return _Step.apply(self, x, h, c, *parameters)
        return self.forward(x, h, c, parameters, 0)

    def _is_plain(self, x: Tensor, h: Tensor, c: Tensor, parameters: Sequence[Any]) -> bool:
        if private.current_mode() is not private.Mode.EAGER or torch.is_autocast_enabled("cpu"):
            return False
        if type(x) not in _PLAIN or x.is_nested or x.layout is not torch.strided:
            return False
        rows = x.shape[:-1]
        if len(rows) > 1 or not _is_float32(x, (*rows, self._features)):
            return False
        state = (*rows, self._hidden)
        if not (_is_float32(h, state) and _is_float32(c, state)) or len(parameters) != len(self._shapes):
            return False
        return all(map(_is_float32, parameters, self._shapes))

    def forward(
        self, x: Tensor, h: Tensor, c: Tensor, parameters: Sequence[Tensor], activations: int
    ) -> tuple[Tensor, Tensor]:
        """``activations`` is the address where those are saved for the backward pass, or 0."""
        hn, cn = torch.empty_like(h), torch.empty_like(c)
        out, cells = hn.data_ptr(), cn.data_ptr()  # of a single step they are the last states
        results = (out, out, cells, activations, cells if activations else 0)
        self._call(library().forward, x, h, c, parameters, results, (0,) * 10, (0,) * len(parameters))
        return hn, cn

    def backward(
        self,
        needed: Sequence[bool],
        grad_hn: Tensor | None,
        grad_cn: Tensor | None,
        x: Tensor,
        h: Tensor,
        c: Tensor,
        cn: Tensor,
        activations: Tensor,
        *parameters: Tensor,
    ) -> list[Tensor | None]:
        """The gradients of x, h, c and the parameters; None where they are not needed."""
        grad_hn = None if grad_hn is None else grad_hn.contiguous()
        grad_cn = None if grad_cn is None else grad_cn.contiguous()
        weights = any(needed[3:])
        states = [torch.empty_like(of) if need else None for of, need in zip((x, h, c), needed, strict=False)]
        matrices = self._levels + 1
        grads = [torch.empty_like(of) if weights else None for of in parameters[: matrices + 1]]
        to = [_address(grad) for grad in grads]
        grad_x, grad_h, grad_c = (_address(grad) for grad in states)
        bias = to[matrices] if len(to) > matrices else 0
        given = (0, 0, 0, _address(grad_hn), _address(grad_cn))
        gradients = (*given, grad_x, to[self._levels], bias, grad_h, grad_c)
        cells = cn.data_ptr()
        results = (cells, 0, 0, activations.data_ptr(), cells)  # the output is read from the second step on
        self._call(library().backward, x, h, c, parameters, results, gradients, to)
        found = [*states, *grads, *grads[matrices:]]  # both biases have the same gradient
        return [grad if need else None for grad, need in zip(found, needed, strict=True)]

    def in_pytorch(self, x: Tensor, h: Tensor, c: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        """What ``forward`` computes, in plain PyTorch."""
        levels, context, *biases = parameters[: self._levels], *parameters[self._levels :]
        weights = LayerWeights(levels, (context,), tuple(biases))
        h0, c0 = h.reshape(-1, self._hidden), c.reshape(-1, self._hidden)
        call = LayerCall(x.reshape(1, -1, self._features), weights, h0, c0, None, self._spec)
        _, hn, cn = reference.layer(call)
        return hn.view_as(h), cn.view_as(c)

    def _call(
        self,
        function: Callable[[bytes], None],
        x: Tensor,
        h: Tensor,
        c: Tensor,
        parameters: Sequence[Tensor],
        results: Sequence[int],
        gradients: Sequence[int],
        grad_parameters: Sequence[int],
    ) -> None:
        """Pack all arguments into a ``Call`` of ``source/call.h`` and run it."""
        addresses = [parameter.data_ptr() for parameter in parameters]
        count = self._levels
        levels: list[int] = []
        for index in range(count):
            units, window = self._level_units[index], self._windows[index]
            levels += (addresses[index], grad_parameters[index], units, window)
        context, *biases = addresses[count:]
        batch = x.shape[0] if x.dim() == 2 else 1
        function(
            self._pack(
                torch.get_num_threads(),
                1,
                batch,
                *self._sizes,
                x.data_ptr(),
                0,
                self._features,
                context,
                *(biases or (0, 0)),
                h.data_ptr(),
                c.data_ptr(),
                0,
                *results,
                *gradients,
                count,
                *levels,
            )
        )


def _is_float32(tensor: Any, shape: tuple[int, ...]) -> bool:
    """Whether a kernel can read a tensor of this shape where it lies."""
    return (
        type(tensor) in _PLAIN
        and not tensor.is_nested
        and tensor.layout is torch.strided
        and tensor.dtype is torch.float32
        and tensor.is_cpu
        and tensor.shape == shape
        and tensor.is_contiguous()
    )


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


class _Step(Function):
    @staticmethod
    def forward(ctx, step, x, h, c, *parameters):
        activations = torch.empty((h.numel(), 4), dtype=torch.float32)
        hn, cn = step.forward(x, h, c, parameters, activations.data_ptr())
        ctx.step = step
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, h, c, cn, activations, *parameters)
        return hn, cn

    @staticmethod
    def backward(ctx, grad_hn, grad_cn):
        needed, grads = ctx.needs_input_grad[1:], (grad_hn, grad_cn)
        if torch.is_grad_enabled():  # create_graph=True
            x, h, c, _, _, *parameters = ctx.saved_tensors
            return None, *differentiable_gradients(ctx.step.in_pytorch, (x, h, c, *parameters), needed, grads)
        return None, *ctx.step.backward(needed, *grads, *ctx.saved_tensors)
