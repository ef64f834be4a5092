// The snapshots of a loop as lanes, newest first. Those that a restore left behind are dimmed.

import { useMemo } from "preact/hooks";

import { indentOf, Lines, pointOf } from "./graph";
import { ancestors, layOut, type Point } from "./lanes";
import { useNow } from "./now";
import { choose } from "./route";
import type { Snapshot, Version } from "./types";
import { clock, listed, size } from "./words";

const ROW = 54;

interface Props {
  /** Oldest first. */
  snapshots: Snapshot[];
  /** Versions of the run that has the state, newest first. */
  versions: Version[];
  lastGood: number | null;
  head: number | null;
  chosen: number | null;
}

export function Snapshots({ snapshots, versions, lastGood, head, chosen }: Props) {
  const now = useNow();
  const shown = useMemo(() => [...snapshots].reverse(), [snapshots]);
  const { points, current } = useMemo(() => pointsOf(shown, versions, head), [shown, versions, head]);
  const drawing = useMemo(() => layOut(points), [points]);
  const living = useMemo(() => (current === null ? new Set(points.map((each) => each.number)) : ancestors(points, current)), [points, current]);
  const indent = indentOf(drawing);
  return (
    <div class="snapshots" role="list" aria-label="Snapshots">
      <Lines drawing={drawing} height={ROW} first={0} last={shown.length} head={lastGood ?? 0} living={living} />
      {shown.map((each) => (
        <div key={each.version} role="listitem">
          <button
            type="button"
            class={`snapshot-row ${living.has(each.version) ? "" : "left"}`}
            aria-current={each.version === chosen ? "true" : undefined}
            style={{ paddingLeft: `${indent}px` }}
            title={titleOf(each)}
            onClick={() => choose({ snapshot: each.version })}
          >
            <span class="cut">
              <b>version {each.version}</b>
              {each.loop !== null && ` · loop ${each.loop.toLocaleString("en")}`} · {clock(each.timestamp, now)}
            </span>
            <span class="marks">
              {each.damaged !== undefined && <span class="status failed">damaged</span>}
              {each.version === lastGood && <span class="status completed">last good</span>}
              {each.tags.map((tag) => (
                <span key={tag} class="tag">
                  {tag}
                </span>
              ))}
              {each.pinned && <span class="soft">pinned</span>}
              <span class="cut soft">{factsOf(each).join(" · ")}</span>
            </span>
          </button>
        </div>
      ))}
    </div>
  );
}

/** What is known of a snapshot apart from its number, time and tags. */
export function factsOf(snapshot: Snapshot): string[] {
  const { damaged, note, agents_completed: agents, replaced, actor } = snapshot;
  return [
    ...(damaged === undefined ? [] : [damaged]),
    ...(note === null ? [] : [note]),
    ...(agents.length > 0 ? [`completed: ${listed(agents)}`] : []),
    ...(replaced.length > 0 ? [`not stored: ${replaced.join(", ")}`] : []),
    ...(actor === null ? [] : [`by ${actor}`]),
  ];
}

const titleOf = (snapshot: Snapshot): string =>
  [`version ${snapshot.version} of timeline ${snapshot.timeline}, ${size(snapshot.size)}`, ...factsOf(snapshot)].join(" — ");

/** The snapshots as points, each after the nearest snapshot before it, and the one from which the head descends. */
function pointsOf(shown: Snapshot[], versions: Version[], head: number | null): { points: Point[]; current: number | null } {
  const parents = new Map(versions.map((version) => [version.version, pointOf(version).parents]));
  const known = new Set(shown.map((each) => each.version));
  const nearest = (from: number): number => {
    let at = from;
    while (!known.has(at)) {
      const next = parents.get(at)?.[0];
      if (next === undefined) return at;
      at = next;
    }
    return at;
  };
  const points = shown.map(({ version }) => ({ number: version, parents: (parents.get(version) ?? []).slice(0, 1).map(nearest) }));
  const current = head === null ? null : nearest(head);
  return { points, current: current !== null && known.has(current) ? current : null };
}
