// Placeholders: empty, loading, an error.

import type { ComponentChildren } from "preact";

import { ApiError } from "./api";

export function ErrorNote({ error, retry }: { error: unknown; retry?: () => void }) {
  const title = error instanceof ApiError ? error.title : "Something went wrong in this page";
  const text = error instanceof Error ? error.message : String(error);
  return (
    <div class="note error" role="alert">
      <strong>{title}</strong>
      <p>{text}</p>
      {retry && (
        <button type="button" onClick={retry}>
          Try again
        </button>
      )}
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="note empty">
      <strong>{title}</strong>
      {children}
    </div>
  );
}

export function Loading({ what }: { what: string }) {
  return (
    <div class="note loading" aria-busy="true">
      <span class="spinner" aria-hidden="true" />
      {what}
    </div>
  );
}
