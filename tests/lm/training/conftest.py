"""One thread: the models are small, and the tests must not depend on how many cores there are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import Workshop
from small import write_corpus


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    shop = Workshop(tmp_path_factory.mktemp("workshop"))
    yield shop
    shop.close()
