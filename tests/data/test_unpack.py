"""Archives as strangers make them: only images and lists come out, and the hostile ones are refused by name."""

import gzip
import io
import os
import stat
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from watching import Watcher

from triplee.data.unpack import BadArchive, unpack
from triplee.settings import InputError


def make_zip(path: Path, entries: list[tuple[str | zipfile.ZipInfo, bytes]]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry, content in entries:
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return path


def make_tar(path: Path, entries: list[tuple[str | tarfile.TarInfo, bytes]], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for entry, content in entries:
            info = tarfile.TarInfo(entry) if isinstance(entry, str) else entry
            if info.isreg():
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def make_plain_tar(path: Path, entries: list[tuple[str | tarfile.TarInfo, bytes]]) -> Path:
    return make_tar(path, entries, "w")


ALL_KINDS = pytest.mark.parametrize("make", [make_zip, make_tar, make_plain_tar], ids=["zip", "tar.gz", "tar"])
Make = Callable[[Path, list[tuple[str, bytes]]], Path]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "outside" / "inside").mkdir(parents=True)
    return tmp_path / "outside" / "inside"


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refusal(archive: Path, folder: Path, **options: int) -> str:
    """The one line with which an archive is refused; nothing has come out beside the folder."""
    with pytest.raises(BadArchive) as refused:
        unpack(archive, folder, Watcher(), **options)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    message = str(refused.value)
    assert message.startswith(str(archive)) and "\n" not in message
    return message


@ALL_KINDS
def test_images_and_lists_come_out_and_nothing_else(make: Make, tmp_path: Path, folder: Path) -> None:
    data = {"a/x/1.png": os.urandom(3_000_000), "a/x/2.JPEG": b"two", "./b/3.webp": b"", "train.txt": b"a/x/1.png 0\n"}
    rest = ["a/run.py", "a/run.sh", "x.exe", "no_suffix", ".hidden.png", "a/.git/1.png", "__MACOSX/a/x/._1.png"]
    archive = make(tmp_path / "named.oddly", [*data.items(), *((name, b"code") for name in rest)])
    watcher = Watcher()
    unpack(archive, folder, watcher)
    assert files_in(folder) == {name.removeprefix("./"): content for name, content in data.items()}
    assert {path.name for path in folder.rglob("*") if path.is_dir()} == {"a", "x", "b"}
    assert len(watcher.notes) == 1 and "passed over 7 files" in watcher.notes[0] and "a/run.py" in watcher.notes[0]
    assert watcher.bars == [("unpacking named.oddly", archive.stat().st_size, archive.stat().st_size)]


def test_modes_and_times_of_the_archive_are_ignored(tmp_path: Path, folder: Path) -> None:
    in_zip, in_tar = zipfile.ZipInfo("1.png", (1990, 1, 1, 0, 0, 0)), tarfile.TarInfo("2.png")
    in_zip.external_attr = (stat.S_IFREG | 0o6777) << 16
    in_tar.mode, in_tar.mtime, in_tar.uid = 0o6777, 1, 12345
    unpack(make_zip(tmp_path / "a.zip", [(in_zip, b"1")]), folder, Watcher())
    unpack(make_tar(tmp_path / "a.tar", [(in_tar, b"2")]), folder, Watcher())
    for path in (folder / "1.png", folder / "2.png"):
        assert path.stat().st_mode & 0o6111 == 0 and path.stat().st_uid == os.getuid()
        assert path.stat().st_mtime > 1e9


@ALL_KINDS
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("../x.png", "leads outside"),
        ("a/../../x.png", "leads outside"),
        ("a/..", "leads outside"),
        ("/tmp/x.png", "absolute path"),
        ("C:/x.png", "absolute path"),
        ("c:x.png", "absolute path"),
        ("..\\x.png", "backslash"),
        ("\\\\host\\x.png", "backslash"),
        ("a/x\x1b[2J.png", "control character"),
        ("a/x\n.png", "control character"),
        ("a/" + 256 * "x" + ".png", "too long"),
        (300 * "abc/" + "x.png", "too long"),
        ("../x.sh", "leads outside"),
    ],
)
def test_names_that_lead_elsewhere(make: Make, name: str, reason: str, tmp_path: Path, folder: Path) -> None:
    archive = make(tmp_path / "archive", [("a/fine.png", b"1"), (name, b"2")])
    message = refusal(archive, folder)
    assert reason in message and repr(name[:200]).rstrip("'") in message
    assert set(files_in(folder)) == {"a/fine.png"}


