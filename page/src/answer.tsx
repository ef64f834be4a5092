// A form for the answer to a question, according to its schema.

import { useState } from "preact/hooks";

import * as api from "./api";
import { ErrorNote } from "./notes";
import type { Question } from "./types";

export function AnswerForm({ question, onDone }: { question: Question; onDone: () => void }) {
  const schema = question.schema ?? {};
  const [text, setText] = useState("");
  const [problem, setProblem] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  const send = async (answer: unknown) => {
    setBusy(true);
    setProblem(null);
    try {
      await api.answer(question.id, { value: answer });
      onDone();
    } catch (error) {
      setProblem(error);
    } finally {
      setBusy(false);
    }
  };
  const options = schema.enum ?? (schema.type === "boolean" ? [true, false] : null);
  return (
    <>
      {options !== null ? (
        <div class="choices">
          {options.map((option) => (
            <button key={String(option)} type="button" disabled={busy} onClick={() => void send(option)}>
              {option === true ? "Yes" : option === false ? "No" : String(option)}
            </button>
          ))}
        </div>
      ) : (
        <form
          class="across"
          onSubmit={(event) => {
            event.preventDefault();
            try {
              void send(valueOf(text, schema.type));
            } catch (error) {
              setProblem(error);
            }
          }}
        >
          <textarea
            aria-label="Answer"
            rows={2}
            style={{ minHeight: "3.2em" }}
            placeholder={schema.type === undefined || schema.type === "string" ? "your answer" : `${schema.type}, as JSON`}
            value={text}
            onInput={(event) => setText(event.currentTarget.value)}
          />
          <button type="submit" class="main" disabled={busy || text === ""}>
            Answer
          </button>
        </form>
      )}
      {problem !== null && <ErrorNote error={problem} />}
    </>
  );
}

/** The input as a value: a text if the schema says so or is missing; else JSON. */
function valueOf(text: string, type: string | undefined): unknown {
  if (type === "string") return text;
  try {
    return JSON.parse(text);
  } catch {
    if (type === undefined) return text;
    throw new Error(`This needs ${type === "integer" || type === "number" ? "a number" : `JSON (${type})`}.`);
  }
}
