"""The shapes the kernels must serve, and devices to plan for without having one."""

from __future__ import annotations

import torch

from torch_pru.ops.cuda.plan import Device, Launch, choose

AMPERE = Device((8, 0), 108, 166912)
HOPPER = Device((9, 0), 132, 232448)
BLACKWELL = Device((10, 0), 148, 232448)
DEVICES = (AMPERE, HOPPER, BLACKWELL)
ADA = Device((8, 9), 128, 101376)
GEFORCE = Device((12, 0), 84, 101376)  # clusters, but less than half of a data center's shared memory

# groups, units per group: every layer of the paper's models and the one-layer ablations
PAPER = [(4, 350), (4, 100), (4, 150), (2, 600), (2, 200), (2, 300)]
PAPER += [(1, units) for units in (400, 600, 1000, 1024, 1150, 1200, 1400)]


def launch_for(
    device: Device,
    groups: int,
    units: int,
    batch: int,
    backward: bool,
    dtype: torch.dtype = torch.float16,
) -> Launch:
    launch = choose(device, units, batch, groups, dtype, backward)
    assert isinstance(launch, Launch), launch
    return launch
