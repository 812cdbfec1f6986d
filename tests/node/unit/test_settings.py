"""What the agent is told, and what it says where that cannot be."""

import pytest

from sidecar.node import settings
from sidecar.node.nvml.cards import OF_PROGRAMS

NODE = ["--node-name", "n1"]


def test_a_nodes_name_is_enough() -> None:
    read = settings.read(NODE, {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"})

    assert (read.node_name, read.api_url) == ("n1", "https://10.0.0.1:6443")
    assert (read.listen, read.look_every_ms) == (("::", 8446), 5_000)
    assert read.timekeeper is None
    assert read.ignore_xids == OF_PROGRAMS
    assert read.close_on_strangers is True


def test_an_address_of_ipv6_is_put_into_brackets() -> None:
    read = settings.read(NODE, {"KUBERNETES_SERVICE_HOST": "fd00::1"})

    assert read.api_url == "https://[fd00::1]:443"


def test_variables_stand_for_flags_and_flags_go_first() -> None:
    environment = {"BURSAR_NODE_NAME": "a", "BURSAR_LOOK_EVERY": "2s", "BURSAR_LISTEN": "[::]:9000"}
    read = settings.read(["--node-name=b"], environment)

    assert (read.node_name, read.look_every_ms, read.listen) == ("b", 2_000, ("::", 9_000))


def test_with_a_timekeeper_use_is_reported_to_it() -> None:
    read = settings.read([*NODE, "--timekeeper-url=https://timekeeper.example:8444"], {})

    assert read.timekeeper is not None
    assert (read.timekeeper.server.authority, read.timekeeper.ca) == (
        "timekeeper.example:8444",
        "/etc/bursar/tls/ca.crt",
    )


def test_xids_to_ignore_come_on_top_of_those_of_programs() -> None:
    assert settings.read([*NODE, "--ignore-xids=92, 94"], {}).ignore_xids == OF_PROGRAMS | {92, 94}


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ([], "--node-name"),
        (["--node-name= "], "--node-name"),
        ([*NODE, "--listen=8446"], "--listen"),
        ([*NODE, "--listen=:8446"], "--listen"),
        ([*NODE, "--listen=0.0.0.0:0"], "--listen"),
        ([*NODE, "--look-every=0s"], "--look-every"),
        ([*NODE, "--look-every=11s"], "--look-every"),
        ([*NODE, "--look-every=5"], "--look-every"),
        ([*NODE, "--look-every=\u0665s"], "--look-every"),
        ([*NODE, "--ignore-xids=some"], "--ignore-xids"),
        ([*NODE, "--close-on-strangers=yes"], "--close-on-strangers"),
        ([*NODE, "--timekeeper-url=http://insecure"], "BURSAR_TIMEKEEPER_URL"),
        ([*NODE, "--no-such-flag"], "--no-such-flag"),
    ],
)
def test_a_bad_setting_is_one_sentence_that_names_it_and_code_2(
    capsys: pytest.CaptureFixture[str], flags: list[str], named: str
) -> None:
    with pytest.raises(SystemExit) as end:
        settings.read(flags, {})

    said = capsys.readouterr().err
    assert end.value.code == 2
    assert named in said
    assert said.count("\n") == 1


def test_help_names_each_flag_with_its_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        settings.read(["--help"], {})

    told = capsys.readouterr().out
    assert end.value.code == 0
    assert all(f"--{flag}" in told and settings.variable(flag) in told for flag, _, _ in settings.FLAGS)
