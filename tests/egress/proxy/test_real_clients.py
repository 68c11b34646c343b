"""Programs that people run, through the proxy, against servers on the loopback interface."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from egress.proxy import Outcome

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(60)]

_BIG = bytes(range(256)) * 8192  # 2 MiB
_PAGES = {"/": b"hello", "/big": _BIG, "/echo": b""}

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
needs_pip = pytest.mark.skipif(find_spec("pip") is None, reason="pip is not installed")


def _site(pages: Mapping[str, bytes]) -> Any:
    """Serves *pages*; what is posted to `/echo` comes back."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            method, path = head.decode("latin-1").split(" ")[:2]
            path = path.partition("?")[0]
            body = await _body(reader, head.lower())
            page = body if path == "/echo" else pages.get(path)
            line = "200 OK" if page is not None else "404 Not Found"
            kind = "text/html" if path.endswith("/") else "application/octet-stream"
            page = page or b""
            writer.write(
                f"HTTP/1.1 {line}\r\nContent-Type: {kind}\r\nContent-Length: {len(page)}\r\n\r\n".encode()
                + (page if method != "HEAD" else b"")
            )
            await writer.drain()

    return serve


async def _body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    if b"transfer-encoding: chunked" in head:
        parts = []
        while size := int((await reader.readline()).split(b";")[0], 16):
            parts.append(await reader.readexactly(size))
            await reader.readline()
        await reader.readline()
        return b"".join(parts)
    _, found, rest = head.partition(b"content-length: ")
    return await reader.readexactly(int(rest.split(b"\r\n")[0])) if found else b""


def _proxy_url(world: Any, kit: Any) -> str:
    authority = world.proxy.url.removeprefix("http://")
    return f"http://one:{kit.token}@{authority}"


