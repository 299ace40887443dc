"""What a stranger's checkpoint holds is checked before anything uses it, and fills no memory."""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from attack import MEGABYTES, little_memory, pru, replace_files, reseal_state

from torch_pru import PRUError
from torch_pru.lm.checkpoint import Checkpoint, decode, load_newest, read_verified
from torch_pru.lm.run import RunFolder
from torch_pru.lm.schema import STATE, check_state
from torch_pru.lm.state_files import check_pickle, decode_state, encode_state


def newest(run: Path) -> Path:
    return max((run / "checkpoints").iterdir())


# ------------------------------------------------------------------------------------ fields


NONSENSE: list[Any] = [
    *(None, "text", -1, 1.5, 2**70, True, [], {}, [1], {"a": 1}, float("nan"), float("inf")),
    *(torch.tensor([1.0]), torch.tensor(float("nan")), torch.zeros(1, 2, dtype=torch.int64)),
]


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every dictionary entry and list item of a state."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from paths_in(item, (*path, key))


def changed(state: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of a state with one item replaced; ``KeyError`` removes it."""
    key, *rest = path
    copy = dict(state) if isinstance(state, dict) else list(state)
    if rest:
        copy[key] = changed(state[key], tuple(rest), value)
    elif value is KeyError:
        del copy[key]
    else:
        copy[key] = value
    return copy


@pytest.fixture(scope="module")
def checkpoint(interrupted_run: Path) -> Checkpoint:
    found = RunFolder.open(interrupted_run).checkpoint()
    assert found is not None
    return found


def same_type(value: Any, other: Any) -> bool:
    """Whether a value could be meant: nonsense of the right type and range is not nonsense."""
    if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor):
        return value.shape == other.shape and other.is_floating_point() and bool(other.isfinite().all())
    if type(value) is not type(other):
        return False
    in_range = isinstance(value, int | float) and 0 <= other < 2**53
    return isinstance(value, bool | dict | list) or in_range


def test_nonsense_in_any_field_is_one_line_that_names_it(
    checkpoint: Checkpoint, interrupted_run: Path
) -> None:
    run = RunFolder.open(interrupted_run)
    refused = 0
    for path in list(paths_in(checkpoint.state)):
        inner = checkpoint.state
        for key in path:
            inner = inner[key]
        for value in [*NONSENSE, KeyError]:
            if value is not KeyError and same_type(inner, value):
                continue
            if path == ("masks", "generator") and value is None:  # masks that cannot be continued
                continue
            if path[:2] == ("schedule", "history") and value is KeyError:  # an epoch less
                continue
            losses = {("schedule", "best"), ("schedule", "best_before_round")}
            if path in losses and isinstance(value, float) and value == math.inf:
                continue  # before the first epoch
            bad = Checkpoint(checkpoint.weights, checkpoint.best, changed(checkpoint.state, path, value))
            with pytest.raises(PRUError) as caught:  # noqa: PT012 (says which value was accepted)
                check_state(bad, run.config)
                pytest.fail(f"{path} = {value!r} was accepted")
            name = next(str(key) for key in path)
            assert name in str(caught.value), (path, value, str(caught.value))
            assert "\n" not in str(caught.value)
            assert len(str(caught.value)) < 600
            refused += 1
    assert refused > 400


@pytest.mark.parametrize("field", ["weights", "best"])
@pytest.mark.parametrize("nonsense", ["missing", "unknown", "shape", "nan", "integer", "float64", "empty"])
def test_weights_that_are_not_the_models(nonsense: str, field: str, finished: Path) -> None:
    name = "embedding.weight"
    path = newest(finished)
    weights = safetensors.torch.load_file(path / f"{field}.safetensors")
    changes: dict[str, Callable[[], Any]] = {
        "missing": lambda: weights.pop(name),
        "unknown": lambda: weights.update({"evil": torch.ones(1)}),
        "shape": lambda: weights.update({name: weights[name].t().contiguous()}),
        "nan": lambda: weights[name][0].fill_(torch.nan),
        "integer": lambda: weights.update({name: weights[name].int()}),
        "float64": lambda: weights.update({name: weights[name].double()}),
        "empty": weights.clear,
    }
    changes[nonsense]()
    replace_files(path, {f"{field}.safetensors": safetensors.torch.save(weights)})
    for command in ("evaluate", "generate", "resume", "finetune"):
        status, shown = pru(command, finished)
        assert status == 2, shown
        assert field in shown
        assert len(shown.splitlines()) <= 2


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        lambda state: {},
        lambda state: {"state": 1},
        lambda state: state.pop("schedule") and None,
        lambda state: state.update(finished="yes"),
        lambda state: state["schedule"].update(epoch=-1),
        lambda state: state["optimizer"].update(averages={"evil": torch.ones(2)}),
        lambda state: state.update(recurrent_state=[]),
        lambda state: state["masks"].update(generator=torch.zeros(7, dtype=torch.uint8)),
        lambda state: state.update(extra=1),
    ],
)
@pytest.mark.parametrize("command", ["resume", "finetune"])
def test_resealed_nonsense_is_refused_by_every_command(
    command: str, change: Callable[[dict[str, Any]], Any], pickled: bool, finished: Path
) -> None:
    reseal_state(finished, change, pickled=pickled)
    status, shown = pru(command, finished)
    assert status == 2
    assert "checkpoint" in shown
    assert len(shown.splitlines()) <= 3


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("hidden = [8]", "hidden = [16, 8]"),
        ("levels = 2", "levels = 1"),
        ("experts = 1", "experts = 2"),
        ("embedding = 8\nhidden = [8]", "embedding = 12\nhidden = [12]"),
        ('precision = "float32"', 'precision = "float64"'),
        ('precision = "float32"', 'precision = "float16"'),
        ("batch = 4", "batch = 3"),
    ],
)
@pytest.mark.parametrize("command", ["resume", "finetune"])
def test_settings_that_cannot_change_once_a_run_has_begun(
    command: str, old: str, new: str, finished: Path, interrupted: Path
) -> None:
    run = interrupted if command == "resume" else finished
    text = (run / "config.toml").read_text()
    assert old in text
    (run / "config.toml").write_text(text.replace(old, new))
    assert pru("verify", run, "--accept")[0] == 0
    status, shown = pru(command, run)
    assert (status, "does not fit the run's config.toml" in shown) == (2, True)


def test_state_files_bring_everything_back(checkpoint: Checkpoint) -> None:
    again = decode_state(encode_state(checkpoint.state))
    assert json.loads(encode_state(again)["state.json"]) == json.loads(
        encode_state(checkpoint.state)["state.json"]
    )
    tensors = safetensors.torch.load(encode_state(again)["state.safetensors"])
    for name, value in safetensors.torch.load(encode_state(checkpoint.state)["state.safetensors"]).items():
        assert torch.equal(tensors[name], value)
        assert tensors[name].dtype == value.dtype


def test_a_pickle_of_an_earlier_version_is_read(interrupted: Path, finished_run: Path) -> None:
    reseal_state(interrupted, lambda state: None, pickled=True)
    assert pru("resume", interrupted)[0] == 0
    ended, whole = RunFolder.open(interrupted).model(), RunFolder.open(finished_run).model()
    for name, value in ended.state_dict().items():
        assert value.equal(whole.state_dict()[name])


# ------------------------------------------------------------------------------------ bombs


def pickle_archive(content: bytes, compression: int = zipfile.ZIP_STORED, **others: bytes) -> bytes:
    """A ``state.pt`` around a pickle."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/version", "3\n")
        for name, data in others.items():
            archive.writestr(f"archive/data/{name}", data)
    return buffer.getvalue()


