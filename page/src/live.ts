// The live stream of events: one stream for the whole browser, shared by all its tabs. A browser opens at most six
// connections to a server: with one stream per tab, the seventh tab would hang.
//
// Invariant: a listener is called soon after an event, at most once per interval, and never while a call is pending.

import { useEffect, useRef, useState } from "preact/hooks";

import { STREAM } from "./api";
import type { Event } from "./types";

type Listener = (events: Event[]) => void;
type Link = "opening" | "open" | "lost";
/** Messages between tabs. An empty list of events means: load again. */
type Message = { link: Link } | { events: Event[] } | "how is the link?";

const listeners = new Set<Listener>();
const watchers = new Set<(link: Link) => void>();
const tabs = new BroadcastChannel("holdfast");
let link: Link = "opening";
let leads = false;
let started = false;

/** Milliseconds in which events are collected before views load again. */
const GATHER = 400;
/** Milliseconds until a reconnect after the browser stopped trying. */
const RETRY = 2_000;
/** Milliseconds between checks for changes without events. */
const LOOK = 3_000;

function receive(message: Message): void {
  if (message === "how is the link?") {
    if (leads) tabs.postMessage({ link });
  } else if ("link" in message) {
    link = message.link;
    for (const watch of watchers) watch(link);
  } else {
    for (const each of listeners) each(message.events);
  }
}

function broadcast(message: Message): void {
  receive(message);
  tabs.postMessage(message);
}

function begin(): void {
  if (started) return;
  started = true;
  tabs.onmessage = (message: MessageEvent<Message>) => receive(message.data);
  tabs.postMessage("how is the link?");
  const lead = () => {
    leads = true;
    open();
    return new Promise<never>(() => undefined); // Until this tab is closed: then another one leads.
  };
  // Locks exist only in secure contexts.
  if ("locks" in navigator) void navigator.locks.request("holdfast stream", lead);
  else void lead();
}

function open(): void {
  const source = new EventSource(STREAM);
  source.addEventListener("ready", () => {
    broadcast({ link: "open" });
    // Views load again, which includes earlier events.
    broadcast({ events: [] });
  });
  source.addEventListener("reset", () => broadcast({ events: [] }));
  source.onmessage = (message: MessageEvent<string>) => broadcast({ events: [JSON.parse(message.data) as Event] });
  source.onerror = () => {
    broadcast({ link: "lost" });
    if (source.readyState === EventSource.CLOSED) setTimeout(open, RETRY);
  };
}

/** Call a function after events; with a run's id, only after events of that run. */
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

/** Poll while the view depends on a process: a process that dies sends no event. */
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
