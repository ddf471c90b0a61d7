"""Bad input gets one line and exit code 2, and nothing half-written."""

import re
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from commands import BAD_IMAGES, ONE_EPOCH, Call, TrainedRun, assert_refused, break_image, train_command

from triplee.recipes import RECIPES


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("trian", ["No such command 'trian'", "Did you mean 'train'", "triplee --help"]),
        ("train", ["Missing argument", "triplee train --help"]),
        ("train digits", ["--target"]),
        ("train digits --target street --sed 3", ["--sed", "--seed", "triplee train --help"]),
        (
            "train digits --target street --seed -1",
            ["--seed", "greater than or equal to 0", "(see triplee train"],
        ),
        ("train digits --target street --seed one", ["--seed", "a valid integer"]),
        ("predict run", ["name images or folders to predict, or one folder with --watch"]),
        ("predict run image.png --watch here", ["name images or folders to predict, or one folder with --watch"]),
        ("predict run image.png --format xml", ["'--format': 'xml'", "'table', 'json', 'csv'"]),
        ("fuse run", ["Missing option '--how'. Choose from: soup, distill (see"]),
        ("demo --epochs 0", ["--epochs", "greater than or equal to 1"]),
    ],
)
def test_a_wrong_command_is_one_line(call: Call, command: str, words: list[str]) -> None:
    assert_refused(call(*command.split()), *words)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("--recipe digits-tripple-fourier", ["digits-tripple-fourier", "did you mean 'digits-triplee-fourier'?"]),
        ("--set epoch=3", ["unknown recipe key 'epoch'", "did you mean 'epochs'?"]),
        ("--set zzz=3", ["unknown recipe key 'zzz'", "known: backbone, "]),
        ("--set ops=furier", ["'ops'", "'basic', 'fourier', 'style' or 'both'"]),
        ("--set augment=solarise", ["'augment'", "'none', 'vanilla', 'standard' or 'esaug'"]),
        ("--set lr=fast", ["'lr'", "should be a valid number, not 'fast'"]),
        ("--set lr=-1", ["'lr'", "should be greater than 0, not -1"]),
        ("--set lr=nan", ["'lr'", "should be"]),
        ("--set epochs=2.5", ["'epochs'", "should be a valid integer"]),
        ("--set epochs=", ["'epochs'", "should be a valid integer"]),
        ("--set epochs=0", ["'epochs'", "should be greater than or equal to 1"]),
        ("--set image_size=99999", ["'image_size'", "should be less than or equal to 1024"]),
        ("--set image_size=129", ["image_size 129 does not fit digit-cnn: 16 to 128"]),
        ("--set image_size=8", ["image_size 8 does not fit digit-cnn: 16 to 128"]),
        ("--set lr", ["--set takes KEY=VALUE, not 'lr'"]),
        ("--set weights=a.pth --weights b.pth", ["--weights and --set weights=… are the same: give one of them"]),
        ("--set =3", ["unknown recipe key ''"]),
        ("--set lr=[1", ["--set 'lr=[1' has a value that cannot be read"]),
        ("--set members=500", ["108 training images cannot feed 500 members: lower members"]),
        ("--set batch_size=1 --set replay=1", ["two views in a batch", "raise batch_size or replay"]),
        ("--set ops=basic --set cross_image_probability=0.5", ["cross_image_probability", "set ops=fourier"]),
        ("--target blau", ["unknown target 'blau'", "did you mean 'blue'?"]),
        ("--device gpu", ["unknown device 'gpu': cpu or cuda"]),
        ("--recipe nowhere.yaml", ["recipe file nowhere.yaml does not exist"]),
    ],
)
def test_a_bad_recipe_or_option_is_named_and_leaves_nothing(
    call: Call, small_folder: Path, tmp_path: Path, wrong: str, words: list[str]
) -> None:
    assert_refused(call(*train_command(small_folder, tmp_path / "run"), *wrong.split()), *words)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named_with_the_way_out(
    call: Call, small_folder: Path, finished: TrainedRun
) -> None:
    image = small_folder / "red" / "down" / "00.png"
    verbs = (train_command(small_folder, Path("x")), ["evaluate", finished.path], ["predict", finished.path, image])
    for command in verbs:
        assert_refused(call(*command, "--device", "cuda"), "no CUDA device", "leave out --device, or say --device cpu")


