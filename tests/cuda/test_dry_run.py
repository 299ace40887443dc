"""The GPU path without a GPU: its launches beside recorded ones, and its results beside the CPU's.

Every launch is checked against the parameter list in the kernel's source: number, order and kind of the
arguments, and dtypes and gaps of tensors. Then the kernel is executed; see ``executing.py``. A change that is
meant to launch something else records ``launches.json`` anew with ``python tests/cuda/test_dry_run.py``.
"""

from __future__ import annotations

import copy
import functools
import json
from pathlib import Path

import pytest
import torch
from dry_run import differences, dry_run
from executing import needs_compiler
from scenarios import LAYERS, PIECES, device_of, run_layer
from torch import Tensor

from torch_pru.ops.cuda.compile import SOURCES

pytestmark = needs_compiler

FILE = Path(__file__).parent / "launches.json"
RECORDED = json.loads(FILE.read_text())
NAMES = [*(f"layer: {name}" for name in LAYERS), *PIECES]


def run(name: str) -> list[Tensor]:
    if name.startswith("layer: "):
        return run_layer(name.removeprefix("layer: "))
    with torch.set_grad_enabled(not name.startswith("token")):
        return PIECES[name]()


@functools.cache
def run_dry(name: str) -> tuple[list[Tensor], list[list[str]]]:
    device = [device_of(name.removeprefix("layer: "))] if name.startswith("layer: ") else []
    with dry_run(*device) as records:
        results = run(name)
    return results, records


@pytest.mark.parametrize("name", NAMES)
def test_launches_are_the_recorded_ones(name):
    _, records = run_dry(name)
    assert differences(records, RECORDED[name]) == []


@pytest.mark.parametrize("name", NAMES)
def test_results_are_those_of_the_cpu(name):
    found, _ = run_dry(name)
    expected = run(name)
    assert len(found) == len(expected)
    for number, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        assert mine.shape == theirs.shape
        assert mine.dtype == theirs.dtype
        error = float((mine.detach().double() - theirs.detach().double()).norm())
        assert error <= bound_of(name) * float(theirs.detach().double().norm()), (number, error)


def bound_of(name: str) -> float:
    """What rounding to 16 bits or TF32 may do, in layers several times over; else that of float32."""
    if "tf32" in name:
        return 1e-3
    if name.startswith(("layer: ", "token", "cross entropy")):
        return 0.02
    return 1e-3 if "float16" in name else 1e-6


def test_every_kernel_is_launched():
    launched = {record[0].split()[0] for records in RECORDED.values() for record in records}
    assert launched == set(SOURCES)
    assert set(RECORDED) == set(NAMES)


def test_another_order_of_a_weight_is_a_difference():
    """The recorded summaries tell a matrix from its transpose, and one argument from another."""
    _, records = run_dry("drop float32")
    assert differences(records, records) == []
    swapped = copy.deepcopy(records)
    swapped[0][1], swapped[0][2] = swapped[0][2], swapped[0][1]
    assert differences(swapped, records)
    assert differences(records[:1], records)
    with dry_run() as permuted:
        from pieces import run as piece
        from scenarios import mask, waves

        piece("drop", waves(3, 6, 4).transpose(1, 2), mask(3, 4, 6), 0.6, torch.float32)
    assert differences(permuted, records[:1])


if __name__ == "__main__":
    torch.set_num_threads(1)
    FILE.write_text(json.dumps({name: run_dry(name)[1] for name in NAMES}, indent=0) + "\n")
