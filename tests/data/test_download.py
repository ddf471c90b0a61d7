"""Downloads from a real server with real faults, by real processes that are killed: whole and checked, or one line."""

import hashlib
import io
import json
import os
import resource
import signal
import socket
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forked import in_process
from http_server import FileServer, Served, running_server
from watching import Watcher

from triplee.data import fetch as fetching
from triplee.data.catalog import Archive, Benchmark, Variant
from triplee.data.download import download_set
from triplee.data.fetch import fetch
from triplee.settings import InputError

CONTENT = bytes(range(256)) * 4000  # 1,024,000 bytes
OTHER = bytes(reversed(range(256))) * 4000
SIZE = len(CONTENT)
PAGE = b"<!DOCTYPE html><html><title>Quota exceeded</title></html>"


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "PAUSE_S", 0.01)
    monkeypatch.setattr(fetching, "TIMEOUT_S", 1.0)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def server() -> Iterator[FileServer]:
    with running_server() as server:
        yield server


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def assert_fetched(archive: Archive, folder: Path, content: bytes = CONTENT) -> Watcher:
    watcher = Watcher()
    path = fetch(archive, folder, watcher)
    assert path == folder / archive.file and path.read_bytes() == content
    record = json.loads((folder / f"{archive.file}.json").read_text())
    assert record["sha256"] == sha256(content) and record["bytes"] == len(content) and record["source"] in archive.urls
    assert {file.name for file in folder.iterdir()} == {archive.file, f"{archive.file}.json"}
    return watcher


def dead_note(archive: Archive, folder: Path) -> str:
    """What is said of the only source of an archive, which is dead."""
    watcher = Watcher()
    with pytest.raises(InputError) as refused:
        fetch(archive, folder, watcher, "get it from the shelf; then: put it here")
    assert str(refused.value) == f"no source gives {archive.file}: get it from the shelf; then: put it here"
    assert not (folder / archive.file).exists()
    (note,) = watcher.notes
    assert note.startswith(f"{archive.urls[0]}: ")
    return note.removeprefix(f"{archive.urls[0]}: ")


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.005)


# One archive


def test_a_plain_download_and_one_more_that_finds_it(server: FileServer, tmp_path: Path) -> None:
    served = Served(CONTENT)
    archive = Archive(file="a.zip", urls=(server.serve("/a.zip", served),), num_bytes=SIZE, sha256=sha256(CONTENT))
    watcher = assert_fetched(archive, tmp_path / "new")
    assert watcher.bars == [("downloading a.zip", SIZE, SIZE), ("checking a.zip", SIZE, SIZE)] and watcher.notes == []
    assert served.requests[0]["User-Agent"].startswith("triplee/") and "Range" not in served.requests[0]
    assert_fetched(archive, tmp_path / "new")
    assert len(served.requests) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"drop_after": 300_000},
        {"drop_after": 300_000, "etag": None, "last_modified": "Mon, 05 Jan 2026 10:00:00 GMT"},
        {"drop_after": 300_000, "chunked": True},
        {"length": 2 * SIZE, "drop_after": 400_000},
    ],
    ids=["etag", "date", "chunked", "wrong length at first"],
)
def test_a_dropped_connection_goes_on_where_it_stopped(
    changes: dict[str, Any], server: FileServer, tmp_path: Path
) -> None:
    def heal(served: Served, number: int) -> None:
        if number == 2:
            served.length, served.chunked = None, False
        if number == 4:
            served.drop_after = None

    served = Served(CONTENT, on_request=heal, **changes)
    archive = Archive(file="a.zip", urls=(server.serve("/a.zip", served),))
    assert_fetched(archive, tmp_path)
    if "length" not in changes:
        assert served.requests[1]["Range"] == "bytes=300000-" and served.num_sent == SIZE
        assert served.requests[1]["If-Range"] == (changes.get("last_modified") or '"first"')