def test_one_view_a_batch_trains_without_contrast(call: Call, small_folder: Path, tmp_path: Path) -> None:
    changes = {"batch_size": 1, "replay": 1, "supcon_weight": 0, "epochs": 1, "members": 1}
    assert call(*train_command(small_folder, tmp_path / "run", **changes)).returncode == 0


def test_a_recipe_file_is_used_and_set_goes_before_it(call: Call, small_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(call("recipes", "digits-d").stdout + "lr: 1e-3\n")  # a later key wins; YAML reads 1e-3 as a word
    command = ["train", small_folder, "--target", "blue", "--out", tmp_path / "run", *ONE_EPOCH, "--recipe", file]
    assert call(*command).returncode == 0
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert config["recipe_name"] == "mine"
    changes = {"lr": 0.001, "image_size": 16, "epochs": 1, "members": 2, "batch_size": 32}
    assert config["recipe"] == {**RECIPES["digits-d"].model_dump(), **changes}


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"lr: [", "cannot be read as YAML"),
        (b"\xff\xfe\xfa", "cannot be read as YAML"),
        (b"- lr\n", "holds no `key: value` lines"),
        (b"", "holds no `key: value` lines"),
        (b"epoch: 3\n", "unknown recipe key 'epoch': did you mean 'epochs'?"),
        (b"1: 3\n", "unknown recipe key '1'"),
        (b"momentum: high\n", "recipe key 'momentum': should be a valid number"),
    ],
)
def test_a_broken_recipe_file_is_one_line(
    call: Call, small_folder: Path, tmp_path: Path, content: bytes, word: str
) -> None:
    (tmp_path / "mine.yaml").write_bytes(content)
    command = train_command(small_folder, tmp_path / "run")
    assert_refused(call(*command, "--recipe", tmp_path / "mine.yaml"), word)
    assert not (tmp_path / "run").exists()


def test_bad_images_are_named_or_skipped_with_a_count(call: Call, small_folder: Path, tmp_path: Path) -> None:
    data, out = Path(shutil.copytree(small_folder, tmp_path / "data")), tmp_path / "run"
    command = ["train", data, "--target", "blue", "--out", out, *ONE_EPOCH]
    for number, (kind, reason) in enumerate(BAD_IMAGES.items()):
        image = data / "red" / "down" / f"{number:02}.png"
        whole = image.read_bytes()
        break_image(image, kind)
        assert_refused(call(*command), str(image), reason, "(1 bad in all)", "--skip-bad")
        image.unlink()
        image.write_bytes(whole)
    for number, kind in enumerate(BAD_IMAGES):
        break_image(data / "red" / "down" / f"{number:02}.png", kind)
    assert_refused(call(*command), "red/down/00.png", "(5 bad in all)")
    assert not out.exists()
    answer = call(*command, "--skip-bad")
    assert answer.returncode == 0 and answer.stderr.startswith(
        "triplee: warning: left out 5 bad images: red/down/00.png (not an image"
    )
    assert yaml.safe_load((out / "config.yaml").read_text())["skipped_images"] == 5


