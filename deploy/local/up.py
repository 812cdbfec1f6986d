"""``make up``: runs Bursar on a new local control plane, with the nodes, namespaces and budgets of the demo
and no pods, and prints its decisions until Ctrl-C. Nothing of it stays."""

import sys
import time
from pathlib import Path
from textwrap import indent

from deploy.local.build import Say
from deploy.local.cluster import ControlPlane
from deploy.local.demo.layout import lay_out
from deploy.local.sidecars import Sidecars
from deploy.local.stack import NAMESPACE, Stack

_LOOK_EVERY_S = 0.2
_FOLLOWED = ("webhook", "extender", "timekeeper", "certificates")
_TRY = """
Try, in another terminal:

{exports}
  kubectl apply -f {samples}/half-a-card.yaml
  kubectl get pod half-a-card -n team-a -o yaml          # the fields that Bursar has added
  kubectl describe pod half-a-card -n team-a
  kubectl apply -f {samples}/claimed-device.yaml         # a device by a claim
  kubectl get resourceclaims -n team-a
  kubectl edit configmap bursar-budgets -n bursar-system  # _settings are in bursar-settings
  kubectl bursar budget --all-namespaces
  kubectl bursar explain half-a-card -n team-a
  TOKEN=$(cat $BURSAR_TOKEN_FILE)
  curl -s --cacert $BURSAR_CA_FILE -H "Authorization: Bearer $TOKEN" $BURSAR_SERVER/v1/budgets/team-a

docs/tutorial.md is a lesson for this cluster. Bursar's decisions follow. Press Ctrl-C to end everything.
"""


def exports(cp: ControlPlane, stack: Stack) -> str:
    """The variables with which a shell finds this cluster, kubectl, its plugin, and the timekeeper; makes the
    account whose token they name."""
    token = stack.folder / "reader.token"
    token.write_text(stack.reader_token())
    # the account has started the cluster
    grants = ("create", "clusterrolebinding", "bursar-grants-local", "--clusterrole", "bursar-grants")
    cp.kubectl(*grants, "--serviceaccount", f"{NAMESPACE}:reader")
    variables = {
        "KUBECONFIG": cp.admin_kubeconfig,
        "PATH": f"{cp.kubectl_path.parent}:{Path(sys.executable).parent}:$PATH",
        "BURSAR_SERVER": stack.timekeeper_url,
        "BURSAR_TOKEN_FILE": token,
        "BURSAR_CA_FILE": stack.ca_file,
    }
    return "\n".join(f"export {name}={value}" for name, value in variables.items())


def up(say: Say) -> None:
    """Starts everything, prints commands to try, and then the roles' log lines."""
    with ControlPlane(say=say) as cp, Stack(cp) as stack, Sidecars(stack):
        lay_out(stack)
        stack.renew()
        lines = indent(exports(cp, stack), "  ")
        print(_TRY.format(exports=lines, samples=Path(__file__).parent.parent / "samples"), flush=True)
        read = {role: len(stack.log(role)) for role in _FOLLOWED}
        while True:
            stack.check()
            for role in _FOLLOWED:
                whole = stack.log(role)[read[role] :].rpartition("\n")[0]  # the last line may be incomplete
                for line in whole.splitlines():
                    print(f"{role:<13}{line.removeprefix(f'{role} ')}", flush=True)
                read[role] += len(whole) + bool(whole)
            time.sleep(_LOOK_EVERY_S)
