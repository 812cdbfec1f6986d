"""Every right that the manifests give, with what it is for.

A right that is added or widened must be added here, with a reason. That the code uses each of them, and needs
no other, `test_lived` sees in the API server's audit log.
"""

import ast

import pytest
import yaml

from tests.deploy.reading import AGENTS, NAMESPACE, ROOT, SAMPLES, of_kind
from tests.deploy.rights import ANYWHERE, Right, granted, of_role, role
from timekeeper.core.dialects import DIALECTS
from timekeeper.core.names import API_SERVICE, DOMAIN
from timekeeper.settler.grace_policies import POLICIES as GRACE_POLICIES
from timekeeper.settler.mode_parameters import CONFIG_MAPS
from timekeeper.settler.spent_parameters import CONFIG_MAP as SPENT
from webhook.settings.certificates import CONFIGURATION

Reasons = dict[str, set[Right]]

_CONFIGURATIONS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
_SECRETS = ("bursar-ca", "bursar-webhook-tls", "bursar-timekeeper-tls", "bursar-scheduler-tls")


def followed(resource: str, group: str = "", namespace: str = ANYWHERE) -> set[Right]:
    """List and watch."""
    return {Right(verb, resource, group, namespace) for verb in ("list", "watch")}


CLAIMS = {
    right
    for resource in ("deviceclasses", "resourceclaims", "resourceclaimtemplates")
    for right in followed(resource, "resource.k8s.io")
}

