"""The backend ``lstm``: a layer with linear transforms as an LSTM, run by PyTorch's own kernel on a CPU.

Levels are folded into one matrix and groups are filled up with zeros: more to multiply, but all steps are one
call, where the loop makes a dozen calls per step. That is faster for few units, and with one group, where
nothing is multiplied by zero.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from torch_pru.ops import torch_private as private
from torch_pru.ops.folding import lstm_matrices
from torch_pru.ops.layer import PROJECTED
from torch_pru.ops.operators import ONCE, OnceDifferentiable
from torch_pru.ops.spec import LayerCall, LayerSpec, Outputs, product_dtype

FEW_UNITS = 128
# What is done before the first step must pay: folding, and for many units oneDNN's own order of the weights.
FEWEST_STEPS, FEWEST_STEPS_OF_MANY_UNITS = 8, 32


class Weights(NamedTuple):
    """As ``nn.LSTM`` has them: W_ih (4·M, N), W_hh (4·M, M), and b_ih and b_hh (4·M,) or none of both."""

    input: Tensor
    context: Tensor
    biases: tuple[Tensor, ...]


def unsupported_reason(piece: str, call: LayerCall, *, eager: bool) -> str | None:
    x, spec = call.x, call.spec
    if not eager:
        return "a compiler, tracer, transform, mode or tensor subclass is involved"
    if spec.is_projected:
        return PROJECTED
    if not spec.is_linear:
        return "the transforms are not linear"
    if (dtype := product_dtype(x)) != torch.float32:
        return f"products are computed in {dtype}, not in float32"
    if not is_faster(x, spec):
        return (
            f"{spec.hidden_size} units in {spec.groups} groups over {x.shape[0]} steps are faster in a loop"
        )
    return None


def is_faster(x: Tensor, spec: LayerSpec) -> bool:
    """Whether a layer with linear transforms over x (T, B, N) is faster as an LSTM than in a loop."""
    steps, batch, _ = x.shape
    enough = steps >= (FEWEST_STEPS if spec.hidden_size <= FEW_UNITS else FEWEST_STEPS_OF_MANY_UNITS)
    most_units = FEW_UNITS if torch.is_grad_enabled() else 2 * FEW_UNITS  # of several groups
    enough = enough and (spec.groups == 1 or spec.hidden_size <= most_units)
    onednn = torch.backends.mkldnn.is_available() and private.onednn_is_enabled()
    return enough and batch > 0 and onednn


def layer(call: LayerCall, *, eager: bool) -> Outputs:
    """As :func:`torch_pru.ops.reference.layer`. With ``lengths``, the longest sequence comes first."""
    x, weights, h0, c0, lengths, spec, reverse = call
    biases = weights.biases
    if len(biases) == 1:  # the sum of both
        biases = (*biases, torch.zeros_like(biases[0]))
    return run(x, h0, c0, Weights(*lstm_matrices(weights, spec), biases), lengths, reverse)


def run(
    x: Tensor, h0: Tensor | None, c0: Tensor | None, weights: Weights, lengths: Tensor | None, reverse: bool
) -> Outputs:
    """x is (T, B, N), the other arguments are those of :func:`torch_pru.ops.recurrence`, results a layer's.

    With ``lengths``, the longest sequence comes first.
    """
    width = weights.context.shape[1]
    h, c = (x.new_zeros(x.shape[1], width) if state is None else state for state in (h0, c0))
    if reverse:
        x = _turned(x, lengths)
    tensors: tuple[Tensor, ...] = (x, h, c, weights.input, weights.context, *weights.biases)
    if torch.is_grad_enabled():
        tensors = _Once.apply(*tensors)
    x, h, c, *parameters = tensors
    states = h.unsqueeze(0), c.unsqueeze(0)
    layers, dropout, both_directions, batch_first = 1, 0.0, False, False
    options = (bool(weights.biases), layers, dropout, torch.is_grad_enabled(), both_directions)
    if lengths is None:
        y, h, c = private.lstm(x, states, parameters, *options, batch_first)
    else:
        packed = pack_padded_sequence(x, lengths)
        data, h, c = private.lstm(packed.data, packed.batch_sizes, states, parameters, *options)
        y, _ = pad_packed_sequence(PackedSequence(data, packed.batch_sizes))
    return _turned(y, lengths) if reverse else y, h, c


def _turned(x: Tensor, lengths: Tensor | None) -> Tensor:
    """x (T, B, features) with the valid steps of each column from last to first."""
    if lengths is None:
        return x.flip(0)
    steps = torch.arange(x.shape[0]).unsqueeze(1)
    places = torch.where(steps < lengths, lengths - 1 - steps, steps)  # (T, B)
    return x.gather(0, places.unsqueeze(-1).expand_as(x))


class _Once(Function):
    """The same tensors, whose gradients cannot be differentiated again: oneDNN has no double backward."""

    @staticmethod
    def forward(ctx, *tensors):
        return _views(*tensors)

    @staticmethod
    def backward(ctx, *grads):
        return OnceDifferentiable.apply(_views, ONCE, *grads)


def _views(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(tensor.view_as(tensor) for tensor in tensors)
