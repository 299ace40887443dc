"""Pyramidal Recurrent Units for PyTorch: a drop-in for ``nn.LSTM``.

Letters in shapes, all over the package: T steps, B batch, N input size, M hidden size, K pyramidal
levels, g (G) groups, D = M/G, V vocabulary, E embedding.
"""

from torch_pru.cell import PRUCell
from torch_pru.errors import PRUError
from torch_pru.interop import load_reference_weights
from torch_pru.layer import PRU
from torch_pru.transforms import GroupedLinear, PyramidalTransform

__all__ = ["PRU", "GroupedLinear", "PRUCell", "PRUError", "PyramidalTransform", "load_reference_weights"]
__version__ = "0.1.0"
