"""The command lines of the control plane's processes. Paths are relative to the control plane's folder."""

from collections.abc import Sequence
from dataclasses import dataclass

from deploy.local.kwok_stages import FAKE_NODE

SERVICE_RANGE = "10.96.0.0/16"
SERVICE_RANGE_FIRST = "10.96.0.1"
POD_RANGE = "10.244.0.0/16"
FRONT_PROXY = "front-proxy-client"  # common name of the certificate that the API server shows to APIServices
# It tells of mistyped expressions in the status of policies. Bursar's take half a second of a processor.
OF_POLICIES = "validatingadmissionpolicy-status-controller"
# Silent nodes do not become unreachable, and do not lose their pods.
_OF_NODES = ("-node-lifecycle-controller", "-taint-eviction-controller")
ISSUER = "https://kubernetes.default.svc.cluster.local"

# etcd reads host and port even of a Unix socket; the file is named after both. Sockets need no port that
# another process could take.
_ETCD_CLIENTS = "unix://etcd:1"
_ETCD_PEERS = "unix://etcd:2"


@dataclass(frozen=True, slots=True)
class Options:
    """The settings of a control plane."""

    listen: str = "127.0.0.1"  # the API server's address
    port: int = 0  # 0: a free one
    names: tuple[str, ...] = ()  # further DNS names and addresses of its certificate
    api_flags: tuple[str, ...] = ()  # for kube-apiserver; they override ours
    controller_flags: tuple[str, ...] = ()  # for kube-controller-manager; they override ours
    scheduler_flags: tuple[str, ...] = ()  # for each kube-scheduler; they override ours
    node_lease_s: int = 40  # the duration of a kwok node's Lease, which is renewed every quarter of it
    nodes: tuple[str, ...] = ()  # names of real nodes, whose kubelets get a token each

    @property
    def called(self) -> str:
        """The address of the API server for clients: loopback if it listens on all addresses."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.listen, self.listen)  # noqa: S104


def etcd() -> list[str]:
    """Without fsync, for speed: the data are deleted with the folder."""
    return [
        "--name=local",
        "--data-dir=etcd",
        "--unsafe-no-fsync",
        f"--listen-client-urls={_ETCD_CLIENTS}",
        f"--advertise-client-urls={_ETCD_CLIENTS}",
        f"--listen-peer-urls={_ETCD_PEERS}",
        f"--initial-advertise-peer-urls={_ETCD_PEERS}",
        f"--initial-cluster=local={_ETCD_PEERS}",
        "--logger=zap",
        "--log-level=warn",
    ]


# For logs, exec and port-forward. A node is not called by its name, which no name server knows.
_TO_KUBELETS = (
    "--kubelet-client-certificate=kubelet-client.crt",
    "--kubelet-client-key=kubelet-client.key",
    "--kubelet-preferred-address-types=InternalIP",
)


# As kubeadm writes them, for APIServices.
_TO_AGGREGATED_SERVERS = (
    "--requestheader-client-ca-file=front-proxy-ca.crt",
    f"--requestheader-allowed-names={FRONT_PROXY}",
    "--requestheader-username-headers=X-Remote-User",
    "--requestheader-group-headers=X-Remote-Group",
    "--requestheader-extra-headers-prefix=X-Remote-Extra-",
    "--proxy-client-cert-file=front-proxy-client.crt",
    "--proxy-client-key-file=front-proxy-client.key",
)


def kube_apiserver(options: Options, port: int) -> list[str]:
    """The API server shares its port with the socket that reserves it."""
    return [
        f"--etcd-servers={_ETCD_CLIENTS}",
        f"--bind-address={options.listen}",
        f"--secure-port={port}",
        "--permit-port-sharing=true",
        # Unused, but without it the API server does not start on a machine without a network.
        f"--advertise-address={options.called}",
        "--tls-cert-file=apiserver.crt",
        "--tls-private-key-file=apiserver.key",
        "--token-auth-file=tokens.csv",
        "--client-ca-file=clients-ca.crt",
        *_TO_AGGREGATED_SERVERS,
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--service-account-key-file=service-accounts.key",
        "--service-account-signing-key-file=service-accounts.key",
        f"--service-account-issuer={ISSUER}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--allow-privileged=true",
        "--endpoint-reconciler-type=none",
        "--disable-admission-plugins=TaintNodesByCondition",
        *(_TO_KUBELETS if options.nodes else ()),
        *options.api_flags,
    ]


def kube_controller_manager(options: Options, controllers: Sequence[str] = ()) -> list[str]:
    """With credentials per controller: without them, RBAC refuses most of its loops. ``controllers``: it runs
    these alone."""
    return [
        "--kubeconfig=controllers.kubeconfig",
        "--use-service-account-credentials=true",
        "--service-account-private-key-file=service-accounts.key",
        "--root-ca-file=ca.crt",
        "--leader-elect=false",
        "--secure-port=0",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        f"--controllers={','.join(controllers or ('*', *_OF_NODES, f'-{OF_POLICIES}'))}",
        *options.controller_flags,
    ]


def kube_scheduler(options: Options, configuration: str) -> list[str]:
    """No port: several may run at once."""
    return [f"--config={configuration}", "--secure-port=0", *options.scheduler_flags]


def kwok(options: Options) -> list[str]:
    """kwok manages only the nodes with our annotation."""
    return [
        "--kubeconfig=admin.kubeconfig",
        "--config=stages.yaml",
        f"--manage-nodes-with-annotation-selector={FAKE_NODE}",
        f"--node-lease-duration-seconds={options.node_lease_s}",
        "--node-ip=127.0.0.1",
        f"--cidr={POD_RANGE}",
    ]


def webhook_service(namespace: str, name: str) -> dict[str, object]:
    """A Service that leads the API server to a webhook on this machine: `clientConfig.service {namespace,
    name, port}`, where port is the local one (the API server maps no ports here). The server's certificate
    must be for `<name>.<namespace>.svc`.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"type": "ExternalName", "externalName": "127.0.0.1"},
    }
