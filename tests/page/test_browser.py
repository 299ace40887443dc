"""The page in a real browser, beside the commands that do the same."""

from __future__ import annotations

import re
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx", reason="needs the extra torch-pru[onnx]")

import torch
from pages import MARKUP, Open, make_run

from torch_pru.cell import context_gates, input_gates
from torch_pru.lm.config import ModelConfig
from torch_pru.lm.data import tokenizer_of
from torch_pru.lm.evaluation import Evaluation, generate
from torch_pru.lm.run import RunFolder
from torch_pru.lm.scoring import Scorer
from torch_pru.page.server import PageServer
from torch_pru.page.site import page_files, write_page

ROOT = Path(__file__).parents[2]
AXE = ROOT / "page" / "node_modules" / "axe-core" / "axe.min.js"
ESSAY = (
    "In the beginning God created the heaven and the earth.\n\n“My brother’s keeper,” I said: the "
    "heliotrope, naïve 3,000 times — light! Light, light; the earth and the heaven.\n"
)


def assert_same_words(open_page: Open, run: RunFolder, count: int) -> None:
    """Words taken with Tab are those of ``pru generate --temperature 0``, but for ties."""
    opened = open_page(run)
    field = opened.page.locator("textarea")
    model, tokenizer = run.model(), tokenizer_of(run.config.data)
    expected = list(islice(generate(model, run.vocabulary, temperature=0), count))
    for _ in range(count):
        before = field.input_value()
        field.press("Tab")
        assert field.input_value() != before
        opened.wait()
    found = tokenizer(field.input_value())
    if found != expected:
        first = next(at for at, pair in enumerate(zip(found, expected, strict=True)) if len(set(pair)) > 1)
        scorer = Scorer(model, run.vocabulary)
        ranked = scorer.log_probabilities(scorer.score(expected[:first]).context).sort(descending=True).values
        assert ranked[0] - ranked[1] < 1e-4, (first, found, expected)


def assert_same_scores(open_page: Open, run: RunFolder, text: str, tmp_path: Path) -> None:
    """Surprisals are those of ``pru score``, and perplexities those of ``pru evaluate --cache``.

    A page begins after an ``<eos>``, as ``pru score`` does; for ``pru evaluate``, which has no score for the
    first token, an empty line in front of the text is that ``<eos>``.
    """
    opened = open_page(run)
    tokenizer = tokenizer_of(run.config.data)
    scored = Scorer(run.model(), run.vocabulary).score(tokenizer(text))
    opened.page.check("#memory")
    opened.write(text)
    found = opened.surprisals()
    assert found == pytest.approx([each.surprisal for each in scored], abs=1e-3)
    file = tmp_path / "text.txt"
    file.write_text(f"\n{text}")
    work = Evaluation(run, "cpu")
    ids = work.encode(file).ids
    alone, together = opened.perplexities()
    assert alone == pytest.approx(work.score("static", ids)["perplexity"], abs=1e-3)
    assert together == pytest.approx(work.score("cache", ids)["perplexity"], abs=1e-3)
    assert abs(together - alone) > 0.01
    unknown = sum(each.unknown for each in scored)
    assert opened.page.locator(".reading .unknown").count() == unknown > 0


def test_words_are_those_of_generate(tiny_run: RunFolder, open_page: Open) -> None:
    assert_same_words(open_page, tiny_run, 50)


def test_scores_are_those_of_score_and_evaluate(tiny_run: RunFolder, open_page: Open, tmp_path: Path) -> None:
    assert_same_scores(open_page, tiny_run, ESSAY, tmp_path)


@pytest.mark.parametrize("width", [1280, 390])
def test_a_long_text_lies_over_its_shades(tiny_run: RunFolder, open_page: Open, width: int) -> None:
    """The field and the shaded words are of one height, only the paper scrolls, and the end is in sight."""
    opened = open_page(tiny_run, viewport={"width": width, "height": 850})
    page, field = opened.page, opened.page.locator("textarea")
    page.keyboard.insert_text(f"{ESSAY}{'x' * 150} https://example.org/{'very-' * 30}long\n\n" * 6)
    opened.wait()
    heights = "each => [each.offsetHeight, each.scrollHeight]"
    (high, whole), shades = field.evaluate(heights), page.locator(".reading").evaluate(heights)
    assert [high, whole] == shades
    assert high == whole > 1000
    assert field.evaluate("each => each.scrollTop") == 0
    hidden = "each => each.scrollHeight - each.scrollTop - each.clientHeight"
    assert page.locator(".paper").evaluate(hidden) < 2
    field.press_sequentially("and the earth .\n")
    opened.wait()
    assert page.locator(".paper").evaluate(hidden) < 2


