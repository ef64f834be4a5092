// A dialog that shows the effect of an action. The browser's own element traps the focus, closes on Escape, and restores
// the focus.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { ErrorNote } from "./notes";

interface Props {
  title: string;
  children: ComponentChildren;
  /** The label of the button. */
  verb: string;
  /** Whether it is irreversible. */
  grave?: boolean;
  disabled?: boolean;
  /** Does it, and returns a follow-up for the page, which is skipped if the dialog was closed. */
  onDo: () => Promise<(() => void) | void>;
  onClose: () => void;
}

export function Dialog({ title, children, verb, grave, disabled, onDo, onClose }: Props) {
  const element = useRef<HTMLDialogElement>(null);
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<unknown>(null);
  useEffect(() => {
    element.current?.showModal();
  }, []);

  const act = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    try {
      const next = await onDo();
      if (!element.current?.open) return;
      element.current.close();
      next?.();
    } catch (error) {
      setProblem(error);
      setBusy(false);
    }
  };

  return (
    <dialog ref={element} onClose={onClose} aria-label={title}>
      <form onSubmit={act}>
        <h2>{title}</h2>
        <div class="dialog-body">{children}</div>
        {problem !== null && <ErrorNote error={problem} />}
        <footer>
          <button type="button" onClick={() => element.current?.close()}>
            Leave it
          </button>
          <button type="submit" class={grave ? "grave" : "main"} disabled={busy || disabled}>
            {busy ? "…" : verb}
          </button>
        </footer>
      </form>
    </dialog>
  );
}
