"""Resources that add amounts to accounts: grants by administrators, and what groups pass on to their
namespaces."""