def test_drops_without_end_are_survived_while_bytes_come(server: FileServer, tmp_path: Path) -> None:
    served = Served(CONTENT, drop_after=60_000)
    watcher = assert_fetched(Archive(file="a.zip", urls=(server.serve("/a.zip", served),)), tmp_path)
    assert len(served.requests) == 18 and served.num_sent == SIZE and watcher.notes == []


def test_a_source_that_stops_bringing_anything_is_left_for_the_next(server: FileServer, tmp_path: Path) -> None:
    def dry_up(served: Served, number: int) -> None:
        served.drop_after = 0 if number > 1 else served.drop_after

    stuck, other = Served(CONTENT, drop_after=300_000, on_request=dry_up), Served(CONTENT)
    urls = (server.serve("/stuck", stuck), server.serve("/other", other))
    watcher = assert_fetched(Archive(file="a.zip", urls=urls), tmp_path)
    assert watcher.notes == [f"{urls[0]}: the connection dropped at 300,000 of 1,024,000 bytes"]
    assert len(stuck.requests) == 4 and "Range" not in other.requests[0]


def test_a_server_that_ignores_ranges_starts_over(server: FileServer, tmp_path: Path) -> None:
    def heal(served: Served, number: int) -> None:
        served.drop_after = None if number == 2 else 300_000

    served = Served(CONTENT, ranges=False, on_request=heal)
    assert_fetched(Archive(file="a.zip", urls=(server.serve("/a.zip", served),)), tmp_path)
    assert "Range" in served.requests[1] and served.num_sent == SIZE + 300_000


@pytest.mark.parametrize("if_range", [True, False], ids=["which knows If-Range", "which does not"])
def test_a_file_that_changes_between_two_tries(if_range: bool, server: FileServer, tmp_path: Path) -> None:
    def change(served: Served, number: int) -> None:
        if number == 2:
            served.content, served.etag, served.drop_after = OTHER, '"second"', None

    served = Served(CONTENT, drop_after=300_000, if_range=if_range, on_request=change)
    assert_fetched(Archive(file="a.zip", urls=(server.serve("/a.zip", served),)), tmp_path, OTHER)


def test_a_file_without_etag_or_date_is_resumed_only_with_a_checksum(server: FileServer, tmp_path: Path) -> None:
    def change(served: Served, number: int) -> None:
        served.drop_after = None if number == 2 else 300_000

    for published, asked in ((None, None), (sha256(CONTENT), "bytes=300000-")):
        served = Served(CONTENT, etag=None, on_request=change)
        archive = Archive(file="a.zip", urls=(server.serve("/a.zip", served),), sha256=published)
        assert_fetched(archive, tmp_path / str(asked))
        assert served.requests[1].get("Range") == asked


@pytest.mark.parametrize("wrong", [{"range_offset": 7}, {"range_offset": -7}, {"range_total": 2 * SIZE}])
def test_another_range_than_asked_for_is_not_taken(wrong: dict[str, Any], server: FileServer, tmp_path: Path) -> None:
    def heal(served: Served, number: int) -> None:
        served.drop_after = None if number > 1 else 300_000

    served = Served(CONTENT, on_request=heal, **wrong)
    assert_fetched(Archive(file="a.zip", urls=(server.serve("/a.zip", served),)), tmp_path)
    assert "Range" in served.requests[1] and "Range" not in served.requests[2]


def test_a_part_that_is_whole_or_too_long(server: FileServer, tmp_path: Path) -> None:
    served = Served(CONTENT)
    url = server.serve("/a.zip", served)
    archive = Archive(file="a.zip", urls=(url,))
    for total, content, num_requests in ((SIZE, CONTENT, 0), (None, CONTENT, 1), (None, CONTENT + b"x", 2)):
        folder = tmp_path / f"{total} {len(content)}"
        folder.mkdir()
        (folder / "a.zip.part").write_bytes(content)
        (folder / "a.zip.part.json").write_text(json.dumps({"url": url, "validator": '"first"', "total": total}))
        served.requests.clear()
        assert_fetched(archive, folder)
        assert len(served.requests) == num_requests  # a whole part of unknown total is told by a 416


