"""How the scenarios call the pieces."""

from __future__ import annotations

from torch_pru.lm.evaluation.stepper import FrozenLayer
from torch_pru.ops.backends import run

__all__ = ["run", "token_model"]


def token_model(embedding, layers, offset):
    frozen = [FrozenLayer(layer.specs[0], layer.weights(0), embedding.dtype) for layer in layers]

    def step(token, state):
        values, after = embedding[token][:, None], []
        for layer, (h, c) in zip(frozen, state, strict=True):
            values, h, c = layer(values, h, c)
            after.append((h, c))
        return values[-1].float() @ embedding.float().t() + offset, after

    return run("token_model", embedding, [layer.dense() for layer in frozen], offset, step)
