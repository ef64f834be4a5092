// The current view and all of its choices are in the fragment of the URL: it can be bookmarked and shared.
//
//   #/run/RUN?version=12&path=plan
//
// Invariant: a view reads its choices from here only; `go` is the only writer.

import { useEffect, useState } from "preact/hooks";

export interface Route {
  /** The name of the view: runs, run, inbox, loops, compare, storage. */
  view: string;
  /** What follows the name: the id of a run, or of a project. */
  name: string;
  choices: Record<string, string>;
}

export function parse(hash: string): Route {
  const [place = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const [view = "", ...rest] = place.split("/");
  return { view: view || "runs", name: decoded(rest.join("/")), choices: Object.fromEntries(new URLSearchParams(query)) };
}

/** A lone surrogate, which a URL cannot have. Such a name may be shown, but not addressed. */
const LONE = /\p{Surrogate}/gu;

/** The URL of a view, without empty choices. */
export function href(view: string, name = "", choices: Record<string, string | number | null | undefined> = {}): string {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(choices)) {
    if (value !== null && value !== undefined && value !== "") query.set(key, String(value));
  }
  const tail = query.size ? `?${query}` : "";
  return `#/${view}${name ? `/${encodeURIComponent(name.replace(LONE, "\ufffd"))}` : ""}${tail}`;
}

/** Go to a view. `replace` adds no entry to the browser history: for changes while typing or sliding. */
export function go(where: string, replace = false): void {
  if (where === location.hash) return;
  if (replace) {
    history.replaceState(null, "", where);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = where;
  }
}

/** Change some choices of the view that is shown. */
export function choose(changes: Record<string, string | number | null | undefined>, replace = true): void {
  const now = parse(location.hash);
  go(href(now.view, now.name, { ...now.choices, ...changes }), replace);
}

export function useRoute(): Route {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const changed = () => setHash(location.hash);
    addEventListener("hashchange", changed);
    // The effect runs some time after the first render: read again what changed in between, before there was a listener.
    changed();
    return () => removeEventListener("hashchange", changed);
  }, []);
  return parse(hash);
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
