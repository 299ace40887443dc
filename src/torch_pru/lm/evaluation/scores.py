"""``scores.json`` of a run folder: what its final weights scored, and the settings that were tuned.

Small and without weights, so that it can be kept with the results; reports read it and nothing else. Beside
it are the log-probabilities of all tokens of a scored text, one file per split and method.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from torch_pru.errors import PRUError
from torch_pru.lm.data.tokenizer import TextSize
from torch_pru.lm.device import commit
from torch_pru.lm.evaluation.cache import CacheSettings
from torch_pru.lm.evaluation.dynamic import DynamicSettings
from torch_pru.lm.evaluation.static import Score, perplexity
from torch_pru.lm.evaluation.tune import Tuning
from torch_pru.lm.files import TEXT_LIMIT, Folder, MissingFileError
from torch_pru.lm.metrics import is_number
from torch_pru.lm.model import LanguageModel, parameter_counts
from torch_pru.lm.seal import seal, unseal

FILE = "scores.json"
SETTINGS = {"dynamic": DynamicSettings, "cache": CacheSettings}
"""The adaptive methods and the class of their settings."""

COUNTS = ("tokens", "words", "bytes")
NUMBERS = ("nll", "seconds", "word_perplexity", "byte_perplexity", *COUNTS)
"""What a result has beside its perplexity, where it was recorded."""

LOG_PROBABILITIES_LIMIT = 1 << 26
"""Bytes of the log-probabilities of a split, before and after they are decompressed: 32 million tokens."""

SIXTEEN_BITS = ("bfloat16", "float16")
"""Precisions whose scores do not replace others."""


@dataclass
class Scores:
    """The content of ``scores.json``.

    Attributes:
        weights: SHA-256 of the weights that were scored.
        inputs: SHA-256 of the model's settings, the vocabulary and the text, see `RunFolder.inputs_digest`;
            empty in files of earlier versions.
        parameters: the number of parameters, by part.
        results: method ("static", "dynamic", "cache") to split to perplexity, nll, tokens, seconds,
            device, precision and settings.
        tuning: method to its best settings on validation, all tries, and the number of tokens of each.
        history: every score of a split, oldest first, those of earlier weights included: time, commit,
            weights, split, method, what `entry` has, and whether it was kept as the score of the run. Entries
            are added and never changed.
    """

    weights: str
    parameters: dict[str, int]
    results: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    tuning: dict[str, dict[str, Any]] = field(default_factory=dict)
    inputs: str = ""
    history: list[dict[str, Any]] = field(default_factory=list)

    def perplexity(self, method: str, split: str, per: str = "token") -> float | None:
        """The recorded perplexity per token, ``"word"`` or ``"byte"``, or None."""
        entry = self.results.get(method, {}).get(split, {})
        value = entry.get("perplexity" if per == "token" else f"{per}_perplexity")
        return None if value is None else float(value)

    def note(self, method: str, split: str, found: dict[str, Any]) -> bool:
        """Record an `entry`, unless it would replace a more precise one; returns whether it was recorded."""
        kept = self.results.setdefault(method, {})
        before = kept.get(split, found).get("precision", "float32")
        worse = found["precision"] in SIXTEEN_BITS and before not in SIXTEEN_BITS
        if not worse:
            kept[split] = found
        return not worse

    def log(self, method: str, split: str, found: Mapping[str, Any], **more: Any) -> None:
        """Add a score to the history."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        about = {"time": now, "commit": commit(), "weights": self.weights, "split": split, "method": method}
        self.history.append({**about, **found, **more})

    def note_tuning(self, method: str, tuning: Tuning[Any]) -> None:
        """Record the best settings, which `settings` returns from then on, and every try."""
        tries = [{**dataclasses.asdict(one.settings), "perplexity": one.perplexity} for one in tuning.tries]
        best = dataclasses.asdict(tuning.best)
        self.tuning[method] = {"best": best, "tokens": tuning.tokens, "tries": tries}

    def kept_scores(self) -> dict[tuple[str, str], dict[str, Any]]:
        """The last score of each split and method that was kept as the score of the run."""
        kept = [one for one in self.history if one.get("kept")]
        return {(str(one.get("split")), str(one.get("method"))): one for one in kept}

    def settings(self, method: str) -> Any:
        """The settings tuned on validation, or the published defaults."""
        kind = SETTINGS[method]
        return kind(**self.tuning[method]["best"]) if method in self.tuning else kind()


