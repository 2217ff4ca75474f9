"""Proving which configuration a cluster is in: observe over hosts, then judge by pure functions."""
