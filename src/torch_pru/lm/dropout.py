"""All dropout masks of the language model, drawn from one explicit generator."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from torch_pru.ops import backends
from torch_pru.ops.dropping import draw_mask


class Masks:
    """Draws masks for the *global* batch and returns the columns of this process.

    All processes have a generator in the same state and draw the same masks, so that a run uses the same
    masks with any number of processes.

    Args:
        generator: on the device of the model.
        batch: columns of the global batch; None for a single process.
        first: the first column that belongs to this process.

    Example:
        >>> masks = Masks(torch.Generator().manual_seed(1))
        >>> kept = masks.dropout(torch.ones(70, 20, 400), 0.5, shared=True)
        >>> bool((kept[0] == kept[69]).all()), sorted(set(kept.flatten().tolist()))
        (True, [0.0, 2.0])
    """

    def __init__(self, generator: torch.Generator, batch: int | None = None, first: int = 0) -> None:
        self.generator = generator
        self.batch = batch
        self.first = first

    def dropout(self, values: Tensor, probability: float, *, shared: bool) -> Tensor:
        """Drop elements of ``values`` (T, B, D) and scale the rest by 1/(1-p).

        With ``shared`` (variational dropout) one mask (1, B, D) is used for all steps of the window, else
        each step has its own.
        """
        if probability == 0:
            return values
        steps, columns, size = values.shape
        shape = (1 if shared else steps, self.batch or columns, size)
        mask = draw_mask(shape, 1 - probability, values.device, self.generator)
        mask = mask[:, self.first : self.first + columns]
        return backends.run("drop", values, mask, 1 - probability, values.dtype)

    def word_types(self, tokens: Tensor, weight: Tensor, probability: float) -> Tensor | float:
        """The factor of each token's embedding, 0 or 1/(1-p), which is the same wherever the word occurs.

        Args:
            tokens: (T, B).
            weight: (V, E), the embedding, of which whole rows are dropped.

        Returns:
            (T, B, 1), or 1.0 if nothing is dropped.
        """
        if probability == 0:
            return 1.0
        keep = 1 - probability
        mask = weight.new_empty(len(weight), 1).bernoulli_(keep, generator=self.generator)
        return mask.div_(keep)[tokens]

    def weights(self, weight: Tensor, probability: float) -> Tensor:
        """Drop elements of a weight and scale the rest by 1/(1-p); one mask for all columns of the batch."""
        if probability == 0:
            return weight
        mask = draw_mask(weight.shape, 1 - probability, weight.device, self.generator)
        return backends.run("drop", weight, mask, 1 - probability, weight.dtype)

    def state_dict(self) -> dict[str, Any]:
        """The state of the generator, and the type of its device."""
        return {"device": self.generator.device.type, "generator": self.generator.get_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned; warns and does nothing if it does not fit."""
        device = self.generator.device.type
        if state_dict["generator"] is None:
            warnings.warn(
                "the run was saved by an earlier version, with another layout of the weights: dropout masks "
                "are drawn anew",
                stacklevel=2,
            )
        elif state_dict["device"] == device:
            self.generator.set_state(state_dict["generator"])
        else:
            warnings.warn(
                f"resuming on {device}: the random state of {state_dict['device']} cannot be restored there, "
                f"dropout masks are reseeded",
                stacklevel=2,
            )
