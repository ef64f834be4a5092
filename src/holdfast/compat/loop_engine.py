"""LoopEngine: the calls, on top of states, questions and agents.

Invariant: no call that returns a reply raises an `Exception`: it returns a dict with a `status`. A restore changes only
the state, not configuration, agents, questions or the audit. Tagging, comparing, pruning and exporting do not change a
state; an import never overwrites a project.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

from msgspec import UNSET, UnsetType

from holdfast.agent_loops.checker import Checker
from holdfast.agent_loops.config import AUTORESUME, MAX_NAME, MAX_REASON, check_flag, policy_of, seconds_of
from holdfast.agent_loops.names import id_in, name_in_state_run
from holdfast.agent_loops.project import NoSnapshot, Project, StateMetadata, known_loop, snapshot_entry
from holdfast.agent_loops.questions import current_choice
from holdfast.agent_loops.recoveries import subscribe
from holdfast.agent_loops.replies import PAGE, Reply, failure, no_snapshot, reported, stamp
from holdfast.agent_loops.states import States, checked_metadata, storable
from holdfast.engine import Holdfast
from holdfast.errors import (
    AlreadyExists,
    AlreadyRunning,
    BadData,
    InvalidAnswer,
    InvalidCall,
    InvalidReference,
    NotFound,
)
from holdfast.history.committer import Resolver
from holdfast.history.snapshot import read
from holdfast.log import warn
from holdfast.model.checks import check_integer, check_text
from holdfast.model.question import QuestionPolicy
from holdfast.model.retention import Retention
from holdfast.workflow.subscriptions import Subscription

#: Default number of seconds after which an agent counts as stalled.
_TIMEOUT = 300.0
_CHECK_EVERY = 5.0


class LoopEngine:
    """Engine for agent loops that keep their own state: snapshots, restores, stalled agents, questions, an
    audit.

    No call raises; each returns a dict with a `status`, which is `error` with a `message` and a `code` on
    failure. Only `checker` and `on_recovery`, which return other objects, raise `InvalidCall`. Any number of
    threads and processes may use one project at the same time.

    `timeout` is the default number of seconds after which an agent counts as stalled. The first start of an
    agent in a process starts a thread that looks for stalled agents every `check_every` seconds, in all
    projects of the store; with None, only `checker()` starts it. Workers, monitors and `holdfast serve`
    look for them, too.
    """

    def __init__(
        self, hf: Holdfast, *, timeout: float = _TIMEOUT, check_every: float | None = _CHECK_EVERY
    ) -> None:
        if not isinstance(hf, Holdfast):
            raise InvalidCall(f"LoopEngine takes an open store, holdfast.open(…), not {type(hf).__name__}")
        self._hf = hf
        self._loops = hf.loops
        self._states = States(hf.loops.identity)
        self._timeout = seconds_of("timeout", timeout)
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

        A state that `get_project_state` returned, or a copy of it (`copy`, `|`), is derived from that version;
        another dict is assumed to be derived from the version that this thread or task last read or set; `base`
        names another. Changes by others since then are merged, a change of the same place by both is the error
        `merge_conflict` unless `resolve` decides, and a state from before a restore, or of a project that was
        deleted, is the error `stale_version`. With `expected`, the project must be at that version.

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
        base: int | None = None,
        tags: Iterable[str] = (),
        note: str | None = None,
        actor: str | None = None,
    ) -> Reply:
        """Save a snapshot of the project's state, or of `state`, which becomes the project's state, as
        `set_project_state` sets it."""
        metadata = checked_metadata(note, actor, snapshot=True, tags=tags)
        return self._states.save(self._project(project_id), state, metadata, base=base)

    @reported
    def restore_last_snapshot(
        self,
        project_id: str,
        *,
        reason: str | None = None,
        actor: str | None = None,
        keep_unknown: bool | None = None,
    ) -> Reply:
        """Restore the last good snapshot of a project.

        The whole state is replaced, on a new timeline: every key of the snapshot gets its old value, at all
        depths. Top-level keys of the current state that are not in the snapshot are kept and listed in
        `kept`, or dropped with `keep_unknown=False`; None is for what the project is configured to do, or
        else to keep them. Nothing is deleted. History, configuration, agents and the audit stay. Damaged
        snapshots are skipped, and listed in `skipped`. An open question of the project is closed, and named
        in `question_id`.

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
        keep_unknown: bool | None = None,
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
        project.check_exists()
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
            "has_last_snapshot": last is not None,
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
    def compare(
        self, project_id: str, a: int | str, b: int | str = "head", *, limit: int = PAGE, after: int = 0
    ) -> Reply:
        """Return the changes from one version to another (numbers, tags, `head`, `~2`), with the values before
        and after, at most `limit`. For the next page, pass `next` as `after`."""
        check_integer("limit", limit, 1)
        check_integer("after", after, 0)
        project = self._project(project_id)
        project.existing_head()
        one, two = project.log.at(a), project.log.at(b)
        found = project.difference(one, two, limit=limit, after=after)
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
        project.check_exists()
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
            name = name_in_state_run(facts["run"])
            project_id = None if name is None else id_in(name)
            if project_id is None:
                raise NotFound(
                    f"the document is of run {facts['run']!r}, whose name has no project id: give a project_id",
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
            reply = self._loops.save_if_due(project)
            if reply is not None:
                saved.append(reply)

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
        seconds = None if timeout is None else seconds_of("timeout", timeout)
        started = self._loops.agents.start(
            self._project(project_id), agent, seconds, actor, default=self._timeout
        )
        if self._check_every is not None:
            try:
                self.checker(self._check_every).start()
            except Exception as error:
                warn("this process does not look for stalled agents: %s", error)
        return started

    @reported
    def agent_progress(self, project_id: str, agent: str, *, token: int | None = None) -> Reply:
        """Record a heartbeat: the timeout of the agent starts again."""
        return self._loops.agents.progress(self._project(project_id), agent, token)

    @reported
    def log_agent_complete(
        self,
        project_id: str,
        agent: str,
        status: str = "completed",
        *,
        state: Any = None,
        base: int | None = None,
        token: int | None = None,
        actor: str | None = None,
    ) -> Reply:
        """Record the end of an agent. If `status` is `completed`, save a snapshot of the project's state, or
        of `state`, as `set_project_state` sets it.

        Refuse an agent that was found stalled or was reset: its result is not based on the state that the
        others continued from. Refuse also an agent whose `token` belongs to another start.
        """
        project = self._project(project_id)
        if state is None:
            project.check_exists()
        save = partial(self._states.save, project, state, base=base)
        return self._loops.agents.complete(project, agent, status, token, actor, save=save)

    @reported
    def reset_agent(
        self, project_id: str, agent: str, *, reason: str | None = None, actor: str | None = None
    ) -> Reply:
        """End a running agent manually. The state does not change."""
        return self._loops.agents.reset(self._project(project_id), agent, reason, actor)

    @reported
    def get_agents(self, project_id: str) -> Reply:
        """Return the running agents of a project, and those that stalled or were reset and have not been
        started since."""
        project = self._project(project_id)
        project.check_exists()
        return {"status": "ok", "project_id": project.id, **self._loops.agents.describe(project)}

    @reported
    def check_timeouts(self, project_id: str | None = None) -> Reply:
        """Find stalled agents in one project or in all, and restore or ask as configured; finish tasks that
        a dead process left. Report projects that cannot be checked in `errors`, and check the rest."""
        stalled: list[Reply] = []
        finished: list[Reply] = []

        def check(project: Project) -> None:
            stalled.extend(self._loops.agents.end_stalled(project))
            finished.extend(self._loops.questions.execute_abandoned(project))

        checked, errors = self._for_running_projects(project_id, check)
        return {
            "status": "ok",
            "checked": checked,
            "stalled": stalled,
            "finished": finished,
            "auto_restored": any(each["result"].get("auto_restored") for each in stalled),
            "errors": errors,
        }

    def checker(self, every: float = _CHECK_EVERY) -> Checker:
        """Return the thread of this process that looks for stalled agents and takes scheduled snapshots, in
        all projects of the store: `with engine.checker(every=5): …`, or its `start` and `stop`. There is
        one per open store. Of several processes, the one that checks most often acts."""
        return self._loops.checker(every)

    def on_recovery(self, callback: Callable[[Reply], Any], project_id: str | None = None) -> Subscription:
        """Call a function, in a thread of its own, each time the state of a project is replaced (restored,
        reinitialized or rolled back, by whichever process), and each time a person answers that it resumes or
        is cancelled. It gets a dict: `event`, `project_id`, `version`, `reason`, `actor`, `timestamp`. Close
        the subscription that is returned to stop."""
        name = None if project_id is None else self._project(project_id).name
        return subscribe(self._loops, self._hf.subscribe, callback, name)

    # Questions

    @reported
    def auto_restore_if_configured(
        self,
        project_id: str,
        reason: str = "timeout",
        *,
        agent: str | None = None,
        actor: str | None = None,
    ) -> Reply:
        """Restore the last snapshot if `loop_autoresume` is on; otherwise, or if there is no snapshot, or
        after `max_restores` within an hour, ask the operator, or add the reason to the open question.
        `agent` is a running agent that has stalled: it is ended in the same change."""
        project = self._project(project_id)
        if agent is not None:
            return self._loops.agents.time_out(project, agent, reason, actor)
        return self._loops.questions.restore_or_ask(project, reason, actor)

    @reported
    def get_questions(
        self, project_id: str | None = None, *, limit: int = 100, after: str | None = None
    ) -> Reply:
        """Return the open question of one project, or those of all, by priority, then oldest first. For the
        next page, pass the last `question_id` as `after`. `hf.inbox(kind="loop")` has them, too."""
        if project_id is not None:
            project = self._project(project_id)
            project.check_exists()
            asked = self._loops.questions.open_question_of(project)
            return {"status": "ok", "questions": [] if asked is None else [asked]}
        listed = self._hf.inbox(kind="loop", limit=limit, after=after)
        found = []
        for question in listed:
            # One may be answered meanwhile.
            with suppress(InvalidAnswer, NotFound):
                try:
                    found.append(self._loops.questions.asked(question.id))
                except BadData as error:
                    found.append(
                        {"question_id": question.id, "project_id": question.project} | failure(error)
                    )
        return {"status": "ok", "questions": found}

    @reported
    def answer_question(
        self,
        question_id: str,
        choice: str,
        *,
        version: int | str | None = None,
        keep: Iterable[str] = (),
        keys: Iterable[str] = (),
        actor: str | None = None,
    ) -> Reply:
        """Answer a question, as `hf.answer` does. Only the first answer counts; a later call gets its actor,
        time and choice.

        `resume`: continue with the current state. `rollback`: go back to `version`, or else to the last good
        snapshot. `reinitialize`: start with a new state that has only the parts of the current one in `keep`,
        which are keys or paths. `cancel`: end all running agents. `keys` is the former name of `keep`.
        """
        given = (version, [*_listed(keep), *_listed(keys)])
        return self._loops.questions.answer(
            question_id, current_choice(choice), version=given[0], keep=given[1], actor=actor
        )

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
        keep_unknown: bool | UnsetType | None = UNSET,
        max_restores: int | UnsetType | None = UNSET,
        audit_retention: Retention | int | UnsetType | None = UNSET,
        question: QuestionPolicy | UnsetType | None = UNSET,
        actor: str | None = None,
    ) -> Reply:
        """Change the given settings, and leave the others.

        `loop_autoresume`: restore the last snapshot when an agent stalls, instead of asking. `timeout`:
        seconds until an agent counts as stalled (None: the engine's default, infinity: never); `timeouts`:
        the same by agent, merged into the existing ones (None: remove the agent's). `retention`: which
        snapshots to keep, as for `prune`; applied after each snapshot. `every`: seconds between scheduled
        snapshots, None for no schedule. `keep_unknown`: whether a restore keeps top-level keys that the
        snapshot does not have (None: a restore by hand does, others do not). `max_restores`: how often the
        project is restored by `loop_autoresume` within an hour before a person is asked; 3 unless it is set.
        `audit_retention`: which audit entries to keep; the newest 1,000 if `retention` is set and this is not.
        `question`: who is to answer, and by when.
        """
        settings = {
            AUTORESUME: loop_autoresume,
            "timeout": timeout,
            "timeouts": timeouts,
            "retention": retention,
            "every": every,
            "keep_unknown": keep_unknown,
            "max_restores": max_restores,
            "audit_retention": audit_retention,
            "question": question,
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
        project.check_exists()
        return {"status": "ok", "project_id": project.id, "config": project.control.read().config.reply()}

    @reported
    def get_projects(self, *, limit: int | None = None, after: str | None = None) -> Reply:
        """Return the ids of all projects, newest first, or of at most `limit`. For the next page, pass `next`
        as `after`."""
        found, following = self._page(limit, after)
        return {"status": "ok", "projects": [project.id for project in found], "next": following}

    @reported
    def get_overview(self, *, limit: int = 50, after: str | None = None) -> Reply:
        """Return a page of projects, newest first: the run that has the state, loop, version, running agents with
        their deadlines, the id of the open question, and whether the project is `waiting` for an answer,
        `running` (it has agents), or `idle`."""
        found, following = self._page(limit, after)
        projects = []
        for project in found:
            try:
                projects.append(self._overview(project))
            except Exception as error:
                projects.append({"project_id": project.id, **failure(error)})
        return {"status": "ok", "projects": projects, "next": following}

    @reported
    def get_project(self, project_id: str) -> Reply:
        """Return one project: its entry in the overview as `project`, its configuration, the agents that were
        ended, and its open question."""
        project = self._project(project_id)
        project.check_exists()
        return {
            "status": "ok",
            "project_id": project.id,
            "project": self._overview(project),
            "config": project.control.read().config.reply(),
            "ended": self._loops.agents.describe(project)["ended"],
            "question": self._loops.questions.open_question_of(project),
        }

    @reported
    def delete_project(self, project_id: str, *, force: bool = False) -> Reply:
        """Delete a project with its state, history, configuration and audit, for ever. A project with running
        agents is deleted only with `force`."""
        project = self._project(project_id)
        check_flag("force", force)
        project.check_exists()
        # With `force`, also a project whose control record cannot be read is deleted.
        running = [] if force else list(project.control.read().agents)
        if running:
            raise AlreadyRunning(
                f"project {project.id!r} has running agents: {', '.join(running[:5])}; reset them first, or "
                "delete the project with force=True",
                run=project.log.id,
            )
        for run_id in project.runs:
            with suppress(NotFound):
                self._hf.delete(run_id)
        self._states.forget(project)
        return {"status": "deleted", "project_id": project.id}

    @reported
    def get_audit(self, project_id: str, *, limit: int = 1000) -> Reply:
        """Return the audit (actor, action, time, reason), oldest first: agents started, completed, stalled
        and reset; questions and their answers; restores; configuration. Return only the newest `limit`
        entries if there are more."""
        check_integer("limit", limit, 1)
        project = self._project(project_id)
        project.check_exists()
        entries = project.audit(limit)[-limit:]
        return {"status": "ok", "project_id": project.id, "count": len(entries), "audit": entries}

    # Internals

    def _project(self, project_id: Any) -> Project:
        return self._loops.project(project_id)

    def _page(self, limit: int | None, after: str | None) -> tuple[list[Project], str | None]:
        """Return a page of projects, and the id after which the next page starts; None for none."""
        if limit is not None:
            check_integer("limit", limit, 1)
        names = self._loops.project_names(after, limit)
        found = [Project.named(self._loops.engine, name) for name in islice(names, limit)]
        more = limit is not None and next(names, None) is not None
        return found, found[-1].id if more else None

    def _overview(self, project: Project) -> Reply:
        head, control = project.head(), project.control.read()
        question = control.open_question
        return {
            "project_id": project.id,
            "run": project.log.id,
            "status": "waiting" if question is not None else "running" if control.agents else "idle",
            "loop": known_loop(head),
            "version": None if head is None else head.number,
            "updated": None if head is None else stamp(head.at),
            "last_good": self._loops.last_good(project, head),
            "agents": self._loops.agents.running(project, control),
            "question_id": None if question is None else f"{project.control.id}#{question.number}",
            AUTORESUME: bool(control.config.loop_autoresume),
        }

    def _restore(
        self, project_id: Any, target: Any, reason: str | None, actor: str | None, keep_unknown: Any
    ) -> Reply:
        project = self._project(project_id)
        reason = check_text("reason", reason, MAX_REASON) or "restored by hand"
        actor = check_text("actor", actor, MAX_NAME)
        if keep_unknown is not None:
            check_flag("keep_unknown", keep_unknown)
        else:
            keep_unknown = project.control.read().config.keep_unknown is not False
        project.check_exists()
        if target is not None:
            project.existing_head()
        try:
            reply = project.restore(target, reason, actor, keep_unknown=keep_unknown)
        except NoSnapshot:
            return no_snapshot(project.id)
        closed = self._loops.questions.close_after_restore(project, reply["version"], actor)
        return {**reply, "question_id": closed}

    def _for_running_projects(
        self, project_id: str | None, check: Callable[[Project], None]
    ) -> tuple[int, list[Reply]]:
        """Check one project, or all that need it; return how many, and the errors of those that failed."""
        if project_id is None:
            count, failed = self._loops.for_running(check)
        else:
            count, failed = 1, []
            project = self._project(project_id)
            project.check_exists()
            try:
                check(project)
            except Exception as error:
                failed.append((project.name, error))
        return count, [failure(error) | {"project": name} for name, error in failed]


def _listed(keep: Any) -> list[Any]:
    """Return the parts to keep as a list; a string is one part."""
    return [keep] if isinstance(keep, str) or not isinstance(keep, Iterable) else list(keep)
