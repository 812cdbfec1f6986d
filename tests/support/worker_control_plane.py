"""One control plane for the tests of a worker: each file finds it as it was when new. It has what any of them
needs: a log of what our accounts call, and logins that a file can configure.

It is emptied in etcd: what was not there at first is deleted, whatever finalizers it has, and what was
changed or deleted is written again. The API server and the controllers see that as they see any change.
"""

import base64
import http.client
import itertools
import json
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.local.api import ApiError
from deploy.local.cluster import ControlPlane
from deploy.local.commands import Options
from deploy.local.errors import LocalError
from deploy.local.ports import free_port
from deploy.local.stack import Stack, Tuning
from deploy.local.tools import KUBERNETES
from tests.support.waiting import eventually

# No test needs them on a lent control plane, where each follows objects and looks now and then.
_UNNEEDED = (
    "certificatesigningrequest-approving-controller",
    "certificatesigningrequest-cleaner-controller",
    "certificatesigningrequest-signing-controller",
    "ephemeral-volume-controller",
    "legacy-serviceaccount-token-cleaner-controller",
    "persistentvolume-attach-detach-controller",
    "persistentvolume-expander-controller",
    "storageversion-garbage-collector-controller",
    "ttl-controller",
)
# Limits that a DeviceClass serves, and DeviceTaintRules, which these series do not have unasked.
_LIMITS, _RULES = (f"--feature-gates={gate}=true" for gate in ("DRAExtendedResource", "DRADeviceTaintRules"))
_OF_API = {
    (1, 34): (_LIMITS,),
    (1, 35): (_LIMITS,),
    (1, 36): (_RULES, "--runtime-config=resource.k8s.io/v1beta2=true"),
}
_OF_SCHEDULERS = {(1, 36): (_RULES,)}
_AUDITED = {"userGroups": ["system:serviceaccounts:bursar-system"]}
_REVIEWS = {"group": "authorization.k8s.io", "resources": ["subjectaccessreviews"]}
_AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "RequestResponse", **_AUDITED, "resources": [_REVIEWS]},
        {"level": "Metadata", **_AUDITED},
        {"level": "None"},
    ],
}
_LOGINS = {"apiVersion": "apiserver.config.k8s.io/v1beta1", "kind": "AuthenticationConfiguration"}
_ALL = b"/registry/"
# Controllers and the API server write these in the first seconds, or again and again.
_OF_THE_SYSTEM = (
    "apiregistration.k8s.io/apiservices/v",
    "clusterrolebindings/system:",
    "clusterroles/system:",
    "configmaps/kube-node-lease/kube-root-ca.crt",
    "configmaps/kube-public/kube-root-ca.crt",
    "configmaps/kube-system/kube-",
    "flowschemas/",
    "leases/kube-system/apiserver-",
    "masterleases/",
    "peerserverleases/",
    "prioritylevelconfigurations/",
    "ranges/",
    "serviceaccounts/kube-node-lease/default",
    "serviceaccounts/kube-public/default",
    "serviceaccounts/kube-system/",
)
_EVENTS = "events/"  # controllers write them at any time
_NAMESPACES = "namespaces/"
_DEFINITIONS = "apiextensions.k8s.io/customresourcedefinitions/"
_ADMISSION = (
    "mutatingwebhookconfigurations/",
    "validatingwebhookconfigurations/",
    "validatingadmissionpolicies/",
    "validatingadmissionpolicybindings/",
)
_LEASES = "leases/"  # who holds one renews it
_PARAMETERS = ("ConfigMap", "Pod")  # kinds that our policies take parameters from
_ROLES = {"timekeeper", "extender", "webhook"}
_OUR_NAMESPACES = ("bursar-system", "bursar-node")
# Sidecars beat five times a second; pods of Volcano stay with it.
_HEARTBEAT = "200ms"
_OF_WEBHOOK = ("--other-schedulers=volcano",)
_OF_EXTENDER = ("--gang-deadline=12s",)
# They keep what they know; kwok and schedulers may be started again.
_LASTING = ("etcd", "kube-apiserver", "kube-controller-manager")
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class _State:
    """What a borrower finds, and the next one must find again."""

    stored: dict[str, str]  # in etcd
    parts: dict[str, subprocess.Popen[bytes]]  # of the control plane, also schedulers
    files: set[Path]


