"""NVRTC compiles every variant without a GPU, and the cache on disk survives damage and company."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from shapes import DEVICES, PAPER, launch_for

from torch_pru.ops.cuda import DTYPES, plan, updates
from torch_pru.ops.cuda import compile as compiler
from torch_pru.ops.cuda.launch import PASS, PASSES
from torch_pru.ops.cuda.plan import RESIDUAL
from torch_pru.ops.spec import LayerSpec, TransformSpec

pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")
try:
    compiler.nvrtc_version()
except Exception as error:  # the binding loads the library at its first call
    pytest.skip(f"NVRTC is not installed: {error}", allow_module_level=True)

CONSTANTS = {"D": 64, "CLUSTER": 4, "UNITS": 16, "SLOTS": 16, "COLUMNS": 4, "WGMMA": 0, "BF16": 0}
SMALL = ("forward_cluster", tuple(CONSTANTS.items()))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_PRU_CACHE", str(tmp_path))
    return tmp_path / "kernels"


def variants(device):
    """Each variant picked for the paper's shapes; dtypes take turns, with a residual and without."""
    found = set()
    for turn, (groups, units) in enumerate(PAPER):
        for further, batch in enumerate((1, 20, 80) if units in (350, 1150) else (20,)):
            for backward in (False, True):
                dtype = DTYPES[(turn + further + backward) % len(DTYPES)]
                launch = launch_for(device, groups, units, batch, backward, dtype)
                constants = (*launch.constants, RESIDUAL) if turn % 2 else launch.constants
                found.add((launch.kernel, constants))
    return sorted(found)


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.architecture)
def test_every_variant_compiles(cache, device):
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        codes = list(pool.map(lambda v: compiler.cubin(*v, device.architecture), variants(device)))
    assert all(code.startswith(b"\x7fELF") for code in codes)


def passes_variants():
    """The kernels of passes.py, with each kind of value; widths of a pack and layouts take turns."""
    threads, found = ("THREADS", 512), []
    kinds = ((0, 1, 1), (0, 1, 0), (1, 0, 1), (1, 0, 0))  # BF16, from float32, to float32
    for (bf16, from32, to32), (size, width) in zip(kinds, ((0, 8), (0, 1), (350, 2), (400, 8)), strict=True):
        kind = (("BF16", bf16), ("FROM32", from32))
        found.append(("drop", (*kind, ("TO32", to32), ("D", size), ("VEC", width), threads)))
        found += [(name, (*kind, ("VEC", width), threads)) for name in ("penalties", "penalties_backward")]
        size = 350 + 50 * to32 * bf16
        tail = (("BF16", bf16), ("OUT_32", 0), ("H0_32", from32), ("BIAS_32", to32), ("D", size), threads)
        found.append(("backward_tail", tail))
    found += [
        ("backward_tail", (("BF16", 0), ("OUT_32", 1), ("H0_32", 1), ("BIAS_32", 1), ("D", size), threads))
        for size in (350, 400)
    ]
    return [*found, ("gradient_scale", (threads,))]


def folding_variants():
    """The kernels of folding.py; accesses of every width, both kinds of weight, one level and several."""
    found, threads = [], ("THREADS", 512)
    for levels, gates, wide, step, bf16 in (
        (1, 4, 1, 4, 1),
        (2, 4, 1, 4, 0),
        (4, 4, 1, 2, 1),
        (3, 4, 1, 1, 0),
        (2, 1, 0, 8, 1),
        (1, 3, 0, 1, 0),
    ):
        shape = (("LEVELS", levels), ("GATES", gates), ("FLOAT_WEIGHTS", wide), ("STEP", step))
        found += [(name, (*shape, ("BF16", bf16), threads)) for name in ("fold", "unfold")]
    return found + [(name, (("BF16", bf16), threads)) for name in ("spread", "collect") for bf16 in (0, 1)]


