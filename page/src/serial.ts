// Work of which only one piece goes on at a time. Pure but for the work itself.
//
// Invariant: a wish that comes while the work goes on is carried out after it, once, however many come.

export function serial(work: () => Promise<void>): () => void {
  let busy = false;
  let wanted = false;
  const run = async () => {
    if (busy) return;
    busy = true;
    try {
      while (wanted) {
        wanted = false;
        await work();
      }
    } finally {
      busy = false;
    }
  };
  return () => {
    wanted = true;
    void run();
  };
}
