// Actions on a run. Each dialog shows the effect, computed by the server, before the action.

import { useEffect, useState } from "preact/hooks";

import * as api from "./api";
import { Dialog } from "./dialog";
import { useLoaded } from "./loaded";
import { ErrorNote, Loading } from "./notes";
import { choose, go, href } from "./route";
import { useMay } from "./session";

interface Props {
  run: api.RunWhole;
  version: number;
  /** The dialog in the URL. */
  wanted: string | undefined;
  onDone: () => void;
}

/** Statuses of runs that can be stopped. */
const LIVE = ["queued", "running", "suspended", "paused", "interrupted"];

export function Actions({ run, version, wanted, onDone }: Props) {
  const close = () => choose({ do: null });
  const open = (what: string) => () => choose({ do: what });
  const mayAct = useMay("operator");
  const isLive = LIVE.includes(run.status) && run.workflow !== null;
  const goesOn = ["paused", "failed", "interrupted", "suspended", "queued"].includes(run.status) && run.workflow !== null;
  const props = { run, version, onDone, onClose: close };
  return (
    <div class="actions">
      {mayAct && goesOn && (
        <button type="button" class="main" onClick={open("resume")}>
          Resume…
        </button>
      )}
      {mayAct && (
        <>
          <button type="button" onClick={open("rollback")}>
            Roll back…
          </button>
          <button type="button" onClick={open("fork")}>
            Fork…
          </button>
          <button type="button" onClick={open("tag")}>
            Tag…
          </button>
        </>
      )}
      {mayAct && isLive && run.status !== "paused" && (
        <button type="button" onClick={open("pause")}>
          Pause…
        </button>
      )}
      {mayAct && isLive && (
        <button type="button" onClick={open("cancel")}>
          Cancel…
        </button>
      )}
      <a class="button" href={href("compare", "", { a: `${run.id}@${version}`, b: run.id })}>
        Compare
      </a>
      <a class="button" href={api.snapshotUrl(`${run.id}@${version}`)} download={`${run.id}@${version}.json`}>
        Export
      </a>
      {wanted === "resume" && <ResumeDialog {...props} />}
      {wanted === "rollback" && <RollbackDialog {...props} />}
      {wanted === "fork" && <ForkDialog {...props} />}
      {wanted === "tag" && <TagDialog {...props} />}
      {wanted === "pause" && <StopDialog {...props} verb="Pause" />}
      {wanted === "cancel" && <StopDialog {...props} verb="Cancel" />}
    </div>
  );
}

interface DialogProps {
  run: api.RunWhole;
  version: number;
  onDone: () => void;
  onClose: () => void;
}

/** The effect of an action, in the server's sentences. */
export function Consequences({ id, to, resume }: { id: string; to: number | null; resume: boolean }) {
  const found = useLoaded(`preview ${id} ${to} ${resume}`, (signal) => api.preview(id, to, resume, signal));
  if (found.error !== null) return <ErrorNote error={found.error} retry={found.again} />;
  if (!found.value) return <Loading what="computing the effect…" />;
  return (
    <>
      <Lines lines={[...found.value.description, "Nothing is deleted."]} />
      {resume && found.value.workflow !== null && !found.value.known && (
        <div class="note error">
          <p>
            This server does not have the code of {found.value.workflow}: start it with <code>holdfast ui --app MODULE</code>, or let a
            worker resume the run: <code>holdfast requeue {id}</code>.
          </p>
        </div>
      )}
    </>
  );
}

function Lines({ lines }: { lines: string[] }) {
  return (
    <ul class="consequences">
      {lines.map((line) => (
        <li key={line}>{line}</li>
      ))}
    </ul>
  );
}

function ResumeDialog({ run, onDone, onClose }: DialogProps) {
  const [limits, setLimits] = useState<api.Spending>(run.limits ?? {});
  const raised = Object.fromEntries(Object.entries(limits).filter(([name, most]) => most !== run.limits?.[name]));
  const act = async () => {
    await api.resume(run.id, Object.keys(raised).length > 0 ? raised : null);
    onDone();
  };
  return (
    <Dialog title={`Resume ${run.id}`} verb="Resume" onDo={act} onClose={onClose}>
      <Consequences id={run.id} to={null} resume />
      {Object.entries(limits).map(([name, most]) => (
        <label key={name}>
          limit of {name} ({(run.spent[name] ?? 0).toLocaleString("en", { maximumFractionDigits: 6 })} spent)
          <input
            type="number"
            min={0}
            step="any"
            value={most}
            onInput={(event) => setLimits({ ...limits, [name]: Number(event.currentTarget.value) })}
          />
        </label>
      ))}
    </Dialog>
  );
}

function RollbackDialog({ run, version, onDone, onClose }: DialogProps) {
  const [to, setTo] = useState(version);
  const [resume, setResume] = useState(run.workflow !== null);
  const [reason, setReason] = useState("");
  const act = async () => {
    await api.rollback(run.id, to, { resume, reason });
    onDone();
    return () => choose({ version: null, do: null });
  };
  return (
    <Dialog title={`Roll back ${run.id}`} verb="Roll back" disabled={!(to > 0)} onDo={act} onClose={onClose}>
      <label>
        to version
        <input type="number" min={1} value={to} onInput={(event) => setTo(Number(event.currentTarget.value))} />
      </label>
      {to > 0 && <Consequences id={run.id} to={to} resume={resume} />}
      {run.workflow !== null && (
        <label class="across">
          <input type="checkbox" checked={resume} onChange={() => setResume(!resume)} /> resume from there at once
        </label>
      )}
      <label>
        reason (recorded in the history)
        <input type="text" value={reason} onInput={(event) => setReason(event.currentTarget.value)} />
      </label>
    </Dialog>
  );
}

