"""Unpacks a zip, tar or tar.gz of images as if a stranger had made it.

Comes in: an archive and a folder. Goes out: its images and lists as plain files inside that folder and nothing else: no
links, no devices, no path outside, no code, no more bytes than allowed. Modes and times of the archive are ignored.
"""

import gzip
import os
import re
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, BinaryIO, Protocol

from triplee.data.folder import SUFFIXES, suffix_of
from triplee.runfolder import unwritable
from triplee.settings import InputError

LISTS = frozenset({".txt", ".csv", ".json", ".md"})
MAX_BYTES = 200 * 10**9
MAX_ENTRIES = 5_000_000
_MAX_RATIO, _RATIO_FROM = 200, 10**8  # images hardly shrink, lists to a twentieth; below 100 MB it does not matter
_CHUNK = 1 << 20
_ELSEWHERE = "get the set from a source you trust"
_DRIVE = re.compile(r"[A-Za-z]:")
_DAMAGE = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError),
    *(ValueError, LookupError, ArithmeticError, RuntimeError),  # the readers of Python, on headers of nonsense
)


class DownloadObserver(Protocol):
    """Who shows the progress: `start` begins a bar at zero, `note` is a line for people."""

    def start(self, what: str, total: int | None) -> None: ...
    def advance(self, num: int) -> None: ...
    def note(self, line: str) -> None: ...


class BadArchive(InputError):
    """The archive itself is at fault: hostile, damaged, or none at all."""


@dataclass(frozen=True)
class _Entry:
    name: str
    kind: str  # "file", "folder", or what it is instead
    position: int  # bytes of the archive up to here, for the progress bar
    open: Callable[[], IO[bytes] | None]


def unpack(
    archive: Path,
    folder: Path,
    observer: DownloadObserver,
    *,
    max_bytes: int = MAX_BYTES,
    max_entries: int = MAX_ENTRIES,
) -> None:
    """Unpack images and lists into `folder`; a refusal is one line, and leaves clearing the folder to the caller."""
    try:
        file = archive.open("rb")
    except OSError as error:
        raise InputError(f"cannot read {archive}: {(error.strerror or str(error)).lower()}") from None
    writer = _Writer(archive, folder, max_bytes)
    with file, closing(_read_entries(archive, file, folder)) as entries:
        observer.start(f"unpacking {archive.name}", writer.archive_bytes)
        position = 0
        for num_entries, entry in enumerate(entries, start=1):
            if num_entries > max_entries:
                raise BadArchive(f"{archive} has more than {max_entries:,} entries: that is no data set")
            writer.take(entry)
            observer.advance(entry.position - position)
            position = entry.position
        observer.advance(writer.archive_bytes - position)
    if writer.passed_over:
        others = f"{writer.num_passed_over:,} files that are neither images nor lists, such as {writer.passed_over!r}"
        observer.note(f"{archive.name}: passed over {others}")


def require_room(folder: Path, num_bytes: int, what: str) -> None:
    """One line when `num_bytes` do not fit on the disk of `folder`."""
    free = shutil.disk_usage(folder).free
    if num_bytes > free:
        need = f"{num_bytes / 1e9:,.1f} GB, {folder} has {free / 1e9:,.1f} GB free"
        raise InputError(f"{what} needs {need}: make room, or choose another --root")


def is_data(name: str) -> bool:
    """Whether an entry is an image or a list; hidden files and what macOS adds are not."""
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in name.split("/") if part != ".")
    return not hidden and suffix_of(name) in SUFFIXES | LISTS


class _Writer:
    """Checks entries one by one and writes those that are data."""

    def __init__(self, archive: Path, folder: Path, max_bytes: int) -> None:
        self.archive, self.folder, self.max_bytes = archive, folder, max_bytes
        self.archive_bytes = archive.stat().st_size
        self.num_bytes, self.num_passed_over, self.passed_over = 0, 0, ""
        self.folder_entries: set[str] = set()
        self.made = {folder}

    def take(self, entry: _Entry) -> None:
        name = "/".join(self._check_name(entry))
        if entry.kind not in ("file", "folder"):
            raise self._refusal(entry, f"is {entry.kind}")
        target = self.folder / name
        if entry.kind == "folder":
            if target.is_file():
                raise self._refusal(entry, "is a folder, and a file before")
            self.folder_entries.add(name)
        elif name in self.folder_entries:
            raise self._refusal(entry, "is a file, and a folder before")
        elif is_data(name):
            self._write(entry, target)
        else:
            self.num_passed_over += 1
            self.passed_over = self.passed_over or name

    def _refusal(self, entry: _Entry, why: str) -> BadArchive:
        name = entry.name if len(entry.name) <= 200 else f"{entry.name[:200]}…"
        return BadArchive(f"{self.archive} is refused: entry {name!r} {why}; {_ELSEWHERE}")

    def _check_name(self, entry: _Entry) -> list[str]:
        name = entry.name
        if any(ord(character) < 32 or ord(character) == 127 for character in name):
            raise self._refusal(entry, "has a control character in its name")
        if "\\" in name:
            raise self._refusal(entry, "has a backslash in its name")
        if name.startswith("/") or _DRIVE.match(name):
            raise self._refusal(entry, "has an absolute path")
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise self._refusal(entry, "leads outside its folder")
        if len(os.fsencode(name)) > 1000 or any(len(os.fsencode(part)) > 255 for part in parts):
            raise self._refusal(entry, "has too long a name")
        if not parts and entry.kind == "file":
            raise self._refusal(entry, "has no name")
        return parts

    def _write(self, entry: _Entry, target: Path) -> None:
        try:
            if target.parent not in self.made:
                target.parent.mkdir(parents=True, exist_ok=True)
                self.made.add(target.parent)
            with target.open("xb") as out:
                for chunk in self._read(entry):
                    self._count(entry, len(chunk))
                    out.write(chunk)
        except (FileExistsError, NotADirectoryError):
            raise self._refusal(entry, "is there twice") from None
        except OSError as error:
            raise unwritable(target, error) from None

    def _read(self, entry: _Entry) -> Iterator[bytes]:
        with _naming_damage(self.archive):
            stream = entry.open()
            assert stream is not None  # only for links and folders
            with stream:
                while chunk := stream.read(_CHUNK):
                    yield chunk

    def _count(self, entry: _Entry, num_bytes: int) -> None:
        """Count what really comes out: the sizes in an archive can lie."""
        self.num_bytes += num_bytes
        if self.num_bytes > self.max_bytes:
            raise self._refusal(entry, f"brings it over the limit of {self.max_bytes / 1e9:,.3g} GB")
        if _is_bomb(self.num_bytes, self.archive_bytes):
            raise self._refusal(entry, f"makes it a bomb, over {_MAX_RATIO} times its size")


