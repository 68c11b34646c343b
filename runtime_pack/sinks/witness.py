"""A witness over HTTP: what is known of a log is kept behind an address that its writer cannot change.

A GET gives the checkpoint that is known, 404 for none; a PUT puts the new one in its place, on the
condition that nobody else has meanwhile. Any store of files with entity tags can be it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from egress import AddressPolicy, parse_target
from egress.errors import EgressError
from runtime_pack.audit.keys import signed_by
from runtime_pack.audit.note import SignedNote, VerifyKey
from runtime_pack.audit.proofs import watch
from runtime_pack.errors import AuditError
from runtime_pack.inner import frozen

if TYPE_CHECKING:
    from egress.request import Response

__all__ = ("HttpStore", "watch_over_http")

_GONE_BY: Final = frozenset({409, 412})
_UNKNOWN: Final = frozenset({404, 410})


@frozen(kw_only=True)
class HttpStore:
    """Where checkpoints are kept.

    Attributes:
        url: of the one file for one log; https, or http with *private_address*.
        private_address: whether its host may have an address that is not public.
        context: what its certificate is verified with.
        token: sent as a bearer token.
    """

    url: str
    private_address: bool = False
    context: ssl.SSLContext | None = None
    token: str | None = None

    async def ask(
        self, method: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> Response:
        """The answer to one request.

        Raises:
            AuditError: there was none.
        """
        from egress.request import ApiPolicy, Wires, request_through_policy
        from egress.transport import AiohttpTransport

        given = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        try:
            target = parse_target(self.url)
            if target.scheme != "https" and not (self.private_address and self.token is None):
                raise AuditError("a witness is asked over https, and a token is sent over it alone")
            opened = [target.host] if self.private_address else []
            policy = ApiPolicy(
                address=AddressPolicy(allowed_hosts=frozenset(opened)),
                origins=frozenset({target.origin}),
            )
            return await request_through_policy(
                self.url,
                policy=policy,
                method=method,
                headers={**headers, **given},
                body=body,
                wires=Wires(transport=lambda: AiohttpTransport(ssl_context=self.context)),
            )
        except EgressError as error:
            raise AuditError(f"the witness cannot be asked: {error}") from error


async def watch_over_http(log: Path, store: HttpStore, keys: Iterable[VerifyKey]) -> SignedNote:
    """The last checkpoint of the log, which the store has by then, if the log goes on from what it knew.

    Raises:
        AuditError: the log does not, or the store does not answer, knows what no trusted key signed,
            or was changed by somebody else meanwhile.
    """
    keys = tuple(keys)
    answer = await store.ask("GET", {})
    known = _known(answer, keys)
    note = await asyncio.to_thread(watch, log, known, keys)
    if note == known:
        return note
    tag = answer.header("etag")
    condition = (
        {"If-None-Match": "*"} if known is None else {} if tag is None else {"If-Match": tag}
    )
    told = await store.ask("PUT", {"Content-Type": "text/plain", **condition}, f"{note}\n".encode())
    if told.status in _GONE_BY:
        raise AuditError("another witness has stored a checkpoint meanwhile: ask again")
    if not 200 <= told.status < 300:
        raise AuditError(f"the witness did not store the checkpoint: it answered {told.status}")
    return note


def _known(answer: Response, keys: tuple[VerifyKey, ...]) -> SignedNote | None:
    if answer.status in _UNKNOWN:
        return None
    if answer.status != 200 or answer.truncated:
        raise AuditError(f"the witness does not say what it knows: it answered {answer.status}")
    try:
        note = SignedNote.parse(answer.body.decode("utf-8").rstrip("\n") + "\n")
    except UnicodeDecodeError as error:
        raise AuditError("what the witness knows is no checkpoint") from error
    if signed_by(note, keys) is None:
        raise AuditError("what the witness knows is by no trusted key")
    return note
