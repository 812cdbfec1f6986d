"""Links beside flags, for the pages; what a flag means is its help."""

_PATHS = "[review.md](review.md)"

SEVERAL = {
    "--metrics-access": "[the right](metrics.md#scraping)",
    "--log-format": "[log lines](metrics.md#log-lines)",
}
WEBHOOK = {
    "--client-ca": "[certificates.md](certificates.md#only-the-api-server-may-ask)",
    "--kubeconfig": "[Events](troubleshooting.md#my-pod-is-refused)",
    "--sidecar-mirrors": "[the sidecar's image](governed-pods.md#the-sidecars-image)",
    "--sidecar-resources": "[governed-pods.md](governed-pods.md)",
    "--other-schedulers": "[beside other schedulers](coming-from/other-schedulers.md)",
    "--mps": "[enforcement.md](enforcement.md#limits-by-mps)",
    "--template-path": _PATHS,
}
CERTIFICATES = {"--issuer": "[certificates.md](certificates.md)"}
TIMEKEEPER = {
    "--aggregated-listen": "[access.md](access.md#through-the-api-server)",
    "--database": "[databases.md](databases.md)",
    "--lease-duration": "[which replica settles](databases.md#which-replica-settles)",
    "--heartbeat-interval": "[how much evidence that costs](performance.md#how-often-sidecars-beat)",
    "--retain": "[the ledger](ledger.md#retention)",
    "--webhook-url": "[simulations](api.md#simulations)",
    "--extender-url": "[the port](extender.md#the-read-only-port)",
    "--prometheus-url": "[use of cards](meter.md#use-and-idle-pods)",
    "--retain-decisions": "[explain.md](explain.md)",
    "--retain-use": "[growth](databases.md#growth)",
    "--retain-cards": "[growth](databases.md#growth)",
    "--cluster": "[the ledger](ledger.md#audit)",
}
EXTENDER = {
    "--policy": "[placement policies](placement.md#policies)",
    "--most-offered": "[performance.md](performance.md#throughput)",
    "--lock-nodes": "[HAMi](coming-from/hami.md)",
    "--unhealthy-lists": "[gpushare](coming-from/gpushare.md)",
    "--model-names": "[Genius](coming-from/genius.md)",
    "--prometheus-url": "[use of cards](placement.md#load-from-prometheus)",
    "--leader-election": "[two replicas](extender.md#two-schedulers-or-two-extenders)",
    "--timekeeper-url": "[preemption](preemption.md)",
    "--most-preemptions": "[preemption.md](preemption.md)",
    "--read-listen": "[the read-only port](extender.md#the-read-only-port)",
}
AGENT = {
    "listen": "[its readers](#metrics-port)",
    "devices": "[cards of another vendor](#cards-of-another-vendor)",
    "startup-taint": "[cluster-autoscaler.md](cluster-autoscaler.md#the-startup-taint)",
    "log-format": "[log lines](metrics.md#log-lines)",
    "proc": "[what it needs on the node](#what-it-needs-on-the-node)",
    "close-on-strangers": "[strangers](#strangers)",
}
