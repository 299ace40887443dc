"""Code written for ``nn.LSTM`` does the right thing with a PRU in its place."""

from __future__ import annotations

import io
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.fx import symbolic_trace

import torch_pru
from torch_pru import PRU, PRUCell, PRUError, convert_lstm

STACKS = [
    {},
    {"num_layers": 2},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
    {"bias": False},
    {"proj_size": 8, "num_layers": 2, "bidirectional": True},
    {"proj_size": 4, "bias": False},
]
STRUCTURES = [
    {"levels": 2, "groups": 4},
    {"levels": 3, "groups": 2, "pooling": "skip"},
    {"levels": 2, "groups": 1, "input_groups": 3},  # uneven groups
    {"levels": 2, "context_transform": "pyramidal", "pool_window": 5},
    {"input_transform": "grouped", "groups": 4},
    {"levels": 1, "groups": 1},
]


def shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}


@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_keys_and_shapes_of_one_level_and_one_group_are_those_of_the_lstm(stack: dict):
    lstm, pru = nn.LSTM(24, 40, **stack), PRU(24, 40, **stack, levels=1, groups=1, residual=False)
    assert list(shapes(pru).items()) == list(shapes(lstm).items())
    assert list(pru.state_dict()) == list(lstm.state_dict())
    pru.load_state_dict(lstm.state_dict())
    x = torch.randn(9, 3, 24)
    torch.testing.assert_close(pru(x)[0], lstm(x)[0], rtol=1e-5, atol=1e-6)
    lstm.load_state_dict(pru.state_dict())
    for mine, theirs in zip(pru.all_weights, lstm.all_weights, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(mine, theirs, strict=True))
    assert all(map(torch.equal, pru._flat_weights, lstm._flat_weights))
    assert pru.mode == lstm.mode


def test_keys_of_a_cell_are_those_of_the_lstm_cell():
    cell, lstm_cell = PRUCell(24, 40, levels=1, groups=1), nn.LSTMCell(24, 40)
    assert list(shapes(cell).items()) == list(shapes(lstm_cell).items())


def test_names_and_shapes_of_levels_groups_and_directions():
    assert shapes(PRU(24, 40, levels=2, groups=4, bidirectional=True, pooling="convolution")) == {
        "weight_ih_l0_k1": (120, 24),
        "weight_ih_l0_k2": (40, 12),
        "weight_hh_l0": (160, 10),
        "bias_ih_l0": (160,),
        "bias_hh_l0": (160,),
        "pool_ih_l0_k2": (3,),
        "weight_ih_l0_k1_reverse": (120, 24),
        "weight_ih_l0_k2_reverse": (40, 12),
        "weight_hh_l0_reverse": (160, 10),
        "bias_ih_l0_reverse": (160,),
        "bias_hh_l0_reverse": (160,),
        "pool_ih_l0_k2_reverse": (3,),
    }
    assert shapes(PRU(8, 10, levels=1, groups=2, input_groups=3, bias=False)) == {
        "weight_ih_l0_g1": (16, 3),
        "weight_ih_l0_g2": (12, 3),
        "weight_ih_l0_g3": (12, 2),
        "weight_hh_l0": (40, 5),
    }


@pytest.mark.parametrize(
    ("sizes", "levels", "groups"),
    [
        ((1, 50), 1, 1),
        ((400, 1400), 2, 4),
        ((16, 64), 2, 2),
        ((14, 64), 1, 2),
        ((17, 128), 1, 4),
        ((64, 100), 2, 2),
        ((64, 63), 2, 1),
        ((16, 2), 1, 1),
        ((1, 64, 2), (1, 2), 2),
        ((16, 33, 3), (2, 1, 1), 1),
    ],
)
def test_what_auto_is_resolved_to(sizes: tuple[int, ...], levels: object, groups: object):
    pru = PRU(*sizes)
    assert (pru.levels, pru.groups) == (levels, groups)
    assert f"levels={levels!r}, groups={groups!r}" in repr(pru)
    pru(torch.randn(3, 2, sizes[0]))
    cell = PRUCell(*sizes[:2])
    assert cell.levels == (levels[0] if isinstance(levels, tuple) else levels)


