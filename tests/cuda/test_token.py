"""The kernels for a single step: where they are chosen, that they compile, what they compute."""

from __future__ import annotations

import pytest
import torch
from shapes import DEVICES, HOPPER, PAPER

from torch_pru.ops.cuda import compile as compiler
from torch_pru.ops.cuda import plan, token

LAYERS = [  # inputs, units of a group, groups
    (10, 2, 1),
    (15, 2, 4),
    (10, 50, 2),
    (400, 50, 1),
    (100, 50, 2),
    (400, 350, 4),
    (1400, 350, 4),
    (1400, 100, 4),
    (1150, 400, 1),
    (3000, 24, 2),
]
DECODERS = [(1, 3), (5, 10), (33, 400), (1001, 620), (10_000, 400), (33_278, 400)]  # words, features


def kernel_for(batch: int, backward: bool, single_step: bool) -> str:
    launch = plan.choose(HOPPER, 350, batch, 4, torch.float16, backward, single_step)
    assert isinstance(launch, plan.Launch)
    return launch.kernel


def test_it_serves_one_step_of_a_few_columns() -> None:
    assert kernel_for(1, False, True) == kernel_for(4, False, True) == "forward_token"
    assert kernel_for(5, False, True) == kernel_for(1, False, False) == "forward_cluster"
    assert kernel_for(1, True, True) == "backward_cluster"


def test_every_unit_and_column_has_a_warp() -> None:
    for groups, units in PAPER:
        launch = plan.token_launch(units, 3, groups, torch.float16)
        assert 0 <= launch.blocks[0] * launch.threads // 32 - groups * units < launch.threads // 32
        assert launch.blocks[1] == 3


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.architecture)
def test_it_compiles(tmp_path, monkeypatch, device) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")
    monkeypatch.setenv("TORCH_PRU_CACHE", str(tmp_path))
    for units, dtype in ((350, torch.float16), (100, torch.bfloat16), (1150, torch.float32)):
        launch = plan.token_launch(units, 1, 1, dtype)
        code = compiler.cubin(launch.kernel, launch.constants, device.architecture)
        assert code.startswith(b"\x7fELF")


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.architecture)
def test_a_whole_layer_and_the_decoder_compile(tmp_path, monkeypatch, device) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")
    monkeypatch.setenv("TORCH_PRU_CACHE", str(tmp_path))
    launches = [token.layer_launch(n, d, g * d, n == g * d, bf16=bool(n % 100)) for n, d, g in LAYERS]
    launches += [token.scores_launch(features, words, bf16=words < 100) for words, features in DECODERS]
    for launch in launches:
        code = compiler.cubin(launch.kernel, launch.constants, device.architecture)
        assert code.startswith(b"\x7fELF")


def test_every_unit_and_word_has_its_warp() -> None:
    for inputs, units, groups in LAYERS:
        launch = token.layer_launch(inputs, units, groups * units, False, bf16=False)
        assert launch.blocks[0] * launch.threads == groups * units * 4 * 32
        assert units % token.UNITS == 0  # a block's units have one group
    for words, features in DECODERS:
        launch = token.scores_launch(features, words, bf16=False)
        assert 0 <= launch.blocks[0] * token.WARPS * token.WORDS - words < token.WARPS * token.WORDS


def test_rows_are_padded_to_sixteen_bytes() -> None:
    rows = torch.arange(1.0, 31.0).view(3, 10)
    assert torch.equal(token.padded(rows), torch.cat([rows, torch.zeros(3, 6)], dim=1))
    assert token.padded(rows[:, :8]).shape == (3, 8)


@pytest.mark.gpu
@pytest.mark.parametrize(("groups", "units"), [*PAPER, (2, 12), (3, 34)])
@pytest.mark.parametrize("batch", [1, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_it_agrees_with_float64(groups: int, units: int, batch: int, dtype: torch.dtype) -> None:
    from torch_pru.ops import recurrence

    torch.manual_seed(units)
    width = groups * units
    gates = torch.randn(1, batch, width, 4, device="cuda").to(dtype).transpose(2, 3)
    weight = (torch.randn(groups, 4, units, units, device="cuda") / units**0.5).to(dtype)
    bias, c0 = torch.randn(4, width, device="cuda"), torch.randn(batch, width, device="cuda")
    h0 = torch.rand(batch, width, device="cuda").to(dtype)
    ours = recurrence(gates, weight, bias, h0, c0, backend="cuda")
    doubles = [x.double() for x in (gates, weight, bias, h0, c0)]
    theirs = recurrence(*doubles, backend="reference")
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).norm() / b.norm() < (1e-3 if dtype == torch.float16 else 4e-3)


@pytest.mark.gpu
@pytest.mark.parametrize(("inputs", "units", "groups"), LAYERS)
@pytest.mark.parametrize("keyed", [False, True], ids=["input", "word"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_whole_layer_agrees_with_float64(
    inputs: int, units: int, groups: int, keyed: bool, dtype: torch.dtype
) -> None:
    from torch_pru.ops import recurrence

    torch.manual_seed(inputs + units)
    width = groups * units
    residual = inputs == width
    weight = (torch.randn(4, width, inputs, device="cuda") / inputs**0.5).to(dtype)
    context = (torch.randn(groups, 4, units, units, device="cuda") / units**0.5).to(dtype)
    bias = None if keyed else torch.randn(4, width, device="cuda")
    h, c = torch.rand(1, width, device="cuda").to(dtype), torch.randn(1, width, device="cuda")
    table = torch.randn(7, inputs, device="cuda").to(dtype)
    x = table[3:4].clone()
    layer = token.TokenLayer(weight, context, bias, residual)
    key = ~torch.tensor([3], device="cuda")
    ours = layer(token.padded(table), key, h, c) if keyed else layer(x, None, h, c)

    gates = torch.einsum("gmn,bn->bgm", weight.double(), x.double())
    gates = gates + x.double()[:, None] if residual else gates
    doubles = (context.double(), None if bias is None else bias.double(), h.double(), c.double())
    _, *theirs = recurrence(gates[None], *doubles, backend="reference")
    bound = (1e-3 if dtype == torch.float16 else 4e-3) * (1 if width > 50 else 3)  # few units average little
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).norm() / b.norm() < bound
    again = layer(token.padded(table), key, h, c) if keyed else layer(x, None, h, c)
    assert all(torch.equal(a, b) for a, b in zip(ours, again, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize(("words", "features"), DECODERS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_decoder_scores_and_finds_the_best(words: int, features: int, dtype: torch.dtype) -> None:
    torch.manual_seed(words)
    weight, h = (torch.randn(size, features, device="cuda").to(dtype) for size in (words, 1))
    offset = torch.randn(words, device="cuda")
    if words > 1:
        offset[words // 2] = -torch.inf
    if words == 33:
        weight[7], offset[7], offset[3] = weight[3], 100.0, 100.0  # a tie: the first one counts
    key = torch.zeros(1, dtype=torch.int64, device="cuda")
    scores = token.token_scores(h, token.padded(weight), offset, key)
    expected = h.double() @ weight.double().t() + offset.double()
    torch.testing.assert_close(scores.double(), expected, rtol=1e-5, atol=1e-3)
    best = (~key & 0xFFFFFFFF).item()
    assert best == 3 if words == 33 else scores[0, best] == scores.max()
