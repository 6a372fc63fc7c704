"""A machine's identity: kept whole, and every way in which it can be missing or wrong."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.security.authority import CertificateAuthority
from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority.create(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def identity(authority: CertificateAuthority) -> Identity:
    return authority.issue(node_id="box-00a1b2", role=Role.AGENT)


def test_saved_and_loaded_it_is_the_same(identity: Identity, tmp_path: Path) -> None:
    identity.save(tmp_path)
    assert Identity.load(tmp_path, role=Role.AGENT) == identity
    assert (tmp_path / "identity.pem").stat().st_mode & 0o777 == 0o600


def test_it_never_prints_its_key(identity: Identity) -> None:
    assert "PRIVATE" not in repr(identity)
    assert "box-00a1b2" in repr(identity)


@pytest.mark.parametrize(
    ("role", "remedy"), [(Role.AGENT, "edgeswarm-agent join HOST TOKEN"), (Role.OPERATOR, "edgeswarm init")]
)
def test_a_machine_without_one_has_not_joined(tmp_path: Path, role: Role, remedy: str) -> None:
    with pytest.raises(EdgeswarmError, match="has not joined a cluster") as caught:
        Identity.load(tmp_path, role=role)
    assert caught.value.code is ErrorCode.TRUST
    assert remedy in caught.value.remedy


def test_an_agents_identity_is_no_operators(identity: Identity, tmp_path: Path) -> None:
    identity.save(tmp_path)
    with pytest.raises(EdgeswarmError, match="one of an agent, not of an operator"):
        Identity.load(tmp_path, role=Role.OPERATOR)


def test_damage_is_named(identity: Identity, authority: CertificateAuthority, tmp_path: Path) -> None:
    other = authority.issue(node_id="box-00a1b2", role=Role.AGENT)
    for damaged in (
        b"",
        identity.key_pem + identity.certificate_pem,  # the authority is missing
        other.key_pem + identity.certificate_pem + identity.authority_pem,  # another key
        identity.key_pem + identity.authority_pem + identity.authority_pem,  # no node's certificate
        identity.key_pem.replace(b"M", b"!") + identity.certificate_pem + identity.authority_pem,
    ):
        (tmp_path / "identity.pem").write_bytes(damaged)
        with pytest.raises(EdgeswarmError, match=r"identity\.pem is damaged"):
            Identity.load(tmp_path, role=Role.AGENT)


def test_dates_are_checked(identity: Identity, tmp_path: Path) -> None:
    identity.save(tmp_path)
    with pytest.raises(EdgeswarmError, match="isn't valid before"):
        Identity.load(tmp_path, role=Role.AGENT, now=datetime.datetime(2001, 1, 1, tzinfo=datetime.timezone.utc))
    years = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=1200)
    with pytest.raises(EdgeswarmError, match="expired on") as caught:
        Identity.load(tmp_path, role=Role.AGENT, now=years)
    assert "join the cluster again" in caught.value.remedy


def test_a_newer_one_replaces_it_whole(identity: Identity, authority: CertificateAuthority, tmp_path: Path) -> None:
    identity.save(tmp_path)
    newer = authority.issue(node_id="box-00a1b2", role=Role.AGENT)
    newer.save(tmp_path)
    assert Identity.load(tmp_path, role=Role.AGENT) == newer
    assert [entry.name for entry in tmp_path.iterdir()] == ["identity.pem"]
