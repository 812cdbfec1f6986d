"""Bursar's admission webhook: refuses invalid GPU requests, governs the others, and keeps its certificates.

Each command has a package: "serve" is `server`, "certificates" is `controller`, "review" is `dryrun`, and
"audit" is `audit`. The packages below them decide and are pure. It imports `timekeeper.core` and
`timekeeper.runtime`, and never another role.
"""
