"""docs/cli.md, typed on a real API server by an administrator and by a plain user."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import expect

from deploy.local.kwok_nodes import kwok_node
from deploy.local.stack import Stack
from tests.deploy.reading import ROOT
from tests.docs.cluster.test_access import ADMINISTRATOR, LEADS, kubeconfig_of
from tests.docs.shell import console, run, running
from tests.support.browser import chromium, visiting
from tests.support.worker_control_plane import Lender

pytestmark = [pytest.mark.traced, pytest.mark.make_test("has a kubectl plugin")]

SETUP, COMMANDS, OBJECTS = console((ROOT / "docs" / "cli.md").read_text())
DASHBOARD, _ = console((ROOT / "docs" / "dashboard.md").read_text())
LOOKS, _ = console((ROOT / "docs" / "users.md").read_text())
GROUP, SPLIT = console((ROOT / "docs" / "leads.md").read_text())
BOUND = "/api/v1/namespaces/team-a/pods/half-a-card"
BUDGETS = {
    "metadata": {"name": "bursar-budgets"},
    "data": {
        "team-a": "gpuHours: 10\nperiod: month",
        "_group.research": "gpuHours: 5\nperiod: month",
        "team-b": "gpuHours: 3\ngroup: research\nonExhausted: reclaim",
    },
}


@pytest.fixture(scope="module")
def stack(lender: Lender) -> Iterator[Stack]:
    """Bursar with budgets and the documented accounts of an administrator and of readers of team-a."""
    with lender.stack(new_ledger=True) as running:
        cp = running.cp
        for name in ("team-a", "team-b"):
            cp.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        cp.api.call("POST", "/api/v1/namespaces/bursar-system/configmaps", BUDGETS)
        cp.api.call("POST", "/api/v1/nodes", kwok_node("gpu-1", cards=1, memory_mib=81_920))
        for sample in ("half-a-card", "waits"):
            pod = yaml.safe_load((ROOT / "deploy" / "samples" / "half-a-card.yaml").read_text())
            pod["metadata"]["name"] = sample
            if sample == "waits":
                pod["spec"]["containers"][0]["resources"]["limits"] = {"bursar.dev/gpu-percent": "100"}
            cp.api.call("POST", "/api/v1/namespaces/team-a/pods", pod)
            running.wait("the pod", lambda: running.exists("/api/v1/namespaces/team-a/pods/half-a-card"))
        running.wait("the binding", lambda: "nodeName" in cp.api.call("GET", BOUND)["spec"])
        reader = running.reader_token()
        running.wait("the map", lambda: "half-a-card" in str(running.get("/v1/cluster", reader)["nodes"]))
        running.wait("the CA", lambda: running.exists("/api/v1/namespaces/bursar-node/configmaps/bursar-ca"))
        yield running


@pytest.fixture
def folder(stack: Stack, tmp_path: Path) -> Path:
    """A folder with the repository's samples and the plugin; the administrator has typed what comes first."""
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    (tmp_path / "bin").mkdir()
    for name, module in (("kubectl-bursar", "main"), ("kubectl_complete-bursar", "completion")):
        script = f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m timekeeper.cli.{module} "$@"\n'
        (tmp_path / "bin" / name).write_text(script)
        (tmp_path / "bin" / name).chmod(0o755)
    run(stack.cp, SETUP + ADMINISTRATOR, tmp_path)
    return tmp_path


def typed(stack: Stack, folder: Path, commands: str, group: str = "") -> str:
    """Types commands as a member of a group, or as the administrator. No kubelet forwards a connection here,
    so the plugin is told the timekeeper's address."""
    user = kubeconfig_of(stack.cp, group, folder) if group else None
    servers = f"export BURSAR_SERVER={stack.timekeeper_url}\n"
    return run(stack.cp, servers + commands, folder, user)


