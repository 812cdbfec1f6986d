"""Which certificates are made and when, what is in them, who makes them, and the files."""

import ssl
import stat
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.support.profile import examples
from tests.webhook.authority_worlds import (
    NOW,
    WANTED,
    Kept,
    Late,
    folder_of,
    issuer,
    refusals,
    settings,
    write_garbage,
)
from webhook.controller.issue import CA_LIFE, LEAF_LIFE, new_ca, new_leaf, write_files
from webhook.controller.plan import CA_SECRET, CertificatePair, Leaf, authority, due, leaves, signer, trusting
from webhook.controller.reading import BACKDATED, bundle, certificates, is_bundle
from webhook.controller.run import follow, look
from webhook.lifetimes import CertificateLifetimes
from webhook.settings.certificates import read_certificates

WEBHOOK, TIMEKEEPER, SCHEDULER = WANTED
LIVES = CertificateLifetimes()
CA = new_ca(b"", NOW)
OTHER_CA = new_ca(b"", NOW)
STORED = {leaf.secret: new_leaf(CA, leaf, NOW) for leaf in WANTED}
EMPTY = CertificatePair(b"", b"", b"")


def certificate(pair: CertificatePair) -> x509.Certificate:
    """The parsed certificate."""
    return x509.load_pem_x509_certificate(pair.certificate)


# what is in them


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
    assert type(leaf.public_key()).__name__ == "ECPublicKey"
    leaf.verify_directly_issued_by(ca)
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_peer_whose_clock_is_a_day_behind_takes_a_new_certificate_at_once() -> None:
    for pair in (CA, *STORED.values()):
        assert certificate(pair).not_valid_before_utc == NOW - timedelta(days=1) == NOW - BACKDATED


def test_a_leaf_does_not_outlive_its_ca() -> None:
    later = NOW + CA_LIFE - timedelta(days=30)

    leaf = certificate(new_leaf(CA, WEBHOOK, later))

    assert leaf.not_valid_after_utc == certificate(CA).not_valid_after_utc


def test_a_key_is_in_no_representation() -> None:
    shown = repr(replace(CA, former_key=OTHER_CA.key))

    assert "PRIVATE KEY" not in shown + repr(authority(CA, STORED, WANTED, NOW, LIVES))


# which leaves are made


def leaves_due(
    stored: dict[str, CertificatePair],
    now: datetime = NOW,
    ca: CertificatePair = CA,
    lifetimes: CertificateLifetimes = LIVES,
) -> tuple[Leaf, ...]:
    """The leaves that are made anew."""
    return due(ca, stored, WANTED, now, lifetimes)


def test_what_is_good_stays() -> None:
    for now in (NOW, NOW + timedelta(days=243)):
        assert leaves_due(STORED, now) == ()
        assert authority(CA, STORED, WANTED, now, LIVES).bundle == CA.bundle
    assert trusting(CA, STORED) == {}


def test_a_leaf_is_renewed_when_less_than_a_third_of_its_life_is_left() -> None:
    assert leaves_due(STORED, NOW + timedelta(days=244)) == WANTED


def test_lives_of_seconds_are_kept_although_certificates_begin_a_day_before_they_are_made() -> None:
    lifetimes = CertificateLifetimes(timedelta(seconds=120), timedelta(seconds=30), timedelta(seconds=10))
    ca = new_ca(b"", NOW, lifetimes.ca)
    stored = {leaf.secret: new_leaf(ca, leaf, NOW, lifetimes.leaf) for leaf in WANTED}

    assert leaves_due(stored, NOW + timedelta(seconds=20), ca, lifetimes) == ()
    assert leaves_due(stored, NOW + timedelta(seconds=21), ca, lifetimes) == WANTED
    assert not authority(ca, stored, WANTED, NOW + timedelta(seconds=80), lifetimes).new
    assert authority(ca, stored, WANTED, NOW + timedelta(seconds=81), lifetimes).new


