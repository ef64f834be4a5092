// One run: its timelines on the left, the steps that led to the chosen version in the middle, its state on the right.

import { useMemo } from "preact/hooks";

import { Actions } from "./actions";
import * as api from "./api";
import { byVersion, useTries } from "./attempts";
import { Changes } from "./diff";
import { Field } from "./field";
import { Graph } from "./graph";
import { useKeys } from "./keys";
import { useEvents, useLooking } from "./live";
import { useLoaded } from "./loaded";
import { projectOf } from "./loop_names";
import { ErrorNote, Loading } from "./notes";
import { usePaged } from "./paged";
import { choose, href, parse, type Route } from "./route";
import { FailureNote, Steps, VersionFacts } from "./steps";
import { Tabs } from "./tabs";
import { Tree } from "./tree";
import { amounts, count, size, spending } from "./words";

const PAGE = 1000;

export function RunView({ route }: { route: Route }) {
  const id = route.name;
  const run = useLoaded(`run ${id}`, (signal) => api.run(id, signal));
  const { items: versions, more, again, put, problem } = useVersions(id);
  const { tries, again: triesAgain } = useTries(id);
  const timelines = run.value?.timelines;
  const failed = useMemo(() => byVersion(tries, versions, timelines ?? []), [tries, versions, timelines]);
  const refresh = () => {
    run.again();
    again();
    triesAgain();
  };
  useEvents(refresh, run.value?.id);
  useLooking(run.value?.status === "running", run.again);

  const newest = versions[0]?.version ?? 0;
  const head = run.value?.head ?? newest;
  const chosen = Number(route.choices.version) || head;
  const found = useLoaded(chosen ? `version ${id}@${chosen}` : null, (signal) => api.version(id, chosen, signal));
  const pick = (version: number) => choose({ version: version === head ? null : version });
  const step = (by: number) => {
    // From the URL, so that a key before the next render counts from where the previous key has led.
    const place = nearest(versions, Number(parse(location.hash).choices.version) || head);
    const next = versions[Math.min(versions.length - 1, Math.max(0, place + by))];
    if (next) pick(next.version);
  };
  const front = route.choices.part ?? "steps";
  const show = route.choices.show ?? "after";
  useKeys({
    j: () => step(1),
    k: () => step(-1),
    d: () => choose({ show: show === "difference" ? null : "difference", part: "state" }),
    f: () => choose({ do: "fork" }),
    "/": () => document.querySelector<HTMLInputElement>("#part-of-state")?.focus(),
  });

  if (run.error !== null && run.value === undefined) return <ErrorNote error={run.error} retry={run.again} />;
  if (run.value === undefined) return <Loading what={`reading ${id}…`} />;
  const whole = run.value;
  const done = () => {
    refresh();
    found.again();
    // The tagged or pinned version may be beyond the first page.
    void api.versions(id, { before: String(chosen + 1), limit: 1 }).then(({ versions: [fresh] }) => fresh && put(String(chosen), fresh), () => undefined);
  };
  return (
    <main>
      <Head run={whole} version={chosen} wanted={route.choices.do} onDone={done} />
      {whole.failure && chosen === head && (
        <div class="run-failure">
          <FailureNote failure={whole.failure} />
        </div>
      )}
      {problem !== null && <ErrorNote error={problem} retry={again} />}
      <div class="travel">
        <span class="soft">time</span>
        <input
          type="range"
          aria-label="Choose a version"
          aria-valuetext={`version ${chosen}`}
          min={1}
          max={Math.max(1, newest, head, chosen)}
          value={chosen}
          onInput={(event) => {
            const wanted = Number(event.currentTarget.value);
            const oldest = versions[versions.length - 1]?.version ?? 1;
            // Skip pruned versions.
            pick(wanted < oldest ? wanted : (versions[nearest(versions, wanted)]?.version ?? wanted));
          }}
        />
        <output>
          version {chosen}
          {chosen === head ? " (head)" : ""}
        </output>
      </div>
      <Tabs class="only-narrow pad" label="Parts of the run" tabs={PARTS} chosen={front} onChoose={(part) => choose({ part })} />
      <div class="run">
        <section class={front === "versions" ? "in-front" : ""} aria-label="Timelines">
          <header>
            <h2>Timelines</h2>
            <span class="soft">{count(whole.timelines.length, "timeline")}</span>
          </header>
          <Graph versions={versions} head={head} chosen={chosen} onChoose={pick} onEnd={more} />
        </section>
        <section class={front === "steps" ? "in-front" : ""} aria-label="Steps">
          <header>
            <h2>Steps to version {chosen}</h2>
          </header>
          <Steps versions={versions} tries={failed} head={head} chosen={chosen} onChoose={pick} onEnd={more} />
          {found.error !== null && <ErrorNote error={found.error} retry={found.again} />}
          {found.value && (
            <VersionFacts
              version={found.value}
              tries={[...(failed.get(chosen) ?? []), ...(chosen === head ? (failed.get(null) ?? []) : [])]}
            />
          )}
        </section>
        <StatePart
          id={whole.id}
          version={chosen}
          parent={found.value?.version === chosen ? found.value.parent : undefined}
          show={show}
          path={route.choices.path ?? ""}
          front={front === "state"}
        />
      </div>
    </main>
  );
}

