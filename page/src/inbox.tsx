// Questions that wait for a person: why, since when, where, what follows from each answer.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

import { Consequences } from "./actions";
import { AnswerForm } from "./answer";
import * as api from "./api";
import { FrozenChoices, FrozenDetails } from "./frozen";
import { useWalk } from "./keys";
import { useEvents } from "./live";
import { useLoaded } from "./loaded";
import { Empty, ErrorNote, Loading } from "./notes";
import { useNow } from "./now";
import { choose, href, type Route } from "./route";
import { useMay } from "./session";
import { Tabs } from "./tabs";
import type { Prompt } from "./types";
import { age, brief, clock } from "./words";

export function Inbox({ route }: { route: Route }) {
  const { run = "", show = "open" } = route.choices;
  const open = show !== "answered";
  const prompts = useLoaded(`prompts ${open} ${run}`, (signal) => api.prompts({ answered: !open, run }, signal));
  useEvents(prompts.again);
  useWalk("article.card");
  const shown = prompts.value ?? [];
  return (
    <main>
      <div class="pad across">
        <h1>Inbox</h1>
        <Tabs
          label="Questions"
          tabs={[
            { name: "open", label: "Waiting" },
            { name: "answered", label: "Answered" },
          ]}
          chosen={open ? "open" : "answered"}
          onChoose={(name) => choose({ show: name === "open" ? null : name })}
        />
        {run && (
          <button type="button" class="chip" aria-pressed="true" onClick={() => choose({ run: null })}>
            run {run} ✕
          </button>
        )}
      </div>
      <div class="pad scroll" style={{ paddingTop: 0 }}>
        {prompts.error !== null && <ErrorNote error={prompts.error} retry={prompts.again} />}
        {prompts.value === undefined && prompts.error === null && <Loading what="looking for questions…" />}
        {prompts.value && shown.length === 0 && (
          <Empty title={open ? "Nobody waits for you" : "Nothing has been answered yet"}>
            {open && (
              <p class="soft">
                A workflow asks with <code>holdfast.ask("Publish?")</code>; a run that is stuck asks by itself when the monitor finds it.
              </p>
            )}
          </Empty>
        )}
        <div class="cards">
          {shown.map((prompt) => (
            <Card key={prompt.id} prompt={prompt} onDone={prompts.again} />
          ))}
        </div>
      </div>
    </main>
  );
}

function Card({ prompt, onDone }: { prompt: Prompt; onDone: () => void }) {
  const now = useNow();
  const mayAnswer = useMay("operator");
  return (
    <article class="card" aria-label={prompt.question} tabIndex={-1}>
      <div class="between">
        <h2>{prompt.question}</h2>
        <span class="soft age" title={clock(prompt.opened, now)}>
          {age(prompt.opened, now)}
        </span>
      </div>
      <div class="soft">
        <a href={href("run", prompt.run)}>{prompt.run}</a>
        {prompt.address && <> at {prompt.address}</>}
        {prompt.due && <> · goes on without an answer at {clock(prompt.due, now)}</>}
      </div>
      {prompt.details && !prompt.answered && <FrozenDetails prompt={prompt} now={now} />}
      {prompt.answered ? (
        <p>
          Answered {told(prompt, now)}
        </p>
      ) : !mayAnswer ? null : prompt.details ? (
        <FrozenChoices prompt={prompt} onDone={onDone} />
      ) : (
        <>
          <p class="soft">The answer is kept for good, and the run goes on with it at once.</p>
          <AnswerForm prompt={prompt} onDone={onDone} />
        </>
      )}
      <Further summary="History">
        <History run={prompt.run} besides={prompt.id} />
      </Further>
      {!prompt.answered && !prompt.details && (
        <Further summary="What runs then">
          <Consequences id={prompt.run} to={null} resume />
        </Further>
      )}
    </article>
  );
}

/** When a question was answered, by whom, and what was said. */
function told(prompt: Prompt, now: number) {
  const said = answerOf(prompt);
  return (
    <>
      {age(prompt.answered ?? "", now)}
      {prompt.actor ? ` by ${prompt.actor}` : ""}
      {said ? <>: <code>{said}</code></> : "."}
    </>
  );
}

function answerOf({ answer, details }: Prompt): string {
  if (!details?.choice) return answer === null || answer === undefined ? "" : brief(answer, 300);
  const keeps = details.keep?.length ? `, keep ${details.keep.join(", ")}` : "";
  return `${details.choice}${details.version ? ` to version ${details.version}` : ""}${keeps}`;
}

/** What is loaded when somebody wants to know it. */
function Further({ summary, children }: { summary: string; children: ComponentChildren }) {
  const [open, setOpen] = useState(false);
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{summary}</summary>
      {open && children}
    </details>
  );
}

const LAST = 5;

/** What the run did last, and what it asked before. */
function History({ run, besides }: { run: string; besides: string }) {
  const now = useNow();
  const found = useLoaded(`history ${run}`, (signal) =>
    Promise.all([api.run(run, signal), api.versions(run, { before: null, limit: LAST }, signal), api.prompts({ answered: true, run }, signal)]),
  );
  if (found.error !== null) return <ErrorNote error={found.error} retry={found.again} />;
  if (!found.value) return <Loading what="reading…" />;
  const [whole, { versions }, prompts] = found.value;
  const earlier = prompts.filter((prompt) => prompt.id !== besides);
  return (
    <dl class="facts">
      <div>
        <dt>run</dt>
        <dd>
          {[whole.workflow, whole.status, `begun ${age(whole.created, now)}`].filter(Boolean).join(" · ")}
        </dd>
      </div>
      {versions.map((each) => (
        <div key={each.version}>
          <dt>
            <a href={href("run", run, { version: each.version })}>version {each.version}</a>
          </dt>
          <dd>
            {each.address ?? each.step ?? each.kind} <span class="soft">{age(each.at, now)}</span>
          </dd>
        </div>
      ))}
      {earlier.map((prompt) => (
        <div key={prompt.id}>
          <dt>asked {age(prompt.opened, now)}</dt>
          <dd>
            {prompt.question}{" "}
            <span class="soft">
              answered {told(prompt, now)}
            </span>
          </dd>
        </div>
      ))}
      {earlier.length === 0 && (
        <div>
          <dt>questions</dt>
          <dd>none before this one</dd>
        </div>
      )}
    </dl>
  );
}
