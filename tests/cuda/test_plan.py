"""Which kernel serves which shape."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from shapes import ADA, AMPERE, BLACKWELL, DEVICES, GEFORCE, HOPPER, PAPER, launch_for

from torch_pru.ops import cuda
from torch_pru.ops.cuda import compile as compiler
from torch_pru.ops.cuda import launch, plan


@pytest.mark.parametrize("dtype", cuda.DTYPES, ids=str)
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.architecture)
def test_every_shape_of_the_paper_fits(device, backward, dtype):
    for groups, units in PAPER:
        for batch in (1, 7, 20, 80, 256):
            launch = launch_for(device, groups, units, batch, backward, dtype)
            assert launch.shared_bytes <= device.shared_bytes
            assert launch.threads <= 512
            if launch.cooperative:  # blocks of the grid wait for one another: all must run at once
                assert launch.blocks[0] * launch.blocks[1] <= device.multiprocessors


@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("device", [*DEVICES, ADA, GEFORCE], ids=lambda d: d.architecture)
def test_no_launch_asks_for_more_shared_memory_than_there_is(device, backward, runs):
    shared = plan.Device(device.capability, device.multiprocessors, device.shared_bytes, runs)
    for units in (8, 130, 258, 350, 384, 400, 512):
        for batch in (1, 28, 29, 57, 121, 300, 1024):
            launch = plan.choose(shared, units, batch, 4, torch.bfloat16, backward)
            if isinstance(launch, plan.Launch):
                assert launch.shared_bytes + plan.CLUSTER_BARRIER_BYTES <= device.shared_bytes
    assert launch_for(shared, 4, 350, 1024, backward).shared_bytes  # served, in narrower tiles if need be


def test_clusters_from_hopper_on_and_the_grid_elsewhere():
    assert launch_for(HOPPER, 4, 350, 20, False).cluster == 8
    assert launch_for(BLACKWELL, 4, 350, 20, False).cluster == 8
    assert launch_for(HOPPER, 1, 1000, 20, False).kernel == "forward_grid"
    assert launch_for(AMPERE, 4, 350, 20, True).kernel == "backward_grid"


def test_wgmma_on_hopper_alone_and_only_for_wide_tiles():
    def wgmma(device, batch):
        return dict(launch_for(device, 4, 350, batch, False).constants)["WGMMA"]

    assert (wgmma(HOPPER, 20), wgmma(HOPPER, 80), wgmma(BLACKWELL, 80)) == (0, 1, 0)


def test_a_larger_batch_is_more_clusters_while_they_fit():
    def columns(batch):
        return dict(launch_for(HOPPER, 4, 350, batch, False).constants)["COLUMNS"]

    assert [columns(batch) for batch in (1, 8, 20, 80, 256)] == [4, 8, 8, 28, 32]
    assert launch_for(HOPPER, 4, 350, 20, False).blocks == (8 * 4 * 3, 1)


def test_runs_that_share_the_chip_take_less_of_it():
    shared = plan.Device(HOPPER.capability, HOPPER.multiprocessors, HOPPER.shared_bytes, runs=4)
    assert launch_for(shared, 4, 350, 20, False).blocks == (8 * 4, 1)


def test_clusters_hold_every_unit_once():
    for groups, units in PAPER:
        held = plan.team(HOPPER, units)
        if held is not None:
            assert held.units * held.cluster >= units
            assert held.slots >= held.units
            assert held.slots % 8 == 0
            assert groups * held.cluster <= HOPPER.multiprocessors


@pytest.mark.parametrize(
    ("capability", "units", "batch", "reason"),
    [
        ((9, 0), 351, 20, "even"),
        ((9, 0), 4000, 20, "do not fit"),
        ((9, 0), 350, 4096, "above"),
    ],
)
def test_what_is_not_covered_has_a_reason(capability, units, batch, reason):
    device = plan.Device(capability, 132, 232448)
    assert reason in plan.choose(device, units, batch, 1, torch.float16, False)


def test_a_gpu_that_no_kernel_serves_has_a_reason(monkeypatch):
    monkeypatch.setattr(compiler, "architectures", lambda: frozenset({80, 90}))
    monkeypatch.setattr(compiler, "nvrtc_version", lambda: "nvrtc 12.0")
    unserved = launch._unserved.__wrapped__
    assert unserved((7, 5)) == "compute capability 7.5 is below 8.0"
    assert unserved((9, 0)) is None
    assert unserved((12, 1)) == "nvrtc 12.0 does not know compute capability 12.1"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ModuleNotFoundError("No module named 'cuda'"), "cuda-bindings is not installed"),
        (RuntimeError("Failed to dlopen libnvrtc"), "NVRTC cannot be used: Failed to dlopen libnvrtc"),
    ],
)
def test_without_nvrtc_there_is_a_reason(monkeypatch, error, reason):
    def architectures():
        raise error

    monkeypatch.setattr(compiler, "architectures", architectures)
    assert launch._unserved.__wrapped__((9, 0)) == reason


def reason_for(gates, weight) -> str | None:
    """Why the kernels cannot train with these."""
    return cuda.shape_reason(gates, gates.dtype, weight.shape[0], weight.shape[-1], training=True)


def test_the_reason_needs_no_gpu():
    gates, weight = torch.zeros(1, 1, 4, 8), torch.zeros(1, 4, 8, 8)
    assert "cpu" in reason_for(gates, weight)


@pytest.fixture
def on_hopper(monkeypatch):
    """Gates that say they are on a Hopper GPU, and their weight."""
    monkeypatch.setattr(cuda, "unserved", lambda index: None)
    monkeypatch.setattr(cuda, "device_of", lambda index: HOPPER)

    def tensors(dtype, steps=3):
        place = {"device": torch.device("cuda", 0), "is_cuda": True}
        gates = SimpleNamespace(**place, dtype=dtype, shape=(steps, 2, 4, 8))
        return gates, torch.empty(1, 4, 8, 8)

    return tensors


def test_float32_where_tf32_is_allowed(on_hopper, monkeypatch):
    gates, weight = on_hopper(torch.float32)
    for allowed in (True, False):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allowed)
        assert cuda.tf32_is_allowed() == allowed
        reason = reason_for(gates, weight)
        assert reason is None if allowed else "allow_tf32" in reason
    assert reason_for(*on_hopper(torch.float16)) is None


def test_float32_follows_the_newer_setting_too(on_hopper, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn.rnn, "fp32_precision", "ieee")
    assert "allow_tf32" in reason_for(*on_hopper(torch.float32))


def test_sequences_of_ever_new_lengths_are_not_planned_anew(on_hopper):
    cuda._plan_reason_once.cache_clear()
    for steps in range(1, 50):
        assert reason_for(*on_hopper(torch.float16, steps)) is None
    assert cuda._plan_reason_once.cache_info().currsize == 2  # of a single step and of more


def test_float64_is_not_covered(on_hopper):
    assert "float64" in reason_for(*on_hopper(torch.float64))