class Lender:
    """Lends its control plane to one file after another, bare or with all of Bursar on it. It starts one for
    the first, and another where one could not be emptied."""

    def __init__(self) -> None:
        self._started = ExitStack()
        self._plane: ControlPlane | None = None
        self._stack: Stack | None = None
        self._bare = self._with_stack = _State({}, {}, set())
        self._is_lent = False
        self._folder = Path(tempfile.mkdtemp(prefix="lender-"))
        self.audit_log = self._folder / "audit.log"  # what Bursar's accounts have called
        (self._folder / "audit.json").write_text(json.dumps(_AUDIT))

    @contextmanager
    def lent(self) -> Iterator[ControlPlane]:
        """The control plane, with nothing in it but what is in a new one; to one borrower at a time."""
        with self._borrowed():
            self._end_stack()
            plane = self._plane or self._start()
            with self._emptied_after(self._bare):
                yield plane

    @contextmanager
    def stack(self, *, new_ledger: bool = False) -> Iterator[Stack]:
        """The control plane with every role as a process, ready, and both schedulers. The ledger keeps what
        earlier borrowers did: who uses the same name of a namespace as another, and looks at what is charged,
        asks for a new one. It is as costly as three control planes, so files that borrow it come one after
        another (tests/conftest.py)."""
        with self._borrowed():
            is_used = self._stack is not None
            stack = self._stack or self._start_stack()
            if new_ledger and is_used:
                _forget_ledger(stack)
            with self._emptied_after(self._with_stack):
                yield stack

    @contextmanager
    def _borrowed(self) -> Iterator[None]:
        assert not self._is_lent, "the worker's control plane is lent to this module already"
        self._is_lent = True
        try:
            yield
        finally:
            self._is_lent = False

    @contextmanager
    def _emptied_after(self, before: _State) -> Iterator[None]:
        plane, stack = self._plane, self._stack
        assert plane is not None
        try:
            yield
        except BaseException:  # a borrower that fails may leave anything behind
            self.end()
            raise
        with self._new_one_if_it_fails():
            self.accept_logins()
            if stack:
                stack.check()
                if stack.processes.keys() != _ROLES:
                    raise LocalError("a role was stopped")
                _remove(stack.folder / "sidecars")
            else:
                plane.stop_scheduler()
                plane.check()
            now = plane.processes
            if now.keys() != before.parts.keys() or any(now[part] != before.parts[part] for part in _LASTING):
                raise LocalError("parts of it were stopped or started again")
            _empty(plane, before.stored)
            _forget_files(plane, before)

    @contextmanager
    def _new_one_if_it_fails(self) -> Iterator[None]:
        try:
            yield
        except (LocalError, ApiError, OSError, AssertionError) as error:
            print(f"a new control plane follows one that could not be emptied: {error}", file=sys.stderr)
            self.end()

    def end(self) -> None:
        """Ends what runs."""
        if self._stack:
            self._stack.__exit__(None, None, None)
        self._started.close()
        self._plane = self._stack = None

    def _start(self) -> ControlPlane:
        self.accept_logins()
        self._plane = self._started.enter_context(ControlPlane(self._options()))
        for kind in _PARAMETERS:
            _keep_following(self._plane, kind)
        self._bare = _state(self._plane)
        return self._plane

    def _options(self) -> Options:
        """The API server looks up the endpoints of webhooks' Services itself, as kube-proxy would for it."""
        of_api = (
            "--enable-aggregator-routing=true",
            f"--audit-policy-file={self._folder}/audit.json",
            f"--audit-log-path={self.audit_log}",
            f"--authentication-config={self._folder}/logins.json",
            *_OF_API.get(KUBERNETES.series, ()),
        )
        disabled = "--controllers=" + ",".join(f"-{name}" for name in _UNNEEDED)
        of_schedulers = _OF_SCHEDULERS.get(KUBERNETES.series, ())
        return Options(api_flags=of_api, controller_flags=(disabled,), scheduler_flags=of_schedulers)

    def accept_logins(self, *issuers: Any) -> None:
        """Have the API server accept ID tokens of these issuers (the JWTAuthenticators of an
        AuthenticationConfiguration) and of no others; it follows the file."""
        text = json.dumps({**_LOGINS, "jwt": issuers})
        file = self._folder / "logins.json"
        if not file.exists() or file.read_text() != text:
            whole = file.with_suffix(".new")
            whole.write_text(text)
            whole.rename(file)

    def _start_stack(self) -> Stack:
        plane = self._plane or self._start()
        try:
            # the timekeeper's for the API server, on all addresses: no endpoint may be on loopback
            self.aggregated_port = free_port()
            of_timekeeper = (f"--aggregated-listen=0.0.0.0:{self.aggregated_port}",)
            flags = (("webhook", _OF_WEBHOOK), ("timekeeper", of_timekeeper), ("extender", _OF_EXTENDER))
            self._stack = Stack(plane, Tuning(heartbeat_interval=_HEARTBEAT, flags=flags)).__enter__()
        except BaseException:
            self.end()
            raise
        for namespace in _OUR_NAMESPACES:
            for what in ("serviceaccounts/default", "configmaps/kube-root-ca.crt"):
                path = f"/api/v1/namespaces/{namespace}/{what}"
                eventually(lambda path=path: plane.api.answers(path), path)  # type: ignore[misc]
        self._with_stack = _state(plane)
        return self._stack

    def _end_stack(self) -> None:
        """The control plane is bare again."""
        if self._stack is None:
            return
        stack, self._stack = self._stack, None
        stack.__exit__(None, None, None)
        with self._new_one_if_it_fails():
            stack.cp.stop_scheduler()
            _empty(stack.cp, self._bare.stored)
            _forget_files(stack.cp, self._bare)