def test_html_is_text(hostile_run: RunFolder, open_page: Open) -> None:
    opened = open_page(hostile_run, int8=True)
    page = opened.page
    assert page.locator(".name").text_content() == hostile_run.path.name
    assert set(page.locator(".suggested").all_text_contents()) & set(MARKUP)
    opened.write(" ".join([*MARKUP, "<script>window.hit=2</script>", ""]))
    page.locator(".inside").wait_for()
    page.mouse.move(*middle(page.locator(".word").first))
    assert page.locator(".bubble-word").text_content() == MARKUP[0]
    page.locator(".all-words summary").click()
    page.locator(".influences li").nth(3).wait_for()
    assert MARKUP[0] in page.locator(".influences").text_content()
    page.locator(".rows tr").nth(3).wait_for()
    assert page.locator(".rows tr").count() == 4
    assert page.evaluate("window.hit") is None
    assert page.locator("img, script").count() == 1  # main.js


@torch.no_grad()
def test_the_picture_of_the_unit(tiny_run: RunFolder, open_page: Open) -> None:
    """Levels, the units that read them, groups, and the mean of each gate: those of the equations."""
    opened = open_page(tiny_run)
    opened.write("in the beginning ")
    table = opened.page.locator(".unit")
    table.wait_for()
    model, vocabulary = tiny_run.model(), tiny_run.vocabulary
    before = vocabulary.encode(["<eos>", "in", "the"])
    h = model.hidden(before[:, None], model.initial_state(1)).state[0][0][0]
    x = model.embedding.weight[vocabulary.encode(["beginning"])]
    spec, weights = model.layers[0].specs[0], model.layers[0].weights(0)
    sums = (input_gates(x, weights, spec) + context_gates(h, weights, spec))[0]
    expected = [f"{mean:.0%}" for gate in (0, 1, 3) for mean in sums[gate].sigmoid().view(2, 12).mean(1)]
    assert table.locator(".open").all_text_contents() == expected
    assert table.locator(".level canvas").evaluate_all("all => all.map(one => one.width)") == [16, 8]
    shares = table.locator(".readers span").evaluate_all("all => all.map(one => one.title)")
    assert shares == ["18 units read level 1", "6 units read level 2"]
    assert table.locator(".state canvas").evaluate_all("all => all.map(one => one.width)") == [12] * 4
    opened.page.locator(".layer").select_option("1")
    assert table.locator(".level canvas").evaluate_all("all => all.map(one => one.width)") == [24, 12]


@pytest.mark.parametrize("missing", [1, 2])
def test_a_model_that_is_missing(
    tiny_run: RunFolder, hostile_run: RunFolder, browser: Any, missing: int
) -> None:
    """It says so, and the other one works."""
    with PageServer(page_files([tiny_run, hostile_run])) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        page = browser.new_page()
        page.route(f"**/models/{missing}/step.onnx", lambda route: route.abort())
        page.goto(server.url)
        page.get_by_text("This model cannot run here").wait_for()
        page.locator(".suggestions button:visible").first.wait_for()
        page.locator("textarea").press_sequentially("in the ")
        page.locator(".words", has_text="2").wait_for()
        page.close()
        server.shutdown()


def test_the_bars_of_two_models_have_one_scale(
    tiny_run: RunFolder, hostile_run: RunFolder, open_page: Open
) -> None:
    opened = open_page(tiny_run, hostile_run)
    opened.write("in the beginning ")
    for number in range(2):
        opened.page.locator(".influences").nth(number).locator(".bar").nth(1).wait_for()
    measure = (
        "each => [each.parentElement.clientHeight, each.offsetHeight, +each.style.getPropertyValue('--size')]"
    )
    bars = opened.page.locator(".bar").evaluate_all(f"all => all.map({measure})")
    assert len(bars) == 4
    largest = max(1, *(size for _, _, size in bars))
    for whole, height, size in bars:
        assert height == pytest.approx(whole * size / largest, abs=2)


def middle(locator) -> tuple[float, float]:
    box = locator.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.mark.parametrize(
    ("scheme", "width"),
    [
        ("light", 1280),
        *(
            pytest.param(*which, marks=pytest.mark.slow)
            for which in (("light", 390), ("dark", 1280), ("dark", 390))
        ),
    ],
)
def test_accessibility(
    tiny_run: RunFolder, hostile_run: RunFolder, open_page: Open, scheme: str, width: int
) -> None:
    """Of two models beside each other: empty, and with a text, the numbers of a word and the table of all."""
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: npm ci in the folder page")
    opened = open_page(tiny_run, hostile_run, color_scheme=scheme, viewport={"width": width, "height": 900})
    page = opened.page
    page.evaluate(AXE.read_text())  # which a page's own policy would refuse
    assert_accessible(page)
    opened.write(ESSAY)
    page.locator(".inside").nth(1).wait_for()
    assert page.get_by_text("their perplexities do not compare").is_visible()
    assert len(set(page.locator(".alone").all_text_contents())) == 2
    page.locator(".all-words summary").first.click()
    page.locator(".word").nth(4).hover(force=True)
    assert page.locator("#bubble").is_visible()
    assert_accessible(page)


