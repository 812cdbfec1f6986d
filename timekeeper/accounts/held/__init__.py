"""Pods behind Bursar's scheduling gate: which are released next, and when the others may be.

Pure: values in, values out. The gate and its removal belong to `core.admission.mutation` and
`settler.releaser`.
"""
