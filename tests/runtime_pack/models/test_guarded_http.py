"""The adapters' way to the network: one endpoint under the operator's policy, and the key with it."""

import asyncio
import datetime as dt
import ipaddress
import json
import ssl
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpcore2
import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import runtime_pack
from egress import AddressPolicy, EgressDenied, EgressPolicy, UrlRejected, parse_allowlist
from runtime_pack import (
    ContractError,
    ExecutionContext,
    ModelFault,
    ModelRequestError,
    Turn,
    TurnRequest,
    UserMessage,
)
from runtime_pack.messages import Transcript
from runtime_pack.models._guarded_http import (
    PLACEHOLDER,
    Endpoint,
    GuardedTransport,
    TooLarge,
    _VettedBackend,
    guarded_client,
)
from runtime_pack.models.openai_chat import OpenAIChatModel

KEY = "sk-test-0123456789-abcdefghij"
JSON = {"Content-Type": "application/json"}
ANSWER = json.dumps(
    {"model": "m", "choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]}
)


class Names:
    """A resolver that answers every name alike, and counts."""

    def __init__(self, *answers: str) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(f"{host}:{port}")
        if not self.answers:
            raise OSError("no such name")
        return self.answers


def listed(*entries: str) -> EgressPolicy:
    return EgressPolicy(allowlist=parse_allowlist(entries))


def take(url: str, **given: Any) -> Turn:
    """One turn at *url*."""

    async def taken() -> Turn:
        model = OpenAIChatModel("m", api_key=KEY, base_url=url, **given)
        request = TurnRequest(messages=Transcript([UserMessage(text="hi")]), tools=())
        try:
            return await model.execute_turn(request, ExecutionContext())
        finally:
            await model.aclose()

    return asyncio.run(taken())


def denial(url: str, **given: Any) -> str:
    """What a turn that is refused its way says."""
    with pytest.raises(ModelRequestError) as raised:
        take(url, **given)
    assert raised.value.fault is ModelFault.INVALID_REQUEST
    assert not raised.value.retryable
    assert raised.value.status is None
    return raised.value.message


def get(
    endpoint: Endpoint,
    url: str,
    names: Names | None = None,
    max_body_bytes: int = 10_000,
    headers: dict[str, str] | None = None,
) -> httpx2.Response:
    """One request through the guarded client, whatever the endpoint is."""

    async def got() -> httpx2.Response:
        async with guarded_client(
            endpoint,
            resolver=names or Names(),
            timeout_seconds=5,
            max_body_bytes=max_body_bytes,
        ) as client:
            return await client.post(url, headers=headers, json={})

    return asyncio.run(got())


@pytest.mark.parametrize(
    "address",
    ["10.0.0.1", "127.0.0.1", "169.254.169.254", "::1", "fd00::1", "0.0.0.0", "100.64.0.1"],
)
def test_a_name_that_leads_inside_is_refused(address: str) -> None:
    """A provider's name with a private address is not dialled, and the error says by which rule."""
    names = Names(address)

    said = denial("https://api.example.com/v1", resolver=names)

    assert "egress to api.example.com port 443 denied" in said
    assert names.asked == ["api.example.com:443"]


def test_one_bad_answer_among_good_ones_is_refused() -> None:
    """Every answer has to pass: a rebinding name does not get through by its good half."""
    assert "denied" in denial("https://api.example.com/v1", resolver=Names("1.1.1.1", "10.0.0.1"))


def test_what_the_operator_does_not_list_is_not_looked_up() -> None:
    """With a list of the operator's own, an endpoint outside it is refused without a lookup."""
    names = Names("1.1.1.1")

    said = denial("https://api.example.com/v1", policy=listed("api.openai.com"), resolver=names)

    assert "R4" in said
    assert names.asked == []


def test_metadata_stays_closed_to_every_switch() -> None:
    """Not even an operator who allows private addresses reaches the metadata service."""
    policy = EgressPolicy(
        allowlist=parse_allowlist(["api.example.com"]),
        address=AddressPolicy(allow_private_addresses=True),
    )

    assert "R9" in denial(
        "https://api.example.com/v1", policy=policy, resolver=Names("169.254.169.254")
    )


def test_without_tls_no_public_address_is_dialled() -> None:
    """A key in the clear goes to nobody outside, even where the list admits the name."""
    assert "https_only" in denial("http://api.example.com/v1", resolver=Names("1.1.1.1"))


def test_a_name_that_is_not_found_is_transport() -> None:
    """A failed lookup is a failure of the way, and may be tried again."""
    with pytest.raises(ModelRequestError) as raised:
        take("https://api.example.com/v1", resolver=Names())

    assert raised.value.fault is ModelFault.TRANSPORT
    assert raised.value.retryable


@pytest.mark.parametrize(
    "url", ["", "api.example.com", "ftp://x.example", "http://u:p@x.example/", "http://2130706433/"]
)
def test_a_url_of_no_endpoint_is_refused_at_construction(url: str) -> None:
    """The grammar of URLs is the one of every other request."""
    with pytest.raises(UrlRejected):
        OpenAIChatModel("m", api_key=KEY, base_url=url)


@pytest.mark.parametrize("key", ["", " ", "a b\n", "é", "x\r\nHost: elsewhere", " sk-x"])
def test_a_key_that_no_header_can_hold_is_refused(key: str) -> None:
    """A key with a line break would be two headers; the error does not quote it."""
    with pytest.raises(ContractError) as raised:
        OpenAIChatModel("m", api_key=key)

    assert not key.strip() or key not in str(raised.value)


def test_no_repr_holds_the_key() -> None:
    """Neither the model nor its endpoint shows the key."""
    model = OpenAIChatModel("m", api_key=KEY)

    assert KEY not in repr(model)
    assert KEY not in repr(model._endpoint)


@pytest.mark.parametrize(
    "url",
    [
        "https://elsewhere.example/v1",
        "https://api.example.com:444/v1",
        "http://api.example.com/v1",
        "https://api.example.com.elsewhere.example/",
    ],
)
def test_only_the_endpoint_is_requested(url: str) -> None:
    """Another host, port or scheme is refused before anything is looked up, the list may say more."""
    names = Names("1.1.1.1")
    policy = listed("api.example.com:*", "elsewhere.example", "*.elsewhere.example")
    endpoint = Endpoint.at("https://api.example.com/v1", key=KEY, policy=policy)

    with pytest.raises(EgressDenied):
        get(endpoint, url, names, headers={"authorization": f"Bearer {PLACEHOLDER}"})
    assert names.asked == []


@pytest.mark.loopback
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(wire: Any, status: int) -> None:
    """A provider that redirects gets no second request, not even to itself, and is told on."""
    wire.script(
        {"status": status, "headers": {"Location": f"{wire.url}/elsewhere"}, "body": ""},
        {"headers": JSON, "body": ANSWER},
    )
    with pytest.raises(ModelRequestError, match="redirects are not followed") as raised:
        take(f"{wire.url}/v1")

    assert raised.value.status == status
    assert not raised.value.retryable
    assert ["/v1/chat/completions"] == [seen["path"] for seen in wire.seen()]


@pytest.mark.loopback
def test_loopback_is_reached_as_a_literal(wire: Any) -> None:
    """The configured endpoint is the list: a literal loopback address names itself."""
    wire.script({"headers": JSON, "body": ANSWER})

    assert take(f"{wire.url}/v1").text == "yes"


@pytest.mark.loopback
def test_loopback_by_name_needs_the_operators_entry(wire: Any) -> None:
    """A name that means loopback is refused, until the list names the address as well."""
    port = wire.url.rpartition(":")[2]
    url, names = f"http://model.example:{port}/v1", Names("127.0.0.1")
    wire.script({"headers": JSON, "body": ANSWER})

    said = denial(url, resolver=names)
    policy = listed(f"model.example:{port}", f"127.0.0.1:{port}")
    turn = take(url, resolver=names, policy=policy)

    assert "R8" in said
    assert turn.text == "yes"
    assert ["model.example:" + port] == [seen["headers"]["host"] for seen in wire.seen()]


@pytest.mark.loopback
def test_only_known_headers_leave(wire: Any) -> None:
    """What an SDK or its environment adds is dropped, and the key replaces its placeholder alone."""
    wire.script({"headers": JSON, "body": ANSWER})
    endpoint = Endpoint.at(f"{wire.url}/v1", key=KEY, policy=None)
    get(
        endpoint,
        f"{wire.url}/v1/x",
        headers={
            "authorization": f"Bearer {PLACEHOLDER}",
            "x-api-key": "another",
            "x-secret": "1",
            "cookie": "a=1",
            "host": "elsewhere.example",
        },
    )

    [seen] = wire.seen()
    assert seen["headers"]["authorization"] == f"Bearer {KEY}"
    assert seen["headers"]["host"] == wire.url.removeprefix("http://")
    assert not {"x-api-key", "x-secret", "cookie"} & seen["headers"].keys()


@pytest.mark.loopback
def test_an_encoded_body_is_refused(wire: Any) -> None:
    """No coding was asked for: what comes in one could be a bomb, and is not unpacked."""
    headers = {**JSON, "Content-Encoding": "gzip"}
    wire.script({"headers": headers, "body": ANSWER}, {"headers": headers, "body": ANSWER})
    endpoint = Endpoint.at(f"{wire.url}/v1", key=None, policy=None)

    with pytest.raises(TooLarge):
        get(endpoint, f"{wire.url}/v1/x")
    with pytest.raises(ModelRequestError) as raised:
        take(f"{wire.url}/v1")
    assert raised.value.fault is ModelFault.MALFORMED


@pytest.mark.loopback
def test_a_body_without_end_is_cut_off(wire: Any) -> None:
    """A response longer than any is an error, and is not kept in memory."""
    wire.script({"headers": JSON, "body": " " * 2000}, {"headers": JSON, "body": " " * 1000})
    endpoint = Endpoint.at(f"{wire.url}/v1", key=None, policy=None)

    with pytest.raises(TooLarge):
        get(endpoint, f"{wire.url}/v1/x", max_body_bytes=1000)
    assert get(endpoint, f"{wire.url}/v1/x", max_body_bytes=1000).status_code == 200


@pytest.mark.loopback
def test_a_closed_port_is_transport() -> None:
    """Nobody listens: the connection failed, and nothing is known of the request."""
    with pytest.raises(ModelRequestError) as raised:
        take("http://127.0.0.1:1/v1")

    assert raised.value.fault is ModelFault.TRANSPORT


@pytest.mark.loopback
def test_a_model_serves_several_loops_and_closes_each(wire: Any) -> None:
    """Each event loop has its own connections; a release while a turn is under way leaves them."""
    wire.script(*({"headers": JSON, "body": ANSWER} for _ in range(4)))
    model = OpenAIChatModel("m", api_key=KEY, base_url=f"{wire.url}/v1")
    request = TurnRequest(messages=Transcript([UserMessage(text="hi")]), tools=())

    async def turns() -> str:
        first, second = asyncio.create_task(turn()), asyncio.create_task(turn())
        await asyncio.sleep(0)
        await model.release()
        told = (await first).text + (await second).text
        await model.release()
        return told

    async def turn() -> Turn:
        return await model.execute_turn(request, ExecutionContext())

    assert [asyncio.run(turns()), asyncio.run(turns())] == ["yesyes", "yesyes"]
    assert not model._open


def test_the_pool_is_dialled_for_the_endpoint_alone() -> None:
    """Whatever the pool above would ask for, the dialler knows one host and one port."""
    endpoint = Endpoint.at("http://127.0.0.1:1/v1", key=None, policy=None)
    dialler = _VettedBackend(endpoint, Names())

    for host, port in (("127.0.0.1", 2), ("127.0.0.2", 1), ("localhost", 1)):
        with pytest.raises(httpcore2.ConnectError, match="not the endpoint"):
            asyncio.run(dialler.connect_tcp(host, port))
    with pytest.raises(httpcore2.ConnectError):
        asyncio.run(dialler.connect_unix_socket("/run/model.sock"))


def test_a_request_cannot_change_the_name_that_tls_verifies() -> None:
    """An SDK may ask for another name in the handshake; the endpoint's is verified all the same."""
    endpoint = Endpoint.at("https://api_x.example.com/v1", key=None, policy=None)
    transport = GuardedTransport(endpoint, resolver=None, max_body_bytes=1)
    request = httpx2.Request(
        "POST", "https://api_x.example.com/v1", extensions={"sni_hostname": "elsewhere.example"}
    )

    assert list(transport._translated(request).extensions) == ["timeout"]


@pytest.mark.loopback
def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path) -> None:
    """A server that anybody could have put there gets no request, and no key."""
    heard: list[bytes] = []

    async def main() -> None:
        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.append(await reader.read(1))
            writer.close()

        server = await asyncio.start_server(listen, "127.0.0.1", 0, ssl=_self_signed(tmp_path))
        port = server.sockets[0].getsockname()[1]
        model = OpenAIChatModel("m", api_key=KEY, base_url=f"https://127.0.0.1:{port}/v1")
        request = TurnRequest(messages=Transcript([UserMessage(text="hi")]), tools=())
        try:
            await model.execute_turn(request, ExecutionContext())
        finally:
            await model.aclose()
            server.close()
            await server.wait_closed()

    with pytest.raises(ModelRequestError) as raised:
        asyncio.run(main())
    assert raised.value.fault is ModelFault.TRANSPORT
    assert heard == []