NEEDED: dict[str, Reasons] = {
    "bursar-webhook": {
        "the table of standings, asked of the timekeeper": {Right("get", "standings", "bursar.dev")},
        "to report what it refused and demoted": {Right("create", "decisions", "bursar.dev")},
        "to tell controllers why their pods are refused": {Right("create", "events", "events.k8s.io")},
        "who reads its metrics, and whether that reader may": {
            Right("create", "tokenreviews", "authentication.k8s.io"),
            Right("create", "subjectaccessreviews", "authorization.k8s.io"),
        },
        "to report no decision of a namespace that does not exist": followed("namespaces"),
        "what pods ask for by device claims": CLAIMS
        | {Right(verb, "configmaps", "", NAMESPACE, "bursar-device-classes") for verb in ("list", "watch")},
    },
    "bursar-certificates": {
        "to make the CA and the leaves": {Right("create", "secrets", "", NAMESPACE)},
        "to read and renew them": {
            Right(verb, "secrets", "", NAMESPACE, name) for verb in ("get", "patch") for name in _SECRETS
        },
        "to lead, or to see who does": {
            Right("create", "leases", "coordination.k8s.io", NAMESPACE),
            *(
                Right(verb, "leases", "coordination.k8s.io", NAMESPACE, "bursar-certificates")
                for verb in ("get", "update")
            ),
        },
        "to have the nodes' agents trust the CA": {
            Right("create", "configmaps", "", AGENTS),
            *(Right(verb, "configmaps", "", AGENTS, "bursar-ca") for verb in ("get", "patch")),
        },
        "to judge which device classes allocate GPUs": {
            Right("list", "deviceclasses", "resource.k8s.io"),
            *(
                Right(verb, "configmaps", "", NAMESPACE, "bursar-device-classes")
                for verb in ("get", "create", "patch")
            ),
        },
        "to write caBundle": {
            Right(verb, kind, "admissionregistration.k8s.io", name=CONFIGURATION)
            for verb in ("get", "patch")
            for kind in _CONFIGURATIONS
        }
        | {
            Right(verb, "apiservices", "apiregistration.k8s.io", name=API_SERVICE)
            for verb in ("get", "patch")
        },
    },
    "bursar-timekeeper": {
        "sessions": followed("pods"),
        "models and memory of cards": followed("nodes"),
        "budget entries for namespaces that do not exist": followed("namespaces"),
        "until when a node was heard": followed("leases", "coordination.k8s.io", "kube-node-lease"),
        "budgets": followed("configmaps", "", NAMESPACE),
        "to tell the policies the mode of each namespace": {
            Right(verb, "configmaps", "", NAMESPACE, name=name)
            for verb in ("create", "patch")
            for name in CONFIG_MAPS
        },
        "to tell the policy on allocations which budgets are spent": {
            Right(verb, "configmaps", "", NAMESPACE, name=SPENT) for verb in ("create", "patch")
        },
        "what held pods ask for by device claims": {
            *followed("deviceclasses", "resource.k8s.io"),
            *followed("resourceclaimtemplates", "resource.k8s.io"),
        },
        "to release held pods, as the policy bursar-releases allows": {Right("patch", "pods")},
        "to have pods leave that are over their memory share or their budget": {
            Right("create", "pods/eviction")
        },
        "the same, once a PodDisruptionBudget was respected for long enough": {Right("delete", "pods")},
        "whether pods that share a claim may all leave": {Right("list", "poddisruptionbudgets", "policy")},
        "to tell these when and why": {Right("patch", "pods/status")},
        "to keep a device for a claim, as the policy bursar-kept-devices allows": {
            Right(verb, "devicetaintrules", "resource.k8s.io") for verb in ("list", "create", "delete")
        },
        "to show budgets as objects": {
            Right(verb, "gpubudgets", "bursar.dev") for verb in ("list", "create", "patch")
        },
        "to ask the extender where simulated pods would be placed": {
            Right("create", "simulations", "bursar.dev")
        },
        "why a claim of an admitted pod is not made": {Right("list", "events")},
        "to tell them why, and what is wrong with a budget": {Right("create", "events", "events.k8s.io")},
        "values of the classes it names": followed("priorityclasses", "scheduling.k8s.io"),
        "which devices claims hold": followed("resourceclaims", "resource.k8s.io"),
        "what drivers publish of them": followed("resourceslices", "resource.k8s.io"),
        "whether the policies on grace periods have its figure": {
            Right("get", "validatingadmissionpolicies", "admissionregistration.k8s.io", name=name)
            for name in GRACE_POLICIES
        },
        "who a caller is": {Right("create", "tokenreviews", "authentication.k8s.io")},
        "what a caller may": {Right("create", "subjectaccessreviews", "authorization.k8s.io")},
    },
    "bursar-scheduler": {
        "who sits where": followed("pods"),
        "cards": followed("nodes"),
        "which namespaces pods select by labels": followed("namespaces"),
        "which nodes' GPUs drivers give out by claims": followed("resourceslices", "resource.k8s.io"),
        "to find out what became of a Binding": {Right("get", "pods")},
        "to open the gate of gangs that have cards, as the policy bursar-releases allows": {
            Right("patch", "pods")
        },
        "how many pods the owner of a gang that lacks members makes": {
            Right("get", "jobs", "batch"),
            Right("get", "statefulsets", "apps"),
        },
        "with how many pods a PodGroup starts": followed("podgroups", "scheduling.k8s.io"),
        "to bind": {Right("create", "pods/binding")},
        "to wake a waiting pod, and to hold cards for it": {Right("patch", "pods/status")},
        "to have others leave for it": {Right("create", "pods/eviction")},
        "the same, once a debtor's PodDisruptionBudget has been honoured for long enough": {
            Right("delete", "pods")
        },
        "which pods may leave without harm": followed("poddisruptionbudgets", "policy"),
        "who calls its read-only port, and what that caller may": {
            Right("create", "tokenreviews", "authentication.k8s.io"),
            Right("create", "subjectaccessreviews", "authorization.k8s.io"),
        },
        "who goes first and who may be asked to leave": {Right("get", "standings", "bursar.dev")},
        "to report pods that it bound, and ends that it saw": {Right("create", "bindings", "bursar.dev")},
        "to report what it decided about pods": {Right("create", "decisions", "bursar.dev")},
        "how busy cards are, for the policy load": {Right("get", "nodeusage", "bursar.dev")},
        "to tell what was decided about a pod or a node": {Right("create", "events", "events.k8s.io")},
        "kube-scheduler's own: to lead, and to go on leading": {
            Right(verb, "leases", "coordination.k8s.io", NAMESPACE, "bursar-scheduler")
            for verb in ("get", "update")
        },
    },
    "bursar-node": {
        "its own node": followed("nodes"),
        "inventory, holders and capacity, as the policy bursar-node-agent allows": {
            Right("patch", "nodes/status")
        },
        "which pods of its node have which cards": followed("pods"),
        "which cards of its node the devices of claims are": {
            Right("list", "resourceslices", "resource.k8s.io")
        },
        "a pod of which the watch has not told yet, when a container of it is made": {Right("get", "pods")},
        "to tell of cards that fail, of overuse and of strangers": {
            Right("create", "events", "events.k8s.io")
        },
        "to report what pods use": {Right("create", "nodeusage", "bursar.dev")},
    },
}
# what the roles for people hold, and who has them without being given them
PEOPLE = {
    "bursar-viewer": {
        *(
            Right("get", resource, "bursar.dev")
            for resource in ("balances", "budgets", "decisions", "grants", "sessions", "usage")
        ),
        Right("create", "simulations", "bursar.dev"),
        *(Right(verb, "gpubudgets", "bursar.dev") for verb in ("get", "list", "watch")),
    },
    "bursar-metrics": {Right("get", "balances", "bursar.dev"), Right("get", "/metrics")},
    "bursar-grants": {
        *(Right("create", each, "bursar.dev") for each in ("grants", "groups/grants")),
        *(Right("get", each, "bursar.dev") for each in ("balances", "budgets", "grants")),
    },
}


