"""The server: this machine only, its own files only, its own names only."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx", reason="needs the extra torch-pru[onnx]")

from torch_pru import PRUError
from torch_pru.lm.run import RunFolder
from torch_pru.page import site
from torch_pru.page.server import PageServer

FILES = {
    "index.html": b"<!doctype html>",
    "a.mjs": b"1",
    "runtime/x.wasm": b"\0asm",
    "models/1/step.onnx": b"2",
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PageServer]:
    (tmp_path / "style.css").write_text("a {}")
    with PageServer({**FILES, "style.css": tmp_path / "style.css"}) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


def ask(server: PageServer, path: str, method: str = "GET", **headers: str) -> tuple[int, dict, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return found


@pytest.mark.parametrize(
    ("path", "kind", "content"),
    [
        ("/", "text/html; charset=utf-8", b"<!doctype html>"),
        ("/index.html?x=1", "text/html; charset=utf-8", b"<!doctype html>"),
        ("/a.mjs", "text/javascript; charset=utf-8", b"1"),
        ("/runtime/x.wasm", "application/wasm", b"\0asm"),
        ("/models/1/step.onnx", "application/octet-stream", b"2"),
        ("/style.css", "text/css; charset=utf-8", b"a {}"),
    ],
)
def test_its_own_files(server: PageServer, path: str, kind: str, content: bytes):
    status, headers, found = ask(server, path)
    assert (status, headers["Content-Type"], found) == (200, kind, content)
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "default-src 'none'; script-src 'self' 'wasm-unsafe-eval';" in headers["Content-Security-Policy"]
    status, headers, found = ask(server, path, "HEAD")
    assert (status, headers["Content-Length"], found) == (200, str(len(content)), b"")


@pytest.mark.parametrize(
    "path",
    [
        "/../server.py",
        "/%2e%2e/server.py",
        "/..%2fserver.py",
        "//etc/passwd",
        "/etc/passwd",
        "/models",
        "/models/1/",
        "/models/1/../1/step.onnx",
        "/index.html/",
        "/INDEX.HTML",
        "/\\..\\server.py",
        "/index.html%00",
        "/%c0%ae%c0%ae/etc/passwd",
        "http://evil.example/",
        "http://[",
    ],
)
def test_nothing_else(server: PageServer, path: str, capfd: pytest.CaptureFixture[str]):
    assert ask(server, path, Host=f"127.0.0.1:{server.server_port}")[0] == 404
    assert capfd.readouterr().err == ""


def test_files_beside_the_served_ones_stay_unknown(server: PageServer, tmp_path: Path):
    (tmp_path / "secret.txt").write_text("secret")
    assert ask(server, "/secret.txt")[0] == 404


@pytest.mark.parametrize(
    "name", ["evil.example:{}", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:{}", ""]
)
def test_names_of_others(server: PageServer, name: str):
    status, _, content = ask(server, "/", Host=name.format(server.server_port))
    assert status == 421
    assert b"<!doctype html><" not in content


def test_two_names(server: PageServer):
    own = f"127.0.0.1:{server.server_port}"
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as connection:
        connection.sendall(f"GET / HTTP/1.1\r\nHost: {own}\r\nHost: evil.example\r\n\r\n".encode())
        assert b" 421 " in connection.recv(100)


def test_its_own_names(server: PageServer):
    for name in ("127.0.0.1", "localhost", "LocalHost"):
        assert ask(server, "/", Host=f"{name}:{server.server_port}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_other_methods(server: PageServer, method: str):
    assert ask(server, "/", method)[0] == 501


def test_only_this_machine(server: PageServer):
    assert server.server_address[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.server_port}/"
    outside = outside_address()
    if outside is None:
        pytest.skip("this machine has no address but the loopback one")
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((outside, server.server_port), timeout=5)


def outside_address() -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return None
        address: str = probe.getsockname()[0]
        return None if address.startswith("127.") else address


def test_a_browser_that_goes_away_is_no_error(server: PageServer, capfd: pytest.CaptureFixture[str]):
    server.files = {"index.html": b"x" * (64 << 20)}  # more than any buffer holds
    finished = threading.Event()
    whole = server.finish_request

    def finish(*arguments: Any) -> None:
        try:
            whole(*arguments)
        finally:
            finished.set()

    server.finish_request = finish  # type: ignore[method-assign]
    with socket.create_connection(("127.0.0.1", server.server_port)) as connection:
        connection.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode())
        connection.recv(10)
    assert finished.wait(10)
    assert ask(server, "/nothing")[0] == 404  # it goes on
    assert capfd.readouterr().err == ""


def test_a_port_in_use(server: PageServer):
    with pytest.raises(PRUError, match=rf"--port {server.server_port}: .*; use another port"):
        PageServer(FILES, server.server_port)


@pytest.mark.slow
def test_ctrl_c_ends_it_in_one_line(tiny_run: RunFolder):
    if not (site.SITE / "index.html").is_file():
        pytest.skip("the page is not built: npm ci && npm run build in the folder page")
    command = [sys.executable, "-m", "torch_pru", "page", str(tiny_run.path), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        assert first.startswith("serving http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        assert process.stdout.read().split("\n") == ["", "stopped", ""]
        assert process.stderr.read() == ""
        assert process.wait(10) == 0
