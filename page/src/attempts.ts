// Failed attempts at steps: they have entries in the journal but no version, and are shown next to the versions.

import { useEffect, useRef, useState } from "preact/hooks";

import * as api from "./api";
import { serial } from "./serial";
import type { Timeline, Try } from "./types";

/** The failed attempts of a run, oldest first. The journal is read once; afterwards only new entries. */
export function useTries(id: string): { tries: Try[]; again: () => void } {
  const [tries, setTries] = useState<Try[]>([]);
  const begin = useRef<() => void>(() => undefined);
  useEffect(() => {
    const stop = new AbortController();
    let cursor = 0;
    setTries([]);
    begin.current = serial(async () => {
      try {
        for (let more = true; more && !stop.signal.aborted; ) {
          const page = await api.tries(id, cursor, stop.signal);
          cursor = page.cursor;
          more = page.more;
          if (page.tries.length > 0 && !stop.signal.aborted) setTries((known) => [...known, ...page.tries]);
        }
      } catch {
        // The readers of the run report a lost server; the next event continues from here.
      }
    });
    begin.current();
    return () => stop.abort();
  }, [id]);
  return { tries, again: () => begin.current() };
}

/** The failed attempts by the version that they led to; null for a step without a version, in the last timeline. */
export function byVersion(tries: Try[], versions: api.Listed[], timelines: Timeline[]): Map<number | null, Try[]> {
  const found = new Map<number | null, Try[]>();
  if (tries.length === 0) return found;
  const last = timelines[timelines.length - 1]?.number ?? 1;
  const made = new Map<string, api.Listed[]>();
  for (const each of versions) {
    const key = `${each.timeline} ${each.address ?? each.step}`;
    made.set(key, [each, ...(made.get(key) ?? [])]);
  }
  for (const each of tries) {
    const line = timelineAt(each.at, timelines);
    const next = made.get(`${line} ${each.address}`)?.find((version) => moment(version.at) >= moment(each.at));
    if (!next && line !== last) continue;
    const key = next?.version ?? null;
    found.set(key, [...(found.get(key) ?? []), each]);
  }
  return found;
}

/** The timeline that a run was on at a time. */
function timelineAt(at: string, timelines: Timeline[]): number {
  let found = 1;
  for (const each of timelines) if (moment(each.at) <= moment(at)) found = each.number;
  return found;
}

/** A time as a comparable text: Date has no microseconds. */
const moment = (at: string) => at.replace(/Z$/, "");
