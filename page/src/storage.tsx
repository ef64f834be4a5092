// The store: size by run, retention, verification with progress.

import { useEffect, useState } from "preact/hooks";

import * as api from "./api";
import { Breakers } from "./breakers";
import { useWalk } from "./keys";
import { useLoaded } from "./loaded";
import { Empty, ErrorNote, Loading } from "./notes";
import { Retention } from "./retention";
import { choose, href, type Route } from "./route";
import { useMay } from "./session";
import type { Report, Run, Task } from "./types";
import { count, size } from "./words";

/** Milliseconds between polls of a running task. */
const LOOK = 500;

export function Storage({ route }: { route: Route }) {
  const stats = useLoaded("stats", api.stats);
  const mayPrune = useMay("admin");
  useWalk("a.name");
  return (
    <main class="scroll">
      <div class="pad cards">
        <h1>Storage</h1>
        {stats.error !== null && <ErrorNote error={stats.error} retry={stats.again} />}
        {stats.value && (
          <section class="card" aria-label="The store">
            <dl class="facts">
              {facts(stats.value).map(([name, text]) => (
                <div key={name}>
                  <dt>{name}</dt>
                  <dd>{text}</dd>
                </div>
              ))}
            </dl>
          </section>
        )}
        <Breakers />
        <Check />
        {mayPrune && <Retention choices={route.choices} onDone={stats.again} />}
        <section class="card" aria-label="Size by run">
          <h2>Size by run</h2>
          {stats.value === undefined && stats.error === null && <Loading what="adding up…" />}
          {stats.value?.largest.length === 0 && <Empty title="No runs yet" />}
          {stats.value && stats.value.largest.length > 0 && <Sizes runs={stats.value.largest} />}
        </section>
      </div>
    </main>
  );
}

function facts(stats: api.Stats): [string, string][] {
  return [
    ["store", stats.store],
    ["file", stats.file_bytes === null ? "—" : size(stats.file_bytes)],
    ["runs", stats.runs.toLocaleString("en")],
    ["versions", `${stats.versions.toLocaleString("en")} (${size(stats.pack_bytes)})`],
    ["large values", `${stats.artifacts.toLocaleString("en")} (${size(stats.artifact_bytes)})`],
    ["events", stats.events.toLocaleString("en")],
  ];
}

function Sizes({ runs }: { runs: Run[] }) {
  const most = Math.max(1, ...runs.map((run) => run.size));
  const mayPrune = useMay("admin");
  return (
    <table>
      <thead>
        <tr>
          <th>run</th>
          <th class="number">versions</th>
          <th class="number">size</th>
          <th class="only-wide" style={{ width: "25%" }} />
          <th />
        </tr>
      </thead>
      <tbody>
        {runs.map((run) => (
          <tr key={run.id}>
            <td>
              <a class="name" href={href("run", run.id)}>
                {run.id}
              </a>
            </td>
            <td class="number">{run.versions.toLocaleString("en")}</td>
            <td class="number">{size(run.size)}</td>
            <td class="only-wide">
              <div class="meter" style={{ width: `${(100 * run.size) / most}%` }} />
            </td>
            <td>
              {mayPrune && (
                <button type="button" onClick={() => choose({ run: run.id }, false)}>
                  Prune…
                </button>
              )}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Check() {
  const [task, setTask] = useState<Task | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  useEffect(() => {
    if (task?.status !== "running") return;
    let gone = false;
    const timer = setTimeout(
      () => api.task(task.id).then((next) => gone || setTask(next), (error: unknown) => gone || setProblem(error)),
      LOOK,
    );
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, [task]);
  const begin = () => {
    setProblem(null);
    api.verify().then(setTask, setProblem);
  };
  const report = task?.status === "done" ? (task.result as Report) : null;
  return (
    <section class="card" aria-label="Verify">
      <div class="between">
        <div>
          <h2>Verify</h2>
          <p class="soft">Reads every version and compares its hash.</p>
        </div>
        <button type="button" class="main" disabled={task?.status === "running"} onClick={begin}>
          Verify everything
        </button>
      </div>
      {task?.status === "running" && <progress aria-label="Progress" value={task.done} max={task.total || 1} />}
      {report?.ok && (
        <p class="status completed" role="status">
          No problems: {count(report.runs, "run")}, {count(report.versions, "version")}, {count(report.artifacts, "artifact")}.
        </p>
      )}
      {report && !report.ok && (
        <div class="traceback" role="alert">
          <strong>{count(report.problems.length, "problem")}</strong>
          <ul>
            {report.problems.slice(0, 200).map((each) => (
              <li key={`${each.run} ${each.version} ${each.what}`}>
                {each.run === null ? "the store" : `${each.run}${each.version === null ? "" : `@${each.version}`}`}: {each.what}
              </li>
            ))}
          </ul>
        </div>
      )}
      {task?.status === "failed" && <ErrorNote error={new Error(task.error?.detail ?? "the check failed")} />}
      {problem !== null && <ErrorNote error={problem} />}
    </section>
  );
}
