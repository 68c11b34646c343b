"""What the label, the addresses and what is private say of one call: every rule, and what never follows."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_pack.address_book import (
    LINK_MILLIBITS,
    Address,
    AddressBook,
    AddressFault,
    millibits_of,
)
from runtime_pack.addresses import WEB_ADDRESSES, last_labels, site_of
from runtime_pack.flow import FlowVerdict, RuleCode, judge_address, judge_flow, texts_of
from runtime_pack.label_table import (
    AddressOrigin,
    LabelPreset,
    LabelVerdict,
    SideEffect,
    strictest,
)
from runtime_pack.labels import CLEAN, Confidentiality, Integrity, Label, join
from runtime_pack.private_text import Leak, PrivateText

CASES = Path(__file__).resolve().parents[1] / "cases" / "fence.jsonl"
ROWS = [
    row
    for row in map(json.loads, CASES.read_text(encoding="utf-8").splitlines())
    if "url_decision" in row["expect"]
]
EXTERNAL = Label(integrity="external", confidentiality="public")
WORKSPACE = Label(integrity="external", confidentiality="workspace")
SECRET = Label(integrity="external", confidentiality="secret")
EMAIL = "alice@corp.example"
NONCE = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
WORDS = {"allow": LabelVerdict.ALLOW, "approve": LabelVerdict.ASK, "deny": LabelVerdict.DENY}


def _book(**known: list[str]) -> AddressBook:
    book = AddressBook()
    for origin, texts in known.items():
        read = [WEB_ADDRESSES.read(text) for text in texts]
        book.add([each.url for each in read if isinstance(each, Address)], AddressOrigin(origin))
    return book


def _row(name: str, url: str, decision: str, reason: str, **context: Any) -> Mapping[str, Any]:
    return {
        "id": name,
        "content": url,
        "expect": {"url_decision": decision, "reason": reason},
        "args": {"context": context},
    }


DOCS = "https://docs.example/guide?id=7"
OWN_ROWS = [
    _row("exact", DOCS, "allow", "user", user=[DOCS]),
    _row("capitals in scheme and host", "HtTpS://Docs.EXAMPLE/guide?id=7", "allow", "user", user=[DOCS]),
    _row("capitals in the path", "https://docs.example/Guide?id=7", "deny", "model_composed", user=[DOCS]),
    _row("capitals in the query", "https://docs.example/guide?ID=7", "deny", "model_composed", user=[DOCS]),
    _row("a fragment", DOCS + "#secret-stuff", "allow", "user", user=[DOCS]),
    _row("a fragment of the user's", DOCS, "allow", "user", user=[DOCS + "#intro"]),
    _row("dot segments", "https://docs.example/a/../guide?id=7", "allow", "user", user=[DOCS]),
    _row("escaped dot segments", "https://docs.example/a/%2e%2E/guide?id=7", "allow", "user", user=[DOCS]),
    _row("a needless escape", "https://docs.example/%67uide?id=7", "allow", "user", user=[DOCS]),
    _row("a needless escape of the user's", DOCS, "allow", "user", user=["https://docs.example/gu%69de?id=7"]),
    _row("an escape that is needed", "https://docs.example/a%2Fb", "deny", "model_composed", user=["https://docs.example/a/b"]),
    _row("an escape in either case", "https://docs.example/a%2fb", "allow", "user", user=["https://docs.example/a%2Fb"]),
    _row("an escape in the query", "https://docs.example/guide?id=%37", "deny", "model_composed", user=[DOCS]),
    _row("an escape of an escape", "https://docs.example/%2567uide?id=7", "deny", "model_composed", user=[DOCS]),
    _row("another scheme", "http://docs.example/guide?id=7", "deny", "model_composed", user=[DOCS]),
    _row("another port", "https://docs.example:8443/guide?id=7", "deny", "model_composed", user=[DOCS]),
    _row("a default port of the other scheme", "https://docs.example:80/guide?id=7", "deny", "model_composed", user=[DOCS]),
    _row("a trailing slash", "https://docs.example/guide/", "deny", "model_composed", user=["https://docs.example/guide"]),
    _row("no path is the root", "https://docs.example", "allow", "user", user=["https://docs.example/"]),
    _row("an empty query", "https://docs.example/guide?", "allow", "user", user=["https://docs.example/guide"]),
    _row("the host alone", "https://docs.example/", "deny", "model_composed", user=[DOCS]),
    _row("a name below", "https://x.docs.example/guide?id=7", "deny", "model_composed", user=[DOCS]),
    _row("a name above", "https://example/guide?id=7", "deny", "model_composed", user=[DOCS]),
    _row("a prefix of the user's", "https://docs.example/gui", "deny", "model_composed", user=[DOCS]),
    _row("a name that begins so", "https://docs.example.evil.example/guide?id=7", "deny", "model_composed", user=[DOCS]),
    _row("the other order of a query", "https://docs.example/?b=2&a=1", "deny", "model_composed", user=["https://docs.example/?a=1&b=2"]),
    _row("an international name", "https://b\u00fccher.example/", "allow", "user", user=["https://xn--bcher-kva.example/"]),
    _row("a name that looks alike", "https://d\u043ecs.example/guide?id=7", "deny", "model_composed", user=[DOCS]),
    _row("a trailing dot", "https://docs.example./guide?id=7", "allow", "user", user=[DOCS]),
    _row("spaces around", f"  {DOCS}\n", "allow", "user", user=[DOCS]),
    _row("a search result", "https://r.example/1", "allow", "search", search=["https://r.example/1"]),
    _row("beside a search result", "https://r.example/2", "deny", "model_composed", search=["https://r.example/1"]),
    _row("a page link", "https://p.example/1", "allow", "page_link", page=["https://p.example/1"]),
    _row("a page link with private data known", "https://p.example/1", "approve", "page_link", page=["https://p.example/1"], private=True),
    _row("a search result with private data known", "https://r.example/1", "allow", "search", search=["https://r.example/1"], private=True),
    _row("the user's with private data known", DOCS, "allow", "user", user=[DOCS], private=True),
    _row("composed with private data known", "https://c.example/", "deny", "model_composed", private=True),
    _row("on a page and from the user", DOCS, "allow", "user", user=[DOCS], page=[DOCS]),
    _row("private in the user's own", f"https://x.example/?m={EMAIL}", "deny", "private_data_in_url", user=[f"https://x.example/?m={EMAIL}"], private_strings=[EMAIL], private=True),
    _row("private in the host", "https://hunter42xyz.evil.example/", "deny", "private_data_in_url", private_strings=["HUNTER42xyz"], private=True),
    _row("private in the fragment", "https://evil.example/#hunter42xyz", "deny", "private_data_in_url", private_strings=["hunter42xyz"], private=True),
    _row("private reversed", f"https://evil.example/{EMAIL[::-1]}", "deny", "private_data_in_url", private_strings=[EMAIL], private=True),
    _row("private in base64 for addresses", "https://evil.example/" + base64.urlsafe_b64encode(b"??>>" + EMAIL.encode()).decode(), "deny", "private_data_in_url", private_strings=[EMAIL], private=True),
    _row("private in base64, one byte in", "https://evil.example/?d=" + base64.b64encode(b"." + EMAIL.encode()).decode(), "deny", "private_data_in_url", private_strings=[EMAIL], private=True),
    _row("private in base64, two bytes in", "https://evil.example/?d=" + base64.b64encode(b".." + EMAIL.encode()).decode(), "deny", "private_data_in_url", private_strings=[EMAIL], private=True),
    _row("private in base64 in a name", "https://" + base64.b32encode(b"x").decode().strip("=").lower() + ".YWxpY2VAY29ycC5leGFtcGxl.evil.example/", "deny", "private_data_in_url", private_strings=[EMAIL], private=True),
    _row("private escaped twice", "https://evil.example/?d=alice%2540corp.example", "deny", "private_data_in_url", private_strings=[EMAIL], private=True),
    _row("a short private string is not looked for", "https://r.example/?q=bob", "allow", "user", user=["https://r.example/?q=bob"], private_strings=["bob"], private=True),
    _row("a nonce", f"https://evil.example/?n={NONCE}", "deny", "nonce_in_url", nonces=[NONCE]),
    _row("a nonce in capitals", f"https://evil.example/{NONCE.upper()}", "deny", "nonce_in_url", nonces=[NONCE]),
    _row("a nonce on a page link", f"https://p.example/{NONCE}", "deny", "nonce_in_url", page=[f"https://p.example/{NONCE}"], nonces=[NONCE]),
    _row("a nonce in a name", f"https://{NONCE}.evil.example/", "deny", "nonce_in_url", nonces=[NONCE]),
    _row("credentials", "https://user:pw@docs.example/", "deny", "credentials_in_url", user=["https://user:pw@docs.example/"]),
    _row("a name as credentials", "https://docs.example@evil.example/", "deny", "credentials_in_url", user=["https://docs.example/"]),
    _row("empty credentials", "https://@docs.example/", "deny", "credentials_in_url", user=["https://docs.example/"]),
    _row("script", "javascript:alert(1)", "deny", "scheme", page=["javascript:alert(1)"]),
    _row("ftp", "ftp://docs.example/guide", "deny", "scheme", user=["ftp://docs.example/guide"]),
    _row("a file", "file:///etc/passwd", "deny", "scheme", user=["file:///etc/passwd"]),
    _row("web socket", "wss://docs.example/", "deny", "scheme", user=["wss://docs.example/"]),
    _row("data", "DATA:text/plain,x", "deny", "scheme", user=["data:text/plain,x"]),
    _row("a blob", "blob:https://docs.example/x", "deny", "scheme", user=["https://docs.example/x"]),
    _row("no address at all", "docs.example/guide?id=7", "deny", "model_composed", user=[DOCS]),
    _row("nothing", "", "deny", "model_composed", user=[DOCS]),
    _row("a backslash", "https://docs.example\\guide?id=7", "deny", "model_composed", user=[DOCS]),
]  # fmt: skip


@pytest.mark.parametrize("row", [*ROWS, *OWN_ROWS], ids=lambda row: row["id"])
def test_an_address_is_judged_before_any_name_is_looked_up(row: Mapping[str, Any]) -> None:
    """Under the strict preset; the cases and our own rows of their kind."""
    context = row["args"]["context"]
    private = PrivateText()
    for each in context.get("private_strings", ()):
        private.add(each, Leak.DECLARED)
    known = {"user": "user", "search": "search", "page": "page_link"}

    said = judge_address(
        row["content"],
        preset=LabelPreset.STRICT,
        label=WORKSPACE if context.get("private") else EXTERNAL,
        book=_book(**{origin: context.get(key, []) for key, origin in known.items()}),
        reader=WEB_ADDRESSES,
        private=private,
        nonces=set(context.get("nonces", ())),
    )

    assert (said.verdict, said.reason) == (
        WORDS[row["expect"]["url_decision"]],
        row["expect"]["reason"],
    )


def test_there_are_rows_of_addresses() -> None:
    """A file that was not found would pass for no fault."""
    assert len(ROWS) >= 11


# ── one call, every rule ──────────────────────────────────────────────────────────────────────


def _judge(**given: Any) -> FlowVerdict:
    private = PrivateText()
    for kind, strings in given.pop("private", {}).items():
        for each in strings:
            private.add(each, kind)
    defaults: dict[str, Any] = {
        "preset": LabelPreset.STRICT,
        "label": EXTERNAL,
        "side_effects": (SideEffect.MESSAGE,),
        "destination_args": ("to",),
        "arguments": {},
        "book": AddressBook(),
        "reader": WEB_ADDRESSES,
        "private": private,
    }
    return judge_flow(**defaults | given)


def _codes(verdict: FlowVerdict) -> list[str]:
    return [str(rule.code) for rule in verdict.rules]


def test_every_rule_that_is_broken_is_shown_at_once() -> None:
    """A message that spends, with a private string, in one word of the judge."""
    said = _judge(
        side_effects=(SideEffect.MESSAGE, SideEffect.SPEND),
        arguments={"to": "bob", "body": f"mail {EMAIL}"},
        private={Leak.WORKSPACE: [EMAIL]},
    )

    assert _codes(said) == ["message", "spend", "private_data"]
    assert said.verdict is LabelVerdict.ASK


def test_what_is_declared_private_is_denied_and_what_the_workspace_shares_is_asked() -> None:
    """In a message; in an address both are denied."""
    asked = _judge(arguments={"body": EMAIL}, private={Leak.WORKSPACE: [EMAIL]})
    denied = _judge(arguments={"body": EMAIL}, private={Leak.DECLARED: [EMAIL]})
    read = _judge(
        side_effects=(SideEffect.READ_NET,),
        destination_args=("url",),
        arguments={"url": f"https://x.example/{EMAIL}"},
        private={Leak.WORKSPACE: [EMAIL]},
    )

    assert (asked.verdict, denied.verdict, read.verdict) == (
        LabelVerdict.ASK,
        LabelVerdict.DENY,
        LabelVerdict.DENY,
    )


@pytest.mark.parametrize(
    ("label", "kind", "expected"),
    [
        (EXTERNAL, None, LabelVerdict.ALLOW),
        (WORKSPACE, None, LabelVerdict.ALLOW),
        (WORKSPACE, Leak.WORKSPACE, LabelVerdict.ASK),
        (SECRET, None, LabelVerdict.ASK),
        (SECRET, Leak.SECRET, LabelVerdict.DENY),
        (CLEAN, Leak.CANARY, LabelVerdict.DENY),
    ],
)
def test_a_search_query_is_looked_through(
    label: Label, kind: Leak | None, expected: LabelVerdict
) -> None:
    """Asked if it matches what the workspace shares, denied if it matches what is secret."""
    said = _judge(
        label=label,
        side_effects=(SideEffect.READ_NET,),
        destination_args=(),
        arguments={"query": f"who is {EMAIL}", "limit": 3},
        private={} if kind is None else {kind: [EMAIL]},
    )

    assert said.verdict is expected


def test_a_private_string_shared_out_between_two_arguments_is_found() -> None:
    """The parts are sent together."""
    said = _judge(
        arguments={"subject": EMAIL[:9], "body": EMAIL[9:]}, private={Leak.DECLARED: [EMAIL]}
    )

    assert "private_data" in _codes(said)


def test_numbers_and_names_of_fields_are_looked_through() -> None:
    """Whatever part of the arguments it is put in."""
    for arguments in (
        {"n": 4929123456781234},
        {"4929123456781234": 1},
        {"a": [{"b": "4929123456781234"}]},
    ):
        said = _judge(arguments=arguments, private={Leak.DECLARED: ["4929-1234-5678-1234"]})

        assert "private_data" in _codes(said)


def test_where_it_goes_is_told_without_what_it_carries() -> None:
    """The domain that somebody registered, and not the labels below it."""
    payload = base64.b32encode(b"payload").decode().lower().strip("=")
    said = _judge(
        side_effects=(SideEffect.READ_NET,),
        destination_args=("url",),
        arguments={"url": f"https://{payload}.evil.example/?d={EMAIL}"},
        private={Leak.DECLARED: [EMAIL]},
    )
    told = json.dumps([rule.to_json() for rule in said.rules]) + "".join(
        rule.told() for rule in said.rules
    )

    assert "evil.example" in told
    assert payload not in told
    assert EMAIL not in told


def test_a_registered_domain_that_is_the_payload_is_not_told() -> None:
    """Then there is nothing left to tell."""
    said = _judge(
        side_effects=(SideEffect.READ_NET,),
        destination_args=("url",),
        arguments={"url": "https://hunter42xyz.example/"},
        private={Leak.DECLARED: ["hunter42xyz"]},
    )

    assert {rule.host for rule in said.rules} == {""}


def test_without_a_reader_every_destination_is_composed() -> None:
    """Nobody can say that it is known."""
    said = _judge(
        reader=None,
        side_effects=(SideEffect.READ_NET,),
        destination_args=("url",),
        arguments={"url": DOCS},
        book=_book(user=[DOCS]),
    )

    assert _codes(said) == ["model_composed"]


def test_a_destination_that_is_no_address_is_composed() -> None:
    """The name of a thing that a tool reads is not known from anywhere."""
    said = _judge(
        side_effects=(SideEffect.READ_NET,),
        destination_args=("repo",),
        arguments={"repo": "owner/name"},
        label=WORKSPACE,
        preset=LabelPreset.STANDARD,
    )

    assert (_codes(said), said.verdict) == (["model_composed"], LabelVerdict.ASK)


def test_each_address_of_a_list_is_judged() -> None:
    """A known one does not cover for the next."""
    said = _judge(
        side_effects=(SideEffect.READ_NET,),
        destination_args=("urls",),
        arguments={"urls": [DOCS, "https://evil.example/"]},
        book=_book(user=[DOCS]),
    )

    assert [(str(rule.code), rule.host) for rule in said.rules] == [
        ("model_composed", "evil.example")
    ]


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        (CLEAN, LabelVerdict.ALLOW),
        (EXTERNAL, LabelVerdict.ALLOW),
        (WORKSPACE, LabelVerdict.ASK),
        (SECRET, LabelVerdict.DENY),
    ],
)
def test_under_the_standard_preset_a_composed_address_depends_on_what_is_private(
    label: Label, expected: LabelVerdict
) -> None:
    """Allowed, asked, denied."""
    said = judge_address(
        "https://docs.example/composed",
        preset=LabelPreset.STANDARD,
        label=label,
        book=AddressBook(),
        reader=WEB_ADDRESSES,
        private=PrivateText(),
    )

    assert (said.verdict, said.reason) == (expected, "model_composed")


labels = st.builds(
    Label,
    integrity=st.sampled_from(Integrity),
    confidentiality=st.sampled_from(Confidentiality),
)
urls = st.sampled_from(
    [DOCS, "https://r.example/1", "https://p.example/1", "https://evil.example/", "ftp://x/", "x"]
)
RANK = {LabelVerdict.ALLOW: 0, LabelVerdict.ASK: 1, LabelVerdict.DENY: 2}


@given(
    st.sampled_from(LabelPreset),
    labels,
    labels,
    st.none() | st.sets(st.sampled_from(SideEffect)).map(tuple),
    urls,
    st.booleans(),
    st.booleans(),
)
def test_more_taint_never_loosens_a_call(
    preset: LabelPreset,
    label: Label,
    more: Label,
    effects: tuple[SideEffect, ...] | None,
    url: str,
    known: bool,
    secret: bool,
) -> None:
    """Neither a worse label, nor one more private string, nor one address less."""
    book = _book(user=[DOCS], search=["https://r.example/1"], page_link=["https://p.example/1"])
    case: dict[str, Any] = {
        "preset": preset,
        "side_effects": effects,
        "destination_args": ("url",),
        "arguments": {"url": url, "body": "evil.example/ hunter42xyz"},
    }
    before = _judge(**case, label=label, book=book)
    after = _judge(
        **case,
        label=join(label, more),
        book=book if known else AddressBook(),
        private={Leak.SECRET: ["hunter42xyz"]} if secret else {},
    )

    # An address that is not known is composed, which the standard preset reads where it reads links.
    assert RANK[before.verdict] <= RANK[after.verdict]


@given(labels, st.sets(st.sampled_from(SideEffect)).map(tuple), urls)
def test_the_word_on_a_call_is_the_strictest_of_its_rules(
    label: Label, effects: tuple[SideEffect, ...], url: str
) -> None:
    """And allow where there is none."""
    said = _judge(
        label=label, side_effects=effects, destination_args=("url",), arguments={"url": url}
    )
    worst = LabelVerdict.ALLOW
    for rule in said.rules:
        worst = strictest(worst, rule.verdict)

    assert said.verdict is worst


# ── links ─────────────────────────────────────────────────────────────────────────────────────


def _link(book: AddressBook, url: str, preset: str = "strict", label: Label = EXTERNAL) -> Any:
    return judge_address(
        url,
        preset=LabelPreset(preset),
        label=label,
        book=book,
        reader=WEB_ADDRESSES,
        private=PrivateText(),
    )


def test_the_choice_of_links_may_tell_a_site_sixteen_bits() -> None:
    """Of 256 links, two may be followed, and a third one needs a person."""
    links = [f"https://a{number}.letters.example/{number}" for number in range(256)]
    book = _book(page_link=links)

    words = []
    for step in range(3):
        words.append((_link(book, links[step]).verdict, _link(book, links[step]).reason))
        book.charge(f"t{step}c1", links[step], "letters.example")

    assert words == [
        (LabelVerdict.ALLOW, "page_link"),
        (LabelVerdict.ALLOW, "page_link"),
        (LabelVerdict.ASK, "link_budget"),
    ]


def test_names_of_one_owner_share_what_they_may_be_told() -> None:
    """Whoever registered the domain sees all of them; a shared suffix is nobody's."""
    assert site_of("a.b.example.co.uk") == "example.co.uk"
    assert site_of("one.github.io") != site_of("two.github.io")
    assert [site_of(host) for host in ("localhost", "10.0.0.1", "2001:db8::1", "com")] == [
        "localhost",
        "10.0.0.1",
        "2001:db8::1",
        "com",
    ]


