"""Masks and the recurrence's tail on a GPU, beside literal computations on the same masks."""

from __future__ import annotations

import pytest
import torch
from literal import hidden_before, make_problem
from torch import Tensor

from torch_pru import PRU
from torch_pru.lm.model import Masks
from torch_pru.ops import backends, cuda, layer
from torch_pru.ops.cuda import passes
from torch_pru.ops.cuda.recurrent import weight_gradient_like
from torch_pru.ops.dropping import draw_mask
from torch_pru.ops.spec import RecurrenceCall

pytestmark = pytest.mark.gpu

FLOAT, HALF, BRAIN = torch.float32, torch.float16, torch.bfloat16
KINDS = [(FLOAT, FLOAT), (FLOAT, HALF), (FLOAT, BRAIN), (HALF, FLOAT), (BRAIN, FLOAT), (HALF, HALF)]
KINDS += [(BRAIN, BRAIN)]
kinds = pytest.mark.parametrize(("start", "end"), KINDS, ids=str)


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator("cuda").manual_seed(seed)


def randoms(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=generator(2), device="cuda").to(dtype)


def literal_drop(values: Tensor, mask: Tensor, keep: float, dtype: torch.dtype) -> Tensor:
    return (values.float() * (mask.float() / keep)).to(dtype)


# ---------------------------------------------------------------------- the operator


@pytest.mark.usefixtures("poisoned")
@kinds
@pytest.mark.parametrize("shape", [(5, 3, 7), (4, 3, 8), (1, 1, 1), (3, 2, 10), (70, 20, 1400)], ids=str)
@pytest.mark.parametrize("shared", [False, True])
def test_dropout_both_ways(start, end, shape, shared):
    """Also with the columns of one process, cut out of a mask for more."""
    steps, columns, size = shape
    mask = draw_mask((1 if shared else steps, columns + 3, size), 0.6, torch.device("cuda"), generator())
    values, gradient = randoms(*shape, dtype=start).requires_grad_(), randoms(*shape, dtype=end)
    for first in (0, 1, 3):
        own = mask[:, first : first + columns]
        out = backends.run("drop", values, own, 0.6, end)
        assert torch.equal(out, literal_drop(values, own, 0.6, end))
        (found,) = torch.autograd.grad(out, values, gradient)
        assert torch.equal(found, literal_drop(gradient, own, 0.6, start))


@pytest.mark.usefixtures("poisoned")
@kinds
@pytest.mark.parametrize(("groups", "units"), [(4, 350), (4, 100), (1, 400), (2, 7), (1, 1), (3, 6)])
def test_a_weight_gradient_is_read_as_it_lies(start, end, groups, units):
    shape = (groups, 4, units, units)
    gradient = weight_gradient_like(torch.empty(shape, dtype=start, device="cuda"))
    gradient.copy_(randoms(*shape, dtype=start))
    mask = draw_mask(shape, 0.5, torch.device("cuda"), generator())
    out = backends.run("drop", gradient, mask, 0.5, end)
    assert out.is_contiguous()
    assert torch.equal(out, literal_drop(gradient, mask, 0.5, end))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("dtype", [FLOAT, BRAIN])
def test_strides_and_addresses_of_every_kind(dtype):
    storage = randoms(4000, dtype=dtype)
    mask = draw_mask((3, 4, 6, 6), 0.5, torch.device("cuda"), generator())
    plain = storage[:432].view(3, 4, 6, 6)
    views = [
        storage[1:433].view(3, 4, 6, 6),  # begins between two packs
        plain.transpose(2, 3),  # the last stride is not 1
        storage[:6].expand(3, 4, 6, 6),  # one row for all
        storage[0].expand(3, 4, 6, 6),  # one number for all
        storage[:864].view(6, 4, 6, 6)[::2],
        storage[: 3 * 4 * 6 * 7].view(3, 4, 6, 7)[..., 1:],  # rows begin anywhere
    ]
    for values in views:
        for given in (mask, mask.transpose(2, 3), mask[:1]):
            expected = literal_drop(values, given, 0.5, FLOAT)
            assert torch.equal(backends.run("drop", values, given, 0.5, FLOAT), expected)


