"""``pru page``: a web page on which a model reads along as one types."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from torch_pru.cli.console import output
from torch_pru.errors import PRUError

MOST_RUNS = 2


def page(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="A run folder, or two to compare.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the page to this folder, new or empty, for any web server."),
    ] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Store the weights in 8 bits: a quarter of the download.")
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the server.", show_default="any free one")
    ] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
) -> None:
    """Try models on a web page.

    The page reads along as you type: it suggests the next word, shows how surprised the model was by each
    word, and looks inside its units. It runs in the browser, without a network: nothing you write leaves the
    machine. Without --out it is served on this machine until Ctrl-C.
    """
    from importlib.util import find_spec

    from torch_pru.lm.run import RunFolder

    if len(runs) > MOST_RUNS:
        raise PRUError(f"got {len(runs)} runs; pru page shows at most {MOST_RUNS} models")
    if find_spec("onnx") is None:
        raise PRUError("pru page needs onnx; pip install 'torch-pru[onnx]'")
    from torch_pru.page.server import PageServer
    from torch_pru.page.site import page_files, write_page

    files = page_files([RunFolder.open(run) for run in runs], int8=int8)
    console = output()
    if out is not None:
        write_page(files, out)
        console.print(f"written to {out}; serve it with: python -m http.server -d {out}", soft_wrap=True)
        return
    with PageServer(files, port) as server:
        try:
            # Not by the console, which shows a line again if Ctrl-C comes before it has forgotten it.
            print(
                f"serving {server.url} on this machine only; Ctrl-C stops it", file=console.file, flush=True
            )
            if browser:
                webbrowser.open(server.url)
            server.serve_forever()
        except KeyboardInterrupt:
            console.print("\nstopped", soft_wrap=True)
