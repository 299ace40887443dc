"""How the scenarios call the pieces."""

from __future__ import annotations

from torch_pru.ops.backends import run

__all__ = ["run", "token_model"]


def token_model(embedding, layers, offset):
    from torch_pru.lm.evaluation.frozen import FrozenLayer
    from torch_pru.lm.evaluation.fused import FusedModel
    from torch_pru.ops.cuda.token import TokenLayer, padded

    model = FusedModel.__new__(FusedModel)
    model.embedding, model.offset = padded(embedding), offset
    frozen = [FrozenLayer(layer.specs[0], layer.weights(0), embedding.dtype) for layer in layers]
    model.layers = [TokenLayer(f.input[0], f.context, f.bias, f.spec.residual) for f in frozen]
    return model
