"""Every kernel as a few lines of PyTorch that read and write raw memory, in the layouts its source documents.

With these in place of the kernels the code around them runs on a CPU: what it passes to a kernel can be
looked at, and what it computes can be compared with the reference.
"""

from __future__ import annotations

import ctypes
import struct
from types import SimpleNamespace

import torch
from torch import Tensor

WORD = 0xFFFFFFFF


def raw(tensor: Tensor, *shape: int) -> Tensor:
    """Memory from the tensor's first element on as a contiguous array, whatever the tensor's strides."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size
    return tensor.detach().as_strided(shape, strides)


def at(address: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Memory at an address, as a contiguous array."""
    count = int(torch.Size(shape).numel())
    size = torch.empty((), dtype=dtype).element_size()
    return torch.frombuffer((ctypes.c_char * (count * size)).from_address(address), dtype=dtype).view(shape)


def double(word: int) -> float:
    return struct.unpack("<d", struct.pack("<q", word))[0]


def _valid(a: SimpleNamespace) -> Tensor:
    steps = torch.arange(a.steps)[:, None]
    lengths = torch.full((a.batch,), a.steps) if a.lengths is None else raw(a.lengths, a.batch)
    return (steps < lengths)[..., None]


def _order(a: SimpleNamespace) -> list[int]:
    return list(reversed(range(a.steps))) if a.reverse else list(range(a.steps))


def _weight(a: SimpleNamespace, k: dict[str, int]) -> Tensor:
    return raw(a.weight, a.groups, 4, k["D"], k["D"]).float()


def _state(tensor: Tensor | None, a: SimpleNamespace, width: int) -> Tensor:
    return torch.zeros(a.batch, width) if tensor is None else raw(tensor, a.batch, width).float()


