"""``pru export``: a run for other programs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from torch_pru.cli.console import output
from torch_pru.errors import PRUError, check_choice

TARGETS = {"hf": ("transformers",), "onnx": ("onnxscript", "onnxruntime")}
"""The formats, and the packages that each of them needs; the extra has the format's name."""


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New or empty folder to write to.")],
    to: Annotated[str, typer.Option(metavar="FORMAT", help="hf: Hugging Face Transformers; onnx: ONNX.")],
    int8: Annotated[
        bool, typer.Option("--int8", help="Store the weights in 8 bits, for onnxruntime (--to onnx).")
    ] = False,
) -> None:
    """Export a run to another format.

    Writes the best weights, the vocabulary and a model card (README.md).
    """
    from importlib.util import find_spec

    from torch_pru.lm.card import model_card
    from torch_pru.lm.run import RunFolder

    check_choice("--to", to, TARGETS)
    if int8 and to != "onnx":
        raise PRUError("--int8 is for --to onnx")
    for package in TARGETS[to]:
        if find_spec(package) is None:
            raise PRUError(f"--to {to} needs {package}; pip install 'torch-pru[{to}]'")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise PRUError(f"{folder} is not an empty folder; choose another one, or remove its files")
    opened = RunFolder.open(run)
    card = model_card(opened, int8=int8)  # before anything is written: it reads most files of the run
    if to == "hf":
        from torch_pru.hf.export import export_run

        export_run(opened, folder)
    else:
        from torch_pru.onnx import export_run as export_run_to_onnx

        logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # else it says that there is no torchvision
        export_run_to_onnx(opened, folder, int8=int8)
    (folder / "README.md").write_text(card, encoding="utf-8")
    output().print(f"written to {folder}", soft_wrap=True)
