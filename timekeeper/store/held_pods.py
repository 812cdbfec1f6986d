"""The pods that wait behind Bursar's scheduling gate."""

from collections.abc import Iterable
from dataclasses import asdict

from sqlalchemy import bindparam, delete, select

from timekeeper.accounts.held.declared import DeclaredReservation
from timekeeper.accounts.held.order import HeldPod
from timekeeper.store.engine.engine import Connection, insert_all
from timekeeper.store.engine.schema import DECLARED_PODS, HELD_PODS


def held(connection: Connection, namespace: str = "") -> list[HeldPod]:
    """The held pods of the namespace, "": of all."""
    query = select(HELD_PODS)
    if namespace:
        query = query.where(HELD_PODS.c.namespace == namespace)
    return [HeldPod(**row) for row in connection.execute(query).mappings()]


def declared(connection: Connection, namespace: str = "") -> list[DeclaredReservation]:
    """What pods without a session reserve of their declared time; of the namespace, "": of all."""
    query = select(DECLARED_PODS)
    if namespace:
        query = query.where(DECLARED_PODS.c.namespace == namespace)
    return [DeclaredReservation(**row) for row in connection.execute(query).mappings()]


OF_POD = delete(DECLARED_PODS).where(DECLARED_PODS.c.uid == bindparam("b_uid"))


def reserve(connection: Connection, found: Iterable[DeclaredReservation]) -> None:
    """Write these reservations. Raises if a pod has one already."""
    insert_all(connection, DECLARED_PODS, [asdict(each) for each in found])
