"""Verify a run or a store: every hash, every link of the chain, every reference, every artifact.

A read checks the rows that it reads; this reads all rows, and continues after a problem.

Invariant: nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

from holdfast.errors import BadData, HoldfastError, InvalidCall, NotFound
from holdfast.history.attachments import check_decodes
from holdfast.history.hashes import NO_PARENT, check_hash
from holdfast.history.journal import iter_entries
from holdfast.history.prune import ReachableNodes, iter_records
from holdfast.history.reader import Reader, check_timelines
from holdfast.model.meta import MetaRow
from holdfast.model.public import Problem, Report
from holdfast.model.records import QuestionRecord, RunRecord, VersionRecord
from holdfast.model.run_detail import detail_of, indexed_meta, question_rows
from holdfast.store.protocol import Store, iter_attachments, iter_runs, place_of

#: Called with the number of versions checked, and of all versions.
Progress = Callable[[int, int], None]

#: Before the time of every question: none has expired then.
_EARLIEST = -(1 << 62)


def verify_run(store: Store, run: RunRecord) -> Report:
    """Check one run as it was when it was read; again if versions were pruned meanwhile."""
    while True:
        report = _verify_run(store, run)
        if report.ok:
            return report
        try:
            fresh = store.run_by_key(run.key)
        except BadData:
            return report
        if fresh is None:
            return Report(0, 0, 0)
        if fresh.epoch == run.epoch:
            return report
        run = fresh


def _verify_run(store: Store, run: RunRecord) -> Report:
    problems: list[Problem] = []
    reachable = ReachableNodes(Reader(store, run))
    hashes: dict[int, bytes] = {}
    seen = 0
    try:
        for record in iter_records(store, run):
            problems += _check_version(reachable, run, record, hashes)
            seen += not record.pruned
        problems += _check_numbers(run, hashes, seen)
        check_timelines(run, store.timelines(run.key))
        for name in sorted(reachable.artifacts):
            if store.artifact(name) is None:
                problems.append(Problem(run.id, None, f"artifact {name.hex()[:12]} is missing"))
        for mark in store.marks(run.key):
            if mark.number <= run.last and mark.number not in hashes:
                problems.append(Problem(run.id, mark.number, f"is tagged {mark.name!r} but is missing"))
        for _ in iter_entries(store, run):
            pass
        problems += _check_questions(store, run)
        problems += _check_meta(store, run)
        for attachment in iter_attachments(store, run.key):
            try:
                check_decodes(run.id, attachment)
            except BadData as error:
                problems.append(Problem(run.id, None, str(error)))
    except HoldfastError as error:
        problems.append(Problem(run.id, error.details.get("version"), str(error)))
    return Report(1, seen, len(reachable.artifacts), tuple(problems))


def verify_store(store: Store, progress: Progress | None = None) -> Report:
    """Check all runs, all artifacts, all values that belong to no run, and the database itself."""
    if progress is not None and not callable(progress):
        raise InvalidCall(
            "progress is a function of the number of versions checked and the number of all versions"
        )
    problems = [Problem(None, None, finding) for finding in store.check()]
    runs = versions = 0
    try:
        total = store.stats().versions
        for run in iter_runs(store):
            report = verify_run(store, run)
            problems += report.problems
            runs += report.runs
            versions += report.versions
            if progress is not None:
                progress(versions, total)
    except HoldfastError as error:
        problems.append(Problem(None, None, str(error)))
    problems += _check_values(store)
    artifacts, found = _check_artifacts(store)
    return Report(runs, versions, artifacts, (*problems, *found))


def _check_version(
    reachable: ReachableNodes, run: RunRecord, record: VersionRecord, hashes: dict[int, bytes]
) -> Iterator[Problem]:
    number = record.number
    try:
        check_hash(run.id, record)
    except BadData as error:
        yield Problem(run.id, number, str(error))
        return
    hashes[number] = record.hash
    if record.pruned:
        return
    link = hashes.get(record.parent)
    if record.parent and link is None:
        yield Problem(run.id, number, f"its parent, version {record.parent}, is missing or damaged")
    elif record.parent and link is not None and link[:8] != record.prev:
        yield Problem(run.id, number, f"does not link to its parent, version {record.parent}")
    elif not record.parent and run.origin is None and record.kind != "fork" and record.prev != NO_PARENT:
        yield Problem(run.id, number, "claims a parent that it does not name")
    try:
        reachable.add(number)
    except (BadData, NotFound) as error:
        yield Problem(run.id, error.details.get("version", number), str(error))


def _check_numbers(run: RunRecord, hashes: dict[int, bytes], seen: int) -> Iterator[Problem]:
    if run.epoch == 0:
        for number in range(1, run.last + 1):
            if number not in hashes:
                yield Problem(run.id, number, "is missing")
    if run.head and run.head not in hashes:
        yield Problem(run.id, run.head, "is the head but is missing or damaged")
    if seen != run.kept:
        yield Problem(run.id, None, f"has {seen} versions where its record says {run.kept}")


def _check_questions(store: Store, run: RunRecord) -> Iterator[Problem]:
    """Compare the index of open questions with the record of a workflow's run, and the lists of the index with its
    rows. A manual run lists its own questions."""
    fresh: RunRecord | None = run
    while fresh is not None:
        listed, read = store.questions_of(run.key), fresh
        lost = [each.number for each in listed if not _is_in_all_lists(store, each)]
        fresh = store.run_by_key(run.key)
        if fresh is None or fresh.revision != read.revision:
            continue
        asked = sorted(question_rows(read, detail_of(read)), key=lambda question: question.number)
        if read.workflow is not None and asked != listed:
            numbers = sorted({each.number for each in {*asked} ^ {*listed}})
            yield Problem(
                run.id, None, f"its questions {numbers} are not in the index as its record has them"
            )
        if lost:
            yield Problem(run.id, None, f"its questions {lost} are missing in lists of the inbox")
        return


def _is_in_all_lists(store: Store, question: QuestionRecord) -> bool:
    """Return whether the lists of the index by kind, workflow and assignee have a question at its place."""
    before = place_of(question)._replace(number=question.number - 1)
    values = [(None, value) for value in (question.kind, question.workflow, question.assignee)]
    for kind, workflow, assignee in dict.fromkeys(product(*values)):
        try:
            found = store.open_questions(
                now=_EARLIEST, after=before, limit=1, kind=kind, workflow=workflow, assignee=assignee
            )
        except BadData:
            return False
        if [each.question for each in found] != [question]:
            return False
    return True


def _check_meta(store: Store, run: RunRecord) -> Iterator[Problem]:
    """Compare the index of metadata with the record of a run, and the lists of the index with its rows."""
    fresh: RunRecord | None = run
    while fresh is not None:
        listed, read = store.meta_of(run.key), fresh
        lost = sorted({row[0] for row in listed if not _is_in_lists_of(store, run.key, row, listed)})
        fresh = store.run_by_key(run.key)
        if fresh is None or fresh.revision == read.revision:
            if tuple(listed) != indexed_meta(read):
                yield Problem(run.id, None, "its metadata are not in the index as its record has them")
            if lost:
                yield Problem(
                    run.id, None, f"its metadata {', '.join(lost)} are missing in lists of the index"
                )
            return


def _is_in_lists_of(store: Store, key: int, row: MetaRow, rows: Sequence[MetaRow]) -> bool:
    """Return whether a run is listed by a name and value, and by them with each of its others."""
    try:
        found = [store.runs(meta=tuple({row, other}), before=key + 1, limit=1) for other in rows]
    except BadData:
        return False
    return all([each.key for each in listed] == [key] for listed in found)


def _check_values(store: Store) -> Iterator[Problem]:
    """Read the values that belong to no run, such as circuit breakers, limits of queues and settings."""
    after = ""
    try:
        while names := store.value_names("", after=after):
            for name in names:
                try:
                    store.value(name)
                except BadData as error:
                    yield Problem(None, None, str(error))
            after = names[-1]
    except HoldfastError as error:
        yield Problem(None, None, str(error))


def _check_artifacts(store: Store) -> tuple[int, list[Problem]]:
    problems = []
    count = 0
    after = b""
    try:
        while page := store.artifacts(after=after):
            for artifact in page:
                count += 1
                try:
                    size = sum(map(len, store.artifact_pieces(artifact.digest)))
                    if size != artifact.size:
                        problems.append(
                            Problem(None, None, f"artifact {artifact.digest.hex()[:12]} has a wrong size")
                        )
                except (BadData, NotFound) as error:
                    if store.artifact(artifact.digest) is not None:
                        problems.append(Problem(None, None, str(error)))
            after = page[-1].digest
    except HoldfastError as error:
        problems.append(Problem(None, None, str(error)))
    return count, problems
