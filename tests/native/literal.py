"""A layer in float64, step by step; nothing here comes from the package."""

from __future__ import annotations

import torch
from torch import Tensor


def pool(x: Tensor, window: int) -> Tensor:
    """(…, n) to (…, n/2): element i is the mean of x[2i - e … 2i + e], zeros outside."""
    n, e = x.shape[-1], window // 2
    places = [[j for j in range(2 * i - e, 2 * i + e + 1) if 0 <= j < n] for i in range(n // 2)]
    return torch.stack([x[..., inside].sum(-1) / window for inside in places], dim=-1)


def input_gates(x: Tensor, matrices: list[Tensor], windows: list[int], residual: bool) -> Tensor:
    """(T, B, N) to (T, B, 4, M)."""
    levels, view = [], x
    for level, matrix in enumerate(matrices):
        view = pool(view, windows[level]) if level else view
        columns = matrix.shape[1]
        groups = view.shape[-1] // columns
        units = matrix.shape[0] // 4 // groups
        by_group = matrix.view(4, groups, units, columns)
        products = [
            torch.einsum("tbn,kmn->tbkm", view[..., j * columns : (j + 1) * columns], by_group[:, j])
            for j in range(groups)
        ]
        levels.append(torch.cat(products, dim=-1))
    gates = torch.cat(levels, dim=-1)
    return gates + x.unsqueeze(2) if residual else gates


def recurrence(
    gates: Tensor,
    context: Tensor,
    bias: Tensor | None,
    h0: Tensor | None,
    c0: Tensor | None,
    lengths: list[int] | None,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """gates (T, B, 4, M); the state of a column is frozen after its length, and its output is zero."""
    steps, batch, _, hidden = gates.shape
    width = context.shape[1]
    weight = context.view(4, hidden // width, width, width)
    bias = gates.new_zeros(4 * hidden) if bias is None else bias
    h = gates.new_zeros(batch, hidden) if h0 is None else h0
    c = gates.new_zeros(batch, hidden) if c0 is None else c0
    outputs = [gates.new_zeros(batch, hidden)] * steps
    for t in reversed(range(steps)) if reverse else range(steps):
        z = torch.einsum("kgoi,bgi->bkgo", weight, h.view(batch, -1, width)).reshape(batch, 4, hidden)
        z = z + gates[t] + bias.view(4, hidden)
        c_next = torch.sigmoid(z[:, 1]) * c + torch.sigmoid(z[:, 0]) * torch.tanh(z[:, 2])
        h_next = torch.sigmoid(z[:, 3]) * torch.tanh(c_next)
        goes_on = torch.tensor([[lengths is None or t < lengths[column]] for column in range(batch)])
        h, c = torch.where(goes_on, h_next, h), torch.where(goes_on, c_next, c)
        outputs[t] = torch.where(goes_on, h_next, torch.zeros_like(h_next))
    return torch.stack(outputs), h, c
