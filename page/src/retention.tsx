// Retention: shows the versions that rules would remove, before they are removed. The rules are in the URL.

import { useState } from "preact/hooks";

import * as api from "./api";
import { Dialog } from "./dialog";
import { Field } from "./field";
import { useLoaded } from "./loaded";
import { ErrorNote, Loading } from "./notes";
import { choose, href } from "./route";
import type { PruneResult } from "./types";
import { count, size } from "./words";

const NUMBERS = [
  ["last", "the last (versions)"],
  ["hourly", "one an hour (hours)"],
  ["daily", "one a day (days)"],
  ["weekly", "one a week (weeks)"],
] as const;
/** Number of runs in the table. */
const LISTED = 100;

interface Props {
  choices: Record<string, string>;
  onDone: () => void;
}

export function Retention({ choices, onDone }: Props) {
  const { run = "", within = "" } = choices;
  const rules = rulesOf(choices);
  const wanted = Object.keys(rules).length > 0;
  const key = JSON.stringify([run, rules]);
  const plan = useLoaded(wanted ? key : null, () => api.prune(run, rules, true));
  const [sure, setSure] = useState(false);
  const [done, setDone] = useState<PruneResult | null>(null);
  const remove = async () => {
    setDone(await api.prune(run, rules, false));
    plan.again();
    onDone();
  };
  return (
    <section class="card" aria-label="Retention">
      <div>
        <h2>Retention</h2>
        <p class="soft">
          Shows the versions that a policy would remove. A version is kept if any rule keeps it; the head, tagged and pinned versions, fork
          points and versions that a live run needs are always kept.
        </p>
      </div>
      <div class="rules">
        <label>
          run (empty: all)
          <Field label="run (empty: all)" value={run} onFinish={(next) => choose({ run: next })} />
        </label>
        {NUMBERS.map(([name, label]) => (
          <label key={name}>
            {label}
            <input type="number" min={0} value={choices[name] ?? ""} onInput={(event) => choose({ [name]: event.currentTarget.value })} />
          </label>
        ))}
        <label>
          not older than
          <Field label="not older than" placeholder="7d" value={within} onFinish={(next) => choose({ within: next })} />
        </label>
      </div>
      {!wanted && <p class="soft">Enter a rule to see which versions would be pruned.</p>}
      {wanted && plan.error !== null && <ErrorNote error={plan.error} retry={plan.again} />}
      {wanted && plan.error === null && !plan.value && <Loading what="computing the versions…" />}
      {done !== null && (
        <p role="status">
          removed {count(done.versions, "version")} ({size(done.bytes)})
        </p>
      )}
      {wanted && plan.value && (
        <>
          <div class="between">
            <span>
              would remove {count(plan.value.versions, "version")} ({size(plan.value.bytes)})
            </span>
            <button type="button" class="grave" disabled={plan.value.versions === 0} onClick={() => setSure(true)}>
              Prune…
            </button>
          </div>
          <PlanTable plan={plan.value} />
        </>
      )}
      {sure && plan.value && (
        <Dialog title="Prune versions" verb="Prune" grave onDo={remove} onClose={() => setSure(false)}>
          <ul class="consequences">
            <li>
              {count(plan.value.versions, "version")} of {run || count(plan.value.runs.length, "run")} are pruned ({size(plan.value.bytes)})
            </li>
            <li>they cannot be read, resumed or rolled back to any more: this is irreversible</li>
            <li>all other versions stay as they are</li>
          </ul>
        </Dialog>
      )}
    </section>
  );
}

function PlanTable({ plan }: { plan: PruneResult }) {
  const going = plan.runs.filter((each) => each.prune.length > 0);
  if (going.length === 0) return null;
  return (
    <table>
      <thead>
        <tr>
          <th>run</th>
          <th class="number">would be pruned</th>
          <th class="number">would be kept</th>
          <th class="number">size</th>
        </tr>
      </thead>
      <tbody>
        {going.slice(0, LISTED).map((each) => (
          <tr key={each.run}>
            <td>
              <a class="name" href={href("run", each.run)}>
                {each.run}
              </a>
            </td>
            <td class="number">{each.prune.length.toLocaleString("en")}</td>
            <td class="number">{each.keep.length.toLocaleString("en")}</td>
            <td class="number">{size(each.bytes)}</td>
          </tr>
        ))}
        {going.length > LISTED && (
          <tr>
            <td colSpan={4} class="soft">
              and {count(going.length - LISTED, "more run")}
            </td>
          </tr>
        )}
      </tbody>
    </table>
  );
}

function rulesOf(choices: Record<string, string>): api.Rules {
  const rules: api.Rules = {};
  for (const [name] of NUMBERS) {
    const number = Number(choices[name]);
    if (choices[name] && Number.isInteger(number) && number >= 0) rules[name] = number;
  }
  if (choices.within) rules.within = choices.within;
  return rules;
}
