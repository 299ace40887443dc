"""What a launch hands to the driver, with a driver that writes it down."""

from __future__ import annotations

import contextlib
import ctypes
from types import SimpleNamespace

import pytest
import torch
from shapes import HOPPER

from torch_pru.ops.cuda import launch, plan

LAUNCH = plan.Launch("forward_token", (("D", 2),), (3, 4), 32)


def kernel_of(answer: int, seen: list) -> launch.Kernel:
    """A kernel whose driver notes stream and argument and gives this answer."""

    def driver(config, function, arguments, extra):
        (struct,) = (ctypes.c_void_p * 1).from_address(arguments)
        seen.append((config.hStream, list((ctypes.c_int64 * 5).from_address(struct))))
        return (answer,)

    kernel = launch.Kernel.__new__(launch.Kernel)
    kernel._launch, kernel._function, kernel._what = driver, None, "launching forward_token"
    kernel._config = SimpleNamespace(hStream=0)
    kernel._prepare()
    return kernel


def test_the_argument_is_a_struct_of_words():
    seen: list = []
    words = [0, -1, 2**62, launch.bits(0.5), 7]
    kernel_of(0, seen)(99, words)
    assert seen == [(99, words)]


def test_every_launch_is_checked():
    with pytest.raises(launch.LaunchError, match="launching forward_token: 719"):
        kernel_of(719, [])(0, [0] * 5)


@pytest.mark.parametrize("current", [0, 1])
def test_pointers_then_numbers_on_the_stream_of_the_device(current: int, monkeypatch):
    seen, entered = [], []

    @contextlib.contextmanager
    def device(index):
        entered.append(index)
        yield

    def kernel(launch, index):
        return lambda stream, words: seen.append((launch, index, stream, words))

    monkeypatch.setattr(launch, "kernel", kernel)
    monkeypatch.setattr(launch, "make_context_current", lambda index: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 70 + index, raising=False)
    x, gpu = torch.zeros(4), torch.device("cuda", 1)
    launch.launch_on(LAUNCH, gpu, (x, None, x[1:]), torch.Size((5, 6)))
    assert seen == [(LAUNCH, 1, 71, [x.data_ptr(), 0, x.data_ptr() + 4, 5, 6])]
    assert entered == ([] if current == 1 else [gpu])


def test_plans_are_kept_but_follow_the_number_of_runs():
    shared = plan.Device(HOPPER.capability, HOPPER.multiprocessors, HOPPER.shared_bytes, runs=4)
    arguments = (350, 20, 4, torch.float16, False)
    assert plan.choose_once(HOPPER, *arguments) is plan.choose_once(HOPPER, *arguments)
    for device in (HOPPER, shared):
        assert plan.choose_once(device, *arguments) == plan.choose(device, *arguments)
    assert plan.choose_once(shared, *arguments) != plan.choose_once(HOPPER, *arguments)