def test_a_call_is_charged_once_however_often_it_is_judged() -> None:
    """And another call anew: the order of what is read tells something too."""
    links = ["https://l.example/1", "https://l.example/2"]
    book = _book(page_link=links)

    for step in ("t1c1", "t1c1", "t2c1"):
        book.charge(step, links[0], "l.example")

    assert book.spent("l.example") == 2000


def test_what_was_told_survives_a_saved_run_and_only_rises() -> None:
    """Of two accounts the higher counts."""
    links = [f"https://l.example/{number}" for number in range(8)]
    book, other = _book(page_link=links), _book(page_link=links)
    for step in range(3):
        book.charge(f"t{step}c1", links[step], "l.example")
    other.charge("t9c1", links[0], "l.example")
    other.restore(json.loads(json.dumps(book.spent_json())))
    other.charge("t1c1", links[1], "l.example")

    assert other.spent("l.example") == 9000
    with pytest.raises(ValueError):
        other.restore({"spent": {"l.example": -1}, "charged": []})


def test_search_results_and_the_operators_addresses_are_kept_for_saved_runs() -> None:
    """The others are found again in the messages."""
    book = _book(user=[DOCS], search=["https://r.example/1"], operator=["https://o.example/"])
    restored = AddressBook()
    restored.restore_known(json.loads(json.dumps(book.kept)))

    assert restored.kept == book.kept
    with pytest.raises(ValueError):
        restored.restore_known([["https://x.example/", "page_link", -1]])
    assert restored.origin("https://r.example/1") is AddressOrigin.SEARCH
    assert restored.origin("https://o.example/") is AddressOrigin.OPERATOR
    assert restored.origin(DOCS) is AddressOrigin.COMPOSED


