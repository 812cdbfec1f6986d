"""`python -m deploy.local`: the command line of the local control plane."""

import sys

# Before anything is imported that an old Python could not even read.
if sys.version_info < (3, 11):  # noqa: UP036  (it is the people with older ones that this is for)
    sys.exit(f"error: Python 3.11 or newer is needed, and this is {sys.version.split()[0]}")

from deploy.local.cli import main

if __name__ == "__main__":
    sys.exit(main())
