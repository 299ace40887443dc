"""The command ``pru``. A command reads its arguments, calls the Python API and prints."""

from torch_pru.cli.app import app, main

__all__ = ["app", "main"]
