"""``AWD_PRU`` for fastai, in the slot of ``AWD_LSTM``.

    pip install torch-pru fastai
    python examples/fastai_awd_pru.py

Pass ``AWD_PRU`` wherever fastai takes an architecture, for example
``language_model_learner(dls, AWD_PRU, pretrained=False)``. There are no pretrained weights.
"""

from __future__ import annotations

import torch
from fastai.data.core import DataLoaders
from fastai.losses import CrossEntropyLossFlat
from fastai.metrics import Perplexity
from fastai.text.data import LMDataLoader
from fastai.text.learner import LMLearner
from fastai.text.models.awdlstm import (
    AWD_LSTM,
    awd_lstm_clas_config,
    awd_lstm_clas_split,
    awd_lstm_lm_config,
    awd_lstm_lm_split,
)
from fastai.text.models.core import _model_meta, get_language_model
from torch import nn

from torch_pru import PRU


class AWD_PRU(AWD_LSTM):  # noqa: N801
    """fastai's AWD-LSTM with PRU layers; weight drop is an option of the layer."""

    def _one_rnn(self, n_in: int, n_out: int, bidir: bool, weight_p: float, l: int) -> nn.Module:  # noqa: E741
        return PRU(n_in, n_out, batch_first=True, bidirectional=bidir, weight_drop=weight_p)


_model_meta[AWD_PRU] = {
    "hid_name": "emb_sz",
    "url": None,
    "config_lm": {**awd_lstm_lm_config, "n_hid": 1400},
    "split_lm": awd_lstm_lm_split,
    "config_clas": {**awd_lstm_clas_config, "n_hid": 1400},
    "split_clas": awd_lstm_clas_split,
}


def main(epochs: int = 2) -> list[float]:
    """Train a small language model on numbers that count up; returns the validation perplexities."""
    torch.manual_seed(0)
    text = torch.arange(8000) % 20
    loaders = [LMDataLoader([part], bs=8, seq_len=20, device="cpu") for part in (text[:6000], text[6000:])]
    config = {**awd_lstm_lm_config, "emb_sz": 32, "n_hid": 64, "n_layers": 2}
    model = get_language_model(AWD_PRU, vocab_sz=20, config=config, drop_mult=0.1)
    learner = LMLearner(
        DataLoaders(*loaders, device="cpu"),
        model,
        loss_func=CrossEntropyLossFlat(),
        splitter=awd_lstm_lm_split,
        metrics=[Perplexity()],
    )
    with learner.no_bar(), learner.no_logging():
        learner.fit(epochs, lr=1e-2)
    return [float(values[-1]) for values in learner.recorder.values]


if __name__ == "__main__":
    print("perplexity after each epoch:", *(f"{value:.2f}" for value in main()))
