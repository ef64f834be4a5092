"""The operator's inbox: questions, and answers to them."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from holdfast.desk.questions import find_prompt
from holdfast.desk.records import prompt_record
from holdfast.desk.shapes import PromptShown
from holdfast.desk.standing import Standing, standing
from holdfast.errors import InvalidAnswer, NotFound
from holdfast.model.public import Prompt
from holdfast.web.auth import Caller
from holdfast.web.fields import Actor, Body, Name, Number, Path, Query, Wait
from holdfast.web.incoming import Incoming
from holdfast.web.operation import Role, Table
from holdfast.web.problems import Refused
from holdfast.web.service import Service
from holdfast.web.tasks import Task

TABLE = Table("prompts")


class PromptsQuery(Query):
    """Which questions."""

    run: Name | None = None
    answered: Annotated[bool, Meta(description="Those that have been answered instead.")] = False


class AnswerBody(Body):
    """An answer. For a run that is frozen, `value` is resume, rollback (`to` a version), reinitialise (`keep` parts
    of the state, by their paths) or cancel."""

    value: Any
    to: Number | None = None
    keep: Annotated[tuple[Path, ...], Meta(max_length=50)] = ()
    actor: Actor | None = None
    resume: bool = True
    wait: Wait = 2.0


@TABLE.add("GET", "/prompts", Role.VIEWER)
def list_prompts(service: Service, query: PromptsQuery) -> list[PromptShown]:
    """The questions that wait for an answer, oldest first."""
    wanted = None if query.run is None else service.hf.find(query.run)
    found = service.hf.prompts(open=not query.answered, run_id=wanted)
    return [prompt_record(prompt) for prompt in found]


@TABLE.add("GET", "/prompts/{prompt}", Role.VIEWER)
def get_prompt(service: Service, prompt: str) -> PromptShown:
    """A question by its id, or by its run if that asks only one."""
    try:
        return prompt_record(find_prompt(service.hf, prompt))
    except InvalidAnswer:
        for each in service.hf.prompts(open=False, run_id=prompt.rpartition("#")[0], limit=1_000_000):
            if each.id == prompt:
                return prompt_record(each)
        raise NotFound(f"the question {prompt!r:.80} is not open any more", prompt=prompt) from None


@TABLE.add("POST", "/prompts/{prompt}/answer", Role.OPERATOR, long=True)
def answer_prompt(service: Service, prompt: str, body: AnswerBody, caller: Caller) -> Task:
    """Answer a question, and go on with the run where its code is known. One answer counts."""
    hf = service.hf
    found = _open(service, prompt)
    value = Incoming(hf).value(body.value)

    def work(_: Any) -> Standing:
        keep = tuple(body.keep)
        try:
            run = hf.answer(
                found.id,
                value,
                version=body.to,
                keep=keep,
                actor=body.actor,
                resume=body.resume,
                raises=False,
            )
        except InvalidAnswer:
            # Somebody else may have been faster meanwhile.
            _open(service, found.id)
            raise
        return standing(hf, run)

    return service.tasks.begin("answer", work, caller.role, run=found.run)


def _open(service: Service, prompt: str) -> Prompt:
    try:
        return find_prompt(service.hf, prompt)
    except InvalidAnswer as error:
        raise Refused(409, error.code, str(error)) from None
