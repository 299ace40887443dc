"""Small files that would fill the memory or take minutes are refused in a line, whoever reads them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest
from attack import MEGABYTES, little_memory, pru, replace_files, unchanged

from torch_pru import PRUError
from torch_pru.lm.card import model_card
from torch_pru.lm.config import MOST_LAYERS, ModelConfig
from torch_pru.lm.data import load_corpus, prepare_text
from torch_pru.lm.data.sources import LIMIT, adopt
from torch_pru.lm.data.subwords import Subwords
from torch_pru.lm.evaluation.scores import load_log_probabilities
from torch_pru.lm.files import TEXT_LIMIT, VOCABULARY_LIMIT
from torch_pru.lm.grid import MOST_RUNS, read_grid
from torch_pru.lm.recipe import MOST_DOTS, load_recipe
from torch_pru.lm.records import pack, read_compact, read_folder, shared_line
from torch_pru.lm.run import RunFolder
from torch_pru.lm.seal import MOST_LISTS, seal

EMPTY_LISTS = b"[" + b"[]," * (2 * MEGABYTES) + b"[]]"
"""6 MB of JSON that take 150 MB."""


@contextmanager
def cheap(seconds: float = 10.0) -> Iterator[None]:
    """Little time and memory."""
    start = monotonic()
    with little_memory(100 * MEGABYTES):
        yield
    assert monotonic() - start < seconds


def reseal(run: Path, name: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON file of a run, with a checksum that matches."""
    content = json.loads((run / name).read_text())
    content.pop("sha256", None)
    change(content)
    (run / name).write_bytes(seal(content))


# ------------------------------------------------------------------------------------ checkpoints


def many_tensors(count: int) -> bytes:
    """A safetensors file of empty tensors."""
    entries = (f'"{n}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for n in range(count))
    header = ("{" + ",".join(entries) + "}").encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("weights.safetensors", many_tensors(100_000)),
        ("best.safetensors", many_tensors(100_000)),
        ("state.safetensors", many_tensors(100_000)),
        ("state.json", b'{"state": ' + EMPTY_LISTS + b"}"),
        ("state.json", b'{"state": "' + b"a" * TEXT_LIMIT + b'"}'),
    ],
    ids=["weights", "best", "state", "lists", "long"],
)
def test_a_checkpoint_of_many_small_things_is_not_read(file: str, content: bytes, finished: Path) -> None:
    for path in (finished / "checkpoints").iterdir():
        replace_files(path, {file: content})
    with cheap():
        status, shown = pru("generate", finished)
    assert (status, "every checkpoint in" in shown) == (2, True)


@pytest.mark.parametrize("file", ["run.json", "environment.json", "scores.json"])
def test_json_of_many_small_things_is_not_read(file: str, finished: Path) -> None:
    assert pru("evaluate", finished)[0] == 0
    (finished / file).write_bytes(b'{"a": ' + EMPTY_LISTS + b"}")
    with cheap():
        status, shown = pru("report", finished)
    assert (status, f"at most {MOST_LISTS:,} are read" in shown) == (2, True)


@pytest.mark.parametrize("command", ["verify", "resume"])
def test_a_sparse_terabyte_with_a_matching_size_is_not_hashed(
    command: str, finished: Path, interrupted: Path
) -> None:
    run = interrupted if command == "resume" else finished
    older, _ = sorted((run / "checkpoints").iterdir())
    with open(older / "state.safetensors", "r+b") as file:
        file.truncate(1 << 40)
    manifest = json.loads((older / "manifest.json").read_text())
    manifest["state.safetensors"]["bytes"] = 1 << 40
    (older / "manifest.json").write_text(json.dumps(manifest))
    with cheap():
        status, shown = pru(command, run)
    assert status == (1 if command == "verify" else 0)
    assert command != "verify" or f"{older.name} damaged" in shown


def test_a_vocabulary_that_does_not_fit_is_not_read_word_by_word(finished: Path) -> None:
    words = b"".join(b"%x\n" % number for number in range(3_000_000))
    assert len(words) < VOCABULARY_LIMIT
    (finished / "vocabulary.txt").write_bytes(words)
    reseal(finished, "run.json", lambda about: about.pop("files"))  # as earlier versions wrote it
    with cheap():
        status, shown = pru("generate", finished)
    assert (status, "expected (3000000, 8)" in shown) == (2, True)


