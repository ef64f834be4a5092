// Differences, computed by the server; the command line shows the same ones.

import { written } from "./node";
import type { Change } from "./types";
import { count } from "./words";

const SIGNS = { added: "+", removed: "−", changed: "~", moved: "→" };

/** `total` is the number of all differences; only the first may be included. */
export function Changes({ changes, total }: { changes: Change[]; total: number }) {
  if (changes.length === 0) return <p class="pad soft">No difference.</p>;
  return (
    <div class="changes scroll" role="list" aria-label="Differences">
      {changes.map((change, place) => (
        <OneChange key={`${place} ${change.path}`} change={change} />
      ))}
      {total > changes.length && (
        <p class="pad soft">{count(total - changes.length, "more change")}: choose a part of the state to see them.</p>
      )}
    </div>
  );
}

function OneChange({ change }: { change: Change }) {
  const where = change.path || "(all)";
  const changes = change.kind !== "moved";
  return (
    <div class={`change ${change.kind}`} role="listitem" tabIndex={-1}>
      <span class="sign" title={change.kind}>
        {SIGNS[change.kind]}
      </span>
      <div>
        <code>{change.of === "state" ? where : `(${where})`}</code>
        {change.source !== null && <span class="soft"> was {change.source}</span>}
        {changes && change.old && <del>{written(change.old)}</del>}
        {changes && change.new && <ins>{written(change.new)}</ins>}
      </div>
    </div>
  );
}
