// Work that never overlaps itself.
//
// Invariant: any number of calls during the work run it once more afterwards.

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