def needed(account: str) -> set[Right]:
    return {right for rights in NEEDED[account].values() for right in rights}


@pytest.mark.parametrize("account", NEEDED)
def test_an_account_is_given_what_it_needs_and_nothing_more(account: str) -> None:
    assert sorted(granted(account)) == sorted(needed(account))


def test_every_account_of_the_manifests_is_in_the_table() -> None:
    assert {account["metadata"]["name"] for account in of_kind("ServiceAccount")} == NEEDED.keys()


def test_a_role_is_either_bound_to_an_account_or_for_people() -> None:
    bound = {binding["roleRef"]["name"] for binding in of_kind("RoleBinding", "ClusterRoleBinding")}
    roles = {each["metadata"]["name"] for each in of_kind("Role", "ClusterRole")}

    assert roles - bound == PEOPLE.keys()


@pytest.mark.parametrize("name", PEOPLE)
def test_the_roles_for_people_have_these_rights_alone(name: str) -> None:
    assert role("ClusterRole", name) == PEOPLE[name]


def test_viewers_of_a_namespace_see_its_budget_and_no_role_may_grant_by_default() -> None:
    aggregated = {
        each["metadata"]["name"]: [label for label in each["metadata"]["labels"] if "aggregate-to" in label]
        for each in of_kind("ClusterRole")
    }

    assert aggregated.pop("bursar-viewer") == ["rbac.authorization.k8s.io/aggregate-to-view"]
    assert not any(aggregated.values())


def test_no_rule_has_a_wildcard_or_reaches_for_power_over_others() -> None:
    powers = {"escalate", "bind", "impersonate", "deletecollection", "delete"}
    rights = [right for account in NEEDED for right in granted(account)]

    assert not [right for right in rights if "*" in (right.verb, right.resource, right.group)]
    assert sorted(right for right in rights if right.verb in powers) == [
        Right("delete", "devicetaintrules", "resource.k8s.io"),
        Right("delete", "pods"),  # timekeeper
        Right("delete", "pods"),  # extender
    ]
    assert not [right for right in rights if right.resource == "secrets" and right.namespace == ANYWHERE]