def test_a_name_with_a_nul(tmp_path: Path, folder: Path) -> None:
    archive = make_zip(tmp_path / "a.zip", [("a/x.png_.sh", b"1")])
    archive.write_bytes(archive.read_bytes().replace(b"x.png_.sh", b"x.png\0.sh"))
    assert "control character" in refusal(archive, folder)
    in_pax = tarfile.TarInfo("x.png")
    in_pax.pax_headers = {"path": "x.png\0.sh"}
    assert "control character" in refusal(make_tar(tmp_path / "a.tar", [(in_pax, b"1")]), folder)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (tarfile.SYMTYPE, "a symbolic link"),
        (tarfile.LNKTYPE, "a hard link"),
        (tarfile.CHRTYPE, "a device or pipe"),
        (tarfile.BLKTYPE, "a device or pipe"),
        (tarfile.FIFOTYPE, "a device or pipe"),
        (b"Z", "of an unknown kind"),
    ],
)
def test_entries_of_a_tar_that_are_no_files(kind: bytes, said: str, tmp_path: Path, folder: Path) -> None:
    info = tarfile.TarInfo("a/link.png")
    info.type, info.linkname = kind, "../../outside.png"
    assert f"'a/link.png' is {said}" in refusal(make_tar(tmp_path / "a.tar", [(info, b"")]), folder)
    assert files_in(folder) == {}


def test_a_link_then_a_file_through_it(tmp_path: Path, folder: Path) -> None:
    link = tarfile.TarInfo("a")
    link.type, link.linkname = tarfile.SYMTYPE, ".."
    assert "'a' is a symbolic link" in refusal(make_tar(tmp_path / "a.tar", [(link, b""), ("a/x.png", b"1")]), folder)


def test_a_sparse_file(tmp_path: Path, folder: Path) -> None:
    info = tarfile.TarInfo("a.png")
    info.pax_headers = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.map": "0,1"}
    info.pax_headers |= {"GNU.sparse.size": str(10**15), "GNU.sparse.name": "a.png"}
    assert "'a.png' is a sparse file" in refusal(make_tar(tmp_path / "a.tar", [(info, b"1")]), folder)


@pytest.mark.parametrize(("mode", "said"), [(stat.S_IFLNK, "a symbolic link"), (stat.S_IFCHR, "a device or pipe")])
def test_entries_of_a_zip_that_are_no_files(mode: int, said: str, tmp_path: Path, folder: Path) -> None:
    info = zipfile.ZipInfo("a/link.png")
    info.create_system, info.external_attr = 3, (mode | 0o777) << 16
    assert f"'a/link.png' is {said}" in refusal(make_zip(tmp_path / "a.zip", [(info, b"/etc/passwd")]), folder)
    assert files_in(folder) == {}


