"""The page in a real browser: Chromium without a window, at the width of a telephone."""

from __future__ import annotations

import http.server
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from torch_pru.analysis import analyze

WIDTH = 375

# A browser's own window cannot be so narrow; a frame can, and lays its page out in the same way.
FRAME = """<!DOCTYPE html><link rel="icon" href="data:,"><iframe src="index.html" width="%d" height="800"
style="border: 0"></iframe><pre></pre><script>
onload = async () => {
  const page = document.querySelector("iframe").contentDocument;
  const images = [...page.images];
  await Promise.all(images.map(image => image.decode()));
  const root = page.documentElement;
  document.querySelector("pre").textContent = JSON.stringify({
    width: root.clientWidth,
    needed: root.scrollWidth,
    images: images.map(image => [image.naturalWidth, image.getBoundingClientRect().width, image.alt]),
    past: [...page.querySelectorAll("body *")].filter(
      element => element.getBoundingClientRect().right > root.clientWidth + 0.5).length,
    text: parseFloat(getComputedStyle(page.querySelector("p")).fontSize),
  });
};
</script>"""


class Server(http.server.ThreadingHTTPServer):
    """Serves a folder and notes what is asked for."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), partial(Handler, directory=str(folder)))


class Handler(http.server.SimpleHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *arguments: object) -> None:
        self.server.asked.append(self.path)


@pytest.fixture
def browser() -> str:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip(f"needs a browser, and none of {', '.join(names)} is installed")
    return found


@pytest.fixture
def server(runs: dict[str, Path], tmp_path: Path) -> Iterator[Server]:
    analyze(
        runs.values(),
        tmp_path,
        only=["confidence", "saliency", "coverage", "curves", "sweep"],
        sentences=["the old dog quickly sees the <unk> man and he [finds] it"],
    )
    (tmp_path / "frame.html").write_text(FRAME % WIDTH)
    server = Server(tmp_path)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def open_frame(browser: str, server: Server, profile: Path) -> tuple[dict[str, Any], str]:
    """What the frame's script has found, and everything the browser logged."""
    done = subprocess.run(
        [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--enable-logging=stderr", "--v=0", f"--user-data-dir={profile}", "--no-first-run"),
            *("--disable-background-networking", "--window-size=800,900", "--virtual-time-budget=10000"),
            *("--dump-dom", f"http://127.0.0.1:{server.server_port}/frame.html"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    found = re.search(r"<pre>(.+?)</pre>", done.stdout, re.DOTALL)
    assert found, f"the page did not load: {done.stderr[-2000:]}"
    return json.loads(unescape(found[1])), done.stderr


def test_the_page_on_a_telephone(browser: str, server: Server, tmp_path: Path) -> None:
    found, log = open_frame(browser, server, tmp_path / "profile")
    assert "CONSOLE" not in log, log
    assert len(found["images"]) == 6
    for natural, shown, words in found["images"]:
        assert natural > 0  # it was drawn, not broken
        assert 300 < shown <= WIDTH  # wide enough to read, and not past the edge
        assert words
    assert found["needed"] <= found["width"] <= WIDTH
    assert found["past"] == 0
    assert found["text"] >= 16
    assert set(server.asked) == {"/frame.html", "/index.html"}  # nothing but itself


def test_the_log_would_show_an_error(browser: str, server: Server, tmp_path: Path) -> None:
    """The check above can fail: an error of a page's script is in the log."""
    page = tmp_path / "index.html"
    page.write_text(page.read_text().replace("</body>", "<script>console.error('broken')</script></body>"))
    _, log = open_frame(browser, server, tmp_path / "profile")
    assert "CONSOLE" in log
    assert "broken" in log
