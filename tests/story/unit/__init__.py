"""Pure simulations of the whole loop."""
