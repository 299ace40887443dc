"""The files of a page: those that were built, and those of the models on it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch_pru.errors import PRUError
from torch_pru.lm.data.storage import write_aside
from torch_pru.lm.data.text import EOS
from torch_pru.lm.evaluation.scores import scores_for
from torch_pru.lm.model import LanguageModel, parameter_counts
from torch_pru.lm.run import RunFolder
from torch_pru.ops.spec import even_sizes
from torch_pru.page.step import layer_of, step_model

SITE = Path(__file__).parent / "site"
TOKENIZERS = ("words", "cased-words", "characters", "spaces")
"""Those that the page's tokenizer.js has, too."""
BUILD_COMMAND = "cd page && npm ci && npm run build"
"""What puts the page into a source checkout; wheels have it."""

Files = Mapping[str, Path | bytes]
"""What a page consists of: by its address, a file of the package or the content itself."""


def page_files(runs: Sequence[RunFolder], *, int8: bool = False) -> Files:
    """The files of a page with the best weights of some runs.

    Args:
        runs: the models, beside each other.
        int8: whether weights are stored in 8 bits.
    """
    files: dict[str, Path | bytes] = dict(built_files())
    folders = [f"models/{number}" for number in range(1, len(runs) + 1)]
    files["models.json"] = json.dumps({"models": folders}).encode()
    for folder, run in zip(folders, runs, strict=True):
        for name, content in model_files(run, int8=int8).items():
            files[f"{folder}/{name}"] = content
    return files


def is_built() -> bool:
    """Whether the page is there."""
    return (SITE / "index.html").is_file()


def built_files() -> dict[str, Path]:
    """The files that ``npm run build`` made, by their address."""
    if not is_built():
        raise PRUError(
            f"the page is not built, which a source checkout needs once, with Node.js; run: {BUILD_COMMAND}"
        )
    found = sorted(path for path in SITE.rglob("*") if path.is_file())
    return {path.relative_to(SITE).as_posix(): path for path in found}


def model_files(run: RunFolder, *, int8: bool = False) -> dict[str, bytes]:
    """The model of a run, its vocabulary, and what the page needs to know about it."""
    tokenizer = run.tokenizer.name
    if tokenizer not in TOKENIZERS:
        raise PRUError(
            f"the run in {run.path} splits text by {tokenizer!r}; pru page takes runs on words or characters"
        )
    if EOS not in run.vocabulary:
        raise PRUError(
            f"pru page needs {EOS!r} in the vocabulary, because every text starts with it; the run in "
            f"{run.path} has none"
        )
    model = run.model()
    words = run.vocabulary.to_bytes()
    about = {
        "name": run.path.resolve().name,
        "description": description(run, model, int8=int8),
        "tokenizer": tokenizer,
        "vocabulary": hashlib.sha256(words).hexdigest(),
        "cache": dataclasses.asdict(scores_for(model, run.path, run.inputs_digest()).settings("cache")),
        "layers": layers_of(model),
    }
    return {
        "model.json": json.dumps(about).encode(),
        "vocabulary.txt": words,
        "step.onnx": step_model(model, int8=int8).SerializeToString(),
    }


def description(run: RunFolder, model: LanguageModel, *, int8: bool) -> str:
    """The model in a few words."""
    millions = parameter_counts(model).total / 1e6
    tokens = "characters" if run.tokenizer.name == "characters" else "words"
    parts = [
        run.config.model.kind.upper(),
        f"{millions:.1f} million parameters",
        f"knows {len(run.vocabulary):,} {tokens}",
    ]
    return ", ".join([*parts, "8-bit weights"] if int8 else parts)


def layers_of(model: LanguageModel) -> list[dict[str, object]]:
    """Structure of every layer: how many units each level and each group has."""
    found: list[dict[str, object]] = []
    for layer in model.layers:
        spec, _ = layer_of(layer)
        found.append(
            {
                "units": spec.hidden_size,
                "level_sizes": spec.input.level_sizes,
                "group_sizes": even_sizes(spec.hidden_size, spec.groups),
                "pooling": spec.input.pooling,
            }
        )
    return found


def write_page(files: Files, folder: Path) -> None:
    """Write the files of a page to a new or empty folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise PRUError(f"{folder} is not an empty folder; choose another one, or remove its files")
    for name, content in files.items():
        with write_aside(folder / name) as file:
            file.write(read(content))


def read(content: Path | bytes) -> bytes:
    """The content of one of the page's files."""
    return content if isinstance(content, bytes) else content.read_bytes()
