// The inbox: open questions, with the effect of each answer, and answered ones.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

import { Consequences } from "./actions";
import { AnswerForm } from "./answer";
import * as api from "./api";
import { StalledChoices, StalledDetails } from "./stalled";
import { useWalk } from "./keys";
import { useEvents } from "./live";
import { useLoaded } from "./loaded";
import { Empty, ErrorNote, Loading } from "./notes";
import { useNow } from "./now";
import { choose, href, type Route } from "./route";
import { useMay } from "./session";
import { Tabs } from "./tabs";
import type { Question } from "./types";
import { age, brief, clock } from "./words";

export function Inbox({ route }: { route: Route }) {
  const { run = "", show = "open" } = route.choices;
  const open = show !== "answered";
  const questions = useLoaded(`questions ${open} ${run}`, (signal) => api.inbox({ answered: !open, run }, signal));
  useEvents(questions.again);
  useWalk("article.card");
  const shown = questions.value ?? [];
  return (
    <main>
      <div class="pad across">
        <h1>Inbox</h1>
        <Tabs
          label="Questions"
          tabs={[
            { name: "open", label: "Open" },
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
        {questions.error !== null && <ErrorNote error={questions.error} retry={questions.again} />}
        {questions.value === undefined && questions.error === null && <Loading what="looking for questions…" />}
        {questions.value && shown.length === 0 && (
          <Empty title={open ? "No open questions" : "No answered questions"}>
            {open && (
              <p class="soft">
                A workflow asks with <code>holdfast.ask("Publish?")</code>; the monitor asks about a stalled run.
              </p>
            )}
          </Empty>
        )}
        <div class="cards">
          {shown.map((question) => (
            <Card key={question.id} question={question} onDone={questions.again} />
          ))}
        </div>
      </div>
    </main>
  );
}

function Card({ question, onDone }: { question: Question; onDone: () => void }) {
  const now = useNow();
  const mayAnswer = useMay("operator");
  return (
    <article class="card" aria-label={question.text} tabIndex={-1}>
      <div class="between">
        <h2>{question.text}</h2>
        <span class="soft age" title={clock(question.opened, now)}>
          {age(question.opened, now)}
        </span>
      </div>
      <div class="soft">
        <a href={href("run", question.run)}>{question.run}</a>
        {question.address && <> at {question.address}</>}
        {question.due && <> · continues without an answer at {clock(question.due, now)}</>}
      </div>
      {question.details && !question.answered && <StalledDetails question={question} now={now} />}
      {question.answered ? (
        <p>
          Answered {answeredBy(question, now)}
        </p>
      ) : !mayAnswer ? null : question.details ? (
        <StalledChoices question={question} onDone={onDone} />
      ) : (
        <>
          <p class="soft">The answer is final, and the run is resumed at once.</p>
          <AnswerForm question={question} onDone={onDone} />
        </>
      )}
      <Further summary="History">
        <History run={question.run} besides={question.id} />
      </Further>
      {!question.answered && !question.details && (
        <Further summary="After the answer">
          <Consequences id={question.run} to={null} resume />
        </Further>
      )}
    </article>
  );
}

/** When a question was answered, by whom, and the answer. */
function answeredBy(question: Question, now: number) {
  const said = answerOf(question);
  return (
    <>
      {age(question.answered ?? "", now)}
      {question.actor ? ` by ${question.actor}` : ""}
      {said ? <>: <code>{said}</code></> : "."}
    </>
  );
}

function answerOf({ answer, details }: Question): string {
  if (!details?.choice) return answer === null || answer === undefined ? "" : brief(answer, 300);
  const keeps = details.keep?.length ? `, keep ${details.keep.join(", ")}` : "";
  return `${details.choice}${details.version ? ` to version ${details.version}` : ""}${keeps}`;
}

/** Content that is loaded when it is opened. */
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

/** The last steps of the run, and its earlier questions. */
function History({ run, besides }: { run: string; besides: string }) {
  const now = useNow();
  const found = useLoaded(`history ${run}`, (signal) =>
    Promise.all([api.run(run, signal), api.versions(run, { before: null, limit: LAST }, signal), api.inbox({ answered: true, run }, signal)]),
  );
  if (found.error !== null) return <ErrorNote error={found.error} retry={found.again} />;
  if (!found.value) return <Loading what="reading…" />;
  const [whole, { versions }, questions] = found.value;
  const earlier = questions.filter((question) => question.id !== besides);
  return (
    <dl class="facts">
      <div>
        <dt>run</dt>
        <dd>
          {[whole.workflow, whole.status, `started ${age(whole.created, now)}`].filter(Boolean).join(" · ")}
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
      {earlier.map((question) => (
        <div key={question.id}>
          <dt>asked {age(question.opened, now)}</dt>
          <dd>
            {question.text}{" "}
            <span class="soft">
              answered {answeredBy(question, now)}
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
