"""Reservations of declared time: written before the pod's gate is removed."""

from collections.abc import Iterable, Set
from dataclasses import asdict

from sqlalchemy import bindparam, delete

from timekeeper.accounts.held.declared import DeclaredReservation
from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.schema import DECLARED_PODS
from timekeeper.store.writes.inserting import insert_all

_OF_POD = delete(DECLARED_PODS).where(DECLARED_PODS.c.uid == bindparam("b_uid"))


def reserve(connection: Connection, found: Iterable[DeclaredReservation]) -> None:
    """Write these reservations. Raises if a pod has one already."""
    insert_all(connection, DECLARED_PODS, [asdict(each) for each in found])


def free(connection: Connection, uids: Set[str]) -> None:
    """Remove the reservations of these pods."""
    if uids:
        connection.execute(_OF_POD, [{"b_uid": uid} for uid in sorted(uids)])
