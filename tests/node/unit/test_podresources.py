"""The kubelet's answer on who has which device, from a real gRPC server and from raw bytes."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.node.kubelet import grpc, podresources
from sidecar.node.nvml.cards import NVIDIA
from sidecar.node.state import plugin_devices
from sidecar.node.state.plugin_devices import PluginDevices

GPU = "nvidia.com/gpu"


def test_pings_settings_padding_and_unknown_frames_do_not_disturb_an_answer() -> None:
    message = b"\0\0\0\0\2hi"
    frames = (
        _frame(4, 0, 0, b"\0\3\0\0\0\x64"),
        _frame(4, 1, 0, b""),
        _frame(6, 0, 0, b"12345678"),
        _frame(8, 0, 0, b"\0\0\1\0"),
        _frame(99, 0, 7, b"?"),
        _frame(1, 0x20, 1, bytes(5) + b"\x88"),
        _frame(9, 4, 1, b"\x5f\x10application/grpc"),
        _frame(0, 8, 1, b"\3" + message[:4] + bytes(3)),
        _frame(0, 0, 1, message[4:]),
        _frame(1, 5, 1, b"\x20\x10\x0bgrpc-status\x010"),
        _frame(7, 0, 0, b"\0\0\0\1\0\0\0\0"),
    )
    sent = bytearray()

    answer = grpc.exchange(_reader(b"".join(frames)), sent.extend, "/a/b", b"hello")

    assert answer == b"hi"
    assert _frame(6, 1, 0, b"12345678") in sent, "a ping is answered in kind"
    assert sent.count(_frame(4, 1, 0, b"")) == 1, "settings are acknowledged once, acknowledgements not"
    assert sent.endswith(
        _frame(0, 1, 1, b"\0\0\0\0\5hello") + _frame(4, 1, 0, b"") + _frame(6, 1, 0, b"12345678")
    )


@pytest.mark.parametrize("body", [b"", b"\0\0\0\0\3hi", b"\1\0\0\0\2hi", b"\0\0\0\0\1hi"])
def test_an_answer_that_is_not_one_plain_message_is_refused(body: bytes) -> None:
    frames = _frame(1, 4, 1, b"\x88") + _frame(0, 0, 1, body) + _frame(1, 5, 1, b"\0\x0bgrpc-status\x010")

    with pytest.raises(grpc.CallFailed, match="not one plain message"):
        grpc.exchange(_reader(frames), bytearray().extend, "/a/b", b"")


@given(st.binary(max_size=200))
def test_no_bytes_make_the_call_fail_otherwise(sent: bytes) -> None:
    with pytest.raises((grpc.CallFailed, EOFError)):
        grpc.exchange(_reader(sent), bytearray().extend, "/a/b", b"")


@given(st.binary(max_size=60), st.integers(0, 400))
def test_no_headers_make_the_call_fail_otherwise_or_at_length(block: bytes, more: int) -> None:
    with pytest.raises((grpc.CallFailed, EOFError)) as failed:
        grpc.exchange(_reader(_frame(1, 5, 1, block + b"\xff" * more)), bytearray().extend, "/a/b", b"")

    assert len(str(failed.value)) < 300


@given(st.binary(max_size=100))
def test_no_bytes_make_the_reading_of_an_answer_fail_otherwise(answer: bytes) -> None:
    with suppress(podresources.MalformedAnswer):
        assert all(each.devices for each in podresources.parsed(answer))
    with suppress(podresources.MalformedAnswer):
        assert all(each.devices for each in podresources.parsed_claims(answer))


@pytest.mark.parametrize(
    "answer",
    [b"\x0a\x05ab", b"\x0b", b"\xff" * 11, b"\x0a\x04\x0a\x02\xff\xfe"],
    ids=["short", "group", "long", "text"],
)
def test_an_answer_that_is_none_is_reported(answer: bytes) -> None:
    with pytest.raises(podresources.MalformedAnswer):
        podresources.parsed(answer)


def test_fields_of_a_later_kubelet_are_passed_over() -> None:
    later = b"\x78\x01" + b"\x7d\0\0\0\0" + b"\x79" + b"\7" * 8 + b"\x7a\2hi"
    group = b"\x0a\x0e" + GPU.encode() + later + b"\x12\x05GPU-1"
    container = _field(2, group) + later
    pod = _field(1, b"p") + later + _field(2, b"n") + _field(3, container)

    assert podresources.parsed(later + _field(1, pod)) == (PluginDevices("n", "p", ((GPU, "GPU-1"),)),)


def test_a_device_names_its_card_also_as_a_replica_of_it() -> None:
    uuids = frozenset({"GPU-aaaa", "GPU-bbbb", "MIG-cccc"})
    given = PluginDevices(
        "n", "p", ((GPU, "GPU-aaaa::3"), (GPU, "GPU-aaaa::4"), ("nvidia.com/mig-1g.10gb", "MIG-cccc"))
    )

    assert plugin_devices.cards_among(given, uuids) == ("GPU-aaaa", "MIG-cccc")
    assert plugin_devices.unknown_cards(given, uuids, NVIDIA.resources) == ()


def test_devices_of_nvidias_that_are_in_no_inventory_are_reported_and_others_are_not() -> None:
    given = PluginDevices(
        "n", "p", ((GPU, "GPU-zzzz"), (GPU, "0"), ("nvidia.com/hostdev", "0"), ("rdma/hca", "m"))
    )

    assert plugin_devices.cards_among(given, frozenset({"GPU-aaaa"})) == ()
    assert plugin_devices.unknown_cards(given, frozenset({"GPU-aaaa"}), NVIDIA.resources) == ("GPU-zzzz", "0")


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + body


def _field(number: int, body: bytes) -> bytes:
    return bytes([number << 3 | 2, len(body)]) + body


def _reader(sent: bytes) -> Callable[[int], bytes]:
    left = memoryview(sent)

    def read(count: int) -> bytes:
        nonlocal left
        taken, left = left[:count], left[count:]
        if len(taken) < count:
            raise EOFError
        return bytes(taken)

    return read
