"""dsv41ctl: carries a DeepSeek-V4.1-Flash cluster from local Engram rows (A) to Remote Engram (B) and back."""

__version__ = "0.1.0"
