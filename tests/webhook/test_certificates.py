"""Which certificates are made and when, what is in them, and the files."""

import ssl
import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from webhook.certificates import files
from webhook.certificates.issue import CA_LIFE, LEAF_LIFE, new_ca, new_leaf
from webhook.certificates.plan import Leaf, Pair, is_bundle, leaves, plan

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
WANTED = leaves("bursar-system", ("127.0.0.1", "localhost"))
WEBHOOK, TIMEKEEPER = WANTED
CA = new_ca(b"", NOW)
STORED = {leaf.secret: new_leaf(CA, leaf, NOW) for leaf in WANTED}


def certificate(pair: Pair) -> x509.Certificate:
    """The parsed certificate."""
    return x509.load_pem_x509_certificate(pair.certificate)


def test_the_leaves_carry_every_name_of_their_service() -> None:
    names = certificate(STORED["bursar-timekeeper-tls"]).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )

    assert [each.value for each in names.value if isinstance(each, x509.DNSName)] == [
        "bursar-timekeeper",
        "bursar-timekeeper.bursar-system",
        "bursar-timekeeper.bursar-system.svc",
        "bursar-timekeeper.bursar-system.svc.cluster.local",
        "localhost",
    ]
    assert [str(each.value) for each in names.value if isinstance(each, x509.IPAddress)] == ["127.0.0.1"]


def test_lives_and_keys_are_as_designed() -> None:
    ca, leaf = certificate(CA), certificate(STORED["bursar-webhook-tls"])

    assert ca.not_valid_after_utc - NOW == CA_LIFE == timedelta(days=3650)
    assert leaf.not_valid_after_utc - NOW == LEAF_LIFE == timedelta(days=365)
    assert leaf.not_valid_before_utc < NOW
    assert type(leaf.public_key()).__name__ == "ECPublicKey"
    leaf.verify_directly_issued_by(ca)
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_key_is_in_no_representation() -> None:
    assert "PRIVATE KEY" not in repr(CA)


def test_nothing_stored_makes_everything() -> None:
    made = plan(None, {}, WANTED, NOW)

    assert (made.new_ca, made.new_leaves, made.nothing) == (True, WANTED, False)


def test_what_is_good_stays() -> None:
    assert plan(CA, STORED, WANTED, NOW).nothing
    assert plan(CA, STORED, WANTED, NOW + timedelta(days=240)).nothing


def test_a_leaf_is_renewed_when_less_than_a_third_of_its_life_is_left() -> None:
    made = plan(CA, STORED, WANTED, NOW + timedelta(days=245))

    assert (made.new_ca, made.new_leaves) == (False, WANTED)


def test_a_ca_is_renewed_in_time_and_the_former_one_goes_on_being_trusted() -> None:
    later = NOW + timedelta(days=2440)

    made = plan(CA, STORED, WANTED, later)
    newer = new_ca(made.old_bundle, later)

    assert (made.new_ca, made.new_leaves) == (True, WANTED)
    assert x509.load_pem_x509_certificates(newer.bundle) == [certificate(newer), certificate(CA)]


def test_a_former_ca_that_has_run_out_is_dropped() -> None:
    assert plan(CA, STORED, WANTED, NOW + timedelta(days=3651)).old_bundle == b""


OTHER_CA = new_ca(b"", NOW)
BROKEN: dict[str, Pair | None] = {
    "taken away": None,
    "unreadable": replace(STORED["bursar-webhook-tls"], certificate=b"-----BEGIN CERTIFICATE-----\nx"),
    "with another key": replace(STORED["bursar-webhook-tls"], key=CA.key),
    "with no key": replace(STORED["bursar-webhook-tls"], key=b""),
    "of another CA": replace(new_leaf(OTHER_CA, WEBHOOK, NOW), bundle=CA.bundle),
    "that trusts another CA": replace(STORED["bursar-webhook-tls"], bundle=OTHER_CA.bundle),
    "for other names": new_leaf(CA, Leaf("webhook", ("elsewhere",)), NOW),
    "not valid yet": new_leaf(CA, WEBHOOK, NOW + timedelta(days=1)),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_leaf_that_cannot_serve_is_made_anew_and_no_other(case: str) -> None:
    broken = BROKEN[case]
    stored = {"bursar-timekeeper-tls": STORED["bursar-timekeeper-tls"]}
    if broken is not None:
        stored["bursar-webhook-tls"] = broken

    made = plan(CA, stored, WANTED, NOW)

    assert (made.new_ca, made.new_leaves) == (False, (WEBHOOK,))


@pytest.mark.parametrize(
    "ca", [replace(CA, key=OTHER_CA.key), replace(CA, certificate=b"x"), replace(CA, bundle=b"x")]
)
def test_a_ca_that_cannot_sign_is_made_anew_with_all_leaves(ca: Pair) -> None:
    made = plan(ca, STORED, WANTED, NOW)

    assert (made.new_ca, made.new_leaves) == (True, WANTED)


def test_only_certificates_are_a_bundle() -> None:
    assert is_bundle(CA.bundle)
    assert is_bundle(CA.bundle + OTHER_CA.bundle)
    for text in (b"", b"garbage", CA.key, b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        assert not is_bundle(text)


def test_files_are_replaced_as_wholes_and_the_key_is_private(tmp_path: Path) -> None:
    pair = STORED["bursar-webhook-tls"]
    folder = tmp_path / "a" / "webhook"

    assert files.write(folder, pair)
    assert not files.write(folder, pair)
    assert files.write(folder, new_leaf(CA, WEBHOOK, NOW))

    assert sorted(each.name for each in folder.iterdir()) == ["ca.crt", "tls.crt", "tls.key"]
    assert stat.S_IMODE((folder / "tls.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "tls.crt").stat().st_mode) == 0o644
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(folder / "tls.crt", folder / "tls.key")
