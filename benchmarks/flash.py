"""An LSTM layer on FlashRNN's kernels (``pip install flashrnn``), as a rival of ours.

Heads are what the PRU calls groups: the recurrent matrix is block-diagonal. The input goes through one
full linear map. FlashRNN compiles its kernels for every width, batch and dtype at their first use, which
takes minutes and prints pages; these go to a log file.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import tempfile
import traceback
import types
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from torch_pru.ops import recurrence

LOG = Path(tempfile.gettempdir()) / "flashrnn.log"
KERNELS = {"cuda_fused": "fused", "cuda": "alternating"}  # its backends, in the order to try them
# How a backend holds a step's gates, and the recurrent matrix; given so, it has nothing to transpose.
# G: gates i, f, g, o, as in nn.LSTM; H: heads; D: a head's units; P: its units at the step before.
ORDERS = {"cuda_fused": ("HDG", "HDGP"), "cuda": ("HGD", "HPGD")}


def installed() -> bool:
    return importlib.util.find_spec("flashrnn") is not None


class FlashLSTM(nn.Module):
    """An LSTM layer of ``heads`` blocks, (T, B, width) to (T, B, width), for one batch size.

    ``backend`` is FlashRNN's, or "reference": the same layer in plain PyTorch, to check it against.
    """

    def __init__(self, width: int, heads: int, batch: int, backend: str) -> None:
        super().__init__()
        self.sizes = {"G": 4, "H": heads, "D": width // heads, "P": width // heads}
        self.gates, self.matrix = ORDERS[backend]
        self.backend = backend
        # Its fused kernels take eight sequences at a time and, left to pad them, test themselves unpadded.
        self.padding = -batch % 8 if backend == "cuda_fused" else 0
        self.batch = batch
        self.input = nn.Linear(width, 4 * width, bias=False)  # rows in the order of self.gates
        bound = self.sizes["D"] ** -0.5
        self.recurrent = nn.Parameter(torch.empty(self._shape(self.matrix)).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(self._shape(self.gates)).uniform_(-bound, bound))

    def _shape(self, letters: str) -> list[int]:
        return [self.sizes[letter] for letter in letters]

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        if self.backend == "reference":
            return self._reference(x), None
        from flashrnn import FlashRNNConfig, flashrnn

        config = FlashRNNConfig(
            function="lstm",
            backend=self.backend,
            dtype=str(x.dtype).removeprefix("torch."),
            num_heads=self.sizes["H"],
            head_dim=self.sizes["D"],
            batch_size=self.batch + self.padding,
            input_shape="TB" + self.gates,
            recurrent_shape=self.matrix,
            bias_shape=self.gates,
            output_shape="STBHD",
        )
        x = functional.pad(x, (0, 0, 0, self.padding)) if self.padding else x
        gates = self.input(x).unflatten(-1, self._shape(self.gates))
        states, _ = flashrnn(gates, self.recurrent, self.bias, config=config)
        return states[0, :, : self.batch].flatten(-2), None

    def _reference(self, x: Tensor) -> Tensor:
        gates = self.input(x).unflatten(-1, self._shape(self.gates))
        gates = gates.permute(0, 1, *(2 + self.gates.index(letter) for letter in "GHD")).flatten(-2)
        matrix = self.recurrent.permute(*(self.matrix.index(letter) for letter in "HGDP"))
        bias = self.bias.permute(*(self.gates.index(letter) for letter in "GHD")).flatten(-2)
        state = gates.new_zeros(gates.shape[1], gates.shape[3])
        return recurrence(gates, matrix, bias, state, state, backend="reference")[0]


@contextlib.contextmanager
def logged() -> Iterator[None]:
    """What this process and its compilers print goes to the log, and the error that ends it."""
    sys.stdout.flush()
    kept = [os.dup(1), os.dup(2)]
    with LOG.open("ab") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    try:
        yield
    except Exception:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for stream, before in enumerate(kept, start=1):
            os.dup2(before, stream)
            os.close(before)


def prepare() -> None:
    """Let FlashRNN 1.0.8 run under CUDA 13, and start at once."""
    library = importlib.import_module("flashrnn.flashrnn.flashrnn")
    library.get_gpu_info = _gpu_info  # its own does not compile: it reads fields that CUDA 13 has dropped
    # Before each load it sleeps up to ten seconds, so that several processes do not compile the same thing.
    loader = importlib.import_module("flashrnn.flashrnn.cuda_init")
    loader.time = types.SimpleNamespace(sleep=lambda seconds: None)


def _gpu_info(device_id: int) -> dict[str, int]:
    """What FlashRNN cuts its tiles by."""
    of = torch.cuda.get_device_properties(device_id)
    return {
        "maxThreadsPerBlock": 1024,  # of every NVIDIA GPU
        "regsPerMultiprocessor": of.regs_per_multiprocessor,
        "multiProcessorCount": of.multi_processor_count,
        "sharedMemPerBlockOptin": of.shared_memory_per_block_optin,
    }


def reason(error: Exception, layer: FlashLSTM) -> str:
    """In a few words, why a backend does not run."""
    said = str(error).strip().partition("\n")[0]
    if "solution of constraints" in said:
        need = "" if layer.sizes["D"] % 16 == 0 else ", needs a multiple of 16"
        return f"no tiling for heads of {layer.sizes['D']}{need}"
    if "Error building" in said:
        return f"does not compile, see {LOG}"
    return f"{type(error).__name__}: {said[:60]}"


def forget_failure(device: torch.device) -> None:
    """A launch that failed leaves its error for the next launch to report: let it be this one."""
    with contextlib.suppress(RuntimeError):
        torch.ones(1, device=device)
