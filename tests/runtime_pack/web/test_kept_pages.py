"""robots.txt and the page cache under the policy of the run that asks, over loopback sockets."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.client import Fetched
from egress.testing import RecordingFetch
from egress.url import parse_target
from runtime_pack import create_agent_runtime, create_web_tool_runtime
from runtime_pack.catalog import ToolOutput
from runtime_pack.errors import ContractError
from runtime_pack.ports import ExecutionContext, is_releasable
from runtime_pack.testing import ListEmitter, ScriptedModel
from web_tools._page_notes import PageNote, note_of
from web_tools.page_cache import PageCache
from web_tools.robots import USER_AGENT, _parsed
from web_tools.search import create_fixture_web_search_provider
from web_tools.testing_site import LoopbackSite, SiteAnswer

pytestmark = pytest.mark.loopback
PROSE = "The harbour town keeps its long record of tides, ships and weather in a plain book. " * 4
RULES = "User-agent: *\nDisallow: /private\nAllow: /private/but\n\nUser-agent: agent-runtime-pack\nDisallow: /no*.html$\n"
Read = Callable[..., Awaitable[ToolOutput]]


def with_site(
    pages: dict[str, SiteAnswer], use: Callable[[LoopbackSite, Read], Awaitable[None]]
) -> LoopbackSite:
    """Run *use* with a site and a reader: each read is a run of its own."""

    async def main() -> LoopbackSite:
        async with LoopbackSite(pages) as site:

            async def read(path: str, *, allow: str = "", **given: Any) -> ToolOutput:
                runtime = create_web_tool_runtime(
                    create_agent_runtime(model=ScriptedModel([])),
                    provider=create_fixture_web_search_provider([]),
                    allowlist=[allow or site.entry],
                    emitter=ListEmitter(),
                    **given,
                )
                context = ExecutionContext(run=f"run-{len(site.requests)}")
                output = await runtime.execute_tool("web:read", {"url": site.url(path)}, context)
                assert is_releasable(runtime)
                await runtime.release()
                return output

            await use(site, read)
            return site

    return asyncio.run(main())


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[PageCache]:
    """A cache in a folder of its own, closed at the end."""
    held = PageCache(tmp_path / "cache")
    yield held
    held.close()


def revision(output: ToolOutput) -> str:
    data: Any = output.data
    return str(data["citation"]["revisionId"])


@pytest.mark.parametrize(
    ("answer", "path", "expected"),
    [
        (SiteAnswer.text(RULES), "/yes.html", True),
        (SiteAnswer.text(RULES), "/not.html", "WEB_URL_NOT_ALLOWED"),
        (SiteAnswer.text(RULES), "/private", True),
        (SiteAnswer(status=404), "/not.html", True),
        (SiteAnswer(status=503), "/yes.html", "WEB_FETCH_FAILED"),
        (SiteAnswer(status=200, body=b"x", missing_bytes=9), "/yes.html", "WEB_FETCH_FAILED"),
        (SiteAnswer.text("User-agent: *\nDisallow: /"), "/yes.html", "WEB_URL_NOT_ALLOWED"),
        (SiteAnswer.text("\x00\ufeffgarbage" * 99), "/yes.html", True),
        (SiteAnswer.redirect("http://other.example/robots.txt"), "/yes.html", "WEB_EGRESS_DENIED"),
    ],
)  # fmt: skip
def test_robots_are_respected_when_the_operator_says_so(
    answer: SiteAnswer, path: str, expected: bool | str
) -> None:
    """Ours before everybody's rules, 4xx allows, what cannot be learned is refused."""
    page = SiteAnswer.html(f"<p>{PROSE}</p>")

    async def use(site: LoopbackSite, read: Read) -> None:
        output = await read(path, robots="respect")
        ignored = await read(path)

        assert ignored.ok
        assert output.ok if expected is True else output.code == expected
        assert site.requests[0] == "/robots.txt"
        assert site.requests.count(path) == 1 + (expected is True)

    with_site({"/robots.txt": answer, path: page}, use)


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        ("User-agent: AGENT-runtime-pack/2 # us\nDisallow: /x", False),
        ("user agent googlebot\nuseragent *\nDisallow: /x", False),
        ("User-agent: agent\nDisallow: /x", True),
        ("User-agent: a\nDisallow: /x\n\nUser-agent: *\nAllow: /", True),
        ("# User-agent: *\nDisallow: /x", True),
        ("User-agent: *\nDisallow: /user-agent: a\nDisallow: /x", False),
        ("".join(f"User-agent {n}*a\n" for n in range(5_000)) + "Disallow: /x\n" * 30_000, True),
    ],
)
def test_rules_are_looked_up_by_our_name_or_for_everybody(rules: str, allowed: bool) -> None:
    """Not by a beginning of our name; and a file of many names before many rules is read soon."""
    assert allowed is _parsed(rules).can_fetch("http://a.example/x", USER_AGENT)


def test_robots_are_asked_at_every_hop_and_once_an_origin() -> None:
    """A redirect to what is disallowed is not followed to its page."""
    pages = {
        "/robots.txt": SiteAnswer.text(RULES),
        "/a": SiteAnswer.redirect("/not.html"),
    }

    async def use(site: LoopbackSite, read: Read) -> None:
        assert (await read("/a", robots="respect")).code == "WEB_URL_NOT_ALLOWED"
        assert site.requests == ["/robots.txt", "/a"]

    with_site(pages, use)


