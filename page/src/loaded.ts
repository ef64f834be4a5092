// What a view shows of the server: loaded when its key changes, kept while it is loaded anew.
//
// Invariant: an answer to an older question is dropped; one that is under way is never given up for a newer asking of the
// same question, so that a busy store cannot keep a slow answer from coming.

import { useCallback, useEffect, useRef, useState } from "preact/hooks";

import { serial } from "./serial";

export interface Loaded<T> {
  value: T | undefined;
  error: unknown;
  again: () => void;
}

export function useLoaded<T>(key: string | null, load: (signal: AbortSignal) => Promise<T>): Loaded<T> {
  const [state, setState] = useState<{ key: string | null; value: T | undefined; error: unknown }>({
    key: null,
    value: undefined,
    error: null,
  });
  const loader = useRef(load);
  loader.current = load;
  const begin = useRef<() => void>(() => undefined);
  useEffect(() => {
    if (key === null) return;
    const stop = new AbortController();
    begin.current = serial(async () => {
      if (stop.signal.aborted) return;
      try {
        const value = await loader.current(stop.signal);
        if (!stop.signal.aborted) setState({ key, value, error: null });
      } catch (error) {
        if (!stop.signal.aborted) setState((before) => ({ key, value: before.key === key ? before.value : undefined, error }));
      }
    });
    begin.current();
    return () => stop.abort();
  }, [key]);
  const again = useCallback(() => begin.current(), []);
  return state.key === key ? { value: state.value, error: state.error, again } : { value: undefined, error: null, again };
}
