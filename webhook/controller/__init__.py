"""The certificate process: one CA of ours, a leaf for each server, and the CA in the webhook
configurations."""
