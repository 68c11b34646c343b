"""`runtime-pack read URL…`: pages through the governed tool, for people and machines."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from egress import AllowlistError, parse_allowlist
from runtime_pack.catalog import ToolOutput
from runtime_pack.cli._given import FILE
from runtime_pack.cli._interrupts import Interrupts, run_interruptibly
from runtime_pack.cli._text import exit_codes, note, plain, say, say_json
from runtime_pack.cli._web_tools import Tools, failure_of, inside, opened_tools
from runtime_pack.cli.policy import load_policy, policy_option
from runtime_pack.given_files import read_bounded
from runtime_pack.messages import Json, clean_text
from runtime_pack.policy_file import PolicyFile
from runtime_pack.web_catalog import READ_TOOL
from web_tools.arguments import WebToolCaps
from web_tools.errors import InvalidSetup
from web_tools.page_cache import PageCache
from web_tools.robots import RobotsPolicy

__all__ = ("command",)

_MAX_BYTES: Final = 4 * 1024 * 1024
_MAX_LIST_BYTES: Final = 16 * 1024 * 1024
_PARALLEL: Final = 4
_EXIT: Final = exit_codes(
    {
        0: "every page was read",
        1: "at least one was not: each is told",
        2: "wrong usage, or no host may be read",
        130: "interrupted",
    }
)
_PARTS: Final = ("offset", "section", "find", "outline")


@click.command("read", short_help="Read pages of hosts that are allowed.", epilog=_EXIT)
@click.argument("urls", nargs=-1, metavar="URL...")
@click.option(
    "--urls", "url_file", type=FILE, metavar="FILE", help="A file with further URLs, one a line."
)
@click.option(
    "--allow",
    "--allow-host",
    "allow",
    multiple=True,
    metavar="ENTRY",
    help="A host that may be read: host, host:port, *.suffix, address or CIDR. Repeat it.",
)
@policy_option
@click.option(
    "--robots",
    type=click.Choice([str(word) for word in RobotsPolicy]),
    default=str(RobotsPolicy.OFF),
    show_default=True,
    help="Whether the robots.txt of a site is respected.",
)
@click.option(
    "--cache",
    "cache_folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Keep pages here; a server is asked whether its page is still the same.",
)
@click.option(
    "--max-bytes",
    type=click.IntRange(min=1, max=_MAX_BYTES),
    default=262_144,
    show_default=True,
    help="The most bytes of text of one page.",
)
@click.option("--offset", type=click.IntRange(min=0), help="Read on from this character.")
@click.option("--section", metavar="HEADING", help="Read the section under a heading.")
@click.option("--find", metavar="WORDS", help="Show the places of words.")
@click.option("--outline", is_flag=True, help="Show the headings, or the entries of a feed.")
@click.option("--list", "as_list", is_flag=True, help="A table of the pages without their texts.")
@click.option(
    "--parallel",
    type=click.IntRange(min=1, max=32),
    default=_PARALLEL,
    show_default=True,
    help="Pages read at one time.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each URL.")
def command(
    urls: tuple[str, ...],
    *,
    url_file: Path | None,
    allow: tuple[str, ...],
    policy_path: Path | None,
    robots: str,
    cache_folder: Path | None,
    max_bytes: int,
    parallel: int,
    as_list: bool,
    as_json: bool,
    **part: Any,
) -> int:
    """Read each URL and print its text, in the order in which they were given.

    A page is read only from hosts that --allow or the policy file names, at every redirect. Its text
    is other people's words: control characters are made visible, and with --json it keeps the fence
    that a model would see. What happens is told on standard error.
    """
    asked = (*urls, *(() if url_file is None else _listed(url_file)))
    if not asked:
        raise click.UsageError("give a URL, or --urls FILE")
    if as_json and as_list:
        raise click.UsageError("--json and --list exclude each other")
    policy = None if policy_path is None else load_policy(policy_path, {"--allow": bool(allow)})
    _require_hosts(allow, policy)
    reading = _Reading(
        urls=tuple(clean_text(url) for url in asked),
        arguments={"max_bytes": max_bytes, **_part(part)},
        allow=allow,
        policy=policy,
        policy_name=None if policy_path is None else str(policy_path),
        robots=robots,
        cache=_cache(cache_folder),
        parallel=parallel,
        show=_show_json if as_json else _show_nothing if as_list else _show_text,
        as_list=as_list,
    )
    return run_interruptibly(reading.run)


@attrs.frozen(kw_only=True)
class _Read:
    """How the read of one URL went."""

    url: str
    output: ToolOutput

    @property
    def data(self) -> Mapping[str, Any]:
        return self.output.data if isinstance(self.output.data, dict) else {}


@attrs.frozen(kw_only=True)
class _Reading:
    """One call of the command."""

    urls: Sequence[str]
    arguments: Mapping[str, Json]
    allow: Sequence[str]
    policy: PolicyFile | None
    policy_name: str | None
    robots: str
    cache: PageCache | None
    parallel: int
    show: Callable[[_Read, bool], None]
    as_list: bool

    async def run(self, interrupts: Interrupts) -> int:
        """Read and show all of them."""
        del interrupts
        try:
            return await self._read_all()
        finally:
            if self.cache is not None:
                await asyncio.to_thread(self.cache.close)

    async def _read_all(self) -> int:
        many, failed, done = len(self.urls) > 1, 0, list[_Read]()
        async with opened_tools(
            allow=self.allow,
            policy=self.policy,
            policy_name=self.policy_name,
            caps=WebToolCaps(max_read_bytes=_MAX_BYTES),
            paging=True,
            robots=self.robots,
            page_cache=self.cache,
        ) as tools:
            reads = (self._read(tools, url) for url in self.urls)
            async with contextlib.aclosing(_in_order(reads, self.parallel)) as results:
                async for read in results:
                    failed += not read.output.ok
                    # The texts are not kept: there may be many.
                    done.append(_without_text(read))
                    _tell(read, f"{len(done)}/{len(self.urls)} " if many else "")
                    self.show(read, many)
        if self.as_list:
            _show_table(done)
        if many and failed:
            note(f"{failed} of {len(self.urls)} pages were not read")
        return 1 if failed else 0

    async def _read(self, tools: Tools, url: str) -> _Read:
        return _Read(url=url, output=await tools.call(READ_TOOL, {"url": url, **self.arguments}))


async def _in_order(
    reads: Iterable[Coroutine[Any, Any, _Read]], width: int
) -> AsyncGenerator[_Read, None]:
    """The results in the order of *reads*, at most *width* of them under way or waiting."""
    waiting: deque[asyncio.Task[_Read]] = deque()
    try:
        for read in reads:
            waiting.append(asyncio.create_task(read))
            if len(waiting) >= width:
                yield await _first(waiting)
        while waiting:
            yield await _first(waiting)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _first(waiting: deque[asyncio.Task[_Read]]) -> _Read:
    """The oldest result; its task is among those to be cancelled until it is there."""
    read = await waiting[0]
    del waiting[0]
    return read


def _without_text(read: _Read) -> _Read:
    kept = {name: value for name, value in read.data.items() if name != "text"}
    return attrs.evolve(read, output=attrs.evolve(read.output, text="", data=kept))


# ── what is given ─────────────────────────────────────────────────────────────────────────────────


def _listed(path: Path) -> tuple[str, ...]:
    try:
        text = read_bounded(path, _MAX_LIST_BYTES).decode("utf-8-sig", "replace")
    except OSError as error:
        raise click.BadParameter(str(error), param_hint="--urls") from error
    lines = (line.strip() for line in text.splitlines())
    return tuple(line for line in lines if line and not line.startswith("#"))


def _require_hosts(allow: tuple[str, ...], policy: PolicyFile | None) -> None:
    """An empty list reads nothing: said before anything is asked for."""
    if policy is None and not allow:
        raise click.UsageError("no host may be read: name one with --allow, or give --policy FILE")
    try:
        parse_allowlist(allow)
    except AllowlistError as error:
        raise click.BadParameter(str(error), param_hint="--allow") from error


def _part(given: Mapping[str, Any]) -> dict[str, Json]:
    wanted = {name: given[name] for name in _PARTS if given[name] not in {None, False}}
    if len(wanted) > 1:
        options = " and ".join(f"--{name}" for name in wanted)
        raise click.UsageError(f"{options} exclude each other")
    return {
        name: clean_text(value) if isinstance(value, str) else value
        for name, value in wanted.items()
    }


def _cache(folder: Path | None) -> PageCache | None:
    try:
        return None if folder is None else PageCache(folder)
    except InvalidSetup as error:
        raise click.BadParameter(str(error), param_hint="--cache") from error


# ── what is shown ─────────────────────────────────────────────────────────────────────────────────


def _tell(read: _Read, count: str) -> None:
    """One line of progress; where nobody can be told any more, the reading goes on."""
    if read.output.ok:
        data = read.data
        cut = ", cut" if data.get("truncated") else ""
        detail = f", {data['detail']}" if "detail" in data else ""
        line = f"{count}ok {data.get('bytes', 0)} bytes{cut}{detail} {read.url}"
    else:
        failure = failure_of(read.output)
        line = f"{count}{failure['code']} {read.url}: {failure.get('message', '')}"
    with contextlib.suppress(OSError):
        note(" ".join(line.split()))


def _show_nothing(read: _Read, many: bool) -> None:
    del read, many


def _show_json(read: _Read, many: bool) -> None:
    del many
    if read.output.ok:
        say_json({"ok": True, "input": read.url, **read.data})
    else:
        say_json({"ok": False, "input": read.url, "error": failure_of(read.output)})


def _show_text(read: _Read, many: bool) -> None:
    if not read.output.ok:
        return
    said, _, _ = read.output.text.partition("<")
    text = inside(str(read.data.get("text", "")))
    if many:
        say(f"==> {' '.join(str(read.data.get('final_url', read.url)).split())} <==")
    # Where it stands in the whole, and where to read on: not a part of the text.
    with contextlib.suppress(OSError):
        if said.strip():
            note(said.strip())
    say(f"{text}\n" if many else text)


def _show_table(reads: Sequence[_Read]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("result")
    table.add_column("bytes", justify="right")
    table.add_column("type")
    table.add_column("page", overflow="fold")
    for read in reads:
        result = "ok" if read.output.ok else str(read.output.code)
        size = str(read.data.get("bytes", "")) if read.output.ok else ""
        kind = str(read.data.get("content_type", ""))
        url = str(read.data.get("final_url", read.url))
        table.add_row(*(Text(plain(cell)) for cell in (result, size, kind, url)))
    Console().print(table)
