"""No file of a run can change without being noticed; a change that is meant can be accepted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from attack import flip, pru

from torch_pru import PRUError
from torch_pru.lm.run import RunFolder
from torch_pru.lm.seal import seal, seal_line, unseal, unseal_line
from torch_pru.lm.verify import accept, verify


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def scores_of(run: Path) -> dict[str, object]:
    return dict(json.loads((run / "scores.json").read_text()))


# ------------------------------------------------------------------------------------ settings and words


@pytest.mark.parametrize("command", ["resume", "evaluate", "generate", "finetune", "report"])
@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("config.toml", "pool_window = 3", "pool_window = 2"),
        ("config.toml", "weight_drop = 0.5", "weight_drop = 0.4"),
        ("config.toml", "batch = 4", "batch = 5"),
        ("vocabulary.txt", "the\ncat\n", "cat\nthe\n"),
    ],
)
def test_a_changed_file_is_refused(file: str, old: str, new: str, command: str, finished: Path) -> None:
    assert pru("evaluate", finished)[0] == 0
    before = scores_of(finished)
    edit(finished / file, old, new)
    status, shown = pru(command, finished)
    if (file, command) == ("vocabulary.txt", "report"):  # which needs no words
        assert status == 0
        return
    assert status == 2
    assert f"{file} has changed since the run began" in shown
    assert f"pru verify {finished} --accept" in shown
    assert scores_of(finished) == before


def test_an_accepted_change_counts_and_drops_the_scores_of_before(finished: Path) -> None:
    assert pru("evaluate", finished)[0] == 0
    before = scores_of(finished)
    edit(finished / "config.toml", "pool_window = 3", "pool_window = 5")
    status, shown = pru("verify", finished, "--accept")
    assert (status, "accepted: config.toml" in shown) == (0, True)
    assert RunFolder.open(finished).config.model.pool_window == 5
    assert pru("evaluate", finished, "--split", "test")[0] == 0
    after = scores_of(finished)
    assert after["weights"] == before["weights"]
    assert after["inputs"] != before["inputs"]
    assert list(after["results"]["static"]) == ["test"]  # that of the other model is not kept beside it


def test_scores_of_the_same_inputs_are_kept_side_by_side(finished: Path) -> None:
    for split in ("valid", "test"):
        assert pru("evaluate", finished, "--split", split)[0] == 0
    assert sorted(scores_of(finished)["results"]["static"]) == ["test", "valid"]


def test_every_bit_of_a_small_file_counts(finished: Path) -> None:
    """Of run.json, config.toml, environment.json: no flipped bit changes what a run is without an error."""
    run = RunFolder.open(finished)
    for name in ("run.json", "config.toml"):
        path = finished / name
        content = path.read_bytes()
        for byte in range(0, len(content), 7):
            path.write_bytes(flip(content, byte, byte % 8))
            try:
                found = RunFolder.open(finished)
            except PRUError:
                continue
            assert (found.stage, found.config, found.text_digest) == (run.stage, run.config, run.text_digest)
        path.write_bytes(content)
    assert RunFolder.open(finished) == run


def test_a_folder_of_an_earlier_version_opens(finished: Path) -> None:
    (finished / "run.json").write_text('{"format": 1, "stage": "train"}')
    for name in ("environment.json",):
        content = json.loads((finished / name).read_text())
        del content["sha256"]
        (finished / name).write_text(json.dumps(content))
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["crc"]
    (finished / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for command in ("resume", "evaluate", "generate", "report"):
        assert pru(command, finished)[0] == 0
    status, shown = pru("verify", finished)
    assert (status, "no checksums: written by an earlier version" in " ".join(shown.split())) == (0, True)


def test_a_strangers_settings_build_upon_no_other_file(finished: Path, outside: Path) -> None:
    secret = outside / "secret.toml"
    secret.write_text("[training]\nepochs = 3\n")
    text = (finished / "config.toml").read_text()
    (finished / "config.toml").write_text(f'base = "{secret}"\n{text}')
    status, shown = pru("verify", finished, "--accept")
    assert (status, "'base' is not a section" in shown) == (2, True)


# ------------------------------------------------------------------------------------ the log


def test_a_damaged_line_is_named_and_left_out_once_accepted(finished: Path) -> None:
    path = finished / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], flip(lines[2], 20, 0), *lines[3:]]))
    with pytest.raises(PRUError, match=r"metrics.jsonl, line 3, is damaged"):
        RunFolder.open(finished).metrics()
    assert accept(finished) == ["metrics.jsonl"]
    assert len(RunFolder.open(finished).metrics()) == len(lines) - 1
    assert all(finding.fine for finding in verify(finished))


@pytest.mark.parametrize("damage", ["missing", "swapped", "repeated"])
def test_lines_that_are_missing_or_out_of_order_are_noticed(damage: str, finished: Path) -> None:
    path = finished / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    first, second, third, *rest = lines
    changed = {"missing": [first, third], "swapped": [second, first, third], "repeated": [first, *lines[:3]]}
    path.write_bytes(b"".join([*changed[damage], *rest]))
    with pytest.raises(PRUError, match=r"metrics.jsonl, line \d, is damaged: .* lines before it are missing"):
        RunFolder.open(finished).metrics()


@pytest.mark.parametrize("damage", ["deleted", "emptied", "cut", "flipped", "garbage"])
def test_a_run_whose_log_is_damaged_resumes_from_its_checkpoint(
    damage: str, interrupted: Path, finished_run: Path
) -> None:
    path = interrupted / "metrics.jsonl"
    content = path.read_bytes()
    if damage == "deleted":
        path.unlink()
    else:
        damaged = {
            "emptied": b"",
            "cut": content[: len(content) // 2],
            "flipped": flip(content, len(content) // 2, 3),
            "garbage": bytes(range(256)) * 40 + b"\n" + b"[" * 5000 + b"\n" + content[3000:],
        }
        path.write_bytes(damaged[damage])
    status, shown = pru("resume", interrupted)
    assert status == 0, shown
    assert "are lost or damaged and are left out; training resumes from the checkpoint" in shown
    run, whole = RunFolder.open(interrupted), RunFolder.open(finished_run)
    assert run.epochs()[-1]["decision"] == "stop"
    for name, value in run.model().state_dict().items():
        assert value.equal(whole.model().state_dict()[name])
    assert all(finding.fine for finding in verify(interrupted))


def test_an_undamaged_log_is_copied_to_the_byte(interrupted: Path, finished_run: Path) -> None:
    *before, stop = (interrupted / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    assert json.loads(stop)["stop_reason"].startswith("interrupted by SIG")  # a resume drops this line
    assert pru("resume", interrupted)[0] == 0
    assert (interrupted / "metrics.jsonl").read_bytes().startswith(b"".join(before))
    steps = [line["step"] for line in RunFolder.open(interrupted).metrics()]
    assert steps == [line["step"] for line in RunFolder.open(finished_run).metrics()]


# ------------------------------------------------------------------------------------ verify


def test_verify_says_that_a_run_is_whole(finished: Path) -> None:
    status, shown = pru("verify", finished)
    assert (status, shown.splitlines()[-1]) == (0, "all files match their checksums")


@pytest.mark.parametrize("kept", [0, 1, 4, -1])
@pytest.mark.parametrize("ended", [True, False])
def test_lines_that_are_missing_at_the_end_of_the_log_are_noticed(
    ended: bool, kept: int, finished: Path, interrupted: Path
) -> None:
    run = finished if ended else interrupted
    path = run / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    if not ended:
        *lines, stop = lines  # written after the checkpoint, as the lines of a run that was killed
        assert b"interrupted by" in stop
        path.write_bytes(b"".join(lines))
        assert all(finding.fine for finding in verify(run))
    path.write_bytes(b"".join(lines[:kept]))
    (wrong,) = [finding for finding in verify(run) if not finding.fine]
    assert (wrong.item, wrong.missing, "lines at its end" in wrong.text) == ("metrics.jsonl", True, True)
    status, shown = pru("report", run)
    assert (status, "metrics.jsonl has lost lines at its end" in shown) == (0, True)
    assert pru("resume", run)[0] == 0
    if not ended:
        assert all(finding.fine for finding in verify(run))


def test_verify_misses_the_checkpoint_with_which_a_run_finished(finished: Path) -> None:
    older, newest = sorted((finished / "checkpoints").iterdir())
    shutil.rmtree(newest)
    (wrong,) = [finding for finding in verify(finished) if not finding.fine]
    assert (wrong.item, wrong.missing) == ("checkpoints", True)
    assert wrong.text == f"{older.name} ok; the one with which the run finished does not exist"


@pytest.mark.parametrize("damage", ["flipped", "missing", "link", "large"])
def test_verify_reads_the_log_probabilities(damage: str, finished: Path, outside: Path) -> None:
    assert pru("evaluate", finished)[0] == 0
    path = finished / "logprobs-valid-static.npz"
    assert [finding.fine for finding in verify(finished) if finding.item == path.name] == [True]
    content = path.read_bytes()
    path.unlink()
    if damage == "flipped":
        path.write_bytes(flip(content, len(content) // 2, 1))
    elif damage == "link":
        path.symlink_to(outside / "documents" / "thesis.txt")
    elif damage == "large":
        with open(path, "wb") as file:
            file.truncate(1 << 40)
    wrong = [finding for finding in verify(finished) if finding.item == path.name]
    assert not any(finding.fine for finding in wrong)
    assert wrong[0].missing == (damage == "missing")
    assert pru("verify", finished)[0] == 1


def test_verify_names_what_is_wrong_and_changes_nothing(finished: Path) -> None:
    newest = max((finished / "checkpoints").iterdir())
    (newest / "state.json").write_bytes(b"")
    edit(finished / "environment.json", '"torch": "', '"torch": "9')
    (finished / "link").symlink_to("/etc/passwd")
    (finished / "vocabulary.txt").unlink()
    before = shutil.copytree(finished, finished.with_name("before"), symlinks=True)
    status, shown = pru("verify", finished)
    assert status == 1
    wrong = [line.split()[0] for line in shown.splitlines() if " CHANGED " in line or " MISSING " in line]
    assert wrong == ["vocabulary.txt", "environment.json", "checkpoints", "link"]
    assert f"{newest.name} damaged" in shown
    for name in ("run.json", "environment.json", "metrics.jsonl"):
        assert (finished / name).read_bytes() == (before / name).read_bytes()


def test_seals() -> None:
    content = {"a": [1.5, None], "b": {"c": "é"}}
    assert unseal(seal(content), Path("a.json")) == content
    first, checksum = seal_line(content)
    second, _ = seal_line(content, checksum)
    assert unseal_line(first)[0] == unseal_line(second, checksum)[0] == content
    for line, previous in ((second, 0), (first, checksum)):
        with pytest.raises(ValueError, match="checksum"):
            unseal_line(line, previous)
