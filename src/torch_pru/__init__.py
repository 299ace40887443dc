"""Pyramidal Recurrent Units for PyTorch: a drop-in for ``nn.LSTM``.

Letters in shapes, all over the package: T steps, B batch, N input size, M hidden size, K pyramidal
levels, g (G) groups, D = M/G, V vocabulary, E embedding.
"""

from torch_pru import startup as startup  # first: PyTorch reads the settings when it is loaded
from torch_pru.cell import PRUCell
from torch_pru.convert import convert_lstm
from torch_pru.errors import PRUError
from torch_pru.interop import load_reference_weights
from torch_pru.layer import PRU
from torch_pru.ops.spec import LayerSpec, TransformSpec
from torch_pru.parameters import ParameterNames
from torch_pru.transforms import GroupedLinear, PyramidalTransform

__all__ = [
    "PRU",
    "SAFE_GLOBALS",
    "GroupedLinear",
    "PRUCell",
    "PRUError",
    "PyramidalTransform",
    "convert_lstm",
    "load_reference_weights",
]
SAFE_GLOBALS = [PRU, PRUCell, GroupedLinear, PyramidalTransform, LayerSpec, TransformSpec, ParameterNames]
"""What ``torch.load(file, weights_only=True)`` must be allowed to create for a whole saved module:
``torch.serialization.add_safe_globals(torch_pru.SAFE_GLOBALS)``."""
__version__ = "0.1.0"
