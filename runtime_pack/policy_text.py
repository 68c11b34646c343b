"""A policy's text with another entry, class or rule: the rest stays as it was written. Pure.

An edit is made in the text, so that comments and layout stay, and is then held against the document
that was meant: where both differ, or the text has a form that is not edited here, nothing is changed.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from runtime_pack.inner import frozen

__all__ = ("EditRefused", "Edits", "RuleEdit", "edited", "policy_diff")

_HEADER: Final = re.compile(r"[ \t]*\[")
_TOOLS: Final = re.compile(r"[ \t]*\[\[[ \t]*tools[ \t]*\]\][ \t]*(#.*)?\Z")
_VERSION: Final = re.compile(r"(?m)^([ \t]*version[ \t]*=[ \t]*)([0-9]+)")
_CLASS: Final = re.compile(r"""([ \t]*class[ \t]*=[ \t]*)(?:"[a-z_]+"|'[a-z_]+')""")
# A string of TOML or a comment, which may hold a bracket that is none.
_OPAQUE: Final = re.compile(
    r'"""(?:[^\\]|\\.)*?"""|'
    r"'''.*?'''|"
    r'"(?:[^"\\\n]|\\.)*"|'
    r"'[^'\n]*'|#[^\n]*",
    re.DOTALL,
)
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+\Z")


class EditRefused(ValueError):
    """The text has a form that is not edited: change it by hand."""


@frozen(kw_only=True)
class RuleEdit:
    """Another class for the rule of this place (from 0), and rules that are put after all others."""

    place: int
    approval_class: str
    added: tuple[Mapping[str, Any], ...] = ()


@frozen(kw_only=True)
class Edits:
    """What a text is to say beside what it says: entries by key, classes by place."""

    entries: Mapping[str, tuple[str, ...]]
    rules: tuple[RuleEdit, ...] = ()


def edited(text: str, edits: Edits) -> str:
    """The text with the edits, and the next version.

    Raises:
        EditRefused: it cannot be edited so that it says what is meant, and nothing else.
    """
    wanted = _meant(_read(text), edits)
    for key, entries in edits.entries.items():
        text = _with_entries(text, key, entries)
    for rule in edits.rules:
        text = _with_class(text, rule.place, rule.approval_class)
    for table in (table for rule in edits.rules for table in rule.added):
        text = f"{text.rstrip()}\n\n{_table(table)}"
    if edits.entries or edits.rules:
        text = _VERSION.sub(lambda m: f"{m[1]}{wanted['version']}", text, count=1)
    if _read(text) != wanted:
        raise EditRefused("the file is written in a form that is not edited here")
    return text


def policy_diff(before: str, after: str, name: str) -> str:
    """A unified diff from one text of a file to the other; empty when they are the same."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def _read(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text, parse_float=Decimal)
    except (tomllib.TOMLDecodeError, RecursionError, ArithmeticError) as error:
        raise EditRefused("the file is no TOML") from error


def _meant(document: dict[str, Any], edits: Edits) -> dict[str, Any]:
    """The document as it is to be."""
    if not edits.entries and not edits.rules:
        return document
    meant = {**document, "version": document["version"] + 1}
    for key, entries in edits.entries.items():
        meant[key] = [*document.get(key, []), *entries]
    tools = [dict(rule) for rule in document.get("tools", [])]
    for rule in edits.rules:
        tools[rule.place]["class"] = rule.approval_class
    tools += [dict(table) for rule in edits.rules for table in rule.added]
    return {**meant, "tools": tools} if tools else meant


# ── lists ─────────────────────────────────────────────────────────────────────────────────────


def _with_entries(text: str, key: str, entries: Sequence[str]) -> str:
    found = _opening(text, key)
    if found is None:
        return _before_tables(text, f"{key} = [{', '.join(map(_quoted, entries))}]\n")
    end = _closing(text, found)
    inside = text[found:end]
    if "\n" not in inside:
        comma = ", " if inside.strip() else ""
        kept = inside.rstrip().removesuffix(",")
        return f"{text[:found]}{kept}{comma}{', '.join(map(_quoted, entries))}{text[end:]}"
    return text[:found] + _with_lines(inside, entries) + text[end:]


