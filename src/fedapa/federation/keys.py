"""Keys and certificates: an authority of the federation's own, the coordinator's certificate, a key for every site."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedapa.errors import InputError

AUTHORITY_YEARS, SERVER_YEARS = 10, 2


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, from its creation on."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(content)


def make_authority(certificate: Path, key: Path, name: str) -> None:
    own = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"fedapa federation {name}"[:64])])
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    made = (
        _dated(AUTHORITY_YEARS)
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(own.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(own.public_key()), critical=False)
        .sign(own, hashes.SHA384())
    )
    write_secret(key, _pem(own))
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))


def make_server(certificate: Path, key: Path, authority: Path, authority_key: Path, hosts: list[str]) -> None:
    """A certificate for the coordinator under all its names."""
    ca, ca_key = _read_authority(authority, authority_key)
    own = ec.generate_private_key(ec.SECP384R1())
    made = (
        _dated(SERVER_YEARS)
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])]))
        .issuer_name(ca.subject)
        .public_key(own.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    write_secret(key, _pem(own))
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))


def make_site_key(path: Path) -> str:
    """Write a site's private key, readable by its owner only; returns the public key."""
    own = ec.generate_private_key(ec.SECP384R1())
    kind, none = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    write_secret(path, own.private_bytes(serialization.Encoding.PEM, kind, none))
    return _public(own.public_key())


def read_public(path: Path) -> str:
    """The public key in a file, in OpenSSH's or PEM form."""
    try:
        content = path.read_bytes()
        is_ssh = content.startswith(b"ecdsa-")
        found: Any = (serialization.load_ssh_public_key if is_ssh else serialization.load_pem_public_key)(content)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InputError(f"{path} holds no public key: {error}", "make one with `fedapa site key`") from None
    if not isinstance(found, ec.EllipticCurvePublicKey):
        raise InputError(f"{path} holds a key of another kind", "an ECDSA key on P-384 is needed")
    return _public(found)


def _public(key: ec.EllipticCurvePublicKey) -> str:
    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    text: str = key.public_bytes(serialization.Encoding.PEM, kind).decode()
    return text


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    made: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return made


def _read_authority(certificate: Path, key: Path) -> tuple[x509.Certificate, Any]:
    try:
        return (
            x509.load_pem_x509_certificate(certificate.read_bytes()),
            serialization.load_pem_private_key(key.read_bytes(), None),
        )
    except OSError as error:
        raise InputError(f"cannot read {error.filename}: {error.strerror}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InputError(
            f"the authority cannot be used: {error}", "give a PEM certificate and its unencrypted key"
        ) from None


def _dated(years: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=365 * years))
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