def _is_bomb(num_bytes: int, archive_bytes: int) -> bool:
    return num_bytes > max(_RATIO_FROM, _MAX_RATIO * archive_bytes)


@contextmanager
def _naming_damage(archive: Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BadArchive(f"{archive} is truncated or damaged ({reason[:200]}): get it again") from None


def _read_entries(archive: Path, file: BinaryIO, folder: Path) -> Generator[_Entry]:
    with _naming_damage(archive):
        magic = file.read(4)
        file.seek(0)
        if magic in (b"PK\x03\x04", b"PK\x05\x06"):
            yield from _zip_entries(archive, file, folder)
        elif magic[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=file) as stream:
                yield from _tar_entries(archive, file, _TarStream(archive, stream))
        else:
            require_room(folder, archive.stat().st_size, f"unpacking {archive.name}")
            yield from _tar_entries(archive, file, _TarStream(archive, file))


def _zip_entries(archive: Path, file: BinaryIO, folder: Path) -> Iterator[_Entry]:
    with zipfile.ZipFile(file) as opened:
        infos = opened.infolist()
        declared = sum(info.file_size for info in infos if is_data(info.filename))
        require_room(folder, declared, f"unpacking {archive.name}")
        position = 0
        for info in infos:
            position += info.compress_size
            mode = stat.S_IFMT(info.external_attr >> 16)
            if info.flag_bits & 1:
                kind = "encrypted"
            elif mode not in (0, stat.S_IFREG, stat.S_IFDIR):
                kind = "a symbolic link" if mode == stat.S_IFLNK else "a device or pipe"
            elif info.is_dir() or mode == stat.S_IFDIR:
                kind = "folder"
            elif info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                kind = f"compressed by method {info.compress_type}, which is not read here"
            else:
                kind = "file"
            # Not `filename`, from which Python has cut what follows a NUL.
            yield _Entry(info.orig_filename, kind, position, partial(opened.open, info))


class _TarStream:
    """What tarfile reads from: forward only, in bounded pieces, no bomb. `last` is the piece read last."""

    def __init__(self, archive: Path, stream: BinaryIO | gzip.GzipFile) -> None:
        self._archive, self._stream, self._position = archive, stream, 0
        self._archive_bytes = archive.stat().st_size
        self.last = b""

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> int:
        if position < self._position:
            raise tarfile.ReadError("an entry of negative size")
        while self._position < position and self.read(min(_CHUNK, position - self._position)):
            pass
        return self._position

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _CHUNK:  # tarfile would read such a header into memory
            raise BadArchive(f"{self._archive} is refused: it has a header of absurd size; {_ELSEWHERE}")
        self.last = self._stream.read(size)
        self._position += len(self.last)
        if _is_bomb(self._position, self._archive_bytes):
            raise BadArchive(f"{self._archive} is refused: a bomb, over {_MAX_RATIO} times its size; {_ELSEWHERE}")
        return self.last


def _tar_entries(archive: Path, file: BinaryIO, stream: _TarStream) -> Iterator[_Entry]:
    try:
        opened = tarfile.TarFile(fileobj=stream)  # type: ignore[arg-type]
    except tarfile.ReadError:
        if stream.tell() > tarfile.BLOCKSIZE:
            raise
        raise BadArchive(f"{archive} is no zip, tar or tar.gz archive: get it again, or unpack it by hand") from None
    while (info := opened.next()) is not None:
        opened.members = []  # type: ignore[attr-defined] – it would keep every entry in memory
        yield _Entry(info.name, _tar_kind(info), file.tell(), partial(opened.extractfile, info))
    # tarfile takes a cut between two entries, or a header of nonsense, for the end.
    if stream.last != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError("the end is missing")
    while stream.read(_CHUNK):  # behind the last block comes the checksum of gzip
        pass


def _tar_kind(info: tarfile.TarInfo) -> str:
    if info.issparse():
        return "a sparse file"
    if info.isreg():
        return "file"
    if info.isdir():
        return "folder"
    if info.isdev():
        return "a device or pipe"
    kinds = {tarfile.SYMTYPE: "a symbolic link", tarfile.LNKTYPE: "a hard link"}
    return kinds.get(info.type, "of an unknown kind")
