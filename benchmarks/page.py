"""Download, time to the first suggestion and time per key of ``pru page``, in Chromium without a window.

    python benchmarks/page.py runs/quickstart-1 runs/ptb-awd-pru-g4-1 [--json FILE]

The page is fetched from this machine, so the time to the first suggestion is without a network. A key counts
from its press to the frame that shows the new suggestions. docs/page.md shows the record.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import threading
from itertools import islice
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from torch_pru.lm.data import tokenizer_of
from torch_pru.lm.evaluation import generate
from torch_pru.lm.model import parameter_counts
from torch_pru.lm.run import RunFolder
from torch_pru.page.server import PageServer
from torch_pru.page.site import page_files, read

ROOT = Path(__file__).parents[1]
WORDS, LONG = 200, 2000  # words that are there already, and those of a long text
KEYS = 100  # that are then pressed
OPENINGS = 5
TYPED = "and the people said unto him that they would not go up to the house of the king in the morning " * 3


def main() -> None:
    """Measure runs and print a table."""
    parser = argparse.ArgumentParser(description="Measure `pru page` with the models of runs.")
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--json", type=Path, help="also write the record to this file")
    options = parser.parse_args()
    rows = []
    with sync_playwright() as playwright:
        program = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for path in options.runs:
            for int8 in (False, True):
                rows.append(measured(browser, RunFolder.open(path), int8=int8))
                print(json.dumps(rows[-1]), flush=True)
        about = about_this_machine(browser)
        browser.close()
    print(json.dumps(about))
    if options.json:
        record = {"about": about, "rows": rows}
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def about_this_machine(browser: Browser) -> dict[str, str | int]:
    """What the times depend on."""
    packages = json.loads((ROOT / "page" / "package.json").read_text())
    processors = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "chromium": browser.version,
        "onnxruntime-web": packages["dependencies"]["onnxruntime-web"],
        "processor": processors[0],
        "cores": len(processors),
        "words before": WORDS,
        "words before, long text": LONG,
        "keys": KEYS,
    }


def measured(browser: Browser, run: RunFolder, *, int8: bool) -> dict[str, Any]:
    """One row: a run in one precision."""
    files = page_files([run], int8=int8)
    sizes = {name: len(read(content)) for name, content in files.items()}
    model = sum(size for name, size in sizes.items() if name.startswith("models/"))
    with PageServer(files) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        first = [first_suggestion(browser, server.url) for _ in range(OPENINGS)]
        start = start_of(run)
        keys = key_times(browser, server.url, start)
        long = key_times(browser, server.url, f"{start}\n" * (LONG // WORDS))
        server.shutdown()
    return {
        "run": run.config.name,
        "weights": "int8" if int8 else "float32",
        "parameters": parameter_counts(run.model()).total,
        "model MB": round(model / 1e6, 2),
        "page and runtime MB": round((sum(sizes.values()) - model) / 1e6, 2),
        "first suggestion ms": round(sorted(first)[len(first) // 2]),
        "keys answered": len(keys),
        "key ms, median": round(keys[len(keys) // 2], 1),
        "key ms, 95th percentile": round(keys[int(0.95 * len(keys))], 1),
        "keys answered, long text": len(long),
        "key ms, median, long text": round(long[len(long) // 2], 1),
    }


def start_of(run: RunFolder) -> str:
    """A text of about 200 words."""
    tokens = islice(generate(run.model(), run.vocabulary, seed=1), WORDS)
    return tokenizer_of(run.config.data).join(token for token in tokens if token != "<eos>") + " "


def opened(browser: Browser, url: str) -> Page:
    """The page, with its first suggestions."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(url)
    page.locator(".suggestions button").first.wait_for()
    return page


def first_suggestion(browser: Browser, url: str) -> float:
    """Milliseconds from opening the page to the first suggestions; nothing is cached."""
    page = opened(browser, url)
    page.wait_for_timeout(100)
    found: float = page.evaluate("performance.getEntriesByName('first-0')[0].startTime")
    page.close()
    return found


def key_times(browser: Browser, url: str, text: str) -> list[float]:
    """Sorted milliseconds of 100 keys at the end of a text, typed at eight keys a second."""
    page = opened(browser, url)
    page.fill("textarea", text)
    page.locator(".panel:not([aria-busy])").wait_for(timeout=200_000)
    page.wait_for_timeout(1000)
    page.evaluate("performance.clearMeasures()")
    page.locator("textarea").press_sequentially(TYPED[:KEYS], delay=125)
    page.wait_for_timeout(500)
    found: list[float] = page.evaluate("performance.getEntriesByName('key-0').map(each => each.duration)")
    page.close()
    assert len(found) >= 0.9 * KEYS, f"{len(found)} of {KEYS} keys were answered before the next one"
    return sorted(found)


if __name__ == "__main__":
    main()
