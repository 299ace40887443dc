"""The operators that compute a call of a layer on a GPU in C++, with kernels executed on a CPU.

They run on the tensors of a CPU and call a driver that is Python. Results are compared with those of the same
call in Python, to the bit, and with float64.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from dry_run import dry_run
from executing import compiled as compiled_kernel
from executing import machine, needs_compiler
from kernel_arguments import fields_of
from shapes import AMPERE
from torch import Tensor, nn

from torch_pru import PRU
from torch_pru.ops import native
from torch_pru.ops.cuda import compile as compiler
from torch_pru.ops.cuda import host
from torch_pru.ops.cuda import launch as launching
from torch_pru.ops.cuda.plan import Device, Launch

pytestmark = [
    needs_compiler,
    pytest.mark.skipif(native.missing_reason() is not None, reason="no compiled code"),
]

HALF, BRAIN = torch.float16, torch.bfloat16
BOUNDS = {HALF: 4e-3, BRAIN: 3e-2}
FEW = Device((9, 0), 8, 232448)
OLD = Device((8, 0), 12, AMPERE.shared_bytes)


class Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_uint32), ("padding", ctypes.c_uint32), ("value", ctypes.c_uint32 * 16))


class Configuration(ctypes.Structure):
    """``CUlaunchConfig`` of the driver."""

    _fields_ = (
        ("blocks", ctypes.c_uint32 * 3),
        ("threads", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", ctypes.c_uint32),
    )


LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(Configuration),
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
)
FILL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint16, ctypes.c_size_t, ctypes.c_void_p)
CLUSTER, COOPERATIVE = 4, 2  # ids of the driver's attributes


class Driver:
    """Executes launches on the CPU. Exceptions cannot pass through C++, so that they are kept."""

    def __init__(self) -> None:
        self.functions: list[Launch] = []
        self.launched: list[str] = []
        self.errors: list[Exception] = []
        self.refuses = ""  # a kernel whose launch fails
        self.callbacks = LAUNCH(self.launch), FILL(self.fill)
        self.addresses = [ctypes.cast(callback, ctypes.c_void_p).value for callback in self.callbacks]

    def kernel(self, launch: Launch, index: int) -> SimpleNamespace:
        """In the place of ``launch.kernel``: a number instead of the driver's function."""
        if launch not in self.functions:
            self.functions.append(launch)
        return SimpleNamespace(function=1 + self.functions.index(launch))

    def launch(self, configuration, function, arguments, _) -> int:
        try:
            launch = self.functions[function - 1]
            self.launched.append(launch.kernel)
            if launch.kernel == self.refuses:
                return 701
            self.check(launch, configuration.contents)
            count = len(fields_of(launch.kernel, launch.constants))
            words = ctypes.string_at(arguments[0], 8 * count)
            code = compiled_kernel(launch.kernel, launch.constants, compiler.source(launch.kernel))
            entry = ctypes.cast(code.enter, ctypes.c_void_p)
            shape = (*launch.blocks, launch.threads, launch.cluster, launch.shared_bytes, launch.cooperative)
            said = machine().run_kernel(entry, words, *shape, 1)
            assert said is None, said
        except Exception as error:
            self.errors.append(error)
            return 1
        return 0

    def check(self, launch: Launch, configuration: Configuration) -> None:
        assert [*configuration.blocks] == [*launch.blocks, 1]
        assert [*configuration.threads] == [launch.threads, 1, 1]
        assert configuration.shared_bytes == launch.shared_bytes
        attributes = {}
        for attribute in configuration.attributes[: configuration.count]:
            attributes[attribute.id] = [*attribute.value[:3]]
        assert attributes.pop(CLUSTER, [1, 1, 1]) == [launch.cluster, 1, 1]
        assert attributes.pop(COOPERATIVE, [0])[0] == launch.cooperative
        assert not attributes

    def fill(self, at: int, value: int, count: int, _) -> int:
        assert value == 0xFFFF
        ctypes.memset(at, 0xFF, 2 * count)
        return 0


@contextmanager
def in_cpp(device: Device = FEW) -> Iterator[Driver]:
    """Inside, calls of layers take the GPU's path, and those that the operators take run in C++."""
    driver = Driver()
    with dry_run(device), pytest.MonkeyPatch.context() as patch:
        table = host.look_up("cpu", driver.addresses)
        assert table is not None
        patch.setattr(host, "functions_for", lambda kind: table)
        patch.setattr(host, "current_stream", lambda index: 0)
        patch.setattr(torch.cuda, "current_device", lambda: None)  # the index of the CPU
        patch.setattr(launching, "kernel", driver.kernel)
        patch.setattr(launching, "make_context_current", lambda index: None)
        host._plan.cache_clear()
        yield driver
    host._plan.cache_clear()
    assert not driver.errors, driver.errors