@ALL_KINDS
@pytest.mark.parametrize(
    "names", [("a/x.png", "a/x.png"), ("a/x.png", "a//./x.png"), ("a.png", "a.png/x.png"), ("a.png/x.png", "a.png")]
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_entries_that_collide(make: Make, names: tuple[str, str], tmp_path: Path, folder: Path) -> None:
    archive = make(tmp_path / "archive", [(names[0], b"1"), (names[1], b"2")])
    assert f"{names[1]!r} is there twice" in refusal(archive, folder)
    assert list(files_in(folder).values()) == [b"1"]


def test_a_folder_and_a_file_of_one_name(tmp_path: Path, folder: Path) -> None:
    archive = make_zip(tmp_path / "a.zip", [("x.png/", b""), ("x.png", b"1")])
    assert "'x.png' is a file, and a folder before" in refusal(archive, folder)
    archive = make_zip(tmp_path / "a.zip", [("x.png", b"1"), ("x.png/", b"")])
    assert "'x.png/' is a folder, and a file before" in refusal(archive, folder)


def test_names_that_differ_in_case_are_two_files(tmp_path: Path, folder: Path) -> None:
    unpack(make_zip(tmp_path / "a.zip", [("a/x.png", b"1"), ("a/X.png", b"2")]), folder, Watcher())
    assert files_in(folder) == {"a/x.png": b"1", "a/X.png": b"2"}


def make_bomb(path: Path, name: str, num_bytes: int) -> Path:
    """A tar.gz whose one file is `num_bytes` of zeros, at one thousandth of that."""
    info = tarfile.TarInfo(name)
    info.size = num_bytes
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(info.tobuf())
        for _ in range(num_bytes >> 20):
            stream.write(bytes(1 << 20))
        stream.write(bytes(1024))
    return path


def test_no_more_bytes_than_allowed_in_little_memory(tmp_path: Path, folder: Path) -> None:
    archive = make_bomb(tmp_path / "a.tgz", "a.png", 200 << 20)
    assert archive.stat().st_size < 1 << 20
    tracemalloc.start()
    message = refusal(archive, folder, max_bytes=20_000_000)
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()
    assert "'a.png' brings it over the limit of 0.02 GB" in message
    assert sum(map(len, files_in(folder).values())) <= 20_000_000


@pytest.mark.parametrize("name", ["a.png", "passed_over.bin"])
def test_a_bomb_within_the_limit(name: str, tmp_path: Path, folder: Path) -> None:
    message = refusal(make_bomb(tmp_path / "a.tgz", name, 120 << 20), folder)
    assert "bomb, over 200 times its size" in message
    assert sum(map(len, files_in(folder).values())) < 110_000_000


def test_a_zip_bomb_and_a_zip_that_lies_about_its_size(tmp_path: Path, folder: Path) -> None:
    bomb = make_zip(tmp_path / "a.zip", [(f"{k}.png", bytes(40_000_000)) for k in range(3)])
    assert "'2.png' makes it a bomb" in refusal(bomb, folder)
    zip_of_one = make_zip(tmp_path / "b.zip", [("b.png", os.urandom(100_000))])
    lying = zip_of_one.read_bytes().replace(struct.pack("<L", 100_000), struct.pack("<L", 1000))
    zip_of_one.write_bytes(lying)
    assert "truncated or damaged" in refusal(zip_of_one, folder)
    assert len(files_in(folder).get("b.png", b"")) <= 1000


def test_a_limit_that_is_just_kept(tmp_path: Path, folder: Path) -> None:
    archive = make_tar(tmp_path / "a.tar", [("a.png", bytes(600)), ("b.png", bytes(400))])
    unpack(archive, folder, Watcher(), max_bytes=1000, max_entries=2)
    assert len(files_in(folder)) == 2


@ALL_KINDS
def test_too_many_entries(make: Make, tmp_path: Path, folder: Path) -> None:
    archive = make(tmp_path / "archive", [(f"{k}.png", b"1") for k in range(6)])
    assert "more than 5 entries" in refusal(archive, folder, max_entries=5)


def test_an_archive_that_does_not_fit_on_the_disk(tmp_path: Path, folder: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.png", b"1")
        archive.infolist()[0].file_size = 10**15
    with pytest.raises(InputError, match=r"unpacking a.zip needs 1,000,000.0 GB, .* GB free: make room"):
        unpack(tmp_path / "a.zip", folder, Watcher(), max_bytes=10**18)
    assert files_in(folder) == {}


@ALL_KINDS
@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9])
def test_truncated_archives(make: Make, kept: float, tmp_path: Path, folder: Path) -> None:
    whole = make(tmp_path / "whole", [(f"{k}.png", os.urandom(20_000)) for k in range(10)]).read_bytes()
    (tmp_path / "cut").write_bytes(whole[: int(kept * len(whole))])
    assert "truncated or damaged" in refusal(tmp_path / "cut", folder)