def _with_lines(inside: str, entries: Sequence[str]) -> str:
    """A list of a line for each entry, with more of them; the last one may lack its comma."""
    body = inside.rstrip(" \t")
    last = _last_value_end(body)
    if last and not body[last:].lstrip().startswith(","):
        body = f"{body[:last]},{body[last:]}"
    indent = re.search(r"\n([ \t]+)\S", body)
    space = indent[1] if indent else "    "
    body = body if body.endswith("\n") else f"{body}\n"
    return body + "".join(f"{space}{_quoted(entry)},\n" for entry in entries)


def _last_value_end(body: str) -> int:
    ends = [m.end() for m in _OPAQUE.finditer(body) if not m[0].startswith("#")]
    return ends[-1] if ends else 0


def _opening(text: str, key: str) -> int | None:
    """Where the list of a key at the top begins, behind its bracket."""
    pattern = re.compile(rf"(?m)^[ \t]*(?:{key}|\"{key}\"|'{key}')[ \t]*=[ \t]*\[")
    found = pattern.search(text, 0, _first_table(text))
    return None if found is None else found.end()


def _closing(text: str, at: int) -> int:
    """Where the list that begins at *at* ends."""
    position = at
    while position < len(text):
        opaque = _OPAQUE.match(text, position)
        if opaque is not None:
            position = opaque.end()
        elif text[position] == "]":
            return position
        else:
            position += 1
    raise EditRefused("a list of the file has no end")


def _first_table(text: str) -> int:
    """Where the first table begins, before which the keys of the top stand."""
    return next((start for start, line in _lines(text) if _HEADER.match(line)), len(text))


def _before_tables(text: str, line: str) -> str:
    at = _first_table(text)
    above, below = text[:at].rstrip("\n"), text[at:]
    return f"{above}\n{line}" + (f"\n{below}" if below else "")


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines that begin outside of every string and list, each with its place."""
    position, depth, start = 0, 0, 0
    while position < len(text):
        opaque = _OPAQUE.match(text, position)
        sign = text[position]
        if opaque is not None:
            position = opaque.end()
            continue
        # The brackets of a header close on their own line.
        depth += (sign in "[{") - (sign in "]}")
        position += 1
        if sign == "\n" and not depth:
            yield start, text[start : position - 1]
            start = position
    if start < len(text):
        yield start, text[start:]


# ── rules ─────────────────────────────────────────────────────────────────────────────────────


def _with_class(text: str, place: int, word: str) -> str:
    """The text with another class for one rule; it has to have a header and a line of its own."""
    lines = list(_lines(text))
    starts = [number for number, (_, line) in enumerate(lines) if _TOOLS.match(line)]
    if place >= len(starts):
        raise EditRefused("its rules are not written as [[tools]], one key a line")
    for start, line in lines[starts[place] + 1 :]:
        if _HEADER.match(line):
            break
        found = _CLASS.match(line)
        if found is not None:
            rest = line[found.end() :]
            return f'{text[:start]}{found[1]}"{word}"{rest}{text[start + len(line) :]}'
    raise EditRefused("its rules are not written as [[tools]], one key a line")


def _table(table: Mapping[str, Any]) -> str:
    keys = "".join(f"{_key(key)} = {_value(value)}\n" for key, value in table.items())
    return f"[[tools]]\n{keys}"


def _value(value: object) -> str:
    """A value as TOML writes it."""
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | Decimal):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(key)} = {_value(each)}' for key, each in value.items())} }}"
    raise EditRefused(f"a {type(value).__name__} is not written here")


def _key(key: str) -> str:
    return key if _BARE.match(key) else _quoted(key)


def _quoted(text: str) -> str:
    """A basic string: those of JSON are such, but for the delete character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
