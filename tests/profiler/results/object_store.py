"""A folder served as an S3 bucket, as far as reading needs it: HEAD, GET with a range, and the listing of a prefix."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


@contextmanager
def bucket(folder: Path) -> Iterator[str]:
    """The address of an S3 endpoint on this machine, whose every bucket holds the folder's files."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            address = urlsplit(self.path)
            asked = parse_qs(address.query)
            if "list-type" in asked:
                return self.answer(200, listing(folder, asked.get("prefix", [""])[0]))
            path = folder / unquote(address.path).lstrip("/").partition("/")[2]
            if not path.is_file():
                return self.answer(404, b"")
            content = path.read_bytes()
            wanted = re.match(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
            if not wanted:
                return self.answer(200, content)
            first = int(wanted[1]) if wanted[1] else max(0, len(content) - int(wanted[2]))
            last = min(int(wanted[2]), len(content) - 1) if wanted[1] and wanted[2] else len(content) - 1
            return self.answer(206, content[first : last + 1], f"bytes {first}-{last}/{len(content)}")

        def answer(self, status: int, content: bytes, part: str = "") -> None:
            self.send_response(status)
            for name, value in {
                "Content-Length": str(len(content)),
                "Content-Range": part,
                "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
                "ETag": '"1"',
            }.items():
                if value:
                    self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def listing(folder: Path, prefix: str) -> bytes:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    keys = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
    contents = "".join(
        f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        f'<ETag>"1"</ETag><Size>{size}</Size></Contents>'
        for key, size in keys.items()
        if key.startswith(prefix)
    )
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>".encode()
