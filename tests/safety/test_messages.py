"""What users and strangers type or plant ends in a line that can be read, and in nothing else."""

from __future__ import annotations

import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from attack import SETTINGS, pru

from torch_pru import PRU, PRUError, load_reference_weights
from torch_pru.lm.config import build_config
from torch_pru.lm.data import download as download_module
from torch_pru.lm.data.download import MirrorError, download
from torch_pru.lm.files import Folder, locked
from torch_pru.lm.records import read_results
from torch_pru.lm.seal import seal
from torch_pru.lm.training import TrainingProgress, train
from torch_pru.lm.training.distributed import is_lost_connection, joined_world
from torch_pru.lm.visible import visible

ESCAPE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
EVIL = "\x1b[2J\x1b[31m"


# ------------------------------------------------------------------------------------ control characters


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("naïve 漢字 😀 क्‍ष", "naïve 漢字 😀 क्‍ष"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("a\rb\x7f\x9b", "a\\rb\\x7f\\x9b"),
        ("\u202eabc\u2066", "\\u202eabc\\u2066"),
        ("\udc80\ue000", "\\udc80\\ue000"),
        ("a\nb\tc", "a\\nb\\tc"),
    ],
)
def test_control_characters_are_made_visible(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert visible("a\nb\tc\x1b", lines=True) == "a\nb\tc\\x1b"


def with_evil_words(run: Path) -> Path:
    """Every word of a run begins with an escape sequence."""
    words = (run / "vocabulary.txt").read_text().split()
    marked = [word if word.startswith("<") else f"{EVIL}{word}" for word in words]
    (run / "vocabulary.txt").write_text("\n".join(marked) + "\n")
    assert pru("verify", run, "--accept")[0] == 0
    return run


def test_words_of_a_stranger_do_not_reach_the_terminal(finished: Path) -> None:
    with_evil_words(finished)
    status, shown = pru("generate", finished, "--words", 20)
    assert (status, "\\x1b[2J" in shown) == (0, True)
    assert not ESCAPE.search(shown)


@pytest.mark.parametrize("command", ["generate", "resume", "evaluate", "report", "verify"])
def test_names_and_prompts_do_not_reach_the_terminal(command: str, finished: Path) -> None:
    run = finished.rename(finished.with_name(f"run{EVIL}\u202e"))
    environment = json.loads((run / "environment.json").read_text())
    environment |= {"device_name": f"{EVIL}|\n| forged | row |", "commit": f"{EVIL}abc"}
    del environment["sha256"]
    (run / "environment.json").write_bytes(seal(environment))
    options = ["--prompt", f"{EVIL}word"] if command == "generate" else []
    status, shown = pru(command, run, *options)
    assert status == 0
    assert not ESCAPE.search(shown)
    assert not any(line.startswith("| forged") for line in shown.splitlines())


def test_errors_and_warnings_show_no_control_characters(finished: Path) -> None:
    newest = max((finished / "checkpoints").iterdir())
    (newest / "state.json").unlink()
    run = finished.rename(finished.with_name(f"run{EVIL}"))
    status, shown = pru("generate", run)
    assert (status, "warning" in shown) == (0, True)
    assert not ESCAPE.search(shown)
    status, shown = pru("resume", f"nowhere{EVIL}")
    assert (status, ESCAPE.search(shown)) == (2, None)


def test_figures_and_pages_are_valid_whatever_the_words_are(finished: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with_evil_words(finished)
    run = finished.rename(finished.with_name("run\x1b\x07$x$"))
    status, shown = pru("analyze", run, "--out", tmp_path / "out", "--only", "curves")
    assert status == 0, shown
    assert not ESCAPE.search((tmp_path / "out" / "index.html").read_text())
    for path in (tmp_path / "out").glob("*.svg"):
        ElementTree.parse(path)
    assert list((tmp_path / "out").glob("*.svg"))


# ------------------------------------------------------------------------------------ settings and arguments


@pytest.mark.parametrize(
    "setting",
    [
        *("learning_rate=1e39", "weight_decay=1e300", "clip=1e39", "activation=1e308", "seed=-1"),
        *("epochs=" + "9" * 5000, "epochs=0x" + "f" * 5000, "hidden=[0x" + "f" * 5000 + "]"),
        *("levels=1000000000", "embedding=0x" + "f" * 16, "pool_window=[3, 0x" + "f" * 200 + "]"),
        *("corpus=\udc80", "hidden=" + "[" * 3000 + "]" * 3000, "hidden=" + "{a=" * 3000 + "}" * 3000),
        *("checkpoint_minutes=nan", "learning_rate=-inf", "batch=true", "unit=\x1b[31m"),
    ],
)
@pytest.mark.parametrize("command", ["settings", "params", "train"])
def test_a_setting_that_cannot_be_is_one_line(command: str, setting: str, tmp_path: Path) -> None:
    arguments = ["quickstart", "--set", setting]
    arguments += ["--out", str(tmp_path / "runs")] if command == "train" else []
    status, shown = pru(command, *arguments)
    if command in ("settings", "params") and setting in ("levels=1000000000",):
        assert status in (0, 2)
        return
    assert status == 2
    assert len(shown.splitlines()) == 1
    assert not ESCAPE.search(shown)
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 5000, "[" * 5000, "a = 1" + "0" * 5000, "a." * 3000 + "b = 1"]
)
def test_a_recipe_that_cannot_be_parsed_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "evil.toml").write_text(text)
    status, shown = pru("settings", tmp_path / "evil.toml")
    assert (status, len(shown.splitlines())) == (2, 1)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2 without RANK, MASTER_ADDR, MASTER_PORT: start several processes"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE='two' must be an integer"),
    ],
)
def test_an_environment_without_torchrun(
    environment: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PRUError, match=said), joined_world("cpu"):
        pass


