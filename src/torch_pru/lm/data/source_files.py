"""The files that a user's text is made of."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from torch_pru.errors import PRUError
from torch_pru.lm.data.sources import SPLITS
from torch_pru.lm.data.storage import CHUNK
from torch_pru.lm.data.text import read_blocks

FEWEST_TOKENS = 500  # of a text


def parts_of(sources: list[Path]) -> dict[str, list[Path]]:
    """The files of each part, or all files under ``"all"`` where the text is still to be split."""
    if len(sources) == 1 and all((sources[0] / f"{split}.txt").is_file() for split in SPLITS):
        return {split: [sources[0] / f"{split}.txt"] for split in SPLITS}
    files = [path for source in sources for path in files_in(source)]
    if not any(path.stat().st_size for path in files):
        names = ", ".join(map(str, sources))
        raise PRUError(f"{names} is empty; it needs at least {FEWEST_TOKENS} words of text")
    return {"all": files}


def files_in(source: Path) -> list[Path]:
    """A file, or the text files of a folder and its subfolders: not hidden ones, and none with a NUL byte."""
    if not source.is_dir():
        if not source.exists():
            raise PRUError(f"there is no file or folder {source}")
        return [source]
    inside = sorted(path for path in source.rglob("*") if path.is_file())
    visible = [
        path for path in inside if not any(part.startswith(".") for part in path.relative_to(source).parts)
    ]
    texts = [path for path in visible if b"\0" not in beginning(path)]
    if not texts:
        raise PRUError(f"the folder {source} has no text files")
    return texts


def beginning(path: Path, size: int = 1 << 13) -> bytes:
    """The first bytes of a file."""
    try:
        with open(path, "rb") as file:
            return file.read(size)
    except OSError as error:
        raise PRUError(f"cannot read {path}: {error.strerror}") from error


def sample_of(files: Sequence[Path], blocks: int = 8) -> str:
    """Some text from the first files, enough to see what kind of text it is."""
    read = (
        block[: CHUNK // 4] for path in files for block in islice(read_blocks(path, whole_words=False), 1)
    )
    return "".join(islice(read, blocks))
