// Any two versions or runs side by side: steps, state, result, cost.

import * as api from "./api";
import { Changes } from "./diff";
import { Field } from "./field";
import { useWalk } from "./keys";
import { useLoaded } from "./loaded";
import { written } from "./node";
import { Empty, ErrorNote, Loading } from "./notes";
import { useNow } from "./now";
import { choose, href, type Route } from "./route";
import { ran } from "./steps";
import type { Comparison, Node } from "./types";
import { brief, clock, count, span } from "./words";

/** Characters of a result in a table. */
const LINE = 200;

export function Compare({ route }: { route: Route }) {
  const { a = "", b = "", steps = "differing" } = route.choices;
  const ready = a !== "" && b !== "";
  const found = useLoaded(ready ? `compare ${a} ${b}` : null, (signal) => api.compare(a, b, signal));
  useWalk(".change", { "/": () => document.querySelector<HTMLInputElement>("#first-version")?.focus() });
  return (
    <main class="scroll">
      <div class="pad across">
        <h1>Compare</h1>
        <form class="sides" onSubmit={(event) => event.preventDefault()}>
          <Field id="first-version" label="First version" placeholder="RUN@4" value={a} onFinish={(next) => choose({ a: next })} />
          <button type="button" aria-label="Swap" onClick={() => choose({ a: b, b: a })}>
            ⇄
          </button>
          <Field label="Second version" placeholder="OTHER@head" value={b} onFinish={(next) => choose({ b: next })} />
        </form>
      </div>
      {!ready && (
        <Empty title="Name two versions, of one run or of two">
          <p class="soft">
            As in <code>RUN@12</code>, <code>RUN@head</code>, <code>RUN~2</code> (two before the head), <code>RUN:tag</code>; <code>RUN</code> alone is its head.
          </p>
        </Empty>
      )}
      {found.error !== null && <ErrorNote error={found.error} retry={found.again} />}
      {ready && found.error === null && found.value === undefined && <Loading what="comparing…" />}
      {found.value && (
        <>
          <Sides a={found.value.a} b={found.value.b} />
          <section class="pad" aria-label="Steps">
            <div class="between">
              <h2>Steps</h2>
              <label class="soft">
                <input type="checkbox" checked={steps === "all"} onChange={() => choose({ steps: steps === "all" ? null : "all" })} /> those that are the same, too
              </label>
            </div>
            <StepTable found={found.value} all={steps === "all"} />
          </section>
          <section aria-label="State">
            <h2 class="pad">What differs</h2>
            <Changes changes={found.value.changes} total={found.value.count} />
          </section>
        </>
      )}
    </main>
  );
}

function split(ref: string): [string, number] {
  const at = ref.lastIndexOf("@");
  return [ref.slice(0, at), Number(ref.slice(at + 1))];
}

/** The facts of both versions, side by side. */
function Sides({ a, b }: { a: string; b: string }) {
  const now = useNow();
  const [runA, numberA] = split(a);
  const [runB, numberB] = split(b);
  const both = useLoaded(`sides ${a} ${b}`, (signal) =>
    Promise.all([api.version(runA, numberA, signal), api.version(runB, numberB, signal), api.run(runA, signal), api.run(runB, signal)]),
  );
  if (both.error !== null) return <ErrorNote error={both.error} retry={both.again} />;
  if (!both.value) return <Loading what="reading both…" />;
  const [one, other, first, second] = both.value;
  const rows: [string, string, string][] = [
    ["status", first.status, second.status],
    ["at", clock(one.at, now), clock(other.at, now)],
    ["step", one.address ?? one.kind, other.address ?? other.kind],
    ["ran", ran(one.implementation), ran(other.implementation)],
    ["took", span(one.took), span(other.took)],
    ["steps completed", String(one.steps), String(other.steps)],
    ["result", said(one.result), said(other.result)],
    ["error", one.error?.message ?? "", other.error?.message ?? ""],
    ["annotations", said(one.annotations), said(other.annotations)],
    ...[...new Set([...Object.keys(first.totals), ...Object.keys(second.totals)])].map(
      (name): [string, string, string] => [`${name}, whole run`, total(first.totals[name]), total(second.totals[name])],
    ),
  ];
  return (
    <div class="pad">
      <table class="even" aria-label="Both versions">
        <thead>
          <tr>
            <th />
            <th>
              <a href={href("run", runA, { version: numberA })}>{a}</a>
            </th>
            <th>
              <a href={href("run", runB, { version: numberB })}>{b}</a>
            </th>
          </tr>
        </thead>
        <tbody>
          {rows
            .filter(([, left, right]) => left || right)
            .map(([name, left, right]) => (
              <tr key={name}>
                <td class="soft">{name}</td>
                <td>{left}</td>
                <td class={left === right ? "soft" : ""}>{right}</td>
              </tr>
            ))}
        </tbody>
      </table>
    </div>
  );
}

/** A value in a line. */
function said(node: Node): string {
  if (node.kind === "none") return "";
  const text = written(node);
  return text.length > LINE ? `${text.slice(0, LINE - 1)}…` : text;
}

function total(value: unknown): string {
  return typeof value === "number" ? value.toLocaleString("en", { maximumFractionDigits: 6 }) : value === undefined ? "" : brief(value);
}

function StepTable({ found, all }: { found: Comparison; all: boolean }) {
  const pairs = found.steps.filter((pair) => all || !pair.same || pair.same_code === false);
  const beyond = found.step_count - found.steps.length;
  if (pairs.length === 0 && beyond === 0) return <p class="soft">All steps are the same.</p>;
  const [runA] = split(found.a);
  const [runB] = split(found.b);
  const cell = (run: string, number: number | null) =>
    number === null ? <span class="soft">—</span> : <a href={href("run", run, { version: number })}>version {number}</a>;
  return (
    <table class="even steps">
      <thead>
        <tr>
          <th>step</th>
          <th class="cut" title={runA}>
            {runA}
          </th>
          <th class="cut" title={runB}>
            {runB}
          </th>
          <th />
        </tr>
      </thead>
      <tbody>
        {pairs.map((pair) => (
          <tr key={`${pair.a} ${pair.b}`}>
            <td>
              {pair.address ?? pair.step ?? pair.kind}
              {pair.same_code === false && (
                <div class="soft mono">
                  ran {ran(pair.a_code)} → {ran(pair.b_code)}
                </div>
              )}
            </td>
            <td>{cell(runA, pair.a)}</td>
            <td>{cell(runB, pair.b)}</td>
            <td class="soft">{pair.same ? "same" : pair.a === null || pair.b === null ? "only one side" : "differs"}</td>
          </tr>
        ))}
        {beyond > 0 && (
          <tr>
            <td class="soft" colSpan={4}>
              {count(beyond, "more step")}: compare earlier versions to see them.
            </td>
          </tr>
        )}
      </tbody>
    </table>
  );
}