@pytest.fixture(autouse=True)
def _poisoned():
    """New memory holds NaN, so that results which nobody wrote show."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


# device, N, M, options, steps, batch, and what is special
CASES = {
    "levels": (FEW, 24, 20, {"levels": 2, "groups": 2}, 4, 3, set()),
    "states": (FEW, 16, 20, {"levels": 1, "groups": 1}, 3, 2, {"states"}),
    "residual": (FEW, 32, 32, {"levels": 3, "groups": 2, "residual": True}, 3, 2, {"states"}),
    "no bias": (FEW, 8, 12, {"levels": 2, "groups": 3, "bias": False}, 3, 2, set()),
    "packed": (FEW, 16, 16, {"levels": 2, "groups": 2, "bidirectional": True}, 5, 4, {"packed", "states"}),
    "two layers": (FEW, 8, 16, {"num_layers": 2, "levels": 2, "groups": 2}, 3, 2, {"states"}),
    "wide": (FEW, 16, 68, {"levels": 2, "groups": 2}, 2, 20, set()),
    "grid": (OLD, 24, 44, {"levels": 2, "groups": 2}, 3, 2, {"states"}),
    "grid, packed": (OLD, 16, 24, {"levels": 1, "groups": 1, "bidirectional": True}, 4, 3, {"packed"}),
    "residual, wide": (FEW, 72, 72, {"levels": 2, "groups": 2, "residual": True}, 2, 20, {"states"}),
    "residual, grid": (
        OLD,
        48,
        48,
        {"levels": 2, "groups": 2, "bidirectional": True, "residual": True},
        4,
        5,
        {"packed", "states"},
    ),
    "residual, one step": (FEW, 16, 16, {"levels": 1, "groups": 2, "residual": True}, 1, 3, {"states"}),
    "one step": (FEW, 16, 12, {"levels": 2, "groups": 2}, 1, 2, {"states"}),
}


def make(case: str, dtype: torch.dtype) -> tuple[PRU, list[Tensor]]:
    _, features, units, options, steps, batch, special = CASES[case]
    torch.manual_seed(units)
    pru = PRU(features, units, init="lstm", **options).to(dtype)
    rows = pru.num_layers * (2 if pru.bidirectional else 1)
    shapes = [(steps, batch, features), *[(rows, batch, units)] * 2 * ("states" in special)]
    return pru, [torch.randn(shape).to(dtype) for shape in shapes]


def run(pru: PRU, inputs: list[Tensor], case: str, save: bool = True) -> list[Tensor]:
    """Outputs and states, and with ``save`` the gradients of everything."""
    _, _, _, _, steps, batch, special = CASES[case]
    x, *states = (tensor.requires_grad_(save) for tensor in inputs)
    lengths = torch.tensor([steps, *range(steps - 1, steps - batch, -1)]).clamp(min=1)
    given = nn.utils.rnn.pack_padded_sequence(x, lengths) if "packed" in special else x
    with torch.set_grad_enabled(save):
        y, (h, c) = pru(given, tuple(states) or None)
    outputs = [y.data if "packed" in special else y, h, c]
    if not save:
        return outputs
    maker = torch.Generator().manual_seed(1)
    upstream = [torch.randn(output.shape, generator=maker).to(output.dtype) for output in outputs]
    return [*outputs, *torch.autograd.grad(outputs, [x, *states, *pru.parameters()], upstream)]


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_outputs_and_every_gradient(case, dtype):
    pru, inputs = make(case, dtype)
    device = CASES[case][0]
    with in_cpp(device) as driver:
        found, inferred = run(pru, inputs, case), run(pru, inputs, case, save=False)
    step = inputs[0].shape[0] == 1  # without gradients it is another kernel, which rounds less
    passes = ["spread", "collect", "spread"] if case == "residual, wide" else []
    assert [name for name in driver.launched if name in ("spread", "collect")] == passes
    count = (6 if step else 7) * len(pru.specs)  # in training, and again without gradients
    assert len(driver.launched) == count + len(passes)
    with dry_run(device):
        expected = run(pru, inputs, case)
    for number, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs), number
    assert step or all(map(torch.equal, inferred, found))
    exact = copy.deepcopy(pru).double()
    exact.backend = "reference"
    right = run(exact, [x.detach().double() for x in inputs], case)
    for mine, theirs in (*zip(found, right, strict=True), *zip(inferred, right[:3], strict=True)):
        assert (mine.double() - theirs).norm() <= BOUNDS[dtype] * theirs.norm()


STEPS = {  # M and options
    "one level": (20, {"levels": 1, "groups": 2}),
    "levels": (20, {"levels": 3, "groups": 1}),
    "residual": (16, {"levels": 2, "groups": 2}),
    "no bias": (12, {"levels": 2, "groups": 3, "bias": False}),
}


@pytest.mark.parametrize("states", [False, True], ids=["", "states"])
@pytest.mark.parametrize("dtype", [torch.float32, *BOUNDS], ids=str)
@pytest.mark.parametrize("case", STEPS)
def test_a_single_step_without_gradients(case, dtype, states):
    torch.manual_seed(1)
    units, options = STEPS[case]
    pru, x = PRU(16, units, init="lstm", **options).to(dtype), torch.randn(1, 4, 16).to(dtype)
    given = (torch.randn(1, 4, units).to(dtype), torch.randn(1, 4, units).to(dtype)) if states else None
    with torch.no_grad():
        with in_cpp() as driver:
            found, (h, c) = pru(x, given)
        with dry_run(FEW):
            expected, (hn, cn) = pru(x, given)
    assert driver.launched == ["layer_step"]
    assert all(map(torch.equal, (found, h, c), (expected, hn, cn)))


def test_a_single_step_in_float32_needs_tf32(monkeypatch):
    """As for more steps: the setting says whether float32 goes to these kernels at all."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    with in_cpp() as driver, torch.no_grad():
        PRU(16, 20, levels=2, groups=2)(torch.randn(1, 2, 16))
    assert not driver.launched


