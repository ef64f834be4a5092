"""An agent is killed in the middle of a step, and the next process resumes its run.

    python examples/crash_and_resume.py [FOLDER]

The agent runs in a process of its own. In the first process the model never answers, and we end it with `kill -9`. The
second process has only the run's id. It replays the recorded steps and runs the interrupted step again.
"""

import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import holdfast
from holdfast import step, workflow

RUN = "newsletter"


# The agent: ordinary functions, and two decorators


@step
def plan(topic: str) -> list[str]:
    print("plan", flush=True)
    return [f"what {topic} is", f"where {topic} grows"]


@step
def read(question: str) -> str:
    print(f"read: {question}", flush=True)
    holdfast.state()["notes"].append(question)  # committed together with the step's result
    return f"a page on {question}"


@step
def write(sources: list[str]) -> str:
    print("write", flush=True)
    holdfast.state()["draft"] = "Dear reader"  # visible only when this step has ended
    if sys.argv[2] == "start":
        time.sleep(600)  # the model does not answer
    return f"Dear reader, you have {' and '.join(sources)}."


@step
def send(text: str) -> str:
    print("send", flush=True)
    return f"sent: {text}"


@workflow
def newsletter(topic: str) -> str:
    return send(write([read(question) for question in plan(topic)]))


def agent(folder: Path, how: str) -> None:
    """Do the work of one process."""
    with holdfast.open(folder / "runs.db") as hf:
        if how == "start":
            hf.run(newsletter, "kelp", run_id=RUN, state={"notes": []})
        else:
            hf.resume(RUN)


# The story


def main(folder: Path) -> None:
    print("The agent starts:")
    first = watch(folder, "start", kill_at="write")
    with holdfast.open(folder / "runs.db") as hf:
        head = hf.get(RUN).head
        print(
            f"  💥 kill -9. On disk: version {head.number}, {head.steps} completed steps; {dict(head.state)}"
        )

    print("Another process resumes the run:")
    second = watch(folder, "resume")
    times = Counter([*first, *second])
    twice = [what for what, count in times.items() if count > 1]
    assert twice == ["write"], twice
    print("Started twice: “write”, which was interrupted. No completed step ran again.")

    with holdfast.open(folder / "runs.db") as hf:
        for version in reversed(hf.history(RUN).versions()):
            print(f"  version {version.number}  {version.address or version.kind}")
        print(hf.get(RUN).result)


def watch(folder: Path, how: str, kill_at: str | None = None) -> list[str]:
    """Run the agent's process and print its output; kill it when it starts the step `kill_at`."""
    seen = []
    command = [sys.executable, __file__, str(folder), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(f"  {line}", end="", flush=True)
            seen.append(line.strip())
            if seen[-1] == kill_at:
                process.kill()  # SIGKILL: no handler, no clean-up
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
