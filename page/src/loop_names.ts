// The names of the runs of a loop: `loop/NAME` has its state, `loop/NAME/control` its questions. Pure.

const PARTS = /^loop\/([^/]+)(?:\/(?:control|beats))?$/;

/** The run with the state of the loop to which a run belongs; null for another run. */
export function stateRunOf(run: string): string | null {
  const name = PARTS.exec(run)?.[1];
  return name === undefined ? null : `loop/${name}`;
}

/** The project to which a run belongs; null for another run, and for a long id, of which the name has only a hash. */
export function projectOf(run: string): string | null {
  const name = PARTS.exec(run)?.[1];
  if (name === undefined || name.includes("%-")) return null;
  try {
    return decodeURIComponent(name);
  } catch {
    return null;
  }
}
