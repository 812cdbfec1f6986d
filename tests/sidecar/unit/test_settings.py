"""What the sidecar makes of its variables, its flags and the names of its cards."""

import pytest

from sidecar import settings
from sidecar.settings import SettingError, SidecarSettings
from timekeeper.edge.http_client import PEM, Server

SET = {
    "BURSAR_TIMEKEEPER_URL": "https://bursar-timekeeper.bursar-system.svc",
    "BURSAR_TOKEN_FILE": "/var/run/bursar/token/token",
    "BURSAR_CA": f"{PEM}\nMII\n",
    "BURSAR_SPOOL": "/var/run/bursar/spool",
}


def test_the_variables_of_a_pod_are_all_it_needs() -> None:
    assert settings.read([], {**SET, "NVIDIA_VISIBLE_DEVICES": "GPU-1,GPU-2"}) == SidecarSettings(
        server=Server(
            "bursar-timekeeper.bursar-system.svc", 443, "bursar-timekeeper.bursar-system.svc", "", True
        ),
        token_file="/var/run/bursar/token/token",
        ca=f"{PEM}\nMII\n",
        spool="/var/run/bursar/spool",
        cards=("GPU-1", "GPU-2"),
        exclusive=False,
        log_format="logfmt",
    )


@pytest.mark.parametrize(
    ("told", "exclusive"), [("exclusive", True), (" exclusive ", True), ("", False), ("mine", False)]
)
def test_only_one_word_says_that_no_other_pod_is_on_the_cards(told: str, exclusive: bool) -> None:
    assert settings.read([], {**SET, "BURSAR_CARDS": told}).exclusive is exclusive


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("https://host", ("host", "host", 443, "")),
        ("https://host/", ("host", "host", 443, "")),
        ("https://host:8444", ("host:8444", "host", 8444, "")),
        (" https://10.0.0.1:1/a/b/ ", ("10.0.0.1:1", "10.0.0.1", 1, "/a/b")),
        ("https://[fd00::1]:8444", ("[fd00::1]:8444", "fd00::1", 8444, "")),
    ],
)
def test_a_url_is_taken_apart(url: str, parts: tuple[str, str, int, str]) -> None:
    read = settings.read([], {**SET, "BURSAR_TIMEKEEPER_URL": url}).server

    assert (read.authority, read.host, read.port, read.prefix, read.is_tls) == (*parts, True)


@pytest.mark.parametrize(
    "url",
    [
        "http://host",
        "host:8444",
        "https://",
        "https://host:0",
        "https://host:65536",
        "https://host:x",
        "https://user@host",
        "https://host/?q",
        "https://h\u00f6st",
        "https://host\r\nX: y",
        "https://host/a b",
    ],
)
def test_a_url_that_cannot_be_is_named_with_an_example(url: str) -> None:
    with pytest.raises(SettingError, match="must be an https URL such as"):
        settings.read([], {**SET, "BURSAR_TIMEKEEPER_URL": url})


@pytest.mark.parametrize("name", list(SET))
def test_a_missing_variable_is_named_with_its_flag(name: str) -> None:
    flag = "--" + name.removeprefix("BURSAR_").lower().replace("_", "-")

    with pytest.raises(SettingError, match=rf"not set: {name} \(as flags: {flag}\)"):
        settings.read([], {**SET, name: " "})


def test_text_that_holds_no_certificate_is_named() -> None:
    with pytest.raises(SettingError, match="BURSAR_CA has several lines"):
        settings.read([], {**SET, "BURSAR_CA": "one\ntwo"})


def test_an_unknown_format_of_log_lines_is_named_with_the_known_ones() -> None:
    with pytest.raises(SettingError, match=r"BURSAR_LOG_FORMAT is 'xml', but must be logfmt or json\."):
        settings.read([], SET | {"BURSAR_LOG_FORMAT": "xml"})


def test_a_flag_shadows_its_variable() -> None:
    assert settings.read(["--spool", "/elsewhere"], SET).spool == "/elsewhere"


@pytest.mark.parametrize(
    ("listed", "cards"),
    [
        ("", ()),
        ("void", ()),
        ("none", ()),
        ("all", ()),
        ("0,1", ()),
        ("GPU-1", ("GPU-1",)),
        (" GPU-1 , GPU-2,GPU-1,", ("GPU-1", "GPU-2")),
        ("MIG-0a,void", ("MIG-0a",)),
        ("GPU-" + "x" * 100, ()),
        (",".join(f"MIG-{n}" for n in range(70)), tuple(f"MIG-{n}" for n in range(64))),
    ],
)
def test_only_uuids_name_cards(listed: str, cards: tuple[str, ...]) -> None:
    assert settings.cards(listed) == cards


@pytest.mark.parametrize(
    ("arguments", "environ", "by_hand"),
    [
        ([], {}, True),
        (["--spool=/tmp"], SET, True),
        ([], {"BURSAR_CA": ""}, False),
        ([], {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, False),
    ],
)
def test_a_pod_is_distinguished_from_a_hand(
    arguments: list[str], environ: dict[str, str], by_hand: bool
) -> None:
    assert settings.by_hand(arguments, environ) is by_hand
