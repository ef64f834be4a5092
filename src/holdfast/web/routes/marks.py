"""Names for versions, and versions that are to be kept."""

from __future__ import annotations

from holdfast.desk.lookup import within
from holdfast.desk.records import version_record
from holdfast.desk.shapes import VersionShown
from holdfast.history.version import Version
from holdfast.web.operation import Role, Table
from holdfast.web.service import Service

TABLE = Table("marks")

_AT = "/runs/{run}/versions/{version}"


@TABLE.add("PUT", _AT + "/tags/{tag}", Role.OPERATOR)
def add_tag(service: Service, run: str, version: str, tag: str) -> VersionShown:
    """Give a version a name. A tagged version is never forgotten by a policy."""
    found = _version(service, run, version)
    service.hf.history(found.run).tag(found, tag)
    return _afresh(service, found)


@TABLE.add("DELETE", _AT + "/tags/{tag}", Role.OPERATOR)
def remove_tag(service: Service, run: str, version: str, tag: str) -> VersionShown:
    """Take a name from a version."""
    found = _version(service, run, version)
    service.hf.history(found.run).untag(found, tag)
    return _afresh(service, found)


@TABLE.add("PUT", _AT + "/pin", Role.OPERATOR)
def add_pin(service: Service, run: str, version: str) -> VersionShown:
    """Keep a version from being forgotten."""
    found = _version(service, run, version)
    service.hf.history(found.run).pin(found)
    return _afresh(service, found)


@TABLE.add("DELETE", _AT + "/pin", Role.OPERATOR)
def remove_pin(service: Service, run: str, version: str) -> VersionShown:
    """Let a version be forgotten again."""
    found = _version(service, run, version)
    service.hf.history(found.run).unpin(found)
    return _afresh(service, found)


def _version(service: Service, run: str, version: str) -> Version:
    return within(service.hf, service.hf.find(run), version)


def _afresh(service: Service, version: Version) -> VersionShown:
    return version_record(service.hf.history(version.run).at(version.number))
