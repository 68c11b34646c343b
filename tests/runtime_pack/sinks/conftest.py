"""A certificate authority of the tests' own."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from pathlib import Path

import attrs
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@attrs.frozen
class Authority:
    """What a receiver on 127.0.0.1 shows, and what senders believe."""

    ca_file: Path
    cert_file: Path
    key_file: Path

    def server(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert_file, self.key_file)
        return context


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Signs for 127.0.0.1."""
    folder = tmp_path_factory.mktemp("ca")
    root_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    root = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority of the sinks")])
    ski = x509.SubjectKeyIdentifier.from_public_key(root_key.public_key())
    usage = dict.fromkeys(
        (
            "digital_signature",
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "key_cert_sign",
            "crl_sign",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    ca = (
        _builder(root, root, root_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**{**usage, "key_cert_sign": True}), critical=True)
        .add_extension(ski, critical=False)
        .sign(root_key, hashes.SHA256())
    )
    loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(ski)
    leaf = (
        _builder(x509.Name([]), root, key.public_key())
        .add_extension(x509.SubjectAlternativeName([loopback]), critical=True)
        .add_extension(issued_by, critical=False)
        .sign(root_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(ca.public_bytes(pem))
    (folder / "cert.pem").write_bytes(leaf.public_bytes(pem))
    plain = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(plain)
    return Authority(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder(issuer, subject, public, x509.random_serial_number())
    builder = builder.not_valid_before(now - dt.timedelta(days=1))
    return builder.not_valid_after(now + dt.timedelta(days=1))
