"""Units run as one LSTM on a CPU: the same numbers as in the loop, and only where that serves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from torch_pru import PRU, PRUError
from torch_pru.ops.cpu import lstm

from .comparing import paper

pytestmark = pytest.mark.usefixtures("without_compiled_kernels")  # they would run every one of these layers


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of steps of every layer and direction that ran as an LSTM."""
    found: list[int] = []
    inner = lstm.run

    def run(x: Tensor, *arguments):
        found.append(x.shape[0])
        return inner(x, *arguments)

    monkeypatch.setattr(lstm, "run", run)
    return found


def results(layer: PRU, x: Tensor | PackedSequence, hx: tuple[Tensor, Tensor] | None) -> list[Tensor]:
    """Outputs, states and all gradients of a loss that weighs every element differently."""
    torch.manual_seed(5)  # the masks of weight drop
    y, (h, c) = layer(x, hx)
    y = y.data if isinstance(y, PackedSequence) else y
    loss = sum((part * torch.linspace(-1, 2, part.numel()).view_as(part)).sum() for part in (y, h, c))
    wanted = [*layer.parameters(), *(hx or ()), *([x] if isinstance(x, Tensor) else [])]
    return [y, h, c, *torch.autograd.grad(loss, wanted)]


SETTINGS = [
    {},
    {"levels": 3, "bias": False},
    {"pooling": "skip", "weight_drop": 0.4},
    {"input_transform": "grouped"},
    {"input_groups": 3, "levels": 2, "residual": False},
    {"context_transform": "pyramidal", "levels": 2, "weight_drop": 0.3},
    {"context_transform": "linear", "bidirectional": True},
    {"num_layers": 2, "bidirectional": True, "weight_drop": 0.2},
    {"levels": 1, "groups": 1, "residual": False, "num_layers": 2},
]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("settings", SETTINGS)
def test_the_same_numbers_as_in_the_loop(settings: dict, packed: bool, runs: list[int]) -> None:
    torch.manual_seed(0)
    as_lstm, loop = (
        PRU(16, 16, init="lstm", backend=backend, **paper(settings)) for backend in ("auto", "loop")
    )
    loop.load_state_dict(as_lstm.state_dict())
    cells = len(as_lstm.specs)
    columns = [torch.randn(steps, 16) for steps in (11, 17, 9)]
    x = pack_sequence(columns, enforce_sorted=False) if packed else torch.randn(13, 3, 16, requires_grad=True)
    for hx in (None, tuple(torch.randn(cells, 3, 16, requires_grad=True) for _ in range(2))):
        found, expected = results(as_lstm, x, hx), results(loop, x, hx)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert runs == [17 if packed else 13] * 2 * cells


def test_where_it_is_quicker(runs: list[int]) -> None:
    few, many, one_group = PRU(16, 16, levels=2, groups=4), PRU(256, 256), PRU(256, 256, groups=1)
    for layer, steps in ((few, 8), (one_group, 32)):
        layer(torch.randn(steps, 2, layer.input_size))
        layer(torch.randn(steps - 1, 2, layer.input_size))
    many(torch.randn(40, 2, 256))
    assert runs == [8, 32]
    with torch.no_grad():
        many(torch.randn(31, 2, 256))
        many(torch.randn(40, 2, 256))
        PRU(260, 260)(torch.randn(40, 2, 260))
    assert runs == [8, 32, 40]


def test_where_it_cannot_serve(runs: list[int]) -> None:
    x, layer = torch.randn(20, 2, 16), PRU(16, 16, levels=2, groups=4)
    PRU(16, 16, backend="loop", levels=2, groups=4)(x)
    PRU(16, 16, pooling="max", levels=2, groups=4)(x)
    PRU(16, 16, dtype=torch.float64, levels=2, groups=4)(x.double())
    layer(x[:, :0])
    with torch.autocast("cpu", torch.bfloat16):
        layer(x)
    with torch.backends.mkldnn.flags(enabled=False):
        layer(x)
    torch.func.grad(lambda x: layer(x)[0].sum())(x)
    torch.func.vmap(lambda x: layer(x)[0])(x.unsqueeze(2))
    torch.compile(layer, backend="eager", fullgraph=True)(x)
    assert runs == []
    layer(x)
    assert runs == [20]


@pytest.mark.parametrize("training", [True, False])
def test_a_second_derivative_is_refused_in_words(training: bool, runs: list[int]) -> None:
    x = torch.randn(20, 2, 16, requires_grad=True)
    layer = PRU(16, 16, levels=2, groups=4).train(training)
    (gradient,) = torch.autograd.grad(layer(x)[0].square().sum(), x, create_graph=True)
    with pytest.raises(PRUError, match=r"double backward .* backend='reference'"):
        gradient.sum().backward()
    assert runs == [20]
    layer(x)[0].sum().backward()
    assert x.grad is not None


def test_a_parametrized_weight_gets_its_gradient(runs: list[int]) -> None:
    layer = PRU(16, 16, init="lstm", levels=2, groups=4)
    torch.nn.utils.parametrizations.weight_norm(layer, "weight_hh_l0")
    layer(torch.randn(20, 2, 16))[0].sum().backward()
    assert runs == [20]
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in layer.parameters())
