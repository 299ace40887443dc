"""Which kernel serves a shape, and how it is cut: pure arithmetic, no GPU needed.

Two families. *Cluster*: a thread-block cluster per (group, slice of the batch), Hopper and later, for groups
whose weights fit the registers of at most 16 blocks. *Grid*: all multiprocessors share each group's weights
and exchange through global memory; it needs sm_80, and serves what no cluster holds. A single step forward of
a few columns, as in generation, has a kernel of its own: there is nothing to exchange.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch

from torch_pru.ops.spec import LayerSpec

OLDEST = (8, 0)  # compute capability that the kernels need
REGISTER_FILE = 65536  # 32-bit registers of one multiprocessor
LARGEST_BATCH = 1024
LARGEST_TOKEN_BATCH = 4  # up to here a single step reads the weights once for each column
TOKEN_THREADS = 128
LARGEST_STEP_INPUT = 12_000  # features that the shared memory of any GPU holds in float32
WIDEST_TILE = 4  # 8-column tiles a cluster takes at once
CLUSTER_BARRIER_BYTES = 16  # shared memory that a cluster kernel has besides what it is launched with
RESIDUAL = ("RESIDUAL", 1)  # the constant of kernels with a residual
WIDEST_RESIDUAL = 16  # columns of a cluster that adds a residual itself


@dataclass(frozen=True)
class Cut:
    """How a grid kernel divides its work; the first of a list that fits is taken."""

    units: int  # a block's units are a multiple of this
    warps: int  # at most
    flight: int  # spans of 32 values of k that a warp has under way, at most
    tiles: int  # 8-column tiles of the batch taken at once, at most


# In the order of their speed on an H200 (docs/kernels.md); the later ones need less shared memory.
# Backward's 16 units fill the rows of the matrix instruction, so that fewer blocks read the gates' gradients.
FORWARD_CUTS = (Cut(4, 8, 3, 3), Cut(4, 8, 3, 2), Cut(4, 8, 2, 1))
BACKWARD_CUTS = (Cut(16, 16, 5, 3), Cut(16, 8, 3, 3), Cut(16, 8, 3, 2), Cut(16, 8, 2, 1))
GRID_REGISTERS = 55  # what a grid kernel needs besides weights, sums and loads in flight


@dataclass(frozen=True)
class Device:
    """What the choice depends on."""

    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes: int  # the most one block may ask for
    runs: int = 1  # how many runs share the chip, each on a stream of its own

    @property
    def architecture(self) -> str:
        """The compiler's name; sm_90a has instructions (wgmma) that plain sm_90 lacks."""
        major, minor = self.capability
        return f"sm_{major}{minor}" + ("a" if self.capability == (9, 0) else "")


@dataclass(frozen=True)
class Launch:
    """One kernel variant and its launch configuration."""

    kernel: str
    constants: tuple[tuple[str, int], ...]
    blocks: tuple[int, int]
    threads: int
    cluster: int = 1
    shared_bytes: int = 0
    bias_rows: int = 0  # backward: rows of partial bias gradients the kernel leaves
    cooperative: bool = False  # blocks wait for one another: all of them run at once, or none starts


@dataclass(frozen=True)
class Team:
    """How a cluster holds a group of `size` units; see cluster.cu."""

    size: int
    cluster: int
    units: int
    slots: int
    wgmma: bool


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    return ceil_div(a, b) * b


