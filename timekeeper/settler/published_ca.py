"""The CA of a timekeeper that runs alone, for its callers: a ConfigMap of its own namespace."""

from pathlib import Path
from threading import Event

from timekeeper.runtime.api_server import ANSWER_S, APPLY, Answered, Api
from timekeeper.runtime.log import log

NAME = "bursar-ca"
_AGAIN_S = 15.0


def publish(api: Api, namespace: str, file: Path, stop: Event) -> None:
    """Write the CA that is in the file; again and again until the API server has it, or until ``stop``."""
    published = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME, "labels": {"app.kubernetes.io/part-of": "bursar"}},
        "data": {"ca.crt": file.read_text()},
    }
    path = f"/api/v1/namespaces/{namespace}/configmaps/{NAME}?fieldManager=bursar&force=true"
    while True:
        answer = api.call("PATCH", path, published, content_type=APPLY, timeout_s=ANSWER_S)
        if isinstance(answer, Answered) and answer.status < 300:
            return
        log("ca-not-published", level="warning", config_map=f"{namespace}/{NAME}", answer=str(answer))
        if stop.wait(_AGAIN_S):
            return
