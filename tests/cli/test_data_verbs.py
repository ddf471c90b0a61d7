"""`triplee data`: list, download --from, verify and prepare, from the command line."""

import os
import shutil
import signal
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from commands import Call, assert_refused, started
from PIL import Image

from triplee.data.catalog import benchmark_names, find_benchmark

DIGITS = find_benchmark("digits-dg")


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with Digits-DG's whole shape: 24,000 files, few pixels each, every one different."""
    root = tmp_path_factory.mktemp("root")
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (2, 2, 3), np.uint8)).save(root / "seed.bmp")
    picture = (root / "seed.bmp").read_bytes()
    (root / "seed.bmp").unlink()
    number = 0
    for domain in DIGITS.domains:
        for split, count in (("train", 480), ("val", 120)):
            for label in DIGITS.classes:
                folder = root / "digits_dg" / domain / split / label
                folder.mkdir(parents=True)
                for k in range(count):
                    number += 1
                    (folder / f"{k:03}.bmp").write_bytes(picture + number.to_bytes(4, "little"))
    return root


@pytest.fixture
def root(made_once: Path, tmp_path: Path) -> Path:
    """The same, to be changed: a link to each file."""
    shutil.copytree(made_once, tmp_path / "root", copy_function=lambda a, b: Path(b).hardlink_to(a))
    return tmp_path / "root"


def test_list_shows_every_benchmark_and_what_is_there(call: Call, made_once: Path) -> None:
    answer = call("data", "list", "--root", made_once)
    rows = [line.split("\t") for line in answer.stdout.splitlines()]
    assert [row[0] for row in rows[1:]] == benchmark_names()
    places = {row[0]: row[-1] for row in rows[1:]}
    assert places["digits-dg"] == str(made_once / "digits_dg") and places["pacs"] == "–"
    assert "24,788 or 24,330" in answer.stdout or "24,330 or 24,788" in answer.stdout


@pytest.mark.parametrize("name", benchmark_names())
def test_list_tells_all_of_one(call: Call, name: str, tmp_path: Path) -> None:
    answer = call("data", "list", name, "--root", tmp_path)
    known = find_benchmark(name)
    for word in (known.citation, known.licence, known.manual, known.recipe, known.homepage):
        assert word in answer.stdout


def test_verify_a_whole_set(call: Call, made_once: Path) -> None:
    answer = call("data", "verify", "digits-dg", "--root", made_once)
    assert answer.returncode == 0, answer.stdout
    assert "split: 19,200 to train, 4,800 to validate" in answer.stdout
    assert answer.stdout.splitlines()[-1].startswith(f"{made_once / 'digits_dg'}: 24,000 images, in order: Digits-DG")


def test_verify_a_damaged_set(call: Call, root: Path) -> None:
    (root / "digits_dg/svhn/val/3/007.bmp").unlink()
    victim = root / "digits_dg/svhn/val/3/008.bmp"
    victim.unlink()
    victim.write_text("no image")
    answer = call("data", "verify", "digits-dg", "--root", root)
    assert answer.returncode == 1 and answer.stderr == ""
    assert "fault: svhn/3: 599 images, 600 are published" in answer.stdout
    assert "fault: 1 image that cannot be read: svhn/val/3/008.bmp (not an image" in answer.stdout
    assert "NOT in order" in answer.stdout.splitlines()[-1]


def test_verify_and_prepare_a_folder_of_ones_own(call: Call, small_folder: Path) -> None:
    answer = call("data", "verify", small_folder)
    assert answer.returncode == 0 and "180 images, in order" in answer.stdout
    answer = call("data", "prepare", small_folder, "--size", 24)
    assert answer.returncode == 0 and answer.stdout.startswith("180 images at 24 px in ")


def test_prepare_names_bad_images_and_skips_them_on_request(call: Call, small_folder: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(small_folder, tmp_path / "data"))
    (data / "red/down/03.png").write_text("no image")
    answer = call("data", "prepare", data, "--size", 16)
    assert answer.returncode == 2 and "1 of 180 images cannot be read" in answer.stderr
    answer = call("data", "prepare", data, "--size", 16, "--skip-bad")
    assert answer.returncode == 0 and "red/down/03.png\tnot an image" in answer.stdout
    assert "179 images at 16 px" in answer.stdout


def test_a_file_of_ones_own_goes_the_way_of_a_download(call: Call, made_once: Path, tmp_path: Path) -> None:
    archive = tmp_path / "mine.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(made_once.rglob("*.bmp"))[::40]:
            file.write(path, path.relative_to(made_once))
    answer = call("data", "download", "digits-dg", "--from", archive, "--root", tmp_path / "root")
    assert answer.returncode == 0, answer.stderr
    assert str(tmp_path / "root" / DIGITS.folders[0]) in answer.stdout
    assert archive.exists()
    assert call("data", "verify", "digits-dg", "--root", tmp_path / "root").returncode == 1  # one in forty
    assert_refused(
        call("data", "download", "digits-dg", "--from", archive, "--root", tmp_path / "root"), "already there"
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("verify pac", "data 'pac' is neither a known name nor an existing folder: did you mean 'pacs'?"),
        ("download nothing", "unknown benchmark 'nothing'"),
        ("verify pacs --root nowhere", "nowhere is no folder"),
        ("prepare pacs --root nowhere", "nowhere is no folder"),
        ("verify ~nobody-at-all/x", "there is no such home folder"),
        ("list pacz", "unknown benchmark 'pacz': did you mean 'pacs'?"),
        ("download pacs --from missing.zip", "missing.zip"),
    ],
)
def test_bad_input_is_one_line(call: Call, words: str, told: str) -> None:
    assert_refused(call("data", *words.split()), told)


def test_train_by_name_then_evaluate_finds_the_data_again(call: Call, made_once: Path, tmp_path: Path) -> None:
    settings = ["--set", "epochs=1", "--set", "image_size=16", "--set", "members=1", "--set", "batch_size=512"]
    out = tmp_path / "run"
    answer = call("train", "digits-dg", "--target", "svhn", "--root", made_once, "--out", out, *settings)
    assert answer.returncode == 0, answer.stderr
    assert "images: 14400 to train, 3600 to validate, 6000 to test" in answer.stdout
    answer = call("evaluate", out)
    assert answer.returncode == 0 and answer.stdout.splitlines()[1].startswith("svhn\tno\t6000\t"), answer


def test_the_embedded_digits_have_no_files(call: Call) -> None:
    for verb in ("verify", "prepare"):
        assert_refused(call("data", verb, "digits"), "the embedded digits are part of the program")


@pytest.mark.parametrize(
    ("words", "told"), [("data list", "$TRIPLEE_DATA"), ("train", "made for the data"), ("data prepare", "own recipe")]
)
def test_help_says_what_happens_without_an_option(call: Call, words: str, told: str) -> None:
    assert told in " ".join(call(*words.split(), "--help").stdout.replace("│", " ").split())


def test_ctrl_c_says_so_and_leaves_no_process(made_once: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "TRIPLEE_CACHE": str(tmp_path / "cache")}
    with started("data", "prepare", "digits-dg", "--root", made_once, "--size", 64, env=environment) as process:
        while process.poll() is None and not list(tmp_path.glob("cache/folders/*/unfinished.jsonl")):
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=20)
    assert (process.returncode, output, errors) == (130, "", "triplee: interrupted\n")
