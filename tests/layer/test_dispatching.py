"""Who sees the operators of this package, and that nobody else waits for the dispatcher."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from torch_pru import PRU
from torch_pru.ops import layer, native
from torch_pru.ops.folding import pooling_counts
from torch_pru.ops.operators import is_eager

from .comparing import paper

CPU = torch.device("cpu")

OPERATORS = {"loop": "recurrence", "native": "cpu_layer"}


@pytest.fixture(params=OPERATORS)
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend of a CPU that is an operator."""
    reason = native.missing_reason()
    if request.param == "native" and reason is not None:
        pytest.skip(reason)
    return request.param


class Noting(TorchDispatchMode):
    """A mode that notes the operators of this package."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        if "torch_pru" in str(function):
            self.seen.append(str(function))
        return function(*arguments, **keywords or {})


class OwnKind(Tensor):
    """A tensor with something of its own."""


def forward_and_backward(pru: PRU) -> list[Tensor]:
    x = torch.linspace(-1, 1, 96).view(4, 3, 8).requires_grad_()
    y = pru(x)[0]
    return [y.detach(), *torch.autograd.grad(y.square().sum(), [x, *pru.parameters()])]


def test_a_mode_sees_them_and_changes_nothing(backend: str):
    pru, noting = PRU(8, 8, levels=2, groups=4, backend=backend), Noting()
    expected = forward_and_backward(pru)
    with noting:
        found = forward_and_backward(pru)
    name = f"torch_pru.{OPERATORS[backend]}"
    assert noting.seen == [f"{name}.default", f"{name}_backward.default"]
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_without_anybody_who_watches_the_dispatcher_is_not_called(
    backend: str, monkeypatch: pytest.MonkeyPatch
):
    pru = PRU(8, 8, levels=2, groups=4, backend=backend)
    expected = forward_and_backward(pru)
    loop = (layer.recurrence_forward, layer.recurrence_backward)
    for operator in (native.operators.forward, native.operators.backward) if backend == "native" else loop:
        monkeypatch.setattr(operator, "_dispatched", None)
    torch.testing.assert_close(forward_and_backward(pru), expected, rtol=0, atol=0)


@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_a_tracer_keeps_them_whole(pre_dispatch: bool, backend: str):
    pru = PRU(8, 8, levels=2, groups=4, backend=backend)
    graph = make_fx(lambda x: pru(x)[0], pre_dispatch=pre_dispatch)(torch.randn(4, 3, 8))
    assert sum(OPERATORS[backend] in str(node.target) for node in graph.graph.nodes) == 1


def test_tensors_without_data():
    with FakeTensorMode():
        assert PRU(8, 16, levels=2, groups=4)(torch.randn(4, 3, 8))[0].shape == (4, 3, 16)


def test_what_a_mode_or_a_transform_computes_is_not_kept():
    options = {"context_transform": "pyramidal", "backend": "reference"}
    x, size = torch.randn(4, 3, 24), 24  # a size that no other test has: nothing of it is kept yet
    with FakeTensorMode():
        PRU(size, size, **paper(options))(torch.randn(4, 3, size))
    pru = PRU(size, size, **paper(options))
    with FakeTensorMode(allow_non_fake_inputs=True):
        pru(torch.randn(4, 3, size))
    slopes = torch.func.grad(lambda x: pru(x)[0].square().sum())(x)
    x.requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(pru(x)[0].square().sum(), x)[0], slopes)
    assert not torch._C._functorch.is_gradtrackingtensor(pooling_counts(size, (3,), CPU, torch.float32))
    with FakeTensorMode():  # nor is what is kept used there
        PRU(size, size, **paper(options))(torch.randn(4, 3, size))


def test_on_meta_no_step_is_made(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(layer.recurrence_forward, "_run", None)
    y = PRU(8, 16, device="meta", levels=2, groups=4)(torch.empty(400, 3, 8, device="meta"))[0]
    assert y.shape == (400, 3, 16)
    assert y.is_meta


def test_batched_gradients(backend: str):
    """One backward pass for several gradients, by a ``vmap`` that is not ``torch.func``'s."""
    pru, x = PRU(8, 8, levels=2, groups=4, backend=backend), torch.randn(4, 3, 8, requires_grad=True)
    y = pru(x)[0]
    grads = torch.randn(2, *y.shape)
    found = torch.autograd.grad(y, x, grads, is_grads_batched=True, retain_graph=True)[0]
    torch.testing.assert_close(found, torch.stack([torch.autograd.grad(y, x, g, True)[0] for g in grads]))


def test_no_gradient_where_autograd_is_left_out():
    """As inside of an operator that somebody else has made of a PRU."""
    pru, x = PRU(8, 8, levels=2, groups=4), torch.randn(4, 3, 8)
    with torch._C._AutoDispatchBelowAutograd():
        assert not pru(x)[0].requires_grad


@pytest.mark.parametrize("trained", [False, True])
def test_the_operator_refuses_forward_gradients(trained: bool):
    pru, x = PRU(8, 8, backend="loop", levels=2, groups=4).requires_grad_(trained), torch.randn(4, 3, 8)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="jvp"):
        pru(forward_ad.make_dual(x, torch.ones_like(x)))


def test_a_profiler_names_them(backend: str):
    pru = PRU(8, 8, levels=2, groups=4, backend=backend)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        pru(torch.randn(4, 3, 8))[0].sum().backward()
    names = {event.key for event in profile.key_averages()}
    name = f"torch_pru::{OPERATORS[backend]}"
    assert {name, f"{name}_backward"} <= names


def test_a_function_mode_sees_them(backend: str):
    seen: list[str] = []

    class Noting(TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), keywords=None):
            seen.append(str(function))
            return function(*arguments, **keywords or {})

    with Noting():
        PRU(8, 8, levels=2, groups=4, backend=backend)(torch.randn(4, 3, 8))
    assert f"torch_pru.{OPERATORS[backend]}.default" in seen


def under_vmap() -> bool:
    seen: list[bool] = []

    def note(x: Tensor) -> Tensor:
        seen.append(not is_eager((x,)))
        return x

    torch.func.vmap(note)(torch.ones(2))
    return seen[0]


def under_trace() -> bool:
    seen: list[bool] = []

    def note(x: Tensor) -> Tensor:
        seen.append(not is_eager((x,)))
        return x + 1

    torch.jit.trace(note, (torch.ones(2),), check_trace=False)
    return seen[0]


def beside_its_own_kind() -> bool:
    return not is_eager((torch.ones(2), [torch.ones(2).as_subclass(OwnKind)]))


@pytest.mark.filterwarnings("ignore:.*jit.trace.*")
@pytest.mark.parametrize("watched", [under_vmap, under_trace, beside_its_own_kind])
def test_others_who_watch(watched: Callable[[], bool]):
    assert watched()


def test_nobody_watches():
    arguments = (
        torch.ones(2),
        torch.nn.Parameter(torch.ones(2)),
        [torch.ones(2)],
        None,
        1,
        True,
        0.5,
        "loop",
    )
    assert is_eager((*arguments, torch.float16))
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert is_eager(arguments)
