"""Sub-sampling: how one level of a pyramid comes from the level before (Eq. 3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_pru.errors import PRUError, as_integer, shown

POOLINGS = ("average", "max", "skip", "convolution")
"""The values of ``pooling``; `subsample` has a case for each. CONTRIBUTING.md says how to add one."""

DEFAULT_WINDOW = 3
LARGEST_WINDOW = 1023


def pyramid(x: Tensor, pooling: str, windows: Sequence[int], kernels: Sequence[Tensor] = ()) -> list[Tensor]:
    """The views of x (…, N) at every level: (…, N), (…, N/2), …

    Args:
        pooling: one of ``POOLINGS``.
        windows: the window of each level below the first.
        kernels: with ``pooling="convolution"``, the kernel (window,) of each of these levels.
    """
    views = [x]
    for level, window in enumerate(windows):
        views.append(subsample(views[-1], pooling, window, kernels[level] if kernels else None))
    return views


def subsample(x: Tensor, pooling: str, window: int, kernel: Tensor | None = None) -> Tensor:
    """(…, n) to (…, n/2) (Eq. 3)."""
    if pooling == "skip":
        return x[..., 0::2]
    if pooling == "convolution":
        assert kernel is not None
        return _convolve(x, kernel).tanh()
    rows, padding = x.reshape(-1, 1, x.shape[-1]), window // 2
    if pooling == "average":
        pooled = F.avg_pool1d(rows, window, stride=2, padding=padding, count_include_pad=True)
    elif pooling == "max":
        pooled = F.max_pool1d(rows, window, stride=2, padding=padding)
    else:
        raise PRUError(f"subsample has no case for pooling={pooling!r}")
    return pooled.view(*x.shape[:-1], x.shape[-1] // 2)


def _convolve(x: Tensor, kernel: Tensor) -> Tensor:
    """(…, n) and (window,) to (…, n/2); the convolutions of libraries are slow with a single channel."""
    padded = F.pad(x, (len(kernel) // 2,) * 2)
    shifted = [padded[..., j : j + x.shape[-1] : 2] for j in range(len(kernel))]
    return torch.stack([weight * view for weight, view in zip(kernel, shifted, strict=True)]).sum(0)


def checked_window(pool_window: int | Sequence[int]) -> int | tuple[int, ...]:
    """``pool_window`` as an integer or a tuple; raises unless it is odd, or each one is."""
    several = isinstance(pool_window, list | tuple)
    windows = [as_integer(window) for window in (pool_window if several else [pool_window])]  # type: ignore[union-attr]
    if any(window is None or not 1 <= window <= LARGEST_WINDOW or window % 2 == 0 for window in windows):
        raise PRUError(
            f"pool_window={shown(pool_window)} must be an odd integer up to {LARGEST_WINDOW}, or a list with "
            f"one for each level below the first"
        )
    found = tuple(window for window in windows if window is not None)
    return found if several else found[0]


def level_windows(pool_window: int | tuple[int, ...], levels: int, pooling: str) -> tuple[int, ...]:
    """The pooling window of each level below the first; 1 where every second feature is skipped."""
    if pooling == "skip":
        if pool_window != DEFAULT_WINDOW:
            raise PRUError(f"pool_window={pool_window!r} has no effect with pooling='skip'; leave it out")
        return (1,) * (levels - 1)
    windows = (pool_window,) * (levels - 1) if isinstance(pool_window, int) else pool_window
    if len(windows) != levels - 1:
        raise PRUError(
            f"pool_window={pool_window!r} has {len(windows)} windows; levels={levels} needs {levels - 1}"
        )
    return windows
