"""Flags, environment, and what is said of bad ones."""

from pathlib import Path

import pytest

from timekeeper.runtime.file_watch import newest_text
from timekeeper.runtime.flags import Address
from timekeeper.settings import TimekeeperSettings, read


def test_the_defaults_are_those_of_the_manifests() -> None:
    assert read([], {}) == TimekeeperSettings(
        command="serve",
        listen=Address("::", 8444),
        tls_cert="/etc/bursar/tls/tls.crt",
        tls_key="/etc/bursar/tls/tls.key",
        ca="/etc/bursar/tls/ca.crt",
        database="sqlite:////var/lib/bursar/bursar.db",
        workers=2,
        threads=24,
        kubeconfig=None,
        namespace="bursar-system",
        heartbeat_interval_ms=5_000,
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--listen", "8444"], "is not HOST:PORT"),
        (["--listen", ":8444"], "is not HOST:PORT"),
        (["--listen", "x:99999"], "is not HOST:PORT"),
        (["--workers", "0"], "is not a whole number from 1 to 64"),
        (["--workers", "two"], "is not a whole number from 1 to 64"),
        (["--threads", "1e3"], "is not a whole number from 1 to 256"),
        (["--heartbeat-interval", "5"], "is not a duration from 100ms to 5m"),
        (["--heartbeat-interval", "1ms"], "is not a duration from 100ms to 5m"),
        (["--heartbeat-interval", "9m"], "is not a duration from 100ms to 5m"),
        (["--database", ""], "must not be empty"),
        (["advise"], "invalid choice"),
        (["export"], "export: a FILE is missing"),
        (["audit", "ledger.jsonl"], "audit: it takes no FILE"),
        (["fold"], "fold: --older-than is missing"),
        (["serve", "--cluster"], "serve: --cluster is for the command audit"),
        (
            ["fold", "--older-than", "9d"],
            "is not a duration from 32d to 36500d in multiples of 1d, such as 400d",
        ),
        (["--retain", "1y"], "is not a duration from 32d to 36500d in multiples of 1d, such as 400d"),
        (["audit", "-o", "xml"], "invalid choice: 'xml'"),
        (["--issuer=https://x", "--audience=y"], "unrecognized arguments: --issuer=https://x --audience=y"),
    ],
)
def test_a_bad_value_is_one_sentence_and_exit_code_2(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        read(arguments, {})

    said = capsys.readouterr().err
    assert left.value.code == 2
    assert sentence in said
    assert said.startswith("bursar-timekeeper: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("text", ["1s", "301s", "6m", "500ms", "15", "", "1e3s"])
def test_a_lease_lasts_from_two_seconds_to_five_minutes(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        read([f"--lease-duration={text}"], {})

    assert (
        f'"{text}" is not a duration from 2s to 5m in multiples of 1s, such as 15s' in capsys.readouterr().err
    )
    assert read(["--lease-duration=5m"], {}).lease_duration_ms == 300_000


def test_a_file_is_read_anew_when_it_was_replaced(tmp_path: Path) -> None:
    path = tmp_path / "ca.crt"
    text = newest_text(path)
    assert text() == ""

    path.write_text("one")
    assert text() == "one"
    (tmp_path / "new").write_text("two")
    (tmp_path / "new").rename(path)

    assert text() == "two"


OIDC = ("--oidc-issuer=https://login.test", "--oidc-client-id=bursar", "--dashboard-url=https://bursar.test/")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (OIDC[:2], "--dashboard-url: it is missing, and --oidc-issuer needs it"),
        ((OIDC[0], OIDC[2]), "--oidc-client-id: it is missing, and --oidc-issuer needs it"),
        (OIDC[1:], "--oidc-issuer: it is missing, and --oidc-client-id needs it"),
        ((*OIDC, "--oidc-scopes=email"), "with openid, without which there is no ID token"),
        ((*OIDC, "--dashboard-url=https://bursar.test/a"), "is not an https:// URL without a path"),
        ((*OIDC, "--oidc-issuer=http://login.test"), "is not an https:// URL"),
        ((*OIDC, "--oidc-lifetime=2h"), "unrecognized arguments: --oidc-lifetime=2h"),
        (("meter", "--kubeconfig=k", *OIDC), "--oidc-issuer: meter outside of a cluster has one visitor"),
    ],
)
def test_half_a_login_is_refused_by_the_name_of_the_flag(
    flags: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        read(flags, {})

    assert (ended.value.code, said in capsys.readouterr().err) == (2, True)


@pytest.mark.parametrize(
    ("more", "prefix"),
    [
        ((), "https://login.test#"),
        (("--oidc-username-claim=email",), ""),
        (("--oidc-username-prefix=-",), ""),
        (("--oidc-username-claim=email", "--oidc-username-prefix=oidc:"), "oidc:"),
    ],
)
def test_names_have_the_prefix_that_the_api_server_gives_them(more: tuple[str, ...], prefix: str) -> None:
    oidc = read((*OIDC, *more), {}).oidc

    assert (oidc.prefix, oidc.callback) == (prefix, "https://bursar.test/login/callback")


def test_the_help_of_meter_has_its_flags_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read(["meter", "--help"], {})
    said = capsys.readouterr().out

    assert {"--kubeconfig", "--database", "--prometheus-url"} <= set(said.split())
    assert [flag for flag in ("--tls-cert", "--oidc-issuer", "--webhook-url", "settle") if flag in said] == []
    assert "bursar-timekeeper meter --kubeconfig ~/.kube/config" in said
