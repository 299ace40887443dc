"""``python -m torch_pru`` is ``pru``; so ``torchrun -m torch_pru train ...`` works."""

import contextlib
import sys

from torch_pru.startup import exit_on_interrupt, raise_on_interrupt


def main() -> None:
    """Import the command and run it. At any moment, Ctrl-C ends it with status 130 and no traceback.

    Example:
        >>> main()                                                          # doctest: +SKIP
    """
    try:
        from torch_pru.cli import main as command
    except ModuleNotFoundError as error:  # the layer alone was installed
        if error.name is None or error.name.startswith("torch_pru"):
            raise
        sys.exit(f"pru: error: pru needs {error.name}; pip install 'torch-pru[lm]'")
    try:
        raise_on_interrupt()
        command()
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        with contextlib.suppress(OSError, ValueError):  # a closed pipe
            sys.stdout.flush()
        exit_on_interrupt()  # Python takes a while to shut down, too


if __name__ == "__main__":
    main()
