"""The local web server of ``tacit watch``: one page and its numbers, read-only."""

from __future__ import annotations

import ipaddress
import json
import secrets
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from string import Template
from typing import Any, Final

import tacit.report.page
from tacit.errors import TacitError, require
from tacit.watch.followed_run import FollowedRun
from tacit.watch.page_view import view_of

FIRST_PORT: Final = 8350
_PORTS: Final = 20
"""Ports that are tried in turn if none is given."""
_HERE: Final = Path(__file__).parent
_REPORT: Final = Path(tacit.report.page.__file__).parent
_TIMEOUT_S: Final = 30.0


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class WatchServer(ThreadingHTTPServer):
    """Serves the page about one run. ``port``: None tries some ports in turn, 0 takes any free one."""

    daemon_threads = True

    def __init__(self, folder: Path, host: str, port: int | None) -> None:
        self.followed, self.host = FollowedRun(folder), host
        self._lock = threading.Lock()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, 0), WatchHandler, bind_and_activate=False)
        try:
            self._bind([port] if port is not None else range(FIRST_PORT, FIRST_PORT + _PORTS))
            self.server_activate()
        except BaseException:
            self.server_close()
            raise

    def _bind(self, ports: Any) -> None:
        """Bind to the first of ``ports`` that is free."""
        for port in ports:
            self.server_address = (self.host, port)
            try:
                self.server_bind()
                return
            except OSError as error:
                failure = error
        raise TacitError(
            f"{self.host} port {ports[0]} cannot be used: {failure.strerror or failure}; "
            f"choose another --port, or 0 for any free one."
        )

    @property
    def address(self) -> str:
        """The address of the page."""
        host, port = self.server_address[:2]
        shown = f"[{self.host}]" if ":" in str(host) else self.host
        return f"http://{shown}:{port}/"

    def state(self) -> bytes:
        """Return what the page shows now, as JSON."""
        with self._lock:
            self.followed.read()
            return json.dumps(view_of(self.followed), allow_nan=False).encode()


class WatchHandler(BaseHTTPRequestHandler):
    """Answers GET and HEAD for the page and its numbers; refuses everything else."""

    server: WatchServer
    timeout = _TIMEOUT_S
    server_version, sys_version = "tacit", ""

    def do_GET(self) -> None:
        """Answer a request."""
        if not self._is_addressed_by_name():
            self._send(HTTPStatus.FORBIDDEN, b"Open this page by the address that tacit watch printed.", "text/plain")
        elif self.path == "/":
            nonce = secrets.token_urlsafe(16)
            policy = "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
            policy += f"frame-ancestors 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'"
            self._send(HTTPStatus.OK, page(nonce), "text/html; charset=utf-8", policy)
        elif self.path == "/state.json":
            self._send(HTTPStatus.OK, self.server.state(), "application/json")
        else:
            self._send(HTTPStatus.NOT_FOUND, b"There is only one page here: /", "text/plain")

    def do_HEAD(self) -> None:
        """Answer a request without the body."""
        self.do_GET()

    def _is_addressed_by_name(self) -> bool:
        """Whether the request names this machine: a web site whose name leads to loopback must not read the page."""
        if not is_loopback(self.server.host):
            return True
        host = self.headers.get("Host", "").rsplit(":", 1)[0].strip("[]")
        return is_loopback(host)

    def _send(self, status: HTTPStatus, body: bytes, kind: str, policy: str = "default-src 'none'") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Content-Security-Policy", policy)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the page asks every second."""


def page(nonce: str) -> bytes:
    """Return the page, whose style and script carry ``nonce``."""
    css = "".join(path.read_text("utf-8") for path in (_REPORT / "page.css", _HERE / "page.css"))
    script = (_HERE / "page.js").read_text("utf-8")
    text = Template((_HERE / "page.html").read_text("utf-8")).substitute(nonce=nonce, css=css, script=script)
    return text.encode()


def check_host(host: str, *, allows_remote: bool) -> None:
    """Refuse an address that other machines can reach, unless that is wanted."""
    require(
        allows_remote or is_loopback(host),
        f"--host {host} can be reached from other machines, and the page has no password; use 127.0.0.1 and a tunnel "
        f"(ssh -L {FIRST_PORT}:127.0.0.1:{FIRST_PORT} MACHINE), or add --allow-remote.",
    )