def test_every_documented_command_works_for_an_administrator(stack: Stack, folder: Path) -> None:
    said = typed(stack, folder, COMMANDS)

    rows = [line.split() for line in said.splitlines()]
    row = ["team-b", "IN_BUDGET", "3.00", "0.00", "3.00"]
    assert row in [each[:5] for each in rows]
    assert ["_group.research", "IN_BUDGET", "5.00"] in [row[:3] for row in rows]
    assert {row[0] for row in rows if row} >= {"ok", "NAMESPACE", "RESULT"}
    assert [row[:4] for row in rows if row[:1] == ["gpu-1"]] == [["gpu-1", "0", "H100", "█████·····"]]
    assert any(row[:2] == ["team-a", "waits"] and "one card of the one node" in " ".join(row) for row in rows)
    assert any("Placed on node gpu-1" in line for line in said.splitlines())
    granted = [row for row in rows if "manual" in row]
    assert len(granted) == 2, "by the command itself and in the list"
    assert {row[3] for row in granted} == {"10"}
    assert (folder / "report.csv").read_text().startswith("from,to,namespace,owner,")
    assert (folder / "focus.csv").read_text().startswith("BilledCost,BillingAccountId,")


def test_the_commands_for_users_are_those_of_the_pages() -> None:
    typed_here = {*COMMANDS.splitlines(), *DASHBOARD.splitlines()}

    assert {line.partition(" #")[0].strip() for line in LOOKS.splitlines()} <= typed_here


def test_a_reader_sees_the_own_namespace_and_a_sentence_about_any_other(stack: Stack, folder: Path) -> None:
    answer = json.loads(typed(stack, folder, "kubectl bursar budget -n team-a -o json", "team-a"))
    assert (answer["namespace"], answer["standing"]) == ("team-a", "IN_BUDGET")

    refused = "kubectl bursar budget -n team-b 2>&1 || echo code $?"
    said = typed(stack, folder, refused, "team-a").splitlines()
    assert 'cannot create resource "serviceaccounts/token"' in said[0]
    assert "deploy/samples/reader.yaml" in said[1]
    assert said[-1] == "code 1"

    other = refused.replace("team-b", "team-b --account=team-a/bursar-reader")
    said = typed(stack, folder, other, "team-a").splitlines()
    assert said[0].startswith("Error: the server answered 403: ")
    assert said[-1] == "code 1"


def test_a_reader_sees_what_is_free_and_that_no_end_of_the_cards_is_known(stack: Stack, folder: Path) -> None:
    token = stack.reader_token()
    stack.wait("a look", lambda: stack.get("/v1/free?namespace=team-a", token)["models"])
    stack.wait("the pod's cards", lambda: stack.get("/v1/free", token)["models"][0]["partMilli"] == 500)

    said = typed(
        stack, folder, "kubectl bursar free -n team-a; kubectl bursar explain waits -n team-a", "team-a"
    )

    rows = [line.split() for line in said.splitlines()]
    assert ["H100", "1", "0", "0.5", "1:", "0,", "2:", "0,", "4:", "0,", "8:", "0"] in rows
    assert "no end is known" in said
    none = typed(stack, folder, "kubectl bursar free -n team-a -l pool=none 2>&1", "team-a")
    assert "No node has such cards." in none


def test_the_dashboard_shows_a_reader_the_own_namespace_of_a_real_cluster(stack: Stack, folder: Path) -> None:
    pods = {
        name: stack.cp.api.call("GET", f"/api/v1/namespaces/team-a/pods/{name}")
        for name in ("half-a-card", "waits")
    }
    alice = kubeconfig_of(stack.cp, "team-a", folder)
    command = f"BURSAR_SERVER={stack.timekeeper_url} exec {DASHBOARD.strip()} --no-browser"
    with chromium() as browser, running(stack.cp, command, folder, alice) as said:
        visitor = visiting(browser, said.readline().strip())
        page = visitor.page
        visitor.open("")
        assert page.url.endswith("/namespaces/team-a")
        visitor.url = page.url.removesuffix("/namespaces/team-a")
        expect(page.get_by_role("heading", level=1)).to_have_text("team-a", timeout=60_000)
        expect(page.get_by_role("link", name="half-a-card").first).to_be_visible(timeout=60_000)

        visitor.open("/map?namespace=team-a&node=gpu-1")
        shown = (
            page.get_by_role("table")
            .filter(has_text="H100")
            .get_by_role("row")
            .filter(has_text="half-a-card")
        )
        expect(shown).to_contain_text("team-a, 50%", timeout=60_000)
        visitor.open("/waiting?namespace=team-a")
        row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="waits", exact=True))
        expect(row).to_contain_text("the one card of the one node that it may use is held", timeout=60_000)

        row.get_by_role("link", name="waits", exact=True).click()
        assert pods["waits"]["metadata"]["uid"] in page.url
        expect(page.get_by_role("heading", level=1)).to_have_text("Pod/waits", timeout=60_000)
        expect(page.get_by_text("the one card of the one node that it may use is held").first).to_be_visible(
            timeout=60_000
        )
        visitor.open("/pods/team-a/half-a-card")
        expect(page.get_by_text("Placed on node gpu-1").first).to_be_visible(timeout=60_000)
        assert visitor.faults == []

        visitor.open("/namespaces/team-b")
        expect(
            page.get_by_text("bursar-reader may not get budgets.bursar.dev in namespace team-b")
        ).to_be_visible()
        page.context.close()


