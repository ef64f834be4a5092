// The current time, for ages: one slow clock for the page.

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
