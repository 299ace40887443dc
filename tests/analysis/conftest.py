"""Runs that the tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from analysis_runs import write_corpus, write_run

from torch_pru.analysis.speech import load_tagger
from torch_pru.errors import PRUError


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("analysis") / "corpus")


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("analyzed")
    return {kind: write_run(folder / kind, kind, corpus) for kind in ("pru", "lstm")}


@pytest.fixture(scope="session")
def tagger() -> None:
    """NLTK's tagger, or the reason why a test is skipped."""
    try:
        load_tagger()
    except PRUError as error:
        pytest.skip(f"{error} (NLTK_DATA={os.environ.get('NLTK_DATA')!r})")
