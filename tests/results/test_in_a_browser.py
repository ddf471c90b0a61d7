"""The report in a real Chromium: nothing is asked of anybody, all of it works, by mouse and by keyboard."""

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from triplee.data.load import load_data
from triplee.results.page import make_page
from triplee.results.parts import make_parts
from triplee.results.pieces import look_at
from triplee.results.records import find_records

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")


@pytest.fixture(scope="module")
def report(some_runs: Path, small_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    records, notes = find_records([some_runs])
    (part,) = make_parts(records)
    pool = load_data(str(small_folder), 16)
    assert part.baseline
    looks = look_at(part.methods, part.targets, pool, [part.baseline, part.best], torch.device("cpu"))
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(make_page([replace(part, looks=looks)], [], notes, ["triplee", "report"], "Report"))
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def page(browser, report: Path) -> Iterator[object]:
    opened = browser.new_page(viewport={"width": 1200, "height": 900})
    said, asked = [], []
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(report.as_uri())
    yield opened
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [report.as_uri()]
    opened.close()


def column(page, table: int, number: int) -> list[str]:
    rows = page.locator("table.sortable").nth(table).locator("tbody tr")
    return [rows.nth(k).locator("th, td").nth(number).inner_text() for k in range(rows.count())]


def test_tables_sort_by_mouse_and_by_keyboard(page) -> None:
    table = page.locator("table.sortable").first
    head = table.locator("thead th").nth(1)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    falling = [float(text.split()[0]) for text in column(page, 0, 1)]
    assert falling == sorted(falling, reverse=True)
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert [float(text.split()[0]) for text in column(page, 0, 1)] == sorted(falling)


def test_runs_are_filtered(page) -> None:
    runs = page.locator("table.sortable").last.locator("tbody tr")
    assert runs.count() == 8 and page.locator(".count").inner_text() == "8 of 8 runs"
    page.locator("input.filter").fill("vanilla red")
    assert page.locator(".count").inner_text() == "2 of 8 runs"
    assert sum(runs.nth(k).is_visible() for k in range(8)) == 2
    page.locator("input.filter").fill("nothing of the kind")
    assert page.locator(".count").inner_text() == "0 of 8 runs"


def test_the_theme_switches_and_text_stays_readable(page) -> None:
    def colours() -> list[str]:
        return page.evaluate("[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]")

    light = colours()
    page.locator("#theme").click()
    dark = colours()
    assert dark != light and page.locator("#theme").get_attribute("aria-pressed") == "true"
    axis = page.locator("figure.plot svg text").first
    assert axis.evaluate("e => getComputedStyle(e).fill") == dark[0]
    page.locator("#theme").click()
    assert colours() == light


def test_confusion_shows_what_was_chosen(page) -> None:
    section = page.locator(".confusion")
    first, second = (section.locator(".panel").nth(k) for k in (0, 1))
    assert "Vanilla, blue held out" in first.locator(".told").first.inner_text()
    assert "TripleE-Fourier, blue held out" in second.locator(".told").first.inner_text()
    first.locator("select.method").select_option("TripleE-Fourier")
    section.locator("select.target").focus()
    page.keyboard.press("ArrowDown")
    for panel in (first, second):
        assert "TripleE-Fourier, red held out" in panel.locator(".told").first.inner_text()
        cells = panel.locator("tbody tr").first.locator("td")
        assert cells.count() == 3
        shares = [float(text.replace("<1", "0.5") or 0) for text in cells.all_inner_texts()]
        assert sum(shares) == pytest.approx(100, abs=1.5)


def test_what_the_confusion_says_in_words_is_what_it_shows(page) -> None:
    panel = page.locator(".confusion .panel").first
    told, frequent = panel.locator(".told").all_inner_texts()
    titles = [cell.get_attribute("title") for cell in panel.locator("tbody td").all()]
    counted = [re.fullmatch(r"(.+) called (.+): (\d+) of (\d+)", title).groups() for title in titles]
    names = panel.locator("thead tr").last.locator("th")  # long ones are upright, so that columns stay narrow
    assert names.nth(1).bounding_box()["height"] > 1.5 * names.nth(1).bounding_box()["width"]
    looks = [cell.get_attribute("class") for cell in panel.locator("tbody td").all()]
    assert looks == ["right" if truth == said else "mistaken" for truth, said, *_ in counted]
    right = sum(int(count) for truth, said, count, _ in counted if truth == said)
    everything = sum(int(count) for *_, count, _ in counted)
    assert f"{100 * right / everything:.1f} % of {everything} right" in told
    truth, said, count, total = max((c for c in counted if c[0] != c[1]), key=lambda c: int(c[2]))
    assert frequent.startswith(f"Most frequent: {truth} called {said} ({count} of {total})")


def test_every_figure_has_ink_on_it(page) -> None:
    from PIL import Image

    figures = page.locator("figure.plot svg")
    assert figures.count() >= 5
    for k in range(figures.count()):
        figures.nth(k).scroll_into_view_if_needed()
        path = Path(page.url.removeprefix("file://")).with_name(f"figure-{k}.png")
        figures.nth(k).screenshot(path=path)
        with Image.open(path) as picture:
            assert len(picture.convert("RGB").getcolors(1 << 24) or []) > 8, k
        assert len(figures.nth(k).get_attribute("aria-label") or "") > 20


def test_what_is_folded_opens_by_keyboard(page) -> None:
    for kind in ("details.methods", "details:has(.pictures)"):
        folded = page.locator(f"{kind}:not([open])").first
        folded.locator("summary").focus()
        page.keyboard.press("Enter")
        page.wait_for_function("document.activeElement.parentElement.open")


def test_all_of_it_is_reached_by_keyboard(page) -> None:
    reached = set()
    for _ in range(80):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("(e => e.className || e.id || e.tagName)(document.activeElement)"))
    assert {"skip", "theme", "A", "BUTTON", "method", "target", "scroll"} <= reached


@pytest.mark.parametrize("width", [1200, 380])
def test_long_names_do_not_widen_the_page(browser, report: Path, tmp_path: Path, width: int) -> None:
    long = "TripleE-Fourier " + "and what else there is to say of it, " * 3
    path = tmp_path / "long.html"
    path.write_text(report.read_text().replace("TripleE-Fourier", long))
    opened = browser.new_page(viewport={"width": width, "height": 800})
    opened.goto(path.as_uri())
    opened.locator("select.method").first.select_option(index=1)
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    opened.close()


@pytest.mark.parametrize("width", [1200, 380])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_fault_of_accessibility_and_no_sideways_scroll(browser, report: Path, width: int, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    opened = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    opened.goto(report.as_uri())
    found = axe.Axe().run(opened).response["violations"]
    assert [(fault["id"], fault["nodes"][0]["html"][:120]) for fault in found] == []
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    opened.close()
