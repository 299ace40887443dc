"""Checks that a wheel contains the whole package: ``python tools/check_wheel.py dist/*.whl``.

Every file of ``src/torch_pru`` must be in it, the built files of ``pru page``, and, if the wheel is for one
platform, the compiled kernels.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
PAGE = "torch_pru/page/site/"


def missing(wheel: Path) -> list[str]:
    """What the wheel should contain and does not."""
    names = set(zipfile.ZipFile(wheel).namelist())
    files = (path for path in (SOURCE / "torch_pru").rglob("*") if path.is_file())
    wanted = {path.relative_to(SOURCE).as_posix() for path in files if "__pycache__" not in path.parts}
    lost = sorted(wanted - names)
    if f"{PAGE}index.html" not in names or not any(
        name.startswith(PAGE) and name.endswith(".wasm") for name in names
    ):
        lost.append(f"{PAGE} with index.html and the runtime (*.wasm)")
    has_kernels = any("/ops/native/kernels_" in name for name in names)
    if has_kernels == wheel.name.endswith("-none-any.whl"):
        lost.append(
            "kernels" if not has_kernels else "a tag for one platform, which a wheel with kernels has"
        )
    return lost


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        lost = missing(Path(argument))
        if lost:
            sys.exit(f"{argument} lacks {', '.join(lost)}")
        print(f"{argument}: complete")
    if not sys.argv[1:]:
        sys.exit("name a wheel")
