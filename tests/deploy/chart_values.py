"""Values of the chart that several tests give it."""

from collections.abc import Iterable
from typing import Any

Values = dict[str, Any]

EXTRA: dict[str, list[Values]] = {
    "extraVolumes": [{"name": "more", "configMap": {"name": "more"}}],
    "extraVolumeMounts": [{"name": "more", "mountPath": "/etc/bursar-more", "readOnly": True}],
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "1"}],
}
# the values of each container that takes such, and of its pod
ADDED = {
    "timekeeper": ("timekeeper", "timekeeper"),
    "extender": ("extender", "scheduler"),
    "agent": ("nodeAgent", "nodeAgent"),
}
# what shows the values of parts that are off by default
GATEWAY = {"enabled": True, "host": "gpus.example", "parentRefs": [{"name": "edge", "namespace": "edge"}]}
ON = {
    "dashboard": {
        "ingress": {"enabled": True, "host": "gpus.example"},
        "gateway": GATEWAY,
        "url": "https://bursar.example.com",
        "oidc": {
            "issuer": "https://login.example.com",
            "clientId": "bursar",
            "secretName": "oidc",
            "caConfigMapName": "oidc-ca",
        },
    },
    "exemptNamespaces": ["monitoring", "calico-system"],
    "grafanaDashboards": {"enabled": True},
    "networkPolicies": {"enabled": True, "apiServers": ["10.0.0.1/32"], "timekeeperClients": ["10.1.0.0/16"]},
    "apiService": {"enabled": True},
    "monitors": {"enabled": True},
    "prometheusRules": {"enabled": True},
}


def merged(values: Iterable[Values]) -> Values:
    """Nested values as one."""
    whole: Values = {}
    for each in values:
        for name, value in each.items():
            both = isinstance(value, dict) and isinstance(whole.get(name), dict)
            whole[name] = merged([whole[name], value]) if both else value
    return whole
