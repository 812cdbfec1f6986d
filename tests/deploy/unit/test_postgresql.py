"""The timekeeper on PostgreSQL: the variant against the manifest that it replaces."""

import re

from tests.deploy.reading import MANIFESTS, ROOT, Json, container, documents, template, the
from timekeeper import settings

VARIANT = ROOT / "deploy" / "postgresql"


def one(kind: str) -> Json:
    """The variant's object of this kind."""
    (found,) = [each for each in documents(VARIANT) if each["kind"] == kind]
    return found


def only_container() -> Json:
    (found,) = template(one("Deployment"))["spec"]["containers"]
    return dict(found)


def test_the_service_and_the_pods_labels_are_those_of_the_manifest_whose_place_it_takes() -> None:
    replaced = the("StatefulSet", "bursar-timekeeper")

    assert one("Service") == the("Service", "bursar-timekeeper")
    assert one("Deployment")["spec"]["selector"] == replaced["spec"]["selector"]
    assert template(one("Deployment"))["metadata"] == template(replaced)["metadata"]
    assert (VARIANT / "timekeeper.yaml").name in {file.name for file in MANIFESTS.glob("*.yaml")}


def test_but_for_the_ledgers_place_the_containers_are_alike() -> None:
    mine, other = only_container(), dict(container("bursar-timekeeper/timekeeper"))

    assert mine.pop("args") == [word for word in other.pop("args") if not word.startswith("--database")]
    assert mine.pop("lifecycle") == container("bursar-webhook/webhook")["lifecycle"]
    assert [each["name"] for each in mine.pop("volumeMounts")] == ["tls", "token", "tmp"]
    del mine["env"], other["volumeMounts"]
    assert mine == other


def test_the_databases_url_comes_from_a_secret_and_stands_in_no_argument() -> None:
    database, pod = only_container()["env"]

    assert pod == {"name": "BURSAR_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
    assert pod in container("bursar-certificates/certificates")["env"]
    assert database == {
        "name": "BURSAR_DATABASE",
        "valueFrom": {"secretKeyRef": {"name": "bursar-database", "key": "url"}},
    }
    url = "postgresql://me:secret@db/bursar"
    read = settings.read(only_container()["args"], {"BURSAR_DATABASE": url})
    assert (read.database, read.command) == (url, "serve")


def test_one_replica_may_go_at_a_time_and_they_spread_over_nodes() -> None:
    spec = one("Deployment")["spec"]
    labels = spec["selector"]["matchLabels"]

    assert spec["replicas"] >= 2
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert one("PodDisruptionBudget")["spec"]["minAvailable"] == 1
    assert one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    (spread,) = template(one("Deployment"))["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == labels


def test_the_pods_are_as_hard_as_the_others() -> None:
    mine, other = (
        template(one("Deployment"))["spec"],
        template(the("StatefulSet", "bursar-timekeeper"))["spec"],
    )

    for name in ("serviceAccountName", "priorityClassName", "enableServiceLinks"):
        assert mine[name] == other[name]
    assert mine["securityContext"].items() <= other["securityContext"].items()


def test_the_file_alone_has_one_replica_on_a_volume_of_one_pod() -> None:
    """SQLite is a file: a volume that two pods could mount would be two settlers on one ledger."""
    file = the("StatefulSet", "bursar-timekeeper")
    (claim,) = file["spec"]["volumeClaimTemplates"]

    assert file["spec"]["replicas"] == 1
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]


def test_each_documented_url_that_verifies_the_server_says_by_which_cas() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    urls = {
        url
        for page in pages
        for url in re.findall(r"postgresql://[^\s'\"`]*verify[^\s'\"`]*", page.read_text())
    }

    assert urls
    assert [url for url in urls if "&sslrootcert=" not in url] == []