def entry(
    score: Score,
    device: str,
    precision: str = "float32",
    settings: DynamicSettings | CacheSettings | None = None,
    size: TextSize | None = None,
) -> dict[str, Any]:
    """A score as plain values; with the size of the text, also the perplexity per word and per byte.

    Example:
        >>> entry(Score(0.0, 10, 0.1), "cpu")
        {'perplexity': 1.0, 'nll': 0.0, 'tokens': 10, 'seconds': 0.1, 'device': 'cpu', 'precision': 'float32'}
    """
    where = {"device": device, "precision": precision}
    numbers = {"nll": score.nll, "tokens": score.tokens, "seconds": score.seconds}
    values: dict[str, Any] = {"perplexity": score.perplexity, **numbers, **where}
    if size is not None:
        for unit, count in (("word", size.words), ("byte", size.bytes)):
            values[f"{unit}s"] = count
            values[f"{unit}_perplexity"] = perplexity(score.nll * score.tokens / max(1, count))
    return values if settings is None else {**values, "settings": dataclasses.asdict(settings)}


def load_scores(folder: str | Path) -> Scores | None:
    """The scores of a run folder, or None."""
    path = Path(folder) / FILE
    try:
        return parse_scores(unseal(Folder(Path(folder)).read(FILE, TEXT_LIMIT), path))
    except MissingFileError:
        return None
    except (ValueError, TypeError) as error:
        raise PRUError(f"{path} is not a file of scores: {error}; delete it and score again") from error


def parse_scores(content: Mapping[str, Any]) -> Scores:
    """Scores from the content of ``scores.json``. Raises TypeError or ValueError if they are malformed."""
    scores = Scores(**content)
    check_shape(scores)
    return scores


def check_shape(scores: Scores) -> None:
    """Raise TypeError or ValueError for anything that `save_scores` cannot have written."""
    if not isinstance(scores.weights, str):
        raise TypeError("weights is not a string")
    if not isinstance(scores.inputs, str):
        raise TypeError("inputs is not a string")
    numbers_of("parameters", scores.parameters)
    for method, splits in object_of("results", scores.results).items():
        for split, found in object_of(f"results.{method}", splits).items():
            place = f"results.{method}.{split}"
            numbers_of(place, {"perplexity": object_of(place, found).get("perplexity")})
            numbers_of(place, {key: found[key] for key in NUMBERS if key in found})
            if method in SETTINGS:
                numbers_of(f"{place}.settings", found.get("settings"))
    if not isinstance(scores.history, list) or not all(isinstance(one, dict) for one in scores.history):
        raise TypeError("history is not a list of objects")
    for one in scores.history:
        object_of("history.log_probabilities", one.get("log_probabilities", {}))
    for method, tuning in object_of("tuning", scores.tuning).items():
        best = numbers_of(f"tuning.{method}.best", object_of(f"tuning.{method}", tuning).get("best"))
        if method in SETTINGS:
            SETTINGS[method](**best)


def object_of(place: str, value: Any) -> dict[str, Any]:
    """``value``, which must be a JSON object."""
    if not isinstance(value, dict):
        raise TypeError(f"{place} is not an object")
    return value


def numbers_of(place: str, value: Any) -> dict[str, Any]:
    """``value``, which must be a JSON object of numbers."""
    for name, number in object_of(place, value).items():
        if not is_number(number) or (name in COUNTS and not isinstance(number, int)):
            raise TypeError(f"{place}.{name} is not a number")
    return value


