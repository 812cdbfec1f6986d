"""Pods, nodes and slices with whatever the API server stores: the agent reads them, and the others beside
them as before."""

import json
import random
from collections.abc import Iterator

import pytest

from sidecar.node.kube import trimmed_json
from sidecar.node.state import api_objects
from sidecar.node.state.device_slices import ClaimedDevice, cards_of
from sidecar.node.state.node_patch import read_inventory, read_mps, read_nri
from sidecar.node.values import PodState
from tests.support.profile import examples, seed
from tests.support.raw_values import VALUES, drawn, nested, text

CARD = b'{"uuid":"GPU-a","index":0,"share_milli":500,"memory_mib":100}'
BESIDE = PodState("z", "even", "beside", ("GPU-a",), False, (("main", ("GPU-a",)),))


def quoted(raw: bytes) -> bytes:
    """A text of these bytes, as JSON."""
    return text(raw.replace(b"\\", b"\\\\").replace(b'"', b'\\"'))


def devices(cards: bytes) -> bytes:
    """The annotation of a pod with these cards."""
    return b'{"bursar.dev/devices":%b}' % quoted(b'{"version":1,"containers":{"main":%b}}' % cards)


def annotations(value: bytes) -> Iterator[bytes]:
    """Those that a pod has the value in."""
    yield b'{"example.com/odd":%b}' % (value if value[:1] == b'"' else quoted(value))
    yield b'{"bursar.dev/devices":%b}' % (value if value[:1] == b'"' else quoted(value))
    yield b'{"bursar.dev/devices":%b}' % quoted(value)
    yield devices(value)
    yield devices(b"[%b]" % value)
    yield devices(b'[{"uuid":%b,"index":%b,"share_milli":%b,"memory_mib":%b}]' % (value, value, value, value))
    yield devices(b'[{"uuid":%b,"index":0,"share_milli":500,"memory_mib":1}]' % value)
    yield devices(b'[{"uuid":"GPU-a","index":0,"share_milli":500,"memory_mib":%b}]' % value)


def pod(uid: bytes, name: bytes, more: bytes) -> bytes:
    """Its metadata, as the API server sends it to the agent."""
    return b'{"metadata":{"name":"%b","namespace":"even","uid":"%b","annotations":%b}}' % (name, uid, more)


def odd_pods(value: bytes) -> Iterator[bytes]:
    """A pod for each place that the value can be at."""
    for there in annotations(value):
        yield pod(b"a", b"odd", there)
    fields = b'[{"manager":"m","time":"9999-12-31T23:59:59Z","fieldsType":"FieldsV1","fieldsV1":%b}]' % value
    yield pod(b"a", b"odd", b'{},"managedFields":%b' % fields)
    yield pod(b"a", b"odd", b'{},"labels":null,"deletionTimestamp":"0000-01-01T00:00:00Z"')


def values() -> Iterator[bytes]:
    """Those of the table, then drawn ones."""
    yield from VALUES.values()
    yield nested(9_999, b"[", b"]")
    chance = random.Random(seed())
    yield from (drawn(chance) for _ in range(examples(30)))


def test_no_odd_pod_changes_what_is_read_of_its_neighbour() -> None:
    beside = pod(b"z", b"beside", devices(b"[%b]" % CARD))
    for value in values():
        for odd in odd_pods(value):
            listed = trimmed_json.loads(
                b'{"kind":"L","metadata":{"resourceVersion":"7"},"items":[%b,%b]}\n' % (odd, beside)
            )
            event = trimmed_json.loads(b'{"type":"ADDED","object":%b}\n' % odd)

            read = api_objects.read_all(listed["items"])

            assert [(state.uid, state.name) for state in read.pods] == [("a", "odd"), ("z", "beside")], value
            assert read.pods[1] == BESIDE, value
            assert dict(read.shares)["z"] == (("GPU-a", 100),), value
            assert api_objects.read_all([event["object"]]).pods == read.pods[:1], value
            assert json.dumps([read.pods[0].cards, read.shares], ensure_ascii=False).encode(), value


@pytest.mark.parametrize("value", VALUES)
def test_an_odd_annotation_of_the_node_is_no_inventory(value: str) -> None:
    for there in (VALUES[value], b'{"version":1,"cards":[{"uuid":%b,"index":%b}]}' % (2 * (VALUES[value],))):
        raw = b'{"metadata":{"uid":"n","resourceVersion":"5","annotations":{"bursar.dev/inventory":%b}}}'
        node = api_objects.read_node(trimmed_json.loads(raw % quoted(there)))

        assert (node.uid, node.version) == ("n", "5")
        assert (read_inventory(node.inventory), read_mps(node.inventory)) == ((), frozenset())
        assert read_nri(node.inventory) is None


@pytest.mark.parametrize("value", VALUES)
def test_an_odd_slice_changes_no_device_of_another(value: str) -> None:
    device = b'{"name":"d","attributes":{"uuid":{"string":"GPU-a"}}}'
    spec = b'{"spec":{"driver":"%b","nodeName":"n","pool":{"name":"p"},"devices":[%b]},"metadata":{%b}}'
    fields = b'"managedFields":[{"fieldsV1":%b}]' % VALUES[value]

    listed = trimmed_json.loads(
        b'{"items":[%b,%b]}' % (spec % (b"odd", device, fields), spec % (b"gpu", device, b""))
    )

    assert cards_of(listed)[ClaimedDevice("gpu", "p", "d")] == {"GPU-a"}
