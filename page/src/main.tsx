// The frame of the page: the bar, the current view, the list of keys.

import "./style/index.css";

import { Component, type ComponentChildren, render } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import * as api from "./api";
import { Compare } from "./compare";
import icon from "./icon.svg";
import { Inbox } from "./inbox";
import { useKeys } from "./keys";
import { useEvents, useLink } from "./live";
import { Loops } from "./loops";
import { Empty, ErrorNote } from "./notes";
import { href, type Route, useRoute } from "./route";
import { RunView } from "./run";
import { Runs } from "./runs";
import { serial } from "./serial";
import { type Session, SessionContext } from "./session";
import { Storage } from "./storage";
import { upTo } from "./words";

const VIEWS = [
  ["runs", "Runs"],
  ["inbox", "Inbox"],
  ["loops", "Loops"],
  ["compare", "Compare"],
  ["storage", "Storage"],
] as const;

const KEYS: [string, string][] = [
  ["j  k", "next, previous"],
  ["Enter", "open the run"],
  ["← → ↑ ↓", "move in the tree of a state"],
  ["/", "search"],
  ["d", "difference"],
  ["f", "fork"],
  ["?", "this list"],
];

function Page() {
  const route = useRoute();
  const link = useLink();
  const [waiting, setWaiting] = useState(0);
  const [help, setHelp] = useState(false);
  const [session, setSession] = useState<Session | null>(null);
  useEffect(() => void api.session().then(setSession, () => undefined), [link]);
  const count = useMemo(() => serial(() => api.inbox({}).then((found) => setWaiting(found.length), () => undefined)), []);
  useEffect(count, []);
  useEvents((events) => {
    // Steps open no questions: do not reload the inbox after each of them.
    if (events.length === 0 || events.some((event) => !/^(step|version|progress)/.test(event.kind))) count();
  });
  useKeys({ "?": () => setHelp(true) });
  useEffect(() => {
    document.title = `${waiting ? `(${upTo(waiting, api.QUESTIONS)}) ` : ""}${route.name || VIEWS.find(([view]) => view === route.view)?.[1] || ""} · Holdfast`;
  }, [route.name, route.view, waiting]);
  const current = route.view === "run" ? "runs" : route.view;
  return (
    <>
      <header class="bar">
        <a class="mark" href={href("runs")} aria-label="Holdfast">
          <img src={icon} width="20" height="20" alt="" />
          <span class="only-wide">Holdfast</span>
        </a>
        <nav aria-label="Views">
          {VIEWS.map(([view, label]) => (
            <a key={view} href={href(view)} aria-current={current === view ? "page" : undefined}>
              {label}
              {view === "inbox" && waiting > 0 && <span class="badge">{upTo(waiting, api.QUESTIONS)}</span>}
            </a>
          ))}
        </nav>
        <div class="end">
          {session?.read_only && <span class="soft">read only</span>}
          <span class={`link-state ${link === "lost" ? "lost" : ""}`} role="status">
            {link === "open" ? "live" : link === "lost" ? "not connected" : "connecting"}
          </span>
          <button type="button" class="only-wide" onClick={() => setHelp(true)} aria-label="Keys">
            ?
          </button>
        </div>
      </header>
      {link === "lost" && (
        <div class="lost-banner" role="alert">
          The server does not respond. The page shows the last known state and reconnects by itself. If the server was restarted, open the
          address that it printed.
        </div>
      )}
      <SessionContext.Provider value={session}>
        <Boundary key={`${route.view}/${route.name}`}>
          <View route={route} />
        </Boundary>
      </SessionContext.Provider>
      {help && <Help onClose={() => setHelp(false)} />}
    </>
  );
}

/** Shows the error of a view that cannot be drawn, instead of an empty page. */
class Boundary extends Component<{ children: ComponentChildren }, { error: unknown }> {
  state = { error: null };

  static getDerivedStateFromError(error: unknown) {
    return { error };
  }

  render() {
    if (this.state.error === null) return this.props.children;
    return <ErrorNote error={this.state.error} retry={() => this.setState({ error: null })} />;
  }
}

function View({ route }: { route: Route }) {
  switch (route.view) {
    case "runs":
      return <Runs route={route} />;
    case "run":
      return <RunView key={route.name} route={route} />;
    case "inbox":
      return <Inbox route={route} />;
    case "loops":
      return <Loops route={route} />;
    case "compare":
      return <Compare route={route} />;
    case "storage":
      return <Storage route={route} />;
    default:
      return (
        <Empty title="Page not found">
          <a href={href("runs")}>All runs</a>
        </Empty>
      );
  }
}

function Help({ onClose }: { onClose: () => void }) {
  const element = useRef<HTMLDialogElement>(null);
  useEffect(() => element.current?.showModal(), []);
  return (
    <dialog ref={element} aria-label="Keys" onClose={onClose}>
      <form method="dialog">
        <h2>Keys</h2>
        <dl class="facts">
          {KEYS.map(([key, meaning]) => (
            <div key={key}>
              <dt>
                {key.split("  ").map((each) => (
                  <kbd key={each}>{each}</kbd>
                ))}
              </dt>
              <dd>{meaning}</dd>
            </div>
          ))}
        </dl>
        <footer>
          <button type="submit" class="main">
            Close
          </button>
        </footer>
      </form>
    </dialog>
  );
}

render(<Page />, document.getElementById("page") as HTMLElement);
