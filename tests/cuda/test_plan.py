"""Which kernel serves which shape."""

from __future__ import annotations

import pytest
import torch
from shapes import AMPERE, BLACKWELL, DEVICES, HOPPER, PAPER, launch_for

from torch_pru.ops import cuda
from torch_pru.ops.cuda import plan


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.architecture)
def test_every_shape_of_the_paper_fits(device, backward):
    for groups, units in PAPER:
        for batch in (1, 7, 20, 80, 256):
            launch = launch_for(device, groups, units, batch, backward)
            assert launch.shared_bytes <= device.shared_bytes
            assert launch.threads <= 512
            if launch.cooperative:  # blocks of the grid wait for one another: all must run at once
                assert launch.blocks[0] * launch.blocks[1] <= device.multiprocessors


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
        ((7, 5), 350, 20, "below 8.0"),
        ((9, 0), 351, 20, "even"),
        ((9, 0), 4000, 20, "do not fit"),
        ((9, 0), 350, 4096, "above"),
    ],
)
def test_what_is_not_covered_has_a_reason(capability, units, batch, reason):
    device = plan.Device(capability, 132, 232448)
    assert reason in plan.choose(device, units, batch, 1, False, False)


def test_covers_needs_no_gpu():
    gates, weight = torch.zeros(1, 1, 4, 8), torch.zeros(1, 4, 8, 8)
    assert "cpu" in cuda.covers(gates, weight, None, True)
