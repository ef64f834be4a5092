// One loop: its agents and configuration, its snapshots with their difference to the current state, and its audit.

import type { ComponentChildren } from "preact";
import { useRef, useState } from "preact/hooks";

import * as api from "./api";
import { Changes } from "./diff";
import { useWalk } from "./keys";
import { useEvents, useLooking } from "./live";
import { type Loaded, useLoaded } from "./loaded";
import { ConfigureDialog, ResetDialog, RestoreDialog, SaveDialog } from "./loop_actions";
import { stateRunOf } from "./loop_names";
import { ErrorNote, Loading } from "./notes";
import { SECOND, useNow } from "./now";
import { stateChanges } from "./restore";
import { choose, href, type Route } from "./route";
import { useMay } from "./session";
import { factsOf, Snapshots } from "./snapshots";
import { StalledChoices } from "./stalled";
import type { AuditEntry, Loop, LoopAgent, LoopConfig, LoopWhole, Restored, Snapshot, Version } from "./types";
import { age, brief, clock, isPast, listed, until, wholeSpan } from "./words";

/** Entries that are read at first, and at the most. */
const FIRST = 100;
const MOST = 1000;
/** Versions from which the lanes of the snapshots are drawn. */
const VERSIONS = 1000;

export function LoopView({ route }: { route: Route }) {
  const id = route.name;
  const loop = useLoaded(`loop ${id}`, (signal) => api.loop(id, signal));
  const run = loop.value?.project.run;
  const question = loop.value?.project.question_id ?? null;
  const asked = useLoaded(question === null ? null : `question ${question}`, (signal) => api.question(question ?? "", signal));
  const most = useRef(FIRST);
  const snapshots = useLoaded(run === undefined ? null : `snapshots ${id}`, async (signal) => {
    const [found, versions] = await Promise.all([api.snapshots(id, most.current, signal), versionsOf(run ?? "", signal)]);
    return { ...found, versions };
  });
  const entries = useRef(FIRST);
  const audit = useLoaded(`audit ${id}`, (signal) => api.audit(id, entries.current, signal));
  const [restored, setRestored] = useState<Restored | null>(null);
  const refresh = () => {
    loop.again();
    snapshots.again();
    audit.again();
    asked.again();
  };
  // A project that is deleted sends no event.
  useLooking(!api.isMissing(loop.error), loop.again);
  useEvents((events) => {
    const mine = events.filter((event) => run !== undefined && stateRunOf(event.run) === run);
    if (events.length > 0 && mine.length === 0) return;
    // Heartbeats change deadlines only.
    if (mine.length > 0 && mine.every((event) => event.run.endsWith("/beats"))) loop.again();
    else refresh();
  });
  useWalk("button.snapshot-row");
  if (loop.error !== null && (loop.value === undefined || api.isMissing(loop.error))) return <ErrorNote error={loop.error} retry={loop.again} />;
  if (loop.value === undefined) return <Loading what={`reading ${id}…`} />;
  const { project, config, ended } = loop.value;
  const list = snapshots.value?.snapshots ?? [];
  const newest = list[list.length - 1]?.version ?? null;
  const chosen = Number(route.choices.snapshot) || project.last_good || newest;
  const close = () => choose({ do: null });
  return (
    <main class="scroll">
      <Head loop={project} />
      {asked.value && question !== null && (
        <section class="lost-banner needs-banner asks" aria-label="Open question">
          <strong>{asked.value.text}</strong>
          <Answer>
            <StalledChoices question={asked.value} onDone={refresh} />
          </Answer>
          <a href={href("inbox", "", { run: asked.value.run })}>Show in the inbox</a>
        </section>
      )}
      {restored !== null && (
        <p class="pad" role="status">
          Version {restored.version} was restored.{restored.kept.length > 0 && ` Kept: ${listed(restored.kept)}.`}
        </p>
      )}
      <div class="loop pad">
        <div class="column">
          <Agents loop={project} ended={ended} onDone={refresh} />
          <section class="card" aria-label="Snapshots">
            <div class="between">
              <h2>Snapshots</h2>
              <span class="soft">{snapshots.value && countOf(snapshots.value.snapshot_count, list.length)}</span>
            </div>
            {snapshots.error !== null && <ErrorNote error={snapshots.error} retry={snapshots.again} />}
            {snapshots.value && list.length === 0 && <p class="soft">No snapshot was saved. An agent that completes saves one.</p>}
            {snapshots.value && list.length > 0 && (
              <Snapshots
                snapshots={list}
                versions={snapshots.value.versions}
                lastGood={snapshots.value.last_good}
                head={project.version}
                chosen={chosen}
              />
            )}
            {snapshots.value && list.length < Math.min(snapshots.value.snapshot_count, MOST) && (
              <button
                type="button"
                onClick={() => {
                  most.current = MOST;
                  snapshots.again();
                }}
              >
                Show older snapshots
              </button>
            )}
          </section>
        </div>
        <div class="column">
          <Difference loop={project} snapshot={list.find((each) => each.version === chosen)} chosen={chosen} />
          <Configuration config={config} />
        </div>
        <Audit
          audit={audit}
          onMore={() => {
            entries.current = MOST;
            audit.again();
          }}
          hasMore={entries.current < MOST && (audit.value?.audit.length ?? 0) >= FIRST}
        />
      </div>
      {route.choices.do === "restore" && chosen !== null && (
        <RestoreDialog
          loop={loop.value}
          version={chosen}
          onDone={(done) => {
            setRestored(done);
            refresh();
          }}
          onClose={close}
        />
      )}
      {route.choices.do === "save" && <SaveDialog id={id} onDone={refresh} onClose={close} />}
      {route.choices.do === "configure" && <ConfigureDialog id={id} config={config} onDone={refresh} onClose={close} />}
    </main>
  );
}