def test_float32_weights_under_autocast_are_left_to_python():
    pru, inputs = make("levels", HALF)
    with in_cpp() as driver, torch.autocast("cpu", HALF):
        pru.float()(inputs[0])
    assert not driver.launched


def test_sizes_that_need_padding_are_left_to_python():
    pru, x = PRU(22, 20, levels=2, groups=2).half(), torch.randn(3, 2, 22).half()
    with in_cpp() as driver:
        pru(x)
    assert not driver.launched


def test_tensors_that_are_not_dense_are_left_to_python():
    pru, x = PRU(24, 20, levels=2, groups=2).half(), torch.randn(2, 3, 24).half()
    with in_cpp() as driver:
        expected = pru(x.transpose(0, 1).contiguous())[0]
        launched = len(driver.launched)
        found = pru(x.transpose(0, 1))[0]
        assert launched == len(driver.launched) > 0
        pru(torch.randn(1 + 3 * 2 * 24).half()[1:].view(3, 2, 24))  # at an odd address
        assert launched == len(driver.launched)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("refused", ["forward_cluster", "backward_cluster", "unfold"])
def test_python_repeats_what_failed(refused):
    pru, inputs = make("levels", HALF)
    with in_cpp() as driver:
        expected = run(pru, inputs, "levels")
        driver.refuses = refused
        found = run(pru, inputs, "levels")
    assert driver.launched.count(refused) == 2
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize(
    "name", ["x", "h0", "c0", "weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
)
@pytest.mark.parametrize("case", ["states", "residual, one step"])
def test_one_gradient_alone(case, name):
    """It is the same as among all, and no kernel runs that it does not need."""
    pru, inputs = make(case, HALF)
    names = ["x", "h0", "c0", *(name for name, _ in pru.named_parameters())]
    tensors = dict(zip(names, [*inputs, *pru.parameters()], strict=True))
    with in_cpp() as driver:
        everything = run(pru, inputs, case)[3:]
        for each in tensors.values():
            each.requires_grad_(False)
        tensors[name].requires_grad_()
        driver.launched.clear()
        y, (h, c) = pru(inputs[0], (inputs[1], inputs[2]))
        maker = torch.Generator().manual_seed(1)
        upstream = [torch.randn(output.shape, generator=maker).to(output.dtype) for output in (y, h, c)]
        (found,) = torch.autograd.grad([y, h, c], [tensors[name]], upstream)
    assert torch.equal(found, everything[names.index(name)])
    assert ("backward_tail" in driver.launched) == (name in ("weight_hh_l0", "bias_ih_l0", "bias_hh_l0"))
    assert ("unfold" in driver.launched) == (name == "weight_ih_l0")


COUNTED = {  # what gives C++ a tensor, and what takes it back, with the numbers of their arguments
    "aoti_torch_empty_strided": 7,
    "aoti_torch__reinterpret_tensor": 6,
    "torch_list_get_item": 3,
    "aoti_torch_delete_tensor_object": 1,
}


def test_every_tensor_is_given_back():
    """All tensors that C++ has had, but for the results, which PyTorch then owns."""
    pru, inputs = make("residual", HALF)
    counts, kept = dict.fromkeys(COUNTED, 0), []

    def counting(name, original):
        def counted(*words) -> int:
            counts[name] += 1
            return original(*words)

        return counted

    with in_cpp() as driver:
        table = host.functions_for("cpu")
        for name, arguments in COUNTED.items():
            signature = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * arguments)
            place = host.TENSORS.index(name)

            kept.append(signature(counting(name, signature(table[place]))))
            table[place] = ctypes.cast(kept[-1], ctypes.c_void_p).value
        run(pru, inputs, "residual")
        assert driver.launched
    returned = counts.pop("aoti_torch_delete_tensor_object")
    forward, backward = 6, 3 + 1 + 2 + 3  # x, h0, c0; context; both biases; three levels
    assert sum(counts.values()) - returned == forward + backward