def test_a_damaged_part_json_starts_over(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "a.zip.part").write_bytes(b"old")
    (tmp_path / "a.zip.part.json").write_text("{")
    assert_fetched(Archive(file="a.zip", urls=(server.serve("/a.zip", Served(CONTENT)),)), tmp_path)


@pytest.mark.parametrize(
    ("served", "said"),
    [
        (Served(status=404), "HTTP 404 (Not Found)"),
        (Served(status=403), "HTTP 403 (Forbidden)"),
        (Served(status=503), "HTTP 503 (Service Unavailable)"),
        (Served(status=302, location="/a.zip"), "it redirects in a circle, or to no web address"),
        (Served(status=302, location="file:///etc/passwd"), "it redirects in a circle, or to no web address"),
        (Served(status=302, location="ftp://127.0.0.1/x"), "no web address (unknown url type: ftp)"),
        (Served(status=204), "HTTP 204 instead of the file"),
        (Served(PAGE, content_type="text/html; charset=utf-8"), "it sent a web page instead of the file"),
        (Served(b"\n " + PAGE), "it sent a web page instead of the file"),
        (Served(CONTENT + b"x"), "it has a file of 1,024,001 bytes instead of 1,024,000"),
        (Served(CONTENT[:-1]), "it has a file of 1,023,999 bytes instead of 1,024,000"),
        (Served(CONTENT + b"x", chunked=True), "it sends more than 1,024,000 bytes"),
        (
            Served(CONTENT[:-1], chunked=True),
            "it has 1,023,999 bytes instead of 1,024,000; what it sent is removed",
        ),
        (Served(CONTENT, drop_after=0), "the connection dropped at 0 of 1,024,000 bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_dead_source_says_why(served: Served, said: str, server: FileServer, tmp_path: Path) -> None:
    archive = Archive(file="a.zip", urls=(server.serve("/a.zip", served),), num_bytes=SIZE)
    assert dead_note(archive, tmp_path) == said
    assert len(served.requests) == 3 if said.startswith(("HTTP 503", "the connection")) else served.requests


@pytest.mark.parametrize(
    ("checksum", "said"),
    [({"sha256": sha256(CONTENT)}, "sha256"), ({"md5": hashlib.md5(CONTENT).hexdigest()}, "md5")],
)
def test_wrong_bytes_are_removed_and_the_next_source_tried(
    checksum: dict[str, str], said: str, server: FileServer, tmp_path: Path
) -> None:
    urls = (server.serve("/wrong", Served(OTHER)), server.serve("/right", Served(CONTENT)))
    assert f"wrong checksum ({said} " in dead_note(Archive(file="a.zip", urls=urls[:1], **checksum), tmp_path)
    assert list(tmp_path.iterdir()) == []
    watcher = assert_fetched(Archive(file="a.zip", urls=urls, **checksum), tmp_path)
    (note,) = watcher.notes
    assert f"{urls[0]}: wrong checksum" in note and "removed" in note


def test_addresses_where_nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "TIMEOUT_S", 0.2)

    def note_of(url: str) -> str:
        return dead_note(Archive(file="a.zip", urls=(url,)), tmp_path)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert note_of(f"http://127.0.0.1:{port}/") == "no answer for 0.2 s"
        assert note_of(f"https://127.0.0.1:{port}/") == "no answer for 0.2 s"
    assert note_of(f"http://127.0.0.1:{port}/") == "connection refused"
    assert note_of("http://no-such-host.invalid/") == "unknown host, or no network"
    assert note_of("file:///etc/passwd") == "no web address (unknown url type: file)"
    assert note_of("no address") == "no web address (unknown url type: 'no address')"
    assert note_of("http://127.0.0.1:port/").startswith("no web address")


def test_a_redirect_is_followed_and_resumed(server: FileServer, tmp_path: Path) -> None:
    def heal(served: Served, number: int) -> None:
        served.drop_after = None if number == 2 else 300_000

    served = Served(CONTENT, on_request=heal)
    url = server.serve("/moved", Served(status=307, location=server.serve("/a.zip", served)))
    assert_fetched(Archive(file="a.zip", urls=(url,)), tmp_path)
    assert served.requests[1]["Range"] == "bytes=300000-" and served.num_sent == SIZE


def test_a_page_does_not_cost_what_has_come_so_far(server: FileServer, tmp_path: Path) -> None:
    def over_quota(served: Served, number: int) -> None:
        if number == 2:
            served.content, served.content_type, served.etag = PAGE, "text/html", None

    served = Served(CONTENT, drop_after=300_000, on_request=over_quota)
    archive = Archive(file="a.zip", urls=(server.serve("/a.zip", served),))
    assert dead_note(archive, tmp_path) == "it sent a web page instead of the file"
    server.serve("/a.zip", again := Served(CONTENT))
    assert_fetched(archive, tmp_path)
    assert again.num_sent == SIZE - 300_000


def test_the_source_that_has_begun_goes_on(server: FileServer, tmp_path: Path) -> None:
    first, second = Served(status=404), Served(CONTENT, drop_after=300_000)
    archive = Archive(file="a.zip", urls=(server.serve("/first", first), server.serve("/second", second)))

    def interrupt(served: Served, number: int) -> None:
        served.status = 404

    second.on_request = lambda served, number: interrupt(served, number) if number == 2 else None
    with pytest.raises(InputError):
        fetch(archive, tmp_path, Watcher())
    first.status, first.content, second.status, second.drop_after = 200, CONTENT, 200, None
    first.requests.clear()
    assert_fetched(archive, tmp_path)
    assert first.requests == [] and second.num_sent == SIZE


def test_ctrl_c_keeps_what_has_come(server: FileServer, tmp_path: Path) -> None:
    class Impatient(Watcher):
        def advance(self, num: int) -> None:
            super().advance(num)
            if self.bars[-1][2] > 200_000:
                raise KeyboardInterrupt

    served = Served(CONTENT)
    archive = Archive(file="a.zip", urls=(server.serve("/a.zip", served),))
    with pytest.raises(KeyboardInterrupt):
        fetch(archive, tmp_path, Impatient())
    come = (tmp_path / "a.zip.part").stat().st_size
    assert_fetched(archive, tmp_path)
    assert come > 200_000 and served.requests[1]["Range"] == f"bytes={come}-"


def test_a_killed_process_is_resumed(server: FileServer, tmp_path: Path) -> None:
    content = CONTENT * 4
    served = Served(content, pause_s=0.005)
    archive = Archive(file="a.zip", urls=(server.serve("/a.zip", served),))
    part = tmp_path / "a.zip.part"
    process, _ = in_process(lambda: fetch(archive, tmp_path, Watcher()))
    wait_until(lambda: part.exists() and part.stat().st_size > len(content) // 3)
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join(10)
    come = part.stat().st_size
    assert process.exitcode == -signal.SIGKILL and come < len(content)
    served.pause_s = 0
    assert_fetched(archive, tmp_path, content)
    assert served.requests[1]["Range"] == f"bytes={come}-"
    assert served.num_sent < 1.8 * len(content)


def test_a_full_disk_is_one_line_and_keeps_what_has_come(server: FileServer, tmp_path: Path) -> None:
    served = Served(CONTENT)
    archive = Archive(file="a.zip", urls=(server.serve("/a.zip", served),))

    def with_little_room() -> Path:
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))  # writing more is an OSError
        return fetch(archive, tmp_path, Watcher())

    message = in_process(with_little_room)[1]()
    assert message == f"cannot write {tmp_path}/a.zip: file too large; what was saved before is untouched"
    come = (tmp_path / "a.zip.part").stat().st_size
    assert 0 < come <= 400_000
    assert_fetched(archive, tmp_path)
    assert served.requests[1]["Range"] == f"bytes={come}-"


def test_a_file_that_cannot_fit_on_the_disk(server: FileServer, tmp_path: Path) -> None:
    archive = Archive(file="a.zip", urls=(server.serve("/a.zip", Served(CONTENT, length=10**15)),))
    with pytest.raises(InputError, match=r"the rest of a.zip needs 1,000,000.0 GB, .* GB free: make room"):
        fetch(archive, tmp_path, Watcher())
    assert list(tmp_path.iterdir()) == []


def test_a_fetched_file_that_was_changed_is_fetched_again(server: FileServer, tmp_path: Path) -> None:
    archive = Archive(file="a.zip", urls=(server.serve("/a.zip", Served(CONTENT)),))
    assert_fetched(archive, tmp_path)
    (tmp_path / "a.zip").write_bytes(OTHER)
    assert "is not what was fetched" in assert_fetched(archive, tmp_path).notes[0]


# A whole benchmark


IMAGES = {f"{domain}/{name}/{k}.png": os.urandom(2000) for domain in ("red", "blue") for name in "xy" for k in range(4)}


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def make_toy(*archives: Archive) -> Benchmark:
    return Benchmark(
        name="toy",
        title="Toy",
        folders=("Toy", "Toy/kfold"),
        domains={"red": (), "blue": ("sky",)},
        classes={"x": (), "y": ()},
        variants=(Variant(name="16 images", note="", counts={"red": 8, "blue": 8}),),
        archives=archives,
        manual="Get toy.zip\nfrom the shelf.",
        recipe="",
        homepage="",
        citation="",
        licence="",
    )


def files_in(folder: Path) -> dict[str, bytes]:
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    files.pop(".triplee.json", None)
    return files


def assert_nothing_left(root: Path, *beside: str) -> None:
    assert {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()} <= {
        ".downloads/toy.lock",
        *beside,
    }
    assert not (root / ".unpacking-toy").exists() and not (root / ".downloads/toy").exists()


def refusal(benchmark: Benchmark, root: Path, from_file: Path | None = None, watcher: Watcher | None = None) -> str:
    with pytest.raises(InputError) as refused:
        download_set(benchmark, root, from_file, watcher or Watcher())
    assert not (root / "Toy").exists() and not (root / ".unpacking-toy").exists()
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("top", ["", "kfold/", "some/where/"])
def test_a_set_is_put_in_place_with_its_record(top: str, server: FileServer, tmp_path: Path) -> None:
    content = zipped({f"{top}{name}": content for name, content in IMAGES.items()} | {"setup.py": b"import os"})
    url = server.serve("/toy.zip", Served(content))
    watcher = Watcher()
    folder = download_set(make_toy(Archive(file="toy.zip", urls=(url,))), tmp_path / "root", None, watcher)
    assert folder == tmp_path / "root/Toy" and files_in(folder) == IMAGES
    record = json.loads((folder / ".triplee.json").read_text())
    (kept,) = record["archives"]
    assert record["benchmark"] == "toy" and kept["file"] == "toy.zip" and kept["source"] == url
    assert kept["sha256"] == sha256(content) and kept["bytes"] == len(content) and kept["date"].startswith("20")
    assert [what for what, _, _ in watcher.bars] == ["downloading toy.zip", "checking toy.zip", "unpacking toy.zip"]
    assert all(total == done for _, total, done in watcher.bars)
    assert not (tmp_path / "root/.downloads/toy").exists() and not (tmp_path / "root/.unpacking-toy").exists()


def test_lists_beside_the_domains_are_kept(server: FileServer, tmp_path: Path) -> None:
    files = {f"kfold/{name}": content for name, content in IMAGES.items()} | {"red_train.txt": b"red/x/0.png 0\n"}
    url = server.serve("/toy.zip", Served(zipped(files)))
    assert files_in(download_set(make_toy(Archive(file="toy.zip", urls=(url,))), tmp_path, None, Watcher())) == files


def test_a_set_of_several_archives_and_a_list(server: FileServer, tmp_path: Path) -> None:
    red, blue = ({n: c for n, c in IMAGES.items() if n.startswith(domain)} for domain in ("red", "blue"))
    inside = {name.removeprefix("blue/"): content for name, content in blue.items()}
    archives = (
        Archive(file="red.zip", urls=(server.serve("/red.zip", Served(zipped(red))),)),
        Archive(file="blue.zip", urls=(server.serve("/blue.zip", Served(zipped(inside))),), into="blue"),
        Archive(file="red_test.txt", urls=(server.serve("/red_test.txt", Served(b"red/x/0.png 0\n")),), into="splits"),
    )
    folder = download_set(make_toy(*archives), tmp_path, None, Watcher())
    assert files_in(folder) == IMAGES | {"splits/red_test.txt": b"red/x/0.png 0\n"}
    assert len(json.loads((folder / ".triplee.json").read_text())["archives"]) == 3
    assert not (tmp_path / ".downloads/toy").exists()


def test_a_set_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "Toy").mkdir()
    with pytest.raises(InputError, match=r"Toy is already there: check it with .* --root .*, or move it away"):
        download_set(make_toy(), tmp_path, None, Watcher())
    assert list(tmp_path.iterdir()) == [tmp_path / "Toy"]


