"""The lab's stand-in for a serving image: a small language model with Engram layers behind an OpenAI-compatible API."""

__all__ = ["__version__"]

__version__ = "0.32.0+lab"
