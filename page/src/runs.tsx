// The live list of runs, with filters: open questions first, then runs that are held up.

import { useContext, useEffect, useMemo, useRef, useState } from "preact/hooks";

import * as api from "./api";
import { OpenBreakers } from "./breakers";
import { Choice, distinct } from "./choice";
import { useKeys } from "./keys";
import { useEvents, useLooking } from "./live";
import { useNarrow } from "./narrow";
import { Empty, ErrorNote, Loading } from "./notes";
import { useNow } from "./now";
import { type Paged, usePaged } from "./paged";
import { choose, go, href, type Route } from "./route";
import { serial } from "./serial";
import { SessionContext } from "./session";
import type { Run } from "./types";
import { VirtualList } from "./virtual";
import { age, size, upTo } from "./words";

const PAGE = 200;
const COUNT_EVERY = 2_000;
/** Number of runs beyond the first page that are reloaded individually. */
const AT_ONCE = 20;
const SINCE = ["1h", "24h", "7d", "30d"];
/** Chips, the most urgent first, with label and title. */
const CHIPS: { name: string; label: string; title: string }[] = [
  { name: "needs", label: "Asking", title: "Runs with an open question" },
  { name: "held", label: "Stopped", title: "Runs that failed, were interrupted, are stalled or paused" },
  { name: "running", label: "Running", title: "Runs that are being advanced" },
  { name: "queued", label: "Queued", title: "Runs that wait for a worker" },
  { name: "suspended", label: "Suspended", title: "Runs that wait for a time, a signal or an answer" },
  { name: "completed", label: "Completed", title: "Runs that have completed" },
  { name: "cancelled", label: "Cancelled", title: "Runs that were cancelled" },
  { name: "manual", label: "Manual", title: "Histories written by hand, without a workflow" },
];

export function Runs({ route }: { route: Route }) {
  const { show = "", q = "", workflow = "", tag = "", since = "" } = route.choices;
  const wanted = { show, search: q, workflow, tag, since };
  const key = JSON.stringify(wanted);
  const list = useRuns(key, wanted);
  const runs = list.items;
  const counts = useCounts();
  const session = useContext(SessionContext);
  // A ref, so that a key before the next render counts from where the previous key has led.
  const mark = useRef({ key, place: -1 });
  const [, draw] = useState(0);
  const marked = () => (mark.current.key === key ? Math.min(mark.current.place, runs.length - 1) : -1);
  const move = (by: number) => () => {
    mark.current = { key, place: Math.min(runs.length - 1, Math.max(0, marked() + by)) };
    draw((count) => count + 1);
  };
  const open = (choices = {}) => () => {
    const run = runs[marked()];
    if (run) go(href("run", run.id, choices));
  };
  const chosen = marked();
  const rowHeight = useNarrow() ? 56 : 34;
  const now = useNow();
  const search = useRef<HTMLInputElement>(null);
  useKeys({
    j: move(1),
    k: move(-1),
    Enter: open(),
    "/": () => search.current?.focus(),
    d: open({ show: "difference", part: "state" }),
    f: open({ do: "fork" }),
  });

  const filtered = Boolean(show || q || workflow || tag || since);
  const names = useMemo(() => {
    const known = [...(session?.workflows ?? []), ...runs.flatMap((each) => each.workflow ?? []), ...(workflow ? [workflow] : [])];
    return { workflows: distinct(known), tags: distinct([...runs.flatMap((each) => each.tags), ...(tag ? [tag] : [])]) };
  }, [runs, session, workflow, tag]);
  return (
    <main>
      <div class="pad across">
        <div class="chips" role="group" aria-label="Filter by status">
          {CHIPS.map((chip) => (
            <button
              key={chip.name}
              type="button"
              class={`chip ${chip.name} ${counts[chip.name] ? "" : "none"}`}
              title={chip.title}
              aria-pressed={show === chip.name ? "true" : "false"}
              onClick={() => choose({ show: show === chip.name ? null : chip.name }, false)}
            >
              {chip.label}
              {counts[chip.name] !== undefined && <b>{counted(chip.name, counts[chip.name] ?? 0)}</b>}
            </button>
          ))}
        </div>
        <div class="across filters">
          <Choice label="Workflow" all="every workflow" value={workflow} options={names.workflows} onChoose={(value) => choose({ workflow: value })} />
          <Choice label="Tag" all="every tag" value={tag} options={names.tags} onChoose={(value) => choose({ tag: value })} />
          <Choice label="Since" all="any time" value={since} options={SINCE} onChoose={(value) => choose({ since: value })} />
          <input
            ref={search}
            type="search"
            aria-label="Search runs"
            placeholder="Search   /"
            value={q}
            onInput={(event) => choose({ q: event.currentTarget.value })}
            onKeyDown={(event) => event.key === "Escape" && event.currentTarget.blur()}
          />
        </div>
      </div>
      <OpenBreakers />
      {list.problem !== null && <ErrorNote error={list.problem} retry={list.again} />}
      {!list.ready && list.problem === null && <Loading what="looking for runs…" />}
      {list.ready && runs.length === 0 && (filtered ? <NoneLeft /> : <FirstRun />)}
      {runs.length > 0 && (
        <>
          <div class="list-head" aria-hidden="true">
            <span>run</span>
            <span>status</span>
            <span>workflow</span>
            <span>step</span>
            <span class="number">versions</span>
            <span>changed</span>
            <span class="number">size</span>
            <span>tags</span>
          </div>
          <VirtualList
            label="Runs"
            rows={runs.length}
            height={rowHeight}
            chosen={chosen}
            onEnd={list.more}
            row={(place) => <Row key={runs[place]?.id} run={runs[place] as Run} now={now} chosen={place === chosen} />}
          />
        </>
      )}
    </main>
  );
}

