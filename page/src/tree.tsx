// A state as a tree that is loaded when it is opened.
//
// Invariant: a container loads its entries in pages, a long text its first part; all that is drawn belongs to one version,
// also while another is loading.

import { useEffect, useRef, useState } from "preact/hooks";

import * as api from "./api";
import { useLoaded } from "./loaded";
import { glimpse, isContainer, scalarOf, textOf } from "./node";
import { ErrorNote, Loading } from "./notes";
import { href } from "./route";
import type { Blame, Entry, Node } from "./types";
import { count } from "./words";

const PAGE = 100;
/** Levels that are indented; deeper ones are not. */
const DEEPEST = 20;

/** What all rows of a tree share. */
interface Within {
  at: string;
  blame: Map<string, Blame>;
  ask: (path: string) => void;
  /** What the user opened or closed, by path; kept for the next version. */
  opened: Map<string, boolean>;
}

export function Tree({ at, path }: { at: string; path: string }) {
  const found = useLoaded(`state ${at} ${path}`, async (signal) => ({
    at,
    path,
    node: await api.state(at, { path, depth: 3, limit: PAGE }, signal),
  }));
  const [blame, setBlame] = useState<Map<string, Blame>>(new Map());
  const opened = useRef(new Map<string, boolean>());
  const last = useRef(found.value);
  last.current = found.value ?? last.current;
  if (found.error !== null) return <ErrorNote error={found.error} retry={found.again} />;
  const shown = last.current;
  if (!shown) return <Loading what="reading the state…" />;
  const ask = (where: string) => {
    const key = `${shown.at} ${where}`;
    if (blame.has(key)) return;
    api.blame(shown.at, where).then(
      (who) => setBlame((before) => new Map(before).set(key, who)),
      () => undefined, // A part without its own history has no blame.
    );
  };
  const within: Within = { at: shown.at, blame, ask, opened: opened.current };
  return (
    <div
      class="tree"
      role="tree"
      aria-label="State"
      aria-busy={found.value ? "false" : "true"}
      tabIndex={0}
      onKeyDown={moved}
      key={`${shown.at} ${shown.path}`}
    >
      {shown.node.entries ? (
        <Entries within={within} path={shown.path} node={shown.node} level={0} />
      ) : (
        <Leaf at={shown.at} path={shown.path} node={shown.node} />
      )}
      {shown.node.entries?.length === 0 && <p class="pad soft">The state is empty.</p>}
    </div>
  );
}

/** Arrow keys, as in other trees. */
function moved(event: KeyboardEvent): void {
  const tree = event.currentTarget as HTMLElement;
  const items = [...tree.querySelectorAll<HTMLElement>("[role=treeitem]")];
  const here = items.findIndex((each) => each === document.activeElement);
  const item = items[here];
  const level = (each: HTMLElement | undefined) => Number(each?.getAttribute("aria-level") ?? 0);
  const open = item?.getAttribute("aria-expanded");
  let next: HTMLElement | undefined;
  if (event.key === "ArrowDown") next = items[here + 1];
  else if (event.key === "ArrowUp") next = items[Math.max(0, here - 1)];
  else if (event.key === "Home") next = items[0];
  else if (event.key === "End") next = items[items.length - 1];
  else if (event.key === "ArrowRight" && open === "true") next = items[here + 1];
  else if (event.key === "ArrowLeft" && open !== "true") next = items.slice(0, Math.max(0, here)).reverse().find((each) => level(each) < level(item));
  else if (event.key === "ArrowRight" || event.key === "ArrowLeft") item?.querySelector<HTMLElement>("button.twist")?.click();
  else return;
  event.preventDefault();
  next?.focus();
}

function Entries({ within, path, node, level }: { within: Within; path: string; node: Node; level: number }) {
  const [further, setFurther] = useState<Entry[]>([]);
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<unknown>(null);
  const shown = [...(node.entries ?? []), ...further];
  const more = (node.count ?? 0) - shown.length;
  const load = async () => {
    setBusy(true);
    setProblem(null);
    try {
      const next = await api.state(within.at, { path, depth: 2, limit: PAGE, offset: shown.length });
      setFurther([...further, ...(next.entries ?? [])]);
    } catch (error) {
      setProblem(error);
    } finally {
      setBusy(false);
    }
  };
  return (
    <>
      {shown.map((entry) => (
        <Row key={entry.path ?? entry.label} within={within} entry={entry} level={level} />
      ))}
      {problem !== null && <ErrorNote error={problem} />}
      {more > 0 && (
        <div class="tree-row" style={{ paddingLeft: indent(level) }}>
          <button type="button" class="bare more" disabled={busy} onClick={load}>
            … {more.toLocaleString("en")} more
          </button>
        </div>
      )}
    </>
  );
}

