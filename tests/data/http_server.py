"""A real HTTP server on a thread, with the faults that real ones have: each path has a Served that says which."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Served:
    """One file of the server. What a test changes on it counts from the next request on."""

    content: bytes = b""
    etag: str | None = '"first"'
    last_modified: str | None = None
    ranges: bool = True  # whether it understands Range
    if_range: bool = True  # whether it understands If-Range
    status: int = 200
    location: str | None = None
    content_type: str = "application/octet-stream"
    length: int | None = None  # what Content-Length says, if not the truth
    chunked: bool = False
    drop_after: int | None = None  # bytes of the body after which the connection ends
    range_offset: int = 0  # by how much a 206 misses the range that was asked for
    range_total: int | None = None  # what a 206 gives as the size of the file, if not the truth
    pause_s: float = 0.0  # after each 16 KiB
    on_request: Callable[["Served", int], None] = lambda served, number: None
    requests: list[dict[str, str]] = field(default_factory=list)
    num_sent: int = 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        served: Served = self.server.files[self.path]  # type: ignore[attr-defined]
        served.requests.append(dict(self.headers))
        served.on_request(served, len(served.requests))
        self.close_connection = True
        status, start = served.status, 0
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        same = not served.if_range or self.headers.get("If-Range") in (None, served.etag, served.last_modified)
        if status == 200 and asked and served.ranges and same:
            start = int(asked[1]) + served.range_offset
            status = 206 if start < len(served.content) else 416
        self.send_response(status)
        body = served.content[start:] if status in (200, 206) else b"an error of the server\n"
        total = len(served.content) if served.range_total is None else served.range_total
        headers = {
            "Content-Type": served.content_type,
            "ETag": served.etag,
            "Last-Modified": served.last_modified,
            "Location": served.location,
            "Content-Range": {206: f"bytes {start}-{total - 1}/{total}", 416: f"bytes */{total}"}.get(status),
            "Transfer-Encoding": "chunked" if served.chunked else None,
            "Content-Length": None if served.chunked else str(len(body) if served.length is None else served.length),
            "Connection": "close",
        }
        for name, value in headers.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        self._send(served, body, status in (200, 206))

    def _send(self, served: Served, body: bytes, is_content: bool) -> None:
        end = len(body) if served.drop_after is None else served.drop_after
        try:
            for position in range(0, min(end, len(body)), 1 << 14):
                piece = body[position : min(position + (1 << 14), end)]
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if served.chunked else piece)
                served.num_sent += len(piece) if is_content else 0
                time.sleep(served.pause_s)
            if served.chunked and served.drop_after is None:
                self.wfile.write(b"0\r\n\r\n")
        except OSError:
            pass  # the client is gone

    def log_message(self, format: str, *args: object) -> None:
        pass


class FileServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, Served] = {}

    def serve(self, path: str, served: Served) -> str:
        """Put a file on the server; gives its address."""
        self.files[path] = served
        return f"http://127.0.0.1:{self.server_port}{path}"


@contextmanager
def running_server() -> Iterator[FileServer]:
    with FileServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