/** The newest versions of a run; none if it has no state yet. */
async function versionsOf(run: string, signal: AbortSignal): Promise<Version[]> {
  try {
    return (await api.lineage(run, VERSIONS, signal)).versions;
  } catch (error) {
    if (api.isMissing(error)) return [];
    throw error;
  }
}

const countOf = (total: number, listed: number): string =>
  listed < total ? `the newest ${listed.toLocaleString("en")} of ${total.toLocaleString("en")}` : total.toLocaleString("en");

function Answer({ children }: { children: ComponentChildren }) {
  return useMay("operator") ? <>{children}</> : null;
}

/** A status: an agent that is overdue comes before the rest. */
export function statusOf(loop: Loop, now: number): string {
  if (Object.values(loop.agents).some((agent) => isPast(agent.deadline, now))) return "overdue";
  return loop.status;
}

function Head({ loop }: { loop: Loop }) {
  const now = useNow(SECOND);
  const mayAct = useMay("operator");
  const status = statusOf(loop, now);
  const said = [
    loop.loop === null ? "the state cannot be read" : `loop ${loop.loop.toLocaleString("en")}`,
    loop.version === null ? "no state" : `version ${loop.version}`,
    ...(loop.updated === null ? [] : [`changed ${age(loop.updated, now)}`]),
  ];
  return (
    <div class="run-head">
      <a href={href("loops")} class="soft" aria-label="All loops">
        ‹
      </a>
      <h1 title={loop.project_id}>{loop.project_id}</h1>
      <span class={`status ${status}`}>{status}</span>
      <span class="soft">{said.join(" · ")}</span>
      <div class="actions">
        {mayAct && loop.version !== null && (
          <button type="button" onClick={() => choose({ do: "save" })}>
            Save a snapshot…
          </button>
        )}
        {mayAct && (
          <button type="button" onClick={() => choose({ do: "configure" })}>
            Configure…
          </button>
        )}
        {loop.version !== null && (
          <a class="button" href={href("run", loop.run)}>
            State
          </a>
        )}
      </div>
    </div>
  );
}

interface AgentsProps {
  loop: Loop;
  ended: LoopWhole["ended"];
  onDone: () => void;
}

function Agents({ loop, ended, onDone }: AgentsProps) {
  const now = useNow(SECOND);
  const mayReset = useMay("operator");
  const [chosen, setChosen] = useState<string | null>(null);
  const running = Object.entries(loop.agents);
  const over = Object.entries(ended).sort(([, a], [, b]) => Date.parse(b.at) - Date.parse(a.at));
  return (
    <section class="card" aria-label="Agents">
      <h2>Agents</h2>
      {running.length === 0 && <p class="soft">No agent is running.</p>}
      <ul class="entries" aria-label="Running agents">
        {running.map(([name, agent]) => (
          <li key={name} class="between" aria-label={name}>
            <div>
              <strong class="breakable">{name}</strong> <Deadline agent={agent} now={now} />
              <div class="soft">
                started {age(agent.started, now)}
                {agent.actor !== null && ` by ${agent.actor}`}
              </div>
            </div>
            {mayReset && (
              <button type="button" onClick={() => setChosen(name)}>
                Reset…
              </button>
            )}
          </li>
        ))}
      </ul>
      {over.length > 0 && (
        <details open={over.length <= 5}>
          <summary>ended from outside</summary>
          <ul class="entries" aria-label="Ended agents">
            {over.map(([name, each]) => (
              <li key={name}>
                <strong class="breakable">{name}</strong> <span class={`status ${each.how}`}>{each.how}</span>{" "}
                <span class="soft">
                  {age(each.at, now)}
                  {each.actor !== null && ` by ${each.actor}`}
                </span>
              </li>
            ))}
          </ul>
        </details>
      )}
      {chosen !== null && <ResetDialog id={loop.project_id} agent={chosen} onDone={onDone} onClose={() => setChosen(null)} />}
    </section>
  );
}

function Deadline({ agent, now }: { agent: LoopAgent; now: number }) {
  if (agent.deadline === null) return <span class="soft">no timeout</span>;
  if (isPast(agent.deadline, now)) return <span class="status overdue">{until(agent.deadline, now)}</span>;
  return (
    <span title={clock(agent.deadline, now)}>
      deadline <span class="number">{until(agent.deadline, now)}</span>
    </span>
  );
}

