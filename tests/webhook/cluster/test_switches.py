"""The switch between observing and enforcing as docs/bypass.md tells it, typed on a real API server."""

import json
import re
import shutil
import subprocess
from pathlib import Path

from deploy.local.cluster import ControlPlane
from tests.support.waiting import eventually
from tests.webhook.cases import WAYS, a_pod
from tests.webhook.policies import MANIFESTS
from tests.webhook.servers import ROOT, environment
from tests.webhook.worlds import plain
from tests.worlds import Json

PAGE = ROOT / "docs" / "bypass.md"


def commands(heading: str) -> list[str]:
    """The commands under a heading of the page."""
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [
        line
        for block in re.findall(r"```console\n(.*?)```", section, re.DOTALL)
        for line in block.splitlines()
    ]


def run(cp: ControlPlane, folder: Path, command: str) -> None:
    """One command of the page in a shell, with kubectl and its cluster at hand."""
    variables = environment() | {"KUBECONFIG": str(cp.admin_kubeconfig), "HOME": str(cp.folder)}
    variables["PATH"] = f"{cp.kubectl_path.parent}:{variables['PATH']}"
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_installed_as_the_page_says_nothing_is_refused_and_everything_is_reported(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    shutil.copytree(MANIFESTS, tmp_path / "deploy" / "manifests")
    watch_only, enforce_one = commands("The first days, and the switches")[:2]
    bad, worse = WAYS["an anti-affinity to pods of all namespaces"].bad, a_pod(plain("main"), hostPID=True)

    def created(cp: ControlPlane, pod: Json) -> tuple[int, str]:
        done = cp.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(pod))
        return done.returncode, done.stderr

    cp = control_plane
    assert cp.kubectl("apply", "-f", str(MANIFESTS / "00-namespace.yaml")).returncode == 0
    run(cp, tmp_path, watch_only)
    for file in sorted((tmp_path / "deploy" / "manifests").glob("admission-*.yaml")):
        assert cp.kubectl("apply", "--server-side", "-f", str(file)).returncode == 0
    eventually(lambda: all(created(cp, each)[1] for each in (bad, worse)), "the policies to be in force")

    for pod, rule in ((bad, "anti-affinity"), (worse, "host-pid")):
        code, said = created(cp, pod)
        assert code == 0
        assert said.startswith("Warning: Validation failed for ValidatingAdmissionPolicy 'bursar-")
        assert f"[{rule}]" in said

    run(cp, tmp_path, enforce_one)
    eventually(lambda: created(cp, worse)[0] != 0, "the one policy to refuse")
    assert created(cp, bad)[0] == 0