def test_kubectl_alone_shows_budgets_to_viewers_of_the_namespace_and_no_user_may_write_them(
    stack: Stack, folder: Path
) -> None:
    role = "kubectl create rolebinding viewers -n team-a --clusterrole view --group team-a > out"
    run(stack.cp, role, folder)
    alice = kubeconfig_of(stack.cp, "team-a", folder)
    shown = "kubectl get gpubudgets -n team-a"
    stack.wait("the object", lambda: "budget" in run(stack.cp, shown, folder, alice))

    head, row = run(stack.cp, shown, folder, alice).splitlines()
    titles = "NAME STANDING GRANTED USED LEFT OF GROUP USED % EXHAUSTED AT AS OF"
    assert head.split() == titles.split()
    name, standing, _, used, *_ = row.split()
    assert (name, standing, float(used) < 1) == ("budget", "IN_BUDGET", True)
    assert "team-a" in run(stack.cp, OBJECTS, folder)
    assert "no" in run(stack.cp, "kubectl auth can-i get gpubudgets -n team-b || true", folder, alice).split()

    patch = 'kubectl patch gpubudget budget -n team-a --type=merge -p \'{"status": {"used": "99"}}\''
    forged = run(stack.cp, f"{patch} 2>&1 || true", folder)  # by an administrator
    assert "GPUBudget objects are written by the timekeeper alone" in forged


def test_a_grant_that_is_repeated_with_its_key_counts_once(stack: Stack, folder: Path) -> None:
    again = "kubectl bursar grant team-b 2 --reason x --key once -o json\n"
    first, second = (
        json.loads(each) for each in typed(stack, folder, again + "echo ---\n" + again).split("---")
    )
    assert first == second
    said = typed(stack, folder, "kubectl bursar grant team-b 3 --reason x --key once 2>&1 || echo code $?")
    assert "answered 422" in said
    assert "To try again" not in said, "a refusal grants nothing"


def test_a_lead_splits_the_budget_of_the_own_group_and_grants_nothing_else(
    stack: Stack, folder: Path
) -> None:
    run(stack.cp, LEADS, folder)
    today = typed(stack, folder, GROUP, "research-leads")
    said = typed(stack, folder, SPLIT, "research-leads")

    assert ["_group.research", "IN_BUDGET", "5.00"] in [line.split()[:3] for line in today.splitlines()]
    rows = [line.split() for line in said.splitlines()]
    assert [row[:2] for row in rows if row[:1] == ["_group.research"]] == [["_group.research", "5.00"]]
    assert [row[3] for row in rows if "system:serviceaccount:bursar-leads:research" in row] == ["1"]
    lead = "--reason x --account bursar-leads/research 2>&1 || echo code $?\n"
    for more in (f"grant team-b 1 {lead}", f"grant team-a 1 --group everyone-else {lead}"):
        assert "answered 403" in typed(stack, folder, f"kubectl bursar {more}", "research-leads")
    moved = typed(stack, folder, f"kubectl bursar grant team-b 1 --from team-a {lead}", "research-leads")
    assert "with --group NAME" in moved
    back = "grant team-b -1 --group research --reason x --account bursar-leads/research"
    assert " -1 " in typed(stack, folder, f"kubectl bursar {back}", "research-leads")
    assert "5 GPU-hours were granted to group research" in typed(
        stack, folder, f"kubectl bursar grant team-b 9 --group research {lead}", "research-leads"
    )


