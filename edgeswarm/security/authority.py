"""The certificate authority of a cluster: a key and a certificate in the operator's folder (`edgeswarm init`)."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ..errors import EdgeswarmError, ErrorCode
from .certificates import (
    BEGIN_AGAIN,
    Role,
    certificate_fingerprint,
    check_dates,
    key_fingerprint,
    key_from_pem,
    key_to_pem,
    new_key,
    new_request,
    public_key_of_request,
    single_certificate,
)
from .files import make_private_folder, write_atomically
from .identity import FILE_NAME as IDENTITY_FILE
from .identity import Identity
from .issued import FILE_NAME as ISSUED_FILE
from .issued import IssuedNodes
from .node_id import DOMAIN, load_or_create_node_id, server_name

JOIN_SERVER_NAME = f"join.{DOMAIN}"  # no node can have it: a node id ends in six hex digits
KEY_FILE = "authority.key"
CERTIFICATE_FILE = "authority.crt"

_AUTHORITY_VALIDITY = datetime.timedelta(days=3652)
_NODE_VALIDITY = datetime.timedelta(days=1096)
_CLOCK_SKEW = datetime.timedelta(days=1)  # a box whose clock is a time zone off can still join


class CertificateAuthority:
    """Signs the certificates of one cluster. Whoever holds its key can add devices and give orders to all of them."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self._certificate = certificate

    @classmethod
    def create(cls, folder: Path) -> CertificateAuthority:
        """Make a new authority in `folder`; raises EdgeswarmError (OUTPUT_EXISTS) where there is one already."""
        make_private_folder(folder)
        # A key alone, under which no node was entered, is of an `init` that was cut short: nothing was signed with it.
        signs = (folder / ISSUED_FILE).exists()
        for file_name in (CERTIFICATE_FILE, KEY_FILE) if signs else (CERTIFICATE_FILE,):
            if (folder / file_name).exists():
                raise EdgeswarmError(
                    ErrorCode.OUTPUT_EXISTS,
                    f"There is a cluster authority already ({folder / file_name}); "
                    "a new one would lock out every device that joined.",
                    f"Use the one that is there, or move {folder} away to begin a new cluster.",
                )
        key = new_key()
        now = datetime.datetime.now(datetime.timezone.utc)
        # The serial number in the name tells two clusters' authorities apart in a TLS library's error.
        name = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, DOMAIN),
                x509.NameAttribute(
                    NameOID.COMMON_NAME, f"edgeswarm authority {x509.random_serial_number() % 16**8:08x}"
                ),
            ]
        )
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCK_SKEW)
            .not_valid_after(now + _AUTHORITY_VALIDITY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(authority=True), critical=True)
            .add_extension(identifier, critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
            .sign(key, hashes.SHA256())
        )
        write_atomically(folder / KEY_FILE, key_to_pem(key))
        # The certificate last: `load` takes its presence as the sign that the authority is complete.
        write_atomically(folder / CERTIFICATE_FILE, certificate.public_bytes(serialization.Encoding.PEM), mode=0o644)
        return cls(key, certificate)

    @classmethod
    def load(cls, folder: Path) -> CertificateAuthority:
        """The authority in `folder`; raises EdgeswarmError (TRUST) where there is none or where it is damaged."""
        try:
            certificate = single_certificate((folder / CERTIFICATE_FILE).read_bytes())
            key = key_from_pem((folder / KEY_FILE).read_bytes())
        except FileNotFoundError as error:
            raise EdgeswarmError(
                ErrorCode.TRUST,
                f"This machine has no cluster authority ({error.filename} is missing).",
                "Run `edgeswarm init` first, or work on the machine where it was run.",
            ) from error
        except PermissionError as error:
            raise EdgeswarmError(
                ErrorCode.TRUST, f"{error.filename} can't be read by this user.", "Run the command as its owner."
            ) from error
        except ValueError as error:
            raise _damaged(folder, str(error)) from error
        if key.public_key() != certificate.public_key():
            raise _damaged(folder, "key and certificate don't belong together")
        return cls(key, certificate)

    @property
    def certificate_pem(self) -> bytes:
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def fingerprint(self) -> str:
        """sha256 of the authority's certificate (DER), 64 hex digits: the cluster's name in tokens and in mDNS."""
        return certificate_fingerprint(self._certificate)

    def sign(self, request_pem: bytes, *, node_id: str, role: Role) -> bytes:
        """A certificate (PEM) for the key of a certificate request.

        What the request itself asks for (its subject, its extensions) is ignored: node id and role are ours to give.
        Raises EdgeswarmError (TRUST) for a bad request, ValueError for a bad node id.
        """
        return self._issue(public_key_of_request(request_pem), node_id, server_name(node_id), role.value, client=True)

    def issue(self, *, node_id: str, role: Role) -> Identity:
        """A new key and its certificate in one step, for the operator's own machine (and for demos and tests)."""
        key = new_key()
        certificate_pem = self.sign(new_request(key, node_id), node_id=node_id, role=role)
        return Identity(node_id, key_to_pem(key), certificate_pem, self.certificate_pem)

    def issue_join_server(self) -> tuple[bytes, bytes]:
        """(key PEM, certificate PEM) for the join endpoint, which is no node."""
        key = new_key()
        return key_to_pem(key), self._issue(key.public_key(), "join", JOIN_SERVER_NAME, "join", client=False)

    def _issue(
        self, public_key: ec.EllipticCurvePublicKey, common_name: str, dns_name: str, unit: str, *, client: bool
    ) -> bytes:
        # No certificate is valid for longer than its authority's, and where that isn't valid none can be.
        check_dates(self._certificate, whose="the cluster authority", renewal=BEGIN_AGAIN)
        now = datetime.datetime.now(datetime.timezone.utc)
        issuer_identifier = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, *([ExtendedKeyUsageOID.CLIENT_AUTH] if client else [])]
        name = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, DOMAIN),
                x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit),
                x509.NameAttribute(NameOID.COMMON_NAME, common_name),
            ]
        )
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._certificate.subject)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(max(now - _CLOCK_SKEW, self._certificate.not_valid_before_utc))
            .not_valid_after(min(now + _NODE_VALIDITY, self._certificate.not_valid_after_utc))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(dns_name)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_identifier), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)


