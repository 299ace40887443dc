"""``python -m torch_pru`` is ``pru``; so ``torchrun -m torch_pru train ...`` works."""

import sys


def main() -> None:
    """Import the command and run it; Ctrl-C during the import ends quietly, as it does later.

    Example:
        >>> main()                                                          # doctest: +SKIP
    """
    try:
        from torch_pru.cli import main as command
    except ModuleNotFoundError as error:  # the layer alone was installed
        if error.name is None or error.name.startswith("torch_pru"):
            raise
        sys.exit(f"pru: error: pru needs {error.name}; pip install 'torch-pru[lm]'")
    except KeyboardInterrupt:
        sys.exit(130)
    command()


if __name__ == "__main__":
    main()
