"""What Go builds for tests: the tools of the control plane and of a real node, controllers of gangs, files of
modules, and programs of our own. Each is built once and kept in the cache.

``python -m tests.support.go_programs test`` (or ``all``) builds what `make test` (or `make all`) needs, so
that no test waits for a compiler.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp

from deploy.local.build import binaries, module_file
from deploy.local.errors import LocalError
from deploy.local.golang import Workshop, find_go, install_go
from deploy.local.real_node import hindrance
from deploy.local.tools import (
    GATEWAY_API,
    HELM_TOOL,
    JOBSET,
    JOBSET_TOOLS,
    KUBEADM_TOOLS,
    KUEUE,
    KUEUE_TOOLS,
    LWS,
    LWS_TOOLS,
    NODE_TOOLS,
    TOOLS,
    GoModule,
    cache_folder,
)

CRDS = {
    "jobset": "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml",
    "lws": "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml",
}
_KUEUES = (
    *("localqueues", "clusterqueues", "cohorts", "workloads", "resourceflavors", "admissionchecks"),
    *("workloadpriorityclasses", "provisioningrequestconfigs", "multikueueconfigs", "multikueueclusters"),
    "topologies",
)
KUEUE_CRDS = tuple(f"config/components/crd/bases/kueue.x-k8s.io_{kind}.yaml" for kind in _KUEUES)
KUEUE_WEBHOOKS = "config/components/webhook/manifests.yaml"
KUEUE_FILES = (*KUEUE_CRDS, KUEUE_WEBHOOKS)
WEBHOOKS = {"jobset": "config/components/webhook/manifests.yaml", "lws": "config/webhook/manifests.yaml"}
GATEWAY_CRDS = tuple(
    f"config/crd/standard/gateway.networking.k8s.io_{kind}.yaml"
    for kind in ("httproutes", "backendtlspolicies")
)
PROGRAMS = Path(__file__).parents[1] / "node" / "go"  # a device plugin, and the kubelet's pod resources


def build_all() -> None:
    """Everything, one after another. Raises LocalError with a sentence."""
    files: list[tuple[GoModule, str]] = [(GATEWAY_API, path) for path in GATEWAY_CRDS]
    for source in (JOBSET, LWS):
        files += [(source, CRDS[source.name]), (source, WEBHOOKS[source.name])]
    files += [(KUEUE, path) for path in KUEUE_FILES]
    for source, path in files:
        module_file(source, path, _say)
    program(PROGRAMS, "plugin")
    node = () if hindrance() else NODE_TOOLS
    controllers = *JOBSET_TOOLS, *LWS_TOOLS, *KUEUE_TOOLS
    binaries(_say, (*TOOLS, *KUBEADM_TOOLS, *node, HELM_TOOL, *controllers))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def program(source: Path, name: str) -> Path:
    """The binary of the main package in this folder of a module, whose folder is ``source``."""
    whole = b"".join(path.read_bytes() for path in sorted(source.rglob("*")) if path.is_file())
    role = source.parent.name
    folder = cache_folder() / "bin" / f"tests-{role}-{hashlib.sha256(whole).hexdigest()[:12]}"
    if not (folder / name).exists():
        _build(source, folder)
    return folder / name


def _build(source: Path, folder: Path) -> None:
    workshop = Workshop(cache_folder() / "go")
    workshop.scratch.mkdir(parents=True, exist_ok=True)
    if find_go(workshop, os.environ) is None:
        install_go(workshop, os.environ, lambda _output, _seconds: None)
    go = find_go(workshop, os.environ)
    folder.mkdir(parents=True, exist_ok=True)
    fresh = Path(mkdtemp(dir=folder))
    copied = shutil.copytree(source, fresh / "source")
    command = [str(go), "build", "-trimpath", "-o", f"{fresh}/built/", "./..."]
    done = subprocess.run(
        command, cwd=copied, env=workshop.environment(os.environ), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for built in (fresh / "built").iterdir():
        built.replace(folder / built.name)  # another process that builds at the same time builds the same
    shutil.rmtree(fresh)


if __name__ == "__main__":
    try:
        build_all() if sys.argv[1:] == ["all"] else binaries(_say, TOOLS)
    except LocalError as error:
        sys.exit(f"error: {error}")
