// Circuit breakers: a note on the list of runs while one is not closed, and all of them in the view of the store.

import { useState } from "preact/hooks";

import * as api from "./api";
import { Dialog } from "./dialog";
import { useEvents } from "./live";
import { type Loaded, useLoaded } from "./loaded";
import { ErrorNote } from "./notes";
import { SECOND, useNow } from "./now";
import { href } from "./route";
import { useMay } from "./session";
import type { Breaker } from "./types";
import { age, clock, isPast, until } from "./words";

const LABELS = { closed: "closed", open: "open", half_open: "half-open" };
/** Names in the note. */
const NAMED = 3;

function useBreakers(): Loaded<Breaker[]> {
  const found = useLoaded("breakers", api.breakers);
  useEvents((events) => {
    if (events.length === 0 || events.some((event) => event.kind.startsWith("breaker."))) found.again();
  });
  return found;
}

/** A line that names the breakers that stop calls. */
export function OpenBreakers() {
  const stopping = (useBreakers().value ?? []).filter((each) => each.status !== "closed");
  if (stopping.length === 0) return null;
  const named = stopping.slice(0, NAMED).map((each) => each.name);
  const more = stopping.length - named.length;
  return (
    <div class="lost-banner needs-banner">
      {stopping.length === 1 ? "A circuit breaker stops calls: " : "Circuit breakers stop calls: "}
      <a href={href("storage")}>
        {named.join(", ")}
        {more > 0 ? ` and ${more} more` : ""}
      </a>
    </div>
  );
}

/** All breakers; nothing if there are none. */
export function Breakers() {
  const found = useBreakers();
  const now = useNow(SECOND);
  const mayReset = useMay("operator");
  const [chosen, setChosen] = useState<string | null>(null);
  if (found.error !== null) return <ErrorNote error={found.error} retry={found.again} />;
  if (!found.value || found.value.length === 0) return null;
  const reset = async () => {
    if (chosen !== null) await api.resetBreaker(chosen);
    found.again();
  };
  return (
    <section class="card" aria-label="Breakers">
      <div>
        <h2>Breakers</h2>
        <p class="soft">A circuit breaker that is open refuses the calls of its steps; their runs fail, or wait until it lets a call through.</p>
      </div>
      <ul class="entries">
        {found.value.map((each) => (
          <li key={each.name} class="between" aria-label={each.name}>
            <div>
              <div class="across">
                <strong class="breakable">{each.name}</strong>
                <span class={`status ${each.status}`}>{LABELS[each.status]}</span>
              </div>
              <div class="soft">{factsOf(each, now).join(" · ")}</div>
              {each.error && <code class="breakable">{each.error}</code>}
            </div>
            {mayReset && each.status !== "closed" && (
              <button type="button" onClick={() => setChosen(each.name)}>
                Reset…
              </button>
            )}
          </li>
        ))}
      </ul>
      {chosen !== null && (
        <Dialog title={`Reset ${chosen}`} verb="Reset" onDo={reset} onClose={() => setChosen(null)}>
          <ul class="consequences">
            <li>The breaker is closed, and its failures are counted from zero.</li>
            <li>The runs that wait for it try again. If their calls still fail, it opens again.</li>
          </ul>
        </Dialog>
      )}
    </section>
  );
}

function factsOf(breaker: Breaker, now: number): string[] {
  const { status, failures, since, retry_at: retry } = breaker;
  const facts = [`${failures.toLocaleString("en")} ${failures === 1 ? "failure" : "failures"} in a row`];
  if (since !== null) facts.push(`${status === "closed" ? "closed" : "opened"} ${age(since, now)}`);
  if (status === "closed" || retry === null) return facts;
  return [...facts, isPast(retry, now) ? "lets the next call through" : `lets a call through ${until(retry, now)}, at ${clock(retry, now)}`];
}
