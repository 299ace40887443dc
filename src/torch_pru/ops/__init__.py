"""The pieces that a layer and its training are made of, and the backends that run them.

* :mod:`torch_pru.ops.backends` chooses a backend for each call; nothing else does.
* ``"reference"``: :mod:`torch_pru.ops.reference`, plain PyTorch, any device, any order of gradient. Always
  used where ``torch.func`` or forward-mode AD takes a derivative.
* ``"loop"``: :mod:`torch_pru.ops.cpu.loop`, PyTorch calls with a hand-written backward, any device.
* ``"lstm"``: :mod:`torch_pru.ops.cpu.lstm`, PyTorch's own LSTM kernel on a CPU, where that is faster.
* ``"native"``: :mod:`torch_pru.ops.native`, compiled kernels for CPUs, where they can be built.
* ``"cuda"``: :mod:`torch_pru.ops.cuda`, fused kernels for NVIDIA GPUs. float32 is supported while
  ``torch.backends.cudnn.allow_tf32`` is on, as in ``nn.LSTM``: products are rounded to TF32's precision.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_pru.errors import PRUError
from torch_pru.ops import backends, dropping, gates, layer  # whose operators must be registered
from torch_pru.ops.spec import Outputs, RecurrenceCall

__all__ = ["backends", "dropping", "gates", "layer", "recurrence"]


def recurrence(
    gates: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    h0: Tensor | None = None,
    c0: Tensor | None = None,
    lengths: Tensor | None = None,
    *,
    reverse: bool = False,
    backend: str = "auto",
) -> Outputs:
    """Run LSTM gating with a grouped context over all steps.

    Gates stand in the order of ``nn.LSTM``: input, forget, cell, output. At step t, with
    z = gates[t] + bias + W·h: i, f, o = sigmoid(z), g = tanh(z); c = f·c + i·g; h = o·tanh(c).

    Args:
        gates: (T, B, 4, M), the contribution of the input to the gates at every step; any strides.
        weight: (G, 4, D, D) with G·D = M; ``weight[j, k, a, b]`` leads from unit b to gate k of
            unit a, both inside group j.
        bias: (4, M) or None.
        h0, c0: (B, M), the states before the first step; zero if not given.
        lengths: (B,), the number of valid steps of each column, 1 to T. After them the state is frozen and
            the output is zero. If not given, every step is valid. On a GPU the values are not checked, to
            avoid a synchronization.
        reverse: run from each column's last valid step to step 0; outputs stay at their positions.
        backend: ``"auto"``, or the name of a backend.

    Returns:
        out (T, B, M) and hn (B, M) in the dtype of ``gates``, and cn (B, M) in the dtype of ``c0``, if given.
        The cell state is kept in float32 if ``gates`` has 16 bits.

    Example:
        >>> gates, weight = torch.randn(70, 20, 4, 1400), torch.randn(4, 4, 350, 350) / 20
        >>> out, hn, cn = recurrence(gates, weight, None)
        >>> out.shape
        torch.Size([70, 20, 1400])
    """
    call = RecurrenceCall(gates, weight, bias, h0, c0, lengths, reverse)
    _check_shapes(call)
    return backends.run("recurrence", call, requested=backend)


def _check_shapes(call: RecurrenceCall) -> None:
    gates, weight, bias, h0, c0, lengths, _ = call
    device = gates.device
    for name, tensor in (("weight", weight), ("bias", bias), ("h0", h0), ("c0", c0)):
        if tensor is not None and tensor.device != device:
            raise PRUError(f"{name} is on {tensor.device} and gates on {device}; move one of them")
    if gates.dim() != 4 or gates.shape[2] != 4 or gates.shape[0] == 0:
        raise PRUError(f"gates has shape {tuple(gates.shape)}; expected (T, B, 4, M) with T of at least 1")
    _, batch, _, hidden = gates.shape
    width = weight.shape[-1] if weight.dim() else 0
    if weight.dim() != 4 or weight.shape[1:] != (4, width, width) or weight.shape[0] * width != hidden:
        raise PRUError(f"weight has shape {tuple(weight.shape)}; expected (G, 4, D, D) with G·D = {hidden}")
    if bias is not None and bias.shape != (4, hidden):
        raise PRUError(f"bias has shape {tuple(bias.shape)}; expected (4, {hidden})")
    for name, state in (("h0", h0), ("c0", c0)):
        if state is not None and state.shape != (batch, hidden):
            raise PRUError(f"{name} has shape {tuple(state.shape)}; expected ({batch}, {hidden})")
    if lengths is not None:
        _check_lengths(lengths, gates.shape[0], batch)


def _check_lengths(lengths: Tensor, steps: int, batch: int) -> None:
    if lengths.shape != (batch,) or lengths.dtype != torch.int64:
        raise PRUError(f"lengths is {tuple(lengths.shape)} of {lengths.dtype}; expected ({batch},) of int64")
    if lengths.is_cuda or batch == 0 or torch.compiler.is_compiling():
        return  # reading the values would synchronize with the device
    for length in (int(lengths.min()), int(lengths.max())):
        if not 1 <= length <= steps:
            raise PRUError(f"lengths contains {length}; expected 1 to {steps}")