@given(st.lists(st.sampled_from(AddressOrigin), min_size=1))
def test_the_best_origin_of_an_address_counts_in_any_order(origins: list[AddressOrigin]) -> None:
    """A page that repeats what the user said takes nothing away."""
    book = AddressBook()
    for origin in origins:
        book.add([DOCS], origin)

    assert book.origin(DOCS) is min(origins, key=list(AddressOrigin).index)


def test_a_single_link_tells_nothing() -> None:
    """There was no choice. Of k links one tells the logarithm of k."""
    assert [millibits_of(k) for k in (0, 1, 2, 3, 256)] == [0, 0, 1000, 1585, 8000]
    assert LINK_MILLIBITS == 16_000


# ── addresses in texts ────────────────────────────────────────────────────────────────────────

FOUND = {
    "in a sentence": (f"Look at {DOCS}.", [DOCS]),
    "in Markdown": (f"[a]({DOCS}) and ![b](<https://i.example/x.png>)", [DOCS, "https://i.example/x.png"]),
    "with brackets of its own": ("(https://w.example/Foo_(bar))", ["https://w.example/Foo_(bar)"]),
    "in quotes": (f'href="{DOCS}"', [DOCS]),
    "twice": (f"{DOCS} {DOCS}#x", [DOCS]),
    "none": ("mail bob@corp.example, file:///x, javascript:x", []),
    "refused ones": ("https://u:p@x.example/ https://[::1 https:///x", []),
    "emphasised": (f"**{DOCS}**", [DOCS]),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), FOUND.values(), ids=FOUND.keys())
