"""`triplee report` and `triplee figure`: whole files that need nothing else, and one line for what is wrong."""

import re
import shutil
from pathlib import Path

import pytest
from commands import Call, TrainedRun, assert_refused, copy_of
from PIL import Image


@pytest.fixture
def page(call: Call, finished: TrainedRun, tmp_path: Path) -> str:
    out = tmp_path / "report.html"
    answer = call("report", finished.path, "--out", out, "--title", "A <b>bold</b> & long title")
    assert answer.returncode == 0 and answer.stdout.startswith(f"{out}: 1 run, "), answer
    return out.read_text()


def test_the_page_holds_all_it_shows(page: str, finished: TrainedRun) -> None:
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page) and "@import" not in page and "url(http" not in page
    assert "A &lt;b&gt;bold&lt;/b&gt; &amp; long title" in page and "<b>bold" not in page
    assert "1 finished run of 1 method on small" in page and "TripleE-Fourier reaches" in page
    for heading in (
        "Confusion",
        "Worst mistakes",
        "t-SNE",
        "5-NN accuracy",
        "Nearest training images",
        "Views that ESAug",
        "Cost",
        "Runs",
    ):
        assert heading in page, heading
    assert page.count("data:image/png") > 14 * 5 and "triplee report" in page
    assert str(finished.path / "config.yaml") in page  # how to train it again


def test_a_run_without_its_data_still_has_its_numbers(call: Call, finished: TrainedRun, tmp_path: Path) -> None:
    run = copy_of(finished, tmp_path)
    config = run / "config.yaml"
    data = re.search(r"^data: (.*)$", config.read_text(), re.MULTILINE)
    assert data
    config.write_text(config.read_text().replace(data.group(1), str(tmp_path / "gone")))
    answer = call("report", run, "--out", tmp_path / "r.html")
    assert answer.returncode == 0
    page = (tmp_path / "r.html").read_text()
    assert "Pictures are left out" in page and "gone" in page and "Confusion" in page and "t-SNE" not in page
    assert_refused(call("figure", "tsne", run, "--out", tmp_path / "t.png"), "gone")
    shutil.rmtree(run / "best")
    (run / "predictions.safetensors").unlink()
    assert call("report", run, "--out", tmp_path / "r.html", "--no-pictures").returncode == 0
    assert "No run kept its predictions" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize("kind", ["tsne", "neighbours", "views", "curves"])
def test_figures_in_print_quality(call: Call, finished: TrainedRun, tmp_path: Path, kind: str) -> None:
    suffix = {"tsne": "svg", "neighbours": "png", "views": "png", "curves": "pdf"}[kind]
    out = tmp_path / f"{kind}.{suffix}"
    answer = call("figure", kind, finished.path, "--out", out)
    assert answer.returncode == 0 and str(out) in answer.stdout, answer
    content = out.read_bytes()
    if suffix == "png":
        with Image.open(out) as opened:
            assert opened.width > 1000 and opened.info["dpi"][0] == pytest.approx(300, abs=1)
    elif suffix == "pdf":
        assert content.startswith(b"%PDF-")
    else:
        assert b"<svg" in content and b"#123456" not in content
        assert "silhouette" in answer.stdout and b"5-NN accuracy" in content and b"silhouette" in content


def test_maps_stand_in_the_order_that_runs_were_named_in(call: Call, finished: TrainedRun, tmp_path: Path) -> None:
    other = copy_of(finished, tmp_path)
    config = other / "config.yaml"
    config.write_text(re.sub("recipe_name: .*", "recipe_name: digits-vanilla", config.read_text()))
    for runs, first in (((finished.path, other), "TripleE-Fourier"), ((other, finished.path), "Vanilla")):
        answer = call("figure", "tsne", *runs, "--out", tmp_path / "t.svg")
        assert answer.returncode == 0 and answer.stdout.startswith(f"{first}, "), answer


def test_bad_input_is_one_line(call: Call, finished: TrainedRun, tmp_path: Path) -> None:
    assert_refused(call("report", tmp_path / "nowhere"), "nowhere", "no folder")
    assert_refused(call("report", tmp_path), "no finished run")
    assert_refused(call("figure", "curves", finished.path, "--out", tmp_path / "c.jpeg"), ".svg, .png, .pdf")
    assert_refused(call("figure", "pie", finished.path, "--out", tmp_path / "c.png"), "pie")
    (tmp_path / "file").touch()
    assert_refused(call("report", finished.path, "--out", tmp_path / "file" / "r.html"), "cannot write")
