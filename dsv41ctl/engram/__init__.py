"""Engram tables as files: geometry, planes, manifest and identity, verifying, packing, made-up checkpoints."""
