// A stalled run: what the monitor found, and the choices of the operator.

import { useState } from "preact/hooks";

import { Consequences } from "./actions";
import * as api from "./api";
import { Dialog } from "./dialog";
import { href } from "./route";
import type { Question } from "./types";
import { clock, span } from "./words";

export function StalledDetails({ question, now }: { question: Question; now: number }) {
  const details = question.details ?? {};
  const since = details.since ? (now - Date.parse(details.since)) / 1000 : null;
  return (
    <>
      <dl class="facts">
        <dt>why</dt>
        <dd>
          {details.symptom}: {details.why}
        </dd>
        {details.since && (
          <>
            <dt>since</dt>
            <dd>
              {clock(details.since, now)} ({span(since)})
            </dd>
          </>
        )}
        {details.address && (
          <>
            <dt>where</dt>
            <dd>
              {details.address}
              {details.attempt ? `, attempt ${details.attempt}` : ""}
            </dd>
          </>
        )}
        <dt>last good version</dt>
        <dd>
          <a href={href("run", question.run, { version: details.version })}>{details.version}</a>
        </dd>
        {details.restores ? (
          <>
            <dt>recoveries</dt>
            <dd>{details.restores} automatic</dd>
          </>
        ) : null}
      </dl>
      {details.stack && (
        <details>
          <summary>current stack of its code</summary>
          <pre class="traceback">{details.stack}</pre>
        </details>
      )}
      {details.diff && details.diff.length > 0 && (
        <details>
          <summary>changes since version {details.version}</summary>
          <pre>{details.diff.join("\n")}</pre>
        </details>
      )}
    </>
  );
}

/** Labels of the choices, and their effects if the server does not compute them. */
const CHOICES: Record<string, { label: string; grave?: boolean; follows?: (question: Question) => string[] }> = {
  resume: { label: "Resume" },
  rollback: { label: "Roll back" },
  reinitialise: {
    label: "Reinitialise",
    follows: (question) => [
      `${question.run} restarts from version 1, on a new timeline, and all of its steps run again`,
      "compensations of its completed steps run first",
      "the selected parts of its state are kept, the rest is as in version 1",
      "nothing is deleted: all versions stay readable",
    ],
  },
  cancel: {
    label: "Cancel",
    grave: true,
    follows: (question) => [`${question.run} is cancelled`, "its effects are not undone", "its history stays; a rollback makes it run again"],
  },
};

export function StalledChoices({ question, onDone }: { question: Question; onDone: () => void }) {
  const [choice, setChoice] = useState<string | null>(null);
  return (
    <div class="choices">
      {(question.details?.choices ?? []).map((name) => (
        <button key={name} type="button" onClick={() => setChoice(name)}>
          {CHOICES[name]?.label ?? name}…
        </button>
      ))}
      {choice !== null && <ChoiceDialog question={question} choice={choice} onClose={() => setChoice(null)} onDone={onDone} />}
    </div>
  );
}

interface ChoiceProps {
  question: Question;
  choice: string;
  onClose: () => void;
  onDone: () => void;
}

function ChoiceDialog({ question, choice, onClose, onDone }: ChoiceProps) {
  const details = question.details ?? {};
  const [version, setVersion] = useState(String(details.version ?? 1));
  const [keep, setKeep] = useState<Set<string>>(new Set());
  const known = CHOICES[choice];
  const tick = (path: string) => {
    const next = new Set(keep);
    if (!next.delete(path)) next.add(path);
    setKeep(next);
  };
  const act = async () => {
    await api.answer(question.id, {
      value: choice,
      ...(choice === "rollback" ? { to: Number(version) } : {}),
      ...(choice === "reinitialise" ? { keep: [...keep] } : {}),
    });
    onDone();
  };
  return (
    <Dialog title={`${known?.label ?? choice}: ${question.run}`} verb={known?.label ?? choice} grave={known?.grave ?? false} onDo={act} onClose={onClose}>
      {known?.follows && (
        <ul class="consequences">
          {known.follows(question).map((line) => (
            <li key={line}>{line}</li>
          ))}
        </ul>
      )}
      {choice === "rollback" && (
        <label>
          to version
          <input type="number" min={1} value={version} onInput={(event) => setVersion(event.currentTarget.value)} />
        </label>
      )}
      {choice === "resume" && <Consequences id={question.run} to={null} resume />}
      {choice === "rollback" && Number(version) > 0 && <Consequences id={question.run} to={Number(version)} resume />}
      {choice === "reinitialise" && (
        <fieldset class="ticks">
          <legend>Keep</legend>
          {(details.initial ?? []).length === 0 && <p class="soft">The state has not changed since version 1.</p>}
          {(details.initial ?? []).map((part) => (
            <label key={part.path}>
              <input type="checkbox" checked={keep.has(part.path)} onChange={() => tick(part.path)} />
              <span>
                <code>{part.path || "(all)"}</code>
                <pre class="soft">{part.changes.join("\n")}</pre>
              </span>
            </label>
          ))}
        </fieldset>
      )}
    </Dialog>
  );
}