@pytest.mark.parametrize("transform", ["linear", "grouped", "pyramidal"])
@pytest.mark.parametrize("context", ["linear", "grouped", "pyramidal"])
@pytest.mark.parametrize("split", ["halving", "equal"])
def test_auto_always_builds(transform: str, context: str, split: str):
    for input_size in (1, 2, 7, 15, 16, 18, 33, 96):
        for hidden_size in (1, 2, 3, 5, 16, 31, 64, 130):
            options = {"input_transform": transform, "context_transform": context}
            pru = PRU(input_size, hidden_size, 2, device="meta", **options)
            levels = [spec.levels for one in pru.specs for spec in (one.input, one.context)]
            if split == "equal" and max(levels) > 1 and hidden_size % 2 == 0:
                PRU(input_size, hidden_size, 2, level_split=split, device="meta", **options)


def usual_loop(module: nn.Module) -> dict[str, float]:
    """Initialize as many scripts do, and return the norm of each parameter by kind."""
    for name, parameter in module.named_parameters():
        if "weight_ih" in name:
            nn.init.xavier_uniform_(parameter)
        elif "weight_hh" in name:
            nn.init.orthogonal_(parameter)
        elif "bias" in name:
            nn.init.zeros_(parameter)
            quarter = parameter.numel() // 4
            parameter.data[quarter : 2 * quarter] = 1  # the forget gate
    return {name: parameter.norm().item() for name, parameter in module.named_parameters()}


def test_usual_initialization_loops_give_the_norms_of_an_lstm():
    torch.manual_seed(0)
    lstm, pru = nn.LSTM(96, 128), PRU(96, 128, levels=2, groups=4)
    expected, found = usual_loop(lstm), usual_loop(pru)
    for name in ("bias_ih_l0", "bias_hh_l0"):
        assert found[name] == expected[name]
    # Orthogonal: as many orthonormal columns as there are, 128 and 128/4.
    assert expected["weight_hh_l0"] ** 2 == pytest.approx(128, rel=1e-4)
    assert found["weight_hh_l0"] ** 2 == pytest.approx(32, rel=1e-4)
    # Xavier: the standard deviation depends on rows and columns only, and so it is that of the LSTM's rows.
    for name, size in (("weight_ih_l0_k1", 96), ("weight_ih_l0_k2", 48)):
        weight = pru.get_parameter(name).detach()
        bound = (6 / (weight.shape[0] + size)) ** 0.5
        assert weight.std() == pytest.approx(bound / 3**0.5, rel=0.05)
    spread = [weight.detach().std().item() for weight in (lstm.weight_ih_l0, pru.weight_ih_l0_k1)]
    assert spread[1] == pytest.approx(spread[0], rel=0.2)
    # A forget-gate slice of 1 in each bias, of every unit and level.
    i, f, g, o = (pru.bias_ih_l0 + pru.bias_hh_l0).detach().view(4, 128)
    assert (f == 2).all()
    assert not torch.stack([i, g, o]).any()


def test_weight_decay_by_dimensions_and_freezing_by_name():
    for rnn in (nn.LSTM(24, 40, 2), PRU(24, 40, 2, levels=2, groups=4)):
        decayed = {name for name, parameter in rnn.named_parameters() if parameter.dim() >= 2}
        assert decayed == {name for name, _ in rnn.named_parameters() if name.startswith("weight")}
        for name, parameter in rnn.named_parameters():
            parameter.requires_grad_("weight_hh" not in name and "_l0" not in name)
        rnn(torch.randn(5, 3, 24))[0].sum().backward()
        trained = {name for name, parameter in rnn.named_parameters() if parameter.grad is not None}
        assert {name.partition("_k")[0] for name in trained} == {"weight_ih_l1", "bias_ih_l1", "bias_hh_l1"}


@pytest.mark.parametrize("structure", STRUCTURES, ids=str)
@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_to_lstm(stack: dict, structure: dict):
    pru = PRU(16, 24, **stack, **structure, init="lstm", dtype=torch.float64).eval()
    lstm = pru.to_lstm()
    assert type(lstm) is nn.LSTM
    assert not lstm.training
    x = torch.randn(5, 3, 16, dtype=torch.float64)
    torch.testing.assert_close(lstm(x), pru(x))
    again = PRU.from_lstm(lstm)
    torch.testing.assert_close(again(x), pru(x))
    with torch.no_grad():
        for parameter in lstm.parameters():
            parameter.zero_()
    assert pru(x)[0].any()


