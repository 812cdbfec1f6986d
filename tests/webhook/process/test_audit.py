"""``python -m webhook audit`` in front of played API servers."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

from deploy.local.limits import LONGEST_S
from tests.support.http_server import JsonHandler, Served
from tests.support.kubeconfig import kubeconfig
from tests.webhook.servers import ROOT, environment
from tests.worlds import Json
from timekeeper.edge.http1 import MAX_BODY
from timekeeper.runtime.flags import UnusableError
from webhook.audit.cluster import (
    ClusterReader,
    ClusterUnreachableError,
    ListRefusedError,
    NoSuchKindError,
    connect,
)
from webhook.dryrun.flags import read_audit


class Answers(Served):
    """A server that gives these answers, one after the other, and remembers what it was asked."""

    def __init__(self, *answers: tuple[int, object]) -> None:
        self.asked: list[str] = []
        self.headers: list[list[tuple[str, str]]] = []
        left = list(answers)
        outer = self

        class Handler(JsonHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                outer.headers.append([(name.lower(), text) for name, text in self.headers.items()])
                self.answer(*left.pop(0), headers=[("Retry-After", "0")])

        super().__init__(Handler)


def asked(folder: Path, *answers: tuple[int, object]) -> tuple[list[Json], list[str]]:
    """The objects of a list that is answered so, and the queries that it took."""
    with Answers(*answers) as server:
        found = list(ClusterReader(connect(kubeconfig(folder, server.url)), page=2).objects("/api/v1/pods"))
        return found, [path.partition("?")[2] for path in server.asked]


def page(*names: str, token: str = "") -> Json:
    """One page of a list."""
    return {"metadata": {"continue": token}, "items": [{"name": name} for name in names]}


def test_a_list_is_read_page_by_page(tmp_path: Path) -> None:
    found, queries = asked(tmp_path, (200, page("a", "b", token="t/1")), (200, page("c")))

    assert [each["name"] for each in found] == ["a", "b", "c"]
    assert queries == ["limit=2", "limit=2&continue=t%2F1"]


def test_a_page_that_is_too_long_is_requested_with_half_the_objects(tmp_path: Path) -> None:
    too_long = b" " * MAX_BODY + b"{}"

    found, queries = asked(tmp_path, (200, too_long), (200, page("a", token="t")), (200, page("b")))

    assert [each["name"] for each in found] == ["a", "b"]
    assert queries == ["limit=2", "limit=1", "limit=1&continue=t"]
    with pytest.raises(ClusterUnreachableError, match="the answer is too long"):
        asked(tmp_path, (200, too_long), (200, too_long))


def test_a_list_that_grew_too_old_is_gone_on_with_as_it_is_now(tmp_path: Path) -> None:
    expired = {"kind": "Status", "code": 410, "metadata": {"continue": "t2"}}

    found, queries = asked(tmp_path, (200, page("a", token="t1")), (410, expired), (200, page("b")))

    assert [each["name"] for each in found] == ["a", "b"]
    assert queries == ["limit=2", "limit=2&continue=t1", "limit=2&continue=t2"]


def test_a_busy_api_server_is_called_again(tmp_path: Path) -> None:
    found, queries = asked(tmp_path, (429, {}), (502, {}), (200, page("a")))

    assert ([each["name"] for each in found], len(queries)) == (["a"], 3)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((403, {"message": "pods is forbidden"}), "cannot list /api/v1/pods: pods is forbidden"),
        ((500, {"message": "boom"}), "cannot list /api/v1/pods: boom"),
        ((410, {"message": "too old"}), "cannot list /api/v1/pods: too old"),
    ],
)
def test_a_refusal_is_reported(tmp_path: Path, answer: tuple[int, object], said: str) -> None:
    with pytest.raises(ListRefusedError, match=said):
        asked(tmp_path, answer)


def test_what_is_no_api_server_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ClusterUnreachableError, match="the API server answers 200 without JSON"):
        asked(tmp_path, (200, b"<html>"))


def test_a_resource_that_the_cluster_lacks_is_another_thing(tmp_path: Path) -> None:
    with pytest.raises(NoSuchKindError):
        asked(tmp_path, (404, b"404 page not found"))


def impersonating(path: Path, user: Json, name: str = "own") -> Path:
    """The kubeconfig with these fields beside the token of its user."""
    whole = yaml.safe_load(path.read_text())
    whole["users"] = [
        {"name": name, "user": {"token": "own", **user}},
        {"name": "other", "user": {"as": "no"}},
    ]
    path.write_text(yaml.safe_dump(whole))
    return path


@pytest.mark.parametrize(
    ("user", "sent"),
    [
        ({}, []),
        ({"as": "alice"}, [("impersonate-user", "alice")]),
        (
            {
                "as": "system:serviceaccount:a:b",
                "as-uid": "u-1",
                "as-groups": ["team-a", "system:authenticated"],
                "as-user-extra": {"example.org/Why?": ["one", "two"], "scopes": ["x"]},
            },
            [
                ("impersonate-user", "system:serviceaccount:a:b"),
                ("impersonate-uid", "u-1"),
                ("impersonate-group", "team-a"),
                ("impersonate-group", "system:authenticated"),
                ("impersonate-extra-example.org%2fwhy%3f", "one"),
                ("impersonate-extra-example.org%2fwhy%3f", "two"),
                ("impersonate-extra-scopes", "x"),
            ],
        ),
        ({"as": "", "as-groups": [], "as-uid": None}, []),
    ],
)
def test_whom_a_kubeconfig_impersonates_is_said_to_the_api_server(
    tmp_path: Path, user: Json, sent: list[tuple[str, str]]
) -> None:
    with Answers((200, page("a"))) as server:
        path = impersonating(kubeconfig(tmp_path, server.url), user)
        list(ClusterReader(connect(path)).objects("/api/v1/pods"))

    (headers,) = server.headers
    assert [header for header in headers if header[0].startswith("impersonate-")] == sent
    assert ("authorization", "Bearer own") in headers


@pytest.mark.parametrize(
    ("user", "said"),
    [
        ({"as-groups": ["a"]}, "its user has as-groups without as, whose name is needed beside it"),
        ({"as-uid": "u"}, "its user has as-uid without as, whose name is needed beside it"),
        ({"as": ["a"]}, "as of its user must be a text"),
        ({"as": "a", "as-uid": 5}, "as-uid of its user must be a text"),
        ({"as": "a", "as-groups": "b"}, "as-groups of its user must be a list of texts"),
        ({"as": "a", "as-groups": [1]}, "as-groups of its user must be a list of texts"),
        ({"as": "a", "as-user-extra": ["b"]}, "as-user-extra of its user must be lists of texts by name"),
        (
            {"as": "a", "as-user-extra": {"b": "c"}},
            "as-user-extra of its user must be lists of texts by name",
        ),
        (
            {"as": "a\r\nImpersonate-Group: system:masters"},
            "as of its user must be of printable ASCII letters",
        ),
        ({"as": "ü"}, "as of its user must be of printable ASCII letters"),
    ],
)
def test_whom_a_kubeconfig_impersonates_wrongly_is_named(tmp_path: Path, user: Json, said: str) -> None:
    path = impersonating(kubeconfig(tmp_path, "http://127.0.0.1:1"), user)

    with pytest.raises(UnusableError) as raised:
        connect(path)

    assert str(raised.value).startswith(f"--kubeconfig {path}: {said}; ")


def test_a_context_of_the_kubeconfig_names_the_cluster(tmp_path: Path) -> None:
    with Answers((200, page("far"))) as far, Answers() as near:
        path = kubeconfig(tmp_path, near.url)
        both = yaml.safe_load(path.read_text())
        both["clusters"].append({"name": "far", "cluster": {"server": far.url}})
        both["contexts"].append({"name": "far", "context": {"cluster": "far", "user": "far"}})
        path.write_text(yaml.safe_dump(both))
        found = list(ClusterReader(connect(path, "far")).objects("/api/v1/pods"))

    assert ([each["name"] for each in found], near.asked) == (["far"], [])
    with pytest.raises(UnusableError, match=f"^--kubeconfig {path}, --context near: .*near"):
        connect(path, "near")


def audit(*flags: str, input: str = "", **variables: str) -> "subprocess.CompletedProcess[str]":
    """The command, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "webhook", "audit", *flags],
        cwd=ROOT,
        env=environment() | variables,
        input=input,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_no_way_to_a_cluster_is_one_sentence_and_two(tmp_path: Path) -> None:
    nowhere = kubeconfig(tmp_path, "http://127.0.0.1:1")

    for done, where in (
        (
            audit("--kubeconfig", str(tmp_path / "none")),
            f"--kubeconfig {tmp_path}/none: there is no such file",
        ),
        (audit(HOME=str(tmp_path)), "kubectl's own kubeconfig: "),
    ):
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"bursar-webhook audit: {where}")
        assert len(done.stderr.splitlines()) == 1
    done = audit("--kubeconfig", str(nowhere), "-o", "json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("bursar-webhook audit: the API server cannot be reached: ")
    assert len(done.stderr.splitlines()) == 1


def empty_cluster(may_answer: threading.Event, was_asked: threading.Event) -> Served:
    """Its lists are empty, and are answered once they may be."""

    class Handler(JsonHandler):
        def do_GET(self) -> None:
            was_asked.set()
            may_answer.wait(LONGEST_S)
            self.answer(200, page())

    return Served(Handler)


@pytest.mark.parametrize("flags", [(), ("-A",), ("--use",)])
def test_a_reader_that_closes_the_pipe_ends_it_without_a_word(tmp_path: Path, flags: tuple[str, ...]) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    may_answer = threading.Event()
    may_answer.set()
    with empty_cluster(may_answer, threading.Event()) as server:
        command = [sys.executable, "-m", "webhook", "audit", *flags]
        command += ["--kubeconfig", str(kubeconfig(tmp_path, server.url))]
        done = subprocess.run(
            command, cwd=ROOT, env=environment(), stdout=theirs, stderr=subprocess.PIPE, timeout=120
        )
    os.close(theirs)

    assert (done.returncode, done.stderr) == (1, b"")


def test_control_c_ends_it_without_a_word(tmp_path: Path) -> None:
    may_answer, was_asked = threading.Event(), threading.Event()
    with empty_cluster(may_answer, was_asked) as server:
        command = [sys.executable, "-m", "webhook", "audit"]
        command += ["--kubeconfig", str(kubeconfig(tmp_path, server.url))]
        with subprocess.Popen(
            command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert was_asked.wait(LONGEST_S)
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=LONGEST_S)
        may_answer.set()

    assert (process.returncode, said) == (130, (b"", b""))


@pytest.mark.parametrize(
    ("flags", "namespace"),
    [((), ""), (("-n", "a"), "a"), (("-A",), ""), (("-n", "a", "--all-namespaces"), "")],
)
def test_all_namespaces_are_read_unless_one_is_named(flags: tuple[str, ...], namespace: str) -> None:
    assert read_audit(flags).namespace == namespace