def test_the_roles_cover_every_right_that_timekeeper_and_extender_check() -> None:
    sources = (ROOT / "timekeeper" / "api", ROOT / "scheduler_ext" / "serving")
    asked = {
        Right(verb, resource, DOMAIN)
        for source in sources
        for file in sorted(source.rglob("*.py"))
        for verb, resource in demanded(ast.parse(file.read_text()))
    }

    ours = {
        right for each in ("bursar-webhook", "bursar-scheduler", "bursar-node") for right in granted(each)
    }
    given = {right for right in ours if right.group == DOMAIN}
    people = {right for rights in PEOPLE.values() for right in rights}
    stored = {right for right in people if right.resource == "gpubudgets"}  # objects of the API server itself
    stored.add(Right("get", "/metrics"))  # a nonResourceURL
    assert asked == (given | people) - stored


def demanded(module: ast.Module) -> list[tuple[str, str]]:
    """Verb and resource of every right that is written out: where the gate is asked, or as a value. A page
    of the extender is admitted to get a resource."""
    calls = [node for node in ast.walk(module) if isinstance(node, ast.Call)]
    pages = [call.args[0] for call in calls if ast.unparse(call.func) == "admit" and len(call.args) == 2]
    allowing = [call for call in calls if ast.unparse(call.func).endswith("gate.allow")]
    told = [call.args[1:3] for call in allowing]
    written = [each for each in told if all(isinstance(part, ast.Constant) for part in each)]
    written += [call.args for call in calls if ast.unparse(call.func) == "Right"]
    found = [(ast.literal_eval(verb), ast.literal_eval(resource)) for verb, resource in written]
    return found + [("get", each.value) for each in pages if isinstance(each, ast.Constant)]


def test_the_right_to_patch_nodes_is_in_a_sample_of_its_own_which_restricts_it_to_locks() -> None:
    role, binding, policy, _ = yaml.safe_load_all((SAMPLES / "node-locks.yaml").read_text())

    assert not any(right.covers(Right("patch", "nodes")) for right in granted("bursar-scheduler"))
    assert of_role(role) == {Right("get", "nodes"), Right("patch", "nodes")}
    assert (binding["roleRef"]["name"], binding["subjects"][0]["name"]) == (
        role["metadata"]["name"],
        "bursar-scheduler",
    )
    variables = {each["name"]: each["expression"] for each in policy["spec"]["variables"]}
    assert variables["locks"].rstrip() == str(
        list(dict.fromkeys(each.node_lock for each in DIALECTS if each.node_lock))
    )
    (condition,) = policy["spec"]["matchConditions"]
    assert condition["expression"].endswith("'system:serviceaccount:bursar-system:bursar-scheduler'")


@pytest.mark.parametrize(
    ("sample", "namespace", "resource", "verbs", "accounts"),
    [
        ("prometheus.yaml", "monitoring", "services", ["list"], ["bursar-scheduler", "bursar-timekeeper"]),
        ("gpushare-health.yaml", "kube-system", "configmaps", ["list", "watch"], ["bursar-scheduler"]),
    ],
)
def test_what_only_some_clusters_need_is_in_a_sample_of_its_own_for_one_namespace(
    sample: str, namespace: str, resource: str, verbs: list[str], accounts: list[str]
) -> None:
    role, binding = yaml.safe_load_all((SAMPLES / sample).read_text())

    assert role["rules"] == [{"apiGroups": [""], "resources": [resource], "verbs": verbs}]
    assert {each["metadata"]["namespace"] for each in (role, binding)} == {namespace}
    assert binding["roleRef"] == {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "Role",
        "name": role["metadata"]["name"],
    }
    found = [(each["namespace"], each["name"]) for each in binding["subjects"]]
    assert found == [(NAMESPACE, each) for each in accounts]
