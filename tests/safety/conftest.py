"""A finished run and an interrupted one, made once; tests damage copies of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from attack import train_run, write_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("safety") / "corpus")


@pytest.fixture(scope="session")
def finished_run(corpus: Path) -> Path:
    return train_run(corpus, corpus.parent / "finished")


@pytest.fixture(scope="session")
def interrupted_run(corpus: Path) -> Path:
    return train_run(corpus, corpus.parent / "interrupted", stop_after=6)


@pytest.fixture
def finished(finished_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_run, tmp_path / "here" / "finished"))


@pytest.fixture
def interrupted(interrupted_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(interrupted_run, tmp_path / "here" / "interrupted"))


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A victim's folder beside that of the runs."""
    folder = tmp_path / "outside"
    (folder / "documents").mkdir(parents=True)
    (folder / ".bashrc").write_text("alias ll='ls -l'\n")
    (folder / "documents" / "thesis.txt").write_text("once upon a time\n" * 3000)
    return folder