def test_dead_sources_end_with_the_way_by_hand(server: FileServer, tmp_path: Path) -> None:
    urls = (server.serve("/gone", Served(status=404)), server.serve("/page", Served(PAGE, content_type="text/html")))
    watcher = Watcher()
    message = refusal(make_toy(Archive(file="toy.zip", urls=urls)), tmp_path, None, watcher)
    way = f"Get toy.zip from the shelf; then: triplee data download toy --root {tmp_path} --from FILE"
    assert message == f"no source gives toy.zip: {way}" and len(watcher.notes) == 2
    assert refusal(make_toy(), tmp_path) == f"Toy has no source to download from: {way}"


@pytest.mark.parametrize(
    "bad",
    [zipped({"../red/x/0.png": b"1"}), zipped(IMAGES)[:5000], b"no archive"],
    ids=["hostile", "truncated", "none"],
)
def test_a_source_of_a_bad_archive_is_left_for_the_next(bad: bytes, server: FileServer, tmp_path: Path) -> None:
    urls = (server.serve("/bad", Served(bad)), server.serve("/good", Served(zipped(IMAGES))))
    watcher = Watcher()
    folder = download_set(make_toy(Archive(file="toy.zip", urls=urls)), tmp_path / "root", None, watcher)
    assert files_in(folder) == IMAGES
    assert len(watcher.notes) == 1 and watcher.notes[0].startswith(f"{urls[0]}: ")
    message = refusal(make_toy(Archive(file="toy.zip", urls=urls[:1])), tmp_path / "other")
    assert message.startswith("no source gives toy.zip")
    assert [path.name for path in tmp_path.iterdir()] in (["root", "other"], ["other", "root"])
    assert not any((tmp_path / "other/.downloads/toy").iterdir())


