"""The command on real run folders: files, messages, and what is left alone."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path

import pytest
from analysis_runs import write_corpus, write_run
from typer.testing import CliRunner

from torch_pru.analysis import ANALYSES, analyze, confidence, gradient_coverage
from torch_pru.cli import app
from torch_pru.errors import PRUError
from torch_pru.lm.run import RunFolder

PICTURES = [
    *("confidence", "embeddings-total", "embeddings-per-dimension", "saliency-1", "saliency-2"),
    *("coverage", "coverage-thresholds", "curves", "sweep"),
]
SENTENCES = ["the old [dog] sees the man", "he finds it"]


def pru(*arguments: object, **environment: str) -> tuple[int, str, str]:
    """Status, standard output and standard error of a command."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env=environment)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, runs: dict[str, Path], tagger: None) -> Path:
    """Everything about two runs."""
    folder = tmp_path_factory.mktemp("figures")
    sentences = [part for sentence in SENTENCES for part in ("--sentence", sentence)]
    status, shown, errors = pru("analyze", *runs.values(), "--out", folder, *sentences, "--device", "cpu")
    assert status == 0, errors
    assert "index.html" in shown
    return folder


def test_every_figure_is_there_as_svg_and_png(out: Path) -> None:
    assert sorted(path.stem for path in out.glob("*.svg")) == sorted(PICTURES)
    for name in PICTURES:
        root = ElementTree.parse(out / f"{name}.svg").getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        png = (out / f"{name}.png").read_bytes()
        assert png[:8] == b"\x89PNG\r\n\x1a\n"
        width = int.from_bytes(png[16:20], "big")
        assert width == 1500  # five inches at 300 dots an inch


def test_every_analysis_has_its_numbers(out: Path, runs: dict[str, Path]) -> None:
    assert sorted(path.stem for path in out.glob("*.json")) == sorted(ANALYSES)
    numbers = {name: json.loads((out / f"{name}.json").read_text()) for name in ANALYSES}
    for name in set(ANALYSES) - {"saliency"}:
        assert list(numbers[name]) == list(runs)
    assert [list(one) for one in numbers["saliency"]] == [list(runs)] * 2
    assert sum(numbers["confidence"]["pru"]["counts"]) == numbers["confidence"]["pru"]["contexts"]
    assert len(numbers["embeddings"]["pru"]["levels"]) == 2
    assert len(numbers["embeddings"]["lstm"]["levels"]) == 1
    assert numbers["saliency"][0]["pru"]["explained"] == "dog"
    # As in the paper: confidence on the validation text, gradients on the test text.
    run = RunFolder.open(runs["pru"])
    assert numbers["coverage"]["pru"] == asdict(gradient_coverage(run.model(), run.corpus().test))
    assert numbers["confidence"]["pru"] == asdict(confidence(run.model(), run.corpus().valid))