def test_a_tar_that_is_cut_between_two_entries(tmp_path: Path, folder: Path) -> None:
    whole = make_plain_tar(tmp_path / "whole", [(f"{k}.png", bytes(512)) for k in range(4)]).read_bytes()
    (tmp_path / "cut").write_bytes(whole[:2048])
    assert "truncated or damaged (the end is missing)" in refusal(tmp_path / "cut", folder)
    (tmp_path / "cut").write_bytes(whole[:2048] + os.urandom(512) + whole[2560:])
    (folder / "0.png").unlink(), (folder / "1.png").unlink()
    assert "truncated or damaged (the end is missing)" in refusal(tmp_path / "cut", folder)


@pytest.mark.parametrize("make", [make_zip, make_tar], ids=["zip", "tar.gz"])
def test_flipped_bytes(make: Make, tmp_path: Path, folder: Path) -> None:
    archive = make(tmp_path / "archive", [("a.png", os.urandom(50_000))])
    content = bytearray(archive.read_bytes())
    content[25_000] ^= 255
    archive.write_bytes(content)
    assert "truncated or damaged" in refusal(archive, folder)


def test_headers_of_absurd_size_are_not_read_into_memory(tmp_path: Path, folder: Path) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 90 << 20
    with gzip.open(tmp_path / "a.tgz", "wb", compresslevel=1) as stream:
        stream.write(header.tobuf())
        stream.write(bytes(90 << 20))
    tracemalloc.start()
    message = refusal(tmp_path / "a.tgz", folder)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()
    assert "header of absurd size" in message


def test_an_encrypted_zip(tmp_path: Path, folder: Path) -> None:
    archive = make_zip(tmp_path / "a.zip", [("a.png", b"1")])
    content = bytearray(archive.read_bytes())
    content[6] |= 1  # the flag in the entry, and in the directory at the end
    content[content.index(b"PK\x01\x02") + 8] |= 1
    archive.write_bytes(content)
    assert "'a.png' is encrypted" in refusal(archive, folder)


def test_a_compression_that_is_not_read(tmp_path: Path, folder: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.png", b"1")
    assert "'a.png' is compressed by method 14" in refusal(tmp_path / "a.zip", folder)


@pytest.mark.parametrize(
    "content", [b"", b"no archive", os.urandom(5000), gzip.compress(os.urandom(5000)), b"BZh91AY&SY" + bytes(2000)]
)
def test_no_archive_at_all(content: bytes, tmp_path: Path, folder: Path) -> None:
    (tmp_path / "a.zip").write_bytes(content)
    assert "is no zip, tar or tar.gz archive" in refusal(tmp_path / "a.zip", folder)


def test_an_archive_that_cannot_be_read(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*missing.zip: no such file"):
        unpack(tmp_path / "missing.zip", folder, Watcher())


def test_no_changed_byte_ends_in_another_error(tmp_path: Path, folder: Path) -> None:
    """Small archives with every byte changed in turn: whole, or one line."""
    makes: list[Make] = [make_zip, make_plain_tar]
    outcomes = {"whole": 0, "refused": 0}
    for make in makes:
        content = make(tmp_path / "archive", [("a/1.png", b"one"), ("b/2.txt", b"two")]).read_bytes()
        end = 1536 if make is make_plain_tar else len(content)
        for position in range(end):
            for value in (255, content[position] ^ 1):
                (tmp_path / "archive").write_bytes(content[:position] + bytes([value]) + content[position + 1 :])
                target = tmp_path / "fuzzed" / f"{make.__name__}{position}-{value}"
                target.mkdir(parents=True, exist_ok=True)
                try:
                    unpack(tmp_path / "archive", target, Watcher())
                    outcomes["whole"] += 1
                except InputError as error:
                    assert "\n" not in str(error)
                    outcomes["refused"] += 1
    assert outcomes["whole"] > 100 and outcomes["refused"] > 100
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive", "fuzzed", "outside"]
