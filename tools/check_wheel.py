"""Checks that a wheel contains the whole package: ``python tools/check_wheel.py dist/*.whl``.

Every file of ``src/torch_pru`` and of the page must be in it, unchanged, and, if the wheel is for one
platform, the compiled kernels.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "torch_pru"
PAGE = ROOT / "page" / "src"
SITE = "torch_pru/page/site/"


def missing(wheel: Path) -> list[str]:
    """What the wheel should contain and does not."""
    with zipfile.ZipFile(wheel) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    wanted = files(PACKAGE, "torch_pru/") | files(PAGE, SITE)
    lost = sorted(name for name, content in wanted.items() if name not in found)
    lost += sorted(
        f"the present {name}" for name, content in wanted.items() if found.get(name, content) != content
    )
    if not any(name.startswith(SITE) and name.endswith(".wasm") for name in found):
        lost.append(f"the runtime of the page ({SITE}**/*.wasm)")
    has_kernels = any("/ops/native/kernels_" in name for name in found)
    if has_kernels == wheel.name.endswith("-none-any.whl"):
        lost.append(
            "kernels" if not has_kernels else "a tag for one platform, which a wheel with kernels has"
        )
    return lost


def files(folder: Path, prefix: str) -> dict[str, bytes]:
    """The files of a folder by their names in the wheel."""
    found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {prefix + path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        lost = missing(Path(argument))
        if lost:
            sys.exit(f"{argument} lacks {', '.join(lost)}")
        print(f"{argument}: complete")
    if not sys.argv[1:]:
        sys.exit("name a wheel")