class Page(HTMLParser):
    """Images, and every address the page names."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.images: list[dict[str, str | None]] = []
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.addresses += [value for key, value in attrs if key in ("src", "href") and value]
        if tag == "img":
            self.images.append(values)


def test_the_page_holds_everything(out: Path) -> None:
    text = (out / "index.html").read_text()
    page = Page(text)
    assert len(page.images) == len(PICTURES)
    for image, name in zip(page.images, PICTURES, strict=True):
        svg = base64.b64decode((image["src"] or "").partition("base64,")[2])
        assert svg == (out / f"{name}.svg").read_bytes()
        assert image["alt"]
    assert all(address.startswith(("#", "data:")) for address in page.addresses)
    assert not re.search(r"https?://|@import|url\(", text)
    assert all(f'<section id="{name}">' in text for name in ANALYSES)


def test_the_same_runs_make_the_same_files(out: Path, runs: dict[str, Path], tmp_path: Path) -> None:
    analyze(runs.values(), tmp_path, only=["confidence", "curves"])
    for name in ("confidence.svg", "confidence.json", "curves.svg", "curves.png"):
        assert (tmp_path / name).read_bytes() == (out / name).read_bytes()


def test_only_what_is_asked_for_is_made(runs: dict[str, Path], tmp_path: Path) -> None:
    status, _, _ = pru("analyze", runs["lstm"], "--out", tmp_path, "--only", "sweep", "--only", "curves")
    assert status == 0
    assert {path.name for path in tmp_path.iterdir()} == {
        *("curves.json", "curves.png", "curves.svg", "index.html", "sweep.json", "sweep.png", "sweep.svg")
    }


def test_top1_explains_the_first_guess(runs: dict[str, Path], tmp_path: Path) -> None:
    analyze([runs["pru"]], tmp_path, only=["saliency"], sentences=SENTENCES[:1], top1=True)
    ((found,),) = (one.values() for one in json.loads((tmp_path / "saliency.json").read_text()))
    assert found["explained"] == found["guesses"][0]["word"]


def test_default_sentences_come_from_the_validation_text(runs: dict[str, Path], tmp_path: Path) -> None:
    sections = analyze([runs["lstm"]], tmp_path, only=["saliency"])
    assert len(sections[0].pictures) == 5


def test_unknown_words_of_a_sentence_are_named(runs: dict[str, Path], tmp_path: Path) -> None:
    sentences = ["the old [wolf] sees it", "the wolf and the <unk> fox"]
    with pytest.warns(UserWarning, match="^not in the vocabulary, read as <unk>: wolf, fox$"):
        analyze([runs["lstm"]], tmp_path, only=["saliency"], sentences=sentences)


def test_a_short_validation_text_has_fewer_columns(tmp_path: Path) -> None:
    text = write_corpus(tmp_path / "text")
    (text / "valid.txt").write_text("the old dog sees it\n" * 6 + "the old\n")  # 39 tokens
    run = write_run(tmp_path / "run", "pru", text)
    (section,) = analyze([run], tmp_path / "out", only=["confidence"])
    assert section.sentence.startswith("Over 1 contexts")  # 19 columns of two tokens


def test_an_analysis_that_does_not_suit_is_left_out(
    tmp_path: Path, tagger: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch_pru.analysis.figures.style.render", lambda *_: b"")  # a second each
    text = write_corpus(tmp_path / "text")
    (text / "valid.txt").write_text("it finds\n")  # no sentence to show, no two words of a kind
    run = write_run(tmp_path / "run", "pru", text)
    status, shown, errors = pru("analyze", run, "--out", tmp_path / "out")
    assert status == 0, errors
    reasons = (
        "tags has no category with two or more words",
        "the validation text has no sentence of 8 to 25 words",
    )
    page = (tmp_path / "out" / "index.html").read_text()
    for reason in reasons:
        assert f": Left out: {reason}" in shown
        assert f"<p>Left out: {reason}" in page
    made = {path.stem for path in (tmp_path / "out").glob("*.json")}
    assert made == {"confidence", "coverage", "curves", "sweep"}
    status, _, errors = pru("analyze", run, "--out", tmp_path / "asked", "--only", "embeddings")
    assert (status, errors.count(reasons[0])) == (2, 1)


def left_out(shown: str) -> set[str]:
    """Titles of the analyses that were not made."""
    return {line.split(":")[0] for line in shown.splitlines() if ": Left out: " in line}


def test_a_text_that_has_moved_leaves_out_what_needs_it(tmp_path: Path, tagger: None) -> None:
    text = write_corpus(tmp_path / "text")
    run = write_run(tmp_path / "run", "pru", text)
    text.rename(tmp_path / "elsewhere")
    arguments = ("analyze", run, "--sentence", SENTENCES[0])
    status, shown, errors = pru(*arguments, "--out", tmp_path / "out")
    assert status == 0, errors
    assert left_out(shown) == {ANALYSES[name].title for name in ("confidence", "embeddings", "coverage")}
    assert f"is no longer at {text}" in shown
    status, _, errors = pru(
        *arguments, "--out", tmp_path / "asked", "--only", "saliency", "--only", "coverage"
    )
    assert status == 2
    assert f"is no longer at {text}" in errors
    assert not (tmp_path / "asked").exists()


def test_without_the_tagger_only_embeddings_are_left_out(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise PRUError("parts of speech need tagger data; get it")

    monkeypatch.setattr("torch_pru.analysis.figures.style.render", lambda *_: b"")
    monkeypatch.setattr("torch_pru.analysis.speech.load_tagger", missing)
    monkeypatch.setattr("torch_pru.analysis.write.load_tagger", missing)
    status, shown, errors = pru("analyze", runs["pru"], "--out", tmp_path / "out")
    assert status == 0, errors
    assert left_out(shown) == {ANALYSES["embeddings"].title}
    assert "need tagger data; get it" in (tmp_path / "out" / "index.html").read_text()


def test_runs_of_different_texts_share_curves_and_sweep(runs: dict[str, Path], tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", "pru", write_corpus(tmp_path / "text", extra="a new word"))
    status, shown, errors = pru("analyze", runs["pru"], other, "--out", tmp_path / "out")
    assert status == 0, errors
    assert "pru and other have different vocabularies" in shown
    assert {path.stem for path in (tmp_path / "out").glob("*.json")} == {"curves", "sweep"}


def test_a_run_without_weights_is_named(corpus: Path, tmp_path: Path) -> None:
    bare = write_run(tmp_path / "bare", "pru", corpus, weights=False)
    (bare / "vocabulary.txt").unlink()  # as in the copies that `pru report --keep` makes
    status, shown, errors = pru("analyze", bare, "--out", tmp_path / "out")
    assert status == 0, errors
    assert f"the run in {bare} has a log but no checkpoints" in shown
    assert {path.stem for path in (tmp_path / "out").glob("*.json")} == {"curves", "sweep"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--sentence", "golf balls"], "has no word that the model knows"),
        (["--sentence", "  "], "is empty"),
        (["--sentence", "the [old dog] sees"], "put one whole word in brackets"),
        (["--only", "confidense"], "pru: error: --only confidense is not known; use 'confidence', "),
        (["--only", "curves", "--top1"], "are options of saliency"),
    ],
)
def test_mistakes_end_in_one_line(
    arguments: list[str], expected: str, runs: dict[str, Path], tmp_path: Path, tagger: None
) -> None:
    status, _, errors = pru("analyze", runs["pru"], "--out", tmp_path / "out", *arguments)
    assert status == 2
    assert expected in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_help_names_every_analysis() -> None:
    shown = " ".join(pru("analyze", "--help")[1].split())
    assert f"{', '.join([*ANALYSES][:-1])} or {[*ANALYSES][-1]}" in shown


def test_a_folder_without_a_run_and_a_run_given_twice(runs: dict[str, Path], tmp_path: Path) -> None:
    assert "there is no run in" in pru("analyze", tmp_path, "--out", tmp_path / "out")[2]
    assert "is given twice" in pru("analyze", runs["pru"], runs["pru"], "--out", tmp_path / "out")[2]


def test_long_names_stay_inside_the_figures(corpus: Path, tmp_path: Path) -> None:
    name = "a-run-with-a-very-long-name-" * 4
    run = write_run(tmp_path / name, "pru", corpus)
    analyze([run], tmp_path / "out", only=["confidence", "saliency", "coverage"], sentences=SENTENCES)
    from torch_pru.analysis.confidence import Confidence
    from torch_pru.analysis.figures.confidence import draw

    figure = draw({name: Confidence(**json.loads((tmp_path / "out/confidence.json").read_text())[name])})
    figure.draw_without_rendering()
    assert figure.legends[0].get_window_extent().x1 <= figure.bbox.x1


@pytest.mark.parametrize("letters", range(1, 40, 3))
def test_guesses_are_broken_into_lines_that_fit(letters: int) -> None:
    from torch_pru.analysis.figures.saliency import LETTERS, wrap_guesses
    from torch_pru.analysis.saliency import Guess, Saliency

    guesses = [Guess("w" * letters, 0.1)] * 5
    lines = wrap_guesses(Saliency(["<eos>", "amen"], 1, "amen", 0.9, [2.5, 0.0], guesses))
    assert max(map(len, lines)) <= LETTERS
    assert " ".join(lines).count("w" * letters) == 5


def test_help_and_import_load_neither_matplotlib_nor_nltk() -> None:
    code = (
        "import sys, torch_pru.analysis, torch_pru.cli\n"
        "assert not {'matplotlib', 'nltk'} & set(sys.modules), 'loaded at import'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