def test_to_lstm_keeps_options_and_dtype_and_refuses_what_is_not_linear():
    pru = PRU(16, 16, 2, dropout=0.3, bidirectional=True, dtype=torch.bfloat16, levels=2, groups=4)
    lstm = pru.to_lstm()
    assert (lstm.dropout, lstm.training, lstm.weight_hh_l0.dtype) == (0.3, True, torch.bfloat16)
    with pytest.warns(UserWarning, match="no effect"):
        single = PRU(16, 16, dropout=0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        single.to_lstm()
    for pooling in ("max", "convolution"):
        with pytest.raises(PRUError, match=rf"pooling='{pooling}' is not linear"):
            PRU(16, 16, pooling=pooling).to_lstm()


def test_a_converted_layer_runs_where_an_lstm_runs():
    class Wrapped(nn.Module):  # a script needs a caller of the LSTM's overloaded forward
        def __init__(self, rnn: nn.LSTM) -> None:
            super().__init__()
            self.rnn = rnn

        def forward(self, x: Tensor) -> Tensor:
            return self.rnn(x)[0]

    lstm = PRU(16, 64, levels=2, groups=2).eval().to_lstm()
    x = torch.randn(5, 3, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(torch.jit.script(Wrapped(lstm))(x), lstm(x)[0])
        quantized = torch.ao.quantization.quantize_dynamic(nn.Sequential(lstm), {nn.LSTM})
    assert "Quantized" in type(quantized[0]).__name__ or "quantized" in type(quantized[0]).__module__


def model() -> nn.Module:
    inner = nn.ModuleDict({"rnn": nn.LSTM(32, 64, 2, batch_first=True), "norm": nn.LayerNorm(64)})
    return nn.ModuleDict({"encoder": inner, "decoder": nn.LSTM(64, 32), "head": nn.Linear(32, 5)})


def test_convert_lstm_keeps_the_function():
    lstms, lines = model(), []
    converted = convert_lstm(model(), report=lines.append)
    converted.load_state_dict(lstms.state_dict())
    x = torch.randn(3, 5, 32)
    torch.testing.assert_close(converted["encoder"]["rnn"](x), lstms["encoder"]["rnn"](x))
    assert [type(part) for part in converted.modules() if isinstance(part, PRU)] == [PRU, PRU]
    assert not any(isinstance(part, nn.LSTM) for part in converted.modules())
    assert [line.partition(":")[0] for line in lines] == ["encoder.rnn", "decoder", "total"]


def test_convert_lstm_with_options_reports_fewer_parameters():
    lines: list[str] = []
    converted = convert_lstm(model().double().eval(), levels=2, groups=2, report=lines.append)
    rnn = converted["encoder"]["rnn"]
    assert (rnn.levels, rnn.groups, rnn.num_layers, rnn.batch_first, rnn.training) == (2, 2, 2, True, False)
    assert rnn.weight_hh_l0.dtype == torch.float64
    before, after = (sum(p.numel() for p in one.parameters()) for one in (model(), converted))
    assert lines[-1] == f"total: {before:,} -> {after:,} parameters"
    assert after < 0.7 * before


def test_convert_lstm_without_an_lstm_and_with_sizes_that_do_not_fit():
    lines: list[str] = []
    convert_lstm(nn.Linear(3, 3), report=lines.append)
    assert lines == ["no nn.LSTM found; the model is unchanged"]
    with pytest.raises(PRUError, match=r"^encoder\.rnn: groups=5 does not divide hidden_size="):
        convert_lstm(model(), groups=5, report=None)


def test_convert_lstm_of_shared_layers_subclasses_and_a_lone_lstm(capsys: pytest.CaptureFixture[str]):
    class Own(nn.LSTM):
        pass

    shared = nn.LSTM(4, 6)
    both = convert_lstm(nn.ModuleList([shared, shared, Own(4, 6)]))
    assert both[0] is both[1]
    assert type(both[2]) is Own
    assert isinstance(convert_lstm(nn.LSTM(4, 6)), PRU)
    assert "0: 288 -> 288 parameters" in capsys.readouterr().out


@pytest.mark.parametrize("layers", [1, 2])
def test_states_can_be_detached_in_place(layers: int):
    pru, state = PRU(8, 8, layers), None
    for _ in range(2):
        y, state = pru(torch.randn(3, 2, 8), state)
        y.sum().backward()
        for part in state:
            part.detach_()


def test_numbers_of_numpy():
    pru = PRU(np.int64(8), np.int32(64), np.int64(2), bidirectional=1)
    assert (pru.hidden_size, pru.num_layers, pru.bidirectional) == (64, 2, True)
    assert PRUCell(np.int64(8), 16, bias=np.False_).bias is False
    assert {type(value) for value in (pru.input_size, pru.hidden_size, pru.num_layers)} == {int}
    assert PRU(32, 64, levels=np.int64(2), groups=np.int8(2)).groups == 2


def test_a_symbolic_trace_has_it_as_a_leaf():
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = PRU(8, 64), nn.Linear(64, 3)

        def forward(self, x: Tensor, h: Tensor, c: Tensor) -> Tensor:
            y, (h, c) = self.rnn(x, (h, c))
            return self.head(y) + c.sum()

    tagger = Tagger()
    traced = symbolic_trace(tagger)
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["rnn", "head"]
    arguments = torch.randn(5, 2, 8), torch.randn(1, 2, 64), torch.randn(1, 2, 64)
    assert torch.equal(traced(*arguments), tagger(*arguments))


@pytest.mark.parametrize("backend", ["auto", "loop", "reference"])
@pytest.mark.parametrize("steps", [3, 20])
def test_gradients_are_contiguous(backend: str, steps: int):
    pru = PRU(16, 64, 2, levels=2, groups=4, bidirectional=True, backend=backend)
    gradients = torch.autograd.grad(pru(torch.randn(steps, 2, 16))[0].sum(), list(pru.parameters()))
    assert all(gradient.is_contiguous() for gradient in gradients)


def test_hooks_that_only_read_do_no_harm():
    seen: list[str] = []
    pru = PRU(16, 64, 2)
    for part in pru.modules():
        part.register_forward_pre_hook(lambda module, given: seen.append("before"))
        part.register_forward_hook(lambda module, given, result: seen.append("after"))
        part.register_full_backward_hook(lambda module, inner, outer: seen.append("backward"))
    pru(torch.randn(3, 2, 16, requires_grad=True))[0].sum().backward()
    assert seen == ["before", "after", "backward"]


@pytest.mark.parametrize("make", [PRU, PRUCell, torch_pru.GroupedLinear, torch_pru.PyramidalTransform])
def test_a_whole_module_in_a_file(make: type[nn.Module]):
    module, x = make(16, 64), torch.randn(3, 16)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    with torch.serialization.safe_globals(torch_pru.SAFE_GLOBALS):
        loaded = torch.load(file, weights_only=True)
    torch.testing.assert_close(loaded(x), module(x), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_quantization_says_that_it_skips_the_layer():
    with pytest.warns(UserWarning, match=r"skips a PRU.*to_lstm"):
        torch.ao.quantization.quantize_dynamic(nn.Sequential(PRU(16, 64), nn.Linear(64, 4)))


def test_a_wide_layer_is_drawn_quickly_and_orthogonal():
    """A QR decomposition for 4096 features takes 20 seconds; what replaces it is orthogonal, too."""
    from torch_pru.initialize import draw_orthogonal

    torch.manual_seed(0)
    [matrix] = draw_orthogonal(1, 2500, 2200, torch.device("cpu"))
    torch.testing.assert_close(matrix.t() @ matrix, torch.eye(2200), rtol=0, atol=1e-5)
    scaled = matrix * 2500**0.5
    assert abs(scaled.mean()) < 0.01
    assert scaled.square().mean() == pytest.approx(1, abs=0.01)
    assert scaled.pow(4).mean() == pytest.approx(3, abs=0.3)  # as of normal numbers