def test_another_set_under_the_right_name(server: FileServer, tmp_path: Path) -> None:
    others = {name.replace("blue", "green"): content for name, content in IMAGES.items()}
    url = server.serve("/toy.zip", Served(zipped({f"Other/{name}": content for name, content in others.items()})))
    message = refusal(make_toy(Archive(file="toy.zip", urls=(url,))), tmp_path)
    said = "expected folders red, blue; found Other/green, Other/red"
    assert message.startswith(f"what was unpacked is not Toy: {said}; get another copy")
    assert_nothing_left(tmp_path)


def test_a_source_of_another_set_is_left_for_the_next_and_what_is_checked_is_kept(
    server: FileServer, tmp_path: Path
) -> None:
    wrong = server.serve("/wrong", Served(zipped({"green/x/1.png": b"1"})))
    right, content = server.serve("/right", Served(zipped(IMAGES))), zipped({"more/list.txt": b"1"})
    checked = Archive(
        file="list.zip", urls=(server.serve("/list", Served(content)),), sha256=hashlib.sha256(content).hexdigest()
    )
    watcher = Watcher()
    folder = download_set(
        make_toy(Archive(file="toy.zip", urls=(wrong, right)), checked), tmp_path / "a", None, watcher
    )
    assert files_in(folder) == {**IMAGES, "more/list.txt": b"1"}
    assert len(watcher.notes) == 1 and watcher.notes[0].startswith(f"{wrong}: what was unpacked is not Toy")
    refusal(make_toy(Archive(file="toy.zip", urls=(wrong,)), checked), tmp_path / "b")
    kept = [path.name for path in (tmp_path / "b/.downloads/toy").iterdir()]
    assert "list.zip" in kept and not any(name.startswith("toy") for name in kept)