const PARTS = [
  { name: "versions", label: "Versions" },
  { name: "steps", label: "Steps" },
  { name: "state", label: "State" },
];

interface HeadProps {
  run: api.RunWhole;
  version: number;
  wanted: string | undefined;
  onDone: () => void;
}

function Head({ run, version, wanted, onDone }: HeadProps) {
  const said = [run.workflow, count(run.versions, "version"), size(run.size), ...amounts(run.totals)];
  const limits = spending(run.limits, run.spent);
  const project = projectOf(run.id);
  return (
    <>
      <div class="run-head">
        <a href={href("runs")} class="soft" aria-label="All runs">
          ‹
        </a>
        <h1 title={run.id}>{run.id}</h1>
        <span class={`status ${run.status}`}>{run.status}</span>
        <span class="soft">{said.filter(Boolean).join(" · ")}</span>
        {limits.length > 0 && <span class="soft">limits: {limits.join(" · ")}</span>}
        {run.origin && (
          <a href={href("compare", "", { a: run.origin, b: run.id })} class="soft">
            forked from {run.origin}
          </a>
        )}
        {project !== null && (
          <a href={href("loops", project)} class="soft">
            state of loop {project}
          </a>
        )}
        {run.parent && (
          <a href={href("run", run.parent)} class="soft">
            part of {run.parent}
          </a>
        )}
        {run.children.slice(0, 20).map((child) => (
          <a key={child} href={href("run", child)} class="soft">
            has part {child}
          </a>
        ))}
        <Actions run={run} version={version} wanted={wanted} onDone={onDone} />
      </div>
      {run.questions.length > 0 ? (
        <div class="lost-banner needs-banner">
          It waits for an answer: <a href={href("inbox", "", { run: run.id })}>{run.questions[0]?.text}</a>
        </div>
      ) : (
        run.waits.length > 0 && <div class="lost-banner needs-banner">It waits for {run.waits.slice(0, 10).join(", ")}.</div>
      )}
    </>
  );
}

interface StateProps {
  id: string;
  version: number;
  /** Null for the first version; undefined while that is not known. */
  parent: number | null | undefined;
  show: string;
  path: string;
  front: boolean;
}

function StatePart({ id, version, parent, show, path, front }: StateProps) {
  const first = parent === null;
  return (
    <section class={front ? "in-front" : ""} aria-label="State">
      <header>
        <Tabs
          label="State"
          tabs={[
            { name: "before", label: "Before", disabled: first },
            { name: "after", label: "After" },
            { name: "difference", label: "Difference", disabled: first },
          ]}
          chosen={show}
          onChoose={(name) => choose({ show: name === "after" ? null : name })}
        />
        <Field
          id="part-of-state"
          label="A part of the state"
          placeholder="plan.tasks[3]   /"
          value={path}
          onFinish={(next) => choose({ path: next })}
        />
      </header>
      {show === "after" ? (
        <Tree at={`${id}@${version}`} path={path} />
      ) : first ? (
        <p class="pad soft">There is no version before the first.</p>
      ) : parent === undefined ? (
        <Loading what="reading…" />
      ) : show === "before" ? (
        <Tree at={`${id}@${parent}`} path={path} />
      ) : (
        <Difference a={`${id}@${parent}`} b={`${id}@${version}`} path={path} />
      )}
    </section>
  );
}

function Difference({ a, b, path }: { a: string; b: string; path: string }) {
  const found = useLoaded(`diff ${a} ${b} ${path}`, (signal) => api.diff(a, b, path, signal));
  if (found.error !== null) return <ErrorNote error={found.error} retry={found.again} />;
  return found.value ? <Changes changes={found.value.changes} total={found.value.count} /> : <Loading what="comparing…" />;
}

/** The versions of a run, newest first. */
function useVersions(id: string) {
  return usePaged(
    `versions ${id}`,
    async (before, signal) => {
      const page = await api.versions(id, { before, limit: PAGE }, signal);
      return { items: page.versions, next: page.next === null ? null : String(page.next) };
    },
    (version) => String(version.version),
  );
}

/** The index of a version in the list, or of its neighbour. */
function nearest(versions: api.Listed[], wanted: number): number {
  const place = versions.findIndex((each) => each.version <= wanted);
  return place < 0 ? versions.length - 1 : place;
}
