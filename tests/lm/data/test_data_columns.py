from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_pru.errors import PRUError
from torch_pru.lm.data import columns


@given(length=st.integers(2, 200), batch=st.integers(1, 100))
def test_each_column_is_a_stretch_of_the_text(length: int, batch: int) -> None:
    if length // batch < 2:
        with pytest.raises(PRUError, match=f"batch={batch} is too large .* at most {length // 2}"):
            columns(torch.arange(length), batch)
        return
    ids = torch.arange(length)
    table = columns(ids, batch)
    rows = length // batch
    assert table.shape == (rows, batch)
    assert table.data_ptr() == ids.data_ptr()  # a text that is mapped from disk is not copied
    for column in range(batch):
        assert table[:, column].tolist() == list(range(column * rows, (column + 1) * rows))


def test_the_batch_that_the_message_offers_is_accepted() -> None:
    assert columns(torch.arange(9), 4).shape == (2, 4)


@pytest.mark.parametrize("batch", [0, -1, 2.0, True])
def test_a_bad_batch_is_refused(batch: object) -> None:
    with pytest.raises(PRUError, match="batch="):
        columns(torch.arange(10), batch)  # type: ignore[arg-type]


def test_text_in_two_dimensions_is_refused() -> None:
    with pytest.raises(PRUError, match=r"shape \(2, 5\)"):
        columns(torch.zeros(2, 5), 2)