# ------------------------------------------------------------------------------------ settings


def test_a_long_dotted_key_is_not_parsed(finished: Path, tmp_path: Path) -> None:
    (finished / "config.toml").write_text("a." * 20_000 + "b = 1\n")
    reseal(finished, "run.json", lambda about: about.pop("files"))
    (tmp_path / "recipe.toml").write_text("a." * 20_000 + "b = 1\n")
    for arguments in (("generate", finished), ("settings", tmp_path / "recipe.toml")):
        with cheap():
            status, shown = pru(*arguments)
        assert (status, f"line 1, has more than {MOST_DOTS} dots" in shown) == (2, True)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("batch = 4", 'batch = "{}"'),
        ("levels = 2", "levels = [{}]"),
        ('unit = "pru"', 'unit = "{}"'),
        ('tokenizer = "spaces"', 'tokenizer = "{}"'),
        ('name = "small"', 'name = "/{}"'),
        ("[training]", "[training]\n{} = 1"),
        ("[training]", "[{}]"),
    ],
)
@pytest.mark.parametrize("command", ["generate", "verify"])
def test_a_long_value_is_shortened_in_the_error(command: str, old: str, new: str, finished: Path) -> None:
    text = (finished / "config.toml").read_text()
    assert old in text
    long = ", ".join(["1"] * 30_000) if "[{}]" in new and "=" in new else "x" * 100_000
    (finished / "config.toml").write_text(text.replace(old, new.replace("{}", long), 1))
    reseal(finished, "run.json", lambda about: about.pop("files"))  # as earlier versions wrote it
    status, shown = pru(command, finished)
    assert status == (1 if command == "verify" else 2)
    assert len(shown) < 3000


def test_a_recipe_built_on_a_huge_file(tmp_path: Path) -> None:
    with open(tmp_path / "huge.toml", "wb") as file:
        file.truncate(4 << 30)
    (tmp_path / "recipe.toml").write_text('base = "huge.toml"\n')
    with cheap(), pytest.raises(PRUError, match=r"huge.toml has [\d,]+ bytes; the limit for it is 262,144"):
        load_recipe(tmp_path / "recipe.toml")


def test_a_model_of_very_many_layers() -> None:
    assert ModelConfig(embedding=8, hidden=(8,) * MOST_LAYERS).layers == MOST_LAYERS
    with pytest.raises(PRUError, match=r"hidden has 1,001 layers"):
        ModelConfig(embedding=8, hidden=(8,) * (MOST_LAYERS + 1))


@pytest.mark.parametrize("layers", [10**9, -1, "x"])
def test_an_exported_model_of_very_many_layers(layers: object) -> None:
    configuration = pytest.importorskip("torch_pru.hf.configuration")
    with cheap(), pytest.raises((PRUError, TypeError, ValueError)):
        configuration.PRUConfig(num_hidden_layers=layers).model()


