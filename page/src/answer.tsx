// A form for the answer that a workflow asked for, as its schema wants it.

import { useState } from "preact/hooks";

import * as api from "./api";
import { ErrorNote } from "./notes";
import type { Prompt } from "./types";

export function AnswerForm({ prompt, onDone }: { prompt: Prompt; onDone: () => void }) {
  const schema = prompt.schema ?? {};
  const [text, setText] = useState("");
  const [problem, setProblem] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  const send = async (answer: unknown) => {
    setBusy(true);
    setProblem(null);
    try {
      await api.answer(prompt.id, { value: answer });
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

/** What was typed, as a value: a text where one is wanted or nothing is said; else JSON. */
function valueOf(text: string, type: string | undefined): unknown {
  if (type === "string") return text;
  try {
    return JSON.parse(text);
  } catch {
    if (type === undefined) return text;
    throw new Error(`This wants ${type === "integer" || type === "number" ? "a number" : `JSON (${type})`}.`);
  }
}
