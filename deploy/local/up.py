"""``make up``: runs Bursar on a new local control plane, with the nodes, namespaces and budgets of the demo
and no pods, and prints its decisions until Ctrl-C. Nothing of it stays."""

import time
from pathlib import Path

from deploy.local.build import Say
from deploy.local.cluster import ControlPlane
from deploy.local.demo import lay_out
from deploy.local.sidecars import Sidecars
from deploy.local.stack import Stack

_LOOK_EVERY_S = 0.2
_FOLLOWED = ("webhook", "extender", "timekeeper")
_TRY = """
Try, in another terminal:

  export KUBECONFIG={kubeconfig}
  export PATH={kubectl}:$PATH
  kubectl apply -f {samples}/half-a-card.yaml
  kubectl get pod half-a-card -n team-a -o yaml          # the fields that Bursar has added
  kubectl describe pod half-a-card -n team-a
  kubectl edit configmap bursar-budgets -n bursar-system  # _settings are in bursar-settings
  export TIMEKEEPER={timekeeper} TOKEN=$(cat {token})
  curl -s --cacert {ca} -H "Authorization: Bearer $TOKEN" $TIMEKEEPER/v1/budgets/team-a
  curl -s --cacert {ca} -H "Authorization: Bearer $TOKEN" "$TIMEKEEPER/v1/usage?group=pod&format=csv"

Bursar's decisions follow. Press Ctrl-C to end everything.
"""


def up(say: Say) -> None:
    """Starts everything, prints commands to try, and then the roles' log lines."""
    with ControlPlane(say=say) as cp, Stack(cp) as stack, Sidecars(stack):
        lay_out(stack)
        token = stack.folder / "reader.token"
        token.write_text(stack.reader_token())
        samples = Path(__file__).parent.parent / "samples"
        paths = {"kubeconfig": cp.admin_kubeconfig, "kubectl": cp.kubectl_path.parent, "samples": samples}
        print(
            _TRY.format(**paths, timekeeper=stack.timekeeper_url, token=token, ca=stack.ca_file), flush=True
        )
        read = {role: len(stack.log(role)) for role in _FOLLOWED}
        while True:
            stack.check()
            for role in _FOLLOWED:
                whole = stack.log(role)[read[role] :].rpartition("\n")[0]  # the last line may be incomplete
                for line in whole.splitlines():
                    print(f"{role:<11}{line.removeprefix(f'{role} ')}", flush=True)
                read[role] += len(whole) + bool(whole)
            time.sleep(_LOOK_EVERY_S)
