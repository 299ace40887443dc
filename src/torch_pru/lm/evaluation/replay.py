"""Steps that repeat, as CUDA graphs: one launch for all of a step's kernels."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from torch_pru import PRU
from torch_pru.lm.model import LanguageModel


def can_replay(model: LanguageModel) -> bool:
    """Whether steps of a model can be captured: on a GPU, where all layers are PRUs.

    Not with ``nn.LSTM``: with weight drop cuDNN moves its weights at every call.
    """
    return model.embedding.weight.is_cuda and all(isinstance(layer, PRU) for layer in model.layers)


class Replayed:
    """Runs a function as it stands at the first call, captures it at the second, and then replays it.

    The first run compiles and warms up all that the function needs. The function must be the same at every
    call, and read and write tensors that stay where they are.

    Args:
        graph: False runs the function as it stands at every call.

    Example:
        >>> total, replayed = torch.zeros(1), Replayed(graph=False)
        >>> for _ in range(2):
        ...     replayed(lambda: total.add_(1))
        >>> total
        tensor([2.])
    """

    def __init__(self, graph: bool) -> None:
        self.graph, self.warm = graph, False
        self.captured: torch.cuda.CUDAGraph | None = None

    def __call__(self, run: Callable[[], object]) -> None:
        if not (self.warm and self.graph):
            run()
            self.warm = True
            return
        if self.captured is None:
            captured = torch.cuda.CUDAGraph()
            # Other threads may go on using the device meanwhile.
            with torch.cuda.graph(captured, capture_error_mode="thread_local"):
                run()
            self.captured = captured
        self.captured.replay()


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Inside, ``device`` is the current one where it is a GPU: graphs are captured there."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
