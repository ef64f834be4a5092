// Actions on a loop. Each dialog shows the effect before the action.

import { useState } from "preact/hooks";

import * as api from "./api";
import { Dialog } from "./dialog";
import { RestorePreview } from "./restore";
import { choose } from "./route";
import type { LoopConfig, LoopWhole, Restored } from "./types";

interface RestoreProps {
  loop: LoopWhole;
  version: number;
  onDone: (restored: Restored) => void;
  onClose: () => void;
}

export function RestoreDialog({ loop: { project, config }, version, onDone, onClose }: RestoreProps) {
  const [to, setTo] = useState(String(version));
  const [keeps, setKeeps] = useState(config.keep_unknown !== false);
  const [reason, setReason] = useState("");
  const target = Number(to);
  const act = async () => {
    onDone(await api.restoreLoop(project.project_id, { version: target, reason: reason || null, keep_unknown: keeps }));
    return () => choose({ do: null, snapshot: null });
  };
  return (
    <Dialog title={`Restore ${project.project_id}`} verb="Restore" disabled={!(target > 0)} onDo={act} onClose={onClose}>
      <label>
        to version
        <input type="number" min={1} value={to} onInput={(event) => setTo(event.currentTarget.value)} />
      </label>
      <label class="tick">
        <input type="checkbox" checked={keeps} onChange={() => setKeeps(!keeps)} /> keep the keys that this version does not have
      </label>
      {target > 0 && <RestorePreview run={project.run} version={target} keeps={keeps} />}
      {project.question_id !== null && <p class="soft">The open question of the loop is closed.</p>}
      <label>
        reason (recorded in the audit)
        <input type="text" value={reason} onInput={(event) => setReason(event.currentTarget.value)} />
      </label>
    </Dialog>
  );
}

interface Props {
  id: string;
  onDone: () => void;
  onClose: () => void;
}

export function SaveDialog({ id, onDone, onClose }: Props) {
  const [tag, setTag] = useState("");
  const [note, setNote] = useState("");
  const act = async () => {
    await api.saveSnapshot(id, { tags: tag.trim() ? [tag.trim()] : [], note: note || null });
    onDone();
  };
  return (
    <Dialog title={`Save a snapshot of ${id}`} verb="Save" onDo={act} onClose={onClose}>
      <p>The current state becomes the last good snapshot.</p>
      <label>
        tag (a tagged snapshot is never pruned)
        <input type="text" value={tag} onInput={(event) => setTag(event.currentTarget.value)} />
      </label>
      <label>
        note
        <input type="text" value={note} onInput={(event) => setNote(event.currentTarget.value)} />
      </label>
    </Dialog>
  );
}

export function ResetDialog({ id, agent, onDone, onClose }: Props & { agent: string }) {
  const [reason, setReason] = useState("");
  const act = async () => {
    await api.resetAgent(id, agent, reason || null);
    onDone();
  };
  return (
    <Dialog title={`Reset agent ${agent}`} verb="Reset" grave onDo={act} onClose={onClose}>
      <ul class="consequences">
        <li>The agent counts as ended: its heartbeats and its result are refused, until your program starts it again.</li>
        <li>Its process is not stopped, and the state does not change.</li>
      </ul>
      <label>
        reason (recorded in the audit)
        <input type="text" value={reason} onInput={(event) => setReason(event.currentTarget.value)} />
      </label>
    </Dialog>
  );
}

const text = (value: unknown): string => (value === null || value === undefined ? "" : String(value));
const numberOf = (value: string): number | null => (value === "" ? null : Number(value));

export function ConfigureDialog({ id, config, onDone, onClose }: Props & { config: LoopConfig }) {
  // Rules other than a number are kept: the dialog has no fields for them.
  const isNumber = config.retention === null || Object.keys(config.retention).every((rule) => rule === "last");
  const now = {
    restores: config.loop_autoresume,
    most: String(config.max_restores),
    timeout: config.timeout === "never" ? "" : text(config.timeout),
    every: text(config.every),
    last: isNumber ? text(config.retention?.last) : "",
    keeps: text(config.keep_unknown),
  };
  const [form, setForm] = useState(now);
  const put = (changes: Partial<typeof now>) => setForm({ ...form, ...changes });
  const settings: Record<string, unknown> = {
    ...(form.restores === now.restores ? {} : { loop_autoresume: form.restores }),
    ...(form.most === now.most ? {} : { max_restores: numberOf(form.most) }),
    ...(form.timeout === now.timeout ? {} : { timeout: numberOf(form.timeout) }),
    ...(form.every === now.every ? {} : { every: numberOf(form.every) }),
    ...(form.last === now.last ? {} : { retention: numberOf(form.last) }),
    ...(form.keeps === now.keeps ? {} : { keep_unknown: form.keeps === "" ? null : form.keeps === "true" }),
  };
  const act = async () => {
    await api.configureLoop(id, settings);
    onDone();
  };
  return (
    <Dialog title={`Configure ${id}`} verb="Configure" disabled={Object.keys(settings).length === 0} onDo={act} onClose={onClose}>
      <label class="tick">
        <input type="checkbox" checked={form.restores} onChange={() => put({ restores: !form.restores })} /> restore the last good snapshot
        when an agent stalls, instead of asking
      </label>
      <div class="rules">
        <label>
          restores in an hour, then ask
          <input type="number" min={0} value={form.most} onInput={(event) => put({ most: event.currentTarget.value })} />
        </label>
        <label>
          timeout of agents, in seconds
          <input type="number" min={0} step="any" placeholder={config.timeout === "never" ? "never" : ""} value={form.timeout} onInput={(event) => put({ timeout: event.currentTarget.value })} />
        </label>
        <label>
          seconds between snapshots
          <input type="number" min={0} step="any" value={form.every} onInput={(event) => put({ every: event.currentTarget.value })} />
        </label>
        {isNumber && (
          <label>
            snapshots to keep
            <input type="number" min={1} value={form.last} onInput={(event) => put({ last: event.currentTarget.value })} />
          </label>
        )}
      </div>
      <label>
        keys of the state that a restored snapshot does not have
        <select value={form.keeps} onChange={(event) => put({ keeps: event.currentTarget.value })}>
          <option value="">kept by a restore by hand, else removed</option>
          <option value="true">kept</option>
          <option value="false">removed</option>
        </select>
      </label>
      <p class="soft">An empty field stands for the default.</p>
    </Dialog>
  );
}