const indent = (level: number) => `${14 + Math.min(level, DEEPEST) * 16}px`;

function Row({ within, entry, level }: { within: Within; entry: Entry; level: number }) {
  const { node, path, label } = entry;
  const { at } = within;
  const opens = isContainer(node) && (node.count ?? 0) > 0 && path !== null;
  const [open, setOpen] = useState(opens && (within.opened.get(path) ?? (level === 0 && (node.count ?? 0) <= 12)));
  const [loaded, setLoaded] = useState<Node | null>(node.entries ? node : null);
  const [problem, setProblem] = useState<unknown>(null);
  useEffect(() => {
    if (!open || loaded !== null || path === null) return;
    const stop = new AbortController();
    api.state(at, { path, depth: 2, limit: PAGE }, stop.signal).then(setLoaded, (error: unknown) => {
      if (!stop.signal.aborted) setProblem(error);
    });
    return () => stop.abort();
  }, [open, loaded, at, path]);
  const turn = () => {
    if (path !== null) within.opened.set(path, !open);
    setProblem(null);
    setOpen(!open);
  };
  const ask = () => path !== null && within.ask(path);
  const who = path === null ? undefined : within.blame.get(`${at} ${path}`);
  return (
    <>
      <div
        class="tree-row"
        role="treeitem"
        tabIndex={-1}
        aria-level={level + 1}
        aria-expanded={opens ? open : undefined}
        style={{ paddingLeft: indent(level) }}
        onMouseEnter={ask}
        onFocusIn={ask}
      >
        {opens ? (
          <button type="button" class="twist" tabIndex={-1} aria-label={`${open ? "Close" : "Open"} ${label}`} onClick={turn}>
            {open ? "▾" : "▸"}
          </button>
        ) : (
          <span class="twist" />
        )}
        <span class="key">{typeof entry.key === "number" ? `[${label}]` : label}</span>
        {opens ? (
          <span class="value more cut">
            ({count(node.count ?? 0, "item")}){open || !node.entries ? "" : ` ${glimpse(node)}`}
          </span>
        ) : (
          <Leaf at={at} path={path} node={node} />
        )}
        {who && (
          <a class="blame" href={href("run", who.ref.replace(/@\d+$/, ""), { version: who.version })}>
            version {who.version}
            {who.step ? `, ${who.step}` : ""}
          </a>
        )}
      </div>
      {open && problem !== null && <ErrorNote error={problem} />}
      {open && loaded !== null && path !== null && <Entries within={within} path={path} node={loaded} level={level + 1} />}
    </>
  );
}

const CLASSES: Record<string, string> = { str: "string", int: "number-value", float: "number-value", bool: "none", none: "none" };

function Leaf({ at, path, node }: { at: string; path: string | null; node: Node }) {
  if (isContainer(node)) return <span class="value more">{node.count ? count(node.count, "item") : node.kind === "dict" ? "{}" : "[]"}</span>;
  if (node.kind === "str") return <LongText at={at} path={path} node={node} />;
  const shown = scalarOf(node);
  if (node.kind === "artifact" || node.kind === "bytes") {
    return (
      <a class="value" href={api.rawUrl(at, path ?? "")} download>
        {shown}
      </a>
    );
  }
  return (
    <span class={`value ${CLASSES[node.kind] ?? ""}`}>
      {shown}
      {!(node.kind in CLASSES) && <span class="soft"> {node.kind}</span>}
    </span>
  );
}

function LongText({ at, path, node }: { at: string; path: string | null; node: Node }) {
  // The server counts the rest: a character may be two in the browser.
  const [{ text, left }, setRead] = useState({ text: textOf(node), left: node.more ?? 0 });
  const [problem, setProblem] = useState<unknown>(null);
  const load = () => {
    setProblem(null);
    api.state(at, { path: path ?? "", offset: (node.count ?? 0) - left, text: 100_000 }).then(
      (next) => setRead({ text: text + textOf(next), left: next.more ?? 0 }),
      setProblem,
    );
  };
  return (
    <span class="value string">
      {JSON.stringify(text)}
      {left > 0 && path !== null && (
        <button type="button" class="bare more" onClick={load}>
          … {count(left, "more character")}
        </button>
      )}
      {problem !== null && <ErrorNote error={problem} />}
    </span>
  );
}
