"""The recurrence written out literally in float64, and problems to compare the fused kernels on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

INPUTS = ("gates", "weight", "bias", "h0", "c0")
OUTPUTS = ("out", "hn", "cn")


@dataclass
class Problem:
    inputs: dict[str, Tensor]  # rounded to the operand dtype
    grads: tuple[Tensor, Tensor, Tensor]  # of out, hn, cn
    lengths: Tensor | None
    reverse: bool


def literal(gates, weight, bias, h0, c0, lengths=None, reverse=False):
    """Step by step, column by column masks; autograd gives the gradients."""
    steps, batch, _, width = gates.shape
    groups, _, size, _ = weight.shape
    lengths = (
        torch.full((batch,), steps, device=gates.device) if lengths is None else lengths.to(gates.device)
    )
    h, c = h0, c0
    out = [torch.zeros_like(h0) for _ in range(steps)]
    for t in reversed(range(steps)) if reverse else range(steps):
        context = torch.einsum("bgi,gkoi->bkgo", h.view(batch, groups, size), weight).reshape(batch, 4, width)
        z = gates[t] + context + (bias if bias is not None else 0)
        i, f, g, o = z[:, 0].sigmoid(), z[:, 1].sigmoid(), z[:, 2].tanh(), z[:, 3].sigmoid()
        valid = (t < lengths)[:, None]
        c_new = f * c + i * g
        h_new = o * c_new.tanh()
        c, h = torch.where(valid, c_new, c), torch.where(valid, h_new, h)
        out[t] = torch.where(valid, h_new, torch.zeros_like(h_new))
    return torch.stack(out), h, c


def make_problem(
    steps, batch, groups, size, dtype, seed=0, lengths=None, reverse=False, device="cuda", unit_major=True
):
    """Fresh random inputs of the size training has, already rounded to the operand dtype."""
    make = torch.Generator(device).manual_seed(seed)
    width = groups * size
    state = torch.promote_types(dtype, torch.float32)

    def normal(*shape, scale=1.0):
        return torch.randn(shape, generator=make, device=device, dtype=torch.float32) * scale

    gates = normal(steps, batch, width, 4).to(dtype).permute(0, 1, 3, 2)
    inputs = {
        "gates": gates if unit_major else gates.contiguous(),
        "weight": normal(groups, 4, size, size, scale=size**-0.5).to(dtype),
        "bias": normal(4, width, scale=0.3).to(dtype),
        "h0": normal(batch, width, scale=0.5).to(dtype),
        "c0": normal(batch, width).to(state),
    }
    grads = (
        normal(steps, batch, width).to(dtype),
        normal(batch, width).to(dtype),
        normal(batch, width).to(state),
    )
    return Problem(inputs, grads, lengths, reverse)


def hidden_before(out, h0, groups, lengths=None, reverse=False):
    """The hidden state (T, B, G, D) that each step started from, step by step and column by column."""
    steps, batch, width = out.shape
    before, toward = torch.empty_like(out), 1 if reverse else -1
    for column in range(batch):
        length = steps if lengths is None else max(1, int(lengths[column]))
        starts = (length - 1, steps - 1) if reverse else (0,)  # past its length any state will do
        for t in range(steps):
            state = h0[column].to(out.dtype) if t in starts else out[t + toward, column]
            before[t, column] = state
    return before.view(steps, batch, groups, width // groups)


def run_literal(problem: Problem) -> dict[str, Tensor]:
    """Outputs and gradients in float64 from the same rounded inputs."""
    inputs = {name: x.double().requires_grad_() for name, x in problem.inputs.items()}
    outputs = literal(*inputs.values(), problem.lengths, problem.reverse)
    gradients = torch.autograd.grad(outputs, inputs.values(), [g.double() for g in problem.grads])
    return dict(zip(OUTPUTS, outputs, strict=True)) | {
        f"d{name}": g for name, g in zip(INPUTS, gradients, strict=True)
    }


def run_fused(problem: Problem) -> dict[str, Tensor]:
    from torch_pru.ops import cuda
    from torch_pru.ops.spec import RecurrenceCall, SavedRecurrence

    x = problem.inputs
    call = RecurrenceCall(*x.values(), problem.lengths, problem.reverse)
    out, hn, cn, activations, cells = cuda.forward(call, True)
    saved = (x["weight"], x["h0"], x["c0"], out, activations, cells)
    gradients = cuda.backward(*problem.grads, SavedRecurrence(*saved, problem.lengths, problem.reverse))
    return dict(zip(OUTPUTS, (out, hn, cn), strict=True)) | {
        f"d{name}": g for name, g in zip(INPUTS, gradients, strict=True)
    }


def replay_fused(problem: Problem, other: Problem) -> dict[str, Tensor]:
    """What a CUDA graph captured with ``problem`` gives once its inputs hold those of ``other``."""
    run_fused(problem)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run_fused(problem)
    for name, x in other.inputs.items():
        problem.inputs[name].copy_(x)
    for mine, theirs in zip(problem.grads, other.grads, strict=True):
        mine.copy_(theirs)
    graph.replay()
    torch.cuda.synchronize()  # the graph ends here
    return {name: x.clone() for name, x in results.items()}


def compare(problem: Problem, results: dict[str, Tensor]) -> dict[str, float]:
    """Relative error of each result in the Euclidean norm; NaN where a result has one."""
    expected = run_literal(problem)
    assert all(results[name].shape == x.shape for name, x in expected.items())
    return {name: ((results[name].double() - x).norm() / x.norm()).item() for name, x in expected.items()}
