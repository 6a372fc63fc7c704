"""Keys, certificate requests, and what edgeswarm reads in a certificate: node id, role, dates."""

from __future__ import annotations

import datetime
import enum
import functools
import hashlib

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ..errors import EdgeswarmError, ErrorCode
from .node_id import DOMAIN, is_node_id


class Role(enum.Enum):
    """What the holder of a certificate may do; kept in the certificate as its organizational unit."""

    AGENT = "agent"
    OPERATOR = "operator"


def new_key() -> ec.EllipticCurvePrivateKey:
    """A fresh EC P-256 key: small, quick on a small box, and known to every TLS library."""
    return ec.generate_private_key(ec.SECP256R1())


def key_to_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def key_from_pem(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Raises ValueError for what isn't an unencrypted EC P-256 key."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except TypeError as error:  # an encrypted key
        raise ValueError("the key is encrypted") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("the key is not an EC P-256 key")
    return key


def new_request(key: ec.EllipticCurvePrivateKey, node_id: str) -> bytes:
    """A certificate request (PEM) for this node, signed by its key: the proof that whoever asks has the key."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node_id)])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def public_key_of_request(request_pem: bytes) -> ec.EllipticCurvePublicKey:
    """The key in a certificate request, once the request's signature proves that the sender has its private part.

    Raises EdgeswarmError (TRUST) for anything else than a well-signed request for an EC P-256 key.
    """
    remedy = "Join again with the same version of edgeswarm on both machines."
    try:
        request = x509.load_pem_x509_csr(request_pem)
        key = request.public_key()
        signed = request.is_signature_valid
    except (ValueError, TypeError, InvalidSignature) as error:
        raise EdgeswarmError(ErrorCode.TRUST, "The certificate request can't be read.", remedy) from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise EdgeswarmError(ErrorCode.TRUST, "The certificate request is not for an EC P-256 key.", remedy)
    if not signed:
        raise EdgeswarmError(ErrorCode.TRUST, "The certificate request isn't signed by its own key.", remedy)
    return key


def key_fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """sha256 of the public key (DER), in hex."""
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def certificate_fingerprint(certificate: x509.Certificate) -> str:
    """sha256 of the certificate (DER), in hex: of an authority's certificate, the fingerprint of its cluster."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def single_certificate(pem: bytes) -> x509.Certificate:
    """The one certificate in `pem`; raises ValueError where there is none or more than one.

    More than one matters: a TLS library trusts every certificate of a file, while we compare the hash of one.
    """
    certificates = x509.load_pem_x509_certificates(pem)
    if len(certificates) != 1:
        raise ValueError(f"{len(certificates)} certificates where one is expected")
    return certificates[0]


@functools.lru_cache(maxsize=256)  # the servers ask this for every call of the same few peers
def read_certificate(pem: bytes) -> tuple[str, Role]:
    """(node id, role) in a certificate that our authority signed; raises ValueError where it has none."""
    return certificate_holder(x509.load_pem_x509_certificate(pem))


def certificate_holder(certificate: x509.Certificate) -> tuple[str, Role]:
    """(node id, role) in a certificate; raises ValueError where they aren't there."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound as error:
        raise ValueError("the certificate has no name") from error
    node_ids = [
        name[: -len(DOMAIN) - 1] for name in names.get_values_for_type(x509.DNSName) if name.endswith(f".{DOMAIN}")
    ]
    units = [
        attribute.value for attribute in certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
    ]
    if len(node_ids) != 1 or not is_node_id(node_ids[0]) or len(units) != 1:
        raise ValueError("the certificate isn't one of a node")
    return node_ids[0], Role(units[0])


_JOIN_AGAIN = "join the cluster again with a new token (`edgeswarm token create`)"
# Where it is the authority's own certificate that is over.
BEGIN_AGAIN = (
    "move the authority's folder away on the operator's machine, run `edgeswarm init` there, and let every device "
    "join again"
)


def check_dates(
    certificate: x509.Certificate, *, whose: str, now: datetime.datetime | None = None, renewal: str = _JOIN_AGAIN
) -> None:
    """Raises EdgeswarmError (TRUST) where the certificate isn't valid at `now` (default: this machine's clock).

    renewal: how to get another one.

    Small boards often have no battery behind their clock and wake up in the past, so the message gives its date.
    """
    now = now or datetime.datetime.now(datetime.timezone.utc)
    clock = f"this machine's clock says {now:%Y-%m-%d %H:%M} UTC"
    if now < certificate.not_valid_before_utc:
        raise EdgeswarmError(
            ErrorCode.TRUST,
            f"The certificate of {whose} isn't valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC; "
            f"{clock}.",
            "Set this machine's clock (`timedatectl set-ntp true`).",
        )
    if now > certificate.not_valid_after_utc:
        raise EdgeswarmError(
            ErrorCode.TRUST,
            f"The certificate of {whose} expired on {certificate.not_valid_after_utc:%Y-%m-%d}; {clock}.",
            f"If the clock is right, {renewal}.",
        )
