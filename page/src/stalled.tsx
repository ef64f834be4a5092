// A stalled run or loop: what was found, and the choices of the operator.

import { useState } from "preact/hooks";

import { Consequences } from "./actions";
import * as api from "./api";
import { Dialog } from "./dialog";
import { useLoaded } from "./loaded";
import { written } from "./node";
import { ErrorNote, Loading } from "./notes";
import { keysOf, RestorePreview } from "./restore";
import { href } from "./route";
import type { LoopWhole, Question } from "./types";
import { clock, span } from "./words";

/** The name of what has stalled. */
const subjectOf = (question: Question): string => question.project ?? question.run;

/** The view of a version of what has stalled. */
const versionLink = (question: Question, version: number): string =>
  question.project === undefined ? href("run", question.run, { version }) : href("loops", question.project, { snapshot: version });

export function StalledDetails({ question, now }: { question: Question; now: number }) {
  const details = question.details ?? {};
  const since = details.since ? (now - Date.parse(details.since)) / 1000 : null;
  return (
    <>
      <dl class="facts">
        <dt>why</dt>
        <dd>
          {details.reasons ? details.reasons.map((reason) => <div key={reason}>{reason}</div>) : `${details.symptom}: ${details.why}`}
        </dd>
        {details.agents && details.agents.length > 0 && (
          <>
            <dt>agents</dt>
            <dd>{details.agents.join(", ")}</dd>
          </>
        )}
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
        <dd>{details.version ? <a href={versionLink(question, details.version)}>{details.version}</a> : "none that can be read"}</dd>
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
          <summary>{details.version ? `changes since version ${details.version}` : "changes"}</summary>
          <pre>{details.diff.join("\n")}</pre>
        </details>
      )}
    </>
  );
}

/** Labels of the choices, and their effects if the server does not compute them. */
const CHOICES: Record<string, { label: string; grave?: boolean; run?: (name: string) => string[]; loop?: string[] }> = {
  resume: {
    label: "Resume",
    loop: ["The loop continues with its current state.", "The agents that were ended stay ended, until your program starts them again."],
  },
  rollback: { label: "Roll back" },
  reinitialize: {
    label: "Reinitialize",
    run: (name) => [
      `${name} restarts from version 1, on a new timeline, and all of its steps run again`,
      "compensations of its completed steps run first",
      "the selected parts of its state are kept, the rest is as in version 1",
      "nothing is deleted: all versions stay readable",
    ],
    loop: ["The state becomes a new one that has only the selected parts, on a new timeline.", "Nothing is deleted: all versions stay readable."],
  },
  cancel: {
    label: "Cancel",
    grave: true,
    run: (name) => [`${name} is cancelled`, "its effects are not undone", "its history stays; a rollback makes it run again"],
    loop: ["All running agents of the loop are ended.", "The state, the snapshots and the configuration stay."],
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
  const [version, setVersion] = useState(String(details.version ?? ""));
  const [keep, setKeep] = useState<Set<string>>(new Set());
  const known = CHOICES[choice];
  const label = known?.label ?? choice;
  const subject = subjectOf(question);
  const project = question.project;
  const loop = useLoaded(project === undefined ? null : `loop ${project}`, (signal) => api.loop(project ?? "", signal));
  const tick = (path: string) => {
    const next = new Set(keep);
    if (!next.delete(path)) next.add(path);
    setKeep(next);
  };
  const act = async () => {
    await api.answer(question.id, {
      value: choice,
      ...(choice === "rollback" ? { to: Number(version) } : {}),
      ...(choice === "reinitialize" ? { keep: [...keep] } : {}),
    });
    onDone();
  };
  const lines = project === undefined ? known?.run?.(subject) : known?.loop;
  const target = Number(version);
  return (
    <Dialog
      title={`${label}: ${subject}`}
      verb={label}
      grave={known?.grave ?? false}
      disabled={choice === "rollback" && !(target > 0)}
      onDo={act}
      onClose={onClose}
    >
      {lines && (
        <ul class="consequences">
          {lines.map((line) => (
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
      {project === undefined ? (
        <>
          {choice === "resume" && <Consequences id={question.run} to={null} resume />}
          {choice === "rollback" && target > 0 && <Consequences id={question.run} to={target} resume />}
          {choice === "reinitialize" && <Parts parts={details.initial ?? []} kept={keep} onTick={tick} />}
        </>
      ) : loop.error !== null ? (
        <ErrorNote error={loop.error} retry={loop.again} />
      ) : !loop.value ? (
        <Loading what="reading the loop…" />
      ) : (
        <>
          {choice === "rollback" && target > 0 && (
            <RestorePreview run={loop.value.project.run} version={target} keeps={loop.value.config.keep_unknown === true} />
          )}
          {choice === "reinitialize" && <LoopParts loop={loop.value} kept={keep} onTick={tick} />}
        </>
      )}
    </Dialog>
  );
}

interface PartsProps {
  kept: Set<string>;
  onTick: (path: string) => void;
}

/** The parts of a state that differ from version 1. */
function Parts({ parts, kept, onTick }: PartsProps & { parts: { path: string; changes: string[] }[] }) {
  return (
    <fieldset class="ticks">
      <legend>Keep</legend>
      {parts.length === 0 && <p class="soft">The state has not changed since version 1.</p>}
      {parts.map((part) => (
        <label key={part.path}>
          <input type="checkbox" checked={kept.has(part.path)} onChange={() => onTick(part.path)} />
          <span>
            <code>{part.path || "(all)"}</code>
            <pre class="soft">{part.changes.join("\n")}</pre>
          </span>
        </label>
      ))}
    </fieldset>
  );
}

/** The keys of a loop's current state. */
function LoopParts({ loop, kept, onTick }: PartsProps & { loop: LoopWhole }) {
  const { run, version } = loop.project;
  const found = useLoaded(version === null ? null : `keys ${run}@${version}`, (signal) => keysOf(`${run}@${version}`, signal));
  if (found.error !== null) return <ErrorNote error={found.error} retry={found.again} />;
  if (version !== null && !found.value) return <Loading what="reading the state…" />;
  // Only a key that is a text can be kept.
  const entries = (found.value?.entries ?? []).filter((entry) => typeof entry.key === "string");
  return (
    <fieldset class="ticks">
      <legend>Keep</legend>
      {entries.length === 0 && <p class="soft">The state is empty.</p>}
      {entries.map((entry) => (
        <label key={entry.key}>
          <input type="checkbox" checked={kept.has(entry.key as string)} onChange={() => onTick(entry.key as string)} />
          <span>
            <code>{entry.label}</code> <span class="soft breakable">{written(entry.node).slice(0, LINE)}</span>
          </span>
        </label>
      ))}
    </fieldset>
  );
}

/** Characters of a value next to its key. */
const LINE = 200;