def _self_signed(folder: Path) -> ssl.SSLContext:
    """A server's context with a certificate of its own making for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([loopback]), critical=False)
        .sign(key, hashes.SHA256())
    )
    chain = folder / "chain.pem"
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    stored = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    chain.write_bytes(stored + certificate.public_bytes(pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    return context


def test_no_sdk_traces_a_turn_on_its_own() -> None:
    """Where the host traces, an SDK would make spans that can hold the conversation: it makes none."""
    program = """
import asyncio
from opentelemetry import trace
from runtime_pack import ExecutionContext, ModelRequestError, TurnRequest, UserMessage
from runtime_pack.messages import Transcript
from runtime_pack.models import AnthropicMessagesModel, OpenAIChatModel

class Tracer(trace.NoOpTracer):
    def start_span(self, name, *args, **named):
        print(name)
        return super().start_span(name, *args, **named)

class Provider(trace.TracerProvider):
    def get_tracer(self, *args, **named):
        return Tracer()

trace.set_tracer_provider(Provider())

async def main(make):
    model = make("m", base_url="http://127.0.0.1:1")
    request = TurnRequest(messages=Transcript([UserMessage(text="hi")]), tools=())
    try:
        await model.execute_turn(request, ExecutionContext())
    except ModelRequestError as error:
        print(error.fault)
    await model.aclose()

asyncio.run(main(AnthropicMessagesModel))
asyncio.run(main(OpenAIChatModel))
"""
    root = Path(runtime_pack.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=root
    )

    assert done.stdout.split() == ["transport", "transport"]
