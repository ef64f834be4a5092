// What a restore of a loop's state changes, and which keys of the current state it keeps.

import * as api from "./api";
import { Changes } from "./diff";
import { useLoaded } from "./loaded";
import { ErrorNote, Loading } from "./notes";
import type { Change, Entry, Node } from "./types";
import { count } from "./words";

/** Keys of a state that are read at the most. */
const KEYS = 1000;
/** Keys that a sentence names. */
const NAMED = 20;

/** The top level of a state. */
export const keysOf = (at: string, signal?: AbortSignal): Promise<Node> => api.state(at, { path: "", depth: 1, limit: KEYS }, signal);

/** The changes of a state, without those of the version's metadata, and their total number. */
export async function stateChanges(a: string, b: string, signal?: AbortSignal): Promise<{ changes: Change[]; total: number }> {
  const found = await api.diff(a, b, "", signal);
  const changes = found.changes.filter((change) => change.of === "state");
  return { changes, total: found.count - (found.changes.length - changes.length) };
}

interface Props {
  /** The run that has the state. */
  run: string;
  version: number;
  /** Whether top-level keys stay that the version does not have. */
  keeps: boolean;
}

export function RestorePreview({ run, version, keeps }: Props) {
  const found = useLoaded(`restore ${run}@${version}`, async (signal) => {
    const [difference, now, then] = await Promise.all([
      stateChanges(`${run}@head`, `${run}@${version}`, signal),
      keysOf(`${run}@head`, signal),
      keysOf(`${run}@${version}`, signal),
    ]);
    return { difference, extra: extraKeys(now, then) };
  });
  if (found.error !== null) return <ErrorNote error={found.error} retry={found.again} />;
  if (!found.value) return <Loading what="computing the effect…" />;
  const { difference, extra } = found.value;
  const kept = new Set(keeps ? extra.map((entry) => entry.path) : []);
  const changes = difference.changes.filter((change) => !(change.kind === "removed" && kept.has(change.path)));
  const total = difference.total - (difference.changes.length - changes.length);
  return (
    <>
      <ul class="consequences">
        <li>The state becomes that of version {version}, on a new timeline. Nothing is deleted.</li>
        {extra.length > 0 && (
          <li>
            {keeps ? "Kept" : "Removed"}, because version {version} does not have {extra.length === 1 ? "it" : "them"}: {named(extra)}
          </li>
        )}
        <li>An agent that has read the state before must read it again: its changes are refused.</li>
      </ul>
      <div class="preview">
        <Changes changes={changes} total={total} />
      </div>
    </>
  );
}

function extraKeys(now: Node, then: Node): Entry[] {
  const known = new Set((then.entries ?? []).map((entry) => JSON.stringify(entry.key)));
  return (now.entries ?? []).filter((entry) => !known.has(JSON.stringify(entry.key)));
}

function named(entries: Entry[]): string {
  const labels = entries.slice(0, NAMED).map((entry) => entry.label);
  return entries.length > NAMED ? `${labels.join(", ")} and ${count(entries.length - NAMED, "more key")}` : labels.join(", ");
}
