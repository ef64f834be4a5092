// A dialog that says what will happen before it does. The browser's own element keeps the focus inside, closes on Escape,
// and gives the focus back.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { ErrorNote } from "./notes";

interface Props {
  title: string;
  children: ComponentChildren;
  /** What the button that does it says. */
  verb: string;
  /** Is it something that cannot be taken back? */
  grave?: boolean;
  disabled?: boolean;
  /** Does it, and gives what is to be done on the page then: left out if the dialog was left meanwhile. */
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
