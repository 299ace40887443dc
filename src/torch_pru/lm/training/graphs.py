"""Training steps as CUDA graphs: one launch for a whole step, so that the device never waits for the host."""

from __future__ import annotations

import warnings
from contextlib import suppress

import torch
from torch import Tensor

from torch_pru.lm.model import State, flat
from torch_pru.lm.training.step import TrainingStep

Key = tuple[int, bool]
"""Steps T of the window, and whether the weights are being averaged: what a captured step depends on."""


class GraphedStep:
    """A :class:`TrainingStep` that is captured once for each length of window and then replayed.

    The first window of a length runs as it stands, which compiles and warms up all that it needs; the next
    of that length is captured. All graphs share one pool of memory: they run one after another, and what
    outlives a step (weights, average, state, loss) lies outside of it.

    Args:
        step: what to run.
        text: (T_total, B), the columns of the training text, on the device.

    Example:
        >>> graphed = GraphedStep(step, text)                                # doctest: +SKIP
        >>> state, loss = graphed(0, 68, state)                              # doctest: +SKIP
    """

    def __init__(self, step: TrainingStep, text: Tensor) -> None:
        self.step = step
        self.text = text
        self.state: State = step.model.initial_state(text.shape[1])
        self.loss = torch.zeros((), device=text.device)
        self.first_row = torch.zeros((), dtype=torch.int64, device=text.device)
        self.rows = torch.arange(len(text), device=text.device)
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream(text.device)
        self.graphs: dict[Key, torch.cuda.CUDAGraph | None] = {}  # None: met, not captured
        self.full = False

    def __call__(self, first: int, length: int, state: State) -> tuple[State, Tensor]:
        """Learn from the window of ``length`` rows at row ``first``, as ``TrainingStep`` does.

        The state and the loss that it returns are overwritten by the next call.
        """
        self.first_row.fill_(first)
        if state is not self.state:
            self._set_state(state)
        key = (length, self.step.optimizer.averages is not None)
        if key not in self.graphs:
            self._run(length)
            self.graphs[key] = None
        else:
            graph = self.graphs[key] or self._try_to_capture(length)
            self.graphs[key] = graph
            if graph is None:
                self._run(length)
            else:
                graph.replay()
        return self.state, self.loss

    def _try_to_capture(self, length: int) -> torch.cuda.CUDAGraph | None:
        """The graph of a length, or None where memory is short: from then on, new lengths run as they are."""
        if self.full:
            return None
        try:
            return self._capture(length)
        except torch.OutOfMemoryError:
            warnings.warn(
                f"no memory for the graph of {length} steps: such windows run step by step", stacklevel=2
            )
            self.full = True
            return None

    def _set_state(self, state: State) -> None:
        torch._foreach_copy_(flat(self.state), flat(state))

    def _run(self, length: int) -> None:
        window = self.text[self.rows[: length + 1] + self.first_row]
        state, loss = self.step(window[:-1], window[1:], self.state)
        torch._foreach_copy_([*flat(self.state), self.loss], [*flat(state), loss])

    def _capture(self, length: int) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.step.masks.generator)  # so that every replay draws new masks
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            graph.capture_begin(pool=self.pool)
            try:
                self._run(length)
            except BaseException:
                with suppress(RuntimeError):  # it says again that it is broken; why, was said first
                    graph.capture_end()
                raise
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(self.stream)
        return graph
