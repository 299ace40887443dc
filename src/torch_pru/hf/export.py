"""A run as a folder that ``from_pretrained`` loads."""

from __future__ import annotations

from pathlib import Path

from torch import nn
from transformers import GenerationConfig

from torch_pru import PRU
from torch_pru.hf.configuration import PRUConfig
from torch_pru.hf.modeling import PRUForCausalLM
from torch_pru.hf.tokenization import fast_tokenizer
from torch_pru.lm.data.text import EOS
from torch_pru.lm.data.vocabulary import Vocabulary
from torch_pru.lm.model import LanguageModel, MixtureOfSoftmaxes
from torch_pru.lm.run import RunFolder


def export_run(run: RunFolder, folder: Path) -> None:
    """Write the best weights of a run, its settings and its tokenizer.

    Example:
        >>> export_run(RunFolder.open("runs/quickstart-1"), Path("exported"))       # doctest: +SKIP
    """
    vocabulary = run.vocabulary
    model = from_language_model(run.model(), vocabulary)
    tokenizer = fast_tokenizer(run.tokenizer, vocabulary)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def from_language_model(model: LanguageModel, vocabulary: Vocabulary) -> PRUForCausalLM:
    """A model of the toolkit as one of Transformers, in ``eval()``; the weights are copied.

    It generates as `torch_pru.lm.evaluation.generate` does: after an ``<eos>``, and never ``<unk>``.

    Example:
        >>> from torch_pru.lm.config import ModelConfig, RegularizationConfig
        >>> config = ModelConfig(embedding=8, hidden=(8,), groups=2)
        >>> model = LanguageModel(config, RegularizationConfig(), vocabulary_size=3)
        >>> from_language_model(model, Vocabulary(["<eos>", "<unk>", "god"])).config.groups
        2
    """
    eos = int(vocabulary.encode([EOS]))
    special = {"bos_token_id": eos, "eos_token_id": eos, "pad_token_id": eos}
    config = PRUConfig.of(model.config, model.regularization, model.vocabulary_size, **special)
    exported = PRUForCausalLM(config).to(model.embedding.weight.dtype)
    exported.model.embedding.load_state_dict(model.embedding.state_dict())
    for ours, layer in zip(exported.model.layers, model.layers, strict=True):
        rnn = PRU.from_lstm(layer) if isinstance(layer, nn.LSTM) else layer
        ours.rnn.load_state_dict(rnn.state_dict())
    exported.lm_head.bias.data.copy_(model.decoder.bias)
    if isinstance(model.decoder, MixtureOfSoftmaxes):
        exported.prior.load_state_dict(model.decoder.prior.state_dict())
        exported.latent.load_state_dict(model.decoder.latent.state_dict())
    unknown = [] if vocabulary.unknown is None else [vocabulary.unknown]
    exported.generation_config = GenerationConfig(**special, suppress_tokens=unknown or None)
    return exported.eval()
