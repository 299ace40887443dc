"""lm-evaluation-harness with PRU models.

    python -m torch_pru.hf.harness run --model pru --model_args pretrained=DIR --tasks wikitext --device cpu

The arguments are those of ``lm_eval``, which ``pip install 'lm_eval[hf]'`` installs. DIR is what
``pru export RUN DIR --to hf`` wrote. The model ``pru`` is the harness's ``hf`` but for one thing: a long text
is read from beginning to end with the state carried along, as `pru evaluate` does, and not in windows that
each begin anew.

A word outside the vocabulary is scored as ``<unk>``, so the harness's *word* perplexity is comparable only
between models of one vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch

import torch_pru.hf  # noqa: F401 (registers the classes)

try:
    from lm_eval.api.registry import register_model
    from lm_eval.models.huggingface import HFLM
except ImportError as error:
    raise ImportError(
        "torch_pru.hf.harness needs lm_eval and its extra hf; pip install 'lm_eval[hf]'"
    ) from error

WINDOW = 1000
"""Words that are read at once."""


@register_model("pru")
class PRULM(HFLM):
    """The harness's Hugging Face model, reading long texts with the state carried along."""

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of each text, after an ``<eos>``."""
        return [self._read(request.args[0]) for request in requests]

    @torch.no_grad()
    def _read(self, text: str) -> float:
        ids = torch.tensor([self.prefix_token_id, *self.tok_encode(text, add_special_tokens=False)])
        total, state = 0.0, None
        for window, after in zip(ids[:-1].split(WINDOW), ids[1:].split(WINDOW), strict=True):
            found = self.model(window[None].to(self.device), past_key_values=state, use_cache=True)
            state = found.past_key_values
            log_probabilities = found.logits[0].log_softmax(-1).cpu()
            total += log_probabilities.gather(1, after[:, None]).sum(dtype=torch.float64).item()
        return total


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