BYTEARRAY = b"\x80\x02cbuiltins\nbytearray\nJ\x00\x28\x6b\x7e\x85R."  # bytearray(2_121_148_416)


@pytest.mark.parametrize(
    "content",
    [
        pickle_archive(BYTEARRAY),
        pickle_archive(b"\x80\x02]" + b"(" * 100 + b"." + b"\0" * (400 * MEGABYTES), zipfile.ZIP_DEFLATED),
        pickle_archive(pickle.dumps([0] * 3_000_000, protocol=2)),
        pickle_archive(b"\x80\x02cposix\nsystem\nX\x04\x00\x00\x00true\x85R."),
        BYTEARRAY,
        b"",
        b"PK\x05\x06" + b"\0" * 18,
    ],
    ids=["bytearray", "compressed", "items", "system", "no archive", "empty", "empty archive"],
)
def test_a_pickle_that_is_none_of_ours_is_never_loaded(content: bytes, finished: Path) -> None:
    for path in (finished / "checkpoints").iterdir():
        replace_files(path, {"state.pt": content}, ["state.json", "state.safetensors"])
    with little_memory():
        status, shown = pru("generate", finished)
    assert (status, "cannot be read" in shown) == (2, True)


def test_the_bytearray_bomb_is_a_valid_pickle() -> None:
    assert len(pickle.loads(BYTEARRAY.replace(b"J\x00\x28\x6b\x7e", b"J\x05\x00\x00\x00"))) == 5
    with pytest.raises(ValueError, match="builtins bytearray"):
        check_pickle(BYTEARRAY)


