"""How the benchmarks measure: rivals interleaved in one run, medians, peak memory of a fresh process."""

from __future__ import annotations

import functools
import json
import multiprocessing
import re
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch


def interleaved(
    calls: Mapping[str, Callable[[], object]],
    device: torch.device,
    repeats: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median seconds of each call; in every round each is run once, so that all meet the same weather.

    ``clock`` is for calls on the CPU; ``time.thread_time`` does not count what other processes take.
    """
    on_host = functools.partial(_host_seconds, clock=clock)
    measure = _cuda_seconds if device.type == "cuda" else on_host
    inner = {name: _inner_repeats(call, measure) for name, call in calls.items()}
    rounds = [{name: measure(call, inner[name]) for name, call in calls.items()} for _ in range(repeats)]
    return {name: statistics.median(r[name] for r in rounds) for name in calls}


def captured(call: Callable[[], object]) -> Callable[[], object] | None:
    """The same work as a CUDA graph, so that the device is timed and not Python; None if it cannot be."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    try:
        with torch.cuda.graph(graph):
            call()
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return graph.replay


def host_seconds(
    calls: Mapping[str, Callable[[], object]], repeats: int = 5, count: int = 20
) -> dict[str, float]:
    """Median seconds that the host needs to submit a call to the GPU, while it does not wait for the GPU."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            torch.cuda.synchronize()
            taken[name].append(_host_seconds(call, count, time.perf_counter))
    torch.cuda.synchronize()
    return {name: statistics.median(rounds) for name, rounds in taken.items()}


def _inner_repeats(call: Callable[[], object], measure: Callable, at_least: float = 0.02) -> int:
    """How often to run a call so that one measurement lasts long enough to be read off a clock."""
    measure(call, 1)  # the first call pays for allocations and kernel choices
    return max(1, min(200, int(at_least / max(measure(call, 1), 1e-7))))


def _host_seconds(call: Callable[[], object], count: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(count):
        call()
    return (clock() - start) / count


def _cuda_seconds(call: Callable[[], object], count: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(count):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3 / count


def peak_megabytes(
    build: Callable[..., Callable[[], object]], *arguments: object, device: torch.device
) -> float:
    """Most memory that ``build(*arguments)()`` takes beyond what it holds before its first run."""
    if device.type == "cuda":
        call = build(*arguments)
        call()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        return (torch.cuda.max_memory_allocated() - before) / 1e6
    context = multiprocessing.get_context("spawn")  # a process's peak never falls: each needs its own
    queue = context.Queue()
    process = context.Process(target=_report_peak, args=(queue, build, arguments))
    process.start()
    peak = queue.get()
    process.join()
    return peak


def _report_peak(queue, build, arguments) -> None:
    call = build(*arguments)
    before = _resident_peak()
    call()
    queue.put(_resident_peak() - before)


def _resident_peak() -> float:
    """This process's largest resident memory so far, in MB (Linux)."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found.group(1)) / 1e3 if found else float("nan")


def place(device: torch.device) -> str:
    """Where a benchmark ran: the GPU, or the number of threads on a CPU, and PyTorch's version."""
    gpu = device.type == "cuda"
    where = torch.cuda.get_device_name(device) if gpu else f"{torch.get_num_threads()} CPU threads"
    return f"{where}, PyTorch {torch.__version__}"


def table(title: str, header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [f"\n**{title}**\n", "| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def write_record(path: Path, tables: list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]) -> None:
    """Write tables as JSON, under each title one object per row; other tables of the file are kept."""
    record = json.loads(path.read_text()) if path.exists() else {}
    for title, header, rows in tables:
        record[title] = [dict(zip(header, row, strict=True)) for row in rows]
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
