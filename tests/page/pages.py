"""Small runs, and pages with them in a browser."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_pru.lm.checkpoint import Checkpoint, save_checkpoint
from torch_pru.lm.config import Config, DataConfig, ModelConfig, is_subwords
from torch_pru.lm.data import load_corpus
from torch_pru.lm.model import LanguageModel
from torch_pru.lm.run import RunFolder

TEXT = "in the beginning god created the heaven and the earth . my brother 's keeper , i said : light ! <unk>"
MARKUP = ["<script>window.hit=1</script>", "<img/src=x/onerror=window.hit=1>", "&amp;"]
TINY = ModelConfig(embedding=16, hidden=(24, 16), levels=2, groups=2)


def make_run(
    folder: Path, model: ModelConfig = TINY, tokenizer: str = "words", text: str = TEXT
) -> RunFolder:
    """A run with random weights, large enough that some words are much likelier than others."""
    corpus_folder = folder.parent / f"corpus of {tokenizer}"
    corpus_folder.mkdir(exist_ok=True)
    for split in ("train", "valid", "test"):
        (corpus_folder / f"{split}.txt").write_text(f"{text}\n")
    config = Config(name="tiny", data=DataConfig(str(corpus_folder), tokenizer), model=model)
    corpus = load_corpus(corpus_folder, tokenizer if is_subwords(tokenizer) else "auto")
    run = RunFolder.create(folder, config, corpus)
    torch.manual_seed(3)
    network = LanguageModel(config.model, config.regularization, len(corpus.vocabulary))
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    weights = dict(network.named_parameters())
    save_checkpoint(run.checkpoints, Checkpoint(weights, weights, {}))
    return RunFolder.open(folder)


@dataclass
class Opened:
    """A page in a browser, and what it did that it should not have."""

    page: Any
    url: str
    complaints: list[str] = field(default_factory=list)

    def wait(self) -> None:
        """Until every model has read the whole text and suggested words."""
        self.page.locator(".panel").first.wait_for()
        for panel in self.page.locator(".panel").all():
            panel.and_(self.page.locator("[aria-busy]")).wait_for(state="detached")

    def write(self, text: str) -> None:
        """Write a text and wait until it is read."""
        self.page.fill("textarea", text)
        self.wait()

    def surprisals(self) -> list[float]:
        """Bits of every word, by the first model."""
        details = self.page.locator(".all-words").first
        if details.get_attribute("open") is None:
            details.locator("summary").click()
        details.locator(".rows td").first.wait_for()
        cells = details.locator(".rows td:nth-child(2)")
        return [float(value) for value in cells.evaluate_all("all => all.map(one => one.dataset.value)")]

    def perplexities(self) -> tuple[float, float]:
        """Of the first model, without and with memory."""
        found = self.page.locator(".scores").first
        return tuple(float(found.get_attribute(f"data-{name}")) for name in ("alone", "together"))


Open = Callable[..., Opened]


@contextmanager
def opened(browser: Any, *runs: RunFolder, int8: bool = False, **options: Any) -> Iterator[Opened]:
    pytest.importorskip("onnx", reason="needs the extra torch-pru[onnx]")
    from torch_pru.page.server import PageServer
    from torch_pru.page.site import SITE, page_files

    if not (SITE / "index.html").is_file():
        pytest.skip("the page is not built: npm ci && npm run build in the folder page")
    with PageServer(page_files(runs, int8=int8)) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        page = browser.new_page(**options)
        found = Opened(page, server.url)
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda line: found.complaints.append(line.text) if line.type != "log" else None)
        page.on("pageerror", lambda error: found.complaints.append(str(error)))
        page.on("requestfailed", lambda request: found.complaints.append(f"failed: {request.url}"))
        page.goto(server.url)
        found.wait()
        yield found
        page.close()
        server.shutdown()
    assert found.complaints == []
    assert len(requests) > 10
    assert [url for url in requests if not url.startswith(server.url)] == []
