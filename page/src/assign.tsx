// Who is to answer a question, and by when: shown with the question, and changed by an operator.

import { useState } from "preact/hooks";

import * as api from "./api";
import { Choice } from "./choice";
import { Dialog } from "./dialog";
import type { Question } from "./types";
import { clock, count, isPast, until } from "./words";

export function Handling({ question, now }: { question: Question; now: number }) {
  const { assignee, due, priority, reminders, escalated, expires } = question;
  const late = isPast(due, now);
  return (
    <ul class="handling soft" aria-label="Handling">
      <li>{assignee === null ? "not assigned" : <>assigned to {assignee}</>}</li>
      {due !== null && (
        <li class={late ? "late" : ""} title={clock(due, now)}>
          {late ? "" : "due "}
          {until(due, now)}
        </li>
      )}
      <li>priority {priority}</li>
      {reminders > 0 && <li>{count(reminders, "reminder")} sent</li>}
      {escalated && <li class="late">escalated</li>}
      {expires !== null && <li>continues without an answer at {clock(expires, now)}</li>}
    </ul>
  );
}

const HOUR = 3_600;
const TIMES: [string, string][] = [
  [String(HOUR), "1 hour"],
  [String(4 * HOUR), "4 hours"],
  [String(24 * HOUR), "1 day"],
  [String(72 * HOUR), "3 days"],
  [String(168 * HOUR), "1 week"],
];
const NONE = "none";

interface Props {
  question: Question;
  onDone: () => void;
}

export function Assign({ question, onDone }: Props) {
  const [open, setOpen] = useState(false);
  return (
    <>
      <button type="button" onClick={() => setOpen(true)}>
        Assign…
      </button>
      {open && <AssignDialog question={question} onDone={onDone} onClose={() => setOpen(false)} />}
    </>
  );
}

function AssignDialog({ question, onDone, onClose }: Props & { onClose: () => void }) {
  const [assignee, setAssignee] = useState(question.assignee ?? "");
  const [priority, setPriority] = useState(String(question.priority));
  const [due, setDue] = useState("");
  const [remind, setRemind] = useState("");
  const [escalate, setEscalate] = useState("");
  const [to, setTo] = useState("");
  const how: api.Assignment = {
    ...(assignee.trim() === (question.assignee ?? "") ? {} : { assignee: assignee.trim() || null }),
    ...(priority === "" || Number(priority) === question.priority ? {} : { priority: Number(priority) }),
    ...(due === "" ? {} : { due: secondsOf(due) }),
    ...(remind === "" ? {} : { remind_every: secondsOf(remind) }),
    ...(escalate === "" ? {} : { escalate_after: secondsOf(escalate) }),
    ...(to.trim() === "" ? {} : { escalate_to: to.trim() }),
  };
  const act = async () => {
    await api.assign(question.id, how);
    onDone();
  };
  return (
    <Dialog title="Assign the question" verb="Assign" disabled={Object.keys(how).length === 0} onDo={act} onClose={onClose}>
      <p>{question.text}</p>
      <label>
        assignee, a person or a group (empty: none)
        <input type="text" value={assignee} onInput={(event) => setAssignee(event.currentTarget.value)} />
      </label>
      <label>
        priority, from -100 to 100 (higher ones are listed first)
        <input type="number" min={-100} max={100} value={priority} onInput={(event) => setPriority(event.currentTarget.value)} />
      </label>
      <div class="rules">
        <Time label="answer wanted" prefix="in" value={due} onChoose={setDue} />
        <Time label="reminder" prefix="every" value={remind} onChoose={setRemind} />
        <Time label="escalation" prefix="in" value={escalate} onChoose={setEscalate} />
        <label>
          escalate to
          <input type="text" value={to} onInput={(event) => setTo(event.currentTarget.value)} />
        </label>
      </div>
    </Dialog>
  );
}

interface TimeProps {
  label: string;
  prefix: string;
  value: string;
  onChoose: (value: string) => void;
}

function Time({ label, prefix, value, onChoose }: TimeProps) {
  const options = [...TIMES.map(([seconds, text]) => [seconds, `${prefix} ${text}`] as const), [NONE, "none"] as const];
  return (
    <label>
      {label}
      <Choice label={label} all="unchanged" value={value} options={options} onChoose={onChoose} />
    </label>
  );
}

const secondsOf = (value: string): number | null => (value === NONE ? null : Number(value));
