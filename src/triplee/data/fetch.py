"""Fetches one archive: from the first source that gives it, resumable, checked against the catalog.

Comes in: an Archive (data/catalog.py) and a folder. Goes out: `<file>`, whole, and `<file>.json` with its source and
sha256. What has come so far lies in `<file>.part`, so that a killed download goes on where it stopped.
"""

import hashlib
import http.client
import json
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from triplee import __version__
from triplee.data.catalog import Archive
from triplee.data.unpack import MAX_BYTES, DownloadObserver, require_room
from triplee.runfolder import unwritable, write_atomically
from triplee.settings import InputError

TIMEOUT_S = 30.0
PAUSE_S = 1.0  # before another try; longer after fruitless ones
_MAX_FRUITLESS = 3  # tries in a row that bring nothing
_CHUNK = 1 << 20
_PASSING = (408, 425, 429, 500, 502, 503, 504)  # HTTP errors after which the same source may answer


class _DeadSource(Exception):
    """This source will not give the file; the text says why."""


class _Dropped(Exception):
    """This try ended early; another may go on."""


def _make_opener() -> urllib.request.OpenerDirector:
    """Knows http and https only: no redirect leads to a file or another protocol."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.UnknownHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    return opener


@dataclass(frozen=True)
class _Origin:
    """Whose bytes a .part holds. `validator` is an ETag or a date that a changed file would not have."""

    url: str
    validator: str | None
    total: int | None


class _Part:
    """The bytes that have come so far, `<file>.part`, and `<file>.part.json` with their origin."""

    def __init__(self, target: Path) -> None:
        self.path = target.with_name(f"{target.name}.part")
        self.origin_path = target.with_name(f"{target.name}.part.json")

    def origin(self) -> _Origin | None:
        try:
            return _Origin(**json.loads(self.origin_path.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def size(self) -> int:
        return self.path.stat().st_size if self.path.is_file() else 0

    def start_over(self, origin: _Origin) -> None:
        self.drop()  # first, so that old bytes are never taken for those of the new origin
        write_atomically(self.origin_path, json.dumps(asdict(origin)).encode())

    def drop(self) -> None:
        self.path.unlink(missing_ok=True)
        self.origin_path.unlink(missing_ok=True)


def fetch(archive: Archive, folder: Path, observer: DownloadObserver, by_hand: str = "") -> Path:
    """`<folder>/<archive.file>`, whole and checked, from the first source that gives it; `by_hand` ends the error."""
    target = folder / archive.file
    part = _Part(target)
    origin = part.origin()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if _is_whole(archive, target, observer):
            return target
        for url in sorted(archive.urls, key=lambda url: origin is None or url != origin.url):
            try:
                _fill(url, part, archive, observer)
                sha256, fault = check(archive, part.path, observer)
                if fault:
                    part.drop()
                    raise _DeadSource(f"{fault}; what it sent is removed")
            except _DeadSource as dead:
                observer.note(f"{url}: {dead}")
                continue
            record = make_record(archive.file, url, sha256, part.size())
            write_atomically(_record_path(target), json.dumps(record).encode())
            part.path.replace(target)
            part.drop()
            return target
    except OSError as error:
        raise unwritable(target, error) from None
    raise InputError(" ".join(f"no source gives {archive.file}: {by_hand or 'try again later'}".split()))


def _is_whole(archive: Archive, target: Path, observer: DownloadObserver) -> bool:
    """Whether an earlier run has fetched the file; the checksum kept then must still fit."""
    if not target.is_file():
        return False
    sha256, fault = check(archive, target, observer)
    if fault is None and sha256 == read_record(target).get("sha256"):
        return True
    observer.note(f"{target} is not what was fetched: fetching it again")
    return False


def _fill(url: str, part: _Part, archive: Archive, observer: DownloadObserver) -> None:
    """Try one source as long as it brings something."""
    most, fruitless = 0, 0
    while True:
        try:
            return _pull(url, part, archive, observer)
        except _Dropped as dropped:
            most, fruitless = max(most, part.size()), 0 if part.size() > most else fruitless + 1
            if fruitless == _MAX_FRUITLESS:
                raise _DeadSource(str(dropped)) from None
            time.sleep(PAUSE_S * (1 + fruitless))


def _pull(url: str, part: _Part, archive: Archive, observer: DownloadObserver) -> None:
    """One request; returns when the part is whole. It is left alone until the answer proves to be the file."""
    origin, have = part.origin(), part.size()
    checked = archive.sha256 or archive.md5
    if origin is None or origin.url != url or not (origin.validator or checked):
        have = 0
    elif have and have == origin.total:
        return
    headers = {"User-Agent": f"triplee/{__version__}", "Accept-Encoding": "identity"}
    if origin and have:
        headers |= {"Range": f"bytes={have}-"} | ({"If-Range": origin.validator} if origin.validator else {})
    with _open(url, headers) as response:
        first, total = _content_range(response)
        validator = _validator(response)
        if response.status == 416:
            if have and have == total:
                return
            part.drop()
            raise _Dropped("it does not know the rest of the file")
        if response.status == 200:
            have, total = 0, response.length
        elif response.status != 206:
            raise _DeadSource(f"HTTP {response.status} instead of the file")
        elif first != have or (origin and have and _differs(origin, validator, total)):
            part.drop()
            raise _Dropped("it sent another piece than asked for, or of another file")
        elif total is None and origin and have:
            total = origin.total
        total = archive.num_bytes if total is None else total
        chunk = _read(response)
        if _is_page(response, chunk, have):
            raise _DeadSource("it sent a web page instead of the file")
        if archive.num_bytes not in (None, total):
            raise _DeadSource(f"it has a file of {total:,} bytes instead of {archive.num_bytes:,}")
        require_room(part.path.parent, (total or 0) - have, f"the rest of {archive.file}")
        if have == 0:
            part.start_over(_Origin(url, validator, total))
        observer.start(f"downloading {archive.file}", total)
        observer.advance(have)
        with part.path.open("ab") as file:
            while chunk:
                file.write(chunk)
                file.flush()  # what is killed loses nothing
                have += len(chunk)
                if have > (total or MAX_BYTES):
                    part.drop()
                    raise _DeadSource(f"it sends more than {total or MAX_BYTES:,} bytes")
                observer.advance(len(chunk))
                chunk = _read(response)
    if have < (total or 0):
        raise _Dropped(f"the connection dropped at {have:,} of {total:,} bytes")


def _differs(origin: _Origin, validator: str | None, total: int | None) -> bool:
    """Whether an answer is of another file than the part; servers may leave out what did not change."""
    pairs = ((validator, origin.validator), (total, origin.total))
    return any(None not in pair and pair[0] != pair[1] for pair in pairs)


def _open(url: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
    try:
        return _make_opener().open(urllib.request.Request(url, headers=dict(headers)), timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code == 416 and "Range" in headers:
            return error  # type: ignore[return-value] – it has the same status and headers
        error.close()
        if 300 <= error.code < 400:
            raise _DeadSource("it redirects in a circle, or to no web address") from None
        kind = _Dropped if error.code in _PASSING else _DeadSource
        raise kind(f"HTTP {error.code} ({' '.join(str(error.reason).split())})") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        _raise_reason(error)


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read1(_CHUNK)
    except (OSError, http.client.HTTPException, ValueError) as error:
        _raise_reason(error)


def _raise_reason(error: Exception) -> NoReturn:
    """What went wrong in a few words: _Dropped where another try may help, else _DeadSource."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        raise _DeadSource(f"its certificate is not valid ({cause.verify_message})") from None
    if isinstance(cause, str | ValueError | http.client.InvalidURL):
        raise _DeadSource(f"no web address ({' '.join(str(cause).split())})") from None
    if isinstance(cause, TimeoutError):
        raise _Dropped(f"no answer for {TIMEOUT_S:g} s") from None
    if isinstance(cause, socket.gaierror):
        raise _Dropped("unknown host, or no network") from None
    if isinstance(cause, OSError) and cause.strerror:
        raise _Dropped(cause.strerror.lower()) from None
    raise _Dropped("the connection dropped") from None


