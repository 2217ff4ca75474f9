"""The embedded lab: small tables, a small model and the image that serves it, all on one machine."""