def test_a_root_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    message = refusal(make_toy(), tmp_path / "file")
    assert message.startswith(f"cannot write {tmp_path}/file/Toy: ")

    def as_nobody() -> str:
        if os.getuid() == 0:
            os.setuid(65534)
        else:
            tmp_path.chmod(0o500)
        return str(download_set(make_toy(), tmp_path / "root", None, Watcher()))

    said = "permission denied; what was saved before is untouched"
    assert in_process(as_nobody)[1]() == f"cannot write {tmp_path / 'root' / 'Toy'}: {said}"


def test_two_processes_at_once_download_once(server: FileServer, tmp_path: Path) -> None:
    served = Served(zipped(IMAGES), pause_s=0.1)
    benchmark = make_toy(Archive(file="toy.zip", urls=(server.serve("/toy.zip", served),)))

    def download() -> tuple[Path, list[str]]:
        watcher = Watcher()
        return download_set(benchmark, tmp_path, None, watcher), watcher.notes

    _, first = in_process(download)
    wait_until(lambda: len(served.requests) == 1)
    _, second = in_process(download)
    assert first() == (tmp_path / "Toy", [])
    folder, notes = second()
    assert folder == tmp_path / "Toy" and "waiting" in notes[0] and "by the other process" in notes[1]
    assert len(served.requests) == 1 and files_in(folder) == IMAGES


