"""A call computes with the weights as they are, however they were changed since the last one."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, parametrize, vector_to_parameters

from torch_pru import PRU, PRUCell
from torch_pru.ops import torch_private as private

HIDDEN = 24
Result = tuple[Tensor, Tensor, Tensor]


def of_layer(module: nn.Module, x: Tensor, h: Tensor, c: Tensor) -> Result:
    out, (hn, cn) = module(x, (h.unsqueeze(0), c.unsqueeze(0)))
    return out, hn, cn


def of_cell(module: nn.Module, x: Tensor, h: Tensor, c: Tensor) -> Result:
    hn, cn = module(x[0], (h, c))
    return hn, hn, cn


MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[..., Result]]] = {
    "layer": (lambda: PRU(HIDDEN, HIDDEN, levels=2, groups=2), of_layer),
    "cell": (lambda: PRUCell(HIDDEN, HIDDEN, levels=2, groups=2), of_cell),
}


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def step_of(optimizer_type: type[torch.optim.Optimizer], **options) -> Callable[[nn.Module], None]:
    def change(module: nn.Module) -> None:
        optimizer = optimizer_type(module.parameters(), lr=0.1, **options)
        for parameter in module.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()

    return change


def another(module: nn.Module) -> dict[str, Tensor]:
    return {name: value + 0.1 for name, value in module.state_dict().items()}


def new_data(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.data = parameter.data * 1.5


def data_in_place(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.data.add_(0.1)


@torch.no_grad()
def copied(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.copy_(torch.randn_like(parameter))


@torch.no_grad()
def arithmetic(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.mul_(1.5).add_(0.01)


@torch.no_grad()
def one_element(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.view(-1)[0] += 1.0


def many_at_once(module: nn.Module) -> None:
    with torch.no_grad():
        private.foreach_mul_(list(module.parameters()), 1.5)


def through_numpy(module: nn.Module) -> None:
    """Nothing in PyTorch counts this change."""
    for parameter in module.parameters():
        parameter.detach().numpy()[...] *= 1.5


def as_a_vector(module: nn.Module) -> None:
    vector_to_parameters(parameters_to_vector(module.parameters()) + 0.1, module.parameters())


def new_parameters(module: nn.Module) -> None:
    for name, parameter in list(module.named_parameters()):
        setattr(module, name, nn.Parameter(parameter.detach() + 0.1))


def parametrized(module: nn.Module) -> None:
    for name, _ in list(module.named_parameters()):
        parametrize.register_parametrization(module, name, Doubled())


def unparametrized(module: nn.Module) -> None:
    parametrized(module)
    for name in list(module.parametrizations):  # type: ignore[union-attr]
        parametrize.remove_parametrizations(module, name)


WAYS: dict[str, Callable[[nn.Module], object]] = {
    "SGD": step_of(torch.optim.SGD),
    "SGD, one tensor at a time": step_of(torch.optim.SGD, foreach=False),
    "SGD, fused": step_of(torch.optim.SGD, fused=True),
    "Adam": step_of(torch.optim.Adam),
    "load_state_dict": lambda module: module.load_state_dict(another(module)),
    "load_state_dict, assigned": lambda module: module.load_state_dict(another(module), assign=True),
    "new .data": new_data,
    ".data in place": data_in_place,
    "copy_": copied,
    "arithmetic": arithmetic,
    "one element": one_element,
    "torch._foreach": many_at_once,
    "numpy": through_numpy,
    "vector_to_parameters": as_a_vector,
    "new parameters": new_parameters,
    "parametrized": parametrized,
    "parametrized for a while": unparametrized,
    "reset": lambda module: module.reset_parameters(),  # type: ignore[operator]
}


def built(name: str) -> tuple[nn.Module, Callable[..., Result], tuple[Tensor, Tensor, Tensor]]:
    """A module, how it is run, and what with: x (T, B, N), h and c (B, M)."""
    torch.manual_seed(0)
    build, run = MODULES[name]
    return build(), run, (torch.randn(3, 5, HIDDEN), torch.randn(5, HIDDEN), torch.randn(5, HIDDEN))


def assert_follows(
    module: nn.Module, run: Callable[..., Result], inputs: tuple[Tensor, ...], before: Result
) -> None:
    """The module computes what it does in float64 with its present weights, and not what it did before."""
    after = run(module, *inputs)
    exact = copy.deepcopy(module).double()
    exact.backend = "reference"  # type: ignore[assignment]
    expected = run(exact, *(each.double() for each in inputs))
    for mine, right, old in zip(after, expected, before, strict=True):
        torch.testing.assert_close(mine.double(), right, rtol=0, atol=1e-5)
        assert (mine - old).abs().max() > 1e-3


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("way", WAYS)
def test_the_next_call_follows(way: str, name: str, gradient: bool):
    module, run, inputs = built(name)
    with torch.set_grad_enabled(gradient):
        before = run(module, *inputs)
        assert all(torch.equal(*pair) for pair in zip(run(module, *inputs), before, strict=True))
    WAYS[way](module)
    with torch.set_grad_enabled(gradient):
        assert_follows(module, run, inputs, before)


@pytest.mark.parametrize("name", MODULES)
def test_a_change_of_what_a_parametrization_reads(name: str):
    module, run, inputs = built(name)
    parametrized(module)
    before = run(module, *inputs)
    arithmetic(module)
    assert_follows(module, run, inputs, before)


@pytest.mark.parametrize("name", MODULES)
def test_weights_of_a_functional_call(name: str):
    module, run, inputs = built(name)
    before, others = run(module, *inputs), another(module)
    found = run(lambda *given: torch.func.functional_call(module, others, given), *inputs)
    module.load_state_dict(others)
    for mine, right, old in zip(found, run(module, *inputs), before, strict=True):
        torch.testing.assert_close(mine, right)
        assert (mine - old).abs().max() > 1e-3
