"""The kernel for a single step: where it is chosen, that it compiles, that it computes what the others do."""

from __future__ import annotations

import pytest
import torch
from shapes import DEVICES, HOPPER, PAPER

from torch_pru.ops.cuda import compile as compiler
from torch_pru.ops.cuda import plan


def kernel_for(batch: int, backward: bool, steps: int | None) -> str:
    launch = plan.choose(HOPPER, 350, batch, 4, False, backward, steps)
    assert isinstance(launch, plan.Launch)
    return launch.kernel


def test_it_serves_one_step_of_a_few_columns() -> None:
    assert kernel_for(1, False, 1) == kernel_for(4, False, 1) == "forward_token"
    assert (
        kernel_for(5, False, 1) == kernel_for(1, False, 2) == kernel_for(1, False, None) == "forward_cluster"
    )
    assert kernel_for(1, True, 1) == "backward_cluster"


def test_every_unit_and_column_has_a_warp() -> None:
    for groups, units in PAPER:
        launch = plan.token_launch(units, 3, groups, bf16=False)
        assert 0 <= launch.blocks[0] * launch.threads // 32 - groups * units < launch.threads // 32
        assert launch.blocks[1] == 3


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.architecture)
def test_it_compiles(tmp_path, monkeypatch, device) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")
    monkeypatch.setenv("TORCH_PRU_CACHE", str(tmp_path))
    for units, bf16 in ((350, False), (100, True), (1150, False)):
        launch = plan.token_launch(units, 1, 1, bf16)
        code = compiler.cubin(launch.kernel, launch.constants, device.architecture)
        assert code.startswith(b"\x7fELF")


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
