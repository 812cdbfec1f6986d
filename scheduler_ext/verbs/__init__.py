"""kube-scheduler's four verbs and the dry run, each decided on one snapshot.

Lives here: the extender protocol (`protocol`), the cache of fits (`fit_cache`), hints between calls
(`expected_binds`) and the last decision about each pod. Never here: HTTP, and calls to the API server other
than through ``binding``.
"""
