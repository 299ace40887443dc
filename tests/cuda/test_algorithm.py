"""The kernels' tiling and order of work, done again in PyTorch on the CPU: they give the recurrence."""

from __future__ import annotations

import pytest
import torch
from literal import Problem, hidden_before, literal, make_problem, run_literal
from shapes import HOPPER

from torch_pru.ops.cuda import plan
from torch_pru.ops.cuda.recurrent import weight_gradient, weight_gradient_like


def units_in_places(held: plan.Team) -> torch.Tensor:
    """The unit in each place of a cluster, -1 for padding: cluster.cu's unit_in."""
    place = torch.arange(held.cluster * held.slots)
    inside, unit = place % held.slots, place // held.slots * held.units + place % held.slots
    return torch.where((inside < held.units) & (unit < held.size), unit, -1)


def padded_weight(weight: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """(4, D, D) spread over places in both directions, zero where a place is padding."""
    real = places >= 0
    spread = weight[:, places.clamp(min=0)][:, :, places.clamp(min=0)]
    return spread * real[None, :, None] * real[None, None, :]


def step_back(a, c, c_before, dh, dc):
    """recurrence.cu's retreat, for tensors (..., 4)."""
    i, f, g, o = a.unbind(-1)
    tc = c.tanh()
    dc = dc + dh * o * (1 - tc * tc)
    d = (dc * g * i * (1 - i), dc * c_before * f * (1 - f), dc * i * (1 - g * g), dh * tc * o * (1 - o))
    return torch.stack(d, -1), dc * f


def cluster_product_forward(held, weight, h):
    """Each block multiplies its own rows with all of h, laid out by place."""
    blocks = weight.view(4, held.cluster, held.slots, -1)
    return torch.stack(
        [torch.einsum("kop,bp->bok", blocks[:, rank], h) for rank in range(held.cluster)], 1
    ).flatten(1, 2)


def cluster_product_backward(held, weight, dgates):
    """Each block turns its gates' gradients into a part for every place; owners add the parts by sender."""
    own = dgates.view(len(dgates), held.cluster, held.slots, 4)
    rows = weight.view(4, held.cluster, held.slots, -1)
    total = torch.zeros(len(dgates), weight.shape[-1], dtype=weight.dtype)
    for sender in range(held.cluster):
        total = total + torch.einsum("bok,kop->bp", own[:, sender], rows[:, sender])
    return total


def grid_sum(left, right, warps, parts):
    """Spans of 32 values of k per warp, the warps' sums added in order; k is the last dimension of both."""
    total = 0
    for warp in range(warps):
        span = slice(warp * parts * 32, (warp + 1) * parts * 32)
        total = total + left[..., span] @ right[..., span].transpose(-1, -2)
    return total


def run(problem, product_forward, product_backward, places):
    """The recurrence of one group over places, with the given products; returns what the kernels return."""
    x, real = problem.inputs, places >= 0
    pick = places.clamp(min=0)
    gates = (x["gates"] + x["bias"]).permute(0, 1, 3, 2)[:, :, pick]
    h, c = (x[name][:, pick] * real for name in ("h0", "c0"))
    c0, out, saved, cells = c, [], [], []
    for t in range(len(gates)):
        z = gates[t] + product_forward(h)
        a = torch.cat((z[..., :2].sigmoid(), z[..., 2:3].tanh(), z[..., 3:].sigmoid()), -1)
        c = a[..., 1] * c + a[..., 0] * a[..., 2]
        h = a[..., 3] * c.tanh() * real
        out.append(h), saved.append(a), cells.append(c)
    grad_out, dh, dc = (g[..., pick] * real for g in problem.grads)
    dgates = [None] * len(gates)
    for t in reversed(range(len(gates))):
        dh = dh + grad_out[t]
        d, dc = step_back(saved[t], cells[t], cells[t - 1] if t else c0, dh, dc)
        dgates[t] = d * real[:, None]
        dh = product_backward(dgates[t])
    where = torch.argsort(torch.where(real, places, 10**9))[: int(real.sum())]
    dgates = torch.stack(dgates)[:, :, where]
    out, last = torch.stack(out)[:, :, where], (dh[:, where], dc[:, where])
    return out, dgates, *last


def expected(problem):
    inputs = {name: v.detach().clone().requires_grad_() for name, v in problem.inputs.items()}
    outputs = literal(*inputs.values())
    gradients = torch.autograd.grad(outputs, inputs.values(), problem.grads)
    return outputs[0], dict(zip(inputs, gradients, strict=True))


def check(problem, found):
    out, dgates, dh0, dc0 = found
    wanted, gradient = expected(problem)
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(dgates.permute(0, 1, 3, 2), gradient["gates"])
    torch.testing.assert_close(dh0, gradient["h0"])
    torch.testing.assert_close(dc0, gradient["c0"])
    dweight = weight_gradient(dgates.contiguous(), hidden_before(out, problem.inputs["h0"], 1), torch.float64)
    torch.testing.assert_close(dweight, gradient["weight"])
    torch.testing.assert_close(dgates.sum((0, 1)).t(), gradient["bias"])


@pytest.mark.parametrize("units", [100, 250, 350, 400])
def test_places_and_parts_of_a_cluster(units):
    held = plan.team(HOPPER, units)
    problem = make_problem(5, 3, 1, units, torch.float64, device="cpu")
    places = units_in_places(held)
    assert sorted(places[places >= 0].tolist()) == list(range(units))
    weight = padded_weight(problem.inputs["weight"][0], places)
    found = run(
        problem,
        lambda h: cluster_product_forward(held, weight, h),
        lambda d: cluster_product_backward(held, weight, d),
        places,
    )
    check(problem, found)


@pytest.mark.parametrize("units", [350, 600, 1150])
def test_spans_of_the_grid(units):
    cuts = [
        dict(plan.grid_launch(HOPPER, units, 3, 1, torch.float16, backward).constants)
        for backward in (False, True)
    ]
    problem = make_problem(3, 3, 1, units, torch.float64, device="cpu")
    weight = problem.inputs["weight"][0]
    assert cuts[0]["WARPS"] * cuts[0]["PARTS"] * 32 >= units
    assert cuts[1]["WARPS"] * cuts[1]["PARTS"] * 32 >= 4 * units

    def product_forward(h):
        rows = weight.transpose(0, 1).reshape(4 * units, units)  # row 4u + gate
        return grid_sum(h, rows, cuts[0]["WARPS"], cuts[0]["PARTS"]).view(len(h), units, 4)

    def product_backward(dgates):
        columns = weight.permute(2, 1, 0).reshape(units, 4 * units)  # k is unit * 4 + gate
        return grid_sum(dgates.reshape(len(dgates), -1), columns, cuts[1]["WARPS"], cuts[1]["PARTS"])

    check(problem, run(problem, product_forward, product_backward, torch.arange(units)))


def half(x):
    """Rounded to float16, as what float32's kernels multiply with weights."""
    return x.to(torch.float16).to(x.dtype)


def rounded_products(kind, weight, units):
    """Forward and backward product of a float32 recurrence, and the places of its units."""
    if kind == "grid":  # gradients of gates are rounded, sums are not
        by_gate = half(weight)
        return (
            lambda h: torch.einsum("koi,bi->bok", by_gate, half(h)),
            lambda d: torch.einsum("bok,koi->bi", half(d), by_gate),
            torch.arange(units),
        )
    held = plan.team(HOPPER, units)  # here each sender's part is rounded, too
    places = units_in_places(held)
    padded = half(padded_weight(weight, places))

    def backward(d):
        own = half(d).view(len(d), held.cluster, 1, held.slots, 4)
        rows = padded.view(4, held.cluster, held.slots, -1)
        return sum(
            half(torch.einsum("bok,kop->bp", own[:, sender, 0], rows[:, sender]))
            for sender in range(held.cluster)
        )

    return lambda h: cluster_product_forward(held, padded, half(h)), backward, places


def scale_of(grads):
    """recurrence.cu's scale: the power of two that brings the largest gradient to [4, 8)."""
    _, exponent = torch.frexp(torch.stack([grad.abs().max() for grad in grads]).max())
    return torch.exp2(3.0 - exponent)


@pytest.mark.parametrize("magnitude", [1e-8, 1.0, 1e4])
@pytest.mark.parametrize(
    ("kind", "steps", "units"), [("cluster", 70, 100), ("cluster", 500, 50), ("grid", 70, 60)]
)
def test_float32_needs_no_more_than_a_scale(kind, steps, units, magnitude):
    """Where only what is multiplied with weights is rounded, outputs and gradients are good as TF32's."""
    problem = make_problem(steps, 3, 1, units, torch.float32, device="cpu")
    problem.grads = tuple(grad * magnitude for grad in problem.grads)
    scale = scale_of(problem.grads)
    assert 4 <= scale * max(grad.abs().max() for grad in problem.grads) < 8
    *products, places = rounded_products(kind, problem.inputs["weight"][0], units)
    scaled = Problem(problem.inputs, tuple(grad * scale for grad in problem.grads), None, False)
    out, dgates, dh0, dc0 = run(scaled, *products, places)
    before = half(hidden_before(out, problem.inputs["h0"], 1))
    found = {
        "out": out,
        "dgates": dgates.mT / scale,
        "dweight": weight_gradient(half(dgates).contiguous(), before, torch.float32) / scale,
        "dbias": dgates.sum((0, 1)).t() / scale,
        "dh0": dh0 / scale,
        "dc0": dc0 / scale,
    }
    wanted = run_literal(problem)
    for name, x in found.items():
        error = (x.double() - wanted[name]).norm() / wanted[name].norm()
        assert error < (2e-3 if name.startswith("d") else 1e-3), (name, error)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("with_lengths", [False, True])
def test_weight_gradient_in_both_directions(reverse, with_lengths):
    lengths = torch.tensor([6, 2, 0, 4]) if with_lengths else None
    problem = make_problem(6, 4, 2, 6, torch.float64, lengths=lengths, reverse=reverse, device="cpu")
    inputs = {name: v.detach().clone().requires_grad_() for name, v in problem.inputs.items()}
    outputs = literal(*inputs.values(), lengths, reverse)
    dgates, wanted = torch.autograd.grad(outputs, (inputs["gates"], inputs["weight"]), problem.grads)
    dgates = dgates.permute(0, 1, 3, 2).contiguous()
    before = hidden_before(outputs[0].detach(), problem.inputs["h0"], 2, lengths, reverse)
    padded = torch.nn.functional.pad(before, (0, 5), value=torch.nan)  # the padding may hold anything
    for given in (before, padded):
        found = weight_gradient(dgates, given, torch.float64)
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(("groups", "units"), [(1, 8), (2, 6), (4, 350), (3, 1)])
def test_the_weight_gradient_lies_as_the_compilers_are_told(groups, units):
    problem = make_problem(2, 3, groups, units, torch.bfloat16, device="cpu")
    weight, padded = problem.inputs["weight"], -(-units // 8) * 8
    found = weight_gradient(
        torch.randn(2, 3, groups * units, 4, dtype=torch.bfloat16),
        torch.randn(2, 3, groups, padded, dtype=torch.bfloat16),
        weight.dtype,
    )
    told = weight_gradient_like(weight)
    assert (found.shape, found.stride(), found.dtype) == (told.shape, told.stride(), told.dtype)
    assert found.shape == weight.shape
