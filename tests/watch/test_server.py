"""The local server: one read-only page that loads nothing from elsewhere."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tacit.errors import TacitError
from tacit.watch.server import WatchServer, check_host, is_loopback, page
from tests.cli.command_line import run as tacit
from tests.watch.progress_files import two_workers


@contextmanager
def serving(folder: Path) -> Iterator[WatchServer]:
    with WatchServer(folder, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(10)


def ask(
    server: WatchServer, path: str, method: str = "GET", host: str | None = None
) -> tuple[int, dict[str, str], str]:
    port = server.server_address[1]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, headers={"Host": host or f"localhost:{port}"})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def test_the_page_and_its_numbers(tmp_path: Path) -> None:
    with serving(tmp_path / "run") as server:
        status, headers, text = ask(server, "/")
        assert status == 200 and "tacit <span>watch" in text
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert json.loads(ask(server, "/state.json")[2])["state"] == "waiting"
        two_workers(tmp_path / "run", strategy="<script>alert(1)</script>")
        status, headers, text = ask(server, "/state.json")
        assert headers["Content-Type"] == "application/json" and headers["Cache-Control"] == "no-store"
        assert json.loads(text)["strategy"] == "<script>alert(1)</script>"
        assert ask(server, "/", "HEAD")[2] == ""


def test_it_serves_no_files_and_changes_nothing(tmp_path: Path) -> None:
    two_workers(tmp_path)
    with serving(tmp_path) as server:
        for path in ("/progress/rank-0.jsonl", "/../progress/rank-0.jsonl", "/%2e%2e/etc/passwd", "/state.json?x"):
            assert ask(server, path)[0] == 404
        for method in ("POST", "PUT", "DELETE"):
            assert ask(server, "/", method)[0] == 501


def test_a_name_of_another_site_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        assert ask(server, "/state.json", host="evil.example:8350")[0] == 403
        assert ask(server, "/state.json", host="[::1]:8350")[0] == 200


def test_the_page_loads_nothing_and_writes_no_markup_from_files() -> None:
    text = page("n").decode().replace("http://www.w3.org/2000/svg", "")
    for word in (
        "http:",
        "https:",
        "@import",
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
    ):
        assert word not in text


def test_addresses_that_others_can_reach_need_a_word() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "::1", "localhost")))
    for host in ("0.0.0.0", "::", "192.168.1.2", "node0"):
        with pytest.raises(ValueError, match="has no password"):
            check_host(host, allows_remote=False)
        check_host(host, allows_remote=True)
    answer = tacit("watch", "run", "--host", "0.0.0.0")
    assert answer.exit_code == 2 and "--allow-remote" in answer.errors


def test_a_port_in_use_is_said(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        port = server.server_address[1]
        with pytest.raises(TacitError, match=f"port {port} cannot be used: .*choose another --port"):
            WatchServer(tmp_path, "127.0.0.1", port)
