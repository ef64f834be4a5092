"""LoopEngine: the calls, on top of states, questions and agents.

Invariant: no call raises an `Exception`: each returns a dict with a `status`. A restore changes only the state,
not configuration, agents, questions or the audit. Tagging, comparing, pruning and exporting do not change a
state; an import never overwrites a project.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from msgspec import UNSET, UnsetType

from holdfast.compat.loop_engine.agents import Agents, Checker, checker_of
from holdfast.compat.loop_engine.control import (
    AUTORESUME,
    MAX_NAME,
    MAX_REASON,
    check_project,
    name_of,
    policy_of,
    project_names,
    project_of_state_run,
    seconds_of,
)
from holdfast.compat.loop_engine.project import Project, StateMetadata, snapshot_entry
from holdfast.compat.loop_engine.questions import Questions
from holdfast.compat.loop_engine.replies import Reply, failure, no_snapshot, reported
from holdfast.compat.loop_engine.states import States, checked_metadata, storable
from holdfast.engine import Holdfast
from holdfast.errors import AlreadyExists, InvalidCall, InvalidReference, NotFound, StaleVersion
from holdfast.history.committer import Resolver
from holdfast.history.snapshot import read
from holdfast.log import warn
from holdfast.model.checks import check_integer, check_text
from holdfast.model.retention import Retention

#: Default number of seconds after which an agent counts as stalled.
_TIMEOUT = 300.0
_CHECK_EVERY = 5.0


class LoopEngine:
    """Engine for agent loops that keep their own state: snapshots, restores, stalled agents, questions, an
    audit.

    No call raises; each returns a dict with a `status`, which is `error` with a `message` and a `code` on
    failure. Any number of threads and processes may use one project at the same time.

    `timeout` is the default number of seconds after which an agent counts as stalled. The first start of an
    agent in a process starts a thread that looks for stalled agents every `check_every` seconds, in all
    projects of the store; with None, only `checker()` starts it.
    """

    def __init__(
        self, hf: Holdfast, *, timeout: float = _TIMEOUT, check_every: float | None = _CHECK_EVERY
    ) -> None:
        if not isinstance(hf, Holdfast):
            raise InvalidCall(f"LoopEngine takes an open store, holdfast.open(…), not {type(hf).__name__}")
        self._hf = hf
        self._states = States()
        self._questions = Questions(hf)
        self._agents = Agents(hf, self._states, self._questions, seconds_of("timeout", timeout))
        self._check_every = None if check_every is None else seconds_of("check_every", check_every) or None

    # States

    @reported
    def get_project_state(self, project_id: str) -> Reply:
        """Return a copy of a project's current state, which may be changed and set. Its `loop_autoresume` is
        the configured value."""
        return self._states.get(self._project(project_id))

    @reported
    def set_project_state(
        self,
        project_id: str,
        state: Any,
        *,
        base: int | None = None,
        expected: int | None = None,
        resolve: Resolver | None = None,
        note: str | None = None,
        actor: str | None = None,
    ) -> Reply:
        """Set the state of a project to a dict; create the project if it does not exist.

        The state is assumed to be derived from the version that the caller last read or set, or from version
        `base`: changes by others since then are merged, a change of the same place by both is the error
        `merge_conflict` unless `resolve` decides, and a state from before a restore is the error
        `stale_version`. With `expected`, the project must be at that version.

        Cycles and values that cannot be stored are replaced, and listed in `replaced`. `loop_autoresume` in
        the state is configuration: True or False is stored where no restore touches it.
        """
        metadata = checked_metadata(note, actor)
        project = self._project(project_id)
        made, replaced = self._states.set(
            project, state, metadata, base=base, expected=expected, resolve=resolve
        )
        return {**project.reply("set", made), "replaced": replaced}

    @reported
    def update_project_state(
        self,
        project_id: str,
        changes: dict[Any, Any],
        *,
        remove: Iterable[Any] = (),
        note: str | None = None,
        actor: str | None = None,
    ) -> Reply:
        """Set some keys of a state, remove others, and leave the rest. Works without a previous read, with
        concurrent writers, and after a restore."""
        metadata = checked_metadata(note, actor)
        project = self._project(project_id)
        made, replaced = self._states.update(project, changes, remove, metadata)
        return {**project.reply("set", made), "replaced": replaced}

    # Snapshots

    @reported
    def save_loop_snapshot(
        self,
        project_id: str,
        state: Any = None,
        *,
        tags: Iterable[str] = (),
        note: str | None = None,
        actor: str | None = None,
    ) -> Reply:
        """Save a snapshot of the project's state, or of `state`, which becomes the project's state."""
        metadata = checked_metadata(note, actor, snapshot=True, tags=tags)
        return self._states.save(self._project(project_id), state, metadata)

    @reported
    def restore_last_snapshot(
        self,
        project_id: str,
        *,
        reason: str | None = None,
        actor: str | None = None,
        keep_unknown: bool = True,
    ) -> Reply:
        """Restore the last good snapshot of a project.

        The whole state is replaced, on a new timeline: every key of the snapshot gets its old value, at all
        depths. Top-level keys of the current state that are not in the snapshot are kept and listed in
        `kept`, or dropped with `keep_unknown=False`. Nothing is deleted. History, configuration, agents,
        questions and the audit stay. Damaged snapshots are skipped, and listed in `skipped`.

        A caller that read the state before must read it again: setting a state derived from it is the error
        `stale_version`.
        """
        return self._restore(project_id, None, reason, actor, keep_unknown)

    @reported
    def restore_snapshot(
        self,
        project_id: str,
        version: int | str,
        *,
        reason: str | None = None,
        actor: str | None = None,
        keep_unknown: bool = True,
    ) -> Reply:
        """Restore a snapshot or any other version of a project, given by number or tag."""
        if version is None:
            raise InvalidReference("name the version to restore: a number or a tag")
        return self._restore(project_id, version, reason, actor, keep_unknown)

    @reported
    def get_snapshot_history(self, project_id: str, *, limit: int = 100) -> Reply:
        """Return the snapshots of a project, oldest first; only the newest `limit` if there are more."""
        check_integer("limit", limit, 1)
        project = self._project(project_id)
        found: list[Reply] = []
        total = 0
        for version in project.snapshots():
            total += 1
            if total <= limit:
                found.append(snapshot_entry(version))
        last = project.last_good(project.head(), [])
        return {
            "status": "ok",
            "project_id": project.id,
            "snapshot_count": total,
            "snapshots": found[::-1],
            "last_good": None if last is None else last.number,
        }

    @reported
    def tag(self, project_id: str, version: int | str, name: str) -> Reply:
        """Tag a version. A tagged version can be found by its tag and is never pruned."""
        project = self._project(project_id)
        project.log.tag(version, name)
        return {**project.reply("tagged", project.log.at(version)), "tag": name}

    @reported
    def untag(self, project_id: str, version: int | str, name: str) -> Reply:
        """Remove a tag from a version."""
        project = self._project(project_id)
        project.log.untag(version, name)
        return {**project.reply("untagged", project.log.at(version)), "tag": name}

    @reported
    def compare(self, project_id: str, a: int | str, b: int | str = "head") -> Reply:
        """Return the changes from one version to another: numbers, tags, `head`, `~2`."""
        project = self._project(project_id)
        one, two = project.log.at(a), project.log.at(b)
        found = project.difference(one, two)
        if "diff_error" in found:
            _ = one.state, two.state  # raises the error of the damaged version
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
        """Remove old snapshots, and the states between them.

        The policy is a number of snapshots to keep, a `holdfast.Retention`, or by default the configured one;
        `audit` is such a policy for audit entries. The head, the last good snapshot, and tagged and pinned
        versions are always kept.
        """
        project = self._project(project_id)
        chosen = project.control.read().config.retention if policy is None else policy_of(policy)
        for_audit = None if audit is None else policy_of(audit)
        if chosen is None and for_audit is None:
            raise InvalidCall(
                "say what to keep: prune(project_id, 10), or configure(project_id, retention=10)"
            )
        pruned = None if chosen is None else project.prune(chosen)
        return {
            "status": "pruned",
            "project_id": project.id,
            "pruned": [] if pruned is None else list(pruned.versions),
            "kept": [] if pruned is None else list(pruned.kept),
            "bytes": 0 if pruned is None else pruned.bytes,
            "audit": 0 if for_audit is None else project.control.prune(for_audit),
        }

    @reported
    def export(self, project_id: str, version: int | str | None = None) -> Reply:
        """Return a version, by default the last good snapshot, as a document for `json.dumps`."""
        project = self._project(project_id)
        chosen = (
            project.last_good(project.existing_head(), []) if version is None else project.log.at(version)
        )  # fmt: skip
        if chosen is None:
            return no_snapshot(project.id)
        return {**project.reply("exported", chosen), "document": project.log.export(chosen)}

    @reported
    def import_(
        self,
        document: Any,
        project_id: str | None = None,
        *,
        append: bool = False,
        actor: str | None = None,
    ) -> Reply:
        """Create a project from a document of `export`, or its text. With `append`, an existing project gets
        it as its newest snapshot; otherwise an existing project is an error."""
        facts = read(document)
        if project_id is None:
            project_id = project_of_state_run(facts["run"])
            if project_id is None:
                raise NotFound(
                    f"the document is of run {facts['run']!r}, which is not a project's: give a project_id",
                    run=facts["run"],
                )
        project = self._project(project_id)
        if project.head() is not None and append is not True:
            raise AlreadyExists(
                f"project {project.id!r} exists: import under another id, or with append=True",
                run=project.log.id,
            )
        state, replaced = storable(facts["state"])
        state.pop(AUTORESUME, None)
        actor = check_text("actor", actor, MAX_NAME)
        metadata = StateMetadata(True, facts["note"], actor, tuple(facts["tags"]), "import", replaced)
        made = project.write(lambda head: state, metadata, expected=None if append else 0)
        return {**project.reply("imported", made), "replaced": replaced}

    @reported
    def take_scheduled_snapshots(self, project_id: str | None = None) -> Reply:
        """Save a snapshot of each project that is scheduled, due, and has changed since its last one."""
        saved: list[Reply] = []

        def save(project: Project) -> None:
            head = project.due_for_snapshot()
            if head is not None:
                metadata = StateMetadata(True, "scheduled", kind="timed")
                # Another process may have saved it first.
                with suppress(StaleVersion):
                    saved.append(self._states.save(project, None, metadata, expected=head.number))

        _, errors = self._for_running_projects(project_id, save)
        return {"status": "ok", "saved": saved, "errors": errors}

    # Agents

    @reported
    def log_agent_start(
        self, project_id: str, agent: str, *, timeout: float | None = None, actor: str | None = None
    ) -> Reply:
        """Record the start of an agent. It counts as stalled after `timeout` seconds without a heartbeat.

        A start of an agent that is already running replaces it, because a process that died does not
        complete. `unfinished` reports the replaced start. The `token` identifies this start.
        """
        started = self._agents.start(self._project(project_id), agent, timeout, actor)
        if self._check_every is not None:
            try:
                self.checker(self._check_every).start()
            except Exception as error:
                warn("this process does not look for stalled agents: %s", error)
        return started

    @reported
    def agent_progress(self, project_id: str, agent: str, *, token: int | None = None) -> Reply:
        """Record a heartbeat: the timeout of the agent starts again."""
        return self._agents.progress(self._project(project_id), agent, token)

    @reported
    def log_agent_complete(
        self,
        project_id: str,
        agent: str,
        status: str = "completed",
        *,
        state: Any = None,
        token: int | None = None,
        actor: str | None = None,
    ) -> Reply:
        """Record the end of an agent. If `status` is `completed`, save a snapshot of the project's state, or
        of `state`.

        Refuse an agent that was found stalled or was reset: its result is not based on the state that the
        others continued from. Refuse also an agent whose `token` belongs to another start.
        """
        return self._agents.complete(self._project(project_id), agent, status, state, token, actor)

    @reported
    def reset_agent(
        self, project_id: str, agent: str, *, reason: str | None = None, actor: str | None = None
    ) -> Reply:
        """End a running agent manually. The state does not change."""
        return self._agents.reset(self._project(project_id), agent, reason, actor)

    @reported
    def get_agents(self, project_id: str) -> Reply:
        """Return the running agents of a project, and those that stalled or were reset and have not been
        started since."""
        return self._agents.describe(self._project(project_id))

    @reported
    def check_timeouts(self, project_id: str | None = None) -> Reply:
        """Find stalled agents in one project or in all, and restore or ask as configured; finish tasks that
        a dead process left. Report projects that cannot be checked in `errors`, and check the rest."""
        stalled: list[Reply] = []
        finished: list[Reply] = []

        def check(project: Project) -> None:
            stalled.extend(self._agents.end_stalled(project))
            finished.extend(self._questions.execute_abandoned(project))

        checked, errors = self._for_running_projects(project_id, check)
        return {
            "status": "ok",
            "checked": checked,
            "stalled": stalled,
            "finished": finished,
            "errors": errors,
        }

    def checker(self, every: float = _CHECK_EVERY) -> Checker:
        """Return the thread of this process that looks for stalled agents and takes scheduled snapshots, in
        all projects of the store: `with engine.checker(every=5): …`, or its `start` and `stop`. There is
        one per open store."""
        return checker_of(self._hf, self, every)

    # Questions

    @reported
    def auto_restore_if_configured(
        self, project_id: str, reason: str = "timeout", *, actor: str | None = None
    ) -> Reply:
        """Restore the last snapshot if `loop_autoresume` is on; otherwise ask the operator, or add the
        reason to the open question."""
        return self._questions.restore_or_ask(self._project(project_id), reason, actor)

    @reported
    def get_questions(self, project_id: str | None = None) -> Reply:
        """Return the open questions of one project or of all."""
        return {"status": "ok", "questions": self._questions.open_questions(project_id)}

    @reported
    def answer_question(
        self, question_id: str, choice: str, *, keys: Iterable[str] = (), actor: str | None = None
    ) -> Reply:
        """Answer a question. Only the first answer counts; a later call gets its actor, time and choice.

        `resume`: continue with the current state. `restore`: go back to the last good snapshot.
        `reinitialize`: start with a new state that has only the named `keys` of the current one. `ignore`:
        close the question and do nothing.
        """
        return self._questions.answer(question_id, choice, keys, actor)

    # Configuration and audit

    @reported
    def configure(
        self,
        project_id: str,
        *,
        loop_autoresume: bool | UnsetType = UNSET,
        timeout: float | UnsetType | None = UNSET,
        timeouts: Mapping[str, float | None] | UnsetType = UNSET,
        retention: Retention | int | UnsetType | None = UNSET,
        every: float | UnsetType | None = UNSET,
        actor: str | None = None,
    ) -> Reply:
        """Change the given settings, and leave the others.

        `loop_autoresume`: restore the last snapshot when an agent stalls, instead of asking. `timeout`:
        seconds until an agent counts as stalled (None: the engine's default, infinity: never); `timeouts`:
        the same by agent, merged into the existing ones (None: remove the agent's). `retention`: which
        snapshots to keep, as for `prune`; applied after each snapshot. `every`: seconds between scheduled
        snapshots, None for no schedule.
        """
        settings = {
            AUTORESUME: loop_autoresume,
            "timeout": timeout,
            "timeouts": timeouts,
            "retention": retention,
            "every": every,
        }
        given = {name: value for name, value in settings.items() if value is not UNSET}
        project = self._project(project_id)
        config = project.control.configure(given, actor)
        return {"status": "configured", "project_id": project.id, "config": config.reply()}

    @reported
    def schedule(self, project_id: str, every: float | None, *, actor: str | None = None) -> Reply:
        """Have the checker save a snapshot every `every` seconds if the state has changed; None ends the
        schedule."""
        project = self._project(project_id)
        config = project.control.configure({"every": every}, actor)
        return {"status": "scheduled", "project_id": project.id, "every": config.every}

    @reported
    def get_config(self, project_id: str) -> Reply:
        """Return the configuration of a project."""
        project = self._project(project_id)
        return {"status": "ok", "project_id": project.id, "config": project.control.read().config.reply()}

    @reported
    def get_projects(self) -> Reply:
        """Return the ids of all projects that were ever configured or had an agent or a question, newest
        first."""
        found = [Project.named(self._hf, name).id for name in project_names(self._hf)]
        return {"status": "ok", "projects": found}

    @reported
    def get_audit(self, project_id: str, *, limit: int = 1000) -> Reply:
        """Return the audit (actor, action, time, reason), oldest first: agents started, completed, stalled
        and reset; questions and their answers; restores; configuration. Return only the newest `limit`
        entries if there are more."""
        check_integer("limit", limit, 1)
        project = self._project(project_id)
        entries = project.audit(limit)
        return {"status": "ok", "project_id": project.id, "count": len(entries), "audit": entries[-limit:]}

    # Internals

    def _project(self, project_id: Any) -> Project:
        return Project(self._hf, project_id)

    def _restore(
        self, project_id: Any, target: Any, reason: str | None, actor: str | None, keep_unknown: Any
    ) -> Reply:
        project = self._project(project_id)
        if type(keep_unknown) is not bool:
            raise InvalidCall("keep_unknown is True or False")
        reason = check_text("reason", reason, MAX_REASON) or "restored by hand"
        actor = check_text("actor", actor, MAX_NAME)
        return project.restore(target, reason, actor, keep_unknown=keep_unknown)

    def _for_running_projects(
        self, project_id: str | None, check: Callable[[Project], None]
    ) -> tuple[int, list[Reply]]:
        """Check one project, or all that need it; return how many, and the errors of those that failed."""
        if project_id is not None:
            names = [name_of(check_project(project_id))]
        else:
            names = list(project_names(self._hf, status="running"))
        errors: list[Reply] = []
        for name in names:
            try:
                check(Project.named(self._hf, name) if project_id is None else self._project(project_id))
            except Exception as error:
                errors.append(failure(error) | {"project": name})
        return len(names), errors
