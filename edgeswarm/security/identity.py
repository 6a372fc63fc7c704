"""Who a machine is in its cluster: its key, its certificate, and the authority that it trusts."""

from __future__ import annotations

import dataclasses
import datetime
import re
from pathlib import Path

from cryptography import x509

from ..errors import EdgeswarmError, ErrorCode
from .certificates import (
    BEGIN_AGAIN,
    Role,
    certificate_fingerprint,
    certificate_holder,
    check_dates,
    key_from_pem,
    single_certificate,
)
from .files import make_private_folder, write_atomically

FILE_NAME = "identity.pem"  # one file, so that it is replaced whole

_BLOCK = re.compile(rb"-----BEGIN ([A-Z ]+)-----.+?-----END \1-----\n?", re.DOTALL)


@dataclasses.dataclass(frozen=True, repr=False)
class Identity:
    """What every connection of this machine is made with.

    key_pem, certificate_pem: this node's private key and its certificate; authority_pem: the cluster's authority.
    """

    node_id: str
    key_pem: bytes
    certificate_pem: bytes
    authority_pem: bytes

    def __repr__(self) -> str:  # a key must not end up in a log
        return f"Identity({self.node_id!r}, cluster {self.cluster_fingerprint[:16]})"

    @property
    def role(self) -> Role:
        return certificate_holder(self.certificate)[1]

    @property
    def certificate(self) -> x509.Certificate:
        return single_certificate(self.certificate_pem)

    @property
    def cluster_fingerprint(self) -> str:
        """sha256 of the authority's certificate (DER), 64 hex digits."""
        return certificate_fingerprint(single_certificate(self.authority_pem))

    def save(self, folder: Path) -> None:
        """Write the identity to `folder` as one file that only its owner reads, whole or not at all."""
        make_private_folder(folder)
        write_atomically(folder / FILE_NAME, self.key_pem + self.certificate_pem + self.authority_pem)

    @classmethod
    def load(cls, folder: Path, *, role: Role, now: datetime.datetime | None = None) -> Identity:
        """The identity in `folder`.

        role: what this program needs to be; it also decides which remedy the error names.
        now: the time to check the certificate's dates against; this machine's clock by default.
        Raises EdgeswarmError (TRUST) where there is none, where it is damaged, has another role or isn't valid now.
        """
        path = folder / FILE_NAME
        remedy = (
            "Run `edgeswarm-agent join HOST TOKEN` with a token of `edgeswarm token create`."
            if role is Role.AGENT
            else "Run `edgeswarm init`."
        )
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise EdgeswarmError(
                ErrorCode.TRUST, f"This machine has not joined a cluster ({path} is missing).", remedy
            ) from error
        except OSError as error:
            raise EdgeswarmError(
                ErrorCode.TRUST, f"{path} can't be read: {error.strerror}.", "Run the command as its owner."
            ) from error
        try:
            identity = cls.from_pem(data)
            held_role = identity.role
        except ValueError as error:
            raise EdgeswarmError(
                ErrorCode.TRUST, f"The identity in {path} is damaged: {error}.", f"Remove the file. {remedy}"
            ) from error
        if held_role is not role:
            raise EdgeswarmError(
                ErrorCode.TRUST,
                f"The identity in {path} is one of an {held_role.value}, not of an {role.value}.",
                remedy,
            )
        authority = single_certificate(identity.authority_pem)
        check_dates(authority, whose="the cluster authority", now=now, renewal=BEGIN_AGAIN)
        if role is Role.OPERATOR:
            check_dates(
                identity.certificate,
                whose=identity.node_id,
                now=now,
                renewal="run `edgeswarm init` again: the cluster and its devices stay",
            )
        else:
            check_dates(identity.certificate, whose=identity.node_id, now=now)
        return identity

    @classmethod
    def from_pem(cls, data: bytes) -> Identity:
        """The identity in one file's bytes, without a look at its dates; raises ValueError where it is damaged."""
        blocks = [(match.group(1), match.group(0)) for match in _BLOCK.finditer(data)]
        if [kind for kind, _ in blocks] != [b"PRIVATE KEY", b"CERTIFICATE", b"CERTIFICATE"]:
            raise ValueError("it doesn't hold a key and two certificates")
        key_pem, certificate_pem, authority_pem = (block for _, block in blocks)
        certificate = single_certificate(certificate_pem)
        if key_from_pem(key_pem).public_key() != certificate.public_key():
            raise ValueError("its key and its certificate don't belong together")
        return cls(certificate_holder(certificate)[0], key_pem, certificate_pem, authority_pem)
