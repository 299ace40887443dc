"""Layers with the weights of an ``nn.LSTM``, and the other way round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from torch_pru.errors import PRUError
from torch_pru.ops.folding import lstm_matrices
from torch_pru.ops.spec import LayerWeights

if TYPE_CHECKING:
    from torch_pru.layer import PRU


@torch.no_grad()
def from_lstm(kind: type[PRU], lstm: nn.LSTM, backend: str) -> PRU:
    """See :meth:`torch_pru.PRU.from_lstm`."""
    if not isinstance(lstm, nn.LSTM):
        raise PRUError(f"lstm is a {type(lstm).__name__}; expected an nn.LSTM")
    like = next(lstm.parameters())
    pru = kind(
        lstm.input_size,
        lstm.hidden_size,
        lstm.num_layers,
        lstm.bias,
        lstm.batch_first,
        lstm.dropout,
        lstm.bidirectional,
        levels=1,
        groups=1,
        residual=False,
        init="lstm",
        backend=backend,
        device="meta",  # no weights to draw
        dtype=like.dtype,
        proj_size=lstm.proj_size,
    ).to_empty(device=like.device)
    pru.load_state_dict(lstm.state_dict())
    for name, parameter in lstm.named_parameters():
        pru.get_parameter(name).requires_grad_(parameter.requires_grad)
    return pru.train(lstm.training)


@torch.no_grad()
def to_lstm(pru: PRU) -> nn.LSTM:
    """See :meth:`torch_pru.PRU.to_lstm`."""
    if not all(spec.is_linear for spec in pru.specs):
        raise PRUError(
            f"pooling={pru.pooling!r} is not linear, so no nn.LSTM computes the same; only a PRU with "
            f"pooling 'average' or 'skip' can be converted"
        )
    like = pru.weights(0).context[0]
    lstm = nn.LSTM(
        pru.input_size,
        pru.hidden_size,
        pru.num_layers,
        pru.bias,
        pru.batch_first,
        pru.dropout if pru.num_layers > 1 else 0.0,
        pru.bidirectional,
        pru.proj_size,
        device="meta",  # no weights to draw
        dtype=like.dtype,
    ).to_empty(device=like.device)
    wide = torch.promote_types(like.dtype, torch.float32)
    for index, (spec, names) in enumerate(zip(pru.specs, pru._names, strict=True)):
        weights = pru.weights(index)
        input = tuple(matrix.to(wide) for matrix in weights.input)
        context = tuple(matrix.to(wide) for matrix in weights.context)
        dense = lstm_matrices(LayerWeights(input, context), spec)
        others = [getattr(pru, name) for name in (*names.biases, *names.projection)]
        for parameter, value in zip(lstm.all_weights[index], (*dense, *others), strict=True):
            parameter.copy_(value)
    return lstm.train(pru.training)
