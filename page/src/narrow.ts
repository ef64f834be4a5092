// Whether there is space for one column only.

import { useEffect, useMemo, useState } from "preact/hooks";

export function useNarrow(): boolean {
  const query = useMemo(() => matchMedia("(max-width: 820px)"), []);
  const [narrow, setNarrow] = useState(query.matches);
  useEffect(() => {
    const fit = () => setNarrow(query.matches);
    query.addEventListener("change", fit);
    fit();
    return () => query.removeEventListener("change", fit);
  }, []);
  return narrow;
}