async def _command(
    *arguments: str, env: Mapping[str, str] | None = None, folder: Path | None = None
) -> tuple[int, bytes, bytes]:
    """Exit code and outputs; nothing of the user's settings reaches the program."""
    process = await asyncio.create_subprocess_exec(
        *arguments,
        env={"PATH": os.environ["PATH"], "HOME": str(folder or "/nonexistent"), **(env or {})},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, out, err


# ── curl ──────────────────────────────────────────────────────────────────────────────────────


@needs_curl
def test_curl_plain_and_tls(kit: Any, authority: Any) -> None:
    """Absolute-form and CONNECT, in HTTP/1.0 and 1.1; uploads with and without an expectation."""

    async def main() -> None:
        ca = ["--cacert", str(authority.ca_file)]
        async with (
            kit.serve(_site(_PAGES)) as plain,
            kit.serve(_site(_PAGES), tls=authority.server) as tls,
        ):
            places = {
                (kit.public, 80): ("127.0.0.1", plain.port),
                (kit.public, 443): ("127.0.0.1", tls.port),
            }
            async with kit.world("http-only.test", "a.test", places=places) as world:
                base = ["curl", "-sS", "--proxy", _proxy_url(world, kit), *ca]
                for arguments, expected in (
                    (["http://a.test/"], b"hello"),
                    (["--http1.0", "http://a.test/"], b"hello"),
                    (["http://a.test/big"], _BIG),
                    (["https://a.test/"], b"hello"),
                    (["https://a.test/big"], _BIG),
                    (["--tls-max", "1.2", "https://a.test/"], b"hello"),
                    (["--proxy1.0", _proxy_url(world, kit), "https://a.test/"], b"hello"),
                    (["--proxytunnel", "http://a.test:443/"], None),
                    (["-I", "http://a.test/big"], b"HTTP/1.1 200 OK"),
                    (["-d", "abc", "http://a.test/echo"], b"abc"),
                    (["-H", "Expect: 100-continue", "-d", "abc", "http://a.test/echo"], None),
                    (
                        ["-H", "Transfer-Encoding: chunked", "-d", "abc", "http://a.test/echo"],
                        b"abc",
                    ),
                    (["http://a.test/", "http://a.test/"], b"hellohello"),
                ):
                    code, out, err = await _command(*base, *arguments)
                    if arguments[0] == "--proxytunnel":
                        # Plain HTTP in a tunnel to 443.
                        assert code != 0
                    elif expected is None:
                        assert (0, b"abc") == (code, out), err
                    else:
                        assert code == 0, err
                        assert out == expected or out.startswith(expected)
                await world.settled(14)
                assert ["not_tls"] == [d.violation.reason for d in world.observer.denials]

    kit.run(main())


@needs_curl
def test_curl_is_told_why(kit: Any) -> None:
    """403 with its event for a plain request and for a tunnel; 407 without a token."""

    async def main() -> None:
        async with kit.world("a.test") as world:
            proxy = _proxy_url(world, kit)
            _, out, _ = await _command("curl", "-sS", "-x", proxy, "http://evil.test/")
            assert b'"reason":"host_not_listed"' in out
            code, _, err = await _command("curl", "-sSv", "-x", proxy, "https://evil.test/")
            assert code == 56
            assert b"< Egress-Event: event-2" in err
            code, _, err = await _command("curl", "-sS", "-x", world.proxy.url, "https://a.test/")
            assert code == 56
            assert b"407" in err
            await world.settled(3)
            assert 2 == len(world.observer.denials)
            assert not world.resolver.lookups

    kit.run(main())


@needs_curl
def test_curl_for_another_name_is_stopped_at_its_hello(kit: Any, authority: Any) -> None:
    """The tunnel is asked for a listed name, and TLS for another: fronting's simplest form."""

    async def main() -> None:
        async with (
            kit.serve(_site(_PAGES), tls=authority.server) as tls,
            kit.world("a.test", port=tls.port) as world,
        ):
            code, _, err = await _command(
                *("curl", "-sS", "-x", _proxy_url(world, kit), "--cacert", str(authority.ca_file)),
                *("--connect-to", "evil.test:443:a.test:443", "https://evil.test/"),
            )
            assert code == 35, err
            await world.settled()
            assert ["sni_mismatch"] == [d.violation.reason for d in world.observer.denials]
            assert not world.dialer.dials

    kit.run(main())


# ── Python clients ────────────────────────────────────────────────────────────────────────────


def test_aiohttp(kit: Any, authority: Any) -> None:
    """Plain, TLS, an upload in chunks, and a denial that carries its event."""

    async def chunks() -> Any:
        for _ in range(4):
            yield bytes(100_000)

    async def main() -> None:
        async with (
            kit.serve(_site(_PAGES)) as plain,
            kit.serve(_site(_PAGES), tls=authority.server) as tls,
        ):
            places = {
                (kit.public, 80): ("127.0.0.1", plain.port),
                (kit.public, 443): ("127.0.0.1", tls.port),
            }
            async with kit.world("a.test", places=places) as world:
                proxy = world.proxy.url
                headers = {"Proxy-Authorization": f"Bearer {kit.token}"}
                async with aiohttp.ClientSession() as session:
                    given: dict[str, Any] = {"proxy": proxy, "headers": headers}
                    async with session.get("http://a.test/big", **given) as response:
                        assert _BIG == await response.read()
                    sent = {"proxy": proxy, "proxy_headers": headers, "ssl": authority.client}
                    for _ in range(2):
                        async with session.get("https://a.test/big", **sent) as response:
                            assert _BIG == await response.read()
                    posted = session.post("http://a.test/echo", data=chunks(), **given)
                    async with posted as response:
                        assert bytes(400_000) == await response.read()
                    with pytest.raises(aiohttp.ClientHttpProxyError) as caught:
                        await session.get("https://evil.test/", **sent)
                    assert caught.value.status == 403
                    assert caught.value.headers is not None
                    assert "event-1" == caught.value.headers["Egress-Event"]
                # The session is closed: its transports need a round of the loop to end.
                await asyncio.sleep(0.05)
                await world.settled()

    kit.run(main())


def test_httpx(kit: Any, authority: Any) -> None:
    """Sync and async; the tunnel's refusal is a proxy error."""
    httpx = pytest.importorskip("httpx", reason="httpx is not installed")

    def fetch(proxy: str) -> None:
        with httpx.Client(proxy=proxy, verify=authority.client, trust_env=False) as client:
            assert b"hello" == client.get("http://a.test/").content
            assert _BIG == client.get("https://a.test/big").content
            assert b"abc" == client.post("https://a.test/echo", content=b"abc").content
            assert 403 == client.get("http://evil.test/").status_code
            with pytest.raises(httpx.ProxyError):
                client.get("https://evil.test/")

    _python_client(kit, authority, fetch)


def test_requests(kit: Any, authority: Any) -> None:
    """By its proxies setting; CONNECT comes in HTTP/1.0 and without `Host` on old Pythons."""
    requests = pytest.importorskip("requests", reason="requests is not installed")

    def fetch(proxy: str) -> None:
        with requests.Session() as session:
            session.trust_env = False
            session.proxies = {"http": proxy, "https": proxy}
            session.verify = str(authority.ca_file)
            assert b"hello" == session.get("http://a.test/").content
            assert _BIG == session.get("https://a.test/big").content
            assert b"abc" == session.post("http://a.test/echo", data=b"abc").content
            assert 403 == session.get("http://evil.test/").status_code
            with pytest.raises(requests.exceptions.ProxyError):
                session.get("https://evil.test/")

    _python_client(kit, authority, fetch)


def test_urllib(kit: Any, authority: Any) -> None:
    """The standard library: its tunnel has no `Host` before Python 3.12."""
    import urllib.error
    import urllib.request

    def fetch(proxy: str) -> None:
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({"http": proxy, "https": proxy}),
            urllib.request.HTTPSHandler(context=authority.client),
        )
        with opener.open("http://a.test/") as response:
            assert b"hello" == response.read()
        with opener.open("https://a.test/big") as response:
            assert _BIG == response.read()
        with pytest.raises(urllib.error.HTTPError) as caught:
            opener.open("http://evil.test/")
        assert "event-1" == caught.value.headers["Egress-Event"]
        caught.value.close()
        with pytest.raises(OSError, match="403"):
            opener.open("https://evil.test/")

    _python_client(kit, authority, fetch)