def _forget_ledger(stack: Stack) -> None:
    """The timekeeper starts with an empty database."""
    stack.stop("timekeeper")
    for file in stack.folder.glob("bursar.db*"):
        file.unlink()
    stack.start("timekeeper")
    stack.wait("the timekeeper to be ready", lambda: stack.is_ready(stack.timekeeper_url), "timekeeper")


def _state(plane: ControlPlane) -> _State:
    with _etcd(plane) as etcd:
        return _State(etcd.everything(), plane.processes, set(plane.folder.iterdir()))


def _forget_files(plane: ControlPlane, before: _State) -> None:
    logs = {path for path in (plane.folder / "logs").iterdir() if path.stem not in before.parts}
    for path in {*plane.folder.iterdir(), *logs} - before.files:
        _remove(path)


class Etcd(http.client.HTTPConnection):
    """etcd's API as JSON, on its socket; keys are without the API server's prefix, values in base64."""

    def __init__(self, file: Path) -> None:
        super().__init__("etcd")
        self._file = file

    def connect(self) -> None:
        """To the file."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._file))

    def everything(self) -> dict[str, str]:
        """All that the API server has stored."""
        end = _ALL[:-1] + b"0"  # the character behind the slash
        found = self._call("range", key=_text(_ALL), range_end=_text(end)).get("kvs", ())
        return {base64.b64decode(each["key"])[len(_ALL) :].decode(): each["value"] for each in found}

    def delete(self, key: str) -> None:
        """Deletes it, if it is there."""
        self._call("deleterange", key=_text(_ALL + key.encode()))

    def put(self, key: str, value: str) -> None:
        """Writes it."""
        self._call("put", key=_text(_ALL + key.encode()), value=value)

    def _call(self, what: str, **body: str) -> Any:
        self.request("POST", f"/v3/kv/{what}", json.dumps(body))
        response = self.getresponse()
        answer = json.loads(response.read())
        if response.status != 200:
            raise LocalError(f"etcd: {answer}")
        return answer


def _keep_following(plane: ControlPlane, kind: str) -> None:
    """Add a policy that judges nothing and takes its parameters from objects of this core kind. When the last
    such policy goes, the API server stops following the kind, and never starts again: later policies see its
    objects as they were then (policy_source.go in k8s.io/apiserver/pkg/admission/plugin/policy/generic)."""
    name = f"follow-{kind.lower()}"
    rule = {"apiGroups": ["none.bursar.dev"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]}
    policy = {
        "paramKind": {"apiVersion": "v1", "kind": kind},
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "true"}],
    }
    parameter = {"name": name, "namespace": "default", "parameterNotFoundAction": "Allow"}
    binding = {"policyName": name, "paramRef": parameter, "validationActions": ["Audit"]}
    _admission(plane, "validatingadmissionpolicies", {"metadata": {"name": name}, "spec": policy})
    _admission(plane, "validatingadmissionpolicybindings", {"metadata": {"name": name}, "spec": binding})


def _admission(plane: ControlPlane, resource: str, body: Any) -> None:
    plane.api.call("POST", f"/apis/admissionregistration.k8s.io/v1/{resource}", body)


def _etcd(plane: ControlPlane) -> closing[Etcd]:
    return closing(Etcd(plane.folder / "etcd:1"))


def _empty(plane: ControlPlane, first: dict[str, str]) -> None:
    with _etcd(plane) as etcd:
        deleted: set[str] = set()
        eventually(lambda: not _deleted(etcd, first, deleted), "nothing more to be written")
        now = etcd.everything()
        for key, value in first.items():
            if not key.startswith((_LEASES, *_OF_THE_SYSTEM)) and now.get(key) != value:
                etcd.put(key, value)
        for key in deleted:
            if key.startswith(_DEFINITIONS):
                group = key.removeprefix(_DEFINITIONS).partition(".")[2]
                eventually(lambda at=f"/apis/{group}": not plane.api.answers(at), f"the end of {group}")  # type: ignore[misc]
        if any(key.startswith(_ADMISSION) for key in deleted):
            _await_the_end_of_admission(plane, etcd)


def _deleted(etcd: Etcd, first: dict[str, str], deleted: set[str]) -> set[str]:
    """Deletes what was not there at first, and adds it to what was deleted; what was more than Events."""
    new = {key for key in etcd.everything() if key not in first and not key.startswith(_OF_THE_SYSTEM)}
    for key in sorted(new, key=_order):
        etcd.delete(key)
    deleted |= new
    return {key for key in new if not key.startswith(_EVENTS)}


def _order(key: str) -> int:
    """Namespaces come first, so that no controller writes into them again; definitions last, so that the API
    server sees the end of what they define."""
    return 0 if key.startswith(_NAMESPACES) else 2 if key.startswith(_DEFINITIONS) else 1


def _await_the_end_of_admission(plane: ControlPlane, etcd: Etcd) -> None:
    """Until the API server asks no webhook and no policy that was deleted. It takes note of changes in order:
    it has seen the end of those when it refuses for the sake of new ones."""
    number = next(_numbers)
    marks = {what: f"{what}-{number}" for what in ("mutating", "validating", "policy")}
    for resource, body in _marked(marks):
        _admission(plane, resource, body)
    for mark in marks.values():
        eventually(lambda mark=mark: _refuses(plane, mark), f"the API server to know {mark}")  # type: ignore[misc]
    for kind in _ADMISSION:
        for mark in marks.values():
            etcd.delete(f"{kind}{mark}")


def _marked(marks: dict[str, str]) -> Iterable[tuple[str, Any]]:
    """What refuses objects with these labels."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    for what in ("mutating", "validating"):
        mark = marks[what]
        hook = {
            "name": f"{mark}.bursar.dev",
            "clientConfig": {"url": "https://127.0.0.1:1/"},
            "rules": [rule],
            "objectSelector": {"matchLabels": {"mark": mark}},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        yield f"{what}webhookconfigurations", {"metadata": {"name": mark}, "webhooks": [hook]}
    mark = marks["policy"]
    policy = {
        "matchConstraints": {
            "resourceRules": [rule],
            "objectSelector": {"matchLabels": {"mark": mark}},
        },
        "validations": [{"expression": "false"}],
    }
    binding = {"policyName": mark, "validationActions": ["Deny"]}
    yield "validatingadmissionpolicies", {"metadata": {"name": mark}, "spec": policy}
    yield "validatingadmissionpolicybindings", {"metadata": {"name": mark}, "spec": binding}


def _refuses(plane: ControlPlane, mark: str) -> bool:
    body = {"metadata": {"name": mark, "labels": {"mark": mark}}}
    try:
        plane.api.call("POST", "/api/v1/namespaces/default/configmaps?dryRun=All", body)
    except ApiError as error:
        return mark in str(error)
    return False


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