def create_cluster(*, authority_folder: Path, operator_folder: Path) -> tuple[CertificateAuthority, Identity]:
    """What `edgeswarm init` does: a new authority, and the identity of the operator's own machine, both saved.

    An authority that is there stays, and with it every device that joined: where the operator's identity is missing, damaged,
    expired or of another cluster, it gives a new one. Raises EdgeswarmError: OUTPUT_EXISTS where both are in order, or the
    authority is half there; TRUST for a damaged one; OUTPUT_FAILED, after which it may be called again.
    """
    authority = None
    if all((authority_folder / name).exists() for name in (KEY_FILE, CERTIFICATE_FILE)):
        authority = CertificateAuthority.load(authority_folder)
    try:
        if authority is None or _is_in_order(operator_folder, authority):
            authority = CertificateAuthority.create(authority_folder)
        node_id = load_or_create_node_id(operator_folder, operator=True)
        identity = authority.issue(node_id=node_id, role=Role.OPERATOR)
        # No device may join under this name: it would be the data service to the others.
        key = identity.certificate.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        IssuedNodes(authority_folder).enter(node_id, key_fingerprint=key_fingerprint(key))
        identity.save(operator_folder)
    except OSError as error:
        raise EdgeswarmError(
            ErrorCode.OUTPUT_FAILED,
            f"The cluster can't be written to {authority_folder} and {operator_folder}: {error.strerror or error}.",
            "Free space there, or let this user write to it, and run `edgeswarm init` again.",
        ) from error
    return authority, identity


def _is_in_order(operator_folder: Path, authority: CertificateAuthority) -> bool:
    """Whether the operator's identity is this cluster's and, by this machine's clock, valid: neither expired nor of a day to
    come, as one that was made while the clock was wrong.
    """
    try:
        identity = Identity.from_pem((operator_folder / IDENTITY_FILE).read_bytes())
        is_operator = identity.role is Role.OPERATOR
    except (OSError, ValueError):
        return False
    now = datetime.datetime.now(datetime.timezone.utc)
    is_valid = identity.certificate.not_valid_before_utc <= now <= identity.certificate.not_valid_after_utc
    return is_operator and is_valid and identity.cluster_fingerprint == authority.fingerprint


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _damaged(folder: Path, reason: str) -> EdgeswarmError:
    return EdgeswarmError(
        ErrorCode.TRUST,
        f"The cluster authority in {folder} is damaged: {reason}.",
        "Restore the folder from a backup, or move it away and run `edgeswarm init` (every device must join again).",
    )
