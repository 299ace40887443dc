"""``python -m torch_pru`` is ``pru``; so ``torchrun -m torch_pru train ...`` works."""

import sys

try:
    from torch_pru.cli import main
except ModuleNotFoundError as error:  # the layer alone was installed
    if error.name is None or error.name.startswith("torch_pru"):
        raise
    sys.exit(f"pru: error: pru needs {error.name}; pip install 'torch-pru[lm]'")

if __name__ == "__main__":
    main()
