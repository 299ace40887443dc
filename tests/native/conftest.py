"""The tests of the CPU kernels need the library; without a compiler they are skipped, with the reason."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from torch_pru.ops.native import library


@pytest.fixture(autouse=True)
def _library_is_there() -> None:
    reason = library.missing_reason()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
    library.library().choose_kernels(BEST)


BEST = b"" if library.missing_reason() else library.library().kernels()
