// Layout of versions in the graph of timelines, newest first. Pure.
//
// Invariant: a version has one row and one lane, and each line leads from a version to its parent, or down out of the
// list where the parent is not in it.

export interface Point {
  number: number;
  /** Those it follows: its parent first, then what was merged into it. */
  parents: number[];
}

export interface Spot {
  number: number;
  row: number;
  lane: number;
}

export interface Line {
  from: Spot;
  /** Null where the parent is not in the list. */
  to: Spot | null;
  /** The lane in which the line runs between the two. */
  lane: number;
}

export interface Drawing {
  spots: Map<number, Spot>;
  lines: Line[];
  width: number;
}

export function layOut(points: Point[]): Drawing {
  const spots = new Map<number, Spot>();
  const open: { from: Spot; parent: number; lane: number }[] = [];
  const lines: Line[] = [];
  // The version that each lane leads to; null for a lane that is free.
  const lanes: (number | null)[] = [];
  const free = (): number => {
    const found = lanes.indexOf(null);
    return found >= 0 ? found : lanes.push(null) - 1;
  };
  let width = 1;
  points.forEach((point, row) => {
    const waiting = lanes.indexOf(point.number);
    const lane = waiting >= 0 ? waiting : free();
    const spot = { number: point.number, row, lane };
    spots.set(point.number, spot);
    lanes.forEach((wanted, each) => {
      if (wanted === point.number) lanes[each] = null;
    });
    point.parents.forEach((parent, place) => {
      const there = lanes.indexOf(parent);
      const next = place === 0 ? lane : there >= 0 ? there : free();
      lanes[next] = parent;
      open.push({ from: spot, parent, lane: next });
    });
    width = Math.max(width, lanes.length);
  });
  for (const each of open) {
    lines.push({ from: each.from, to: spots.get(each.parent) ?? null, lane: each.lane });
  }
  return { spots, lines, width };
}

/** The ancestors of a version; all others are dimmed. */
export function ancestors(points: Point[], head: number): Set<number> {
  const parents = new Map(points.map((point) => [point.number, point.parents]));
  const found = new Set<number>();
  const next = [head];
  while (next.length) {
    const number = next.pop() as number;
    if (found.has(number)) continue;
    found.add(number);
    next.push(...(parents.get(number) ?? []));
  }
  return found;
}