def _python_client(kit: Any, authority: Any, fetch: Any) -> None:
    async def main() -> None:
        async with (
            kit.serve(_site(_PAGES)) as plain,
            kit.serve(_site(_PAGES), tls=authority.server) as tls,
        ):
            places = {
                (kit.public, 80): ("127.0.0.1", plain.port),
                (kit.public, 443): ("127.0.0.1", tls.port),
            }
            async with kit.world("a.test", places=places) as world:
                await asyncio.to_thread(fetch, _proxy_url(world, kit))
                await world.settled()
                assert 2 == len(world.observer.denials)
                refused = {Outcome.FAILED, Outcome.INVALID}
                assert not refused & {record.outcome for record in world.observer.records}

    kit.run(main())


# ── git and pip ───────────────────────────────────────────────────────────────────────────────


@needs_git
def test_git_clones_through_the_proxy(kit: Any, tmp_path: Path) -> None:
    """The token is asked for with 407 first, as libcurl does when it may choose the scheme."""
    settings = {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_AUTHOR_NAME": "t",
        "GIT_AUTHOR_EMAIL": "t@a.test",
        "GIT_COMMITTER_NAME": "t",
        "GIT_COMMITTER_EMAIL": "t@a.test",
    }

    def git(*arguments: str) -> None:
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **settings}
        subprocess.run(["git", *arguments], check=True, env=env, capture_output=True)

    source, bare = tmp_path / "source", tmp_path / "bare.git"
    git("init", "-q", "-b", "main", str(source))
    (source / "file").write_text("content\n", encoding="ascii")
    git("-C", str(source), "add", "file")
    git("-C", str(source), "commit", "-q", "-m", "one")
    git("clone", "-q", "--bare", str(source), str(bare))
    git("-C", str(bare), "update-server-info")
    pages = {
        f"/bare.git/{path.relative_to(bare)}": path.read_bytes()
        for path in bare.rglob("*")
        if path.is_file()
    }

    async def main() -> None:
        async with (
            kit.serve(_site(pages)) as plain,
            kit.world("a.test", port=plain.port) as world,
        ):
            proxy = f"http.proxy={_proxy_url(world, kit)}"
            clone = ("git", "-c", proxy, "clone", "-q")
            code, _, err = await _command(
                *clone, "http://a.test/bare.git", str(tmp_path / "clone"), env=settings
            )
            assert code == 0, err
            assert "content\n" == (tmp_path / "clone" / "file").read_text(encoding="ascii")
            code, _, err = await _command(
                *clone, "http://evil.test/bare.git", str(tmp_path / "other"), env=settings
            )
            assert code != 0
            assert b"403" in err
            await world.settled()
            assert {"evil.test"} == {d.violation.target.host for d in world.observer.denials}

    kit.run(main())


def _wheel() -> bytes:
    """A wheel of one module."""
    files = {
        "tiny_sample.py": b"value = 1\n",
        "tiny_sample-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny-sample\nVersion: 1.0\n",
        "tiny_sample-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{name},sha256="
        + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        + f",{len(content)}\n"
        for name, content in files.items()
    )
    files["tiny_sample-1.0.dist-info/RECORD"] = record.encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@needs_pip
def test_pip_installs_through_the_proxy(kit: Any, authority: Any, tmp_path: Path) -> None:
    """From an index with TLS of a private authority; an index elsewhere is out of reach."""
    name = "tiny_sample-1.0-py3-none-any.whl"
    pages = {
        "/simple/tiny-sample/": f'<a href="/files/{name}">{name}</a>'.encode(),
        f"/files/{name}": _wheel(),
    }

    async def main() -> None:
        async with (
            kit.serve(_site(pages), tls=authority.server) as tls,
            kit.world("a.test", port=tls.port) as world,
        ):
            pip = [
                *(sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check"),
                *("--no-cache-dir", "--retries", "0", "--cert", str(authority.ca_file)),
                *("--proxy", _proxy_url(world, kit), "install", "-q", "--no-deps"),
                *("--target", str(tmp_path), "--root-user-action", "ignore"),
            ]
            env = {"PIP_CONFIG_FILE": os.devnull}
            index = ("--index-url", "https://a.test/simple/", "tiny-sample")
            code, _, err = await _command(*pip, *index, env=env, folder=tmp_path)
            assert code == 0, err
            assert (tmp_path / "tiny_sample.py").is_file()
            index = ("--index-url", "https://evil.test/simple/", "tiny-sample")
            code, _, err = await _command(*pip, *index, env=env, folder=tmp_path)
            assert code != 0
            await world.settled()
            assert {"evil.test"} == {d.violation.target.host for d in world.observer.denials}

    kit.run(main())