@pytest.mark.parametrize(
    "text",
    [
        f"seeds = {10**9}\n[grid]\ngroups = [1]\n",
        f"seeds = {10**4000}\n[grid]\ngroups = [1]\n",
        f"samples = {10**9}\n[search]\nlearning_rate = {{min = 1.0, max = 2.0}}\n",
        "[grid]\n" + "".join(f"{key} = {list(range(1, 99))}\n" for key in ("epochs", "seed", "batch")),
        f"samples = 3\n[search]\nepochs = {{min = 1, max = {10**400}, log = true}}\n",
        "samples = 3\n[search]\nlearning_rate = {min = 1.0, max = inf}\n",
    ],
    ids=["seeds", "very many seeds", "samples", "product", "range", "infinite range"],
)
def test_a_grid_of_very_many_runs(text: str, tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(text)
    with cheap(2):
        status, shown = pru("sweep", tmp_path / "grid.toml", "--out", tmp_path / "runs")
    assert status == 2
    assert f"more than {MOST_RUNS:,} runs" in shown or "must be a list of values, or a range" in shown


def test_the_sweep_of_the_paper_is_not_too_large() -> None:
    assert len(read_grid("ptb-sweep").cells()) == 12


@pytest.mark.parametrize("kind", ["run", "new run", "file"])
def test_a_sweep_follows_no_link_to_a_run_elsewhere(
    kind: str, corpus: Path, interrupted: Path, tmp_path: Path
) -> None:
    sizes = "hidden = [8]\nembedding = 8\nlevels = 1\nepochs = 1\nbatch = 4\nwindow = 10"
    grid = f'[grid]\ngroups = [1, 2]\n[settings]\ncorpus = "{corpus}"\n{sizes}\n'
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "grid.toml").write_text(grid)
    elsewhere = interrupted.parent
    (elsewhere / "empty").mkdir()
    links = {"run": ("g1-seed1", interrupted), "new run": ("g1-seed1", elsewhere / "empty")}
    name, target = links.get(kind, ("sweep.md", elsewhere / "notes.md"))
    (tmp_path / "sweep" / name).symlink_to(target)
    with unchanged(elsewhere):
        status, shown = pru("sweep", "--resume", tmp_path / "sweep")
    assert status == (0 if kind == "file" else 2), shown
    assert kind == "file" or "links in the folder of a sweep are not followed" in " ".join(shown.split())


# ------------------------------------------------------------------------------------ scores and records


def npz(name: str, array: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.savez_compressed(content, **{name: array})
    return content.getvalue()


def zeros(count: int) -> bytes:
    """An archive that unpacks to an array of so many zeros, written in pieces."""
    content, header = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f2", "fortran_order": False, "shape": (count,)})
    with (
        zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("log_probabilities.npy", "w", force_zip64=True) as file,
    ):
        file.write(header.getvalue())
        for _ in range(0, count, MEGABYTES):
            file.write(bytes(2 * MEGABYTES))
    return content.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        zeros(200 * MEGABYTES),
        b"garbage",
        b"",
        npz("others", np.zeros(90, np.float16)),
        npz("log_probabilities", np.zeros(5, np.float16)),
        npz("log_probabilities", np.zeros((90, 2), np.float16)),
        npz("log_probabilities", np.array(["a"] * 90)),
    ],
    ids=["bomb", "garbage", "empty", "name", "short", "matrix", "text"],
)
def test_log_probabilities_that_are_none(content: bytes, finished: Path, tmp_path: Path) -> None:
    assert pru("evaluate", finished)[0] == 0
    shutil.copytree(finished, tmp_path / "other")
    (finished / "logprobs-valid-static.npz").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    reseal(finished, "scores.json", lambda s: s["history"][0]["log_probabilities"].update(sha256=digest))
    with cheap():
        status, shown = pru("compare", finished, "--against", tmp_path / "other", "--split", "valid")
    assert (status, "does not hold the log-probabilities of valid" in shown) == (2, True)


def test_log_probabilities_that_are_whole_are_read(finished: Path) -> None:
    assert pru("evaluate", finished)[0] == 0
    found = load_log_probabilities(finished, "valid")
    assert found is not None
    assert found.dim() == 1


@pytest.mark.parametrize("value", ["many", None, [], {"a": 1}, float("inf"), 1.5, 10**30])
@pytest.mark.parametrize("field", ["tokens", "words", "bytes"])
def test_counts_in_scores_are_counts(field: str, value: object, finished: Path, tmp_path: Path) -> None:
    assert pru("evaluate", finished)[0] == 0
    shutil.copytree(finished, tmp_path / "other")
    reseal(finished, "scores.json", lambda s: s["results"]["static"]["valid"].update({field: value}))
    status, shown = pru("compare", finished, "--against", tmp_path / "other", "--split", "valid")
    assert (status, f"results.static.valid.{field} is not a number" in shown) == (2, True)


