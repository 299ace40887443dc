"""Text generation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from numbers import Real

import torch
from torch import Tensor

from torch_pru.errors import PRUError, check_not_negative, check_positive, shown
from torch_pru.lm.data.text import EOS
from torch_pru.lm.data.vocabulary import Vocabulary
from torch_pru.lm.evaluation.static import eval_mode
from torch_pru.lm.evaluation.stepper import Stepper
from torch_pru.lm.model import LanguageModel


def generate(
    model: LanguageModel,
    vocabulary: Vocabulary,
    prompt: Sequence[str] = (),
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    seed: int | None = None,
    unknown: bool = False,
) -> Iterator[str]:
    """Yield words endlessly, each as soon as it is drawn; ``<eos>`` ends a sentence.

    The text starts after an ``<eos>`` and the prompt. ``<unk>`` is not drawn unless ``unknown`` is true; its
    probability is distributed over the other words.

    On a GPU the weights are those at the first word, and each token is one CUDA graph. With temperature 0 the
    words are computed ahead of what has been consumed.

    Args:
        model: the language model; it computes in the dtype of autocast if that is enabled, else in that of
            its weights.
        vocabulary: of the run that the model comes from.
        prompt: words to continue from. Those outside the vocabulary are read as ``<unk>``, or raise if the
            vocabulary has none.
        temperature: below 1 for more likely words, above 1 for more surprising ones, 0 for the likeliest.
        top_k: draw from the k likeliest words only.
        top_p: draw from the fewest words whose probabilities add up to p.
        seed: the same seed gives the same words; None draws new ones each time.
        unknown: whether ``<unk>`` may be drawn.

    Example::

        words = generate(model, run.vocabulary, ["in", "the"], seed=1)
        print(*itertools.islice(words, 20))
    """
    if isinstance(prompt, str):
        raise PRUError(f"prompt={prompt!r} must be a list of words, as in prompt.split()")
    _check(temperature, top_k, top_p, seed)
    start = vocabulary.encode([EOS, *prompt])
    barred = None if unknown else vocabulary.unknown
    if model.embedding.weight.is_cuda and temperature == 0:
        return _words(model, vocabulary, start, barred, None)
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    draw = partial(sample, temperature=temperature, top_k=top_k, top_p=top_p, generator=generator)
    return _words(model, vocabulary, start, barred, draw)


def sample(
    log_probabilities: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw one id from log-probabilities or logits (V,).

    Temperature is applied first, then top-k, then top-p to what is left. The draw happens on the CPU in
    float64, so that a seed gives the same words on all devices that compute the same probabilities.

    Example:
        >>> sample(torch.tensor([0.1, 0.7, 0.2]).log(), temperature=0)
        tensor(1)
    """
    ranked, ids = log_probabilities.detach().cpu().double().sort(descending=True, stable=True)
    if temperature == 0:
        return ids[0]
    kept = ((ranked[:top_k] - ranked[0]) / temperature).softmax(0)  # the largest exponent is 0
    before = kept.cumsum(0) - kept
    kept = kept * (before < top_p)  # always keeps the first word
    return ids[torch.multinomial(kept, 1, generator=generator)[0]]


def _words(
    model: LanguageModel,
    vocabulary: Vocabulary,
    tokens: Tensor,
    barred: int | None,
    draw: Callable[[Tensor], Tensor] | None,
) -> Iterator[str]:
    """The words after ``tokens``; without ``draw``, the likeliest, computed ahead."""
    if draw is None:
        for number in Stepper(model, barred).likeliest(tokens):
            yield vocabulary.word(number)
        return
    reader = Stepper(model, barred) if model.embedding.weight.is_cuda else _Reader(model, barred)
    while True:
        tokens = draw(reader.read(tokens)).reshape(1)
        yield vocabulary.word(int(tokens))


class _Reader:
    """Reads tokens with the model itself; the counterpart of ``Stepper`` on a CPU."""

    def __init__(self, model: LanguageModel, barred: int | None) -> None:
        self.model, self.barred = model, barred
        self.state = model.initial_state(1)

    def read(self, tokens: Tensor) -> Tensor:
        """Read ``tokens`` (T,) and return the log-probabilities (V,) of the next word."""
        # Entered for each word, so that the caller's modes are in effect between two words.
        with torch.no_grad(), eval_mode(self.model):
            hidden = self.model.hidden(tokens.to(self.state[0][0].device)[:, None], self.state, None)
            log_probabilities = self.model.log_probabilities(hidden.raw[-1, 0])
        self.state = hidden.state
        if self.barred is not None:
            log_probabilities[self.barred] = -math.inf
        return log_probabilities


def _check(temperature: float, top_k: int | None, top_p: float, seed: int | None) -> None:
    check_not_negative("temperature", temperature)
    if top_k is not None:
        check_positive("top_k", top_k)
    if isinstance(top_p, bool) or not isinstance(top_p, Real) or not 0 < top_p <= 1:
        raise PRUError(f"top_p={shown(top_p)} must be greater than 0 and at most 1")
    if seed is not None and not (isinstance(seed, int) and 0 <= seed < 2**63):
        raise PRUError(f"seed={seed!r} must be an integer from 0 to 2^63 - 1, or None")
