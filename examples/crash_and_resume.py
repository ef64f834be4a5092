"""An agent is killed in the middle of a step, and the next process goes on from there.

    python examples/crash_and_resume.py [FOLDER]

The agent runs in a process of its own. In the first one the model never answers, and we lose patience: `kill -9`.
The second one knows nothing but the run's id. It passes the steps that are recorded, with the results they had, and
begins again with the one that was cut off.
"""

import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import holdfast
from holdfast import step, workflow

RUN = "letter"


# The agent: ordinary functions, and two decorators


@step
def plan(topic: str) -> list[str]:
    print("plan", flush=True)
    return [f"what {topic} is", f"where {topic} grows"]


@step
def read(question: str) -> str:
    print(f"read: {question}", flush=True)
    holdfast.state()["notes"].append(question)  # kept together with the step's result, or not at all
    return f"a page on {question}"


@step
def write(sources: list[str]) -> str:
    print("write", flush=True)
    holdfast.state()["draft"] = "Dear reader"  # seen by nobody, unless we come to the end of this step
    if sys.argv[2] == "begin":
        time.sleep(600)  # the model does not answer
    return f"Dear reader, you have {' and '.join(sources)}."


@step
def send(text: str) -> str:
    print("send", flush=True)
    return f"sent: {text}"


@workflow
def letter(topic: str) -> str:
    return send(write([read(question) for question in plan(topic)]))


def agent(folder: Path, how: str) -> None:
    """All that one process does."""
    with holdfast.open(folder / "runs.db") as hf:
        if how == "begin":
            hf.run(letter, "kelp", run_id=RUN, state={"notes": []})
        else:
            hf.resume(RUN)


# The story


def main(folder: Path) -> None:
    print("The agent begins:")
    first = watch(folder, "begin", kill_at="write")
    with holdfast.open(folder / "runs.db") as hf:
        head = hf.get(RUN).head
        print(f"  💥 kill -9. On disk: version {head.number}, {head.steps} steps done; {dict(head.state)}")

    print("Another process goes on:")
    second = watch(folder, "resume")
    times = Counter([*first, *second])
    twice = [what for what, count in times.items() if count > 1]
    assert twice == ["write"], twice
    print("Begun twice: “write”, which was cut off. Nothing that was completed ran again.")

    with holdfast.open(folder / "runs.db") as hf:
        for version in reversed(hf.history(RUN).versions()):
            print(f"  version {version.number}  {version.address or version.kind}")
        print(hf.get(RUN).result)


def watch(folder: Path, how: str, kill_at: str | None = None) -> list[str]:
    """Run the agent's process and show what it does; kill it when it comes to a step."""
    seen = []
    command = [sys.executable, __file__, str(folder), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(f"  {line}", end="", flush=True)
            seen.append(line.strip())
            if seen[-1] == kill_at:
                process.kill()  # SIGKILL: no handler, no goodbye
    return seen


if __name__ == "__main__":
    where = Path(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp(prefix="holdfast-"))
    where.mkdir(parents=True, exist_ok=True)
    if sys.argv[2:]:
        agent(where, sys.argv[2])
    elif (where / "runs.db").exists():
        sys.exit(f"there are runs in {where} already: name another folder")
    else:
        main(where)
