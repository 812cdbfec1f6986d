"""What a worker loads that reviews pods."""

import subprocess
import sys

from tests.webhook.servers import ROOT, environment


def test_a_worker_that_reviews_pods_loads_no_yaml() -> None:
    code = "import sys, webhook.server.wiring, webhook.server.gunicorn_app; print('yaml' in sys.modules)"

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True, check=True
    )

    assert done.stdout == "False\n"