def test_a_kept_page_is_read_when_its_server_says_it_is_the_same(
    tmp_path: Path, cache: PageCache
) -> None:
    """The second run sends the validators and gets no body; a change brings the new page."""
    page = SiteAnswer.html(f"<p>{PROSE}</p>")
    kept = attrs.evolve(
        page, headers=(("ETag", '"1"'), ("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT"))
    )

    async def use(site: LoopbackSite, read: Read) -> None:
        first = await read("/p", page_cache=cache)
        site.pages["/p"] = SiteAnswer(status=304, content_type=None)
        second = await read("/p", page_cache=cache)
        site.pages["/p"] = SiteAnswer.html(f"<p>New. {PROSE}</p>")
        third = await read("/p", page_cache=cache)
        fourth = await read("/p", page_cache=cache)

        assert 'if-none-match: "1"' in site.heads[1].lower()
        assert "if-modified-since: mon" in site.heads[1].lower()
        assert "if-none-match" not in site.heads[0].lower() + site.heads[3].lower()
        assert (PROSE.strip() in first.text, PROSE.strip() in second.text) == (True, True)
        assert revision(first) == revision(second) != revision(third)
        assert "New." in third.text
        assert "New." in fourth.text

    with_site({"/p": kept}, use)
    names = b"".join(
        path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file()
    )
    assert b"127.0.0.1" not in names


def test_a_kept_page_opens_nothing_to_a_run_that_may_not_fetch_it(cache: PageCache) -> None:
    """Its list is asked, and its server: offline, or another list, there is no page."""
    kept = attrs.evolve(SiteAnswer.html(f"<p>{PROSE}</p>"), headers=(("ETag", '"1"'),))

    async def use(site: LoopbackSite, read: Read) -> None:
        assert (await read("/p", page_cache=cache)).ok
        refused = await read("/p", page_cache=cache, allow="docs.example")
        disallowed = await read("/p", page_cache=cache, robots="respect")
        site.pages["/p"] = SiteAnswer(status=500)
        failed = await read("/p", page_cache=cache)

        assert refused.code == "WEB_EGRESS_DENIED"
        assert disallowed.code == "WEB_URL_NOT_ALLOWED"
        assert failed.code == "WEB_HTTP_ERROR"
        assert site.requests == ["/p", "/robots.txt", "/p"]

    with_site({"/p": kept, "/robots.txt": SiteAnswer.text("User-agent: *\nDisallow: /")}, use)


def test_not_modified_without_a_question_is_no_page(cache: PageCache) -> None:
    """Nothing was held, so nothing is read."""

    async def use(site: LoopbackSite, read: Read) -> None:
        assert (await read("/p", page_cache=cache)).code == "WEB_HTTP_ERROR"

    with_site({"/p": SiteAnswer(status=304, content_type=None)}, use)


def fetched(status: int = 200, *headers: tuple[str, str], truncated: bool = False) -> Fetched:
    return Fetched(
        status=status,
        headers=headers,
        body=b"x",
        truncated=truncated,
        raw_bytes=1,
        final=parse_target("http://a.example/"),
        hops=(),
        downgraded=False,
    )


TAG = ("etag", '"1"')


@pytest.mark.parametrize(
    "answer",
    [
        fetched(),
        fetched(404, TAG),
        fetched(206, TAG),
        fetched(200, TAG, truncated=True),
        fetched(200, TAG, ("cache-control", "max-age=1, No-Store")),
        fetched(200, TAG, ("cache-control", "private")),
        fetched(200, TAG, ("vary", "accept, *")),
        fetched(200, TAG, ("set-cookie", "a=b")),
        fetched(200, ("etag", '"é"')),
        fetched(200, ("etag", "x" * 1025)),
        fetched(200, ("etag", "a\tb")),
    ],
)
def test_what_is_not_kept(answer: Fetched) -> None:
    """Parts, errors, what is one reader's, and what has no validator that can be sent back."""
    assert note_of(answer) is None
    assert (
        note_of(fetched(200, TAG, ("cache-control", "max-age=1"), ("vary", "accept"))) is not None
    )


@given(
    st.binary(max_size=60)
    | st.sampled_from([b'{"etag":"a\\r\\nX: y","last_modified":null,"content_type":null}'])
)
def test_a_note_that_was_changed_is_none_or_can_be_sent(kept: bytes) -> None:
    """Whoever can write the index puts no line into a request."""
    note = PageNote.from_bytes(kept)

    assert note is None or all(value.isprintable() for _, value in note.conditions())


def test_a_policy_for_robots_is_a_word_and_a_cache_needs_our_client(tmp_path: Path) -> None:
    """A misspelt word is refused when the runtime is made."""

    def make(**given: Any) -> None:
        create_web_tool_runtime(
            create_agent_runtime(model=ScriptedModel([])),
            provider=create_fixture_web_search_provider([]),
            allowlist=[],
            emitter=ListEmitter(),
            **given,
        )

    with pytest.raises(ContractError, match="robots"):
        make(robots="maybe")
    with pytest.raises(ContractError, match="page_cache"):
        make(page_cache=PageCache(tmp_path / "cache"), fetch=RecordingFetch([]))