def test_a_process_killed_while_unpacking_leaves_no_set(server: FileServer, tmp_path: Path) -> None:
    class Killed(Watcher):
        def advance(self, num: int) -> None:
            super().advance(num)
            if self.bars[-1][0].startswith("unpacking") and self.bars[-1][2] > 10_000:
                os.kill(os.getpid(), signal.SIGKILL)

    served = Served(zipped(IMAGES))
    benchmark = make_toy(Archive(file="toy.zip", urls=(server.serve("/toy.zip", served),)))
    process, _ = in_process(lambda: download_set(benchmark, tmp_path, None, Killed()))
    process.join(10)
    assert process.exitcode == -signal.SIGKILL
    assert (tmp_path / ".unpacking-toy").exists() and not (tmp_path / "Toy").exists()
    assert files_in(download_set(benchmark, tmp_path, None, Watcher())) == IMAGES
    assert len(served.requests) == 1 and {p.name for p in tmp_path.iterdir()} == {"Toy", ".downloads"}


def test_a_full_disk_while_unpacking_keeps_the_archive(server: FileServer, tmp_path: Path) -> None:
    big = IMAGES | {"red/x/big.png": os.urandom(200_000)}
    served = Served(zipped(big))
    benchmark = make_toy(Archive(file="toy.zip", urls=(server.serve("/toy.zip", served),)))

    class FillsUp(Watcher):
        def start(self, what: str, total: int | None) -> None:
            super().start(what, total)
            if what.startswith("unpacking"):
                resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    message = in_process(lambda: download_set(benchmark, tmp_path, None, FillsUp()))[1]()
    assert "big.png: file too large; what was saved before is untouched" in message
    assert not (tmp_path / "Toy").exists() and not (tmp_path / ".unpacking-toy").exists()
    assert files_in(download_set(benchmark, tmp_path, None, Watcher())) == big
    assert len(served.requests) == 1


