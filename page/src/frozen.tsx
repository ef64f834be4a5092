// A run that the monitor has frozen: what it found, and what can be done about it.

import { useState } from "preact/hooks";

import { Consequences } from "./actions";
import * as api from "./api";
import { Dialog } from "./dialog";
import { href } from "./route";
import type { Prompt } from "./types";
import { clock, span } from "./words";

export function FrozenDetails({ prompt, now }: { prompt: Prompt; now: number }) {
  const details = prompt.details ?? {};
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
          <a href={href("run", prompt.run, { version: details.version })}>{details.version}</a>
        </dd>
        {details.restores ? (
          <>
            <dt>restored before</dt>
            <dd>{details.restores} times, without being asked</dd>
          </>
        ) : null}
      </dl>
      {details.stack && (
        <details>
          <summary>where its code stands</summary>
          <pre class="traceback">{details.stack}</pre>
        </details>
      )}
      {details.diff && details.diff.length > 0 && (
        <details>
          <summary>what has changed since version {details.version}</summary>
          <pre>{details.diff.join("\n")}</pre>
        </details>
      )}
    </>
  );
}

/** What each choice is called; and what follows from it, where the server does not work that out. */
const CHOICES: Record<string, { label: string; grave?: boolean; follows?: (prompt: Prompt) => string[] }> = {
  resume: { label: "Resume" },
  rollback: { label: "Roll back" },
  reinitialise: {
    label: "Begin afresh",
    follows: (prompt) => [
      `${prompt.run} begins again from version 1, on a new timeline, and all of its steps run again`,
      "compensations of the steps that it made run first",
      "the parts of its state that you tick are carried over, all else is as at the beginning",
      "nothing is deleted: all versions stay readable",
    ],
  },
  cancel: {
    label: "Cancel",
    grave: true,
    follows: (prompt) => [`${prompt.run} is stopped for good`, "what it did is not undone", "its history stays; a rollback can bring it back"],
  },
};

export function FrozenChoices({ prompt, onDone }: { prompt: Prompt; onDone: () => void }) {
  const [choice, setChoice] = useState<string | null>(null);
  return (
    <div class="choices">
      {(prompt.details?.choices ?? []).map((name) => (
        <button key={name} type="button" onClick={() => setChoice(name)}>
          {CHOICES[name]?.label ?? name}…
        </button>
      ))}
      {choice !== null && <ChoiceDialog prompt={prompt} choice={choice} onClose={() => setChoice(null)} onDone={onDone} />}
    </div>
  );
}

interface ChoiceProps {
  prompt: Prompt;
  choice: string;
  onClose: () => void;
  onDone: () => void;
}

function ChoiceDialog({ prompt, choice, onClose, onDone }: ChoiceProps) {
  const details = prompt.details ?? {};
  const [version, setVersion] = useState(String(details.version ?? 1));
  const [keep, setKeep] = useState<Set<string>>(new Set());
  const known = CHOICES[choice];
  const tick = (path: string) => {
    const next = new Set(keep);
    if (!next.delete(path)) next.add(path);
    setKeep(next);
  };
  const act = async () => {
    await api.answer(prompt.id, {
      value: choice,
      ...(choice === "rollback" ? { to: Number(version) } : {}),
      ...(choice === "reinitialise" ? { keep: [...keep] } : {}),
    });
    onDone();
  };
  return (
    <Dialog title={`${known?.label ?? choice}: ${prompt.run}`} verb={known?.label ?? choice} grave={known?.grave ?? false} onDo={act} onClose={onClose}>
      {known?.follows && (
        <ul class="consequences">
          {known.follows(prompt).map((line) => (
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
      {choice === "resume" && <Consequences id={prompt.run} to={null} resume />}
      {choice === "rollback" && Number(version) > 0 && <Consequences id={prompt.run} to={Number(version)} resume />}
      {choice === "reinitialise" && (
        <fieldset class="ticks">
          <legend>Carry over</legend>
          {(details.initial ?? []).length === 0 && <p class="soft">The state is as it was at the beginning.</p>}
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

