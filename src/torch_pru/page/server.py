"""Serves a page to the browsers of this machine, and nothing else to anybody else."""

from __future__ import annotations

import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from torch_pru.errors import PRUError
from torch_pru.page.site import Files, read

ADDRESS = "127.0.0.1"
TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "json": "application/json",
    "txt": "text/plain; charset=utf-8",
    "svg": "image/svg+xml",
    "wasm": "application/wasm",
    "onnx": "application/octet-stream",
}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src 'self'; "
        "style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class PageServer(ThreadingHTTPServer):
    """An HTTP server for a fixed list of files, on the loopback address.

    Args:
        files: what to serve.
        port: 0 for any free one.

    Attributes:
        url: the address of the page.
    """

    daemon_threads = True

    def __init__(self, files: Files, port: int = 0) -> None:
        try:
            super().__init__((ADDRESS, port), PageHandler)
        except OSError as error:
            raise PRUError(f"--port {port}: {error.strerror}; use another port") from error
        self.files = files
        self.names = {f"{name}:{self.server_port}" for name in (ADDRESS, "localhost")}
        self.url = f"http://{ADDRESS}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing about a browser that was closed while it loaded the page."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class PageHandler(BaseHTTPRequestHandler):
    """Answers GET and HEAD for the files of the server."""

    server: PageServer

    def do_GET(self) -> None:
        """Send a file."""
        self._answer(with_content=True)

    def do_HEAD(self) -> None:
        """Send the headers of a file."""
        self._answer(with_content=False)

    def _answer(self, *, with_content: bool) -> None:
        # A name of somebody else that leads here (DNS rebinding) would let their page read ours.
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0].lower() not in self.server.names:
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, "This is not the name of this server")
            return
        name = self.path.partition("?")[0].removeprefix("/") or "index.html"
        if name not in self.server.files:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        content = read(self.server.files[name])
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", TYPES[name.rpartition(".")[2]])
        self.send_header("Content-Length", str(len(content)))
        for header, value in HEADERS.items():
            self.send_header(header, value)
        self.end_headers()
        if with_content:
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing about each request."""
