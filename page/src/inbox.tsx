// The inbox: open questions, with the effect of each answer, and answered ones.

import type { ComponentChildren } from "preact";
import { useContext, useMemo, useRef, useState } from "preact/hooks";

import { Consequences } from "./actions";
import { AnswerForm } from "./answer";
import * as api from "./api";
import { Assign, Handling } from "./assign";
import { Choice, distinct } from "./choice";
import { Field } from "./field";
import { useWalk } from "./keys";
import { useEvents } from "./live";
import { useLoaded } from "./loaded";
import { projectOf, stateRunOf } from "./loop_names";
import { Empty, ErrorNote, Loading } from "./notes";
import { useNow } from "./now";
import { choose, href, type Route } from "./route";
import { SessionContext, useMay } from "./session";
import { StalledChoices, StalledDetails } from "./stalled";
import { Tabs } from "./tabs";
import type { Question } from "./types";
import { age, brief, clock } from "./words";

/** How long a question has been open, in seconds. */
const WAITING: Record<string, number> = { "1h": 3_600, "24h": 86_400, "7d": 604_800 };

export function Inbox({ route }: { route: Route }) {
  const { run = "", show = "open", assignee = "", workflow = "", waiting = "" } = route.choices;
  const open = show !== "answered";
  const filters = open ? { assignee, workflow, waiting_longer_than: WAITING[waiting] ?? null } : {};
  const questions = useQuestions({ answered: !open, run, ...filters });
  const filtered = open && Boolean(assignee || workflow || waiting || run);
  const session = useContext(SessionContext);
  useEvents(questions.again);
  useWalk("article.card");
  const shown = questions.items ?? NONE;
  const workflows = useMemo(
    () => distinct([...(session?.workflows ?? []), ...shown.flatMap((each) => each.workflow ?? []), ...(workflow ? [workflow] : [])]),
    [session, shown, workflow],
  );
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
            <span class="breakable">{nameOf(run)}</span> ✕
          </button>
        )}
        {open && (
          <div class="across filters">
            <Field label="Assignee" placeholder="every assignee" value={assignee} onFinish={(value) => choose({ assignee: value })} />
            <Choice label="Workflow" all="every workflow" value={workflow} options={workflows} onChoose={(value) => choose({ workflow: value })} />
            <Choice
              label="Waiting longer than"
              all="waiting any time"
              value={waiting}
              options={Object.keys(WAITING).map((each) => [each, `longer than ${each}`])}
              onChoose={(value) => choose({ waiting: value })}
            />
          </div>
        )}
      </div>
      <div class="pad scroll" style={{ paddingTop: 0 }}>
        {questions.error !== null && <ErrorNote error={questions.error} retry={questions.again} />}
        {questions.items === undefined && questions.error === null && <Loading what="looking for questions…" />}
        {questions.items && shown.length === 0 && (
          <Empty title={filtered ? "No open question matches these filters" : open ? "No open questions" : "No answered questions"}>
            {open && !filtered && (
              <p class="soft">
                A workflow asks with <code>holdfast.ask("Publish?")</code>; the monitor asks about a stalled run, and a loop about a stalled
                agent.
              </p>
            )}
          </Empty>
        )}
        <div class="cards">
          {shown.map((question) => (
            <Card key={question.id} question={question} onDone={questions.again} />
          ))}
          {questions.hasMore && (
            <button type="button" onClick={questions.more}>
              Show more questions
            </button>
          )}
        </div>
      </div>
    </main>
  );
}

const NONE: Question[] = [];

interface Questions {
  items: Question[] | undefined;
  hasMore: boolean;
  error: unknown;
  more: () => void;
  again: () => void;
}

/** The questions that match the filters, as many pages as were asked for. An event may change any page: all are read
 * again. */
function useQuestions(wanted: api.QuestionsWanted): Questions {
  const key = `questions ${JSON.stringify(wanted)}`;
  const pages = useRef({ key, number: 1 });
  if (pages.current.key !== key) pages.current = { key, number: 1 };
  const found = useLoaded(key, async (signal) => {
    const items = new Map<string, Question>();
    let after: string | null = null;
    let hasMore = true;
    for (let page = 0; hasMore && page < pages.current.number; page++) {
      const next: Question[] = await api.inbox({ ...wanted, after }, signal);
      for (const each of next) items.set(each.id, each);
      hasMore = next.length === api.QUESTIONS;
      after = next[next.length - 1]?.id ?? null;
    }
    return { items: [...items.values()], hasMore };
  });
  const more = () => {
    pages.current.number++;
    found.again();
  };
  return { items: found.value?.items, hasMore: found.value?.hasMore ?? false, error: found.error, more, again: found.again };
}

/** What a run is called: a loop by its project. */
function nameOf(run: string): string {
  const project = projectOf(run);
  return project === null ? `run ${run}` : `loop ${project}`;
}

function Card({ question, onDone }: { question: Question; onDone: () => void }) {
  const now = useNow();
  const mayAnswer = useMay("operator");
  const project = question.project ?? projectOf(question.run);
  return (
    <article class="card" aria-label={question.text} tabIndex={-1}>
      <div class="between">
        <h2>{question.text}</h2>
        <span class="soft age" title={clock(question.opened, now)}>
          {age(question.opened, now)}
        </span>
      </div>
      <div class="soft breakable">
        {project === null ? <a href={href("run", question.run)}>{question.run}</a> : <a href={href("loops", project)}>loop {project}</a>}
        {question.workflow !== null && <> · {question.workflow}</>}
        {question.address && <> at {question.address}</>}
      </div>
      {!question.answered && (
        <div class="between">
          <Handling question={question} now={now} />
          {mayAnswer && <Assign question={question} onDone={onDone} />}
        </div>
      )}
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

/** The last steps of the run, or versions of the loop, and its earlier questions. */
function History({ run: asking, besides }: { run: string; besides: string }) {
  const now = useNow();
  const run = stateRunOf(asking) ?? asking;
  const found = useLoaded(`history ${asking}`, (signal) =>
    Promise.all([
      api.run(run, signal),
      api.versions(run, { before: null, limit: LAST }, signal),
      api.inbox({ answered: true, run: asking }, signal),
    ]),
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
