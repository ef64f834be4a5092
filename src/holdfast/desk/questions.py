"""Questions to the operator: which one is meant, what it wants, and an answer as people type it."""

from __future__ import annotations

import json
from typing import Any

from holdfast.desk.standing import questions
from holdfast.desk.words import brief, cut, dumps, parsed, plain
from holdfast.engine import Holdfast
from holdfast.errors import InvalidCall, InvalidReference, NotFound
from holdfast.model.public import Prompt

#: What people say to a question for true or false.
_WORDS = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}


def find_prompt(hf: Holdfast, prompt_id: str) -> Prompt:
    """An open prompt by its id, or by its run where that has only one. `InvalidAnswer` if it has been answered."""
    found = hf.prompts()
    for prompt in found:
        if prompt.id == prompt_id:
            return prompt
    # With its number, it may be one that has been answered: that is told.
    if "#" in prompt_id:
        try:
            return hf.prompt(prompt_id)
        except NotFound:
            pass
    try:
        own = questions(hf, hf.get(hf.find(prompt_id)))
    except NotFound:
        own = []
    except InvalidReference:
        own = [prompt for prompt in found if prompt.run.startswith(prompt_id)]
    if len(own) == 1:
        return own[0]
    if len(own) > 1:
        several = ", ".join(prompt.id for prompt in own[:5])
        raise InvalidReference(f"{prompt_id!r} could be any of {several}: name one", prompt=prompt_id)
    from difflib import get_close_matches

    near = get_close_matches(prompt_id, [prompt.id for prompt in found], 1)
    hint = f"did you mean {near[0]!r}?" if near else "`holdfast prompts` lists those that are open"
    raise NotFound(f"there is no open prompt {prompt_id!r:.80}: {hint}", prompt=prompt_id)


def answer_of(prompt: Prompt, text: str) -> Any:
    """The answer as a value: JSON, or the text itself where that is what is wanted."""
    kind = prompt.schema.get("type") if isinstance(prompt.schema, dict) else None
    options = prompt.schema.get("enum", ()) if isinstance(prompt.schema, dict) else ()
    if kind == "string" or text in options:
        try:
            found = json.loads(text)
        except ValueError:
            return text
        return found if isinstance(found, str) else text
    if kind is None:
        try:
            return json.loads(text)
        except ValueError:
            return text
    if kind not in ("boolean", "integer", "number"):
        return parsed(text, prompt.id)
    if kind == "boolean" and text.strip().lower() in _WORDS:
        return _WORDS[text.strip().lower()]
    try:
        if kind != "boolean":
            # What else it must fit, the engine tells.
            return json.loads(text)
    except ValueError:
        pass
    raise InvalidCall(
        f"{text!r:.80} is no answer to {prompt.id}: it wants {wanted(prompt)}", prompt=prompt.id
    )


def wanted(prompt: Prompt) -> str:
    """What kind of answer is wanted, in a few words."""
    schema = prompt.schema
    if not isinstance(schema, dict):
        return "anything"
    if "enum" in schema:
        return " | ".join(brief(option, 30) for option in schema["enum"])
    if schema.get("type") == "boolean":
        return "true | false"
    return (
        plain(str(schema["type"]))
        if set(schema) <= {"type", "title", "description"}
        else cut(dumps(schema), 80)
    )
