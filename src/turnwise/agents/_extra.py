"""Raises if a package of the extra `agents` is missing, with the command that installs it."""

from turnwise.errors import import_extra

for package in ("starlette", "uvicorn"):
    import_extra(package, "agents")
