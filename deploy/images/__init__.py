"""The images of Bursar's roles, for amd64 and arm64, made without Docker: OCI archives of the last commit, of
Debian's packages and of Python's, as lock.json pins them.

No package's script runs, so that a machine makes the images of both architectures.
"""
