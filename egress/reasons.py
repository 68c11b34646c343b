"""What every reason word means and what to do about it: the rows of the tables in docs/egress.md.

For people who write lists and read logs. A word without a row fails a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import attrs

from egress.decision import DenyReason
from egress.errors import EntryReason, UrlReason

__all__ = ("DENY_ROWS", "ENTRY_ROWS", "URL_ROWS", "ReasonRow")


@attrs.frozen
class ReasonRow:
    """One row.

    Attributes:
        rule: The rule that gives this reason; several when it depends.
        meaning: What was found, in one sentence.
        advice: What to do, in one sentence.
    """

    rule: str
    meaning: str
    advice: str


_D, _U, _E = DenyReason, UrlReason, EntryReason

DENY_ROWS: Final[Mapping[DenyReason, ReasonRow]] = MappingProxyType(
    {
        _D.HOST_NOT_LISTED: ReasonRow(
            "R4",
            "No entry covers the host.",
            "Add the nearest entry to each list that lacks it, or `*.suffix` for its subdomains.",
        ),
        _D.APEX_NOT_COVERED: ReasonRow(
            "R5",
            "The host is the apex of a listed wildcard, which covers subdomains only.",
            "Add the bare host beside the wildcard.",
        ),
        _D.PORT_NOT_LISTED: ReasonRow(
            "R6",
            "The host is listed, for other ports; a bare host means the scheme's default port.",
            "Add `host:port`; `host:*` opens every port and is rarely what is meant.",
        ),
        _D.ADDRESS_NOT_LISTED: ReasonRow(
            "R7",
            "The URL names an address, and no literal or CIDR entry holds it.",
            "Add the address; an entry for a name that resolves to it does not count.",
        ),
        _D.ADDRESS_NOT_GLOBAL: ReasonRow(
            "R8",
            "The address is private or special, and nothing exempts it.",
            "If it is yours, list the address or its network beside the name; else let it be.",
        ),
        _D.NEVER_OPENED: ReasonRow(
            "R9",
            "The address is 0.0.0.0/8, `::`, multicast or reserved: never a page.",
            "No entry and no switch opens it. Look at what asked for it.",
        ),
        _D.METADATA_ADDRESS: ReasonRow(
            "R9",
            "The address hands out credentials or facts of the machine.",
            "No entry and no switch opens it. Take it for an attack until it is explained.",
        ),
        _D.SCOPED_ADDRESS: ReasonRow(
            "R10",
            "An answer of the lookup has a scope id, so it belongs to one interface.",
            "Mend the name: it should resolve to an address without a scope.",
        ),
        _D.NO_ANSWER: ReasonRow(
            "R11",
            "There is no answer to vet.",
            "Look at the resolver; in a run this is a failed lookup and no denial.",
        ),
        _D.MALFORMED_ANSWER: ReasonRow(
            "R11",
            "An answer of the lookup is no address.",
            "Look at the resolver that was given to the client.",
        ),
        _D.TOO_MANY_ANSWERS: ReasonRow(
            "R11",
            "The lookup has more than 256 answers.",
            "Look at the name and at its resolver; real names have a handful.",
        ),
        _D.ANSWER_NOT_THE_LITERAL: ReasonRow(
            "R11",
            "A literal host was answered with another address.",
            "Look at the resolver: a literal is never to be looked up.",
        ),
        _D.HTTPS_ONLY: ReasonRow(
            "R12",
            "The policy asks for https, and the URL or a redirect is http.",
            "Use the https URL, or take `https_only` away.",
        ),
        _D.NOT_TLS: ReasonRow(
            "R13",
            "The tunnel to port 443 does not begin with a ClientHello that can be read.",
            "List another port for protocols that are not TLS: `host:port` is an opaque tunnel.",
        ),
        _D.HELLO_TOO_LARGE: ReasonRow(
            "R13",
            "The ClientHello is longer than 16 KiB.",
            "Look at the client: none is known to send so much.",
        ),
        _D.SNI_MISSING: ReasonRow(
            "R13",
            "The TLS client does not say which host it wants.",
            "Use a client that sends SNI, or list the address and connect to that.",
        ),
        _D.SNI_MISMATCH: ReasonRow(
            "R13",
            "The TLS client asks for another host than the tunnel was opened to.",
            "Look at the client: this is how an allowed address is used for another site.",
        ),
        _D.OWN_LISTENER: ReasonRow(
            "R13",
            "The tunnel would lead back to the proxy itself.",
            "Look at the client: a proxy is not to be reached through itself.",
        ),
        _D.DENIED_BY_PROXY: ReasonRow(
            "R13",
            "The egress proxy refused it; its own event says why.",
            "Look the event id up in the proxy's log.",
        ),
    }
)

URL_ROWS: Final[Mapping[UrlReason, ReasonRow]] = MappingProxyType(
    {
        _U.NOT_TEXT: ReasonRow("R1", "The value is no text.", "Give a string."),
        _U.TOO_LONG: ReasonRow(
            "R1", "It has more than 8,192 characters, as typed or as sent.", "Shorten it."
        ),
        _U.NOT_UNICODE: ReasonRow(
            "R1", "It holds half of a surrogate pair.", "Mend what wrote it: this is no text."
        ),
        _U.CONTROL_CHARACTER: ReasonRow(
            "R1",
            "It holds a control character; blanks and line ends are only trimmed at both ends.",
            "Percent-encode it if it is meant; inside a URL it splits requests.",
        ),
        _U.BACKSLASH: ReasonRow(
            "R1", "It holds a backslash, which some parsers read as a slash.", "Write `/` or `%5C`."
        ),
        _U.NO_SCHEME: ReasonRow(
            "R1", "It does not begin with `http://` or `https://`.", "Write the whole URL."
        ),
        _U.SCHEME_NOT_ALLOWED: ReasonRow(
            "R1", "It has another scheme than http and https.", "Nothing else is fetched."
        ),
        _U.SLASHES: ReasonRow(
            "R1, R12",
            "The scheme is not followed by exactly two slashes, or a reference begins with three.",
            "Write `http://host/`.",
        ),
        _U.NO_HOST: ReasonRow("R1", "There is no host.", "Write the host after the two slashes."),
        _U.CREDENTIALS: ReasonRow(
            "R1",
            "There is an `@` before the path: user, password or a disguised host.",
            "Take it away: credentials never travel in a URL.",
        ),
        _U.PERCENT_IN_HOST: ReasonRow(
            "R1", "The host is percent-encoded.", "Write the host in plain characters."
        ),
        _U.WHITESPACE_IN_HOST: ReasonRow("R1", "The host holds a blank.", "Take it away."),
        _U.PORT: ReasonRow(
            "R1",
            "The port is not 1 to 65535 in one to five ASCII digits.",
            "Write the number, or leave port and colon away.",
        ),
        _U.HOST_CHARACTER: ReasonRow(
            "R2",
            "A label holds something else than letters, digits, `-` and `_`.",
            "Write the host as DNS knows it.",
        ),
        _U.LABEL_EMPTY: ReasonRow(
            "R2", "Two dots follow each other, or a dot leads.", "Take the dot away."
        ),
        _U.LABEL_TOO_LONG: ReasonRow(
            "R2",
            "A label has more than 63 characters.",
            "DNS has no such name: look at what wrote it.",
        ),
        _U.HOST_TOO_LONG: ReasonRow(
            "R2",
            "The host has more than 253 characters.",
            "DNS has no such name: look at what wrote it.",
        ),
        _U.IDNA: ReasonRow(
            "R2",
            "The international name is malformed or holds an invisible character.",
            "Type the name anew; a copied one may hide characters.",
        ),
        _U.NUMERIC_HOST: ReasonRow(
            "R3",
            "The host ends in a number and is no plain dotted quad (`127.1`, `0x7f.1`, `010.0.0.1`).",
            "Write the four decimal numbers without leading zeros.",
        ),
        _U.IPV6_LITERAL: ReasonRow(
            "R3",
            "What stands in brackets is no IPv6 address, or has a zone.",
            "Write the address without `%zone`.",
        ),
        _U.REFERENCE: ReasonRow(
            "R12",
            "A redirect's relative reference can be read in two ways.",
            "Mend the server; nothing was requested.",
        ),
    }
)

ENTRY_ROWS: Final[Mapping[EntryReason, ReasonRow]] = MappingProxyType(
    {
        _E.NOT_A_LIST: ReasonRow(
            "R15", "What was given is not a list of texts.", 'Write `["example.org"]`.'
        ),
        _E.TOO_MANY: ReasonRow(
            "R15", "The list has more than 10,000 entries.", "Use wildcards and networks."
        ),
        _E.NOT_TEXT: ReasonRow("R15", "An entry is no text.", "Write it in quotes."),
        _E.TOO_LONG: ReasonRow(
            "R15", "An entry has more than 1,024 characters.", "One entry is one host or network."
        ),
        _E.EMPTY: ReasonRow("R15", "An entry is empty.", "Take it away."),
        _E.WHITESPACE: ReasonRow("R15", "An entry holds a blank.", "Take it away."),
        _E.CONTROL_CHARACTER: ReasonRow(
            "R15", "An entry holds a control character or a backslash.", "Type it anew."
        ),
        _E.SCHEME: ReasonRow(
            "R15", "An entry has a scheme.", "Write the host alone; the port tells the scheme."
        ),
        _E.CREDENTIALS: ReasonRow("R15", "An entry holds an `@`.", "Write the host alone."),
        _E.PERCENT: ReasonRow(
            "R15", "An entry holds a percent sign: an encoding or a zone.", "Write it plainly."
        ),
        _E.PATH: ReasonRow(
            "R15",
            "An entry has a path, a query or a fragment.",
            "Write the host alone: a list knows hosts and ports, not pages.",
        ),
        _E.WILDCARD: ReasonRow(
            "R5",
            "The wildcard is not `*.` before a suffix of two labels or more.",
            "Write `*.example.org`; a whole top-level domain cannot be listed.",
        ),
        _E.PORT: ReasonRow(
            "R6", "The port is neither 1 to 65535 nor `*`.", "Write one number, or `*`; no range."
        ),
        _E.HOST: ReasonRow(
            "R15", "The host has no canonical form (R2, R3).", "Write it as a URL would have it."
        ),
        _E.CIDR_ADDRESS: ReasonRow(
            "R15", "What stands before the slash is no whole address.", "Write all four numbers."
        ),
        _E.CIDR_PREFIX: ReasonRow(
            "R15", "The prefix is no decimal number that fits.", "Write `/24`, not a netmask."
        ),
        _E.CIDR_HOST_BITS: ReasonRow(
            "R15",
            "The address has bits beyond the prefix.",
            "Write the network that the message names, or the address alone.",
        ),
        _E.CIDR_MAPPED: ReasonRow(
            "R15", "The network is IPv4 written as mapped IPv6.", "Write the IPv4 network."
        ),
    }
)
