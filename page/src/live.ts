// What happens in the store, as it happens: one stream for the whole browser, to which views of all its tabs listen. A
// browser opens six connections to a server and no more: with a stream for each tab, the seventh tab would stand still.
//
// Invariant: a listener is called soon after something happened, at most every so often, and never while a call of its own
// from before is still to come.

import { useEffect, useRef, useState } from "preact/hooks";

import { STREAM } from "./api";
import type { Event } from "./types";

type Listener = (events: Event[]) => void;
type Link = "opening" | "open" | "lost";
/** What tabs tell each other. No events at all means: load anew. */
type Word = { link: Link } | { events: Event[] } | "how is the link?";

const listeners = new Set<Listener>();
const watchers = new Set<(link: Link) => void>();
const tabs = new BroadcastChannel("holdfast");
let link: Link = "opening";
let leads = false;
let begun = false;

/** How long events are gathered before views load anew. */
const GATHER = 400;
/** How long to wait with coming back where the browser has given up. */
const RETRY = 2_000;
/** How often to look after what may end without a word. */
const LOOK = 3_000;

function take(word: Word): void {
  if (word === "how is the link?") {
    if (leads) tabs.postMessage({ link });
  } else if ("link" in word) {
    link = word.link;
    for (const watch of watchers) watch(link);
  } else {
    for (const each of listeners) each(word.events);
  }
}

function tell(word: Word): void {
  take(word);
  tabs.postMessage(word);
}

function begin(): void {
  if (begun) return;
  begun = true;
  tabs.onmessage = (message: MessageEvent<Word>) => take(message.data);
  tabs.postMessage("how is the link?");
  const lead = () => {
    leads = true;
    open();
    return new Promise<never>(() => undefined); // Until this tab is closed: then another one leads.
  };
  // Browsers have locks only where a page is safe from being changed on its way.
  if ("locks" in navigator) void navigator.locks.request("holdfast stream", lead);
  else void lead();
}

function open(): void {
  const source = new EventSource(STREAM);
  source.addEventListener("ready", () => {
    tell({ link: "open" });
    // What came before anybody listened is in what is loaded anew.
    tell({ events: [] });
  });
  source.addEventListener("reset", () => tell({ events: [] }));
  source.onmessage = (message: MessageEvent<string>) => tell({ events: [JSON.parse(message.data) as Event] });
  source.onerror = () => {
    tell({ link: "lost" });
    if (source.readyState === EventSource.CLOSED) setTimeout(open, RETRY);
  };
}

/** Be called when something happened; with a run's id, when it happened to that run. */
export function useEvents(heard: (events: Event[]) => void, run?: string): void {
  const latest = useRef(heard);
  latest.current = heard;
  useEffect(() => {
    let held: Event[] = [];
    let timer: ReturnType<typeof setTimeout> | null = null;
    const listener: Listener = (events) => {
      const mine = events.filter((event) => run === undefined || event.run === run);
      if (mine.length === 0 && events.length > 0) return;
      held.push(...mine);
      timer ??= setTimeout(() => {
        timer = null;
        const all = held;
        held = [];
        latest.current(all);
      }, GATHER);
    };
    listeners.add(listener);
    begin();
    return () => {
      listeners.delete(listener);
      if (timer !== null) clearTimeout(timer);
    };
  }, [run]);
}

/** A process that dies says nothing: while what is shown depends on one, look again now and then. */
export function useLooking(depends: boolean, look: () => void): void {
  const latest = useRef(look);
  latest.current = look;
  useEffect(() => {
    if (!depends) return;
    const timer = setInterval(() => {
      if (!document.hidden) latest.current();
    }, LOOK);
    return () => clearInterval(timer);
  }, [depends]);
}

export function useLink(): Link {
  const [now, setNow] = useState<Link>(link);
  useEffect(() => {
    watchers.add(setNow);
    setNow(link);
    return () => void watchers.delete(setNow);
  }, []);
  return now;
}