@pytest.mark.parametrize("depth", [1000, 100_000])
def test_nested_json_is_no_trouble(depth: int, finished: Path) -> None:
    content = b'{"a": ' + b"[" * depth + b"]" * depth + b"}"
    for path in (finished / "checkpoints").iterdir():
        replace_files(path, {"state.json": content})
    status, shown = pru("evaluate", finished)
    assert status == 2, shown


@pytest.mark.parametrize(
    "name", ["/dev/zero", "../../../outside/.bashrc", "fifo", "weights.safetensors/..", ""]
)
def test_a_manifest_names_the_files_of_its_checkpoint_and_no_others(
    name: str, finished: Path, outside: Path
) -> None:
    path = newest(finished)
    os.mkfifo(path / "fifo")
    manifest = json.loads((path / "manifest.json").read_text())
    manifest[name] = manifest.pop("best.safetensors")
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.warns(UserWarning, match="trying the checkpoint before it"):
        assert load_newest(finished / "checkpoints") is not None
    assert pru("generate", finished)[0] == 0  # from the checkpoint before it


@pytest.mark.parametrize(
    "file", ["weights.safetensors", "best.safetensors", "state.json", "state.safetensors"]
)
@pytest.mark.parametrize("resealed", [False, True])
def test_a_sparse_terabyte_is_refused_and_the_older_checkpoint_is_used(
    file: str, resealed: bool, finished: Path
) -> None:
    path = newest(finished)
    with open(path / file, "r+b") as handle:
        handle.truncate(1 << 40)
    if resealed:
        manifest = json.loads((path / "manifest.json").read_text())
        manifest[file]["bytes"] = 1 << 40
        (path / "manifest.json").write_text(json.dumps(manifest))
    with little_memory():
        status, shown = pru("generate", finished)
    assert status == 0
    assert "trying the checkpoint before it" in shown


@pytest.mark.parametrize("size", [900_000, 900_000_000])  # bytes that no machine has, or no number counts
def test_a_huge_model_in_a_strangers_settings_costs_nothing(size: int, finished: Path) -> None:
    text = (finished / "config.toml").read_text()
    (finished / "config.toml").write_text(
        text.replace("embedding = 8\nhidden = [8]", f"embedding = {size}\nhidden = [{size}]")
    )
    assert pru("verify", finished, "--accept")[0] == 0
    with little_memory():
        status, shown = pru("generate", finished)
    assert status in (1, 2)
    assert len(shown.splitlines()) == 1


def test_decoding_names_the_checkpoint(finished: Path, tmp_path: Path) -> None:
    path = shutil.copytree(newest(finished), tmp_path / "checkpoints" / "000001")
    contents = read_verified(path)
    with pytest.raises(PRUError, match=rf"the checkpoint {path} cannot be read"):
        decode(contents | {"weights.safetensors": b"\xff" * 8}, path)
    assert set(STATE) == set(decode(contents, path).state)
