// The keyboard: one listener for each view, and the keys that mean something there.

import { useLayoutEffect, useRef } from "preact/hooks";

export type Keys = Record<string, () => void>;

/** Whether the focus is in a text field, where keys are text. */
function isTyping(target: EventTarget | null): boolean {
  return (
    target instanceof HTMLElement &&
    (target.isContentEditable || target.matches("textarea, select, input:not([type=range], [type=checkbox])"))
  );
}

/** Enter on what has the focus is a click on it. */
function isItsOwn(event: KeyboardEvent): boolean {
  return event.key === "Enter" && event.target instanceof HTMLElement && event.target.matches("a, button, summary");
}

export function useKeys(keys: Keys): void {
  // Always the handlers of the last render, however fast keys follow each other.
  const latest = useRef(keys);
  latest.current = keys;
  // Before the browser paints: a key that is pressed as soon as the view is seen counts.
  useLayoutEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || isItsOwn(event)) return;
      if (document.querySelector("dialog[open]")) return;
      const act = latest.current[event.key];
      if (!act) return;
      event.preventDefault();
      act();
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

/** `j` and `k` move the focus through what a selector finds. */
export function useWalk(selector: string, more: Keys = {}): void {
  const by = (step: number) => () => {
    const found = [...document.querySelectorAll<HTMLElement>(selector)];
    const here = found.findIndex((each) => each.contains(document.activeElement));
    const next = found[Math.min(found.length - 1, Math.max(0, here + step))];
    next?.focus();
    next?.scrollIntoView({ block: "nearest" });
  };
  useKeys({ j: by(1), k: by(-1), ...more });
}