def test_data_that_cannot_be_trained_on_is_one_line(call: Call, small_folder: Path, tmp_path: Path) -> None:
    def refused(data: object, *words: str) -> None:
        answer = call("train", data, "--target", "blue", "--out", tmp_path / "run", *ONE_EPOCH)
        assert_refused(answer, *words)
        assert not (tmp_path / "run").exists()

    refused("digitz", "data 'digitz' is neither a known name nor an existing folder", "did you mean 'digits'?")
    refused(tmp_path / "nowhere", str(tmp_path / "nowhere"))
    refused("", "''")
    refused("digits", "unknown target 'blue' in digits", "handwritten, textured, printed, street")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "no domain folders", "<domain>/<class>/<image>")
    (tmp_path / "words" / "blue" / "down").mkdir(parents=True)
    (tmp_path / "words" / "blue" / "down" / "a.txt").write_text("words")
    refused(tmp_path / "words", "no images", "<domain>/<class>/<image>")
    refused(tmp_path / "words" / "blue" / "down" / "a.txt", "a.txt is a file")
    refused(small_folder / "blue", "another depth", f"did you mean {small_folder}?")
    shutil.copytree(small_folder / "blue", tmp_path / "only" / "blue")
    refused(tmp_path / "only", "target 'blue' is the only domain")
    data = Path(shutil.copytree(small_folder, tmp_path / "own class"))
    shutil.copytree(data / "blue" / "down", data / "blue" / "spiral")
    refused(data, "no source domain", "'spiral'", "choose another target")


def test_a_misspelt_target_is_refused_before_any_image_is_decoded(
    call: Call, small_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIPLEE_CACHE", str(tmp_path / "cache"))
    data, out = Path(shutil.copytree(small_folder, tmp_path / "data")), tmp_path / "out"
    break_image(data / "red" / "down" / "00.png", "not an image")  # which decoding would find
    nearest = ("unknown target 'blau'", "did you mean 'blue'?")
    assert_refused(call("train", data, "--target", "blau", "--out", out, *ONE_EPOCH), *nearest)
    assert_refused(call("sweep", "ensemble", "--data", data, "--targets", "red,blau", "--out", out), *nearest)
    assert_refused(call("style", "fit", data, "--target", "blau", "--encoder", "small"), *nearest)
    assert_refused(call("train", "digits", "--target", "strait", "--out", out), "did you mean 'street'?")
    assert "did you mean 'street'?" in call("demo", "--target", "strait", "--out", out).stderr
    assert not out.exists() and not (tmp_path / "cache").exists()


def test_a_class_that_the_target_lacks_is_a_warning(call: Call, small_folder: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(small_folder, tmp_path / "data"))
    shutil.rmtree(data / "blue" / "down")
    answer = call("train", data, "--target", "blue", "--out", tmp_path / "run", *ONE_EPOCH)
    assert answer.returncode == 0
    assert answer.stderr.splitlines()[0] == "triplee: warning: target 'blue' has no image of class 'down'"


def test_predict_names_what_it_cannot_read(
    call: Call, small_folder: Path, finished: TrainedRun, tmp_path: Path
) -> None:
    good = small_folder / "red" / "down" / "00.png"
    folder = tmp_path / "images"
    folder.mkdir()
    assert_refused(call("predict", finished.path, folder), f"{folder} has no images (looked for .bmp, ")
    assert_refused(call("predict", finished.path, folder / "x.png"), f"{folder / 'x.png'} does not exist")
    assert_refused(call("predict", finished.path, "two\nlines.png"), "two lines.png does not exist")
    assert_refused(call("predict", tmp_path / "run", good), f"{tmp_path / 'run'} is not a run folder")
    assert_refused(call("predict", folder, good), f"{folder} is not a run folder: it has no config.yaml")
    assert_refused(call("evaluate", folder), f"{folder} is not a run folder: it has no config.yaml")
    for number, (kind, reason) in enumerate(BAD_IMAGES.items()):
        bad = folder / f"{number}.png"
        shutil.copy(good, bad)
        break_image(bad, kind)
        if kind != "link to nowhere":
            assert_refused(call("predict", finished.path, good, bad), str(bad), reason, "--skip-bad")
            answer = call("predict", finished.path, good, bad, "--skip-bad", "--format", "csv")
            assert answer.returncode == 0 and len(answer.stdout.splitlines()) == 2
            assert re.fullmatch(f"triplee: skipped: cannot read image {re.escape(str(bad))}: .+\n", answer.stderr)
    assert_refused(call("predict", finished.path, __file__), "not an image")
