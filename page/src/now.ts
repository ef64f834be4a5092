// The current time: a slow clock for ages, a faster one for times that are counted down.

import { useEffect, useState } from "preact/hooks";

const TICK = 5_000;
/** For times that are counted down. */
export const SECOND = 1_000;

export function useNow(tick: number = TICK): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), tick);
    return () => clearInterval(timer);
  }, [tick]);
  return now;
}
