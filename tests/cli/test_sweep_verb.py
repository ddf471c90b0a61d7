"""`triplee sweep`: tables on standard output, what went wrong in one line, a sweep that is stopped and goes on."""

import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
import yaml
from commands import Call, assert_refused, contents, started, terminal

from triplee.sweep.run import SweepFolder

EXPERIMENT = {
    "about": "Vanilla against a rate at which nothing can be learnt",
    "data": "digits",
    "seeds": 1,
    "baseline": "Vanilla",
    "rows": {"Vanilla": {"method": "vanilla"}, "wild": {"method": "vanilla", "set": {"lr": 1e9}}},
}
SMALL = {"backbone": "digit-cnn", "weights": "none", "image_size": 16, "crop_area": 1, "lr": 0.01}


def command(
    tmp_path: Path, data: Path, *more: str, out: Path | None = None, epochs: int = 2, **changes: object
) -> list[str]:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({**EXPERIMENT, **changes}, sort_keys=False))
    values = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    where = ["--data", str(data), "--out", str(out or tmp_path / "out"), "--epochs", str(epochs)]
    return ["sweep", str(file), *where, *values, *more]


def test_a_run_that_always_fails_is_listed_and_the_others_are_in_the_table(
    call: Call, small_folder: Path, tmp_path: Path
) -> None:
    words = command(tmp_path, small_folder, "--targets", "red,blue")
    answer = call(*words)
    assert answer.returncode == 1
    assert re.search(
        r"^\| Vanilla \| \*\*[\d.]+\*\* \| \*\*[\d.]+\*\* \| \*\*[\d.]+\*\* \|$", answer.stdout, re.MULTILINE
    )
    assert "| wild | failed | failed | failed |" in answer.stdout
    *_, table, first, second, last = answer.stderr.splitlines()
    name = rf"{re.escape(str(tmp_path))}/out/mine-{small_folder.name}-[0-9a-f]{{6}}"
    assert re.fullmatch(rf"triplee: tables are in {name}\.md, \.tex and \.csv", table)
    assert all("failed: the loss became NaN or infinite" in line for line in (first, second))
    assert last == "triplee: 2 of 4 runs failed: try them again with --retry-failed once the cause is gone"
    before = contents(tmp_path / "out" / "runs")
    again = call(*words, "--format", "csv")
    assert again.returncode == 1 and contents(tmp_path / "out" / "runs") == before
    assert "oracle,wild,red,failed,0,,,,,,,," in again.stdout
    assert call(*words, "--format", "tex", "--rows", "Vanilla").returncode == 0
    assert call(*words, "--retry-failed").returncode == 1


def test_what_is_asked_wrongly_is_one_line_and_leaves_nothing(call: Call, small_folder: Path, tmp_path: Path) -> None:
    refusals = {
        "which experiment?": ["sweep"],
        "unknown experiment 'compnents': did you mean 'components'?": ["sweep", "compnents"],
        "unknown key 'row': did you mean 'rows'?": command(tmp_path, small_folder, row={}),
    }
    for line, words in refusals.items():
        assert_refused(call(*words), line)
    good = command(tmp_path, small_folder)
    for line, more in {
        "unknown row 'Vanila': did you mean 'Vanilla'?": ["--rows", "Vanila"],
        "unknown target 'pink'": ["--targets", "pink"],
        "unknown recipe key 'epoch'": ["--set", "epoch=3"],
        "--set takes KEY=VALUE": ["--set", "epochs"],
        "--epochs and --set epochs=… are the same": ["--set", "epochs=3", "--epochs", "2"],
    }.items():
        assert_refused(call(*good, *more), line)
    assert_refused(call(*good, "--address", "auto"), "--address is for --engine ray")
    assert_refused(call("sweep", "pacs", "--root", tmp_path, "--out", tmp_path / "out"), "pacs", str(tmp_path))
    resnet = ["--set", "backbone=resnet18", "--set", "image_size=32"]
    weights = ["--set", f"weights={tmp_path / 'none.pth'}"]
    assert_refused(call(*good, *resnet, *weights), "none.pth does not exist")
    style = ["--set", "ops=style", "--set", f"stylizer={tmp_path / 'none.safetensors'}"]
    rows = {"Vanilla": {"method": "vanilla"}, "style": {"method": "triplee-fourier"}}
    assert_refused(call(*command(tmp_path, small_folder, *style, rows=rows)), "none.safetensors does not exist")
    assert_refused(call(*good, "--engine", "ray", "--gpus", "1.5"), "--gpus 1.5")
    assert not (tmp_path / "out").exists()


