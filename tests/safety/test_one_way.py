"""Nothing but ``lm/files.py`` opens files of a run."""

from __future__ import annotations

import re
from pathlib import Path

import torch_pru

SOURCE = Path(torch_pru.__file__).parent
OPENS = re.compile(
    r"(?<![\w.])(?<!def )open\(|\.open\([\"']|(?:read|write)_(?:text|bytes)\(|os\.open\(|(?:load|save)_file\("
    r"|safe_open\(|(?<!safetensors\.)torch\.(?:load|save)\(|SummaryWriter\(|np\.load\(|\.unlink\("
)

OTHERS = {
    "lm/files.py": "the one way",
    "lm/state_files.py": "reads a pickle from memory, after it was checked",
    "lm/recipe.py": "reads recipes, which users name",
    "lm/records.py": "compact records, which users name",
    "lm/data": "texts and their cache",
    "hf": "models in the layout of transformers",
    "onnx": "models that users export",
    "page": "files of the package",
    "interop.py": "an example",
    "ops": "kernels and their cache",
    "analysis": "figures that users ask for",
    "cli/score.py": "standard input",
    "cli/train.py": "standard input, as a text",
    "cli/ending.py": "a record of the package",
    "cli/compare.py": "results that users ask for",
    "lm/scoring.py": "adapted weights, which users name",
    "cli/export.py": "models that users export",
}


def test_no_other_module_opens_files() -> None:
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if any(name == known or name.startswith(f"{known}/") for known in OTHERS):
            continue
        code = re.sub(r'"""(?:.|\n)*?"""|#.*', "", path.read_text(encoding="utf-8"))
        if calls := [call for call in OPENS.findall(code) if call]:
            found[name] = calls
    assert found == {}


def test_the_pattern_finds_what_it_should() -> None:
    for code in ("with open(path)", "path.read_text()", "torch.load(file)", "os.open(path, flags)"):
        assert OPENS.search(code)
    assert not OPENS.search("RunFolder.open(path)")
    assert not OPENS.search("Scorer.open(run)")
