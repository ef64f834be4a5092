"""Looking after snapshots: names for them, comparing, pruning, out as a document and in again.

Invariant: nothing here changes a state; an import never writes over a project.
"""

from __future__ import annotations

from typing import Any

from holdfast.errors import AlreadyExists, InvalidCall, NotFound
from holdfast.history.snapshot import read
from holdfast.history.version import Version
from holdfast.loops import names
from holdfast.loops.control import Book
from holdfast.loops.project import Facts, Project, loop_in, storable
from holdfast.loops.replies import Reply, no_snapshot, reported, stamp
from holdfast.loops.settings import ACTOR, AUTORESUME, Settings, policy_of
from holdfast.model.names import check_text


class Care(Settings):
    """Looks after snapshots."""

    @reported
    def tag(self, project_id: str, version: int | str, name: str) -> Reply:
        """Give a version a name, under which it is found and for which it is never pruned."""
        project = Project(self._hf, project_id)
        project.log.tag(version, name)
        return {**told("tagged", project, project.log.at(version)), "tag": name}

    @reported
    def untag(self, project_id: str, version: int | str, name: str) -> Reply:
        """Take a name from a version."""
        project = Project(self._hf, project_id)
        project.log.untag(version, name)
        return {**told("untagged", project, project.log.at(version)), "tag": name}

    @reported
    def compare(self, project_id: str, a: int | str, b: int | str = "head") -> Reply:
        """What changed from one version to another: numbers, tags, `head`, `~2`."""
        project = Project(self._hf, project_id)
        one, two = project.log.at(a), project.log.at(b)
        found = project.difference(one, two)
        if "diff_error" in found:
            _ = one.state, two.state  # raises what is wrong
        return {
            "status": "compared",
            "project_id": project.id,
            "a": one.number,
            "b": two.number,
            "same": not found["diff_count"],
            **found,
        }

    @reported
    def prune(self, project_id: str, policy: Any = None, *, audit: Any = None) -> Reply:
        """Remove old snapshots, and the states between them. The policy is a number of snapshots to keep, a
        `holdfast.Retention`, or else the one that is configured; with `audit`, old entries of the audit go likewise.

        The head, the last good snapshot, tagged and pinned versions always stay.
        """
        project, book = self._open(project_id)
        chosen = book.read().config.retention if policy is None else policy_of(policy)
        if chosen is None and audit is None:
            raise InvalidCall(
                "say what to keep: prune(project_id, 10), or configure(project_id, retention=10)"
            )
        found: Reply = {"pruned": [], "kept": [], "bytes": 0}
        if chosen is not None:
            found = project.prune(chosen)
        forgotten = 0 if audit is None else book.prune(policy_of(audit))
        return {"status": "pruned", "project_id": project.id, **found, "audit": forgotten}

    @reported
    def export(self, project_id: str, version: int | str | None = None) -> Reply:
        """A version, or else the last good snapshot, as a document that `json.dumps` takes."""
        project = Project(self._hf, project_id)
        chosen = (
            project.last_good(project.known(), []) if version is None else project.log.at(version)
        )  # fmt: skip
        if chosen is None:
            return no_snapshot(project.id)
        return {**told("exported", project, chosen), "document": project.log.export(chosen)}

    @reported
    def import_(
        self,
        document: Any,
        project_id: str | None = None,
        *,
        append: bool = False,
        actor: str | None = None,
    ) -> Reply:
        """Make a project from a document of `export`, or its text. With `append`, a project that exists gets it as its
        newest snapshot; else nothing is written over it."""
        facts = read(document)
        project = Project(self._hf, _named(facts["run"]) if project_id is None else project_id)
        if project.head() is not None and append is not True:
            raise AlreadyExists(
                f"project {project.id!r} exists: import under another id, or with append=True",
                run=project.log.id,
            )
        state, replaced = storable(facts["state"])
        state.pop(AUTORESUME, None)
        said = Facts(
            True, facts["note"], check_text("actor", actor, ACTOR), tuple(facts["tags"]), "import", replaced
        )
        made = project.write(lambda head: state, said, expected=None if append else 0)
        return {**told("imported", project, made), "replaced": replaced}

    def _open(self, project_id: Any) -> tuple[Project, Book]:
        project = Project(self._hf, project_id)
        return project, Book(self._hf, project.name, project.id)


def told(status: str, project: Project, version: Version) -> Reply:
    """A version, as replies tell of it."""
    return {
        "status": status,
        "project_id": project.id,
        "loop": loop_in(version),
        "timestamp": stamp(version.at),
        "version": version.number,
    }


def _named(run_id: str) -> str:
    """The project whose state a run holds."""
    name = names.state_name(run_id)
    if name is None:
        raise NotFound(
            f"the document is of run {run_id!r}, which is no project's: give a project_id", run=run_id
        )
    return names.unquoted(name)
