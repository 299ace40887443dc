"""A single step of a layer that needs no gradient, as in generation: one kernel for the whole layer."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_pru.ops.folding import pooling_levels
from torch_pru.ops.spec import LayerCall, Outputs

from .launch import launch_on
from .plan import step_launch
from .recurrent import as_biases, as_operand, read_as


def run_step(call: LayerCall, dtype: torch.dtype) -> Outputs:
    """As ``layer.run``, which says for which calls; lengths can only be 1, and do not matter."""
    x, weights, h0, c0, _, spec, _ = call
    batch, features = x.shape[1:]
    bands = [level.unfold for level in pooling_levels(features, spec.input.windows, x.device)]
    first, share = [band.first for band in bands], [band.share for band in bands]
    kind, bias, other_bias = as_biases(weights.biases, dtype)
    state = (1, batch, spec.hidden_size)
    out, hn = (x.new_empty(state, dtype=dtype) for _ in range(2))
    cn = x.new_empty(state, dtype=read_as(c0, dtype))
    tensors: tuple[Tensor | None, ...] = (
        as_operand(x, dtype),
        *(as_operand(level, dtype) for level in weights.input),
        *(None, *first),
        *(None, *share),
        as_operand(weights.context[0], dtype),
        bias,
        other_bias,
        as_operand(h0, dtype),
        as_operand(c0, cn.dtype),
        out,
        hn,
        cn,
    )
    widths = [band.share.shape[0] for band in bands]
    numbers = (*spec.input.level_sizes, 0, *widths, features, spec.groups, kind == dtype, cn.dtype == dtype)
    launch_on(step_launch(spec, batch, dtype), x.device, tensors, numbers)
    return out, hn, cn if c0 is None or cn.dtype == c0.dtype else cn.to(c0.dtype)