def _content_range(response: http.client.HTTPResponse) -> tuple[int | None, int | None]:
    """First byte and size of the whole file, as `Content-Range: bytes 5-9/10` or `bytes */10` has them."""
    match = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(?:(\d+)|\*)", response.headers.get("Content-Range", "").strip())
    first, total = match.groups() if match else (None, None)
    return (int(first) if first else None), (int(total) if total else None)


def _validator(response: http.client.HTTPResponse) -> str | None:
    etag = response.headers.get("ETag")
    return etag if etag and not etag.startswith("W/") else response.headers.get("Last-Modified")


def _is_page(response: http.client.HTTPResponse, chunk: bytes, offset: int) -> bool:
    """Whether a page for people came, as file hosts send beyond their quota."""
    typed = response.headers.get_content_type() in ("text/html", "application/xhtml+xml")
    looks = re.match(rb"(\xef\xbb\xbf)?\s*<(!doctype html|html)", chunk[:200], re.IGNORECASE)
    return typed or (offset == 0 and looks is not None)


def check(archive: Archive, path: Path, observer: DownloadObserver) -> tuple[str, str | None]:
    """The sha256 of a file, and what the catalog has against it (None: nothing)."""
    num_bytes = path.stat().st_size
    observer.start(f"checking {archive.file}", num_bytes)
    sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    digests = (sha256, md5) if archive.md5 else (sha256,)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            for digest in digests:
                digest.update(chunk)
            observer.advance(len(chunk))
    if archive.num_bytes not in (None, num_bytes):
        return sha256.hexdigest(), f"it has {num_bytes:,} bytes instead of {archive.num_bytes:,}"
    for name, digest, published in (("sha256", sha256, archive.sha256), ("md5", md5, archive.md5)):
        if published not in (None, digest.hexdigest()):
            return sha256.hexdigest(), f"wrong checksum ({name} {digest.hexdigest()} instead of {published})"
    return sha256.hexdigest(), None


def make_record(file: str, source: str, sha256: str, num_bytes: int) -> dict[str, Any]:
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {"file": file, "source": source, "sha256": sha256, "bytes": num_bytes, "date": date}


def discard(target: Path) -> None:
    """Remove a fetched file with all that belongs to it."""
    _Part(target).drop()
    target.unlink(missing_ok=True)
    _record_path(target).unlink(missing_ok=True)


def _record_path(target: Path) -> Path:
    return target.with_name(f"{target.name}.json")


def read_record(target: Path) -> dict[str, Any]:
    """What is kept of a file that `fetch` gave: its source, sha256, bytes and date."""
    try:
        record = json.loads(_record_path(target).read_bytes())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