def test_what_rows_are_compared_with_is_said_where_the_baseline_is_left_out(
    call: Call, small_folder: Path, tmp_path: Path
) -> None:
    rows = {"Vanilla": {"method": "vanilla"}, **{f"m = {m}": {"set": {"members": m}} for m in (1, 2)}}
    words = command(tmp_path, small_folder, "--targets", "red", "--rows", "m = 1,m = 2", epochs=1, rows=rows)
    answer = call(*words)
    assert answer.returncode == 0 and "## Against m = 1" in answer.stdout
    assert "triplee: rows are compared with 'm = 1': 'Vanilla' is not among them" in answer.stderr.splitlines()


def test_images_that_have_changed_are_not_mixed_into_a_table(call: Call, small_folder: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(small_folder, tmp_path / "data"))
    words = command(tmp_path, data, "--rows", "Vanilla")
    assert call(*words, "--targets", "red").returncode == 0
    before = contents(tmp_path / "out" / "runs")
    image = next((data / "green").rglob("*.png"))
    image.write_bytes(next((data / "blue").rglob("*.png")).read_bytes())
    assert_refused(call(*words), "was trained with other images than those that are there now", "another --out")
    assert contents(tmp_path / "out" / "runs") == before


def test_ray_that_is_not_installed_is_one_line(call: Call, small_folder: Path, tmp_path: Path) -> None:
    try:
        import ray  # noqa: F401
    except ImportError:
        assert_refused(call(*command(tmp_path, small_folder, "--engine", "ray")), "pip install 'triplee[ray]'")
    else:
        pytest.skip("it is installed")


def test_a_second_sweep_is_told_so_and_harms_nothing(call: Call, small_folder: Path, tmp_path: Path) -> None:
    with SweepFolder(tmp_path / "out").claim():
        answer = call(*command(tmp_path, small_folder))
        assert_refused(answer, f"{tmp_path / 'out'} is in use by another sweep", "choose another --out")
        assert contents(tmp_path / "out").keys() == {"lock"}


def test_a_full_disk_is_one_line_and_blames_no_run(
    call: Call, small_folder: Path, small_disk: Path, tmp_path: Path
) -> None:
    words = command(tmp_path, small_folder, "--rows", "Vanilla", out=small_disk / "out")
    (small_disk / "out" / "logs").mkdir(parents=True)
    for k in range(os.cpu_count() or 1):
        (small_disk / "out" / "logs" / f"worker-{k}.log").touch()
    (small_disk / "out" / "lock").touch()
    with pytest.raises(OSError, match="No space left"), (small_disk / "filling").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1000))
    answer = call(*words)
    first, last = answer.stderr.splitlines()
    assert answer.returncode == 2 and answer.stdout == "" and first == "triplee: 3 of 3 runs to train"
    assert last.startswith(f"triplee: cannot write {small_disk}") and "the disk is full, make room" in last
    assert not (small_disk / "out" / "failed").exists()
    (small_disk / "filling").unlink()
    assert call(*words).returncode == 0


def test_ctrl_c_says_how_to_go_on_and_a_terminal_sees_a_table(small_folder: Path, tmp_path: Path) -> None:
    words = command(tmp_path, small_folder, "--rows", "Vanilla", "--set", "batch_size=1", epochs=30)
    runs = tmp_path / "out" / "runs"
    with terminal() as (screen, shown), started(*words, stderr=screen) as process:
        while not list(runs.glob("*/metrics.jsonl")):
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(2)  # it looks every second
        process.send_signal(signal.SIGINT)
        process.communicate()
        text = shown()
    assert process.returncode == 130
    end = re.search(
        r"triplee: stopped and saved, (\d) of 3 runs done; go on with the same command", " ".join(text.split())
    )
    assert end and int(end[1]) < 3 and "at work" in text and "epoch" in text
    assert "…" in next((tmp_path / "out").glob(f"mine-{small_folder.name}-*.md")).read_text()


def test_the_list_explains_every_experiment(call: Call) -> None:
    lines = call("sweep", "--list").stdout.splitlines()
    assert lines[0].startswith("experiment\twhat it compares") and len(lines) == 12
    assert any(line.startswith("components\t") and "Baseline†" in line and "Table 5" in line for line in lines)
