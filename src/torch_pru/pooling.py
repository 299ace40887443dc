"""Sub-sampling: how one level of a pyramid comes from the level before (Eq. 3)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional as F

from torch_pru.errors import PRUError

POOLINGS = ("average", "max", "skip", "convolution")
DEFAULT_WINDOW = 3


def subsample(x: Tensor, pooling: str, window: int, kernel: Tensor | None = None) -> Tensor:
    """(…, n) to (…, n/2) (Eq. 3)."""
    if pooling == "skip":
        return x[..., 0::2]
    rows = x.reshape(-1, 1, x.shape[-1])
    if pooling == "average":
        pooled = F.avg_pool1d(rows, window, stride=2, padding=window // 2, count_include_pad=True)
    elif pooling == "max":
        pooled = F.max_pool1d(rows, window, stride=2, padding=window // 2)
    else:
        assert kernel is not None
        pooled = F.conv1d(rows, kernel.view(1, 1, window), stride=2, padding=window // 2).tanh()
    return pooled.view(*x.shape[:-1], x.shape[-1] // 2)


def level_windows(pool_window: int | Sequence[int], levels: int, pooling: str) -> tuple[int, ...]:
    """The pooling window of each level below the first; none where nothing is pooled by window."""
    if pooling == "skip":
        if pool_window != DEFAULT_WINDOW:
            raise PRUError(f"pool_window={pool_window!r} has no meaning for pooling='skip'; leave it out")
        return ()
    wrong = f"pool_window={pool_window!r} must be an odd whole number, or one for each level below the first"
    if not isinstance(pool_window, int | Sequence):
        raise PRUError(wrong)
    windows = (pool_window,) * (levels - 1) if isinstance(pool_window, int) else tuple(pool_window)
    if len(windows) != levels - 1:
        raise PRUError(
            f"pool_window={pool_window!r} has {len(windows)} windows; levels={levels} needs {levels - 1}"
        )
    for window in (*windows, pool_window) if isinstance(pool_window, int) else windows:
        if not isinstance(window, int) or isinstance(window, bool) or window < 1 or window % 2 == 0:
            raise PRUError(wrong)
    return windows