def test_a_model_card_shows_what_a_stranger_wrote_as_text(finished: Path) -> None:
    evil = "\x1b[2J|\n| forged | <script>alert(1) `"
    reseal(finished, "environment.json", lambda values: values.update(commit=evil, torch=evil))
    text = (finished / "config.toml").read_text().replace('name = "small"', f"name = {json.dumps(evil)}")
    (finished / "config.toml").write_text(text)
    assert pru("verify", finished, "--accept")[0] == 0
    card = model_card(RunFolder.open(finished))
    assert "forged" in card
    assert "\x1b" not in card
    assert "<script" not in card
    assert not any(line.startswith("| forged") for line in card.splitlines())


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line["epochs"].update(decision=[[1, "continue"], [10**10, "stop"]]),
        lambda line: line["epochs"].update(decision=[[-(10**10), "continue"]]),
        lambda line: line["epochs"].update(valid_loss=[1e9, 1e9]),
        lambda line: line.update(name=3),
    ],
)
def test_a_compact_record_that_is_none(
    change: Callable[[dict[str, Any]], None], finished_run: Path, tmp_path: Path
) -> None:
    record = read_folder(finished_run)
    shared = shared_line(record)
    line = json.loads(json.dumps(pack(record, shared)))
    change(line)
    (tmp_path / "runs.jsonl").write_text(f"{json.dumps(shared)}\n{json.dumps(line)}\n")
    with cheap(2):
        status, shown = pru("report", tmp_path / "runs.jsonl")
    assert (status, "is not a file that pru report --keep has written" in shown) == (2, True)


def test_a_compact_record_that_is_nested_too_deeply(tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_text("[" * 50_000)
    with pytest.raises(PRUError, match="nested too deeply"):
        read_compact(tmp_path / "runs.jsonl")


# ------------------------------------------------------------------------------------ texts


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRU_DATA", str(tmp_path / "data"))
    (tmp_path / "book.txt").write_text("the cat sat on a mat\n" * 400)
    return prepare_text([tmp_path / "book.txt"], "mine").folder


@pytest.mark.parametrize(
    "ids",
    [
        np.full(4000, 60_000, np.uint16),
        np.full(4000, -5, np.int32),
        np.zeros(4000, np.float32),
        np.zeros((400, 10), np.uint8),
        np.array(["a"] * 900),
        np.zeros(4000, ">u2"),
        np.zeros(900, [("a", "u1")]),
    ],
    ids=["large", "negative", "floats", "matrix", "text", "byte order", "records"],
)
@pytest.mark.parametrize("split", ["train", "valid"])
def test_a_prepared_text_whose_ids_are_no_words(split: str, ids: np.ndarray, prepared: Path) -> None:
    np.save(prepared / f"{split}.npy", ids)
    with pytest.raises(PRUError, match=rf"{split}.npy is damaged"):
        load_corpus("mine")


@pytest.mark.parametrize("content", [b'"x"', b"[1]", b"[" * 50_000, b"{}", b"\xff", b'{"a":' + EMPTY_LISTS])
def test_what_is_said_of_a_prepared_text_is_checked(content: bytes, prepared: Path) -> None:
    (prepared / "corpus.json").write_bytes(content)
    with cheap(), pytest.raises(PRUError, match=r"corpus.json (is damaged|has [\d,]+ bytes)"):
        load_corpus("mine")


@pytest.mark.parametrize("name", ["vocabulary.txt", "train.npy"])
def test_a_fifo_in_a_prepared_text(name: str, prepared: Path) -> None:
    (prepared / name).unlink()
    os.mkfifo(prepared / name)
    with cheap(2), pytest.raises(PRUError, match=name):
        load_corpus("mine")


def test_a_copy_of_a_published_text_that_is_far_too_large(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        with open(tmp_path / f"{split}.txt", "wb") as file:
            file.truncate(1 << 40)
    with cheap(), pytest.raises(PRUError, match=f"the limit for it is {LIMIT:,}"):
        adopt("ptb", tmp_path, tmp_path / "data")


def test_a_tokenizer_file_of_many_small_things_is_not_read() -> None:
    content = b'{"model": {"vocab": {}, "merges": ' + EMPTY_LISTS + b"}}"
    with cheap(), pytest.raises(PRUError, match="lists and objects"):
        Subwords.from_bytes(content, "tokenizer.json")