def assert_accessible(page: Any) -> None:
    found = page.evaluate("axe.run()")
    assert len(found["passes"]) > 20
    assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found["violations"]] == []
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide == 0


def test_keyboard(tiny_run: RunFolder, open_page: Open) -> None:
    opened = open_page(tiny_run)
    page, field = opened.page, opened.page.locator("textarea")
    assert field.evaluate("each => each === document.activeElement")
    fourth = page.locator(".suggested").nth(3).text_content()
    field.press("Alt+4")
    assert tokenizer_of(tiny_run.config.data)(field.input_value()) == [fourth.replace("↵ new line", "<eos>")]
    field.press_sequentially("Heav")
    opened.wait()
    assert page.locator(".suggested").first.text_content() == "heaven"
    field.press("Tab")
    assert field.input_value().lower().endswith("heaven ")
    field.press("Control+z")
    assert field.input_value().endswith("Heav")
    field.press("Escape")
    field.press("Tab")
    assert not field.evaluate("each => each === document.activeElement")


@pytest.mark.slow
def test_writing_on(tiny_run: RunFolder, open_page: Open) -> None:
    opened = open_page(tiny_run)
    page = opened.page
    page.get_by_label("Temperature").fill("0")
    page.get_by_role("button", name="Write on for me").click()
    page.locator(".words", has_text=re.compile(r"^\d\d$")).wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Write on for me").wait_for()
    words = tokenizer_of(tiny_run.config.data)(page.locator("textarea").input_value())
    assert len(words) >= 10
    assert words == list(islice(generate(tiny_run.model(), tiny_run.vocabulary, temperature=0), len(words)))


def test_typing_stops_the_writing_and_nothing_is_lost(tiny_run: RunFolder, open_page: Open) -> None:
    opened = open_page(tiny_run)
    page, field = opened.page, opened.page.locator("textarea")
    page.get_by_role("button", name="Write on for me").click()
    page.locator(".words", has_text=re.compile(r"^\d\d$")).wait_for()
    field.press_sequentially("heliotrope", delay=30)
    page.get_by_role("button", name="Write on for me").wait_for()
    text = field.input_value()
    assert text.endswith("heliotrope")
    page.get_by_role("button", name="Clear").click()
    assert field.input_value() == ""
    field.press("Control+z")
    assert field.input_value() == text


@pytest.mark.slow
def test_characters(tmp_path: Path, open_page: Open) -> None:
    letters = " ".join(["▁", *"abcdefgh .", "<unk>"])
    run = make_run(tmp_path / "letters", ModelConfig(embedding=16, hidden=(16,)), "characters", letters)
    opened = open_page(run)
    text = "a bad cab.\nagé\n"
    opened.write(text)
    expected = Scorer(run.model(), run.vocabulary).score(tokenizer_of(run.config.data)(text))
    assert opened.surprisals() == pytest.approx([each.surprisal for each in expected], abs=1e-3)


def test_a_character_that_the_model_has_no_sign_for(tmp_path: Path, open_page: Open) -> None:
    """It reads up to there, and only there."""
    model = ModelConfig(embedding=16, hidden=(16,))
    opened = open_page(make_run(tmp_path / "letters", model, "characters", "▁ a b c d"))
    write_on = opened.page.get_by_role("button", name="Write on for me")
    opened.write("a bad cab")
    assert opened.page.get_by_text("no sign for “漢”").count() == 0
    opened.write("a bad 漢 cab")
    assert opened.page.get_by_text("no sign for “漢”").is_visible()
    assert opened.page.locator(".words").text_content() == "6"
    assert write_on.is_disabled()
    opened.write("a bad cab")
    assert opened.page.locator(".words").text_content() == "9"
    assert write_on.is_enabled()


@pytest.mark.slow
def test_opened_as_a_file(tiny_run: RunFolder, browser, tmp_path: Path) -> None:
    write_page(page_files([tiny_run]), tmp_path / "page")
    page = browser.new_page()
    page.goto((tmp_path / "page" / "index.html").as_uri())
    notice = page.get_by_text("the page was opened as a file")
    notice.wait_for()
    assert "python -m http.server" in notice.text_content()
    assert not page.get_by_role("switch").is_visible()
    page.close()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_quickstart(quickstart: RunFolder, open_page: Open, tmp_path: Path) -> None:
    """Fifty words, and a text of a few hundred."""
    assert_same_words(open_page, quickstart, 50)
    corpus = quickstart.corpus()
    words = [corpus.vocabulary.word(number) for number in corpus.test[:600].tolist()]
    text = tokenizer_of(quickstart.config.data).join(words) + " A computer.\n"
    assert_same_scores(open_page, quickstart, text, tmp_path)
