"""The dashboard's pages with device claims: they stand beside pods, with their devices."""

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import update

from tests.timekeeper.books import Run, days
from tests.timekeeper.dashboards import URL, Dashboards, filled, log_in
from tests.timekeeper.worlds import HOUR, T0
from timekeeper.store.engine.schema import SESSIONS

UID = f"claim-c:claim:{T0 - HOUR}"
DEVICE = {"driver": "gpu.example.com", "pool": "gpu-1", "device": "gpu-0", "class": "gpu", "milli": 1000}


@pytest.fixture
def dashboards(tmp_path: Path) -> Iterator[Dashboards]:
    """A cluster in which a pod of team-a uses a claim, too."""
    dashboards = filled(tmp_path)
    run = Run(UID, name="c", node="gpu-1", started_ms=T0 - HOUR, heard_ms=T0, settled=False)
    dashboards.books.write(run, Run("old:claim:1", name="d", node="gpu-1", posted=days(T0 - HOUR, T0)))
    of_claims = SESSIONS.c.uid.in_((UID, "old:claim:1"))
    values = {"kind": "claim", "devices": json.dumps([DEVICE]), "users": "u/train-9"}
    with dashboards.books.store.writing() as connection:
        connection.execute(update(SESSIONS).where(of_claims).values(**values))
    yield dashboards
    dashboards.close()


def text(dashboards: Dashboards, path: str) -> str:
    """A page as an administrator sees it, without the places where a name may be broken."""
    visitor = dashboards.client()
    log_in(visitor)
    answer = visitor.get(path, base_url=URL)
    assert answer.status_code == 200, answer.text
    return answer.text.replace("<wbr>", "")


def words(page: str) -> str:
    """Without its tags."""
    return " ".join(html.unescape(re.sub("<[^>]*>", " ", page)).split())


LINK = '<a href="/pods/team-a/claim/c">c</a>'


def test_the_namespaces_page_lists_a_claim_beside_pods_with_its_devices(dashboards: Dashboards) -> None:
    page = text(dashboards, "/namespaces/team-a")

    assert f'claim {LINK} <span class="muted">gpu-1/gpu-0</span>' in page
    assert "Pods that hold cards and claims that hold devices" in words(page)
    assert ", 1 claim Pod Owner" in words(page)


def test_a_page_without_claims_names_none(dashboards: Dashboards) -> None:
    assert "claim" not in words(text(dashboards, "/namespaces/vision"))


def test_the_story_of_a_claim_has_its_sentence(dashboards: Dashboards) -> None:
    said = words(text(dashboards, "/pods/team-a/claim/c"))

    assert "ResourceClaim/c" in said
    assert "claim c holds gpu.example.com gpu-1/gpu-0 (class gpu) of node gpu-1 since" in said
    assert "It was reserved for train-9." in said


@pytest.mark.parametrize("path", ["/pods/team-a/train-9", "/nodes/gpu-1", "/costs?group=pod"])
def test_other_pages_lead_to_it(dashboards: Dashboards, path: str) -> None:
    name = "d" if "costs" in path else "c"

    assert LINK.replace("claim/c", f"claim/{name}").replace(">c<", f">{name}<") in text(dashboards, path)


@pytest.mark.parametrize(
    ("group", "cell"),
    [("claim", "d"), ("class", "gpu"), ("driver", "gpu.example.com"), ("device", "gpu-1/gpu-0")],
)
def test_costs_are_shown_by_claim_class_driver_and_device(
    dashboards: Dashboards, group: str, cell: str
) -> None:
    page = text(dashboards, f"/costs?group={group}")

    assert re.search(rf"<t[hd][^>]*>{re.escape(cell)}</t[hd]>", page)
