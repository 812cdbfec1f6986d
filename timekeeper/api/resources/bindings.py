"""``POST /v1/bindings``: the extender reports the pods that it bound."""

import re
from typing import Any, TypedDict

from flask import Flask, Response, request

from timekeeper.accounts.pods import ReportedBinding
from timekeeper.api.http.answers import Version, answer
from timekeeper.api.http.posts import MAX_FIGURE, OLDEST_MS, is_natural, read_object
from timekeeper.api.http.routes import JSON, ApiRoute, read_body
from timekeeper.api.http.services import Services
from timekeeper.core.dialects import BY_NAME
from timekeeper.core.request.cards import UndecodableError, decode_amounts, decode_placement
from timekeeper.core.request.host import HostShare, decode_host
from timekeeper.core.values import WHOLE_MILLI, Amounts, Ask, ContainerAsk, GPURequest
from timekeeper.core.wire import Bindings
from timekeeper.runtime.http.problem_details import bad
from timekeeper.store import bindings

MAX_BINDINGS = 100
MAX_ASKS = 1_000  # above what a Binding can name in its annotations (`webhook/rules/size.py`)
MAX_CARDS = 256
MAX_RESOURCES = 64

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
_UID = re.compile(r"[A-Za-z0-9._:-]{1,64}", re.ASCII)


def read_bindings(body: bytes, received_ms: int) -> tuple[ReportedBinding, ...]:
    """Parse the body, received at that time. Raises a Problem that names the field."""
    raw = read_object(body, ("version", "bindings"))
    if raw.get("version") != 1:
        raise bad("version", "it must be 1")
    listed = read_objects(raw.get("bindings"), "bindings", MAX_BINDINGS)
    return tuple(_binding(each, f"bindings[{at}]", received_ms) for at, each in enumerate(listed))


def _binding(raw: dict[str, Any], where: str, received_ms: int) -> ReportedBinding:
    identity, age_ms = read_identity(raw, where), raw.get("age_ms")
    if not is_natural(age_ms, OLDEST_MS):
        raise bad(f"{where}.age_ms", f"it must be a whole number from 0 to {OLDEST_MS}")
    grace_ms = raw.get("grace_ms")
    if not is_natural(grace_ms, MAX_FIGURE):
        raise bad(f"{where}.grace_ms", f"it must be a whole number from 0 to {MAX_FIGURE}")
    return ReportedBinding(
        *identity,
        received_ms - age_ms,
        _request(raw, where),
        _devices(raw.get("devices"), f"{where}.devices"),
        grace_ms,
        _host(raw.get("host"), f"{where}.host"),
    )


def read_identity(raw: dict[str, Any], where: str) -> tuple[str, str, str, str]:
    """UID, namespace, name and node of a reported pod. Raises a Problem."""
    uid = raw.get("uid")
    if not isinstance(uid, str) or not _UID.fullmatch(uid):
        raise bad(f"{where}.uid", "it must be 1 to 64 letters, digits or . _ : -")
    namespace, name, node = (_name(raw.get(key), f"{where}.{key}") for key in ("namespace", "pod", "node"))
    return uid, namespace, name, node


def _request(raw: dict[str, Any], where: str) -> GPURequest:
    dialect = raw.get("dialect")
    if not isinstance(dialect, str) or dialect not in BY_NAME:
        raise bad(f"{where}.dialect", f"it must be one of {', '.join(sorted(BY_NAME))}")
    listed = read_objects(raw.get("asks"), f"{where}.asks", MAX_ASKS)
    return GPURequest(dialect, tuple(_ask(each, f"{where}.asks[{at}]") for at, each in enumerate(listed)))


def _ask(raw: dict[str, Any], where: str) -> ContainerAsk:
    init = raw.get("init")
    if not isinstance(init, bool):
        raise bad(f"{where}.init", "it must be true or false")
    figures = []
    most_of = {
        "devices": MAX_CARDS,
        "share_milli": WHOLE_MILLI,
        "memory_mib": MAX_FIGURE,
        "memory_milli": WHOLE_MILLI,
    }
    for name, most in most_of.items():
        figure = raw.get(name, 0 if name == "memory_milli" else None)
        if not is_natural(figure, most):
            raise bad(f"{where}.{name}", f"it must be a whole number from 0 to {most}")
        figures.append(figure)
    devices, share_milli, memory_mib, memory_milli = figures
    resources = _amounts(raw.get("resources", {}), f"{where}.resources")
    return ContainerAsk(
        _name(raw.get("container"), f"{where}.container"),
        init,
        Ask(devices, share_milli, memory_mib, resources, memory_milli),
    )


def _amounts(raw: object, where: str) -> Amounts:
    try:
        found = decode_amounts(raw)
    except UndecodableError as error:
        raise bad(where, "it must be an object of whole numbers from 0 to 2^63 - 1") from error
    if len(found) > MAX_RESOURCES:
        raise bad(where, f"it must have {MAX_RESOURCES} members at most")
    return found


def _devices(text: object, where: str) -> str:
    try:
        decode_placement(str(text))
    except UndecodableError as error:
        raise bad(where, f"it must be a placement: {error}") from error
    return str(text)


def _host(text: object, where: str) -> HostShare | None:
    if text is None:
        return None
    try:
        return decode_host(str(text))
    except UndecodableError as error:
        raise bad(where, f"it must be the annotation bursar.dev/host: {error}") from error


def _name(text: object, where: str) -> str:
    if not isinstance(text, str) or not _NAME.fullmatch(text):
        raise bad(where, "it must be a name of Kubernetes")
    return text


def read_objects(raw: object, where: str, most: int) -> list[dict[str, Any]]:
    """A list of 1 to ``most`` objects. Raises a Problem."""
    if not isinstance(raw, list) or not 1 <= len(raw) <= most:
        raise bad(where, f"it must be a list of 1 to {most} objects")
    for at, each in enumerate(raw):
        if not isinstance(each, dict):
            raise bad(f"{where}[{at}]", "it must be an object")
    return raw


PATH = "/v1/bindings"


class Accepted(TypedDict):
    """The bindings are stored."""

    version: Version


REPORT = ApiRoute(
    "POST",
    PATH,
    "the extender reports the pods that it bound, so that one that vanishes unseen is charged",
    None,
    {JSON: Accepted},
    body=Bindings,
    refuses=(413,),
    needs="`create bindings` in all namespaces",
)
ROUTES = (REPORT,)


def register(app: Flask, services: Services) -> None:
    """Add the route."""

    @app.post(PATH)
    def bound() -> Response:
        received_ms = services.clock()
        services.gate.allow(request.headers.get("Authorization"), "create", "bindings")
        reported = read_bindings(read_body(), received_ms)
        with services.ledger.store.writing() as connection:
            bindings.record(connection, reported, received_ms)
        return answer({"version": 1})
