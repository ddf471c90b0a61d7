import os
import re
from pathlib import Path

import pytest

from triplee.data.folder import TRAIN, UNSPLIT, VAL, ImageFolder, list_images
from triplee.data.load import load_data
from triplee.settings import InputError


def touch(root: Path, *names: str) -> Path:
    """Files with nothing in them: the reader goes by names alone."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def rows(folder: ImageFolder) -> list[tuple[str, str, str, int]]:
    return [
        (folder.domains[domain], folder.classes[label], folder.path(index).name, split)
        for index, (domain, label, split) in enumerate(
            zip(folder.domains_N, folder.labels_N, folder.split_N.tolist(), strict=True)
        )
    ]


def refusal(root: Path) -> str:
    with pytest.raises(InputError) as refused:
        list_images(root)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_domain_class_image(tmp_path: Path) -> None:
    touch(tmp_path, "photo/dog/1.png", "art/cat/2.png", "art/dog/3.png")
    folder = list_images(tmp_path)
    assert folder.root == tmp_path
    assert folder.domains == ("art", "photo")
    assert folder.classes == ("cat", "dog")
    assert rows(folder) == [
        ("art", "cat", "2.png", UNSPLIT),
        ("art", "dog", "3.png", UNSPLIT),
        ("photo", "dog", "1.png", UNSPLIT),
    ]
    assert folder.path(0) == tmp_path / "art/cat/2.png"
    assert list(folder.image_keys()) == ["art/cat/2.png", "art/dog/3.png", "photo/dog/1.png"]
    assert folder.notes == ()


def test_train_and_val_folders_are_parts_in_the_domain_that_has_them(tmp_path: Path) -> None:
    touch(tmp_path, "mnist/train/0/a.png", "mnist/val/0/a.png", "mnist/val/1/b.png", "svhn/1/c.png")
    folder = list_images(tmp_path)
    assert folder.classes == ("0", "1")
    assert rows(folder) == [
        ("mnist", "0", "a.png", TRAIN),
        ("mnist", "0", "a.png", VAL),
        ("mnist", "1", "b.png", VAL),
        ("svhn", "1", "c.png", UNSPLIT),
    ]


def test_an_empty_or_absent_val_folder_leaves_train_a_part(tmp_path: Path) -> None:
    touch(tmp_path, "mnist/train/0/a.png", "svhn/train/0/b.png")
    (tmp_path / "svhn/val").mkdir()
    assert rows(list_images(tmp_path)) == [("mnist", "0", "a.png", TRAIN), ("svhn", "0", "b.png", TRAIN)]


def test_a_class_called_train_is_a_class(tmp_path: Path) -> None:
    touch(tmp_path, "photo/train/a.png", "art/train/b.png", "art/car/c.png")
    assert rows(list_images(tmp_path)) == [
        ("art", "car", "c.png", UNSPLIT),
        ("art", "train", "b.png", UNSPLIT),
        ("photo", "train", "a.png", UNSPLIT),
    ]


def test_test_is_no_part(tmp_path: Path) -> None:
    touch(tmp_path, "photo/train/a/1.png", "photo/val/a/1.png", "photo/test/a/1.png", "art/a/1.png")
    assert {domain for domain, *_ in rows(list_images(tmp_path))} == {"art"}


@pytest.mark.parametrize("suffix", ["jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "JPG", "Jpeg", "TIFF"])
def test_every_suffix_in_any_case(tmp_path: Path, suffix: str) -> None:
    touch(tmp_path, f"a/x/1.{suffix}")
    assert len(list_images(tmp_path)) == 1


def test_hidden_and_other_things_are_passed_over(tmp_path: Path) -> None:
    touch(
        tmp_path,
        *("a/x/1.png", "a/x/.2.png", "a/x/._1.png", "a/x/Thumbs.db", "a/x/notes.txt", "a/x/clip.gif", "a/x/png"),
        *("a/.hidden/1.png", ".git/x/1.png", "__MACOSX/x/1.png", "a/__MACOSX/1.png", "splits/x/list.txt"),
        *("a/x/deeper/3.png", "a/4.png", "5.png", "a/empty/6.txt"),
    )
    (tmp_path / "a/x/folder.png").mkdir()
    os.mkfifo(tmp_path / "a/x/pipe.png")
    folder = list_images(tmp_path)
    assert rows(folder) == [("a", "x", "1.png", UNSPLIT)]
    assert (folder.domains, folder.classes) == (("a",), ("x",))
    strays, bare = folder.notes
    assert "passed over 4 images" in strays and strays.endswith(": 5.png, a/4.png, a/x/clip.gif, …")
    assert bare == "passed over 2 folders (no images inside): a/empty, splits/x"


def test_folders_without_images_are_named(tmp_path: Path) -> None:
    touch(tmp_path, "a/x/1.png", "a/y/1.png", "b/x/1.png", "b/y/deep/1.png")
    (tmp_path / "c").mkdir()
    folder = list_images(tmp_path)
    assert folder.domains == ("a", "b")
    assert folder.notes[1:] == ("passed over 1 folder (no images inside): c",)


def test_names_alike_are_two_but_said_so(tmp_path: Path) -> None:
    folder = list_images(touch(tmp_path, "a/Dog/1.png", "a/dog/2.png", "b/cat/3.png"))
    assert folder.classes == ("Dog", "cat", "dog")
    assert folder.notes == ("class 'Dog' and class 'dog' are taken for two: rename one if they are the same",)


def test_split_folders_of_another_name(tmp_path: Path) -> None:
    touch(tmp_path, *(f"sun/{part}/0/{part}.jpg" for part in ("train", "crossval", "test", "full")), "voc/1/a.jpg")
    options = [{"all": UNSPLIT}, {"train": TRAIN, "crossval": VAL, "test": VAL}]
    assert rows(list_images(tmp_path, options)) == [
        ("sun", "0", "train.jpg", TRAIN),
        ("sun", "0", "crossval.jpg", VAL),
        ("sun", "0", "test.jpg", VAL),
        ("voc", "1", "a.jpg", UNSPLIT),
    ]
    assert rows(list_images(tmp_path, [{"full": UNSPLIT}, *options]))[0] == ("sun", "0", "full.jpg", UNSPLIT)


def test_links_are_followed_and_one_that_leads_nowhere_is_kept(tmp_path: Path) -> None:
    touch(tmp_path / "elsewhere", "x/1.png", "single.png")
    root = touch(tmp_path / "root", "a/x/2.png")
    (root / "b").symlink_to(tmp_path / "elsewhere")
    (root / "a/x/3.png").symlink_to(tmp_path / "elsewhere/single.png")
    (root / "a/x/4.png").symlink_to(tmp_path / "gone.png")
    assert [(d, n) for d, _, n, _ in rows(list_images(root))] == [
        ("a", "2.png"),
        ("a", "3.png"),
        ("a", "4.png"),
        ("b", "1.png"),
    ]


def test_byte_order(tmp_path: Path) -> None:
    names = ["10.png", "9.png", "A.png", "a b.png", "a-b.png", "a.png", "ä.png", "é.png"]
    touch(tmp_path, *(f"d/x/{name}" for name in reversed(names)), "D/Y/1.png", "é/y/1.png", "d/X/1.png")
    folder = list_images(tmp_path)
    assert [name for domain, cls, name, _ in rows(folder) if (domain, cls) == ("d", "x")] == names
    assert folder.domains == ("D", "d", "é")
    assert folder.classes == ("X", "Y", "x", "y")


def test_names_that_are_not_text(tmp_path: Path) -> None:
    touch(tmp_path, "a/x/" + os.fsdecode(b"\xff.png"), "a/x/z.png")
    assert [os.fsencode(name) for name in list_images(tmp_path).names] == [b"a/x/z.png", b"a/x/\xff.png"]


def test_no_such_folder(tmp_path: Path) -> None:
    message = refusal(tmp_path / "gone")
    assert str(tmp_path / "gone") in message and "does not exist" in message and "<domain>/<class>" in message


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    touch(tmp_path, "data.zip")
    message = refusal(tmp_path / "data.zip")
    assert str(tmp_path / "data.zip") in message and "is a file" in message


def test_no_domain_folders(tmp_path: Path) -> None:
    touch(tmp_path, "readme.txt", ".git/x/1.png")
    message = refusal(tmp_path)
    assert message.startswith(f"no domain folders in {tmp_path}") and "<domain>/<class>/<image>" in message


def test_no_images(tmp_path: Path) -> None:
    touch(tmp_path, "a/x/1.txt", "a/y/2.gif")
    message = refusal(tmp_path)
    assert message.startswith(f"no images in {tmp_path}") and "webp" in message


@pytest.mark.parametrize(
    ("image", "given"),
    [
        ("pacs/photo/dog/1.png", "."),
        ("pacs/photo/dog/1.png", "pacs/photo"),
        ("pacs/photo/dog/1.png", "pacs/photo/dog"),
        ("pacs/photo/train/dog/1.png", "."),
        ("pacs/photo/train/dog/1.png", "pacs/photo"),
        ("pacs/photo/train/dog/1.png", "pacs/photo/train"),
        ("pacs/photo/train/dog/1.png", "pacs/photo/train/dog"),
    ],
)
def test_a_folder_given_too_high_or_too_deep_gets_the_right_one_named(tmp_path: Path, image: str, given: str) -> None:
    touch(tmp_path, image)
    message = refusal(tmp_path / given)
    assert re.search(rf" {re.escape(str(tmp_path / 'pacs'))}(\?|$)", message)
    assert ("not sorted yet" in message) == given.endswith("dog")  # the images lie in it, as if nobody had sorted them


def test_the_right_folder_is_named_from_inside_a_relative_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "pacs/photo/dog/1.png")
    monkeypatch.chdir(tmp_path / "pacs/photo")
    assert f"{tmp_path / 'pacs'}?" in refusal(Path())


@pytest.mark.skipif(os.getuid() == 0, reason="root reads every folder")
def test_a_folder_that_may_not_be_read(tmp_path: Path) -> None:
    touch(tmp_path, "a/x/1.png")
    (tmp_path / "a").chmod(0)
    try:
        assert str(tmp_path / "a") in refusal(tmp_path)
    finally:
        (tmp_path / "a").chmod(0o700)


def test_load_data_names_what_it_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"'digit' is neither .* did you mean 'digits'\?$"):
        load_data("digit", 8)
    (tmp_path / "cameras").mkdir()
    for name, hint in (("camera", "cameras"), (f"{tmp_path}/camras", f"{tmp_path}/cameras")):
        with pytest.raises(InputError, match=rf"did you mean '{hint}'\?$"):
            load_data(name, 8)
    with pytest.raises(InputError, match=r"'no/such/folder' is neither .* known: digits, digits-dg, domainnet"):
        load_data("no/such/folder", 8)
    with pytest.raises(InputError, match="camera/x' is neither"):
        load_data(str(touch(tmp_path, "camera") / "camera/x"), 8)
    with pytest.raises(InputError, match="'' is neither"):
        load_data("", 8)
    with pytest.raises(InputError, match=r"data\.zip is a file"):
        load_data(str(touch(tmp_path, "data.zip") / "data.zip"), 8)


def test_one_class_is_nothing_to_train_on(tmp_path: Path) -> None:
    touch(tmp_path, "a/x/1.png", "b/x/1.png")
    with pytest.raises(InputError, match=f"{tmp_path} has one class, 'x': add another one to tell it from"):
        load_data(str(tmp_path), 8, target="a")
