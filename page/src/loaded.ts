// Data of a view: loaded when its key changes, and still shown while it is loaded again.
//
// Invariant: a response for an older key is dropped; a pending request is never aborted by a newer one for the same key,
// so that a busy store cannot starve a slow response.

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
