"""The binaries that a control plane needs, their versions, and the places to look for them."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.local.limits import LONGEST_S

KUBERNETES_VERSION = "1.37.2"
# The older ones that `make test-versions` runs the cluster tests with, each named by BURSAR_KUBERNETES.
OLDER_KUBERNETES = {"1.34": "1.34.4", "1.35": "1.35.4", "1.36": "1.36.3"}
ETCD_VERSION = "3.7.0"  # of Kubernetes' go.mod
KWOK_VERSION = "0.8.0"
CONTAINERD_VERSION = "2.4.2"
RUNC_VERSION = "1.5.2"
CNI_VERSION = "1.9.1"
DRA_DRIVER_VERSION = "0.4.0"
PROMETHEUS_VERSION = "0.311.3"  # of the Go module: Prometheus 3.11.3
OPERATOR_VERSION = "0.85.0"  # of the Prometheus operator
HELM_VERSION = "4.3.1"
KARPENTER_VERSION = "1.14.1"
JOBSET_VERSION, LWS_VERSION, KUEUE_VERSION = "0.11.0", "0.8.0", "0.19.0"


@dataclass(frozen=True, slots=True)
class GoModule:
    """A Go module that binaries are built from. A binary on the machine is used if it has the same `series`,
    the major.minor that we test."""

    name: str
    module: str
    version: str
    stamps: tuple[str, ...] = ()  # settings for -ldflags -X, without which the binaries report v0.0.0
    staged: bool = (
        False  # its go.mod maps siblings to its own folders; they must be mapped to published versions
    )
    tags: tuple[str, ...] = ()  # Go's build tags
    cgo: bool = False  # it needs a C compiler
    # It gets the versions of this module's dependencies instead of its own: what is compiled of them counts
    # for both.
    like: "GoModule | None" = None

    @property
    def series(self) -> tuple[int, int]:
        """Major and minor version."""
        major, minor, _ = self.version.split(".")
        return int(major), int(minor)


@dataclass(frozen=True, slots=True)
class Tool:
    """A binary."""

    name: str  # of the file
    source: GoModule
    package: str  # the path of its Go main package
    version_args: tuple[str, ...] | None = ("--version",)  # with which it prints its version; None: it cannot


def kubernetes(environ: Mapping[str, str] = os.environ) -> GoModule:
    """Kubernetes in the version that this process runs: the tested one, or the older one whose series
    BURSAR_KUBERNETES names. Raises ValueError for another series."""
    series = environ.get("BURSAR_KUBERNETES") or KUBERNETES_VERSION.rpartition(".")[0]
    version = {KUBERNETES_VERSION.rpartition(".")[0]: KUBERNETES_VERSION, **OLDER_KUBERNETES}.get(series)
    if version is None:
        raise ValueError(
            f"BURSAR_KUBERNETES: no tests run on {series}, only on {', '.join(OLDER_KUBERNETES)}"
        )
    major, minor, _ = version.split(".")
    told = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    stamps = tuple(
        f"{package}.{variable}={value}"
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
        for variable, value in told.items()
    )
    return GoModule("kubernetes", "k8s.io/kubernetes", version, stamps, staged=True)


KUBERNETES = kubernetes()
# For each Kubernetes this one etcd, with the modules of the tested one.
ETCD = GoModule("etcd", "go.etcd.io/etcd/server/v3", ETCD_VERSION, like=kubernetes({}))
KWOK = GoModule(
    "kwok",
    "sigs.k8s.io/kwok",
    KWOK_VERSION,
    (f"sigs.k8s.io/kwok/pkg/consts.Version=v{KWOK_VERSION}",),
    like=KUBERNETES,
)

_CONTAINERD_MODULE = "github.com/containerd/containerd/v2"
CONTAINERD = GoModule(
    "containerd",
    _CONTAINERD_MODULE,
    CONTAINERD_VERSION,
    (f"{_CONTAINERD_MODULE}/version.Version=v{CONTAINERD_VERSION}",),
    tags=("no_btrfs", "no_devmapper", "no_zfs"),
)
# Without seccomp it refuses every pod with the runtime's default profile, such as ours.
RUNC = GoModule("runc", "github.com/opencontainers/runc", RUNC_VERSION, tags=("seccomp",), cgo=True)
_CNI_MODULE = "github.com/containernetworking/plugins"
CNI = GoModule(
    "cni",
    _CNI_MODULE,
    CNI_VERSION,
    (f"{_CNI_MODULE}/pkg/utils/buildversion.BuildVersion=v{CNI_VERSION}",),
)

# Its devices are made up: containers get environment variables. It prints no version, and does not compile
# with the modules of Kubernetes 1.37.
_DRA_DRIVER_MODULE = "sigs.k8s.io/dra-example-driver"
DRA_DRIVER = GoModule("dra-example-driver", _DRA_DRIVER_MODULE, DRA_DRIVER_VERSION)

TOOLS = (
    Tool("etcd", ETCD, "go.etcd.io/etcd/server/v3"),
    Tool("kube-apiserver", KUBERNETES, "k8s.io/kubernetes/cmd/kube-apiserver"),
    Tool("kube-controller-manager", KUBERNETES, "k8s.io/kubernetes/cmd/kube-controller-manager"),
    Tool("kube-scheduler", KUBERNETES, "k8s.io/kubernetes/cmd/kube-scheduler"),
    Tool("kubectl", KUBERNETES, "k8s.io/kubernetes/cmd/kubectl", ("version", "--client")),
    Tool("kwok", KWOK, "sigs.k8s.io/kwok/cmd/kwok"),
)

# Writes the static pod of kube-scheduler that the plugin's patch is tested with; built on request only.
KUBEADM_TOOLS = (
    Tool("kubeadm", KUBERNETES, "k8s.io/kubernetes/cmd/kubeadm", ("version", "--output", "yaml")),
)

# The further binaries of a real node; built on request only.
NODE_TOOLS = (
    Tool("kubelet", KUBERNETES, "k8s.io/kubernetes/cmd/kubelet"),
    Tool("containerd", CONTAINERD, f"{_CONTAINERD_MODULE}/cmd/containerd"),
    Tool("containerd-shim-runc-v2", CONTAINERD, f"{_CONTAINERD_MODULE}/cmd/containerd-shim-runc-v2", ("-v",)),
    Tool("ctr", CONTAINERD, f"{_CONTAINERD_MODULE}/cmd/ctr"),
    Tool("runc", RUNC, "github.com/opencontainers/runc"),
    # A CNI plugin without a command prints its name and version on stderr.
    Tool("bridge", CNI, f"{_CNI_MODULE}/plugins/main/bridge", ()),
    Tool("host-local", CNI, f"{_CNI_MODULE}/plugins/ipam/host-local", ()),
    Tool("loopback", CNI, f"{_CNI_MODULE}/plugins/main/loopback", ()),
    Tool(
        "dra-example-kubeletplugin", DRA_DRIVER, f"{_DRA_DRIVER_MODULE}/cmd/dra-example-kubeletplugin", None
    ),
)

# For tests of the policy `load` against Prometheus itself; built on request only. Without the tag it has the
# clients of every cloud.
_PROMETHEUS_MODULE = "github.com/prometheus/prometheus"
PROMETHEUS = GoModule(
    "prometheus",
    _PROMETHEUS_MODULE,
    PROMETHEUS_VERSION,
    (f"github.com/prometheus/common/version.Version={PROMETHEUS_VERSION}",),
    tags=("remove_all_sd",),
)
PROMETHEUS_TOOLS = (Tool("prometheus", PROMETHEUS, f"{_PROMETHEUS_MODULE}/cmd/prometheus"),)

# For rendering deploy/chart and for the tests that install it.
HELM = GoModule(
    "helm",
    "helm.sh/helm/v4",
    HELM_VERSION,
    (f"helm.sh/helm/v4/internal/version.version=v{HELM_VERSION}",),
    like=KUBERNETES,
)
HELM_TOOL = Tool("helm", HELM, "helm.sh/helm/v4/cmd/helm", ("version", "--template", "helm {{.Version}}"))

# For a test of the chart's monitors, which builds it on request; other tests take its
# CustomResourceDefinitions alone.
_OPERATOR_MODULE = "github.com/prometheus-operator/prometheus-operator"
PROMETHEUS_OPERATOR = GoModule(
    "prometheus-operator",
    _OPERATOR_MODULE,
    OPERATOR_VERSION,
    (f"github.com/prometheus/common/version.Version={OPERATOR_VERSION}",),
)
OPERATOR_TOOLS = (Tool("operator", PROMETHEUS_OPERATOR, f"{_OPERATOR_MODULE}/cmd/operator"),)
# Not built: the tests of the chart take its CustomResourceDefinitions.
CERT_MANAGER = GoModule("cert-manager", "github.com/cert-manager/cert-manager", "1.21.2")
GATEWAY_API = GoModule("gateway-api", "sigs.k8s.io/gateway-api", "1.4.1")

# For tests of alerts; built on request only.
PROMTOOL_TOOLS = (Tool("promtool", PROMETHEUS, f"{_PROMETHEUS_MODULE}/cmd/promtool"),)

# Karpenter with the provider whose nodes are objects only; built on request only. It prints no version.
_KARPENTER_MODULE = "sigs.k8s.io/karpenter"
KARPENTER = GoModule("karpenter", _KARPENTER_MODULE, KARPENTER_VERSION)
KARPENTER_TOOLS = (Tool("kwok-karpenter", KARPENTER, f"{_KARPENTER_MODULE}/kwok", None),)

# The controllers whose pods start together; built on request only. They print no version.
_JOBSET_MODULE, _LWS_MODULE = "sigs.k8s.io/jobset", "sigs.k8s.io/lws"
JOBSET = GoModule("jobset", _JOBSET_MODULE, JOBSET_VERSION)
LWS = GoModule("lws", _LWS_MODULE, LWS_VERSION)
JOBSET_TOOLS = (Tool("jobset", JOBSET, _JOBSET_MODULE, None),)
LWS_TOOLS = (Tool("lws", LWS, f"{_LWS_MODULE}/cmd", None),)

# The controller whose queues follow a budget; built on request only. It prints no version.
_KUEUE_MODULE = "sigs.k8s.io/kueue"
KUEUE = GoModule("kueue", _KUEUE_MODULE, KUEUE_VERSION)
KUEUE_TOOLS = (Tool("kueue", KUEUE, f"{_KUEUE_MODULE}/cmd/kueue", None),)

# "Kubernetes v1.37.2", "Client Version: v1.37.2", "etcd Version: 3.7.0", "kwok version v0.8.0 go1.26.8",
# "containerd github.com/containerd/containerd/v2 v2.4.2 <revision>", "ctr <the same>", "  Version:  v2.4.2"
# of the shim, "runc version 1.5.2", "CNI bridge plugin v1.9.1", "prometheus, version 0.311.3 (branch: ...",
# "promtool, version ...", "prometheus-operator, version ...", "helm v4.3.1", "  gitVersion: v1.37.2" of
# kubeadm.
_VERSION = re.compile(
    r"^(?:Kubernetes|Client Version:|etcd Version:|kwok version|containerd \S+|ctr \S+|  Version: "
    r"|runc version|CNI [a-z-]+ plugin|(?:prometheus(?:-operator)?|promtool), version|helm|  gitVersion:)"
    r" v?([0-9]{1,4})\.([0-9]{1,4})\.[0-9]{1,4}(?![0-9A-Za-z.+-])",
    re.MULTILINE,
)


def parse_version(text: str) -> tuple[int, int] | None:
    """The (major, minor) in a binary's output; None for a pre-release, a vendor's build, or no version."""
    found = _VERSION.search(text)
    return (int(found[1]), int(found[2])) if found else None


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The only folder outside of the checkout that stays: `$XDG_CACHE_HOME/bursar`, or `~/.cache/bursar`."""
    named = environ.get("XDG_CACHE_HOME", "")
    # By the XDG rules, a relative path is ignored.
    if named.startswith("/"):
        return Path(named) / "bursar"
    return Path(environ.get("HOME") or Path.home()) / ".cache" / "bursar"


