"""The certificate authority, and the certificates that it signs."""

from __future__ import annotations

import datetime
import errno
import functools
import hashlib
import os
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.security import authority as authority_module
from edgeswarm.security.authority import CertificateAuthority, create_cluster
from edgeswarm.security.certificates import Role, certificate_holder, check_dates, new_key, new_request
from edgeswarm.security.identity import Identity

NODE = "box-00a1b2"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("authority")


@pytest.fixture(scope="module")
def authority(folder: Path) -> CertificateAuthority:
    return CertificateAuthority.create(folder)


def test_its_key_is_its_owners_alone(authority: CertificateAuthority, folder: Path) -> None:
    assert (folder / "authority.key").stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_it_is_the_same_when_loaded(authority: CertificateAuthority, folder: Path) -> None:
    loaded = CertificateAuthority.load(folder)
    assert loaded.fingerprint == authority.fingerprint
    der = x509.load_pem_x509_certificate(loaded.certificate_pem).public_bytes(serialization.Encoding.DER)
    assert loaded.fingerprint == hashlib.sha256(der).hexdigest()


def test_a_second_one_is_refused_and_the_first_is_untouched(authority: CertificateAuthority, folder: Path) -> None:
    before = (folder / "authority.key").read_bytes()
    with pytest.raises(EdgeswarmError, match="cluster authority already") as caught:
        CertificateAuthority.create(folder)
    assert caught.value.code is ErrorCode.OUTPUT_EXISTS
    assert (folder / "authority.key").read_bytes() == before


def test_a_missing_one_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(EdgeswarmError, match="edgeswarm init") as caught:
        CertificateAuthority.load(tmp_path)
    assert caught.value.code is ErrorCode.TRUST


def test_a_key_of_another_authority_is_noticed(authority: CertificateAuthority, tmp_path: Path) -> None:
    CertificateAuthority.create(tmp_path / "other")
    (tmp_path / "other" / "authority.crt").write_bytes(authority.certificate_pem)
    with pytest.raises(EdgeswarmError, match="don't belong together"):
        CertificateAuthority.load(tmp_path / "other")


@pytest.mark.parametrize("role", list(Role))
def test_a_certificate_holds_node_id_role_and_both_usages(authority: CertificateAuthority, role: Role) -> None:
    pem = authority.sign(new_request(new_key(), "ignored"), node_id=NODE, role=role)
    certificate = x509.load_pem_x509_certificate(pem)
    assert certificate_holder(certificate) == (NODE, role)
    usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usages) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate_pem))


def test_what_a_request_asks_for_itself_is_ignored(authority: CertificateAuthority) -> None:
    key = new_key()
    greedy = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "operator")]))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("join.edgeswarm")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = authority.sign(greedy.public_bytes(serialization.Encoding.PEM), node_id=NODE, role=Role.AGENT)
    certificate = x509.load_pem_x509_certificate(pem)
    assert certificate_holder(certificate) == (NODE, Role.AGENT)
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_request_that_its_key_did_not_sign_is_refused(authority: CertificateAuthority) -> None:
    der = bytearray(x509.load_pem_x509_csr(new_request(new_key(), NODE)).public_bytes(serialization.Encoding.DER))
    der[-1] ^= 1  # the signature's last byte
    pem = x509.load_der_x509_csr(bytes(der)).public_bytes(serialization.Encoding.PEM)
    with pytest.raises(EdgeswarmError, match="isn't signed by its own key"):
        authority.sign(pem, node_id=NODE, role=Role.AGENT)


def test_a_request_with_another_kind_of_key_or_none_is_refused(authority: CertificateAuthority) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    for pem in (request.public_bytes(serialization.Encoding.PEM), b"rubbish"):
        with pytest.raises(EdgeswarmError, match="certificate request"):
            authority.sign(pem, node_id=NODE, role=Role.AGENT)


def test_a_bad_node_id_is_refused(authority: CertificateAuthority) -> None:
    with pytest.raises(ValueError, match="not a node id"):
        authority.sign(new_request(new_key(), NODE), node_id="join", role=Role.AGENT)


def test_the_join_servers_certificate_is_no_nodes(authority: CertificateAuthority) -> None:
    _, pem = authority.issue_join_server()
    with pytest.raises(ValueError, match="isn't one of a node"):
        certificate_holder(x509.load_pem_x509_certificate(pem))


def test_dates_allow_for_a_clock_that_is_hours_off(authority: CertificateAuthority) -> None:
    certificate = authority.issue(node_id=NODE, role=Role.AGENT).certificate
    now = datetime.datetime.now(datetime.timezone.utc)
    check_dates(certificate, whose=NODE, now=now - datetime.timedelta(hours=20))
    with pytest.raises(EdgeswarmError, match=rf"{NODE} isn't valid before .* clock says 1970"):
        check_dates(certificate, whose=NODE, now=datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc))
    with pytest.raises(EdgeswarmError, match=f"{NODE} expired on"):
        check_dates(certificate, whose=NODE, now=now + datetime.timedelta(days=4000))