def registers_per_thread(warps: int) -> int:
    """Warps are dealt to four schedulers, each with a quarter of the register file."""
    return min(255, REGISTER_FILE // 4 // 32 // ceil_div(warps, 4) // 8 * 8)


def kind_of(dtype: torch.dtype) -> tuple[tuple[str, int], ...]:
    """Constants for the numbers that a kernel takes and gives; see recurrence.cu."""
    return ("BF16", int(dtype == torch.bfloat16)), ("FLOAT", int(dtype == torch.float32))


def operand_dtype(dtype: torch.dtype) -> torch.dtype:
    """What is multiplied where gates have this dtype: float16 has the mantissa of TF32."""
    return torch.float16 if dtype == torch.float32 else dtype


def team(device: Device, size: int) -> Team | None:
    """The smallest cluster whose registers hold the weights of one group."""
    if device.capability < (9, 0):
        return None
    sizes = (4, 8, 16) if device.capability[0] in (9, 10) else (4, 8)
    for cluster in sizes:
        units = round_up(ceil_div(size, cluster), 2)
        for granule in (16, 8):  # wgmma wants 64 rows, 16 units, together
            slots = round_up(units, granule)
            warps = slots // 4
            if warps <= 16 and cluster * slots // 4 + 64 <= registers_per_thread(warps):
                return Team(size, cluster, units, slots, device.capability == (9, 0) and slots % 16 == 0)
    return None


def clusters_at_once(device: Device, cluster: int) -> int:
    """For each run. A cluster stays inside one of the chip's graphics processing clusters, and those do not
    divide evenly: an H200 holds 15 clusters of 8 blocks, 7 of 16."""
    return max(1, device.multiprocessors // cluster - 1) // device.runs


def cluster_columns(device: Device, held: Team, batch: int, groups: int, backward: bool) -> int:
    """Columns of the batch per cluster: as few as keep all clusters on the chip at once, so that a larger
    batch is more clusters rather than longer steps; past that, wide tiles, as far as shared memory holds
    them, and several waves."""
    at_once = clusters_at_once(device, held.cluster)
    slices = ceil_div(batch, 8)
    for tiles in range(2, WIDEST_TILE + 1):
        bytes_needed = cluster_bytes(held, 8 * tiles, backward) + CLUSTER_BARRIER_BYTES
        if slices * groups <= at_once or bytes_needed > device.shared_bytes:
            break
        slices = ceil_div(batch, 8 * tiles)
    return round_up(ceil_div(batch, slices), 4)


def cluster_bytes(held: Team, columns: int, backward: bool) -> int:
    """Shared memory of a block: the states of the group, or backward the gradients of its gates."""
    places = held.cluster * held.slots
    elements = 4 * (places + held.slots) * (columns | 1) if backward else 2 * places * columns
    return 2 * (elements + 64)


def cluster_launch(
    device: Device, held: Team, batch: int, groups: int, dtype: torch.dtype, backward: bool
) -> Launch:
    columns = cluster_columns(device, held, batch, groups, backward)
    return Launch(
        kernel="backward_cluster" if backward else "forward_cluster",
        constants=(
            ("D", held.size),
            ("CLUSTER", held.cluster),
            ("UNITS", held.units),
            ("SLOTS", held.slots),
            ("COLUMNS", columns),
            ("WGMMA", int(held.wgmma and columns > 16)),  # narrow products: several mma chains win
            *kind_of(dtype),
        ),
        blocks=(held.cluster * groups * ceil_div(batch, columns), 1),
        threads=held.slots * 8,
        cluster=held.cluster,
        shared_bytes=cluster_bytes(held, columns, backward),
        bias_rows=8 * ceil_div(batch, columns),
    )


def grid_launch(
    device: Device, size: int, batch: int, groups: int, dtype: torch.dtype, backward: bool
) -> Launch | None:
    """All multiprocessors, shared among the groups; None when the weights do not fit them."""
    if groups > device.multiprocessors:
        return None
    for cut in BACKWARD_CUTS if backward else FORWARD_CUTS:
        launch = _grid_launch(device, size, batch, groups, dtype, backward, cut)
        if launch.shared_bytes <= device.shared_bytes:
            return launch
    return None


def _grid_launch(
    device: Device, size: int, batch: int, groups: int, dtype: torch.dtype, backward: bool, cut: Cut
) -> Launch:
    padded = round_up(size, 8)
    units = round_up(ceil_div(padded, device.multiprocessors // groups), cut.units)
    tall = ceil_div(units, 16) if backward else units // 4  # 16-row tiles of the block's weights
    tiles = ceil_div(ceil_div(batch, ceil_div(batch, 8 * cut.tiles)), 8)
    spans = ceil_div(4 * size if backward else padded, 32)
    parts = ceil_div(spans, cut.warps)
    warps = ceil_div(spans, parts)
    chunk = ceil_div(parts, ceil_div(parts, cut.flight))
    free = registers_per_thread(warps) - 4 * tiles * (tall + chunk) - GRID_REGISTERS
    held = min(parts, max(0, free) // (8 * tall))  # spans kept in registers; the rest in shared memory
    pitch = tall * 16 + 1 if backward else 4 * units + 4
    sums, cells = 2 * warps * tiles * 8 * pitch, round_up(units * batch, 4)
    return Launch(
        kernel="backward_grid" if backward else "forward_grid",
        constants=(
            ("D", size),
            ("UNITS", units),
            ("WARPS", warps),
            ("PARTS", parts),
            ("HELD", held),
            ("CHUNK", chunk),
            ("COLUMNS", 8 * tiles),
            ("PADDED", padded),
            *kind_of(dtype),
        ),
        blocks=(ceil_div(padded, units), groups),
        threads=32 * warps,
        shared_bytes=4 * (sums + cells) + (parts - held) * 2 * tall * warps * 32 * 16,
        bias_rows=8 * tiles,
        cooperative=True,
    )


def token_launch(size: int, batch: int, groups: int, dtype: torch.dtype) -> Launch:
    """One step: a warp for every unit, and no weights to keep for a next step."""
    return Launch(
        kernel="forward_token",
        constants=(("D", size), ("THREADS", TOKEN_THREADS), *kind_of(dtype)),
        blocks=(ceil_div(groups * size, TOKEN_THREADS // 32), batch),
        threads=TOKEN_THREADS,
    )


def step_launch(spec: LayerSpec, batch: int, dtype: torch.dtype) -> Launch:
    """A whole layer's step: as above, and each block pools the input for its units."""
    size = spec.hidden_size // spec.groups
    token = token_launch(size, batch, spec.groups, dtype)
    constants = (("LEVELS", spec.input.levels), ("RESIDUAL", int(spec.residual)), *token.constants)
    shared_bytes = 4 * (spec.input_size + 1)
    return replace(token, kernel="layer_step", constants=constants, shared_bytes=shared_bytes)


def is_step(spec: LayerSpec, steps: int, batch: int) -> bool:
    """Whether :func:`step_launch` serves a call without gradients of a layer that the kernels can run."""
    return steps == 1 and batch <= LARGEST_TOKEN_BATCH and spec.input_size <= LARGEST_STEP_INPUT


def has_wide_tiles(launch: Launch) -> bool:
    """Whether a cluster takes so many columns at once that no registers are left for a residual."""
    return launch.cluster > 1 and dict(launch.constants)["COLUMNS"] > WIDEST_RESIDUAL


def choose(
    device: Device,
    size: int,
    batch: int,
    groups: int,
    dtype: torch.dtype,
    backward: bool,
    single_step: bool = False,
    residual: bool = False,
) -> Launch | str:
    """The launch that serves a shape, for any number of steps or for one alone, or why none does.

    Args:
        residual: whether the kernel is to add a residual input to the gates, or to sum its gradient, if it
            has registers for it. That is a variant with ``RESIDUAL`` among its constants. Wide tiles have
            none: there a pass over memory before or after the kernel takes less time.
    """
    if residual:
        found = choose(device, size, batch, groups, dtype, backward, single_step)
        if isinstance(found, str) or has_wide_tiles(found):
            return found
        return replace(found, constants=(*found.constants, RESIDUAL))
    if size % 2:
        return f"groups of {size} units: the kernels need an even number"
    if batch > LARGEST_BATCH:
        return f"batch {batch} is above {LARGEST_BATCH}"
    if single_step and batch <= LARGEST_TOKEN_BATCH and not backward:
        return token_launch(size, batch, groups, dtype)
    held = team(device, size)
    if held is not None:
        return cluster_launch(device, held, batch, groups, dtype, backward)
    launch = grid_launch(device, size, batch, groups, dtype, backward)
    if launch is None:
        return f"{groups} group(s) of {size} units do not fit {device.multiprocessors} multiprocessors"
    return launch


choose_once = functools.lru_cache(maxsize=1024)(choose)
"""The same for callers that ask again and again; not for a compiler's tracer, whose sizes are symbols."""