def test_a_folder_name_that_is_not_utf8(tmp_path: Path, corpus: Path) -> None:
    out = os.fsencode(tmp_path) + b"/caf\xe9"
    arguments = ["train", "quickstart", "--out", out, "--set", f"corpus={corpus}", "--set", "epochs=1"]
    settings = [f"{key}={json.dumps(value)}" for key, value in SETTINGS.items() if key != "epochs"]
    done = subprocess.run(
        [sys.executable, "-m", "torch_pru", *arguments, *(part for s in settings for part in ("--set", s))],
        capture_output=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode in (0, 2), done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("mapping", [None, 3, [], "weights"])
def test_reference_weights_that_are_none(mapping: Any) -> None:
    with pytest.raises(PRUError, match="expected"):
        load_reference_weights(PRU(8, 8), mapping)
    with pytest.raises(PRUError, match="expected a PRU"):
        load_reference_weights(None, {})  # type: ignore[arg-type]


def test_complex_reference_weights_are_refused() -> None:
    layer = PRU(8, 8)
    with pytest.raises(PRUError) as missing:
        load_reference_weights(layer, {})
    names = re.findall(r"'([\w.]+)'", str(missing.value).partition("expected")[2])
    with pytest.raises(PRUError, match="complex64"):
        load_reference_weights(layer, {name: torch.zeros(8, dtype=torch.complex64) for name in names})


# ------------------------------------------------------------------------------------ folders and locks


@pytest.mark.parametrize("fate", ["deleted", "moved"])
def test_a_run_folder_that_vanishes_during_training(fate: str, corpus: Path, tmp_path: Path) -> None:
    run, reports = tmp_path / "run", 0

    def vanish(progress: TrainingProgress) -> None:
        nonlocal reports
        reports += 1
        if reports == 4:
            shutil.rmtree(run) if fate == "deleted" else run.rename(tmp_path / "elsewhere")

    with pytest.raises(PRUError, match=r"the run folder .* is gone: it was deleted or moved during training"):
        train(build_config("small", SETTINGS | {"corpus": str(corpus)}), run, progress=vanish)
    assert not run.exists()
    if fate == "moved":
        assert pru("resume", tmp_path / "elsewhere")[0] == 0


def test_a_deleted_lock_lets_nobody_in(tmp_path: Path) -> None:
    with locked(tmp_path):
        (tmp_path / "lock").unlink()
        with pytest.raises(PRUError, match="another process is using the run"), locked(tmp_path):
            pass
    with locked(tmp_path):
        pass


# ------------------------------------------------------------------------------------ several processes


def test_which_errors_are_of_a_lost_process() -> None:
    assert is_lost_connection(RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer"))
    assert not is_lost_connection(RuntimeError("a fault of ours"))
    assert not is_lost_connection(PRUError("gloo"))


# ------------------------------------------------------------------------------------ downloads


class Answers(http.server.BaseHTTPRequestHandler):
    """A server that answers as the path asks for."""

    def do_GET(self) -> None:
        kind = self.path.strip("/")
        if kind.startswith("redirect"):
            self.send_response(302)
            self.send_header("Location", kind.partition("=")[2])
            self.end_headers()
            return
        self.send_response(200)
        if kind == "words":
            self.send_header("Content-Length", "abc")
        if kind == "huge":
            self.send_header("Content-Length", str(10**15))
        self.end_headers()
        if kind == "endless":
            try:
                while True:
                    self.wfile.write(b"x" * 65536)
            except OSError:
                return

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("endless", "sends more than 1,000,000 bytes"),
        ("huge", "has 1,000,000,000,000,000 bytes; no corpus has more than"),
        ("words", "sent the Content-Length 'abc'"),
        ("redirect=ftp://127.0.0.1/a", "redirects to 'ftp://127.0.0.1/a', which is not on the web"),
        ("redirect=file:///etc/passwd", "not"),
    ],
)
def test_a_mirror_that_means_harm(
    path: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download_module, "LIMIT", 1_000_000)
    with server() as address, pytest.raises(MirrorError, match=re.escape(said)):
        download(f"{address}/{path}", tmp_path / "a.part")
    assert not (tmp_path / "a.part").exists()


# ------------------------------------------------------------------------------------ long logs


def test_a_report_of_a_long_log_takes_little_memory(finished: Path) -> None:
    lines = (finished / "metrics.jsonl").read_text().splitlines()
    step = json.loads(lines[0])
    del step["crc"]
    epoch = json.loads(next(line for line in lines if '"epoch"' in line and '"decision"' in line))
    del epoch["crc"]
    with open(finished / "metrics.jsonl", "w") as file:
        for _ in range(100_000):
            file.write(json.dumps(step) + "\n")
        file.write(json.dumps(epoch) + "\n")
    tracemalloc.start()
    read_results([finished])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 << 20
    assert Folder(finished).size("metrics.jsonl") > 20 << 20
