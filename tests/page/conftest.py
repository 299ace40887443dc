"""Small models, and a real browser that looks at their pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from pages import MARKUP, Open, make_run, opened

from torch_pru.lm.config import ModelConfig
from torch_pru.lm.run import RunFolder

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return make_run(tmp_path_factory.mktemp("page") / "tiny-1")


@pytest.fixture(scope="session")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Its name and its words are HTML; split at spaces, so that they stay whole."""
    folder = tmp_path_factory.mktemp("page") / "<img src=x onerror=window.hit=1>"
    words = " ".join([*MARKUP, "<unk>"])
    return make_run(folder, ModelConfig(unit="lstm", embedding=16, hidden=(16,)), "spaces", words)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        pytest.skip(f"no browser is installed: none of {', '.join(CHROMIUM)}")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """Opens a page with runs on it; at the end, it must have complained of nothing and asked nobody else."""
    with ExitStack() as stack:
        yield lambda *runs, **options: stack.enter_context(opened(browser, *runs, **options))


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The quickstart's model: the run that ``PRU_QUICKSTART`` names, or a new one, which takes minutes."""
    from torch_pru.lm.recipe import load_recipe
    from torch_pru.lm.training import train

    if named := os.environ.get("PRU_QUICKSTART"):
        return RunFolder.open(named)
    return train(load_recipe("quickstart", {"device": "cpu"}), tmp_path_factory.mktemp("quickstart") / "run")
