"""``python -m torch_pru`` is ``pru``; so ``torchrun -m torch_pru train ...`` works."""

from torch_pru.cli import main

if __name__ == "__main__":
    main()