def scores_for(model: LanguageModel, folder: str | Path, inputs: str = "") -> Scores:
    """The scores that a folder has for these weights and inputs; empty if it has those of others."""
    counts = parameter_counts(model)
    parameters = {**dataclasses.asdict(counts), "total": counts.total}
    return read_again(Scores(digest(model), parameters, inputs=inputs), folder)


def read_again(scores: Scores, folder: str | Path) -> Scores:
    """The scores that a folder now has for the weights and inputs of ``scores``."""
    found = load_scores(folder)
    if found is None:
        return Scores(scores.weights, scores.parameters, inputs=scores.inputs)
    if found.weights == scores.weights and found.inputs in ("", scores.inputs):
        return dataclasses.replace(found, inputs=scores.inputs)
    return Scores(scores.weights, scores.parameters, inputs=scores.inputs, history=found.history)


def save_scores(scores: Scores, folder: str | Path) -> None:
    """Write ``scores.json``, whole or not at all."""
    Folder(Path(folder)).write(FILE, seal(dataclasses.asdict(scores)))


def digest(model: LanguageModel) -> str:
    """SHA-256 over names and values of all weights."""
    total = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        total.update(name.encode())
        total.update(value.detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()


def log_probabilities_file(split: str, method: str) -> str:
    """The file with the log-probabilities of the tokens of a split."""
    return f"logprobs-{split}-{method}.npz"


def is_log_probabilities(name: str) -> bool:
    """Whether a file of a run folder has this name."""
    return name.startswith("logprobs-") and name.endswith(".npz")


def save_log_probabilities(losses: Tensor, folder: str | Path, split: str, method: str) -> dict[str, str]:
    """Write the log-probabilities of all tokens of a text, in float16, compressed.

    Returns:
        Name and SHA-256 of the file.
    """
    content = io.BytesIO()
    numpy.savez_compressed(content, log_probabilities=(-losses).to(torch.float16).numpy())
    name = log_probabilities_file(split, method)
    Folder(Path(folder)).write(name, content.getvalue())
    return {"file": name, "sha256": hashlib.sha256(content.getvalue()).hexdigest()}


def load_log_probabilities(folder: str | Path, split: str, method: str = "static") -> Tensor | None:
    """The log-probabilities (N - 1,) of the tokens of a split, in float32; None if they were not kept.

    They must belong to the scores: the file's digest is that of the last score of this split and method.
    """
    scores, name = load_scores(folder), log_probabilities_file(split, method)
    kept = scores.kept_scores().get((split, method), {}) if scores else {}
    if "log_probabilities" not in kept:
        return None
    try:
        content = Folder(Path(folder)).read(name, LOG_PROBABILITIES_LIMIT)
    except MissingFileError:
        return None
    if hashlib.sha256(content).hexdigest() != kept["log_probabilities"].get("sha256"):
        raise PRUError(f"{Path(folder) / name} does not match its checksum in {FILE}; score the text again")
    try:
        return read_log_probabilities(content, kept.get("tokens"))
    except (ValueError, TypeError, KeyError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise PRUError(
            f"{Path(folder) / name} does not hold the log-probabilities of {split}; score the text again"
        ) from error


def read_log_probabilities(content: bytes, tokens: object) -> Tensor:
    """The array in a file of `save_log_probabilities`; raises whatever a malformed file leads to."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > LOG_PROBABILITIES_LIMIT:
            raise ValueError("it is too large")  # a small file could fill the memory
    with numpy.load(io.BytesIO(content), allow_pickle=False) as arrays:
        found = arrays["log_probabilities"]
    if found.dtype != numpy.float16 or found.shape != (tokens,):
        raise ValueError("it is not an array of that many numbers in float16")
    return torch.from_numpy(found).float()
