"""One token through a model in a kernel a layer and one for the decoder, at batch 1 and in 16 bits.

A *key* is a word and its score in one int64, such that the largest key is the best word's: the decoder of one
token leaves the key that the first layer of the next one reads. ``~word`` is a key of any word.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .launch import launch_on, unserved
from .plan import Launch, ceil_div

UNITS = 2  # of a block, a warp for each gate; the kernels need groups of an even number of units
WARPS, WORDS = 8, 2  # of a block of the decoder, and rows of each warp
LARGEST_ROW = 16384  # elements that shared memory holds


class TokenLayer:
    """A layer's weights as its kernel reads them.

    Args:
        inputs: (4, M, N), 16 bits, of the input; any strides.
        context: (G, 4, D, D), of the context.
        bias: (4, M) float32 or None.
        residual: whether the input is added to every gate; then N = M.
    """

    def __init__(self, inputs: Tensor, context: Tensor, bias: Tensor | None, residual: bool) -> None:
        size = context.shape[-1]
        by_unit = (inputs.transpose(0, 1), context.transpose(1, 2).reshape(-1, 4, size))
        self.weight = torch.cat([padded(part) for part in by_unit], dim=-1).contiguous()
        self.bias = None if bias is None else bias.float().contiguous()
        bf16 = self.weight.dtype == torch.bfloat16
        self.launch = layer_launch(inputs.shape[-1], size, inputs.shape[1], residual, bf16)

    def __call__(self, x: Tensor, key: Tensor | None, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """The state after one step.

        Args:
            x: (1, N) the input, or with ``key`` (V, padded N), of which the key's word names the row.
            key: (1,) int64 or None.
            h, c: (1, M) the state before, 16 bits and float32.
        """
        hn, cn = torch.empty_like(h), torch.empty_like(c)
        tensors = (self.weight, self.bias, x, key, h, c, hn, cn)
        launch_on(self.launch, h.device, tensors, (h.shape[1],))
        return hn, cn


def token_scores(h: Tensor, weight: Tensor, offset: Tensor, key: Tensor) -> Tensor:
    """Scores (1, V) = W·h + offset, float32, and the best word's in ``key``.

    Args:
        h: (1, E), 16 bits.
        weight: (V, padded E), as ``padded`` gives it.
        offset: (V,) float32.
        key: (1,) int64, zero beforehand.
    """
    words = len(weight)
    scores = torch.empty(1, words, device=h.device, dtype=torch.float32)
    launch = scores_launch(h.shape[1], words, weight.dtype == torch.bfloat16)
    launch_on(launch, h.device, (weight, offset, h, scores, key), (words,))
    return scores


def padded(rows: Tensor) -> Tensor:
    """(…, n) with zeros up to the next multiple of 8, contiguous: rows then start at 16 bytes."""
    return F.pad(rows, (0, -rows.shape[-1] % 8)).contiguous()


def covers(weight: Tensor, row: int) -> bool:
    """Whether the kernels serve such weights, and rows of ``row`` elements."""
    sixteen_bits = weight.dtype in (torch.float16, torch.bfloat16)
    fitting = weight.is_cuda and sixteen_bits and row <= LARGEST_ROW
    return fitting and unserved(weight.device.index) is None


def layer_launch(inputs: int, size: int, width: int, residual: bool, bf16: bool) -> Launch:
    """A warp for each gate of each unit."""
    constants = (
        ("N", inputs),
        ("D", size),
        ("UNITS", UNITS),
        ("RESIDUAL", int(residual)),
        ("BF16", int(bf16)),
    )
    return Launch("token_layer", constants, (width // UNITS, 1), 32 * 4 * UNITS)


def scores_launch(inputs: int, words: int, bf16: bool) -> Launch:
    """A warp for every few words."""
    constants = (("N", inputs), ("WARPS", WARPS), ("WORDS", WORDS), ("BF16", int(bf16)))
    return Launch("token_scores", constants, (ceil_div(words, WARPS * WORDS), 1), 32 * WARPS)
