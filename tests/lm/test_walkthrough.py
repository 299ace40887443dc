"""The code in docs/python.md runs as it stands, on a small text and in a few seconds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torch_pru.lm import plan

DOCUMENT = Path(__file__).parents[2] / "docs" / "python.md"


def test_the_walk_through_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRU_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(plan, "FEWEST_STEPS", 1)
    monkeypatch.setattr(plan, "MOST_EPOCHS", (2, 2))
    lines = [f"The old house number {number % 7} was big, and the cat sat in it." for number in range(200)]
    Path("book.txt").write_text("\n".join(lines))
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 6
    names: dict[str, object] = {}
    for block in blocks:
        assert len(block.splitlines()) <= 12
        exec(compile(block, str(DOCUMENT), "exec"), names)
    shown = capsys.readouterr().out
    assert "house" in shown
    assert "static" in shown
    assert Path("figures/index.html").exists()