@pytest.mark.parametrize(
    ("years", "words", "remedy"), [(-5, "isn't valid before", "clock"), (11, "expired on", "init")]
)
def test_by_a_clock_that_is_years_off_nothing_is_signed(
    authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch, years: int, words: str, remedy: str
) -> None:
    now = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=365 * years)
    monkeypatch.setattr(authority_module, "check_dates", functools.partial(check_dates, now=now))
    with pytest.raises(EdgeswarmError, match=words) as caught:
        authority.issue(node_id=NODE, role=Role.AGENT)
    assert remedy in caught.value.remedy


def test_a_new_cluster_comes_with_its_operators_identity(tmp_path: Path) -> None:
    authority, identity = create_cluster(authority_folder=tmp_path / "authority", operator_folder=tmp_path / "operator")
    loaded = Identity.load(tmp_path / "operator", role=Role.OPERATOR)
    assert loaded == identity
    assert loaded.node_id.startswith("operator-")
    assert loaded.cluster_fingerprint == authority.fingerprint


@pytest.mark.parametrize("content", [None, b"", b"rubbish"])
def test_an_operator_who_lost_the_identity_gets_a_new_one_of_the_same_cluster(
    tmp_path: Path, content: bytes | None
) -> None:
    folders = {"authority_folder": tmp_path / "authority", "operator_folder": tmp_path / "operator"}
    before, lost = create_cluster(**folders)
    path = tmp_path / "operator" / "identity.pem"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    after, identity = create_cluster(**folders)
    assert (after.fingerprint, identity.node_id) == (before.fingerprint, lost.node_id)
    assert Identity.load(tmp_path / "operator", role=Role.OPERATOR) == identity
    with pytest.raises(EdgeswarmError, match="cluster authority already") as caught:
        create_cluster(**folders)
    assert caught.value.code is ErrorCode.OUTPUT_EXISTS


def test_an_expired_operator_is_told_to_begin_again_and_a_device_to_join_again(tmp_path: Path) -> None:
    authority, _ = create_cluster(authority_folder=tmp_path / "authority", operator_folder=tmp_path / "operator")
    authority.issue(node_id=NODE, role=Role.AGENT).save(tmp_path / "agent")
    later = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=1200)
    for folder, role, remedy in (("operator", Role.OPERATOR, "edgeswarm init"), ("agent", Role.AGENT, "token create")):
        with pytest.raises(EdgeswarmError, match="expired on") as caught:
            Identity.load(tmp_path / folder, role=role, now=later)
        assert remedy in caught.value.remedy


def test_an_identity_of_another_cluster_gives_way_to_one_of_this(tmp_path: Path) -> None:
    folders = {"authority_folder": tmp_path / "authority", "operator_folder": tmp_path / "operator"}
    authority, _ = create_cluster(**folders)
    create_cluster(authority_folder=tmp_path / "other", operator_folder=tmp_path / "others")
    (tmp_path / "operator" / "identity.pem").write_bytes((tmp_path / "others" / "identity.pem").read_bytes())
    create_cluster(**folders)
    loaded = Identity.load(tmp_path / "operator", role=Role.OPERATOR)
    assert loaded.cluster_fingerprint == authority.fingerprint


def test_an_authority_that_is_half_there_is_told(tmp_path: Path) -> None:
    folders = {"authority_folder": tmp_path / "authority", "operator_folder": tmp_path / "operator"}
    create_cluster(**folders)
    (tmp_path / "authority" / "authority.crt").unlink()
    with pytest.raises(EdgeswarmError, match="cluster authority already") as caught:
        create_cluster(**folders)
    assert "move" in caught.value.remedy


@pytest.mark.parametrize("file_name", ["authority.key", "authority.crt", "issued.json", "identity.pem"])
def test_a_full_disk_is_told_and_init_can_be_run_again(
    file_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also that of a process that died between two files, as a key is without its certificate."""
    folders = {"authority_folder": tmp_path / "authority", "operator_folder": tmp_path / "operator"}
    replace = os.replace

    def full(source: str, target: Path) -> None:
        if target.name == file_name:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(EdgeswarmError, match=r"cluster can't be written to .*: No space left on device") as caught:
            create_cluster(**folders)
    assert caught.value.code is ErrorCode.OUTPUT_FAILED
    assert "edgeswarm init" in caught.value.remedy
    authority, identity = create_cluster(**folders)
    assert CertificateAuthority.load(tmp_path / "authority").fingerprint == authority.fingerprint
    assert Identity.load(tmp_path / "operator", role=Role.OPERATOR) == identity