const counted = (chip: string, found: number): string => (chip === "needs" ? upTo(found, api.ASKING) : found.toLocaleString("en"));

function Row({ run, now, chosen }: { run: Run; now: number; chosen: boolean }) {
  return (
    <a class={`run-row ${chosen ? "chosen" : ""}`} href={href("run", run.id)}>
      <span class="id" title={run.id}>
        {run.id}
      </span>
      <span class={`status ${run.status}`}>{run.status}</span>
      <span title={run.workflow ?? ""}>{run.workflow ?? "—"}</span>
      <span title={run.step ?? ""}>{run.step ?? ""}</span>
      <span class="number">{run.versions.toLocaleString("en")}</span>
      <span class="age soft">{age(run.updated, now)}</span>
      <span class="number soft">{size(run.size)}</span>
      <span>
        {run.tags.map((tag) => (
          <span key={tag} class="tag">
            {tag}
          </span>
        ))}
      </span>
    </a>
  );
}

function NoneLeft() {
  return (
    <Empty title="No run matches these filters">
      <button type="button" onClick={() => go(href("runs"))}>
        Show all runs
      </button>
    </Empty>
  );
}

function FirstRun() {
  return (
    <Empty title="No runs yet">
      <p>Start a first one in this store; it appears here while it runs:</p>
      <pre>{`import holdfast

@holdfast.step
def greet(name):
    holdfast.state()["greeted"] = name
    return f"hello, {name}"

@holdfast.workflow
def hello(name):
    return greet(name)

holdfast.open("runs.db").run(hello, "world")`}</pre>
      <p class="soft">
        Or watch an agent that is killed and resumed: <code>holdfast demo</code>
      </p>
    </Empty>
  );
}

/** The runs that match the filters, live. */
function useRuns(key: string, wanted: api.RunsWanted): Paged<Run> {
  const list = usePaged(
    key,
    async (after, signal) => {
      const page = await api.runs(wanted, { limit: PAGE, after }, signal);
      return { items: page.runs, next: page.next };
    },
    (run) => run.id,
  );
  useEvents((events) => {
    list.again();
    // Only the first page is read again: reload changed runs further down individually, up to a limit.
    const further = new Set(list.items.slice(PAGE).map((run) => run.id));
    const changed = [...new Set(events.map((event) => event.run))].filter((id) => further.has(id));
    const statuses = api.statusesOf(wanted.show);
    for (const id of changed.slice(0, AT_ONCE)) {
      api.run(id).then(
        (run) => list.put(id, statuses.length === 0 || statuses.includes(run.status) ? run : null),
        () => list.put(id, null),
      );
    }
  });
  useLooking(list.items.some((run) => run.status === "running"), list.again);
  return list;
}

/** The number of runs for each chip. Counting reads every run, so it is throttled. */
function useCounts(): Record<string, number> {
  const [counts, setCounts] = useState<Record<string, number>>({});
  const timer = useRef<ReturnType<typeof setTimeout> | null>(null);
  const count = useMemo(() => serial(() => api.counts().then(setCounts, () => undefined)), []);
  useEffect(() => {
    count();
    return () => {
      if (timer.current !== null) clearTimeout(timer.current);
    };
  }, []);
  useEvents(() => {
    timer.current ??= setTimeout(() => {
      timer.current = null;
      count();
    }, COUNT_EVERY);
  });
  return counts;
}
