// The list of loops: projects of the loop engine, with their agents and deadlines, live.

import * as api from "./api";
import { useWalk } from "./keys";
import { useEvents } from "./live";
import { LoopView, statusOf } from "./loop";
import { stateRunOf } from "./loop_names";
import { Empty, ErrorNote, Loading } from "./notes";
import { SECOND, useNow } from "./now";
import { usePaged } from "./paged";
import { href, type Route } from "./route";
import type { BrokenLoop, Loop } from "./types";
import { age, count, isPast, until } from "./words";

const PAGE = 50;
/** Number of loops beyond the first page that are read again individually. */
const AT_ONCE = 20;

export function Loops({ route }: { route: Route }) {
  return route.name ? <LoopView key={route.name} route={route} /> : <LoopList />;
}

function LoopList() {
  const list = useLoops();
  const now = useNow(SECOND);
  useWalk("a.loop-row");
  return (
    <main>
      <div class="pad across">
        <h1>Loops</h1>
      </div>
      {list.problem !== null && <ErrorNote error={list.problem} retry={list.again} />}
      {!list.ready && list.problem === null && <Loading what="looking for loops…" />}
      {list.ready && list.items.length === 0 && <FirstLoop />}
      {list.items.length > 0 && (
        <div class="scroll">
          <div class="list-head loop-row" aria-hidden="true">
            <span>project</span>
            <span>status</span>
            <span>agents</span>
            <span class="number">loop</span>
            <span class="number">version</span>
            <span class="number">last good</span>
            <span class="stall">after a stall</span>
            <span>changed</span>
          </div>
          <div role="list" aria-label="Loops">
            {list.items.map((each) => (
              <div key={each.project_id} role="listitem">
                <Row loop={each} now={now} />
              </div>
            ))}
          </div>
          {list.hasMore && (
            <p class="pad">
              <button type="button" onClick={list.more}>
                Show more loops
              </button>
            </p>
          )}
        </div>
      )}
    </main>
  );
}

function Row({ loop, now }: { loop: Loop | BrokenLoop; now: number }) {
  const link = { class: "run-row loop-row", href: href("loops", loop.project_id) };
  if (loop.status === "error") {
    return (
      <a {...link}>
        <span class="id" title={loop.project_id}>
          {loop.project_id}
        </span>
        <span class="status failed">error</span>
        <span title={loop.message}>{loop.message}</span>
      </a>
    );
  }
  const status = statusOf(loop, now);
  return (
    <a {...link}>
      <span class="id" title={loop.project_id}>
        {loop.project_id}
      </span>
      <span class={`status ${status}`}>{status}</span>
      <span class={status === "overdue" ? "late" : "soft"}>{agentsOf(loop, now)}</span>
      <span class="number">{loop.loop?.toLocaleString("en") ?? "—"}</span>
      <span class="number">{loop.version ?? "—"}</span>
      <span class="number">{loop.last_good ?? "—"}</span>
      <span class="soft stall">{loop.loop_autoresume ? "restores" : "asks"}</span>
      <span class="age soft">{loop.updated === null ? "" : age(loop.updated, now)}</span>
    </a>
  );
}

/** The running agents, with the first deadline. */
function agentsOf({ agents }: Loop, now: number) {
  const names = Object.keys(agents);
  if (names.length === 0) return "no running agents";
  const deadlines = Object.values(agents).flatMap(({ deadline }) => deadline ?? []).sort((a, b) => Date.parse(a) - Date.parse(b));
  const who = names.length === 1 ? names[0] : count(names.length, "agent");
  const when = deadlines[0] === undefined ? "no timeout" : `${isPast(deadlines[0], now) ? "" : "deadline "}${until(deadlines[0], now)}`;
  // A name with characters that change the direction of text changes only its own.
  return (
    <>
      <bdi>{who}</bdi>, {when}
    </>
  );
}

function FirstLoop() {
  return (
    <Empty title="No loops yet">
      <p>
        A loop is a project of your own agent loop: Holdfast keeps snapshots of its state, notices agents that stall, and then restores the
        last good snapshot or asks you. Start one in this store:
      </p>
      <pre>{`import holdfast
from holdfast.loops import LoopEngine

engine = LoopEngine(holdfast.open("runs.db"))
engine.set_project_state("report", {"loop_count": 0})
engine.log_agent_start("report", "researcher", timeout=120)`}</pre>
    </Empty>
  );
}

/** All loops, live. */
function useLoops() {
  const list = usePaged<Loop | BrokenLoop>(
    "loops",
    async (after, signal) => {
      const page = await api.loops({ limit: PAGE, after }, signal);
      return { items: page.projects, next: page.next };
    },
    (loop) => loop.project_id,
  );
  useEvents((events) => {
    const runs = new Set(events.flatMap((event) => stateRunOf(event.run) ?? []));
    if (events.length > 0 && runs.size === 0) return;
    list.again();
    // Only the first page is read again: read changed loops further down individually, up to a limit.
    const further = list.items.slice(PAGE).filter((loop) => loop.status !== "error" && runs.has(loop.run));
    for (const { project_id: id } of further.slice(0, AT_ONCE)) {
      api.loop(id).then(
        ({ project }) => list.put(id, project),
        () => list.put(id, null),
      );
    }
  });
  return list;
}
