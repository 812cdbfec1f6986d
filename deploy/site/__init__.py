"""The documentation as a site. Its navigation is the index, docs/README.md."""