def test_addresses_are_found_in_texts(text: str, expected: list[str]) -> None:
    """Without the signs of the sentence around them."""
    assert [address.url for address in WEB_ADDRESSES.find(text)] == expected


def test_a_user_may_leave_out_the_scheme() -> None:
    """People write `docs.example.org/guide`; a page is not read so kindly."""
    text = "see docs.example.org/guide, not me@mail.example.org"

    assert [address.url for address in WEB_ADDRESSES.find(text, bare=True)] == [
        "https://docs.example.org/guide",
        "http://docs.example.org/guide",
    ]
    assert WEB_ADDRESSES.find(text) == ()


@given(st.text(max_size=200))
def test_reading_and_finding_addresses_never_fails(text: str) -> None:
    """And what is found is read as what it is."""
    assert isinstance(WEB_ADDRESSES.read(text), Address | AddressFault)
    for address in WEB_ADDRESSES.find(f"https://x.example/{text} {text}", bare=True):
        assert WEB_ADDRESSES.read(address.url) == address


def test_every_text_of_arguments_is_found() -> None:
    """In its order."""
    arguments: Any = {"a": ["x", {"b": "y"}], "c": 1.5, "d": None, "e": True, "f": "z"}

    assert list(texts_of(arguments)) == ["x", "y", "b", "1.5", "z", "f", "e", "d", "c", "a"]


def test_every_row_of_the_table_has_its_words() -> None:
    """A rule without a sentence could not be explained."""
    for code in RuleCode:
        said = _judge(side_effects=None, label=SECRET)
        told = said.rules[0]

        assert type(told)(code=code, verdict=told.verdict, standing=told.standing).told()


name_parts = st.sampled_from(
    ["a", "b", "co", "com", "uk", "github", "io", "city", "kawasaki", "jp"]
)


@given(st.lists(name_parts, min_size=1, max_size=5).map(".".join))
def test_without_the_list_of_suffixes_names_share_more(host: str) -> None:
    """The last two labels never part what the list holds together."""
    assert site_of(host) == host or last_labels(site_of(host)) == last_labels(host)


def test_sites_are_told_apart_without_the_extra() -> None:
    """The extra is looked for once, and its absence is no failure."""
    program = (
        "import sys; sys.modules['publicsuffixlist'] = None\n"
        "from runtime_pack.addresses import site_of\n"
        "print(site_of('a.b.example.co.uk'), site_of('localhost'), site_of('10.0.0.1'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.split() == [b"co.uk", b"localhost", b"10.0.0.1"]
