"""The recurrence: the sequential part of a PRU, and the place that chooses how it is run.

Backends, all with one meaning:

* ``"reference"``: :mod:`torch_pru.ops.reference`, plain differentiable PyTorch, any order of gradient.
* ``"loop"``: :mod:`torch_pru.ops.loop`, PyTorch calls with a hand-written backward, any device.
* ``"cuda"``: :mod:`torch_pru.ops.cuda`, one fused kernel for all steps, NVIDIA GPUs.
* ``"auto"``: ``"cuda"`` where it covers the shape, else ``"loop"``; ``"reference"`` where ``torch.func`` or
  tangents take a derivative. float32 is covered while ``torch.backends.cudnn.allow_tf32`` is on, as for
  ``nn.LSTM``: products are rounded to TF32's precision. A layer on a CPU may skip all of this and run as an
  LSTM, see :mod:`torch_pru.ops.lstm`.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from torch_pru.errors import PRUError, check_choice
from torch_pru.ops import library, reference
from torch_pru.ops.torch_private import Mode, current_mode

BACKENDS = ("auto", "reference", "loop", "native", "cuda")

log = logging.getLogger(__name__)
_said: set[str] = set()

__all__ = ["BACKENDS", "recurrence"]


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
) -> tuple[Tensor, Tensor, Tensor]:
    """Run LSTM gating with a grouped context over all steps.

    Gates stand in the order of ``nn.LSTM``: input, forget, content, output. At step t, with
    z = gates[t] + bias + W·h: i, f, o = sigmoid(z), g = tanh(z); c = f·c + i·g; h = o·tanh(c).

    Args:
        gates: (T, B, 4, M), what the input contributes to the gates at every step; any strides.
        weight: (G, 4, D, D) with G·D = M; ``weight[j, k, a, b]`` leads from unit b to gate k of
            unit a, both inside group j.
        bias: (4, M) or None.
        h0, c0: (B, M), the states before the first step; zero where not given.
        lengths: (B,), valid steps of each column, 1 to T (on a GPU the values are not looked at: the
            host would wait). After them the state is frozen and the output is zero. Without it every
            step is valid.
        reverse: run from each column's last valid step to step 0; outputs stay at their positions.
        backend: one of ``BACKENDS``.

    Returns:
        out (T, B, M); hn (B, M) in out's dtype; cn (B, M) in c0's dtype, if that was given. The dtype of
        ``gates`` is the one computed in; the cell state is float32 where that has 16 bits.

    Example:
        >>> gates, weight = torch.randn(70, 20, 4, 1400), torch.randn(4, 4, 350, 350) / 20
        >>> out, hn, cn = recurrence(gates, weight, None)
        >>> out.shape
        torch.Size([70, 20, 1400])
    """
    _check_shapes(gates, weight, bias, h0, c0, lengths)
    tensors = (gates, weight, bias, h0, c0)
    training = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    chosen = _choose(backend, gates, weight, training)
    if chosen != "cuda":  # whose kernels read float32 weights and return float32 gradients of them
        weight = weight.to(gates.dtype)
        bias, h0 = (None if x is None else x.to(gates.dtype) for x in (bias, h0))
        h0, c0 = or_zeros(gates, h0, c0)
        if chosen == "reference":
            return reference.recurrence(gates, weight, bias, h0, c0, lengths, reverse=reverse)
    save = False  # the operator itself finds out whether a gradient is wanted: a trace holds for both
    out, hn, cn, _, _ = library.forward(gates, weight, bias, h0, c0, lengths, reverse, save, chosen)
    return out, hn, cn


def or_zeros(gates: Tensor, *states: Tensor | None) -> list[Tensor]:
    """States (B, M) for gates (T, B, 4, M), zero where they were not given."""
    _, batch, _, hidden = gates.shape
    return [gates.new_zeros(batch, hidden) if state is None else state for state in states]


def _choose(backend: str, gates: Tensor, weight: Tensor, training: bool) -> str:
    """The backend that will run: any but ``"auto"``."""
    if backend in ("reference", "loop"):
        return backend
    if backend == "auto" and current_mode() is Mode.DERIVATIVE:
        return "reference"
    if backend == "auto" and not gates.is_cuda:
        return "loop"
    check_choice("backend", backend, BACKENDS)
    from torch_pru.ops import cuda  # here, because importing the package must stay light

    reason = cuda.covers(gates, weight, training)
    if reason is None:
        return "cuda"
    if backend == "cuda":
        raise PRUError(f"backend='cuda' does not cover this call: {reason}; use backend='auto' or 'loop'")
    if reason not in _said and not torch.compiler.is_compiling():  # a slow path is said, once
        _said.add(reason)
        log.warning("the fused kernel does not cover this call (%s); running the PyTorch loop", reason)
    return "loop"


def _check_shapes(
    gates: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    h0: Tensor | None,
    c0: Tensor | None,
    lengths: Tensor | None,
) -> None:
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
        return  # looking at the values would make the host wait for the device
    for length in (int(lengths.min()), int(lengths.max())):
        if not 1 <= length <= steps:
            raise PRUError(f"lengths holds {length}; expected 1 to {steps}")
