"""Capabilities, settings, bounds, arguments and summaries of the search plugin, each by itself."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import runtime_pack
from web_tools.errors import InvalidSetup, WebErrorCode, WebToolError
from web_tools.native.registry import PROTOCOLS
from web_tools.plugin.arguments import ModelSearch, UrlSearch, parse_plugin_arguments
from web_tools.plugin.bounds import PluginBounds
from web_tools.plugin.capability import (
    Entry,
    ModelCard,
    ModelCards,
    NativeLimits,
    SearchSupport,
    visible_entry,
)
from web_tools.plugin.outcomes import SENTENCES, PluginCode
from web_tools.plugin.settings import PluginSettings, parse_plugin_settings, read_plugin_settings
from web_tools.plugin.summaries import Completed, SummaryCache, SummaryKey, read_summary

ROOT = Path(__file__).resolve().parents[3]
# Where the packages are: in the tree, or installed.
PACKAGES = Path(runtime_pack.__file__).parents[1]
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def card(name: str, protocol: str | None = None, *, text: bool = True) -> ModelCard:
    search = None if protocol is None else SearchSupport(protocol=protocol)
    return ModelCard(name=name, text=text, search=search)


def cards(*of: ModelCard, main: str | None) -> ModelCards:
    return ModelCards(of, main=main, protocols=PROTOCOLS)


# ── capability facts ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("main", "entry"),
    [
        (card("a/plain"), Entry.SEARCH),
        (card("a/native", "gemini"), Entry.SEARCH_URL),
        # Declared, and there is no codec for it.
        (card("a/declared", "telepathy"), Entry.SEARCH),
        # The name of a model, a provider or a protocol says nothing.
        (card("openai/gpt-5-search-preview"), Entry.SEARCH),
        (card("perplexity/sonar"), Entry.SEARCH),
        (None, Entry.SEARCH),
    ],
)
def test_the_entry_follows_from_what_is_declared_and_implemented(
    main: ModelCard | None, entry: Entry
) -> None:
    """`search` without usable native search of the main model, else `search_url`; never both."""
    models = cards(*([main] if main else []), main=main.name if main else "a/unknown")

    assert entry == visible_entry(models.facts("search", target=None))


@pytest.mark.parametrize(
    ("target", "usable"),
    [
        (card("t/x", "gemini"), True),
        (card("t/x", "gemini", text=False), False),
        (card("t/x"), False),
        (card("t/x", "telepathy"), False),
        (card("t/other", "gemini"), False),
    ],
)
def test_a_target_needs_both_declarations_and_a_codec(target: ModelCard, usable: bool) -> None:
    """`text` and `search`, and a registration under the name that the settings say."""
    facts = cards(target, main=None).facts("search", target="t/x")

    assert usable is (facts.target is not None)


def test_of_another_capability_nothing_is_known() -> None:
    """The facts are of `search`."""
    facts = cards(card("t/x", "gemini"), main="t/x").facts("image", target="t/x")

    assert (False, None) == (facts.main_native, facts.target)


def test_two_cards_of_one_name_are_refused() -> None:
    """Which of them counts would be a matter of order."""
    with pytest.raises(InvalidSetup):
        cards(card("a/b"), card("a/b", "gemini"), main=None)


@pytest.mark.parametrize("name", ["", "gpt", "/x", "a/", "a b/c", "a/b c", "a/\u00e4", None, 7])
def test_a_card_is_named_by_provider_and_model(name: Any) -> None:
    """As settings name it."""
    with pytest.raises(InvalidSetup):
        ModelCard(name=name)


def test_a_card_cannot_declare_by_something_that_looks_true() -> None:
    """A word in place of a switch, a protocol that is no name, a limit of 0."""
    wrong: list[dict[str, Any]] = [
        {"text": "yes"}, {"search": "gemini"}, {"max_output_tokens": 0}, {"max_input_bytes": True},
    ]  # fmt: skip
    for each in wrong:
        with pytest.raises(InvalidSetup):
            ModelCard(name="a/b", **each)
    names: list[Any] = ["", "A b", None]
    for protocol in names:
        with pytest.raises(InvalidSetup):
            SearchSupport(protocol=protocol)
    with pytest.raises(InvalidSetup):
        NativeLimits(max_searches=0)
    with pytest.raises(InvalidSetup):
        NativeLimits(sites=("https://example.com",))


def test_the_plugin_names_no_vendor() -> None:
    """No vendor, model or protocol stands in its source: it knows cards, and codecs by their name."""
    words = {
        *PROTOCOLS,
        "openai",
        "gpt",
        "claude",
        "google",
        "sonar",
        "mistral",
        "grok",
        "xai",
        "bing",
    }
    pattern = re.compile("|".join(sorted(words)), re.IGNORECASE)
    found = {
        (path.name, match[0])
        for folder in ("web_tools/plugin",)
        for path in (PACKAGES / folder).glob("*.py")
        for match in pattern.finditer(path.read_text())
    }
    found |= {
        ("web_plugin.py", match[0])
        for match in pattern.finditer((PACKAGES / "runtime_pack/web_plugin.py").read_text())
    }

    assert set() == found


# ── settings ─────────────────────────────────────────────────────────────────────────────────


def test_settings_name_the_target() -> None:
    """The example of the plugin text; nothing named is nothing."""
    text = '{"defaultCapabilities": {"search": "search-provider/search-model"}}'

    assert PluginSettings(search="search-provider/search-model") == read_plugin_settings(text)
    assert PluginSettings() == read_plugin_settings("{}")
    assert PluginSettings() == read_plugin_settings('{"theme": 1}', sections=["theme"])


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('{"defaultCapabilites": {}}', "defaultCapabilites"),
        ('{"defaultCapabilities": {"serach": "a/b"}}', "defaultCapabilities.serach"),
        ('{"defaultCapabilities": {"search": "model"}}', "defaultCapabilities.search"),
        ('{"defaultCapabilities": {"search": null}}', "defaultCapabilities.search"),
        ('{"defaultCapabilities": []}', "defaultCapabilities"),
        ('{"defaultCapabilities": null}', "defaultCapabilities"),
        ("[]", "settings"),
        ("{", "settings"),
        ('{"a": 1, "a": 2}', "'a'"),
        ("[" * 100_000, "settings"),
        ("", "settings"),
    ],
)
def test_what_is_misspelt_is_refused_by_its_path(text: str, path: str) -> None:
    """A key that is dropped silently would leave the search without a target."""
    with pytest.raises(InvalidSetup) as refused:
        read_plugin_settings(text)

    assert path == refused.value.field


@settings(max_examples=50)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(
                st.sampled_from(["defaultCapabilities", "search", "x"]), inner, max_size=3
            )
        ),
        max_leaves=6,
    )
)
@example({1: 2})
def test_reading_settings_is_total(body: object) -> None:
    """Settings, or the one refusal."""
    try:
        assert isinstance(parse_plugin_settings(body), PluginSettings)
    except InvalidSetup:
        return


# ── bounds ───────────────────────────────────────────────────────────────────────────────────


def test_the_bounds_are_those_of_the_plugin_text() -> None:
    """Every number of the section."""
    bounds = PluginBounds()

    assert (8 * 2**20, 128 * 2**20, 4 * 2**20) == (
        bounds.page_bytes,
        bounds.call_bytes,
        bounds.text_bytes,
    )
    assert (512 * 2**10, 16 * 2**10, 8192) == (
        bounds.input_bytes,
        bounds.summary_bytes,
        bounds.output_tokens,
    )
    assert (8, 20, 120) == (bounds.fetches, bounds.url_seconds, bounds.total_seconds)


@pytest.mark.parametrize("value", [0, -1, 10**12, True, float("nan"), float("inf"), None, "1"])
@pytest.mark.parametrize("field", ["page_bytes", "fetches", "url_seconds"])
def test_a_bound_can_be_lowered_only(field: str, value: object) -> None:
    """And is a number above 0."""
    given_: dict[str, Any] = {field: value}
    with pytest.raises(InvalidSetup) as refused:
        PluginBounds(**given_)

    assert field == refused.value.field


# ── arguments ────────────────────────────────────────────────────────────────────────────────


def test_calls_are_read() -> None:
    """Both modes of the merged entry, and the entry for addresses alone."""
    search, only = Entry.SEARCH, Entry.SEARCH_URL
    url = "https://example.com/"

    assert ModelSearch(query="k") == parse_plugin_arguments(search, {"mode": "model", "query": "k"})
    assert UrlSearch(urls=(url,)) == parse_plugin_arguments(search, {"mode": "url", "urls": [url]})
    assert UrlSearch(urls=(url,), query="k") == parse_plugin_arguments(
        only, {"urls": [url], "query": "k"}
    )
    assert UrlSearch(urls=(url,) * 32) == parse_plugin_arguments(only, {"urls": [url] * 32})
    longest = "https://example.com/" + "x" * (2048 - len(url))
    parse_plugin_arguments(only, {"urls": [longest]})
    parse_plugin_arguments(search, {"mode": "model", "query": "k" * 2000})


@pytest.mark.parametrize(
    ("entry", "raw", "path"),
    [
        (Entry.SEARCH, {}, "/mode"),
        (Entry.SEARCH, {"mode": "both", "query": "k"}, "/mode"),
        (Entry.SEARCH, {"mode": ["url"], "query": "k"}, "/mode"),
        (Entry.SEARCH, {"mode": "model"}, "/query"),
        (Entry.SEARCH, {"mode": "model", "query": " "}, "/query"),
        (Entry.SEARCH, {"mode": "model", "query": "k" * 2001}, "/query"),
        (Entry.SEARCH, {"mode": "model", "query": "k", "urls": ["https://a.example"]}, "/urls"),
        (Entry.SEARCH, {"mode": "model", "query": "k", "site": "a.example"}, "/site"),
        (Entry.SEARCH, {"mode": "url"}, "/urls"),
        (Entry.SEARCH, {"mode": "url", "urls": []}, "/urls"),
        (Entry.SEARCH, {"mode": "url", "urls": ["https://a.example"] * 33}, "/urls"),
        (Entry.SEARCH, {"mode": "url", "urls": "https://a.example"}, "/urls"),
        (Entry.SEARCH, {"mode": "url", "urls": [7]}, "/urls"),
        (Entry.SEARCH, {"mode": "url", "urls": [""]}, "/urls"),
        (Entry.SEARCH, {"mode": "url", "urls": ["https://a.example/\ud800"]}, "/urls"),
        (Entry.SEARCH, {"mode": "url", "urls": ["https://a.example/" + "x" * 2048]}, "/urls"),
        (Entry.SEARCH, {"mode": "url", "urls": ["x"], "query": None}, "/query"),
        (Entry.SEARCH_URL, {"mode": "url", "urls": ["https://a.example"]}, "/mode"),
        (Entry.SEARCH_URL, {"query": "k"}, "/urls"),
        (Entry.SEARCH_URL, {"urls": ["x"], "query": "a\0b"}, "/query"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_field(
    entry: Entry, raw: dict[str, Any], path: str
) -> None:
    """Never clamped, never dropped."""
    with pytest.raises(WebToolError) as refused:
        parse_plugin_arguments(entry, raw)

    assert WebErrorCode.INVALID_INPUT == refused.value.code
    assert path in [fault.path for fault in refused.value.faults]


@settings(max_examples=50)
@given(
    st.one_of(st.none(), st.text(max_size=4), st.dictionaries(
        st.sampled_from(["mode", "query", "urls", "x"]),
        st.none() | st.integers() | st.sampled_from(["model", "url", "k"])
        | st.lists(st.none() | st.text(max_size=4), max_size=3),
        max_size=4,
    )),
    st.sampled_from(list(Entry)),
)  # fmt: skip
def test_reading_arguments_is_total(raw: object, entry: Entry) -> None:
    """A call, or the one refusal."""
    try:
        assert isinstance(parse_plugin_arguments(entry, raw), ModelSearch | UrlSearch)
    except WebToolError:
        return


# ── summaries ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("answer", "summary"),
    [
        (Completed(text=" A pot.\n"), "A pot."),
        (Completed(text="x" * 16), "x" * 16),
        (Completed(text="x" * 17), None),
        (Completed(text="\u00e4" * 9), None),
        (Completed(text="A po", cut=True), None),
        (Completed(text=" \n"), None),
        (Completed(text=""), None),
        (Completed(text="a\ud800"), None),
        (Completed(text="a\0b"), None),
    ],
)
def test_a_summary_is_whole_text_within_its_bound(answer: Completed, summary: str | None) -> None:
    """What was cut may say the contrary of the whole."""
    assert summary == read_summary(answer, most_bytes=16)


def key(number: int) -> SummaryKey:
    return SummaryKey(revision=f"r{number}", shown_bytes=1, question=None, model="m")


def test_thirty_two_summaries_are_kept_for_ten_minutes() -> None:
    """The one that was used last longest ago goes; a clock that went back has none."""
    cache = SummaryCache()
    for number in range(32):
        cache.keep(key(number), str(number), now=NOW)
    assert "0" == cache.find(key(0), now=NOW + timedelta(seconds=599))
    assert cache.find(key(0), now=NOW + timedelta(minutes=10)) is None
    assert cache.find(key(0), now=NOW - timedelta(seconds=1)) is None
    cache.keep(key(32), "32", now=NOW)

    assert "0" == cache.find(key(0), now=NOW)
    assert cache.find(key(1), now=NOW) is None
    assert "32" == cache.find(key(32), now=NOW)


def test_every_code_has_its_sentence_here_and_in_the_docs() -> None:
    """One row for each, word for word."""
    table = (ROOT / "docs" / "search-plugin.md").read_text()

    assert set(PluginCode) == set(SENTENCES)
    for code, sentence in SENTENCES.items():
        assert f"| `{code}` | {sentence} |" in table
    for name, codec in PROTOCOLS.items():
        held = ", ".join(sorted(codec.holds)) or "\N{EN DASH}"
        assert f"| `{name}` | {held} |" in table
    assert json.dumps(sorted(SENTENCES.values())) == json.dumps(sorted(set(SENTENCES.values())))