# Files that the user brings


def test_a_file_of_the_user_goes_the_same_way_and_is_kept(tmp_path: Path) -> None:
    own = tmp_path / "my copy.zip"
    own.write_bytes(zipped(IMAGES))
    folder = download_set(make_toy(Archive(file="toy.zip", sha256=sha256(b""))), tmp_path / "root", own, Watcher())
    assert files_in(folder) == IMAGES and own.read_bytes() == zipped(IMAGES)
    (kept,) = json.loads((folder / ".triplee.json").read_text())["archives"]
    assert kept["source"] == str(own) and kept["sha256"] == sha256(own.read_bytes())


def test_a_file_of_the_published_name_must_have_the_published_checksum(tmp_path: Path) -> None:
    own = tmp_path / "toy.zip"
    own.write_bytes(zipped(IMAGES))
    message = refusal(make_toy(Archive(file="toy.zip", sha256=sha256(b"other"))), tmp_path / "root", own)
    assert message.startswith(f"{own} is not the published toy.zip: wrong checksum (sha256 {sha256(own.read_bytes())}")
    assert not (tmp_path / "root").exists() and own.exists()
    published = make_toy(Archive(file="toy.zip", sha256=sha256(own.read_bytes())))
    assert files_in(download_set(published, tmp_path / "root", own, Watcher())) == IMAGES


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (zipped(IMAGES)[:5000], "truncated or damaged"),
        (zipped({"../x.png": b"1"}), "'../x.png' leads outside its folder"),
        (zipped({"red/x/0.png": b"1"}), "expected folders red, blue; found red/x/0.png"),
        (b"", "is no zip, tar or tar.gz archive"),
    ],
)
def test_a_bad_file_of_the_user_is_one_line_and_kept(content: bytes, said: str, tmp_path: Path) -> None:
    own = tmp_path / "toy.zip"
    own.write_bytes(content)
    assert said in refusal(make_toy(Archive(file="toy.zip")), tmp_path / "root", own)
    assert_nothing_left(tmp_path / "root") if "expected" in said else None
    assert own.read_bytes() == content and [path.name for path in tmp_path.iterdir() if path != own] == ["root"]


def test_a_file_of_the_user_in_our_own_folder_is_kept(tmp_path: Path) -> None:
    own = tmp_path / ".downloads/toy/toy.zip"
    own.parent.mkdir(parents=True)
    own.write_bytes(zipped(IMAGES))
    download_set(make_toy(Archive(file="toy.zip")), tmp_path, own, Watcher())
    assert own.exists()


@pytest.mark.parametrize("brought", ["red.zip", ""], ids=["one file", "the folder"])
def test_what_the_user_lacks_is_downloaded(brought: str, server: FileServer, tmp_path: Path) -> None:
    red, blue = ({n: c for n, c in IMAGES.items() if n.startswith(domain)} for domain in ("red", "blue"))
    (tmp_path / "own").mkdir()
    (tmp_path / "own/red.zip").write_bytes(zipped(red))
    url = server.serve("/blue.zip", Served(zipped(blue)))
    benchmark = make_toy(Archive(file="red.zip"), Archive(file="blue.zip", urls=(url,)))
    assert files_in(download_set(benchmark, tmp_path, tmp_path / "own" / brought, Watcher())) == IMAGES


def test_files_that_are_not_there(tmp_path: Path) -> None:
    assert "missing.zip is no file: give the archive" in refusal(
        make_toy(), tmp_path / "root", tmp_path / "missing.zip"
    )
    message = refusal(make_toy(Archive(file="toy.zip")), tmp_path / "root", tmp_path)
    assert message == f"{tmp_path} has none of the files of Toy: it should have toy.zip"
    assert not (tmp_path / "root").exists()
