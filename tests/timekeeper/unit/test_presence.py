"""What the settler remembers of who was on a node: no more than it needs, however much it is told."""

from timekeeper.core.kube.holders import NodeHolders
from timekeeper.settler.cluster.presence import NodeBoot, Presence, RebootReport


def tell(presence: Presence, at_ms: int, *uids: str, boot: str = "b1", known: bool = True) -> None:
    """The agent of node n lists these."""
    presence.update("n", NodeHolders(boot, known, dict.fromkeys(uids, ())), boot, at_ms)


def rebooted() -> Presence:
    """The node booted anew at 2, and its agent looked at 3."""
    presence = Presence()
    tell(presence, 1, "p")
    tell(presence, 2, boot="b2", known=False)
    tell(presence, 3, "q", boot="b2")
    return presence


def test_a_reboot_is_looked_at_once() -> None:
    presence = rebooted()
    assert presence.reboots == {"n": RebootReport(3, 2, frozenset("q"))}

    presence.mark_written()
    tell(presence, 4, "q", boot="b2")

    assert presence.reboots == {}


def test_a_look_that_was_not_written_is_not_done_and_stays_of_its_moment() -> None:
    presence = rebooted()

    tell(presence, 4, "q", "r", boot="b2")

    assert presence.reboots == {"n": RebootReport(3, 2, frozenset("qr"))}


def test_a_second_reboot_is_looked_at_too_also_where_it_came_before_the_first_was_written() -> None:
    presence = rebooted()
    tell(presence, 4, boot="b3", known=False)
    presence.mark_written()

    tell(presence, 5, "q", boot="b3")

    assert presence.reboots == {"n": RebootReport(5, 4, frozenset("q"))}


def test_one_who_was_there_after_a_reboot_is_looked_for_until_he_is_gone_though_nobody_told_meanwhile() -> (
    None
):
    presence = rebooted()
    presence.mark_written()
    presence.update("n", None, "b2", 4)
    presence.mark_written()

    tell(presence, 5, boot="b2")
    assert (presence.departed, presence.reboots) == ({}, {"n": RebootReport(5, 2, frozenset())})

    presence.mark_written()
    tell(presence, 6, "r", boot="b2")
    tell(presence, 7, boot="b2")
    assert (presence.departed, presence.reboots) == ({"r": 7}, {})


def test_of_pods_that_leave_while_nothing_can_be_written_only_so_many_are_remembered() -> None:
    presence = Presence(most_left=3)
    tell(presence, 1, *"abcd")
    tell(presence, 2, *"cd")
    tell(presence, 3)
    assert (len(presence.departed), presence.departed["a"], presence.departed["b"]) == (3, 2, 2)

    presence.mark_written()
    tell(presence, 4, "e")
    tell(presence, 5)
    assert presence.departed == {"e": 5}


def test_nodes_that_come_and_go_under_new_names_are_forgotten() -> None:
    presence = Presence(most_boots=2)

    for at, name in enumerate(("l", "m", "n")):
        presence.update(name, None, "b1", at)

    assert presence.boots == {"m": NodeBoot("b1", 0), "n": NodeBoot("b1", 0)}
