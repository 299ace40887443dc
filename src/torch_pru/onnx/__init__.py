"""Export to ONNX, with any number of steps and any batch.

Example:
    >>> from torch_pru import PRU, onnx
    >>> program = onnx.export(PRU(40, 60), (torch.randn(7, 3, 40),))        # doctest: +SKIP
    >>> program.save("pru.onnx")                                            # doctest: +SKIP
"""

try:
    import onnxscript  # noqa: F401
except ImportError as error:
    raise ImportError("torch_pru.onnx needs onnx and onnxscript; pip install 'torch-pru[onnx]'") from error

from torch_pru.onnx.export import export
from torch_pru.onnx.language_model import OnnxLanguageModel, export_run
from torch_pru.onnx.translation import translation_table

__all__ = ["OnnxLanguageModel", "export", "export_run", "translation_table"]