def test_nothing_to_drop_and_dtypes_without_a_kernel():
    mask = draw_mask((4, 3), 0.5, torch.device("cuda"), generator())
    assert backends.run("drop", torch.empty(0, 3, device="cuda"), mask[:0], 0.5, BRAIN).shape == (0, 3)
    for start, end in ((torch.float64, torch.float64), (HALF, BRAIN), (BRAIN, torch.float64)):
        values = randoms(4, 3, dtype=start)
        expected = torch.where(mask.bool(), values.double() * 2, 0.0)
        assert backends.run("drop", values, mask, 0.5, end).dtype == end
        found = backends.run("drop", values, mask, 0.5, end).double()
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", [FLOAT, HALF])
def test_opcheck_of_drop(dtype):
    mask = draw_mask((2, 4, 6, 6), 0.5, torch.device("cuda"), generator())
    values = randoms(2, 4, 6, 6, dtype=FLOAT).requires_grad_()
    strided = weight_gradient_like(values).copy_(values.detach()).requires_grad_()
    for given in (values, strided):
        checks = torch.library.opcheck(torch.ops.torch_pru.drop, (given, mask, 0.5, dtype, "cuda"))
        assert set(checks.values()) == {"SUCCESS"}


# ---------------------------------------------------------------------- masks


def test_a_mask_does_not_depend_on_the_dtype_it_is_drawn_in():
    mask = draw_mask((100_000,), 0.6, torch.device("cuda"), generator(5))
    assert set(mask.unique().tolist()) == {0, 1}
    assert abs(mask.float().mean().item() - 0.6) < 5 * (0.24 / 100_000) ** 0.5
    for dtype in (FLOAT, BRAIN):
        drawn = torch.empty(100_000, device="cuda", dtype=dtype).bernoulli_(0.6, generator=generator(5))
        assert torch.equal(drawn, mask.to(dtype))


@pytest.mark.parametrize("dtype", [FLOAT, HALF, BRAIN])
@pytest.mark.parametrize("shared", [False, True])
def test_masks_of_two_processes_are_those_of_one(dtype, shared):
    ones = torch.ones(5, 6, 7, device="cuda", dtype=dtype)
    whole = Masks(generator()).dropout(ones, 0.4, shared=shared)
    parts = [
        Masks(generator(), batch=6, first=first).dropout(ones[:, :3], 0.4, shared=shared) for first in (0, 3)
    ]
    assert torch.equal(torch.cat(parts, dim=1), whole)
    assert len(whole.unique()) == 2
    assert bool((whole == whole[:1]).all()) == shared


def test_replays_of_dropout_and_weight_drop_differ():
    own = generator()
    pru = PRU(8, 8, weight_drop=0.5, init="lstm", levels=2, groups=4).cuda()
    pru.generator = own
    masks, ones = Masks(own), torch.ones(3, 4, 8, device="cuda")
    states = torch.ones(1, 4, 8, device="cuda"), torch.ones(1, 4, 8, device="cuda")

    def run() -> tuple[Tensor, Tensor]:
        with torch.autocast("cuda", BRAIN):
            return pru(ones, states)[0].float(), masks.dropout(ones, 0.5, shared=True)

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(own)
    with torch.cuda.graph(graph):
        output, dropped = run()
    seen = []
    for _ in range(4):
        graph.replay()
        seen.append((output.clone(), dropped.clone()))
    for one in range(4):
        for other in range(one):
            assert not torch.equal(seen[one][0], seen[other][0])
            assert not torch.equal(seen[one][1], seen[other][1])


# ---------------------------------------------------------------------- weight drop in a layer


