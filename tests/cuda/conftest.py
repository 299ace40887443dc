"""What several files of GPU tests share."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def poisoned():
    """Every fresh buffer starts as NaN, so that an element nobody writes is seen."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