def cached_path(tool: Tool, cache: Path) -> Path:
    """This binary's path in the cache: one folder per version, so that the folder can be on a PATH."""
    return cache / "bin" / f"{tool.source.name}-v{tool.source.version}" / tool.name


def candidates(tool: Tool, environ: Mapping[str, str], cache: Path) -> Iterator[Path]:
    """The places to look for a binary, in order: KUBEBUILDER_ASSETS, each folder of PATH, the cache."""
    assets = environ.get("KUBEBUILDER_ASSETS")
    if assets:
        yield Path(assets) / tool.name
    for folder in environ.get("PATH", "").split(os.pathsep):
        if folder:
            yield Path(folder) / tool.name
    yield cached_path(tool, cache)


def asked_version(path: Path, args: tuple[str, ...]) -> tuple[int, int] | None:
    """A binary's version, by running it; None if it does not run, fails, hangs, or prints no version."""
    try:
        done = subprocess.run(
            [path, *args],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LONGEST_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(done.stdout + done.stderr) if done.returncode == 0 else None


def find(
    tool: Tool,
    environ: Mapping[str, str],
    cache: Path,
    ask: Callable[[Path, tuple[str, ...]], tuple[int, int] | None] = asked_version,
) -> Path | None:
    """The first candidate that is an executable file of the tested series, or None. Of a tool that cannot
    print its version, only our own build counts."""
    if tool.version_args is None:
        built = cached_path(tool, cache)
        return built if built.is_file() else None
    for path in candidates(tool, environ, cache):
        if path.is_file() and os.access(path, os.X_OK) and ask(path, tool.version_args) == tool.source.series:
            return path.absolute()
    return None
