"""Where a Prometheus is: at a URL, or at the Service found in a namespace."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timekeeper.runtime import flags
from timekeeper.runtime.flags import UnusableError, flag, http_or_https, optional, path_or_none


def url_flag(about: str) -> Any:
    """The flag ``--prometheus-url``, with what it is for."""
    return flag(optional(http_or_https, ""), "", about, name="--prometheus-url")


@dataclass(frozen=True, slots=True)
class PrometheusSettings:
    """Prometheus at ``url``, or where that is empty at the Service found in ``namespace``; both empty: there
    is none."""

    url: str = url_flag("URL of Prometheus; empty: none")
    namespace: str = flag(
        optional(flags.namespace, ""),
        "",
        "namespace in which the Service of Prometheus is found, by its label"
        " app.kubernetes.io/name=prometheus; in place of --prometheus-url",
        name="--prometheus-namespace",
    )
    ca: Path | None = flag(
        path_or_none, "", "CA bundle of Prometheus, PEM; empty: the system's", name="--prometheus-ca"
    )
    token_file: Path | None = flag(
        path_or_none,
        "",
        "token for Prometheus, read before each query; empty: none",
        name="--prometheus-token-file",
    )

    def __post_init__(self) -> None:
        """Refuses two places."""
        if self.url and self.namespace:
            raise UnusableError("--prometheus-url and --prometheus-namespace exclude each other")

    @property
    def is_given(self) -> bool:
        """Whether there is one."""
        return bool(self.url or self.namespace)
