"""The operator's inbox: open questions, answered ones, and answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.engine import Holdfast
from holdfast.errors import InvalidAnswer, NotFound
from holdfast.execution.run import Run
from holdfast.model.public import Question
from holdfast.operator_view.actions import find_question
from holdfast.operator_view.records import QuestionView, question_view
from holdfast.web.auth import Caller
from holdfast.web.errors import RequestRefused
from holdfast.web.operation import Actor, Body, Limit, Name, Number, OperationTable, Path, Query, Role, Wait
from holdfast.web.request import RequestValues
from holdfast.web.service import BackgroundTask, Service

TABLE = OperationTable("inbox")
#: Answered questions that are read at a time.
_PAGE = 1000


class InboxQuery(Query):
    """The questions to list: open or answered, of all runs or of one. The other filters are for open questions."""

    run: Name | None = None
    answered: Annotated[bool, Meta(description="List answered questions instead of open ones.")] = False
    workflow: Name | None = None
    assignee: Name | None = None
    kind: Literal["question", "stalled", "loop"] | None = None
    waiting_longer_than: (
        Annotated[float, Meta(description="Only questions older than so many seconds.")] | None
    ) = None
    limit: Limit = 100
    after: Annotated[Name, Meta(description="The id of the last question of the previous page.")] | None = (
        None
    )


class AnswerBody(Body):
    """An answer. For a stalled run or loop, `value` is resume, rollback (`to` a version), reinitialize (`keep` parts of
    the state, by their paths) or cancel."""

    value: Any
    to: Number | None = None
    keep: Annotated[tuple[Path, ...], Meta(max_length=50)] = ()
    actor: Actor | None = None
    resume: bool = True
    wait: Wait = 2.0


class AssignBody(Body):
    """Who is to answer, and by when. Times are seconds from now."""

    assignee: Name | UnsetType | None = UNSET
    due: float | UnsetType | None = UNSET
    priority: int | UnsetType = UNSET
    remind_every: float | UnsetType | None = UNSET
    escalate_after: float | UnsetType | None = UNSET
    escalate_to: Name | UnsetType | None = UNSET
    actor: Actor | None = None


@TABLE.add("GET", "/inbox", Role.VIEWER)
def list_questions(service: Service, query: InboxQuery) -> list[QuestionView]:
    """List open questions: the highest priority first, then the oldest. `after` continues a list, until a page has
    fewer than `limit` questions."""
    found = service.hf.inbox(
        open=not query.answered,
        run_id=None if query.run is None else service.hf.get(query.run, prefix=True).id,
        workflow=query.workflow,
        assignee=query.assignee,
        waiting_longer_than=query.waiting_longer_than,
        kind=query.kind,
        limit=query.limit,
        after=query.after,
    )
    return [question_view(each) for each in found]


@TABLE.add("GET", "/inbox/{question}", Role.VIEWER)
def get_question(service: Service, question: str) -> QuestionView:
    """Return a question by its id, or by its run if that asks only one."""
    try:
        return question_view(find_question(service.hf, question))
    except InvalidAnswer:
        for each in _answered(service.hf, question.rpartition("#")[0]):
            if each.id == question:
                return question_view(each)
        raise NotFound(f"question {question!r:.80} is no longer open", question=question) from None


@TABLE.add("POST", "/inbox/{question}/answer", Role.OPERATOR, long=True)
def answer_question(service: Service, question: str, body: AnswerBody, caller: Caller) -> BackgroundTask:
    """Answer a question, and resume the run if the server has its code. The first answer counts."""
    hf = service.hf
    found = _find_open(hf, question)
    value = RequestValues(hf).value(body.value)

    def answer() -> Run:
        try:
            return hf.answer(
                found.id,
                value,
                version=body.to,
                keep=tuple(body.keep),
                actor=body.actor,
                resume=body.resume,
                raises=False,
            )
        except InvalidAnswer:
            # Another caller may have answered in the meantime.
            _find_open(hf, found.id)
            raise

    return service.advance("answer", found.run, caller, answer)


@TABLE.add("POST", "/inbox/{question}/assign", Role.OPERATOR)
def assign_question(service: Service, question: str, body: AssignBody) -> QuestionView:
    """Change who is to answer an open question, and by when. What is not given stays; null removes it."""
    found = _find_open(service.hf, question)
    return question_view(service.hf.assign(found.id, **msgspec.structs.asdict(body)))


def _find_open(hf: Holdfast, question: str) -> Question:
    try:
        return find_question(hf, question)
    except InvalidAnswer as error:
        raise RequestRefused(409, error.code, str(error)) from None


def _answered(hf: Holdfast, run: str) -> Iterator[Question]:
    after: str | None = None
    while page := hf.inbox(open=False, run_id=run, limit=_PAGE, after=after):
        yield from page
        after = page[-1].id
