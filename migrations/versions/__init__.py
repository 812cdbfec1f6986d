"""One revision a module, in the order of their numbers."""
