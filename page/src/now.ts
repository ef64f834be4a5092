// The time, for what says how long ago something was: one clock for the page, that ticks slowly.

import { useEffect, useState } from "preact/hooks";

const TICK = 5_000;

export function useNow(): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), TICK);
    return () => clearInterval(timer);
  }, []);
  return now;
}