def step_variants():
    """A layer's single step: one level and several, with and without a residual."""
    launches = []
    for levels, residual, dtype in ((1, 0, torch.float16), (2, 1, torch.bfloat16), (4, 1, torch.float32)):
        input = TransformSpec(1400, (1400 // levels,) * levels, windows=(5,) * (levels - 1))
        spec = LayerSpec(input, TransformSpec(1400, (1400,), groups=4), bool(residual))
        launches.append(plan.step_launch(spec, 1, dtype))
    return [(launch.kernel, launch.constants) for launch in launches]


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.architecture)
def test_the_small_kernels_compile(cache, device):
    small = [
        ("gradient_squares", (*updates.CONSTANTS, ("THREADS", PASSES["gradient_squares"][0]))),
        ("sgd", (*updates.CONSTANTS, ("THREADS", PASSES["sgd"][0]))),
        ("dynamic", (*updates.DYNAMIC_CONSTANTS, ("THREADS", PASS[0]))),
    ]
    for bf16, gradient, kept, blocks in ((0, 0, 0, 2), (1, 1, 1, 3), (0, 1, 0, 2), (1, 0, 1, 3)):
        constants = (("BF16", bf16), ("GRADIENT", gradient), ("KEPT", kept), ("BLOCKS", blocks))
        small.append(("cross_entropy", (*constants, ("THREADS", 512))))
    for flag in (0, 1):
        constants = (("BF16", flag), ("THREADS", 512))
        small += [("decoder_operand", constants), ("decoder_rows", constants)]
        small.append(("add_rows", (("BF16", 0), ("VECTOR", flag), ("THREADS", 256))))
    small += passes_variants()
    small += folding_variants() + step_variants()
    for kernel, constants in small:
        assert compiler.cubin(kernel, constants, device.architecture).startswith(b"\x7fELF")


def test_the_second_call_reads_the_cache(cache, monkeypatch):
    code = compiler.cubin(*SMALL, "sm_90a")
    monkeypatch.setattr(compiler, "_compile", None)
    assert compiler.cubin(*SMALL, "sm_90a") == code


@pytest.mark.parametrize("damage", [b"", b"short", None])
def test_a_damaged_entry_is_rebuilt(cache, damage):
    code = compiler.cubin(*SMALL, "sm_90a")
    (entry,) = cache.iterdir()
    entry.write_bytes(entry.read_bytes()[:-100] if damage is None else damage)
    assert compiler.cubin(*SMALL, "sm_90a") == code
    assert compiler._read(entry) == code


def test_processes_may_start_at_once(cache):
    program = f"from torch_pru.ops.cuda import compile; print(len(compile.cubin(*{SMALL!r}, 'sm_90a')))"
    command = [sys.executable, "-c", program]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    sizes = [process.communicate()[0].strip() for process in running]
    assert sizes[0] == sizes[1] != ""
    assert len(list(cache.iterdir())) == 1


def test_a_cache_that_cannot_be_written_is_no_obstacle(monkeypatch):
    monkeypatch.setenv("TORCH_PRU_CACHE", "/dev/null/nowhere")
    assert compiler.cubin(*SMALL, "sm_90a")


def test_a_user_without_a_home_has_no_cache(monkeypatch):
    def home():
        raise RuntimeError("Could not determine home directory.")

    for name in ("TORCH_PRU_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(compiler.Path, "home", home)
    assert compiler.cache_folder() is None
    assert compiler.cubin(*SMALL, "sm_90").startswith(b"\x7fELF")


def test_the_cache_may_be_below_the_home(monkeypatch):
    monkeypatch.setenv("TORCH_PRU_CACHE", "~/pru")
    assert compiler.cache_folder() == compiler.Path.home() / "pru"


def test_a_disk_that_fills_up_is_left_clean(cache, monkeypatch):
    def replace(aside, entry):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", replace)
    assert compiler.cubin(*SMALL, "sm_90").startswith(b"\x7fELF")
    assert not list(cache.iterdir())


def test_nvrtc_says_what_it_compiles_for():
    assert {80, 90} <= compiler.architectures()


def test_a_compile_error_shows_the_log(cache):
    with pytest.raises(compiler.CompileError, match="undefined"):
        compiler.cubin("forward_grid", (("BF16", 0),), "sm_90a")
