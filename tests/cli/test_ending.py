"""What a run on the built-in text, or on text of one's own, shows at its end."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from torch_pru.cli.ending import next_steps, show_ending
from torch_pru.lm.checkpoint import Checkpoint, save_checkpoint
from torch_pru.lm.data import Corpus, kneser_ney_bigram_perplexity, load_corpus
from torch_pru.lm.evaluation import Evaluation
from torch_pru.lm.evaluation.scores import load_scores
from torch_pru.lm.model import LanguageModel
from torch_pru.lm.recipe import load_recipe
from torch_pru.lm.run import RunFolder


def test_the_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = load_corpus("king-james")
    corpus = Corpus(whole.train[:5000], whole.valid[:200], whole.test[:300], whole.vocabulary)
    monkeypatch.setattr("torch_pru.lm.run.load_corpus", lambda name, *_: corpus)
    config = load_recipe("quickstart", {"embedding": "8", "hidden": "[8]", "groups": "2", "device": "cpu"})
    run = RunFolder.create(tmp_path / "my runs" / "quickstart-1", config, corpus)
    torch.manual_seed(1)
    model = LanguageModel(config.model, config.regularization, len(corpus.vocabulary))
    weights = dict(model.named_parameters())
    save_checkpoint(run.checkpoints, Checkpoint(weights, weights, {}))
    monkeypatch.setenv("COLUMNS", "40")
    (tmp_path / "site").mkdir()
    monkeypatch.setattr("torch_pru.page.site.SITE", tmp_path / "site")  # not built
    commands, purposes = zip(*next_steps(run), strict=True)
    assert [command.split()[1] for command in commands] == ["page", "generate", "evaluate", "train"]
    assert "(once it is built: cd page && npm ci && npm run build)" in purposes[0]
    (tmp_path / "site" / "index.html").touch()
    show_ending(run)
    shown = capsys.readouterr().out
    assert "once it is built" not in shown
    assert "…" not in shown
    scores = load_scores(run.path)
    assert scores is not None
    rows = {line.rsplit(None, 2)[0].strip(): line.split()[-2:] for line in shown.splitlines() if line.strip()}
    for number, split in enumerate(("valid", "test")):
        ids = corpus.split(split)
        bigram = kneser_ney_bigram_perplexity(corpus.train, ids, len(corpus.vocabulary))
        assert rows["this PRU"][number] == f"{scores.perplexity('static', split):.2f}"
        assert rows["Kneser-Ney bigram"][number] == f"{bigram:.2f}"
    assert "worse than the baseline" in " ".join(shown.split())  # the weights are random
    assert "10 columns that are read in parallel" in " ".join(shown.split())
    assert "nn.LSTM" not in shown  # another model than the quickstart's: its record does not compare
    text = shown.partition("Sample:\n")[2].partition("\n\n")[0]
    assert len(text.splitlines()) == 3  # one line per sentence: only a terminal wraps
    assert all(line.startswith("  ") for line in text.splitlines())
    assert max(map(len, text.splitlines())) > 40
    assert f"pru page '{run.path}'\n" in shown
    assert f"pru generate '{run.path}' --prompt" in shown
    assert f"pru evaluate '{run.path}' --split" in shown
    assert "pru train --text FILE" in shown
    (tmp_path / "a.txt").write_text("And God said.\n")  # not yet split into the corpus's words
    ids = Evaluation(run, "cpu").encode(tmp_path / "a.txt").ids
    assert [run.vocabulary.word(number) for number in ids.tolist()] == ["and", "god", "said", ".", "<eos>"]


def test_a_finished_run_is_shown_from_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    test_the_ending(tmp_path, monkeypatch, capsys)
    run = RunFolder.open(tmp_path / "my runs" / "quickstart-1")
    before = (run.path / "scores.json").stat().st_mtime_ns
    monkeypatch.setattr(Evaluation, "score", None)
    show_ending(run)
    assert "Kneser-Ney bigram" in capsys.readouterr().out
    assert (run.path / "scores.json").stat().st_mtime_ns == before