def forward(a: SimpleNamespace, k: dict[str, int]) -> None:
    groups, size, width = a.groups, k["D"], a.groups * k["D"]
    if k["FLOAT"]:
        gates = raw(a.gates, a.steps, a.batch, 4, width).float()
    else:
        gates = raw(a.gates, a.steps, a.batch, width, 4).mT.float()
    bias = 0 if a.bias is None else raw(a.bias, 4, width).float()
    if a.bias is not None:
        assert (a.bias.dtype == a.gates.dtype) == bool(a.real_bias)
    assert (a.cn.dtype == a.gates.dtype) == bool(a.real_cells)
    assert a.c0 is None or a.c0.dtype == a.cn.dtype
    weight, valid = _weight(a, k), _valid(a)
    h, c = _state(a.h0, a, width), _state(a.c0, a, width)
    for t in _order(a):
        context = torch.einsum("bgi,gkoi->bkgo", h.view(-1, groups, size), weight).flatten(-2)
        i, f, g, o = (gates[t] + context + bias).unbind(1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        c = torch.where(valid[t], f * c + i * g, c)
        hidden = o * c.tanh()
        h = torch.where(valid[t], hidden, h)
        raw(a.out, a.steps, a.batch, width)[t] = torch.where(valid[t], hidden, 0)
        if a.activations is not None:
            raw(a.activations, a.steps, a.batch, width, 4)[t] = torch.stack((i, f, g, o), -1)
            raw(a.cells, a.steps, a.batch, width)[t] = c
    raw(a.hn, a.batch, width).copy_(h)
    raw(a.cn, a.batch, width).copy_(c)
    if a.exchange is not None:
        assert (raw(a.exchange, a.steps, groups, a.batch, k["PADDED"]) == -1).all()


def backward(a: SimpleNamespace, k: dict[str, int]) -> None:
    groups, size, width = a.groups, k["D"], a.groups * k["D"]
    shape = (a.steps, a.batch, width)
    grad_out = torch.zeros(shape) if a.grad_out is None else raw(a.grad_out, *shape).float()
    grad_h, grad_c = _state(a.grad_hn, a, width), _state(a.grad_cn, a, width)
    activations, cells = raw(a.activations, *shape, 4).float(), raw(a.cells, *shape).float()
    weight, valid, c0 = _weight(a, k), _valid(a), _state(a.c0, a, width)
    grads = torch.zeros(*shape, 4)
    for t in reversed(_order(a)):
        before = t + 1 if a.reverse else t - 1
        inside = 0 <= before < a.steps
        c_before = cells[before] if inside else c0
        if inside and a.reverse:  # a column that began here started from c0
            c_before = torch.where(valid[before], c_before, c0)
        i, f, g, o = activations[t].unbind(-1)
        tanh = cells[t].tanh()
        dh = grad_h + grad_out[t]
        dc = grad_c + dh * o * (1 - tanh**2)
        dz = torch.stack((dc * g, dc * c_before, dc * i, dh * tanh), -1)
        dz *= torch.stack((i * (1 - i), f * (1 - f), 1 - g**2, o * (1 - o)), -1)
        dz = torch.where(valid[t].unsqueeze(-1), dz, 0)
        grads[t] = dz
        by_group = dz.view(-1, groups, size, 4)
        moved = torch.einsum("bgok,gkoi->bgi", by_group, weight).flatten(1)
        grad_h, grad_c = torch.where(valid[t], moved, grad_h), torch.where(valid[t], dc * f, grad_c)
    if k["FLOAT"]:
        assert a.parts == len(a.largest)
        raw(a.dgates, *shape, 4).copy_(grads * 2)  # any power of two will do
        raw(a.dgates32, a.steps, a.batch, 4, width).copy_(grads.mT)
        raw(a.down, 1).fill_(0.5)
    else:
        raw(a.dgates, *shape, 4).copy_(grads)
    raw(a.dh0, a.batch, width).copy_(grad_h)
    raw(a.dc0, a.batch, width).copy_(grad_c)
    rows = a.dbias.numel() // (4 * width)
    sums = raw(a.dbias, rows, width, 4).zero_()
    sums[0], sums[-1] = grads.sum((0, 1)) / 2, grads.sum((0, 1)) / 2


def gradient_scale(a: SimpleNamespace, k: dict[str, int]) -> None:
    for index in range(3):
        grad = getattr(a, f"grads[{index}]")
        assert getattr(a, f"counts[{index}]") == (0 if grad is None else grad.numel())
    a.largest.zero_()


def backward_tail(a: SimpleNamespace, k: dict[str, int]) -> None:
    size, width = k["D"], a.groups * k["D"]
    out, h0, valid = raw(a.out, a.steps, a.batch, width).float(), _state(a.h0, a, width), _valid(a)
    before = torch.empty_like(out)
    for t in range(a.steps):
        last = t + 1 if a.reverse else t - 1
        inside = 0 <= last < a.steps
        before[t] = torch.where(valid[last], out[last], h0) if inside else h0
    padded = -(-size // 8) * 8
    result = raw(a.before, a.steps, a.batch, a.groups, padded).zero_()
    result[..., :size] = before.view(a.steps, a.batch, a.groups, size)
    raw(a.dbias, 4, width).copy_(raw(a.parts, a.rows, width, 4).sum(0).t())


def cross_entropy(a: SimpleNamespace, k: dict[str, int]) -> None:
    logits, targets = raw(a.logits, a.rows, a.padded), raw(a.targets, a.rows)
    logs = logits.float().log_softmax(-1)
    raw(a.losses, a.rows).copy_(-logs.gather(1, targets[:, None])[:, 0])
    if k["GRADIENT"]:
        logits.copy_(logs.exp().scatter_add(1, targets[:, None], torch.full((a.rows, 1), -1.0)))


def decoder_operand(a: SimpleNamespace, k: dict[str, int]) -> None:
    operand, shift = raw(a.operand, a.padded, a.width).zero_(), raw(a.shift, a.padded)
    operand[: a.words] = raw(a.weight, a.words, a.width)
    shift.fill_(-torch.inf)
    shift[: a.words] = raw(a.bias, a.words)


def decoder_rows(a: SimpleNamespace, k: dict[str, int]) -> None:
    scale, hidden = raw(a.scale, a.rows, 1), raw(a.hidden, a.rows, a.width)
    gradient, features = raw(a.gradient, a.rows, a.width), raw(a.features, a.rows, 8 * a.packs)
    features.zero_()
    features[:, : a.width], features[:, -8:] = hidden.float() * scale, scale
    gradient.copy_(gradient.float() * scale)


def add_rows(a: SimpleNamespace, k: dict[str, int]) -> None:
    rows, tokens = raw(a.rows, a.positions, a.columns), raw(a.tokens, a.positions)
    words = a.table.shape[0]
    a.table.as_strided((words, a.columns), (a.stride, 1)).index_add_(0, tokens, rows)


def _entries(a: SimpleNamespace):
    for index in range(a.entries):
        entry = {name: getattr(a, f"entry[{index}].{name}") for name in ("weight", "gradient", "average")}
        count, columns, stride = (getattr(a, f"entry[{index}].{n}") for n in ("count", "columns", "stride"))
        rows = count // columns
        memory = at(entry["gradient"], (rows - 1) * stride + columns)
        gradient = memory.as_strided((rows, columns), (stride, 1)).reshape(-1)
        average = at(entry["average"], count) if entry["average"] else None
        yield at(entry["weight"], count), gradient, average


def gradient_squares(a: SimpleNamespace, k: dict[str, int]) -> None:
    a.sums.zero_()
    a.sums[0] = sum(gradient.double().square().sum() for _, gradient, _ in _entries(a))


def sgd(a: SimpleNamespace, k: dict[str, int]) -> None:
    assert a.blocks == len(a.sums)
    clip, decay = double(a.clip), double(a.decay)
    norm, factor = a.sums.sum().sqrt().float(), torch.ones(()) if a.factor is None else a.factor
    skipped = a.factor is not None and not norm.isfinite()
    length = torch.zeros(()) if skipped else norm / factor
    if a.norm is not None:
        a.norm.copy_(norm)
    if a.loss is not None:
        a.steps.add_(1)
        if not (a.loss.isfinite() and length.isfinite()) and a.first_bad < 0:
            a.first_bad.copy_(a.steps)
    scale = (clip / (length + 1e-6)).clamp(max=1.0) / factor
    for weight, gradient, average in _entries(a):
        gradient = torch.zeros_like(gradient) if skipped else gradient * scale
        weight -= a.rate * (gradient + decay * weight)
        if average is not None:
            average += (weight - average) * a.share


def drop(a: SimpleNamespace, k: dict[str, int]) -> None:
    if k["D"]:
        groups = a.rows // (4 * k["D"])
        strides = (a.group_stride, a.gate_stride, a.unit_stride, 1)
        values = a.values.as_strided((groups, 4, k["D"], k["D"]), strides).reshape(a.rows, a.columns)
    else:
        values = raw(a.values, a.rows, a.columns)
    mask = a.mask.as_strided((a.rows, a.columns), (a.mask_pitch, 1))
    raw(a.out, a.rows, a.columns).copy_(values.float() * (mask.float() / double(a.keep)))


def penalties(a: SimpleNamespace, k: dict[str, int]) -> None:
    total = torch.zeros(())
    if a.dropped is not None:
        total += double(a.activation) * raw(a.dropped, a.count).float().square().sum()
    if a.raw is not None:
        values = raw(a.raw, a.count // a.step, a.step).float()
        total += double(a.temporal) * (values[1:] - values[:-1]).square().sum()
    a.parts.zero_()
    a.parts[0] = total


def penalties_backward(a: SimpleNamespace, k: dict[str, int]) -> None:
    if a.dropped is not None:
        gradient = 2 * double(a.activation) * a.gradient * raw(a.dropped, a.count).float()
        raw(a.grad_dropped, a.count).copy_(gradient)
    if a.raw is not None:
        values = raw(a.raw, a.count // a.step, a.step).float()
        change = 2 * double(a.temporal) * a.gradient * (values[1:] - values[:-1])
        result = torch.zeros_like(values)
        result[1:] += change
        result[:-1] -= change
        raw(a.grad_raw, a.count // a.step, a.step).copy_(result)


def _levels(a: SimpleNamespace, k: dict[str, int], columns: int):
    """Of each level: its weight (GATES, units, n), its units, and the band as a dense matrix or None."""
    for level in range(k["LEVELS"]):
        units, features = getattr(a, f"units[{level}]"), a.features >> level
        weight = raw(getattr(a, f"weights[{level}]"), k["GATES"], units, features)
        first, share = getattr(a, f"first[{level}]"), getattr(a, f"share[{level}]")
        yield weight, units, first, share, getattr(a, f"widths[{level}]")


def _dense(first: Tensor, share: Tensor, width: int, rows: int, columns: int) -> Tensor:
    """The band matrix (rows, columns)."""
    matrix, share = torch.zeros(rows, columns), raw(share, width, columns)
    for j in range(width):
        matrix[raw(first, columns).long() + j, torch.arange(columns)] = share[j]
    return matrix


def fold(a: SimpleNamespace, k: dict[str, int]) -> None:
    parts = []
    for level, (weight, _, first, share, width) in enumerate(_levels(a, k, a.columns)):
        wide = torch.zeros(*weight.shape[:2], a.columns)
        if level == 0:
            assert (first, share, width) == (None, None, 0)
            wide[..., : a.features] = weight
        else:
            wide[...] = weight.float() @ _dense(first, share, width, a.features >> level, a.columns)
        parts.append(wide)
    by_unit = torch.cat(parts, 1).transpose(0, 1)
    raw(a.folded, by_unit.shape[0], k["GATES"], a.columns).copy_(by_unit)


def unfold(a: SimpleNamespace, k: dict[str, int]) -> None:
    before, total = 0, sum(getattr(a, f"units[{level}]") for level in range(k["LEVELS"]))
    folded = raw(a.folded, total, k["GATES"], a.columns)[..., : a.features].float().transpose(0, 1)
    for level, (weight, units, first, share, width) in enumerate(_levels(a, k, a.columns)):
        part = folded[:, before : before + units]
        if level:
            part = part @ _dense(first, share, width, a.features, a.features >> level)
        weight.copy_(part)
        before += units


def spread(a: SimpleNamespace, k: dict[str, int]) -> None:
    raw(a.gates, a.count, 4).copy_(raw(a.values, a.count, 1).expand(-1, 4))


def collect(a: SimpleNamespace, k: dict[str, int]) -> None:
    raw(a.values, a.count).copy_(raw(a.gates, a.count, 4).float().sum(1))


def dynamic(a: SimpleNamespace, k: dict[str, int]) -> None:
    rate, decay, epsilon = a.rates
    for index in range(k["TENSORS"]):
        count = getattr(a, f"count[{index}]")
        if count:
            names = ("weight", "trained", "gradient", "rms")
            weight, trained, gradient, rms = (raw(getattr(a, f"{n}[{index}]"), count) for n in names)
            pull, step = (decay * rms).clamp(max=1.0), rate / (rms + epsilon)
            weight += pull * (trained - weight) - step * gradient / a.losses


def _word(key: Tensor) -> int:
    return ~int(key) & WORD


def token_layer(a: SimpleNamespace, k: dict[str, int]) -> None:
    inputs, size = k["N"], k["D"]
    padded = -(-inputs // 8) * 8
    weight = raw(a.weight, a.width, 4, padded + -(-size // 8) * 8).float()
    x = raw(a.x, 1, inputs)[0] if a.key is None else raw(a.x, a.x.numel() // padded, padded)[_word(a.key)]
    x, h = x[:inputs].float(), raw(a.h0, a.width).float()
    context = h.view(-1, size).repeat_interleave(size, 0)  # (M, D): of each unit's group
    z = (weight[..., :inputs] * x).sum(-1) + (weight[..., padded : padded + size] * context[:, None]).sum(-1)
    if k["RESIDUAL"]:
        z += x[:, None]
    if a.bias is not None:
        z += raw(a.bias, 4, a.width).t()
    i, f, g, o = z.unbind(1)
    c = f.sigmoid() * raw(a.c0, a.width) + i.sigmoid() * g.tanh()
    raw(a.cn, a.width).copy_(c)
    raw(a.hn, a.width).copy_(o.sigmoid() * c.tanh())


def token_scores(a: SimpleNamespace, k: dict[str, int]) -> None:
    padded = -(-k["N"] // 8) * 8
    weight, h = raw(a.weight, a.words, padded).float(), raw(a.h, k["N"]).float()
    scores = weight[:, : k["N"]] @ h + raw(a.offset, a.words)
    raw(a.scores, a.words).copy_(scores)
    assert int(a.key) == 0
    a.key.fill_(~int(scores.argmax()) & WORD)


KERNELS = {
    "forward_cluster": forward,
    "forward_grid": forward,
    "forward_token": forward,
    "backward_cluster": backward,
    "backward_grid": backward,
} | {
    function.__name__: function
    for function in (
        gradient_scale,
        backward_tail,
        cross_entropy,
        decoder_operand,
        decoder_rows,
        add_rows,
        gradient_squares,
        sgd,
        drop,
        penalties,
        penalties_backward,
        fold,
        unfold,
        spread,
        collect,
        dynamic,
        token_layer,
        token_scores,
    )
}
