"""Keys, requests and certificates: what belongs together, what is refused, and that secrets stay secret."""

import os
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cesar.base import files
from cesar.base.errors import ConfigError
from cesar.peer.trust.address import check_address
from cesar.peer.trust.authority import Authority
from cesar.peer.trust.certificates import CertifiedNode, Request, check_name, check_network
from cesar.peer.trust.identity import Identity, make_keys
from cesar.peer.trust.keyfiles import (
    AGREEMENT_KEY,
    CA_CERTIFICATE,
    CERTIFICATE,
    TLS_KEY,
    read_public,
    write_private,
)

NOW = datetime.now(UTC).replace(microsecond=0)


@pytest.fixture(scope="module")
def authority():
    return Authority.create("demo", now=NOW)


def make_peer(folder, authority, node=3, days=365):
    request = Request(csr=make_keys(folder, authority.network, node))
    files.write(folder / CERTIFICATE, authority.issue(request, now=NOW, days=days))
    files.write(folder / CA_CERTIFICATE, authority.certificate)
    return folder


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def csr(host="node-3.demo.cesar", links=None, common=None, extra=(), curve=None):
    """A request as somebody else's program might make it."""
    key = ec.generate_private_key(curve or ec.SECP256R1())
    public = X25519PrivateKey.generate().public_key().public_bytes_raw()
    links = [f"cesar:x25519:{public.hex()}"] if links is None else links
    names = [x509.DNSName(host), *map(x509.UniformResourceIdentifier, links), *extra]
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common or host)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def test_a_certificate_binds_node_network_and_both_keys(tmp_path, authority):
    identity = Identity.load(make_peer(tmp_path / "p", authority))
    certificate = x509.load_pem_x509_certificate(identity.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [name.value for name in certificate.subject] == ["node-3.demo.cesar"]
    assert names.get_values_for_type(x509.DNSName) == ["node-3.demo.cesar"]
    link = f"cesar:x25519:{identity.keys.public.hex()}"
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [link]
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usage) == {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert certificate.not_valid_before_utc == NOW - timedelta(minutes=5)
    assert certificate.not_valid_after_utc == NOW + timedelta(days=365)
    assert (identity.id, identity.network) == (3, "demo")
    secret = load_pem_private_key((tmp_path / "p" / AGREEMENT_KEY).read_bytes(), None)
    assert isinstance(secret, X25519PrivateKey)
    assert secret.public_key().public_bytes_raw() == identity.keys.public


def test_private_files_are_private_and_never_overwritten(tmp_path, authority):
    old = os.umask(0)
    try:
        folder = make_peer(tmp_path / "p", authority)
        authority.save(tmp_path / "ca")
    finally:
        os.umask(old)
    assert mode(folder) == mode(tmp_path / "ca") == 0o700
    secrets = [folder / TLS_KEY, folder / AGREEMENT_KEY, tmp_path / "ca" / "ca.key"]
    assert [mode(path) for path in secrets] == [0o600] * 3
    before = [path.read_bytes() for path in secrets]
    with pytest.raises(ConfigError, match=r"key\.pem exists already.*never overwritten.*another folder"):
        make_keys(folder, "demo", 3)
    (folder / TLS_KEY).rename(folder / "elsewhere")
    with pytest.raises(ConfigError, match=r"agreement\.key exists already"):
        make_keys(folder, "demo", 3)
    assert not (folder / TLS_KEY).exists(), "half of a pair of keys would be worse than none"
    with pytest.raises(ConfigError, match=r"ca\.key exists already"):
        authority.save(tmp_path / "ca")
    (folder / "elsewhere").rename(folder / TLS_KEY)
    assert [path.read_bytes() for path in secrets] == before


def test_a_link_to_somewhere_else_is_not_followed(tmp_path):
    (tmp_path / "key").symlink_to(tmp_path / "target")
    with pytest.raises(ConfigError, match="exists already"):
        write_private(tmp_path / "key", b"secret")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("file", [TLS_KEY, AGREEMENT_KEY])
@pytest.mark.parametrize("bits", [0o640, 0o604, 0o620])
def test_a_private_file_that_others_can_read_is_not_loaded(tmp_path, authority, file, bits):
    folder = make_peer(tmp_path / "p", authority)
    (folder / file).chmod(bits)
    with pytest.raises(ConfigError, match=f"chmod 600 .*{file}"):
        Identity.load(folder)
    (folder / file).chmod(0o600)
    Identity.load(folder)


def test_the_authority_keeps_its_key_to_itself(tmp_path, authority):
    authority.save(tmp_path / "ca")
    loaded = Authority.load(tmp_path / "ca")
    assert (loaded.network, loaded.certificate) == ("demo", authority.certificate)
    (tmp_path / "ca" / "ca.key").chmod(0o644)
    with pytest.raises(ConfigError, match=r"chmod 600 .*ca\.key"):
        Authority.load(tmp_path / "ca")


@pytest.mark.parametrize(
    ("file", "complaint"),
    [
        (TLS_KEY, r"key\.pem does not belong to .*certificate\.pem"),
        (AGREEMENT_KEY, r"agreement\.key does not belong to"),
        (CERTIFICATE, r"key\.pem does not belong to"),
        (CA_CERTIFICATE, r"certificate\.pem: another authority signed it"),
    ],
)
def test_files_of_two_peers_do_not_mix(tmp_path, authority, file, complaint):
    one = make_peer(tmp_path / "one", authority)
    two = make_peer(
        tmp_path / "two", authority if file != CA_CERTIFICATE else Authority.create("demo", now=NOW)
    )
    (one / file).write_bytes((two / file).read_bytes())
    with pytest.raises(ConfigError, match=complaint):
        Identity.load(one)


@pytest.mark.parametrize("file", [TLS_KEY, AGREEMENT_KEY, CERTIFICATE, CA_CERTIFICATE])
def test_missing_and_broken_files_are_named(tmp_path, authority, file):
    folder = make_peer(tmp_path / "p", authority)
    (folder / file).write_bytes(b"SECRETSECRET not what it should be \xff")
    with pytest.raises(ConfigError) as caught:
        Identity.load(folder)
    assert "SECRETSECRET" not in str(caught.value)
    (folder / file).unlink()
    with pytest.raises(ConfigError, match=f"cannot read .*{file}: No such file"):
        Identity.load(folder)
    (folder / file).mkdir(mode=0o700)
    with pytest.raises(ConfigError, match=f"cannot read .*{file}: "):
        Identity.load(folder)


def test_a_peers_certificate_is_no_authority(tmp_path, authority):
    folder = make_peer(tmp_path / "p", authority)
    (folder / CA_CERTIFICATE).write_bytes((folder / CERTIFICATE).read_bytes())
    with pytest.raises(ConfigError, match="not the certificate of an authority"):
        Identity.load(folder)


def test_secrets_are_in_no_repr(tmp_path, authority):
    folder = make_peer(tmp_path / "p", authority)
    authority.save(tmp_path / "ca")
    shown = repr(Identity.load(folder)) + repr(Authority.load(tmp_path / "ca")) + str(Identity.load(folder))
    for secret in (folder / TLS_KEY, folder / AGREEMENT_KEY, tmp_path / "ca" / "ca.key"):
        lines = [line for line in secret.read_text().splitlines() if not line.startswith("-----")]
        assert lines
        assert not any(line in shown for line in lines)
    assert "PRIVATE" not in shown


def test_requests_survive_the_journey(tmp_path):
    made = Request(csr=csr(), name="hospital-x", address="node.example.org:7400")
    (tmp_path / "request.json").write_bytes(made.to_bytes())
    assert Request.load(tmp_path / "request.json") == made
    assert made.node == CertifiedNode(3, "demo", made.node.agreement_key)


HEX = "cesar:x25519:" + "1" * 64


@pytest.mark.parametrize(
    ("made", "complaint"),
    [
        (lambda: csr("www.example.org"), "exactly one node"),
        (lambda: csr("node-3.demo.cesar.example.org"), "exactly one node"),
        (lambda: csr("node-03.demo.cesar"), "exactly one node"),
        (lambda: csr("node-3.a.b.cesar"), "exactly one node"),
        (lambda: csr("node-4294967296.demo.cesar"), "cannot be a node's id"),
        (lambda: csr(common="node-4.demo.cesar"), "exactly one node"),
        (lambda: csr(links=[]), "one agreement key"),
        (lambda: csr(links=[HEX, HEX]), "one agreement key"),
        (lambda: csr(links=[HEX[:-1]]), "one agreement key"),
        (lambda: csr(links=["cesar:x25519:" + "0" * 64]), "not a usable X25519 key"),
        (lambda: csr(links=["cesar:x25519:01" + "0" * 62]), "not a usable X25519 key"),
        (lambda: csr(extra=[x509.DNSName("node-4.demo.cesar")]), "exactly one node"),
        (lambda: csr(extra=[x509.RFC822Name("a@example.org")]), "exactly one node"),
        (lambda: csr(curve=ec.SECP384R1()), "P-256"),
        (
            lambda: b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n",
            "cannot be read",
        ),
        (lambda: b"", "cannot be read"),
    ],
)
def test_requests_that_say_something_else_are_refused(made, complaint):
    with pytest.raises(ConfigError, match=complaint):
        Request(csr=made())


def test_a_request_that_its_key_did_not_sign_is_refused():
    """Swap the agreement key in the signed part: an attacker on the way would like to."""
    der = x509.load_pem_x509_csr(csr()).public_bytes(Encoding.DER)
    at = der.index(b"cesar:x25519:") + 13
    other = X25519PrivateKey.generate().public_key().public_bytes_raw().hex().encode()
    forged = x509.load_der_x509_csr(der[:at] + other + der[at + 64 :]).public_bytes(Encoding.PEM)
    with pytest.raises(ConfigError, match="not signed by the key in it"):
        Request(csr=forged)


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[]", b"[" * 100_000, b"\xff", b'{"format": 1, "name": 3, "address": null, "csr": ""}'],
    ids=["empty", "object", "list", "deep", "binary", "kinds"],
)
def test_other_files_are_no_requests(tmp_path, data):
    (tmp_path / "request.json").write_bytes(data)
    with pytest.raises(ConfigError, match=r"not a request|more than|cannot"):
        Request.load(tmp_path / "request.json")


def test_the_authority_signs_for_its_own_network_and_lifetime_only(authority):
    with pytest.raises(ConfigError, match="for the network 'other', and this is 'demo'"):
        authority.issue(Request(csr=csr("node-3.other.cesar")), now=NOW)
    for days in (0, 3651):
        with pytest.raises(ConfigError, match=f"certificate of {days} days is not possible"):
            authority.issue(Request(csr=csr()), now=NOW, days=days)


@pytest.mark.parametrize("name", ["", "Demo", "a.b", "a_b", "-a", "a-", "a--b", "é", "x" * 41, "a\n"])
def test_names_that_are_no_networks(name):
    with pytest.raises(ConfigError, match="cannot name a network"):
        check_network(name)


@pytest.mark.parametrize("name", ["", " a", "a\n", "a\x1b[31m", "x" * 65, "\ud800"])
def test_names_that_would_spoil_a_table(name):
    with pytest.raises(ConfigError, match="cannot name a peer"):
        check_name(name)


def test_addresses():
    for good in ("a:1", "node.example.org:7400", "127.0.0.1:65535", "[::1]:7400"):
        assert check_address(good) == good
    for bad in (
        "",
        "a",
        "a:",
        ":1",
        "a:0",
        "a:65536",
        "unix:/tmp/x",
        "a b:1",
        "::1:7400",
        "a:1\n",
        "dns:///a:1",
    ):
        with pytest.raises(ConfigError, match="write host:port"):
            check_address(bad)


def test_reading_is_bounded(tmp_path):
    (tmp_path / "big").write_bytes(b"x" * 101)
    assert len(read_public(tmp_path / "big", 101)) == 101
    with pytest.raises(ConfigError, match="more than 100 bytes"):
        read_public(tmp_path / "big", 100)


def test_it_needs_neither_torch_nor_grpc_nor_pydantic():
    program = (
        "import sys; import cesar.peer.trust.folder, cesar.cli; "
        "print(sorted({'torch', 'grpc', 'pydantic'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