BROKEN: dict[str, CertificatePair | None] = {
    "taken away": None,
    "empty": EMPTY,
    "unreadable": replace(STORED["bursar-webhook-tls"], certificate=b"-----BEGIN CERTIFICATE-----\nx"),
    "unreadable at its end": replace(
        STORED["bursar-webhook-tls"],
        certificate=STORED["bursar-webhook-tls"].certificate
        + b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    ),
    "with another key": replace(STORED["bursar-webhook-tls"], key=CA.key),
    "with no key": replace(STORED["bursar-webhook-tls"], key=b""),
    "of another CA": replace(new_leaf(OTHER_CA, WEBHOOK, NOW), bundle=CA.bundle),
    "for other names": new_leaf(CA, Leaf("webhook", ("elsewhere",)), NOW),
    "made by a clock that was two days ahead": new_leaf(CA, WEBHOOK, NOW + timedelta(days=2)),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_leaf_that_cannot_serve_is_made_anew_and_no_other(case: str) -> None:
    broken = BROKEN[case]
    stored = {name: pair for name, pair in STORED.items() if name != "bursar-webhook-tls"}
    if broken is not None:
        stored["bursar-webhook-tls"] = broken

    assert leaves_due(stored) == (WEBHOOK,)
    assert not authority(CA, stored, WANTED, NOW, LIVES).new


def test_a_leaf_that_trusts_another_bundle_keeps_its_certificate_and_gets_the_right_one() -> None:
    stray = replace(STORED["bursar-webhook-tls"], bundle=OTHER_CA.bundle)

    assert trusting(CA, STORED | {"bursar-webhook-tls": stray}) == {
        "bursar-webhook-tls": STORED["bursar-webhook-tls"]
    }


# what becomes of the CA


def test_nothing_stored_makes_a_ca() -> None:
    made = authority(None, {}, WANTED, NOW, LIVES)

    assert (made.new, made.bundle, made.key, made.former_key) == (True, b"", b"", b"")


def test_a_ca_is_renewed_in_time_and_the_former_one_signs_until_the_new_one_is_trusted() -> None:
    later = NOW + timedelta(days=2434)

    made = authority(CA, STORED, WANTED, later, LIVES)
    newer = replace(new_ca(made.bundle, later), former_key=made.former_key)

    assert (made.new, made.former_key) == (True, CA.key)
    assert x509.load_pem_x509_certificates(newer.bundle) == [certificate(newer), certificate(CA)]
    assert certificate(signer(newer, later + timedelta(days=30), LIVES)) == certificate(CA)
    trusted = replace(newer, trusted_since=later)
    assert signer(trusted, later + LIVES.overlap - timedelta(seconds=1), LIVES).key == CA.key
    assert signer(trusted, later + LIVES.overlap, LIVES).key == newer.key


def test_a_ca_whose_key_is_lost_is_trusted_while_leaves_of_it_may_be_served() -> None:
    made = authority(None, STORED, WANTED, NOW, LIVES)
    newer = new_ca(made.bundle, NOW)

    assert certificates(newer.bundle) == (certificate(newer), certificate(CA))
    assert leaves_due(STORED, ca=newer) == ()
    assert leaves_due(STORED, NOW + LIVES.overlap, replace(newer, trusted_since=NOW)) == WANTED


def test_a_former_ca_is_dropped_once_every_leaf_has_been_of_the_new_one_for_the_overlap() -> None:
    newer = new_ca(CA.bundle, NOW)
    both = {leaf.secret: new_leaf(newer, leaf, NOW) for leaf in WANTED}
    one = both | {"bursar-webhook-tls": STORED["bursar-webhook-tls"]}
    then = NOW + LIVES.overlap

    def trusted(stored: dict[str, CertificatePair], now: datetime) -> int:
        return len(certificates(authority(newer, stored, WANTED, now, LIVES).bundle))

    assert trusted(both, then - timedelta(seconds=1)) == 2
    assert trusted(one, then) == 2
    assert trusted({"bursar-webhook-tls": both["bursar-webhook-tls"]}, then) == 2
    assert trusted(both, then) == 1


def test_a_ca_that_has_run_out_is_dropped() -> None:
    made = authority(CA, STORED, WANTED, NOW + timedelta(days=3651), LIVES)

    assert (made.new, made.bundle, made.former_key) == (True, b"", b"")


BAD_CAS = {
    "empty": EMPTY,
    "with another key": replace(CA, key=OTHER_CA.key),
    "unreadable": replace(CA, bundle=b"x", key=b"x"),
    "no CA": replace(CA, bundle=STORED["bursar-webhook-tls"].certificate),
    "made by a clock that was two days ahead": new_ca(b"", NOW + timedelta(days=2)),
}


@pytest.mark.parametrize("case", BAD_CAS)
def test_a_ca_that_cannot_sign_is_made_anew_and_leaves_of_it_are_served_on(case: str) -> None:
    made = authority(BAD_CAS[case], STORED, WANTED, NOW, LIVES)

    assert (made.new, made.key, made.former_key) == (True, b"", b"")
    assert certificate(CA) in certificates(made.bundle)
    assert certificate(STORED["bursar-webhook-tls"]) not in certificates(made.bundle)
    assert leaves_due(STORED, ca=new_ca(made.bundle, NOW)) == ()


@pytest.mark.parametrize(
    "garbage", [b"garbage", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_garbage_around_a_good_ca_is_dropped_and_the_ca_kept(garbage: bytes) -> None:
    dirty = replace(CA, bundle=garbage + CA.bundle + garbage + STORED["bursar-webhook-tls"].certificate)

    made = authority(dirty, STORED, WANTED, NOW, LIVES)

    assert (made.new, made.bundle, made.key) == (False, CA.bundle, CA.key)


@pytest.mark.parametrize("hours", [-1, 1, -12, 12])
def test_a_process_whose_clock_is_off_changes_nothing_that_others_made(hours: int) -> None:
    now = NOW + timedelta(hours=hours)

    assert leaves_due(STORED, now) == ()
    assert not authority(CA, STORED, WANTED, now, LIVES).new
    # and what it makes itself is good by everybody else's clock
    theirs = {leaf.secret: new_leaf(CA, leaf, now) for leaf in WANTED}
    assert leaves_due(theirs, NOW) == ()
    assert not authority(new_ca(b"", now), theirs, WANTED, NOW, LIVES).new


def test_only_certificates_are_a_bundle() -> None:
    assert is_bundle(CA.bundle)
    assert is_bundle(CA.bundle + OTHER_CA.bundle)
    for text in (b"", b"garbage", CA.key, b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        assert not is_bundle(text)


@given(st.binary(max_size=200), st.binary(max_size=200), st.binary(max_size=200))
@hypothesis_settings(max_examples=examples(50, soak=500))
def test_whatever_is_in_the_secrets_can_be_read(text: bytes, key: bytes, more: bytes) -> None:
    wrapped = b"-----BEGIN CERTIFICATE-----\n" + text + b"\n-----END CERTIFICATE-----\n"
    for odd in (text, wrapped, wrapped + CA.bundle):
        ca, leaf = CertificatePair(odd, key, odd, more), CertificatePair(odd, key, more + odd)
        stored = {"bursar-webhook-tls": leaf}
        authority(ca, stored, WANTED, NOW, LIVES)
        signer(replace(CA, former_key=key), NOW, LIVES)
        assert set(leaves_due(stored)) == set(WANTED)


# the whole process, on a cluster of values


def step(cluster: Kept, lifetimes: CertificateLifetimes, by: timedelta = timedelta()) -> bool:
    """A look, so much later."""
    cluster.now += by
    return look(cluster, settings(lifetimes), lambda: cluster.now)


def test_a_rotation_takes_its_three_steps() -> None:
    cluster, day = Kept(), timedelta(days=1)
    assert step(cluster, LIVES)
    (first,) = certificates(cluster.authority().bundle)

    assert step(cluster, LIVES, by=2434 * day)  # staged: trusted everywhere, and signs nothing
    second, *former = certificates(cluster.authority().bundle)
    assert former == [first]
    assert second != first
    assert {certificates(text) for text in cluster.ca_bundles.values()} == {(second, first)}
    assert [cluster.issuer(leaf.secret) for leaf in WANTED] == [first] * 3

    assert step(cluster, LIVES, by=7 * day)  # signs
    assert [cluster.issuer(leaf.secret) for leaf in WANTED] == [second] * 3
    assert certificates(cluster.authority().bundle) == (second, first)

    assert step(cluster, LIVES, by=7 * day)  # alone
    assert certificates(cluster.authority().bundle) == (second,)
    assert set(cluster.ca_bundles.values()) == {cluster.authority().bundle}
    assert cluster.authority().former_key == b""


def test_a_new_ca_signs_nothing_before_its_bundle_is_written_everywhere() -> None:
    cluster, day = Kept(), timedelta(days=1)
    step(cluster, LIVES)
    first = cluster.issuer(WEBHOOK.secret)

    cluster.writes_left = 1  # the CA's Secret alone
    step(cluster, LIVES, by=2434 * day)
    cluster.writes_left = 0
    step(cluster, LIVES, by=8 * day)
    cluster.writes_left = None
    step(cluster, LIVES)

    assert cluster.issuer(WEBHOOK.secret) == first
    assert cluster.authority().trusted_since == cluster.now


def test_no_leaf_is_served_before_its_ca_is_trusted() -> None:
    cluster = Kept()

    step(cluster, LIVES)

    assert cluster.written == [
        CA_SECRET,
        "mutating",
        "validating",
        "bursar-node",
        WEBHOOK.secret,
        TIMEKEEPER.secret,
        SCHEDULER.secret,
        CA_SECRET,  # that it is trusted since now
    ]


@pytest.mark.parametrize("place", ["validating", "bursar-node"])
def test_a_place_that_may_not_be_written_stops_the_rotation_before_it_harms(place: str) -> None:
    cluster, day = Kept(), timedelta(days=1)
    step(cluster, LIVES)
    first = cluster.issuer(WEBHOOK.secret)
    cluster.closed = {place}

    for days in (2434, 8, 8):
        assert not step(cluster, LIVES, by=days * day)

    assert cluster.issuer(WEBHOOK.secret) == first
    assert cluster.authority().trusted_since is None
    cluster.closed = set()
    assert step(cluster, LIVES)
    assert step(cluster, LIVES, by=7 * day)
    assert cluster.issuer(WEBHOOK.secret) != first


def test_a_second_look_changes_nothing() -> None:
    cluster = Kept()
    step(cluster, LIVES)
    before = dict(cluster.secrets)

    assert step(cluster, LIVES, by=timedelta(minutes=1))

    assert cluster.secrets == before


SHORT = CertificateLifetimes(timedelta(seconds=4_000), timedelta(seconds=1_000), timedelta(seconds=400))
OFF_S = 20


class Hours:
    """Looks at uneven times, by processes whose clocks differ; some die after a write, or a leaf is lost."""

    def __init__(self) -> None:
        self.cluster = Kept()
        step(self.cluster, SHORT)
        self.begun = self.cluster.now

    def one(self, gap_s: int, writes: int | None, off_s: int, harm: str) -> None:
        """A look."""
        cluster = self.cluster
        cluster.now += timedelta(seconds=gap_s)
        if harm == "deleted":
            cluster.secrets.pop(WEBHOOK.secret, None)
        elif harm == "garbage" and TIMEKEEPER.secret in cluster.secrets:
            write_garbage(cluster, TIMEKEEPER.secret)
        cluster.writes_left = writes
        look(cluster, settings(SHORT), lambda: cluster.now + timedelta(seconds=off_s))


LOOKS = st.tuples(
    st.integers(10, 60),
    st.one_of(st.none(), st.none(), st.integers(0, 5)),
    st.integers(-OFF_S, OFF_S),
    st.sampled_from(["", "", "", "", "", "", "deleted", "garbage"]),
)


@pytest.mark.untraced
@given(st.lists(LOOKS, min_size=150, max_size=180))
@hypothesis_settings(max_examples=examples(3, soak=80))
def test_no_death_and_no_delay_of_a_replica_causes_a_refusal(
    looks: list[tuple[int, int | None, int, str]],
) -> None:
    """A server may serve a replaced leaf for two minutes, and a client trust by a replaced bundle for the
    overlap (less what clocks differ)."""
    hours = Hours()
    failed = 0
    for gap_s, writes, off_s, harm in looks:
        failed = 0 if writes is None else failed + 1
        hours.one(gap_s, None if failed > 2 else writes, off_s, harm)
        failed %= 3

    late = Late(timedelta(seconds=120), SHORT.overlap - timedelta(seconds=2 * OFF_S), hours.begun)
    assert list(refusals(hours.cluster, late)) == []


def test_the_looks_of_that_law_do_rotate() -> None:
    hours = Hours()
    for _ in range(200):
        hours.one(45, None, 0, "")

    served = [pair for _, pair in hours.cluster.served[WEBHOOK.secret]]
    bundles = {ca for pair in served for ca in certificates(pair.bundle)}
    assert len({issuer(pair, tuple(bundles)).serial_number for pair in served}) >= 3
    assert len({pair.certificate for pair in served}) >= 9


def test_a_refusal_would_be_seen_by_that_law() -> None:
    hours = Hours()
    hours.cluster.secrets.clear()
    for _ in range(2):
        hours.one(45, None, 0, "")

    late = Late(client=SHORT.overlap, since=hours.begun)
    assert {each.why for each in refusals(hours.cluster, late)} == {"the bundle lacks the leaf's CA"}


def test_a_deleted_ca_secret_causes_no_refusal() -> None:
    cluster = Kept()
    step(cluster, LIVES)
    before = certificates(cluster.authority().bundle)
    del cluster.secrets[CA_SECRET]

    for _ in range(40):
        assert step(cluster, LIVES, by=timedelta(days=1))

    assert certificates(cluster.authority().bundle) != before
    assert len(certificates(cluster.authority().bundle)) == 1
    assert list(refusals(cluster, Late(timedelta(hours=1), LIVES.overlap))) == []


def test_a_ca_bundle_that_someone_overwrote_is_put_back() -> None:
    cluster = Kept()
    step(cluster, LIVES)
    cluster.ca_bundles["mutating"] = b"garbage"

    assert step(cluster, LIVES, by=timedelta(seconds=10))

    assert set(cluster.ca_bundles.values()) == {cluster.authority().bundle}


def test_a_time_that_is_yet_to_come_is_not_believed() -> None:
    """`trusted-since`, written by a process whose clock was years ahead, would put rotations off so long."""
    cluster = Kept()
    step(cluster, LIVES)
    pair, version = cluster.secrets[CA_SECRET]
    cluster.secrets[CA_SECRET] = replace(pair, trusted_since=NOW + timedelta(days=4_000)), version + 1

    assert step(cluster, LIVES, by=timedelta(seconds=10))

    assert cluster.authority().trusted_since == cluster.now


# certificates of another issuer


def test_the_cas_of_another_issuer_are_trusted_beside_the_former_ones_and_nothing_else_is_written() -> None:
    cluster, wanted = Kept(), settings(LIVES, issuer="cert-manager")
    cluster.secrets = {name: (pair, 1) for name, pair in STORED.items()}
    assert look(cluster, wanted, lambda: NOW)
    assert set(cluster.ca_bundles.values()) == {CA.bundle}

    theirs = {CA_SECRET: (OTHER_CA, 2)} | {name: (pair, 1) for name, pair in STORED.items()}
    cluster.secrets = dict(theirs)
    assert look(cluster, wanted, lambda: NOW)
    assert set(cluster.ca_bundles.values()) == {bundle([certificate(OTHER_CA), certificate(CA)])}

    cluster.secrets = {
        name: (new_leaf(OTHER_CA, leaf, NOW), 3) for name, leaf in zip(STORED, WANTED, strict=True)
    }
    cluster.ca_bundles["mutating"] = b"garbage"
    assert look(cluster, wanted, lambda: NOW)
    assert set(cluster.ca_bundles.values()) == {bundle([certificate(OTHER_CA), certificate(CA)])}
    assert set(cluster.written) == {"mutating", "validating", "bursar-node"}


def test_where_there_are_no_agents_nothing_is_handed_to_them() -> None:
    cluster = Kept()

    assert look(cluster, settings(LIVES, agents_namespace=""), lambda: NOW)
    assert "bursar-node" not in cluster.written


def test_another_issuer_whose_secrets_name_no_ca_leaves_everything_as_it_is() -> None:
    cluster, leaf = Kept(), STORED["bursar-webhook-tls"]
    cluster.ca_bundles = {"mutating": CA.bundle, "validating": CA.bundle}
    cluster.secrets = {"bursar-webhook-tls": (replace(leaf, bundle=leaf.certificate), 1)}

    assert not look(cluster, settings(LIVES, issuer="cert-manager"), lambda: NOW)

    assert set(cluster.ca_bundles.values()) == {CA.bundle}


# who acts


def test_a_process_that_does_not_lead_keeps_its_files_like_the_secrets(tmp_path: Path) -> None:
    cluster = Kept()
    assert follow(cluster, settings(LIVES, folder=tmp_path))
    assert folder_of(tmp_path) == []

    step(cluster, LIVES)
    before = dict(cluster.secrets)
    assert follow(cluster, settings(LIVES, folder=tmp_path))

    assert cluster.secrets == before
    assert (tmp_path / "webhook" / "tls.crt").read_bytes() == before[WEBHOOK.secret][0].certificate
    assert len(folder_of(tmp_path)) == 9


# the files and the flags


def test_files_are_replaced_as_wholes_and_the_key_is_private(tmp_path: Path) -> None:
    pair = STORED["bursar-webhook-tls"]
    folder = tmp_path / "a" / "webhook"

    assert write_files(folder, pair)
    assert not write_files(folder, pair)
    assert write_files(folder, new_leaf(CA, WEBHOOK, NOW))

    assert sorted(each.name for each in folder.iterdir()) == ["ca.crt", "tls.crt", "tls.key"]
    assert stat.S_IMODE((folder / "tls.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "tls.crt").stat().st_mode) == 0o644
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(folder / "tls.crt", folder / "tls.key")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--leaf-life", "90d"], "unrecognized arguments: --leaf-life 90d"),
        (["--issuer", "vault"], "invalid choice: 'vault'"),
    ],
)
def test_a_bad_setting_is_one_sentence(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        read_certificates(arguments, {})

    told = capsys.readouterr().err
    assert (end.value.code, told.count("\n")) == (2, 1)
    assert said in told


def test_the_leaves_of_another_namespace_are_for_its_services() -> None:
    assert leaves("gpu", ())[0].names == (
        "bursar-webhook",
        "bursar-webhook.gpu",
        "bursar-webhook.gpu.svc",
        "bursar-webhook.gpu.svc.cluster.local",
    )