def test_a_lead_sees_the_group_by_rights_to_its_namespaces_where_its_name_has_none(
    stack: Stack, folder: Path
) -> None:
    account = "system:serviceaccount:bursar-leads:research"
    run(stack.cp, LEADS, folder)
    asked = {"group": "bursar.dev", "resource": "sessions", "verb": "get", "name": "_group.research"}
    review = {"spec": {"user": account, "resourceAttributes": asked}}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    assert stack.cp.api.call("POST", path, review)["status"]["allowed"]
    rule = {"apiGroups": ["bursar.dev"], "resources": ["budgets", "usage"], "verbs": ["get"]}
    role = {"rules": [rule | {"resourceNames": ["_group.research"]}]}
    patched = f"kubectl patch clusterrole bursar-lead-research --type merge -p '{json.dumps(role)}' > out"
    run(stack.cp, f"{patched}; kubectl delete rolebinding bursar-lead-research -n team-b > out", folder)
    pod = yaml.safe_load((ROOT / "deploy" / "samples" / "half-a-card.yaml").read_text())
    pod["metadata"] |= {"name": "ours", "namespace": "team-b"}
    pod["spec"]["containers"][0]["resources"]["limits"] = {"bursar.dev/gpu-percent": "100"}
    stack.cp.api.call("POST", "/api/v1/namespaces/team-b/pods", pod)

    def lead(command: str) -> str:
        asked = f"kubectl bursar {command} -n _group.research 2>&1 || echo code $?"
        return typed(stack, folder, asked, "research-leads")

    assert "may not get sessions.bursar.dev _group.research" in lead("waiting")
    bound = f"--clusterrole bursar-viewer --serviceaccount {account.partition(':')[2].partition(':')[2]}"
    run(stack.cp, f"kubectl create rolebinding bursar-lead-research -n team-b {bound} > out", folder)
    stack.wait("the pod that waits", lambda: ["team-b", "ours"] in rows_of(lead("waiting")))
    assert rows_of(lead("budget"))[1:3] == [["_group.research", "IN_BUDGET"], ["team-b", "IN_BUDGET"]]
    assert lead("top --once").splitlines() == ["No pod holds a card."]
    run(stack.cp, "kubectl delete pod ours -n team-b --force --grace-period 0 > out 2>&1", folder)


def rows_of(said: str) -> list[list[str]]:
    """The first two words of each line."""
    return [line.split()[:2] for line in said.splitlines()]


DEVICE_CLASS = """kubectl create -f - > out <<'END'
{"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"}}
END
"""


def test_doctor_finds_what_was_taken_away(stack: Stack, folder: Path) -> None:
    """And that a taint keeps a device that a budget reclaims."""
    taken = DEVICE_CLASS + "kubectl delete validatingadmissionpolicybinding bursar-grace > out\n"
    taken += "kubectl bursar doctor -o json || echo code $?"

    said, _, code = typed(stack, folder, taken).partition("code ")

    found = json.loads(said)["items"]
    errors = {each["subject"]: each["sentence"] for each in found if each["level"] == "error"}
    assert code.strip() == "1"
    assert errors["policy bindings"] == "bursar-grace is missing"
    assert "timekeeper" not in errors
    said_of = {(each["level"], each["subject"]) for each in found}
    assert {("ok", "charges"), ("ok", "reclaim of devices")} <= said_of
    run(stack.cp, "kubectl apply --server-side -f deploy/manifests/admission-grace.yaml > out", folder)


def test_kubectl_completes_commands_flags_and_names_of_the_cluster(stack: Stack, folder: Path) -> None:
    asked = {
        "bud": ["budget", ":4"],
        "budget --out": ["--output", ":4"],
        "top -o c": ["csv", ":4"],
        "budget -n team-": ["team-a", "team-b", ":4"],
        "explain -n team-a half": ["half-a-card", ":4"],
        "check ''": [":0"],  # the shell offers its files
    }

    for words, offered in asked.items():
        said = typed(stack, folder, f"kubectl __complete bursar {words}")

        assert [line.partition("\t")[0] for line in said.splitlines()] == offered, words