def gradients_of(pru: PRU, x: Tensor, states: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    y, (h, c) = pru(x, states)
    loss = y.double().square().sum() + (h.double() * 0.3).sum() + c.double().square().sum()
    names, parameters = zip(*pru.named_parameters(), strict=True)
    return {"y": y.detach()} | dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


@pytest.mark.parametrize(("dtype", "bound"), [(HALF, 5e-3), (BRAIN, 3e-2)])
@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize(
    "options", [{"groups": 4}, {"groups": 1}, {"groups": 4, "bidirectional": True}], ids=str
)
def test_weight_drop_beside_float64_on_the_same_mask(dtype, bound, autocast, options):
    torch.manual_seed(4)
    exact = PRU(20, 40, init="lstm", input_transform="linear", **options).cuda().to(dtype).double()
    dropping = PRU(20, 40, init="lstm", input_transform="linear", weight_drop=0.5, **options)
    dropping = dropping.to("cuda", FLOAT if autocast else dtype)
    dropping.load_state_dict(exact.state_dict())
    dropping.generator = generator(9)
    own = generator(9)
    kept = {}
    with torch.no_grad():
        for name, weight in exact.named_parameters():
            if name.startswith("weight_hh"):
                kept[name] = draw_mask(weight.shape, 0.5, weight.device, own)
                weight.mul_(kept[name] * 2)
    x = randoms(6, 5, 20, dtype=dtype)
    rows = len(exact.specs)
    h0, c0 = randoms(rows, 5, 40, dtype=dtype), randoms(rows, 5, 40, dtype=dtype)
    states = h0, c0.float() if autocast else c0
    wanted = gradients_of(exact, x.double(), tuple(state.double() for state in states))
    with torch.autocast("cuda", dtype, enabled=autocast):
        found = gradients_of(dropping, x, states)
    assert kept
    for name, expected in wanted.items():
        if name in kept:
            expected = expected * (kept[name] * 2)
            assert (found[name][kept[name] == 0] == 0).all()
        assert (found[name] - expected).norm() <= bound * expected.norm(), name
    for name, parameter in dropping.named_parameters():
        assert found[name].dtype == parameter.dtype


def test_weight_drop_in_float32_is_the_plain_product_bit_for_bit():
    dropping = PRU(20, 1400, weight_drop=0.3).cuda()
    dropping.generator = generator(7)
    weight = dropping.weight_hh_l0
    (found,) = dropping._dropped((weight,))
    mask = torch.empty_like(weight).bernoulli_(0.7, generator=generator(7))
    assert torch.equal(found, weight * (mask / 0.7))


@pytest.mark.parametrize("precision", [FLOAT, BRAIN])
def test_one_graph_with_weight_drop(precision):
    torch._dynamo.reset()
    pru = PRU(8, 16, weight_drop=0.5, levels=2, groups=4).cuda()
    compiled = torch.compile(pru, fullgraph=True, backend="aot_eager")
    x = torch.randn(4, 2, 8, device="cuda")
    states = torch.randn(1, 2, 16, device="cuda"), torch.randn(1, 2, 16, device="cuda")
    with torch.autocast("cuda", BRAIN, enabled=precision == BRAIN):
        one, two = compiled(x, states)[0], compiled(x, states)[0]
    assert not torch.equal(one, two)
    one.float().square().sum().backward()
    gradient = pru.weight_hh_l0.grad
    assert 0.2 < (gradient == 0).float().mean() < 0.8
    torch._dynamo.reset()


# ---------------------------------------------------------------------- the recurrence's tail


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("dtype", [FLOAT, HALF, BRAIN])
@pytest.mark.parametrize("initial", [FLOAT, HALF, BRAIN])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("steps", "batch", "groups", "units"), [(1, 1, 1, 2), (5, 3, 2, 6), (4, 7, 4, 350), (9, 20, 1, 1000)]
)
def test_the_tail(dtype, initial, reverse, steps, batch, groups, units):
    out, h0 = (
        randoms(steps, batch, groups * units, dtype=dtype),
        randoms(batch, groups * units, dtype=initial),
    )
    parts = randoms(24, groups * units, 4, dtype=FLOAT)
    some = torch.randint(0, steps + 1, (batch,), device="cuda", generator=generator(3))
    for lengths in (None, some):
        before, dbias = passes.backward_tail(out, h0, parts, groups, lengths, reverse)
        assert before.dtype == (HALF if dtype == FLOAT else dtype)
        expected = hidden_before(out, h0, groups, lengths, reverse).to(before.dtype)
        assert torch.equal(before[..., :units], expected)
        torch.testing.assert_close(dbias[0].double(), parts.double().sum(0).t(), rtol=1e-4, atol=1e-4)
        assert dbias.is_contiguous()
        again = passes.backward_tail(out, h0, parts, groups, lengths, reverse)
        assert torch.equal(again[0][..., :units], before[..., :units])
        assert torch.equal(again[1], dbias)
        before, _ = passes.backward_tail(out, None, parts, groups, lengths, reverse)
        expected = hidden_before(out, torch.zeros_like(h0), groups, lengths, reverse).to(before.dtype)
        assert torch.equal(before[..., :units], expected)


@pytest.mark.parametrize("weight_dtype", [FLOAT, HALF])
@pytest.mark.parametrize(("groups", "units"), [(2, 6), (1, 16)])
def test_opcheck_of_the_fused_recurrence(weight_dtype, groups, units):
    """The weight's gradient has the strides that compilers are told."""
    problem = make_problem(4, 3, groups, units, HALF)
    inputs = problem.inputs
    inputs["weight"] = inputs["weight"].to(weight_dtype)
    inputs["bias"], inputs["h0"] = inputs["bias"].float(), inputs["h0"].float()
    assert cuda.recurrence_reason(RecurrenceCall(**inputs, lengths=None), eager=True) is None
    out, _, _, activations, cells = layer.recurrence_forward(*inputs.values(), None, False, True, "cuda")
    kept = (inputs["weight"], inputs["h0"], inputs["c0"], out, activations, cells, None, False, "cuda")
    arguments = (*problem.grads, *kept)
    gradient = layer.recurrence_backward(*arguments)[1]
    assert gradient.dtype == weight_dtype
    assert not gradient.is_contiguous()
    checks = torch.library.opcheck(torch.ops.torch_pru.recurrence_backward, arguments)
    assert set(checks.values()) == {"SUCCESS"}
