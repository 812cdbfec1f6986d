"""The largest card on nodes for fractions, of which pods by memory take a part."""

from dataclasses import replace

import pytest

from deploy.local.kwok_nodes import kwok_node, nvidia_capacity, our_capacity
from tests.worlds import Json
from timekeeper.accounts.standings import _settings
from timekeeper.core.rating.held import UNWEIGHTED
from timekeeper.core.request.host import CardHost
from timekeeper.core.standings import card_host
from timekeeper.settler.cluster.known_nodes import KnownNodes
from timekeeper.settler.cluster.watches import read_node

FORMER = {
    name: our_capacity(2, 192_000)[name] for name in ("bursar.dev/gpu-percent", "bursar.dev/gpu-memory")
}


def most(*nodes: Json) -> int:
    known = KnownNodes()
    for at, node in enumerate(nodes):
        known.see(read_node(node), deleted=False, at_ms=at)
    host = known.card_host()
    assert host
    return host.most_card_mib


SMALL, LARGE = kwok_node("a", cards=2, memory_mib=16_000), kwok_node("b", cards=8, memory_mib=80_000)
PLUGINS = kwok_node("c", cards=2, memory_mib=192_000, capacity=nvidia_capacity(2))


@pytest.mark.parametrize("nodes", [(SMALL, LARGE), (LARGE, SMALL), (SMALL, LARGE, PLUGINS)])
def test_it_is_the_largest_of_the_nodes_that_say_what_pods_request(nodes: tuple[Json, ...]) -> None:
    assert most(*nodes) == 80_000


def test_there_is_none_while_the_agent_of_one_node_is_of_a_former_release() -> None:
    former = kwok_node("former", cards=2, memory_mib=192_000, capacity=FORMER)

    assert most(SMALL, former) == 0
    assert most(SMALL, former, kwok_node("former", cards=2, memory_mib=192_000)) == 192_000
    assert most(PLUGINS) == 0


def test_the_table_of_standings_says_it_and_that_of_a_former_release_says_none() -> None:
    host = CardHost(64_000, 1 << 39, 16_000, 80_000)
    written = dict(_settings(UNWEIGHTED, {}, host))

    assert card_host(written) == host
    del written["host"]["mostCardMib"]  # type: ignore[attr-defined]
    assert card_host(written) == replace(host, most_card_mib=0)
