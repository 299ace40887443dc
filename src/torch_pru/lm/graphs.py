"""CUDA graphs: repeated work is captured once and then launched as a whole."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext, suppress

import torch

from torch_pru import PRU
from torch_pru.lm.model import LanguageModel


def can_capture(model: LanguageModel) -> bool:
    """Whether steps of a model can be captured: on a GPU, if all layers are PRUs.

    ``nn.LSTM`` with weight drop cannot be captured, because cuDNN copies its weights at every call.
    """
    return model.embedding.weight.is_cuda and all(isinstance(layer, PRU) for layer in model.layers)


class GraphedFunction:
    """Runs a function eagerly at the first call, captures it at the second, and replays it from then on.

    The first call compiles and warms up what the function needs. The function must be the same at every call,
    and read and write tensors whose addresses do not change.

    Args:
        capture: False runs the function eagerly at every call.
    """

    def __init__(self, capture: bool) -> None:
        self.capture, self.warm = capture, False
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, run: Callable[[], object]) -> None:
        if not (self.warm and self.capture):
            run()
            self.warm = True
            return
        if self.graph is None:
            graph = torch.cuda.CUDAGraph()
            # thread_local: other threads may use the device during the capture.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                run()
            self.graph = graph
        self.graph.replay()


class GraphCache:
    """Runs functions as CUDA graphs, one per key, that draw random numbers and share one memory pool.

    The first call with a key runs eagerly, the second is captured, later ones are replayed. The graphs run
    one after the other, and what outlives a call must not lie in their pool.

    Args:
        device: where the functions run.
        generator: what the functions draw from; every replay draws new numbers.

    Attributes:
        graphs: by key; None for a key that has been run but not captured.
        full: whether a capture has run out of memory. From then on new keys run eagerly.
    """

    def __init__(self, device: torch.device, generator: torch.Generator) -> None:
        self.generator = generator
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream(device)
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph | None] = {}
        self.full = False

    def __call__(self, key: Hashable, run: Callable[[], None]) -> None:
        """Run a function, which must do the same at every call with this key."""
        if key not in self.graphs:
            run()
            self.graphs[key] = None
            return
        graph = self.graphs[key] or self._try_to_capture(run)
        self.graphs[key] = graph
        if graph is None:
            run()
        else:
            graph.replay()

    def release(self) -> None:
        """Destroy the graphs. A process group whose exchanges they have cannot end before that."""
        for graph in self.graphs.values():
            if graph is not None:
                graph.reset()
        self.graphs.clear()

    def _try_to_capture(self, run: Callable[[], None]) -> torch.cuda.CUDAGraph | None:
        if self.full:
            return None
        try:
            return self._capture(run)
        except torch.OutOfMemoryError:
            warnings.warn(
                "not enough GPU memory for another CUDA graph; windows of other lengths run without one",
                stacklevel=4,
            )
            self.full = True
            return None

    def _capture(self, run: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            graph.capture_begin(pool=self.pool)
            try:
                run()
            except BaseException:
                with suppress(RuntimeError):  # the capture is broken; the first error says why
                    graph.capture_end()
                raise
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(self.stream)
        return graph


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """A context in which ``device`` is the current CUDA device; nothing changes for a CPU."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
