// A paged list of the server, newest first. Events change its first page, so only that is read again; the later pages
// stay.
//
// Invariant: items are in the server's order, each once, without a gap.

import { useCallback, useEffect, useRef, useState } from "preact/hooks";

import { serial } from "./serial";

export interface Page<T> {
  items: T[];
  /** The cursor of the next page; null at the end. */
  next: string | null;
}

export interface Paged<T> {
  items: T[];
  /** Whether the first page was read. */
  ready: boolean;
  problem: unknown;
  /** Whether there is a next page. */
  hasMore: boolean;
  /** Read the next page, if there is one. */
  more: () => void;
  /** Read the first page again. */
  again: () => void;
  /** Replace the item with this name; null removes it. */
  put: (name: string, item: T | null) => void;
}

export function usePaged<T>(
  key: string,
  read: (after: string | null, signal: AbortSignal) => Promise<Page<T>>,
  nameOf: (item: T) => string,
): Paged<T> {
  const [shown, setShown] = useState<{ key: string; list: Page<T> | null; problem: unknown }>({ key, list: null, problem: null });
  const reader = useRef({ read, nameOf });
  reader.current = { read, nameOf };
  const acts = useRef({ more: () => {}, again: () => {}, put: (_name: string, _item: T | null) => {} });

  useEffect(() => {
    const stop = new AbortController();
    let list: Page<T> | null = null;
    let further = false;
    let restart = true;
    const show = (next: Page<T>) => {
      list = next;
      setShown({ key, list, problem: null });
    };
    const work = serial(async () => {
      try {
        while (!stop.signal.aborted && (restart || further)) {
          const after: string | null = restart || list === null ? null : list.next;
          const first = restart || list === null;
          if (first) restart = false;
          else further = false;
          if (!first && after === null) continue;
          const page = await reader.current.read(after, stop.signal);
          if (stop.signal.aborted) return;
          const known: Page<T> | null = list;
          show(known === null ? page : first ? replaceFirst(page, known, reader.current.nameOf) : append(known, page, reader.current.nameOf));
        }
      } catch (problem) {
        restart = further = false;
        if (!stop.signal.aborted) setShown({ key, list, problem });
      }
    });
    acts.current = {
      more: () => {
        further = true;
        work();
      },
      again: () => {
        restart = true;
        work();
      },
      put: (name, item) => {
        if (list === null || stop.signal.aborted) return;
        const items = list.items.flatMap((each) => (reader.current.nameOf(each) !== name ? [each] : item === null ? [] : [item]));
        show({ items, next: list.next });
      },
    };
    work();
    return () => stop.abort();
  }, [key]);

  const more = useCallback(() => acts.current.more(), []);
  const again = useCallback(() => acts.current.again(), []);
  const put = useCallback((name: string, item: T | null) => acts.current.put(name, item), []);
  const list = shown.key === key ? shown.list : null;
  return { items: list?.items ?? NONE, ready: list !== null, problem: shown.key === key ? shown.problem : null, hasMore: Boolean(list?.next), more, again, put };
}

const NONE: never[] = [];

/** Replace the first page of a list. If the new page does not overlap the list, the rest is dropped. */
function replaceFirst<T>(page: Page<T>, known: Page<T>, nameOf: (item: T) => string): Page<T> {
  const last = page.items[page.items.length - 1];
  if (page.next === null || last === undefined) return page;
  const name = nameOf(last);
  const end = known.items.findIndex((each) => nameOf(each) === name);
  return end < 0 ? page : { items: [...page.items, ...known.items.slice(end + 1)], next: known.items.length > end + 1 ? known.next : page.next };
}

function append<T>(known: Page<T>, page: Page<T>, nameOf: (item: T) => string): Page<T> {
  const names = new Set(known.items.map(nameOf));
  return { items: [...known.items, ...page.items.filter((each) => !names.has(nameOf(each)))], next: page.next };
}