/** Settings that are a number of seconds. */
const TIMES = new Set(["due", "remind_every", "escalate_after"]);

function Configuration({ config }: { config: LoopConfig }) {
  const seconds = (value: number | "never" | null) => (value === null ? "default of the program" : value === "never" ? value : wholeSpan(value));
  const rules = (value: Record<string, unknown> | null) =>
    Object.entries(value ?? {}).map(([name, each]) => `${name.replaceAll("_", " ")} ${TIMES.has(name) ? wholeSpan(Number(each)) : String(each)}`).join(", ");
  const facts: [string, string][] = [
    ["after a stall", config.loop_autoresume ? `restores the last good snapshot, at most ${config.max_restores} times an hour` : "asks"],
    ["timeout of agents", seconds(config.timeout)],
    ...Object.entries(config.timeouts).map(([agent, value]): [string, string] => [`timeout of ${agent}`, seconds(value)]),
    ["scheduled snapshot", config.every === null ? "none" : `every ${wholeSpan(config.every)}`],
    ["snapshots kept", rules(config.retention) || "all"],
    ["keys that a snapshot lacks", config.keep_unknown === null ? "kept by a restore by hand, else removed" : config.keep_unknown ? "kept" : "removed"],
    ["audit entries kept", rules(config.audit_retention) || "all"],
    ["questions", rules(config.question) || "not assigned"],
  ];
  return (
    <section class="card" aria-label="Configuration">
      <h2>Configuration</h2>
      <dl class="facts">
        {facts.map(([name, text]) => (
          <div key={name}>
            <dt class="breakable">{name}</dt>
            <dd>{text}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

function Difference({ loop, snapshot, chosen }: { loop: Loop; snapshot: Snapshot | undefined; chosen: number | null }) {
  const { run, version } = loop;
  const now = useNow();
  const damaged = snapshot?.damaged;
  const found = useLoaded(chosen === null || version === null || damaged !== undefined ? null : `since ${run}@${chosen} ${version}`, (signal) =>
    stateChanges(`${run}@${chosen}`, `${run}@head`, signal),
  );
  const mayAct = useMay("operator");
  if (chosen === null) return null;
  return (
    <section class="card" aria-label="Changes since the snapshot">
      <div class="between">
        <h2>Changes since version {chosen}</h2>
        {mayAct && (
          <button type="button" class="main" onClick={() => choose({ do: "restore" })} disabled={damaged !== undefined}>
            Restore…
          </button>
        )}
      </div>
      {snapshot && damaged === undefined && <p class="soft breakable">{[clock(snapshot.timestamp, now), ...factsOf(snapshot)].join(" · ")}</p>}
      {damaged !== undefined && <ErrorNote error={new api.ApiError(0, "This snapshot is damaged", damaged)} />}
      {found.error !== null && <ErrorNote error={found.error} retry={found.again} />}
      {damaged === undefined && found.error === null && !found.value && <Loading what="comparing…" />}
      {found.value && <Changes changes={found.value.changes} total={found.value.total} />}
    </section>
  );
}

interface AuditProps {
  audit: Loaded<{ audit: AuditEntry[] }>;
  hasMore: boolean;
  onMore: () => void;
}

function Audit({ audit, hasMore, onMore }: AuditProps) {
  const now = useNow();
  return (
    <section class="card whole" aria-label="Audit">
      <h2>Audit</h2>
      {audit.error !== null && <ErrorNote error={audit.error} retry={audit.again} />}
      {audit.value === undefined && audit.error === null && <Loading what="reading…" />}
      {audit.value?.audit.length === 0 && <p class="soft">No entries yet.</p>}
      {audit.value && audit.value.audit.length > 0 && (
        <table class="even audit">
          <thead>
            <tr>
              <th>when</th>
              <th>what</th>
              <th>who</th>
              <th>why</th>
            </tr>
          </thead>
          <tbody>
            {[...audit.value.audit].reverse().map((entry, place) => (
              <tr key={`${entry.at} ${place}`}>
                <td class="soft">{clock(entry.at, now)}</td>
                <td>
                  {entry.action.replaceAll(".", " ")} <span class="soft">{detailsOf(entry)}</span>
                </td>
                <td>{entry.actor ?? "—"}</td>
                <td>{entry.reason ?? ""}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {hasMore && (
        <button type="button" onClick={onMore}>
          Show older entries
        </button>
      )}
    </section>
  );
}

/** Fields of an entry that have their own column, or identify something that is not shown. */
const OWN = new Set(["at", "action", "actor", "reason", "token", "task", "question_id"]);

/** The other facts of an entry. */
function detailsOf(entry: AuditEntry): string {
  const facts = Object.entries(entry).filter(([name, value]) => !OWN.has(name) && value !== null);
  return facts.map(([name, value]) => `${name.replaceAll("_", " ")} ${written(value)}`).join(", ");
}

/** A fact in a line: names of actions in words, lists of texts without brackets. */
function written(value: unknown): string {
  if (typeof value === "string") return value.replace(/^(\w+)\.(\w+)$/, "$1 $2");
  return Array.isArray(value) ? listed(value) : brief(value, 200);
}
