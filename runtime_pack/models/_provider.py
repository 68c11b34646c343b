"""What the adapters of the providers share: their clients, and what becomes of a failure.

An adapter asks once. Whatever goes wrong ends as one `ModelRequestError`; whether to ask again is
the runtime's decision.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary

import attrs

from egress.errors import EgressError
from egress.policy import EgressPolicy
from runtime_pack.errors import (
    ContractError,
    ModelFault,
    ModelRequestError,
    RuntimePackError,
)
from runtime_pack.messages import Json, Turn, Usage
from runtime_pack.models._faults import Asked, refused_request
from runtime_pack.models._wire import CutResponse, MalformedResponse
from runtime_pack.ports import Clock, ExecutionContext, SystemClock, TurnRequest

if TYPE_CHECKING:
    from egress.ports import Resolver

__all__ = ("Heard", "ProviderModel", "plain")

_CAUSES_LOOKED_AT: Final = 10


class Heard:
    """Gives the pieces of a text to whoever listens, and knows whether there was one."""

    __slots__ = ("_listener", "any")

    def __init__(self, listener: Callable[[str], None] | None) -> None:
        self._listener = listener
        self.any = False

    def tell(self, text: str) -> None:
        """Give one piece on; an empty one is none."""
        if text and self._listener is not None:
            self.any = True
            self._listener(text)


def plain(item: Any) -> object:
    """A piece of a stream as plain JSON; the SDKs make objects of their own of it."""
    made = getattr(item, "to_dict", None)
    return item if made is None else made(warnings=False)


@attrs.define
class _Open:
    """A client of one event loop, and how many turns are under way over it."""

    client: Any
    turns: int = 0


class ProviderModel(ABC):
    """A model behind an official SDK.

    It keeps connections between the turns of a run; the runtime gives them back at the end of a
    drive. A host that takes turns without a loop calls `aclose`. One object may serve many runs,
    and several event loops.

    Args:
        model: The model's name at the provider; a `TurnRequest.model` goes before it.
        api_key: The key, or None to send none. The environment is not read here.
        base_url: The API's address, the provider's own by default; exactly this one is reached.
        policy: What the operator lets us reach; by default exactly the endpoint. A loopback or
            private address has to be in its list, as a literal entry.
        stream: Whether to stream; by default when somebody listens.
        max_output_tokens: The limit of a response where the turn names none.
        options: More fields of the request, such as `temperature`, as the API names them.
        timeout_seconds: How long the provider may be silent.
        resolver: Answers names; the operating system's by default.
        clock: What a Retry-After date is compared with.

    Raises:
        ContractError: the SDK is not installed, or a parameter is not one.
        UrlRejected: *base_url* is not a URL we accept.
    """

    _url = ""
    _sdk_name = ""
    _provider = ""
    _extra = ""
    _key_variable = ""
    _compatible = False
    _reserved: frozenset[str] = frozenset()

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        policy: EgressPolicy | None = None,
        stream: bool | None = None,
        max_output_tokens: int | None = None,
        options: Mapping[str, Json] | None = None,
        timeout_seconds: float = 300.0,
        resolver: Resolver | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not model:
            raise ContractError("model", "the name of the model is empty")
        if api_key is not None and not _can_be_sent(api_key):
            raise ContractError("api_key", "is empty, or has characters that no header can hold")
        self._sdk = self._import_sdk()
        # httpx2 comes with the SDKs, so the door to the network loads after them.
        from runtime_pack.models._guarded_http import Endpoint

        self._base_url = self._url if base_url is None else base_url
        self._endpoint = Endpoint.at(self._base_url, key=api_key, policy=policy)
        self._model = model
        self._stream = stream
        self._max_output_tokens = max_output_tokens
        self._options = dict(options or {})
        taken = sorted(self._reserved & self._options.keys())
        if taken:
            raise ContractError("options", f"{', '.join(taken)} is the adapter's own")
        self._timeout_seconds = timeout_seconds
        self._resolver = resolver
        self._clock = clock or SystemClock()
        self._open: WeakKeyDictionary[asyncio.AbstractEventLoop, _Open] = WeakKeyDictionary()

    @property
    def model_name(self) -> str:
        """What prices are looked up by when a request does not name a model."""
        return self._model

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._model!r}, at {self._endpoint.target.origin})"

    async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
        """Ask the provider once.

        Raises:
            ModelRequestError: it gave no whole response; the fault says why.
        """
        heard = Heard(context.on_delta)
        streams = context.on_delta is not None if self._stream is None else self._stream
        try:
            async with self._client() as client:
                return await self._ask(client, request, heard if streams else None)
        except RuntimePackError:
            raise
        # The boundary to foreign code: every failure gets its word here, and loses its prose.
        except Exception as error:
            raise self._failed(error, surfaced=heard.any) from error

    async def release(self) -> None:
        """Close the connections of this event loop, unless another run is using them."""
        loop = asyncio.get_running_loop()
        held = self._open.get(loop)
        if held is not None and not held.turns:
            del self._open[loop]
            await held.client.close()

    aclose = release

    @abstractmethod
    def _connect(self, http: Any) -> Any:
        """A client of the SDK over the guarded HTTP client."""

    @abstractmethod
    async def _ask(self, client: Any, request: TurnRequest, heard: Heard | None) -> Turn:
        """Send the request and read the response; stream when there is a listener."""

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Any]:
        from runtime_pack.models._guarded_http import guarded_client

        loop = asyncio.get_running_loop()
        held = self._open.get(loop)
        if held is None:
            http = guarded_client(
                self._endpoint, resolver=self._resolver, timeout_seconds=self._timeout_seconds
            )
            held = self._open.setdefault(loop, _Open(self._connect(http)))
        held.turns += 1
        try:
            yield held.client
        finally:
            held.turns -= 1

    def _import_sdk(self) -> Any:
        try:
            return import_module(self._sdk_name)
        except ImportError as error:
            need = (
                f"pip install 'agent-runtime-pack[{self._extra}]' where the package is published, "
                f"pip install -e '.[{self._extra}]' in a checkout"
            )
            text = f"models of {self._provider} need the package {self._sdk_name}: {need}"
            raise ContractError("model", text) from error

    def _failed(self, error: Exception, *, surfaced: bool) -> ModelRequestError:
        denied, unread = _found(error, EgressError), _found(error, MalformedResponse)
        if denied is not None:
            return self._fault(ModelFault.INVALID_REQUEST, f"not reached: {denied}", surfaced)
        if unread is not None:
            cut = isinstance(unread, CutResponse)
            fault = ModelFault.TRANSPORT if cut else ModelFault.MALFORMED
            return self._fault(fault, str(unread), surfaced)
        sdk = self._sdk
        if isinstance(error, sdk.APIStatusError):
            return self._refused(error.status_code, error.response.headers, error.body, surfaced)
        if isinstance(error, sdk.APITimeoutError | TimeoutError) or _is_timeout(error):
            return self._fault(ModelFault.TIMEOUT, "did not answer in time", surfaced)
        if isinstance(error, sdk.APIConnectionError | OSError | ssl.SSLError) or _is_http(error):
            return self._fault(ModelFault.TRANSPORT, "the connection failed or broke", surfaced)
        if isinstance(error, sdk.APIError) and error.body is not None:
            return self._refused(200, {}, error.body, surfaced)
        return self._fault(ModelFault.MALFORMED, _malformed(error), surfaced)

    def _refused(
        self,
        status: int,
        headers: Mapping[str, str],
        body: object,
        surfaced: bool,
        usage: Usage | None = None,
    ) -> ModelRequestError:
        return refused_request(
            self._provider,
            asked=self._asked(),
            status=status,
            headers=headers,
            body=body,
            now=self._clock.now(),
            secret=self._endpoint.key,
            surfaced=surfaced,
            usage=usage,
        )

    def _fault(self, fault: ModelFault, said: str, surfaced: bool) -> ModelRequestError:
        # Of one that has answered, nobody asks whether it is there.
        begun = surfaced and fault is ModelFault.TRANSPORT
        text = f"{self._provider}: {said}" + ("" if begun else self._asked().advice(fault))
        return ModelRequestError(fault=fault, message=text, surfaced=surfaced)

    def _asked(self) -> Asked:
        target = self._endpoint.target
        return Asked(
            model=self._model,
            variable=self._key_variable,
            place=f"{target.host} port {target.port}",
            compatible=self._compatible,
        )


def _can_be_sent(key: str) -> bool:
    return key.isascii() and key.isprintable() and key.strip() == key != ""


_Kind = TypeVar("_Kind", bound=BaseException)


def _found(error: BaseException, kind: type[_Kind]) -> _Kind | None:
    """The error of ours that an SDK has wrapped, if there is one."""
    inner: BaseException | None = error
    for _ in range(_CAUSES_LOOKED_AT):
        if inner is None or isinstance(inner, kind):
            return inner
        inner = inner.__cause__ or inner.__context__
    return None


def _is_http(error: Exception) -> bool:
    """Whether it is a failure of the HTTP client that an SDK let through."""
    import httpx2

    return isinstance(error, httpx2.TransportError)


def _is_timeout(error: Exception) -> bool:
    import httpx2

    return isinstance(error, httpx2.TimeoutException)


def _malformed(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return "a part of the response is not JSON"
    # Only the type: the text of a foreign error can hold what was sent.
    return f"the response could not be read ({type(error).__name__})"
