// A list of rows of equal height, of which only the visible ones are in the document.
//
// Invariant: the size of the document depends on the height of the window, not on the length of the list.

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

interface Props {
  /** How many rows there are. */
  rows: number;
  height: number;
  row: (place: number) => ComponentChildren;
  /** Drawn behind the rows from `first` to before `last`. */
  behind?: (first: number, last: number) => ComponentChildren;
  /** The row that must be visible. */
  chosen?: number;
  /** When this changes, the chosen row is scrolled into view again. */
  shown?: unknown;
  /** Called when the end is near, to load the next page. */
  onEnd?: () => void;
  label: string;
}

const BEYOND = 12;

export function VirtualList({ rows, height, row, behind, chosen, shown: what, onEnd, label }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const [seen, setSeen] = useState({ top: 0, room: 600 });

  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const look = () => setSeen({ top: element.scrollTop, room: element.clientHeight });
    look();
    element.addEventListener("scroll", look, { passive: true });
    const watcher = new ResizeObserver(look);
    watcher.observe(element);
    return () => {
      element.removeEventListener("scroll", look);
      watcher.disconnect();
    };
  }, []);

  useEffect(() => {
    const element = box.current;
    if (!element || chosen === undefined || chosen < 0) return;
    const top = chosen * height;
    if (top < element.scrollTop) element.scrollTop = Math.max(0, top - height);
    else if (top + height > element.scrollTop + element.clientHeight) {
      element.scrollTop = top + 2 * height - element.clientHeight;
    }
  }, [chosen, height, what]);

  const first = Math.max(0, Math.floor(seen.top / height) - BEYOND);
  const last = Math.min(rows, Math.ceil((seen.top + seen.room) / height) + BEYOND);
  useEffect(() => {
    if (onEnd && last >= rows - BEYOND) onEnd();
  }, [last, rows, onEnd]);

  const shown = [];
  for (let place = first; place < last; place++) {
    shown.push(
      <div role="listitem" aria-posinset={place + 1} aria-setsize={rows} key={place}>
        {row(place)}
      </div>,
    );
  }
  return (
    <div class="virtual" ref={box} role="list" aria-label={label} tabIndex={-1}>
      <div class="virtual-all" style={{ height: `${rows * height}px` }}>
        {behind?.(first, last)}
        <div style={{ transform: `translateY(${first * height}px)` }}>{shown}</div>
      </div>
    </div>
  );
}
