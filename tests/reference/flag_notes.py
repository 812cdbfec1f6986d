"""Links beside flags, for the pages; what a flag means is its help."""

_METRICS = "[the right](metrics.md#scraping)"
_PATHS = "[review.md](review.md)"

WEBHOOK = {
    "--client-ca": "[certificates.md](certificates.md#only-the-api-server-may-ask)",
    "--kubeconfig": "Without a way to the API server there are no [Events]"
    "(troubleshooting.md#my-pod-is-refused), and these readers get 503",
    "--metrics-access": _METRICS,
    "--stale-after": "OVER_BUDGET does not age",
    "--sidecar-mirrors": "[the sidecar's image](governed-pods.md#the-sidecars-image)",
    "--sidecar-resources": "At least `cpu=10m,memory=32Mi` ([governed-pods.md](governed-pods.md))",
    "--sidecar": "`_settings` can only change it to a plain container, or off",
    "--other-schedulers": "[beside other schedulers](coming-from/other-schedulers.md)",
    "--mps": "[enforcement.md](enforcement.md#limits-by-mps)",
    "--log-format": "[metrics.md](metrics.md#log-lines)",
    "--template-path": _PATHS,
}
REVIEW = {"--template-path": _PATHS}
AUDIT = {"--use": "[existing objects](review.md#existing-objects)", "--template-path": _PATHS}
CERTIFICATES = {
    "--every": "A leader that misses three is replaced",
    "--issuer": "[certificates.md](certificates.md)",
}
TIMEKEEPER = {
    "--aggregated-listen": "[access.md](access.md#through-the-api-server)",
    "--database": "A password belongs in `BURSAR_DATABASE` ([databases.md](databases.md))",
    "--lease-duration": "[which replica settles](databases.md#which-replica-settles)",
    "--metrics-access": _METRICS,
    "--heartbeat-interval": "Above 500 pods for each second of it, sidecars get a longer one "
    "([how much evidence that costs](performance.md#how-often-sidecars-beat))",
    "--retain": "At least 32d ([the ledger](ledger.md#retention))",
    "--webhook-url": "Such as `https://bursar-webhook.bursar-system.svc`. A webhook with `--client-ca` "
    "answers the API server alone, so there are none either ([simulations](api.md#simulations))",
    "--extender-url": "Such as `https://bursar-scheduler.bursar-system.svc` "
    "([the port](extender.md#the-read-only-port))",
    "--notification-key": "[notifications.md](notifications.md)",
    "--retain-decisions": "[explain.md](explain.md)",
    "--cluster": "No variable ([the ledger](ledger.md#audit))",
}
EXTENDER = {
    "--threads": "Other calls do not wait for binds",
    "--policy": "[placement policies](placement.md#policies)",
    "--most-offered": "With 16 a large cluster binds faster ([performance.md](performance.md#throughput)), "
    "and kube-scheduler's own preferences (spreading, preferred affinity) choose "
    "among these 16. `deploy/manifests/scheduler.yaml` sets 16. A simulation always sees all",
    "--lock-nodes": "The manifest is `deploy/samples/node-locks.yaml` ([HAMi](coming-from/hami.md))",
    "--unhealthy-lists": "The manifest is `deploy/samples/gpushare-health.yaml` "
    "([gpushare](coming-from/gpushare.md))",
    "--model-names": "[Genius](coming-from/genius.md)",
    "--prometheus-url": "[use of cards](placement.md#load-from-prometheus)",
    "--leader-election": "[two replicas](install.md#two-schedulers-or-two-extenders)",
    "--lease-duration": "Whole seconds",
    "--pod": "With an election the leader's mark is written there",
    "--timekeeper-url": "[preemption](preemption.md)",
    "--most-preemptions": "[preemption.md](preemption.md)",
    "--pdb-grace": "It applies until the timekeeper gives `pdbGrace`; with `--hold-cards` and "
    "`--max-grace-period` at most 1h",
    "--read-listen": "Such as `0.0.0.0:8447` ([the read-only port](extender.md#the-read-only-port))",
}
AGENT = {
    "listen": "`/readyz` answers 200 once the node was written ([who can read it](#metrics-port))",
    "ca": "A changed one in its answers is followed",
    "spool": "The CA that was followed is there too",
    "devices": "[cards of another vendor](#cards-of-another-vendor)",
    "startup-taint": "It needs the right in `deploy/samples/startup-taint.yaml` "
    "([cluster-autoscaler.md](cluster-autoscaler.md#the-startup-taint))",
    "log-format": "[log lines](metrics.md#log-lines)",
    "proc": "[what it needs on the node](node-agent-holders.md#what-it-needs-on-the-node)",
    "close-on-strangers": "[node-agent-holders.md](node-agent-holders.md)",
}
