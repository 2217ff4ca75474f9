"""The type of a JSON document, for borders where data leaves the program."""

__all__ = ["Json"]

Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None
