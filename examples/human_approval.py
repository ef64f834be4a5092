"""An article waits for a person, and no process has to run meanwhile.

    python examples/human_approval.py [FOLDER]

The author's process ends while its question is open. An editor's process, perhaps days later, finds the question,
gives an answer that does not fit the schema, then one that does, and the run continues at once. Its next question has a
deadline and gets no answer; the workflow handles that.
"""

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import holdfast
from holdfast import InvalidAnswer, QuestionTimeout, step, workflow

RUN = "article"


@dataclass
class Verdict:
    """The schema of the editor's answer. A JSON Schema works as well."""

    decision: Literal["publish", "reject"]
    comment: str = ""


@step
def draft(topic: str) -> str:
    say(f"draft: {topic}")
    holdfast.state()["text"] = f"{topic.title()} can grow by half a metre a day."
    return f"{topic}, in one sentence"


@step
def publish(title: str, comment: str) -> str:
    say(f"publish: {title}")
    holdfast.state()["comments"] = [comment]
    return title


@workflow
def article(topic: str) -> str:
    working_title = draft(topic)
    verdict: Verdict = holdfast.ask("Publish this article?", schema=Verdict)
    if verdict.decision == "reject":
        return "rejected"
    try:
        title = holdfast.ask("Do you have a better title?", schema=str, timeout=1)
    except QuestionTimeout:
        say("no answer before the deadline: the working title stays")
        title = working_title
    return publish(title, verdict.comment)


def author(folder: Path) -> None:
    with holdfast.open(folder / "runs.db") as hf:
        run = hf.run(article, "kelp", run_id=RUN)
        say(f"the run is {run.status}; this process ends")


def editor(folder: Path) -> None:
    with holdfast.open(folder / "runs.db") as hf:
        (question,) = hf.inbox()
        say(f"{question.run} asks: {question.text}")
        try:
            hf.answer(question.id, {"decision": "perhaps"}, actor="ada")
        except InvalidAnswer as refused:
            say(str(refused))
        run = hf.answer(question.id, {"decision": "publish", "comment": "charming"}, actor="ada")
        (question,) = run.questions()
        say(f"{question.run} asks: {question.text}")
        say("no answer; this process ends")


def main(folder: Path) -> None:
    for role in ("author", "editor"):
        print(f"The {role}'s process:", flush=True)
        subprocess.run([sys.executable, __file__, folder, role], check=True)
    print("This process, after the deadline:")
    with holdfast.open(folder / "runs.db") as hf:
        run = hf.get(RUN).wait(timeout=30)  # resumes the run when the deadline has passed
        print(f"The run is {run.status}: {run.result}")
        for version in reversed(run.history().versions()):
            who = version.actor or ("no answer" if version.error else "")
            print(f"  version {version.number}  {version.address or version.kind:8} {who}".rstrip())


def say(what: str) -> None:
    print(f"  {what}", flush=True)


if __name__ == "__main__":
    where = Path(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp(prefix="holdfast-"))
    where.mkdir(parents=True, exist_ok=True)
    if sys.argv[2:]:
        {"author": author, "editor": editor}[sys.argv[2]](where)
    elif (where / "runs.db").exists():
        sys.exit(f"there are runs in {where} already: name another folder")
    else:
        main(where)
