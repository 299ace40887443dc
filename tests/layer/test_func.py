"""PRU under ``torch.func``, with tangents, and traced: the same values, and derivatives that are right."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jacfwd, jacrev, jvp, linearize, stack_module_state, vmap

from torch_pru import PRU, GroupedLinear, PyramidalTransform

from .comparing import assert_all_close, gradients, paper, set_backend

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
few_and_many_rows = pytest.mark.parametrize("batch", [3, 30], ids=["few rows", "many rows"])
frozen_or_not = pytest.mark.parametrize("trained", [True, False], ids=["trained", "frozen"])


def small_layer(**options: object) -> PRU:
    return PRU(4, 4, groups=2, init="lstm", **options)


def exact_jacobian(pru: PRU, x: Tensor) -> Tensor:
    """Of the output by the input, in float64: by backward passes through the recurrence of the paper."""
    exact = set_backend(copy.deepcopy(pru).double(), "reference")
    return torch.autograd.functional.jacobian(lambda x: exact(x)[0], x.double()).float()


def test_a_gradient_for_each_column():
    pru, x = PRU(8, 16, levels=2, groups=4), torch.randn(4, 3, 8)

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(pru, weights, (x,))[0].square().sum()

    weights = dict(pru.named_parameters())
    found = vmap(grad(loss), in_dims=(None, 1))(weights, x)
    for column in range(3):
        one = torch.autograd.grad(loss(weights, x[:, column]), list(weights.values()))
        torch.testing.assert_close([gradient[column].detach() for gradient in found.values()], list(one))


@few_and_many_rows
@frozen_or_not
def test_jacobians(batch: int, trained: bool):
    pru, x = small_layer().requires_grad_(trained), torch.randn(3, batch, 4)
    expected = exact_jacobian(pru, x)
    for jacobian in (jacrev, jacfwd):
        torch.testing.assert_close(jacobian(lambda x: pru(x)[0])(x).detach(), expected, **CLOSE)
    tangent = torch.randn_like(x)
    _, found = jvp(lambda x: pru(x)[0], (x,), (tangent,))
    torch.testing.assert_close(found.detach(), (expected * tangent).sum((-3, -2, -1)), **CLOSE)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("options", [{}, {"context_transform": "pyramidal", "bias": False}], ids=str)
@few_and_many_rows
def test_an_ensemble_has_the_gradients_of_its_models(batch: int, options: dict, compiled: bool):
    models = [PRU(8, 8, init="lstm", **paper(options)) for _ in range(3)]
    x, skeleton = torch.randn(4, batch, 8), copy.deepcopy(models[0]).to("meta")
    weights, _ = stack_module_state(models)
    run = vmap(lambda weights: functional_call(skeleton, weights, (x,))[0])
    torch._dynamo.reset()
    together = (torch.compile(run, backend="aot_eager") if compiled else run)(weights)
    alone = torch.stack([model(x)[0] for model in models])
    torch.testing.assert_close(together, alone)
    own = {f"{i} {name}": p for i, model in enumerate(models) for name, p in model.named_parameters()}
    by_model = gradients([alone], **own)
    expected = {name: torch.stack([by_model[f"{i} {name}"] for i in range(3)]) for name in weights}
    assert_all_close(gradients([together], **weights), expected, **CLOSE)


@pytest.mark.usefixtures("poisoned")
@few_and_many_rows
@frozen_or_not
def test_columns_of_their_own_hand_the_gradient_back(batch: int, trained: bool):
    """``vmap`` over the columns, and over it a backward pass that ``vmap`` knows nothing of."""
    pru = PRU(8, 8, init="lstm", levels=2, groups=4).requires_grad_(trained)
    x = torch.randn(batch, 4, 8, requires_grad=True)  # each column has as many rows as there are steps
    found = gradients([vmap(lambda x: pru(x)[0], in_dims=1, out_dims=1)(x)], x=x)
    assert_all_close(found, gradients([pru(x)[0]], x=x), **CLOSE)


@few_and_many_rows
@frozen_or_not
@pytest.mark.parametrize("make", [PyramidalTransform, lambda n, m: GroupedLinear(n, m, groups=1)])
def test_tangents_go_through_a_transform(make, batch: int, trained: bool):
    transform = make(8, 8).requires_grad_(trained)
    x, tangent = torch.randn(3, batch, 8), torch.randn(3, batch, 8)
    with forward_ad.dual_level():
        result = forward_ad.unpack_dual(transform(forward_ad.make_dual(x, tangent)))
    expected = transform(x + tangent) - transform(x)  # it is linear but for its bias
    torch.testing.assert_close(result.tangent, expected, **CLOSE)


@few_and_many_rows
@frozen_or_not
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_tangents_go_through_a_layer(backend: str, batch: int, trained: bool):
    pru = small_layer(backend=backend).requires_grad_(trained)
    x, tangent = torch.randn(3, batch, 4), torch.randn(3, batch, 4)
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(pru(forward_ad.make_dual(x, tangent))[0]).tangent
    expected = (exact_jacobian(pru, x) * tangent).sum((-3, -2, -1))
    torch.testing.assert_close(found, expected, **CLOSE)


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")
def test_jacobians_by_tangents():
    pru, x = small_layer(), torch.randn(2, 3, 4)
    expected = exact_jacobian(pru, x)
    jacobian = torch.autograd.functional.jacobian
    found = jacobian(lambda x: pru(x)[0], x, strategy="forward-mode", vectorize=True)
    torch.testing.assert_close(found.detach(), expected, **CLOSE)
    tangent = torch.randn_like(x)
    y, slope = linearize(lambda x: pru(x)[0], x)
    torch.testing.assert_close(y, pru(x)[0])
    torch.testing.assert_close(slope(tangent).detach(), (expected * tangent).sum((-3, -2, -1)), **CLOSE)


def loss_of_weights(pru: PRU, x: Tensor) -> Callable[[dict[str, Tensor]], Tensor]:
    """As a function of the weights, with the masks of one seed."""

    def loss(weights: dict[str, Tensor]) -> Tensor:
        pru.generator = torch.Generator().manual_seed(1)
        return functional_call(pru, weights, (x,))[0].square().sum()

    return loss


@pytest.mark.parametrize("context", ["grouped", "pyramidal"])
def test_derivatives_under_weight_drop(context: str):
    pru = PRU(8, 8, 2, init="lstm", weight_drop=0.5, **paper({"context_transform": context}))
    loss, weights = loss_of_weights(pru, torch.randn(4, 3, 8)), dict(pru.named_parameters())
    expected = dict(zip(weights, torch.autograd.grad(loss(weights), list(weights.values())), strict=True))
    found = grad(loss)(weights)
    assert_all_close({name: slope.detach() for name, slope in found.items()}, expected, **CLOSE)
    tangents = {name: torch.randn_like(weight) for name, weight in weights.items()}
    with forward_ad.dual_level():
        duals = {name: forward_ad.make_dual(weights[name].detach(), tangents[name]) for name in weights}
        slope = forward_ad.unpack_dual(loss(duals)).tangent
    torch.testing.assert_close(slope, sum((expected[name] * tangents[name]).sum() for name in weights))


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_masks_under_vmap(randomness: str):
    pru, x = (
        PRU(8, 8, init="lstm", weight_drop=0.5, levels=2, groups=4),
        torch.randn(4, 3, 8).expand(2, 4, 3, 8),
    )
    weights = dict(pru.named_parameters())
    slopes = vmap(lambda x: grad(loss_of_weights(pru, x))(weights), randomness=randomness)(x)
    one, two = slopes["weight_hh_l0"].detach()
    kept = one != 0
    assert 0.2 < kept.float().mean() < 0.8
    assert torch.equal(kept, two != 0) == (randomness == "same")
    one, two = vmap(lambda x: pru(x)[0], randomness=randomness)(x)
    assert torch.equal(one, two) == (randomness == "same")


traced = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")


@few_and_many_rows
@frozen_or_not
@traced
def test_a_trace(batch: int, trained: bool):
    pru, x = PRU(8, 8, 2, levels=2, groups=4).requires_grad_(trained), torch.randn(4, batch, 8)
    trace, other = torch.jit.trace(pru, (x,)), torch.randn(7, batch + 1, 8, requires_grad=True)
    torch.testing.assert_close(trace(other), pru(other))
    wanted = {"x": other} | (dict(pru.named_parameters()) if trained else {})
    assert_all_close(gradients([trace(other)[0]], **wanted), gradients([pru(other)[0]], **wanted), **CLOSE)


@traced
def test_a_trace_takes_any_number_of_steps():
    pru = PRU(8, 8, levels=2, groups=4)
    trace = torch.jit.trace(pru, (torch.randn(9, 3, 8),))
    for steps in (1, 4, 5, 9, 40):
        x = torch.randn(steps, 3, 8)
        torch.testing.assert_close(trace(x), pru(x))
