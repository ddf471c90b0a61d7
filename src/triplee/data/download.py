"""Downloads a benchmark: fetch its archives, unpack them, put the set in place by one rename.

Comes in: a Benchmark (data/catalog.py), the root of the data sets, perhaps the user's own archives. Goes out: the set's
folder, with `.triplee.json` inside: where each archive came from, and its sha256. What is not whole never has the set's
name: it lies in `<root>/.downloads/<name>/` (kept for resuming) or `<root>/.unpacking-<name>` (cleared).
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import filelock

from triplee.data.camera_traps import arrange_camera_traps
from triplee.data.catalog import Archive, Benchmark
from triplee.data.fetch import check, discard, fetch, make_record, read_record
from triplee.data.folder import suffix_of
from triplee.data.locate import find_set
from triplee.data.unpack import LISTS, BadArchive, DownloadObserver, unpack
from triplee.runfolder import unwritable, write_atomically
from triplee.settings import InputError

RECORD = ".triplee.json"


def download_set(benchmark: Benchmark, root: Path, from_file: Path | None, observer: DownloadObserver) -> Path:
    """Fetch, unpack and put in place; gives the set's folder. Of two at once, one waits and finds it done.

    `from_file` is the user's: one of the benchmark's archives by its name, a folder of such, or any archive of the set.
    """
    destination = root / benchmark.folders[0]
    if os.path.lexists(destination):
        way_out = f"check it with `triplee data verify {benchmark.name} --root {root}`, or move it away"
        raise InputError(f"{destination} is already there: {way_out}")
    archives, own = _take_own(benchmark, from_file, observer)
    downloads, staging = root / ".downloads" / benchmark.name, root / f".unpacking-{benchmark.name}"
    try:
        downloads.mkdir(parents=True, exist_ok=True)
        with _alone(downloads.with_name(f"{benchmark.name}.lock"), benchmark, observer):
            if os.path.lexists(destination):
                observer.note(f"{destination} has been put there by the other process")
                return destination
            try:
                found, records = _find_in_sources(benchmark, archives, own, downloads, staging, observer)
                record = {"benchmark": benchmark.name, "archives": records}
                write_atomically(found / RECORD, (json.dumps(record, indent=2) + "\n").encode())
                os.sync()  # a power cut after the rename must not leave empty files
                destination.parent.mkdir(parents=True, exist_ok=True)
                found.rename(destination)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
            _clear(downloads, benchmark, own)
    except OSError as error:
        raise unwritable(destination, error) from None
    return destination


def _take_own(
    benchmark: Benchmark, from_file: Path | None, observer: DownloadObserver
) -> tuple[tuple[Archive, ...], dict[str, dict[str, Any]]]:
    """The archives that make up the set, and the records of those that the user has brought, checked."""
    archives = benchmark.archives
    if from_file is None:
        return archives, {}
    try:
        if from_file.is_dir():
            brought = [(a, path) for a in archives if (path := from_file / a.file).is_file()]
            if not brought:
                wanted = ", ".join(a.file for a in archives) or "an archive: name the file itself"
                raise InputError(f"{from_file} has none of the files of {benchmark.title}: it should have {wanted}")
        elif from_file.is_file():
            known = [a for a in archives if a.file == from_file.name]
            archives = archives if known else (Archive(file=from_file.name),)
            brought = [((known or archives)[0], from_file)]
        else:
            raise InputError(f"{from_file} is no file: give the archive you have with --from")
        return archives, {a.file: _check_own(a, path, observer) for a, path in brought}
    except OSError as error:
        raise InputError(f"cannot read {from_file}: {(error.strerror or str(error)).lower()}") from None


def _check_own(archive: Archive, path: Path, observer: DownloadObserver) -> dict[str, Any]:
    sha256, fault = check(archive, path, observer)
    if fault:
        rename = "give it another file name if it is another copy of the set"
        raise InputError(f"{path} is not the published {archive.file}: {fault}; get it again, or {rename}")
    return make_record(archive.file, str(path.resolve()), sha256, path.stat().st_size)


@contextmanager
def _alone(lock_path: Path, benchmark: Benchmark, observer: DownloadObserver) -> Iterator[None]:
    lock = filelock.FileLock(lock_path)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        observer.note(f"another process is downloading {benchmark.title}: waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _find_in_sources(
    benchmark: Benchmark,
    archives: tuple[Archive, ...],
    own: Mapping[str, dict[str, Any]],
    downloads: Path,
    staging: Path,
    observer: DownloadObserver,
) -> tuple[Path, list[dict[str, Any]]]:
    """The set as it will lie under the root, and a record of each archive. Of a source with another set, the next."""
    while True:
        records = _fetch_and_unpack(benchmark, archives, own, downloads, staging / "content", observer)
        try:
            return _arrange_set(benchmark, staging, observer), records
        except InputError as wrong:
            # What has the published checksum is not to blame, and is kept.
            doubtful = {a.file for a in archives if a.file not in own and not (a.sha256 or a.md5)}
            source_of = {record["file"]: record["source"] for record in records}
            for file in doubtful:
                discard(downloads / file)
            left = tuple(_without(a, source_of[a.file]) if a.file in doubtful else a for a in archives)
            if not doubtful or not all(a.urls for a in left if a.file in doubtful):
                with suppress(OSError):
                    downloads.rmdir()
                raise
            observer.note(f"{', '.join(source_of[file] for file in sorted(doubtful))}: {wrong}")
            archives = left


def _without(archive: Archive, url: str) -> Archive:
    return archive.model_copy(update={"urls": tuple(other for other in archive.urls if other != url)})


def _fetch_and_unpack(
    benchmark: Benchmark,
    archives: tuple[Archive, ...],
    own: Mapping[str, dict[str, Any]],
    downloads: Path,
    content: Path,
    observer: DownloadObserver,
) -> list[dict[str, Any]]:
    """Fill `content`; gives a record of each archive. A source whose archive is refused is left for the next."""
    what = "FOLDER" if len(benchmark.archives) > 1 else "FILE"
    again = f"triplee data download {benchmark.name} --root {downloads.parent.parent} --from {what}"
    by_hand = f"{benchmark.manual.strip().rstrip('.')}; then: {again}"
    if not archives:
        raise InputError(" ".join(f"{benchmark.title} has no source to download from: {by_hand}".split()))
    pending = list(archives)
    while True:
        fetched = {a.file: fetch(a, downloads, observer, by_hand) for a in pending if a.file not in own}
        records = [own.get(a.file) or read_record(fetched[a.file]) for a in pending]
        shutil.rmtree(content.parent, ignore_errors=True)
        content.mkdir(parents=True)
        for index, (archive, source) in enumerate(zip(pending, (r["source"] for r in records), strict=True)):
            try:
                _place(archive, fetched.get(archive.file) or Path(source), content / archive.into, observer)
            except BadArchive as bad:
                if archive.file in own:
                    raise
                observer.note(f"{source}: {bad}")
                discard(fetched[archive.file])
                pending[index] = _without(archive, source)
                break
        else:
            return records


def _place(archive: Archive, path: Path, folder: Path, observer: DownloadObserver) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if suffix_of(archive.file) in LISTS:  # a list of the published split is no archive
        shutil.copyfile(path, folder / archive.file)
    else:
        unpack(path, folder, observer)


def _arrange_set(benchmark: Benchmark, staging: Path, observer: DownloadObserver) -> Path:
    """The unpacked tree as it will lie under the root; InputError when the benchmark is not found in it."""
    if benchmark.arrange and find_set(benchmark, staging / "content") is None:
        observer.note(arrange_camera_traps(staging / "content", set(benchmark.classes)))
    top, way = staging / "content", ""
    while len(names := sorted(path.name for path in top.iterdir())) == 1 and (top / names[0]).is_dir():
        top, way = top / names[0], f"{way}{names[0]}/"
    found = staging / benchmark.folders[0]
    found.parent.mkdir(parents=True, exist_ok=True)
    top.rename(found)
    if find_set(benchmark, staging) is None:
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        have = ", ".join(f"{way}{name}" for name in names[:8]) + more or "nothing"
        expected = ", ".join(benchmark.domains)
        other = f"get another copy, see `triplee data list {benchmark.name}`"
        raise InputError(
            f"what was unpacked is not {benchmark.title}: expected folders {expected}; found {have}; {other}"
        )
    return found


def _clear(downloads: Path, benchmark: Benchmark, own: Mapping[str, dict[str, Any]]) -> None:
    """Remove what was downloaded, never a file that the user brought."""
    kept = {Path(record["source"]) for record in own.values()}
    for path in (downloads / archive.file for archive in benchmark.archives):
        if path.resolve() not in kept:
            discard(path)
    with suppress(OSError):
        downloads.rmdir()