/** A state with a longer text, or with thousands of parts, cannot be edited as a whole, only in parts. */
const EDITABLE = 100_000;
/** Milliseconds to wait for the next character of a path. */
const TYPED = 250;

function ForkDialog({ run, version, onClose }: DialogProps) {
  const at = `${run.id}@${version}`;
  const [id, setId] = useState("");
  const [path, setPath] = useState("");
  const [text, setText] = useState<string | null>(null);
  const [resume, setResume] = useState(false);
  const found = useLoaded(`edit ${at} ${path}`, async (signal) => {
    await new Promise((resolve) => setTimeout(resolve, TYPED));
    signal.throwIfAborted();
    const read = await api.wholeState(at, path, EDITABLE, signal);
    return { text: read && JSON.stringify(read.value, null, 2) };
  });
  // The text belongs to the part for which it was written.
  useEffect(() => setText(null), [path]);
  const changed = text !== null && found.value !== undefined && text !== found.value.text;
  const act = async () => {
    const value: unknown = changed ? parsed(text) : undefined;
    const done = await api.fork(at, {
      run: id || null,
      resume,
      ...(changed ? (path ? { set: { [path]: value } } : { state: value }) : {}),
    });
    const made = (done.result as { run: string }).run;
    return () => go(href("run", made));
  };
  return (
    <Dialog title={`Fork ${at}`} verb="Fork" disabled={found.value === undefined} onDo={act} onClose={onClose}>
      <Lines
        lines={[
          `A new run will start with the state of ${at}${changed ? ", changed as you wrote" : ""}.`,
          "Both runs are independent; this run does not change.",
          ...(resume ? ["It is resumed at once: the steps after this version run again."] : []),
        ]}
      />
      <label>
        its id (left empty, one is made)
        <input type="text" value={id} onInput={(event) => setId(event.currentTarget.value)} />
      </label>
      <label>
        part of the state to change (empty: all of it)
        <input type="text" placeholder="plan.tasks[3]" value={path} onInput={(event) => setPath(event.currentTarget.value)} />
      </label>
      {found.error !== null && <ErrorNote error={found.error} />}
      {found.value && found.value.text === undefined ? (
        <p class="soft">This is too large to be edited whole: name a part of it.</p>
      ) : (
        <textarea
          aria-label="State, as JSON"
          spellcheck={false}
          disabled={!found.value}
          value={text ?? found.value?.text ?? ""}
          onInput={(event) => setText(event.currentTarget.value)}
        />
      )}
      {run.workflow !== null && (
        <label class="across">
          <input type="checkbox" checked={resume} onChange={() => setResume(!resume)} /> resume at once
        </label>
      )}
    </Dialog>
  );
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new api.ApiError(0, "This is not JSON", error instanceof Error ? error.message : "");
  }
}

function TagDialog({ run, version, onDone, onClose }: DialogProps) {
  const [text, setText] = useState("");
  const at = `${run.id}@${version}`;
  const known = useLoaded(`version ${at}`, (signal) => api.version(run.id, version, signal));
  const [problem, setProblem] = useState<unknown>(null);
  const change = async (act: () => Promise<unknown>) => {
    await act();
    known.again();
    onDone();
  };
  const changeHere = (act: () => Promise<unknown>) => () => {
    setProblem(null);
    change(act).catch(setProblem);
  };
  return (
    <Dialog title={`Tag ${at}`} verb="Tag" disabled={text === ""} onDo={() => change(() => api.tag(at, text))} onClose={onClose}>
      <p>A tag is a name for this version, as in {`${run.id}:good`}; tagged and pinned versions are never pruned.</p>
      <div class="across">
        {known.value?.tags.map((tag) => (
          <Chip key={tag} tag={tag} onRemove={changeHere(() => api.untag(at, tag))} />
        ))}
        {known.value && (
          <button type="button" onClick={changeHere(() => (known.value?.pinned ? api.unpin(at) : api.pin(at)))}>
            {known.value.pinned ? "Unpin" : "Pin"}
          </button>
        )}
      </div>
      {problem !== null && <ErrorNote error={problem} />}
      <label>
        tag
        <input type="text" value={text} onInput={(event) => setText(event.currentTarget.value)} />
      </label>
    </Dialog>
  );
}

function Chip({ tag, onRemove }: { tag: string; onRemove: () => void }) {
  return (
    <span class="tag">
      {tag}{" "}
      <button type="button" class="bare" aria-label={`Remove the tag ${tag}`} onClick={onRemove}>
        ✕
      </button>
    </span>
  );
}

function StopDialog({ run, verb, onDone, onClose }: DialogProps & { verb: "Pause" | "Cancel" }) {
  const act = async () => {
    await (verb === "Pause" ? api.pause(run.id) : api.cancel(run.id));
    onDone();
  };
  const lines =
    verb === "Pause"
      ? ["It stops at the next step, with a version written, until it is resumed."]
      : [
          "It stops at the next step, with a version written, and so do its children.",
          "Its effects are not undone. Its history stays; a rollback makes it run again.",
        ];
  return (
    <Dialog title={`${verb} ${run.id}`} verb={`${verb} the run`} grave={verb === "Cancel"} onDo={act} onClose={onClose}>
      <Lines lines={[...lines, "Nothing is deleted."]} />
    </Dialog>
  );
}
